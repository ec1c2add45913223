"""Measures of a task from its ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from omnirecall.protocol.measures import Measure, RankedJudgments, aggregate, score_queries
from omnirecall.results.intervals import Ints, value_interval

TIE_SPREAD = 0.001
"""A task whose best and worst case differ by more than this says so."""


class MeasureValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measure over the queries of a task: expected over the order of ties, its best and worst case, and its 95% interval."""

    value: float
    best: float
    worst: float
    interval: tuple[float, float] | None = None

    @property
    def depends_on_ties(self) -> bool:
        """Whether the order of ties moves the value by more than 0.001."""
        return abs(self.best - self.worst) > TIE_SPREAD


def task_measures(
    measures: Sequence[Measure], ranked: RankedJudgments, clusters: Ints | None = None
) -> dict[str, MeasureValue]:
    """Every measure by its printed name; with ``clusters``, int64 (n_queries,), each with its interval."""
    values = {}
    for measure in measures:
        scores = score_queries(measure, ranked)
        value, best, worst = (aggregate(measure, column) for column in (scores.value, scores.best, scores.worst))
        interval = None if clusters is None else value_interval(measure, scores.value, clusters).interval
        values[str(measure)] = MeasureValue(value, best, worst, interval)
    return values
