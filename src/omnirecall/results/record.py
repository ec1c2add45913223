"""The run record on disk: run.json, tasks/<task>.json and tasks/<task>.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from omnirecall.errors import UserError
from omnirecall.files import pretty_json, whole_file, write_whole
from omnirecall.protocol.measures import RankedJudgments
from omnirecall.protocol.suites import Mean, MeanValue
from omnirecall.results.scores import MeasureValue

ROW_GROUP = 16_384
"""Queries that are read together: a page of a large task needs only some of them."""

Status = Literal["ok", "unsupported", "no-data", "failed"]


class ModelRecord(msgspec.Struct, frozen=True):
    """Which model was measured."""

    name: str
    fingerprint: str
    dimension: int
    modalities: tuple[str, ...]
    notes: tuple[str, ...] = ()


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one task came to. The values are those of the primary ``measure``; None unless ``status`` is ok.

    ``cut``: how many texts the model cut, by role. ``frame_tokens``: the most visual tokens that it used for a frame or picture.
    """

    status: Status
    measure: str
    printed: str = ""
    reason: str = ""
    value: float | None = None
    best: float | None = None
    worst: float | None = None
    chance: float | None = None
    queries: int = 0
    pool: int = 0
    direction: str = ""
    relevant_outside_pool: int = 0
    tied_queries: int = 0
    unjudged_queries: int = 0
    measures: Mapping[str, MeasureValue] = {}
    similarity: str = "cosine"
    prompt: str = "none"
    media: Mapping[str, Any] = {}
    hashes: Mapping[str, str] = {}
    cut: Mapping[str, int] = {}
    frame_tokens: int = 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one suite: the content of run.json.

    ``tree``: what each mean is a mean of; ``mean_intervals``: the 95% interval of each mean that has a value.
    """

    omnirecall: str
    suite: str
    card: str
    model: ModelRecord
    tasks: Mapping[str, TaskRecord]
    means: Mapping[str, MeanValue]
    deviations: tuple[str, ...] = ()
    environment: Mapping[str, Any] = {}
    identity: str = ""
    data_root: str = ""
    finished: bool = True
    notes: tuple[str, ...] = ()
    embedded: Mapping[str, Any] = {}
    uncertain: tuple[str, ...] = ()
    media_warnings: tuple[str, ...] = ()
    tree: tuple[Mean, ...] = ()
    mean_intervals: Mapping[str, tuple[float, float]] = {}
    folder: str = ""

    def table(self, form: str = "markdown") -> str:
        """The run as a table: ``table``, ``markdown``, ``latex``, ``csv`` or ``json``."""
        from omnirecall.results.tables import render  # tables read runs, so this module cannot import them first

        return render(self, form)


class RankTable(msgspec.Struct, frozen=True, kw_only=True):
    """Each query's ranks, as the columns of tasks/<task>.parquet."""

    query_ids: Sequence[str]
    clusters: Sequence[str | None]
    relevant_ids: Sequence[str]
    ranked: RankedJudgments
    positive_scores: Any
    top_ids: Sequence[Sequence[str]]
    top_scores: Sequence[Sequence[float]]


def rank_table(table: RankTable, extra: Mapping[str, Any] | None = None) -> pa.Table:
    """Columns: query_id, cluster, pool_size, n_relevant, relevant_ids, grades, greater, tied, positive_scores, top_ids, top_scores.

    Lists hold one value per relevant candidate; ``greater`` is -1 and the score NaN where it lies outside the pool.
    """
    ranked = table.ranked
    offsets = pa.array(ranked.offsets, pa.int32())

    def lists(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values, kind))

    return pa.table(
        {
            "query_id": pa.array(table.query_ids, pa.string()),
            "cluster": pa.array(table.clusters, pa.string()),
            "pool_size": pa.array(ranked.pool_size, pa.int64()),
            "n_relevant": pa.array(np.diff(ranked.offsets), pa.int64()),
            "relevant_ids": lists(table.relevant_ids, pa.string()),
            "grades": lists(ranked.grades, pa.float64()),
            "greater": lists(ranked.greater, pa.int64()),
            "tied": lists(ranked.tied, pa.int64()),
            "positive_scores": lists(table.positive_scores, pa.float64()),
            "top_ids": pa.array(table.top_ids, pa.list_(pa.string())),
            "top_scores": pa.array(table.top_scores, pa.list_(pa.float64())),
            **(extra or {}),
        }
    )


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table whole or not at all."""
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=ROW_GROUP)


def read_ranked(path: Path) -> RankedJudgments:
    """The counts of a task's parquet, from which every measure can be computed again."""
    return ranked_of(pq.ParquetFile(path).read(columns=list(RANKED_COLUMNS)))


RANKED_COLUMNS = ("pool_size", "grades", "greater", "tied")


def ranked_of(table: pa.Table) -> RankedJudgments:
    """The counts in a table with RANKED_COLUMNS."""
    table = table.combine_chunks()
    grades = table.column("grades").combine_chunks()
    return RankedJudgments(
        offsets=grades.offsets.to_numpy().astype(np.int64),
        grades=grades.flatten().to_numpy().astype(np.float64),
        greater=table.column("greater").combine_chunks().flatten().to_numpy().astype(np.int64),
        tied=table.column("tied").combine_chunks().flatten().to_numpy().astype(np.int64),
        pool_size=table.column("pool_size").to_numpy().astype(np.int64),
    )


def write_run(folder: Path, run: Run) -> None:
    """Write tasks/<task>.json for every task, then run.json."""
    for name, task in run.tasks.items():
        write_whole(folder / "tasks" / f"{name}.json", pretty_json({"task": name, **msgspec.to_builtins(task)}))
    write_whole(folder / "run.json", pretty_json(msgspec.structs.replace(run, folder="")))


def read_run(folder: Path) -> Run:
    """The run of a folder; UserError if there is none or it is damaged."""
    path = folder if folder.name == "run.json" else folder / "run.json"
    try:
        return msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Run), folder=str(path.parent))
    except FileNotFoundError:
        raise UserError(f"{folder}: there is no run.json; name a folder that `omnirecall run` wrote") from None
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: not a run record: {error}") from None
