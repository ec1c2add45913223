"""The runs below some folders, whatever state they are in: what is known of each is shown, and what is amiss is said."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from omnirecall._version import __version__
from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card, shipped_cards
from omnirecall.protocol.suites import MeanValue, MediaPolicy, Suite, Task
from omnirecall.results.record import ModelRecord, Run, TaskRecord
from omnirecall.sources.folder import is_suite_folder
from omnirecall.sources.load import PACKAGE, load_suite

State = Literal["finished", "unfinished", "older", "damaged"]
DEEPEST = 5
"""Folders are looked into this deep below a named one."""
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run as far as it can be read.

    ``key`` names it in addresses. ``problems``: one sentence for each thing that is amiss with the record or its files.
    """

    key: str
    folder: Path
    record: Run
    state: State
    problems: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The model's name; the identity tells apart runs of one model."""
        return self.record.model.name

    def ranks_file(self, task: str) -> Path:
        """Where the ranks of a task are kept."""
        return self.folder / "tasks" / f"{task}.parquet"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the items of a run's task come from. ``note`` says what is amiss; ``root`` is None where there are no data."""

    suite: Suite | None
    root: Path | None
    note: str = ""


def safe_key(name: str) -> str:
    """A name as part of an address: itself where that is plain, else with a hash that keeps it unique."""
    plain = re.sub(r"[^A-Za-z0-9_+=,.-]", "_", name).lstrip(".")[:80]
    return plain if plain == name else f"{plain}~{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:6]}"


class RunsFolder:
    """The runs below the named folders, read again when their files change. UserError for a folder that is not there."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.exists():
                raise UserError(f"{folder}: there is no such folder; name one that `omnirecall run` wrote")
        self.folders = tuple(folders)
        self._read: dict[Path, tuple[tuple[int, ...], ShownRun]] = {}

    def runs(self) -> dict[str, ShownRun]:
        """Every run by its key, in the order of suite, model and identity."""
        found: dict[str, ShownRun] = {}
        for folder in dict.fromkeys(path.resolve() for path in _run_folders(self.folders)):
            run = self._run(folder)
            key = run.key
            while key in found:
                key += "+"
            found[key] = replace(run, key=key)
        return dict(sorted(found.items(), key=lambda pair: (pair[1].record.suite, pair[1].title, pair[0])))

    def _run(self, folder: Path) -> ShownRun:
        stamp = _stamp(folder)
        known = self._read.get(folder)
        if known is None or known[0] != stamp:
            known = self._read[folder] = (stamp, read_shown(folder))
        return known[1]


def _run_folders(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        start = folder.parent if folder.is_file() else folder
        yield from _below(start, DEEPEST)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "run.json").exists() or _has_ranks(folder):
        yield folder
        return
    if depth:
        try:
            inner = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
        except OSError:
            return
        for path in inner:
            yield from _below(Path(path), depth - 1)


def _has_ranks(folder: Path) -> bool:
    """Whether this is a run that was stopped before its record was written."""
    try:
        return any(path.suffix in (".parquet", ".json") for path in (folder / "tasks").iterdir())
    except OSError:
        return False


def _stamp(folder: Path) -> tuple[int, ...]:
    stamps = []
    for path in (folder / "run.json", folder / "tasks"):
        try:
            status = path.stat()
            stamps += [status.st_mtime_ns, status.st_size]
        except OSError:
            stamps += [0, 0]
    return tuple(stamps)


def read_shown(folder: Path) -> ShownRun:
    """The run of a folder, whatever can be read of it."""
    key = safe_key(folder.name)
    path = folder / "run.json"
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        problem = "The run was stopped before its record was written; what it had ranked by then is shown."
        return ShownRun(key, folder, _from_tasks(folder), "unfinished", (problem,))
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        problem = f"run.json cannot be read ({error}); the files of its tasks are shown instead."
        return ShownRun(key, folder, _from_tasks(folder), "damaged", (problem,))
    try:
        record = msgspec.convert(raw, Run, strict=True)
    except msgspec.ValidationError as error:
        if not isinstance(raw, Mapping):
            problem = "run.json holds no record; the files of its tasks are shown instead."
            return ShownRun(key, folder, _from_tasks(folder), "damaged", (problem,))
        version = raw.get("omnirecall")
        written = f"version {version}" if isinstance(version, str) and version != __version__ else "another version"
        problem = f"The record was written by {written} and is not complete ({error}); what fits is shown."
        return ShownRun(key, folder, _what_fits(raw, folder), "older", (problem,))
    if not record.finished:
        problem = "The run is not finished; what it had ranked by then is shown."
        return ShownRun(key, folder, record, "unfinished", (problem, *_missing_ranks(folder, record)))
    return ShownRun(key, folder, record, "finished", _missing_ranks(folder, record))


def _missing_ranks(folder: Path, record: Run) -> tuple[str, ...]:
    gone = [
        name
        for name, task in record.tasks.items()
        if task.status == "ok" and not (folder / "tasks" / f"{name}.parquet").is_file()
    ]
    return (f"The ranks of {len(gone)} tasks are missing: {', '.join(gone[:3])}.",) if gone else ()


def _fitting(raw: object, kind: type[Kind], default: Kind) -> Kind:
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError:
        return default


def _what_fits(raw: Mapping[str, Any], folder: Path) -> Run:
    """A record from whatever fields of it are as they should be."""
    guessed = _from_tasks(folder)
    model = raw.get("model")
    named = model.get("name") if isinstance(model, Mapping) else model
    fallback = ModelRecord(str(named) if named else guessed.model.name, "", 0, ())
    tasks = raw.get("tasks")
    means = raw.get("means")
    fields: dict[str, Any] = {}
    for name in ("deviations", "notes", "uncertain", "media_warnings"):
        fields[name] = _fitting(raw.get(name), tuple[str, ...], ())
    for name in ("identity", "data_root", "card"):
        fields[name] = _fitting(raw.get(name), str, "")
    return Run(
        omnirecall=str(raw.get("omnirecall", "")),
        suite=_fitting(raw.get("suite"), str, "") or guessed.suite,
        model=_fitting(model, ModelRecord, fallback),
        tasks={
            **guessed.tasks,
            **{str(name): _fitting_task(task) for name, task in (tasks.items() if isinstance(tasks, Mapping) else ())},
        },
        means={
            str(name): mean
            for name, one in (means.items() if isinstance(means, Mapping) else ())
            if (mean := _fitting(one, MeanValue, MeanValue(None, False))).value is not None
        },
        **fields,
    )


def _fitting_task(raw: object) -> TaskRecord:
    fields = raw if isinstance(raw, Mapping) else {}
    known = {}
    for field_ in msgspec.structs.fields(TaskRecord):
        if field_.name in fields:
            try:
                known[field_.name] = msgspec.convert(fields[field_.name], field_.type, strict=False)
            except msgspec.ValidationError:
                continue
    return TaskRecord(**{"status": "ok" if known.get("value") is not None else "failed", "measure": "hit@1", **known})


def _from_tasks(folder: Path) -> Run:
    """What the files of tasks and the names of folders tell of a run without a record."""
    tasks: dict[str, TaskRecord] = {}
    for path in sorted((folder / "tasks").glob("*.json")):
        try:
            tasks[path.stem] = _fitting_task(msgspec.json.decode(path.read_bytes()))
        except (msgspec.DecodeError, UnicodeDecodeError, OSError):
            tasks[path.stem] = TaskRecord(status="failed", measure="hit@1", reason="its record is damaged")
    name, _, identity = folder.name.rpartition("-")
    suite = _shipped(folder.parent.name)
    for path in sorted((folder / "tasks").glob("*.parquet")):
        if path.stem not in tasks:
            tasks[path.stem] = _measured(path, suite)
    return Run(
        omnirecall="",
        suite=folder.parent.name,
        card=suite.revision if suite else "",
        model=ModelRecord(name or folder.name, "", 0, ()),
        tasks=tasks,
        means={},
        identity=identity,
        finished=False,
    )


def _measured(path: Path, suite: Suite | None) -> TaskRecord:
    """A task's values from its ranks alone; without the card, which measure was meant is not known, and hit@1 is shown."""
    from omnirecall.protocol.measures import Measure
    from omnirecall.results.scores import task_measures
    from omnirecall.view.ranks import read_ranks

    task = suite.task(path.stem) if suite and path.stem in suite.task_names() else None
    measure = task.measure if task else Measure("hit", 1)
    try:
        ranked = read_ranks(path, measure).judged
        values = task_measures(task.all_measures() if task else [measure], ranked)
    except UserError as error:
        return TaskRecord(status="failed", measure=str(measure), reason=str(error))
    value = values[str(measure)]
    return TaskRecord(
        status="ok",
        measure=str(measure),
        value=value.value,
        best=value.best,
        worst=value.worst,
        queries=len(ranked.pool_size),
        pool=int(ranked.pool_size.max(initial=0)),
        direction=task.direction if task else "",
        measures=values,
    )


@lru_cache(maxsize=32)
def _shipped(name: str) -> Suite | None:
    try:
        return read_card(shipped_card(name)) if name in shipped_cards() else None
    except UserError:
        return None


@lru_cache(maxsize=32)
def _own(folder: Path, _stamp: int) -> Suite | None:
    try:
        return load_suite(folder)
    except UserError:
        return None


@dataclass(frozen=True, slots=True)
class Cards:
    """Finds the card and the data of a run. ``data``: folders given by the user, tried where a run's own folder is gone."""

    data: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()

    def place(self, run: Run) -> Place:
        """The suite and the folder of its data; a note where either is missing or has changed."""
        root = self._root(run)
        suites = [suite for suite in self._suites(run, root) if suite is not None]
        suite = next((one for one in suites if one.revision == run.card), suites[0] if suites else None)
        notes = []
        if suite is None:
            notes.append(f"The card of {run.suite} is not here, so that its items cannot be read.")
        elif run.card and suite.revision != run.card:
            notes.append(f"The card of {run.suite} has changed since this run.")
        if root is None:
            where = run.data_root or "not recorded"
            notes.append(
                f"The data folder is missing ({where}): ranks and scores are shown without the items."
                " Name where the data lie now with --data."
            )
        return Place(suite, root, " ".join(notes))

    def _root(self, run: Run) -> Path | None:
        recorded = Path(run.data_root) if run.data_root else None
        if recorded is not None and _is_dir(recorded):
            return recorded
        shipped = _shipped(run.suite)
        if shipped is not None and shipped.root is not None and (recorded is None or recorded.name == shipped.root):
            return PACKAGE / shipped.root
        return next((folder for folder in self.data if _is_dir(folder)), None)

    def _suites(self, run: Run, root: Path | None) -> Iterator[Suite | None]:
        for path in self.files:
            suite = _own(path, path.stat().st_mtime_ns)
            if suite is not None and suite.name == run.suite:
                yield suite
        if root is not None and is_suite_folder(root):
            files = [root / name for name in ("suite.toml", "task.toml") if (root / name).is_file()]
            suite = _own(root, files[0].stat().st_mtime_ns)
            if suite is not None and suite.name == run.suite:
                yield suite
        yield _shipped(run.suite)


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def task_of(place: Place, name: str, record: TaskRecord | None) -> Task | None:
    """The card's task with the media policy that the run recorded, which is the one that the model saw."""
    if place.suite is None or name not in place.suite.task_names():
        return None
    task = place.suite.task(name)
    if record is not None and record.media:
        try:
            return msgspec.structs.replace(task, media=msgspec.convert(record.media, MediaPolicy))
        except msgspec.ValidationError:
            return task
    return task
