"""Work that the server must not do itself: reading large data, comparing media. Each job is a process that writes one file."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any

AT_ONCE = 2
"""Jobs that run at a time; the others wait their turn."""


class Jobs:
    """Jobs by name. What they write lies in a folder that goes when this is closed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="omnirecall-view-"))
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._running: dict[str, SpawnProcess] = {}
        self._waiting: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._failed: set[str] = set()
        self._closed = False

    def __enter__(self) -> Jobs:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def file(self, name: str) -> Path:
        """The file that the job of that name writes."""
        return self.folder / f"{name}.sqlite"

    def ask(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        """Start the job unless it is done, running or waiting; it is called with ``arguments`` and the path of its file."""
        with self._lock:
            known = name in self._running or name in self._waiting or name in self._failed
            if not self._closed and not known and not self.file(name).exists():
                self._waiting[name] = (work, (*arguments, self.file(name)))
            self._advance()

    def done(self, name: str) -> bool:
        """Whether the job's file is written."""
        return self.file(name).exists()

    def failed(self, name: str) -> bool:
        """Whether the job ended without its file."""
        with self._lock:
            self._advance()
            return name in self._failed

    def wait(self, name: str, seconds: float) -> bool:
        """Wait until the job is done or has failed, at most so long; whether it is done."""
        end = time.monotonic() + seconds
        while not self.done(name) and not self.failed(name) and time.monotonic() < end:
            time.sleep(0.02)
        return self.done(name)

    def close(self) -> None:
        """End what runs and remove what was written."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            for process in self._running.values():
                process.terminate()
                process.join(5)
            self._running.clear()
        with suppress(OSError):
            shutil.rmtree(self.folder)

    def _advance(self) -> None:
        for name, process in list(self._running.items()):
            if not process.is_alive():
                del self._running[name]
                if not self.file(name).exists():
                    self._failed.add(name)
        while self._waiting and len(self._running) < AT_ONCE:
            name = next(iter(self._waiting))
            work, arguments = self._waiting.pop(name)
            process = self._context.Process(target=_quietly, args=(work, arguments), daemon=True)
            process.start()
            self._running[name] = process


def _quietly(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Do the work after whatever a person waits for."""
    with suppress(OSError, AttributeError):
        os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its jobs
    work(*arguments)
