"""The ranks of one task of a run: what is known of every query as arrays, and whole rows only for those that are shown."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.protocol.measures import Measure, MeasureError, RankedJudgments, score_queries

_LISTS_READ = threading.Lock()
"""Lists are read by one thread at a time, since each holds a block of them in memory."""
BATCH = 4096
"""Rows decoded at a time, so that long lists of a large task are never in memory together."""
LISTS = ("relevant_ids", "grades", "greater", "tied", "positive_scores", "top_ids", "top_scores")


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Every query of a task as arrays of shape (queries,).

    ``value``: the primary measure, expected over the order of ties. ``rank``, ``best``, ``worst``: the rank of the first relevant
    candidate, from 1, expected and at the two ends of its tie; pool size + 1 where none was ranked. ``clusters``: as recorded.
    """

    path: Path
    measure: Measure
    ids: pa.StringArray
    clusters: pa.StringArray
    judged: RankedJudgments
    value: NDArray[np.float64]
    rank: NDArray[np.float64]
    best: NDArray[np.float64]
    worst: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.value)

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Queries whose first relevant candidate ties with another candidate."""
        found: NDArray[np.bool_] = self.best != self.worst
        return found

    @property
    def hit(self) -> NDArray[np.bool_]:
        """Queries with a relevant candidate at the top, or within the measure's cut, in every order of ties."""
        found: NDArray[np.bool_] = self.worst <= (self.measure.k or 1)
        return found

    def by_loss(self) -> NDArray[np.int64]:
        """Row numbers: the lowest value first, among equals the deepest first relevant candidate, then the file's order."""
        sign = 1 if self.measure.higher_is_better else -1
        return np.lexsort((np.arange(len(self)), -self.rank, sign * self.value)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Relevant:
    """A relevant candidate: how many rank above it and how many others tie with it; ``greater`` is -1 outside the pool."""

    id: str
    grade: float
    greater: int
    tied: int
    score: float


@dataclass(frozen=True, slots=True)
class Row:
    """One query as the file has it."""

    row: int
    id: str
    pool_size: int
    relevant: tuple[Relevant, ...]
    top: tuple[tuple[str, float], ...]


def parsed(measure: str) -> Measure:
    """The measure of that name; hit@1 where it is none of ours."""
    try:
        return Measure.parse(measure)
    except MeasureError:
        return Measure("hit", 1)


def read_ranks(path: Path, measure: Measure) -> Ranks:
    """The arrays of a task's parquet; UserError if it is missing or damaged."""
    try:
        with pq.ParquetFile(path) as file:  # pq.read_table would load pyarrow.dataset and pandas
            names = file.schema_arrow.names
            wanted = [
                name for name in ("query_id", "cluster", "pool_size", "grades", "greater", "tied") if name in names
            ]
            table = file.read(wanted).combine_chunks()
        grades = _joined(table, "grades")
        judged = RankedJudgments(
            offsets=grades.offsets.to_numpy().astype(np.int64),
            grades=grades.flatten().to_numpy().astype(np.float64),
            greater=_joined(table, "greater").flatten().to_numpy().astype(np.int64),
            tied=_joined(table, "tied").flatten().to_numpy().astype(np.int64),
            pool_size=table.column("pool_size").to_numpy().astype(np.int64),
        )
        value = score_queries(measure, judged).value
        rank = score_queries(Measure("median_rank"), judged)
        ids = _joined(table, "query_id")
        clusters = _joined(table, "cluster") if "cluster" in names else pa.nulls(len(ids), pa.string())
    except FileNotFoundError:
        raise UserError(f"{path}: there are no ranks of this task") from None
    except Exception as error:  # a damaged file trips pyarrow, or our own checks, in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: the ranks cannot be read: {reason}") from None
    return Ranks(path, measure, ids, clusters, judged, value, rank.value, rank.best, rank.worst)


def _joined(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)


def read_rows(ranks: Ranks, rows: Sequence[int]) -> list[Row]:
    """Whole rows, in the order asked for; only the row groups that hold them are read, block by block."""
    wanted = sorted(set(rows))
    found: dict[int, Row] = {}
    try:
        with _LISTS_READ, pq.ParquetFile(ranks.path) as file:
            columns = [name for name in LISTS if name in file.schema_arrow.names]
            start = 0
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                inside = [row for row in wanted if start <= row < start + size]
                if inside:
                    _read_group(file, group, start, inside, columns, ranks, found)
                start += size
    except (OSError, ValueError) as error:
        raise UserError(f"{ranks.path}: the ranks cannot be read: {str(error).splitlines()[0]}") from None
    return [found[row] for row in rows]


def _read_group(
    file: Any, group: int, start: int, inside: list[int], columns: list[str], ranks: Ranks, found: dict[int, Row]
) -> None:
    at = start
    for batch in file.iter_batches(BATCH, row_groups=[group], columns=columns):
        here = [row for row in inside if at <= row < at + batch.num_rows]
        for row in here:
            cells = {name: batch.column(name)[row - at].as_py() or [] for name in columns}
            found[row] = _row(row, cells, ranks)
        at += batch.num_rows
        if at > inside[-1]:
            return


def _row(row: int, cells: dict[str, list[Any]], ranks: Ranks) -> Row:
    relevant = zip(
        *(cells.get(name, []) for name in ("relevant_ids", "grades", "greater", "tied", "positive_scores")), strict=True
    )
    return Row(
        row=row,
        id=ranks.ids[row].as_py(),
        pool_size=int(ranks.judged.pool_size[row]),
        relevant=tuple(Relevant(*pair) for pair in relevant),
        top=tuple(zip(cells.get("top_ids", []), cells.get("top_scores", []), strict=True)),
    )


def spare_memory() -> None:
    """Take memory from the system's own allocator, which gives back what is no longer used when ``give_back`` is called."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Give the system the memory that reading left over."""
    pa.default_memory_pool().release_unused()


def matched(ranks: Ranks, other: Ranks) -> NDArray[np.int64]:
    """For each query of ``ranks`` its row in ``other``, -1 where it has none."""
    found = pc.index_in(ranks.ids, value_set=other.ids)
    rows: NDArray[np.int64] = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return rows


def first_relevant(ranks: Ranks) -> list[str]:
    """For each query the id of its highest relevant candidate; where none is in the pool, of the first that the file names."""
    judged = ranks.judged
    query = np.repeat(np.arange(len(ranks)), np.diff(judged.offsets))
    depth = np.where(judged.greater < 0, np.iinfo(np.int64).max, judged.greater)
    order = np.lexsort((np.arange(len(depth)), depth, query))
    firsts = order[judged.offsets[:-1]]
    ids: list[str] = []
    start = 0
    with _LISTS_READ, pq.ParquetFile(ranks.path) as file:
        for batch in file.iter_batches(BATCH, columns=["relevant_ids"]):
            names = batch.column("relevant_ids").flatten()
            here = firsts[(firsts >= start) & (firsts < start + len(names))] - start
            ids += names.take(pa.array(here)).to_pylist()
            start += len(names)
    return ids


def score_samples(ranks: Ranks) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(scores of relevant candidates, scores of the others in the stored lists), both as they lie in the file."""
    relevant, others = [], []
    with _LISTS_READ, pq.ParquetFile(ranks.path) as file:
        for batch in file.iter_batches(BATCH, columns=["relevant_ids", "positive_scores", "top_ids", "top_scores"]):
            relevant.append(batch.column("positive_scores").flatten().to_numpy(zero_copy_only=False))
            scores = batch.column("top_scores").flatten().to_numpy(zero_copy_only=False)
            others.append(scores[~_is_relevant(batch.column("relevant_ids"), batch.column("top_ids"))])
    nothing = np.empty(0)
    scores = np.concatenate([nothing, *relevant])
    return scores[np.isfinite(scores)], np.concatenate([nothing, *others])


def _is_relevant(relevant: pa.ListArray, top: pa.ListArray) -> NDArray[np.bool_]:
    """For each entry of the top lists whether it is a relevant candidate of its query."""
    codes = (
        pa.concat_arrays([relevant.flatten(), top.flatten()]).dictionary_encode().indices.to_numpy().astype(np.int64)
    )
    n = len(relevant.flatten())
    size = int(codes.max(initial=0)) + 1
    keys = [
        pc.list_parent_indices(lists).to_numpy().astype(np.int64) * size + part
        for lists, part in ((relevant, codes[:n]), (top, codes[n:]))
    ]
    found: NDArray[np.bool_] = np.isin(keys[1], keys[0])
    return found
