"""Runs made from score matrices, so that every value can be worked out in another way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from omnirecall._version import __version__
from omnirecall.protocol.measures import Measure, RankedJudgments
from omnirecall.protocol.suites import Mean, mean_values
from omnirecall.results.record import ModelRecord, RankTable, Run, TaskRecord, rank_table, write_parquet, write_run
from omnirecall.results.scores import task_measures


@dataclass(frozen=True)
class Scored:
    """One task: scores, float (n_queries, n_candidates); the grades of each query's relevant candidates by id; a cluster each."""

    scores: np.ndarray
    relevant: Sequence[Mapping[str, float]]
    clusters: Sequence[str | None] | None = None
    measures: Sequence[str] = ("hit@1", "recall@3", "ndcg@5", "mrr")
    query_ids: Sequence[str] | None = None
    candidate_ids: Sequence[str] | None = None
    hashes: Mapping[str, str] = field(default_factory=lambda: {"queries": "q", "pool": "p", "judgments": "j"})

    @property
    def queries(self) -> list[str]:
        return list(self.query_ids or [f"q{row}" for row in range(len(self.scores))])

    @property
    def candidates(self) -> list[str]:
        return list(self.candidate_ids or [f"c{row}" for row in range(self.scores.shape[1])])


def _table(task: Scored, top_k: int) -> RankTable:
    names = task.candidates
    row_of = {name: row for row, name in enumerate(names)}
    greater, tied, grades, relevant, offsets, positive = [], [], [], [], [0], []
    for scores, row in zip(task.scores, task.relevant, strict=True):
        for name, grade in row.items():
            score = scores[row_of[name]] if name in row_of else np.nan
            greater.append(int((scores > score).sum()) if name in row_of else -1)
            tied.append(int((scores == score).sum()) - 1 if name in row_of else 0)
            relevant.append(name)
            grades.append(float(grade))
            positive.append(score)
        offsets.append(len(relevant))
    order = np.argsort(-task.scores, axis=1, kind="stable")[:, :top_k]
    return RankTable(
        query_ids=task.queries,
        clusters=list(task.clusters or [None] * len(task.scores)),
        relevant_ids=relevant,
        ranked=RankedJudgments(
            np.array(offsets),
            np.array(grades),
            np.array(greater),
            np.array(tied),
            np.full(len(task.scores), len(names)),
        ),
        positive_scores=np.array(positive),
        top_ids=[[names[row] for row in rows] for rows in order],
        top_scores=[scores[rows].tolist() for scores, rows in zip(task.scores, order, strict=True)],
    )


def make_run(
    folder: Path,
    tasks: Mapping[str, Scored],
    *,
    model: str = "one",
    tree: Sequence[Mean] = (),
    top_k: int = 10,
    **changes: Any,
) -> Path:
    """Write a run folder of tasks by name, and give its path; ``changes`` are fields of Run."""
    records = {}
    for name, task in tasks.items():
        table = _table(task, top_k)
        write_parquet(folder / "tasks" / f"{name}.parquet", rank_table(table))
        values = task_measures([Measure.parse(text) for text in task.measures], table.ranked)
        first = values[task.measures[0]]
        records[name] = TaskRecord(
            status="ok",
            measure=task.measures[0],
            value=first.value,
            best=first.best,
            worst=first.worst,
            chance=0.1,
            queries=len(task.scores),
            pool=task.scores.shape[1],
            direction="T->I",
            measures=values,
            hashes=task.hashes,
        )
    values = {name: record.value for name, record in records.items() if record.value is not None}
    fields: dict[str, Any] = {
        "omnirecall": __version__,
        "suite": "made",
        "card": "card",
        "model": ModelRecord(model, f"fingerprint of {model}", 4, ("text",)),
        "tasks": records,
        "means": mean_values(tuple(tree), values),
        "tree": tuple(tree),
        "identity": f"id-{model}",
    }
    write_run(folder, Run(**(fields | changes)))
    return folder


def random_task(
    seed: int, n: int = 60, m: int = 40, *, skill: float = 1.0, coarse: bool = False, **fields: Any
) -> Scored:
    """One to three relevant candidates a query, scored higher by ``skill``; ``coarse``: few distinct scores, so that many tie."""
    data, noise = np.random.default_rng(seed), np.random.default_rng(int(1000 * skill) + seed)
    relevant = [
        {f"c{row}": 1.0 for row in sorted(data.choice(m, data.integers(1, 4), replace=False).tolist())}
        for _ in range(n)
    ]
    scores = noise.normal(size=(n, m))
    for query, row in enumerate(relevant):
        scores[query, [int(name[1:]) for name in row]] += skill
    scores = np.round(scores) if coarse else scores
    return Scored(scores, relevant, **fields)
