"""What the charts of a task show, from its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.measures import Measure, score_queries
from omnirecall.view.items import Index
from omnirecall.view.ranks import Ranks, first_relevant, score_samples

POINTS = 32
"""Points of a curve over k."""
BINS = 40
"""Bins of a histogram of scores."""
NARROW = 1e-6
"""Scores closer together than this are drawn as one."""


def rank_bins(largest: int) -> list[tuple[int, int]]:
    """Ranges of ranks (first, last), growing by the steps 1, 2, 3-5, 6-10, 11-20, 21-50, ... up to ``largest``."""
    ends = [1, 2, 5, 10, 20, 50]
    while ends[-1] < largest:
        ends += [ends[-3] * 10, ends[-2] * 10, ends[-1] * 10]
    bins = [(before + 1, end) for before, end in zip([0, *ends], ends, strict=False)]
    return [(first, min(last, largest)) for first, last in bins if first <= largest]


def rank_histogram(ranks: Ranks) -> list[dict[str, Any]]:
    """For each range of ranks how many queries have their first relevant candidate there, and how many have none in the pool."""
    largest = int(ranks.judged.pool_size.max(initial=1))
    outside = _unranked(ranks)
    placed = ranks.rank[~outside]
    counts = []
    for first, last in rank_bins(largest):
        inside = int(((placed >= first) & (placed < last + 1)).sum())
        counts.append({"bin": f"{first:,}" if first == last else f"{first:,}\u2013{last:,}", "queries": inside})
    if outside.any():
        counts.append({"bin": "not ranked", "queries": int(outside.sum())})
    return counts


def _unranked(ranks: Ranks) -> NDArray[np.bool_]:
    placed = np.zeros(len(ranks), np.bool_)
    query = np.repeat(np.arange(len(ranks)), np.diff(ranks.judged.offsets))
    placed[query[ranks.judged.greater >= 0]] = True
    return ~placed


def curve_points(largest: int) -> list[int]:
    """Values of k from 1 to ``largest``, dense at the low end."""
    spread = np.unique(np.round(np.geomspace(1, max(1, largest), POINTS)).astype(int))
    return [int(k) for k in spread]


def curves(ranks: Ranks) -> list[dict[str, Any]]:
    """hit@k and recall@k, expected over the order of ties, for k up to the largest pool."""
    judged = ranks.judged
    inside = judged.greater >= 0
    above, size = judged.greater[inside], judged.tied[inside] + 1
    weight = np.repeat(1 / np.diff(judged.offsets), np.diff(judged.offsets))[inside] / max(1, len(ranks))
    points = []
    for k in curve_points(int(judged.pool_size.max(initial=1))):
        reached = np.clip((k - above) / size, 0, 1)  # the chance that a candidate of a tie lies in the top k
        hit = float(score_queries(Measure("hit", k), judged).value.mean())
        points.append({"k": k, "hit": hit, "recall": float((weight * reached).sum())})
    return points


def score_histogram(ranks: Ranks) -> dict[str, Any]:
    """Shares of scores by bin: of relevant candidates, and of the others in the stored lists; quartiles of both."""
    relevant, others = score_samples(ranks)
    both = np.concatenate([relevant, others])
    if not len(both):
        return {"bins": [], "relevant": 0, "others": 0}
    low, high = float(both.min()), float(both.max())
    if high - low < NARROW:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    bins = []
    for name, scores in (("relevant", relevant), ("others in the top list", others)):
        counts, _ = np.histogram(scores, edges)
        share = counts / max(1, len(scores))
        bins += [
            {"what": name, "low": float(edges[i]), "high": float(edges[i + 1]), "share": float(share[i])}
            for i in range(BINS)
        ]
    return {"bins": bins, "relevant": len(relevant), "others": len(others)}


def tie_numbers(ranks: Ranks) -> dict[str, Any]:
    """How many queries have a tie at their first relevant candidate, and what the order of ties could make of them."""
    tied = ranks.tied
    return {
        "queries": int(tied.sum()),
        "share": float(tied.mean()) if len(ranks) else 0.0,
        "largest": int(ranks.judged.tied.max(initial=0)),
        "decides_hit": int(((ranks.best <= 1) & (ranks.worst > 1)).sum()),
    }


def directions(ranks: Ranks, index: Index) -> list[dict[str, Any]]:
    """The primary measure by the modalities of query and first relevant candidate; empty where there is one direction."""
    queries, candidates = index.parts("q"), index.parts("c")
    if len(queries) * len(candidates) <= 1:
        return []
    query_parts, candidate_parts = index.parts_by_id("q"), index.parts_by_id("c")
    values: dict[str, list[float]] = defaultdict(list)
    for query, relevant, value in zip(ranks.ids.to_pylist(), first_relevant(ranks), ranks.value.tolist(), strict=True):
        values[f"{query_parts.get(query, '?')}\u2192{candidate_parts.get(relevant, '?')}"].append(value)
    if len(values) < 2:
        return []
    combine = np.median if ranks.measure.name == "median_rank" else np.mean
    return [
        {"direction": name, "value": float(combine(some)), "queries": len(some)}
        for name, some in sorted(values.items())
    ]


def by_direction(tasks: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The mean of the tasks' values for each direction, where every task of that direction has a value."""
    groups: dict[str, list[float | None]] = {}
    for name in names:
        task = tasks[name]
        if task.direction and task.measure != "median_rank":
            groups.setdefault(task.direction, []).append(task.value)
    return [
        {"direction": direction, "value": sum(present) / len(present), "tasks": len(present)}
        for direction, values in groups.items()
        if len(present := [value for value in values if value is not None]) == len(values)
    ]
