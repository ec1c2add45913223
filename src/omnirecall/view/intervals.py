"""The 95% intervals of a run's tasks and means: those of its record, or worked out from the ranks of its queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.suites import Mean
from omnirecall.results.intervals import mean_intervals, value_interval
from omnirecall.results.record import Run
from omnirecall.results.stored import suite_clusters
from omnirecall.view.ranks import Ranks

Interval = tuple[float, float]


def recorded_intervals(run: Run) -> dict[str, Interval] | None:
    """The intervals that the record holds, by task or mean; None where it was written without."""
    found: dict[str, Interval] = dict(run.mean_intervals)
    for name, task in run.tasks.items():
        value = task.measures.get(task.measure)
        if value is not None:
            if value.interval is None:
                return None
            found[name] = value.interval
    return found


def run_intervals(tree: Sequence[Mean], tasks: Mapping[str, Ranks]) -> dict[str, Interval]:
    """The interval of each task that has queries, and of each mean of the tree all of whose tasks have one."""
    codes = suite_clusters({name: ranks.clusters for name, ranks in tasks.items() if len(ranks)})
    estimates = {name: value_interval(tasks[name].measure, tasks[name].value, own) for name, own in codes.items()}
    return {**{name: one.interval for name, one in estimates.items()}, **mean_intervals(tree, estimates)}


def clusters_of(ranks: Ranks) -> NDArray[np.int64]:
    """Codes of the clusters of one task's queries; a query without one is its own."""
    return suite_clusters({"": ranks.clusters})[""]
