"""What the pages are made from: runs, cards, ranks and items, each read when it is asked for and kept while it is wanted."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.items import MediaRef
from omnirecall.protocol.suites import Mean, MediaPolicy, Task
from omnirecall.view.duplicates import write_duplicates
from omnirecall.view.intervals import recorded_intervals, run_intervals
from omnirecall.view.items import Index, write_index
from omnirecall.view.jobs import Jobs
from omnirecall.view.media import FrameKeeper, allowed, policies_by_name
from omnirecall.view.ranks import Ranks, parsed, read_ranks
from omnirecall.view.runs import Cards, Place, RunsFolder, ShownRun, task_of

FRESH = 1.0
"""Seconds for which the list of runs is taken as it was read."""
KEPT_QUERIES = 400_000
"""Ranks are kept for tasks of so many queries together, and at least two tasks."""
Value = TypeVar("Value")


class Kept:
    """Values computed last, up to a number of them. Threads may share this; a value is computed by one of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """The value of ``key``, computed if it is not kept."""
        with self._lock:
            if key not in self._values:
                self._values[key] = compute()
                while len(self._values) > self.most:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]  # type: ignore[return-value]


class Site:
    """The runs below ``folders`` with their cards and data."""

    def __init__(self, folders: Sequence[Path], jobs: Jobs, cards: Cards | None = None) -> None:
        self.folder = RunsFolder(folders)
        self.cards = cards or Cards()
        self.jobs = jobs
        self.frames = FrameKeeper()
        self.kept = Kept(256)
        self._runs: tuple[float, dict[str, ShownRun]] = (-FRESH, {})
        self._ranks: OrderedDict[tuple[Path, int], Ranks] = OrderedDict()
        self._lock = threading.RLock()
        self._computing = ThreadPoolExecutor(1, "intervals")
        self._computed: dict[tuple[object, ...], Future[dict[str, tuple[float, float]]]] = {}
        self._roots: dict[str, Path] = {}
        self._indices: dict[str, dict[str, None]] = {}

    def runs(self) -> dict[str, ShownRun]:
        """Every run by its key."""
        with self._lock:
            read, runs = self._runs
            if time.monotonic() - read >= FRESH:
                runs = self.folder.runs()
                self._runs = (time.monotonic(), runs)
            return runs

    def suites(self) -> dict[str, list[ShownRun]]:
        """The runs of each suite."""
        suites: dict[str, list[ShownRun]] = {}
        for run in self.runs().values():
            suites.setdefault(run.record.suite, []).append(run)
        return suites

    def place(self, run: ShownRun) -> Place:
        """Card and data of a run."""
        return self.cards.place(run.record)

    def tree(self, run: ShownRun) -> tuple[Mean, ...]:
        """What each mean of a run is a mean of, from its record or the card; none where neither says."""
        suite = self.place(run).suite
        return run.record.tree or (suite.means if suite is not None else ())

    def task(self, run: ShownRun, name: str) -> Task | None:
        """The card's task, with the media policy that the run recorded."""
        return task_of(self.place(run), name, run.record.tasks.get(name))

    def ranks(self, run: ShownRun, task: str) -> Ranks:
        """The ranks of a task; UserError if there are none."""
        path = run.ranks_file(task)
        try:
            stamp = path.stat().st_mtime_ns
        except OSError:
            raise UserError(f"there are no ranks of {task} in this run") from None
        with self._lock:
            key = (path, stamp)
            if key not in self._ranks:
                self._ranks[key] = read_ranks(path, parsed(run.record.tasks[task].measure))
                self._forget_ranks()
            self._ranks.move_to_end(key)
            return self._ranks[key]

    def _forget_ranks(self) -> None:
        while len(self._ranks) > 2 and sum(map(len, self._ranks.values())) > KEPT_QUERIES:
            self._ranks.popitem(last=False)

    def intervals(self, run: ShownRun, wait: float) -> Mapping[str, tuple[float, float]] | None:
        """The 95% intervals of a run's tasks and means by name; None if they take longer than ``wait`` seconds."""
        recorded = recorded_intervals(run.record)
        if recorded is not None:
            return recorded
        name = self._intervals_name(run)
        with self._lock:
            if name not in self._computed:
                self._computed[name] = self._computing.submit(self._compute_intervals, run)
            future = self._computed[name]
        try:
            return future.result(None if wait == math.inf else wait)
        except TimeoutError:
            return None

    @staticmethod
    def _intervals_name(run: ShownRun) -> tuple[object, ...]:
        return (run.folder, run.state, tuple((name, task.value) for name, task in run.record.tasks.items()))

    def _compute_intervals(self, run: ShownRun) -> dict[str, tuple[float, float]]:
        found: dict[str, Ranks] = {}
        for name, task in run.record.tasks.items():
            if task.value is not None and run.ranks_file(name).is_file():
                with suppress(UserError):
                    found[name] = read_ranks(run.ranks_file(name), parsed(task.measure))
        return run_intervals(self.tree(run), found)

    def root_key(self, root: Path) -> str:
        """The name of a data folder in addresses."""
        key = hashlib.blake2b(str(root.resolve()).encode(errors="surrogateescape"), digest_size=6).hexdigest()
        with self._lock:
            self._roots[key] = root
        return key

    def index_name(self, run: ShownRun, task: str) -> str:
        """The name of the index of a task's items, which is begun if it is not there; "" where there are no data or no card."""
        place, known = self.place(run), self.task(run, task)
        if place.root is None or known is None or place.suite is None:
            return ""
        plain = msgspec.json.encode([str(place.root.resolve()), place.suite.revision, task])
        name = f"items-{hashlib.blake2b(plain, digest_size=10).hexdigest()}"
        with self._lock:
            self._indices.setdefault(self.root_key(place.root), {})[name] = None
        self.jobs.ask(name, write_index, place.root, known)
        return name

    def index(self, run: ShownRun, task: str, wait: float = 0.0) -> Index | None:
        """The items of a task, or None while they are being read, or where they cannot be."""
        name = self.index_name(run, task)
        if not name or not self.jobs.wait(name, wait):
            return None
        return self._read_index(name)

    def _read_index(self, name: str) -> Index:
        return self.kept.get(("index", name), lambda: Index(self.jobs.file(name)))

    def readable(self, run: ShownRun, task: str) -> bool:
        """Whether the items of a task are read, or may still be."""
        name = self.index_name(run, task)
        return bool(name) and not self.jobs.failed(name)

    def duplicates_name(self, run: ShownRun, task: str, wait: float = 0.0) -> str:
        """The name of the search for false negatives, which is begun once the items are read; "" until then."""
        index = self.index(run, task, wait)
        place, known = self.place(run), self.task(run, task)
        if index is None or index.problem or place.root is None or known is None:
            return ""
        ranks = run.ranks_file(task)
        stamp = f"{ranks} {ranks.stat().st_mtime_ns} {self.index_name(run, task)}"
        name = f"pairs-{hashlib.blake2b(stamp.encode(errors='surrogateescape'), digest_size=10).hexdigest()}"
        self.jobs.ask(name, write_duplicates, ranks, index.path, place.root, known.media)
        return name

    def duplicates_progress(self, run: ShownRun, task: str) -> tuple[int, int]:
        """(queries looked at, queries) of a search that is under way; zeros before it begins."""
        name = self.duplicates_name(run, task)
        try:
            done, total = self.jobs.file(name).with_suffix(".progress").read_text().split()
        except (OSError, ValueError):
            return 0, 0
        return int(done), int(total)

    def searchable(self, run: ShownRun, task: str) -> bool:
        """Whether the search for false negatives is done, or may still be."""
        name = self.duplicates_name(run, task)
        return not self.jobs.failed(name) if name else self.readable(run, task) and not self._problem(run, task)

    def _problem(self, run: ShownRun, task: str) -> str:
        index = self.index(run, task)
        return "" if index is None else index.problem

    def medium(self, root_key: str, name: str) -> MediaRef:
        """The medium of that name below a data folder; UserError if it is not known, gone, or outside."""
        with self._lock:
            root = self._roots.get(root_key)
            names = list(self._indices.get(root_key, ()))
        for index_name in names if root is not None else ():
            if self.jobs.done(index_name):
                ref = self._read_index(index_name).medium(name)
                if ref is not None and root is not None:
                    return allowed(ref, root)
        raise UserError("no such medium among the data of the runs that are shown")

    def policies(self) -> dict[str, MediaPolicy]:
        """The media policies of every task that is shown, by their names in addresses."""
        tasks = [self.task(run, name) for run in self.runs().values() for name in run.record.tasks]
        return policies_by_name(task.media for task in tasks if task is not None)
