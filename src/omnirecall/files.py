"""Files written whole or not at all."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from omnirecall.locks import hold, is_free


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``; renamed over it, after fsync, when the block ends well, else removed.

    What processes that were killed have left beside ``path`` is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError), left.open("rb") as file:
            if is_free(file):
                left.unlink()  # while it is looked at, its process cannot begin to hold it
    handle, temporary = _held(path)
    try:
        yield temporary
        _fsync(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def left_behind(temporary: Path) -> bool:
    """Whether the process that began a temporary file is gone."""
    try:
        with temporary.open("rb") as file:
            return is_free(file)
    except OSError:
        return False


def _held(path: Path) -> tuple[int, Path]:
    """A new temporary file beside ``path``, with a lock that tells others that its process lives."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        hold(handle)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # taken for a leftover before it was locked


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def pretty_json(value: Any) -> str:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
