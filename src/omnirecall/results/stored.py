"""Finished runs read back: each query's ranks, the clusters of a suite, intervals, the tree of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from omnirecall._version import __version__
from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card, shipped_cards
from omnirecall.protocol.measures import Measure, MeasureError, RankedJudgments, aggregate, score_queries
from omnirecall.protocol.suites import Mean
from omnirecall.results.intervals import Estimate, Floats, Ints, mean_intervals, value_interval
from omnirecall.results.record import RANKED_COLUMNS, Run, TaskRecord, ranked_of, read_run
from omnirecall.results.scores import task_measures

SAME = 1e-9
"""How far a value of run.json may lie from the one that its parquet gives: rounding in the last place of a sum."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTask:
    """The queries of a task: ids, clusters (None: of its own), string (n_queries,) each, and their ranks."""

    query_ids: pa.Array
    clusters: pa.Array
    ranked: RankedJudgments


def open_run(path: Path) -> Run:
    """A finished run by its folder or run.json, with its tree of means; UserError if it is unfinished, damaged or too old."""
    run = read_run(path)
    if not run.finished:
        raise UserError(f"{run.folder}: the run is not finished; the command that began it goes on where it stopped")
    for name, task in run.tasks.items():
        if not name or Path(name).name != name or name in (".", ".."):
            raise UserError(f"{run.folder}: run.json is damaged: {name!r} cannot be the name of a task; run it again")
        if task.status == "ok" and (task.value is None or task.measure not in task.measures):
            raise UserError(f"{run.folder}: run.json is damaged: task {name} is ok and has no value; run it again")
    return msgspec.structs.replace(run, tree=run.tree or _tree_of_card(run))


def valued_tasks(run: Run) -> list[str]:
    """The tasks that have a value, in the run's order."""
    return [name for name, task in run.tasks.items() if task.status == "ok"]


def read_task(run: Run, name: str) -> StoredTask:
    """The ranks of a task of an opened run; UserError if they are missing, damaged or not those of run.json."""
    path = task_path(run, name)
    table = _read_table(path, run, ["query_id", "cluster", *RANKED_COLUMNS])
    try:
        task = StoredTask(one_piece(table.column("query_id")), one_piece(table.column("cluster")), ranked_of(table))
    except (pa.ArrowException, ValueError, KeyError, AttributeError) as error:
        raise UserError(_damaged(path, run, error)) from None
    _check_agrees(path, run, run.tasks[name], task)
    return task


def task_path(run: Run, name: str) -> Path:
    """The parquet of a task."""
    return Path(run.folder) / "tasks" / f"{name}.parquet"


def read_columns(path: Path, run: Run, names: Sequence[str]) -> dict[str, pa.Array]:
    """Columns of a task's parquet, each in one piece; UserError if the file is missing or damaged or lacks one."""
    table = _read_table(path, run, names)
    return {name: one_piece(table.column(name)) for name in names}


def _read_table(path: Path, run: Run, names: Sequence[str]) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read(columns=list(names))
    except FileNotFoundError:
        raise UserError(
            f"{path}: is missing, so the run is not whole; run it again, which embeds nothing anew"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(_damaged(path, run, error)) from None
    if lacking := [name for name in names if name not in table.column_names]:
        raise UserError(_damaged(path, run, f"it has no column {lacking[0]}"))
    return table


def one_piece(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def suite_clusters(clusters: Mapping[str, pa.Array]) -> dict[str, Ints]:
    """Codes of the tasks' clusters, int64 (n_queries,) by task: one code a key in all tasks, one for each None."""
    if not clusters:
        return {}
    joined = pa.concat_arrays([column.cast(pa.string()) for column in clusters.values()]).dictionary_encode()
    codes = joined.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).copy()
    alone = codes < 0
    codes[alone] = len(joined.dictionary) + np.arange(int(alone.sum()))
    ends = np.cumsum([len(column) for column in clusters.values()])
    return dict(zip(clusters, np.split(codes, ends[:-1]), strict=True))


def primary_measure(run: Run, name: str) -> Measure:
    """The measure of a task; UserError if it is none."""
    return _parsed(run.tasks[name].measure, run, name)


def primary_values(run: Run, name: str, task: StoredTask) -> Floats:
    """The primary measure of every query, float64 (n_queries,)."""
    return score_queries(primary_measure(run, name), task.ranked).value


def with_intervals(run: Run) -> Run:
    """An opened run with the 95% interval of every measure and mean; UserError if the ranks of a task cannot be read."""
    if all(value.interval for task in run.tasks.values() for value in task.measures.values()) and (
        run.mean_intervals or not any(mean.complete for mean in run.means.values())
    ):
        return run
    stored = {name: read_task(run, name) for name in valued_tasks(run)}
    codes = suite_clusters({name: task.clusters for name, task in stored.items()})
    tasks, estimates = dict(run.tasks), {}
    for name, task in stored.items():
        measures = [_parsed(text, run, name) for text in run.tasks[name].measures]
        values = task_measures(measures, task.ranked, codes[name])
        tasks[name] = msgspec.structs.replace(run.tasks[name], measures=values)
        estimates[name] = value_interval(primary_measure(run, name), primary_values(run, name, task), codes[name])
    return msgspec.structs.replace(run, tasks=tasks, mean_intervals=intervals_of_means(run, estimates))


def intervals_of_means(run: Run, estimates: Mapping[str, Estimate]) -> dict[str, tuple[float, float]]:
    """The intervals of the means that have a value, if the tree of means is known."""
    found = mean_intervals(run.tree, estimates)
    return {name: found[name] for name, mean in run.means.items() if mean.complete and name in found}


def _parsed(text: str, run: Run, name: str) -> Measure:
    try:
        return Measure.parse(text)
    except MeasureError as error:
        raise UserError(f"{run.folder}: run.json is damaged: task {name}: {error}") from None


def _check_agrees(path: Path, run: Run, record: TaskRecord, task: StoredTask) -> None:
    try:
        measure = Measure.parse(record.measure)
        value = aggregate(measure, score_queries(measure, task.ranked).value)
    except ValueError as error:
        raise UserError(_damaged(path, run, error)) from None
    if len(task.query_ids) != record.queries or abs(value - (record.value or 0.0)) > SAME * max(1.0, abs(value)):
        raise UserError(
            f"{path}: its ranks are not those that run.json sums up; run it again, which embeds nothing anew"
        )


def _damaged(path: Path, run: Run, error: object) -> str:
    older = "" if run.omnirecall == __version__ else f", written by omnirecall {run.omnirecall} (this is {__version__})"
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{path}: cannot be read{older}: {said}; run it again, which embeds nothing anew"


def _tree_of_card(run: Run) -> tuple[Mean, ...]:
    """The means of the card that the run was made with, where it ships with this version unchanged."""
    if run.suite not in shipped_cards():
        return ()
    suite = read_card(shipped_card(run.suite))
    return suite.means if suite.revision == run.card else ()
