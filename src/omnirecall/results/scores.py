"""Measures of a task from its ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from omnirecall.protocol.measures import Measure, RankedJudgments, aggregate, score_queries

TIE_SPREAD = 0.001
"""A task whose best and worst case differ by more than this says so."""


class MeasureValue(msgspec.Struct, frozen=True):
    """A measure over the queries of a task: expected over the order of ties, and its best and worst case."""

    value: float
    best: float
    worst: float

    @property
    def depends_on_ties(self) -> bool:
        """Whether the order of ties moves the value by more than 0.001."""
        return abs(self.best - self.worst) > TIE_SPREAD


def task_measures(measures: Sequence[Measure], ranked: RankedJudgments) -> dict[str, MeasureValue]:
    """Every measure by its printed name."""
    values = {}
    for measure in measures:
        scores = score_queries(measure, ranked)
        values[str(measure)] = MeasureValue(
            *(aggregate(measure, column) for column in (scores.value, scores.best, scores.worst))
        )
    return values
