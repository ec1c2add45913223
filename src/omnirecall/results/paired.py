"""Two runs on the same queries: the difference with its interval, a test, wins and losses, an effect size, what could be detected.

The test flips the signs of the clusters' total differences: exact where the two runs might have been swapped on any cluster. For
values of 0 and 1 on unclustered queries it is McNemar's exact test. Where the sums under all flips can be enumerated they are; else
they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from omnirecall.protocol.measures import Measure, aggregate
from omnirecall.results.intervals import (
    Estimate,
    Floats,
    Ints,
    Z,
    cluster_totals,
    combined_interval,
    difference_interval,
    is_median,
)

SEED = 20_250_601
DRAWS = 20_000
ENUMERATED = 2**17
"""The most sums that are enumerated."""
POWER = 0.8
NEEDED = 6
"""Clusters that must all go one way before flips call a difference significant at 0.05: 2 * 0.5^6 < 0.05 < 2 * 0.5^5."""
_BLOCK = 256
_SIGNS = 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[None], axis=0) - 1.0
"""The signs of the eight bits of each byte, float64 (8, 256)."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """A second run against a first one on one task, or over the tasks of a mean.

    ``difference``: second minus first; ``low``, ``high``: its 95% interval, None for medians. ``p``: two-sided, before Holm's
    correction; ``method`` says how it was found. ``wins``, ``losses``, ``ties``: queries (for a mean: tasks) on which the second
    run is better, worse, the same. ``effect``: Cohen's d of the paired differences, None where they are all the same or for a mean.
    ``detectable``: the smallest difference that this task shows with a power of 0.8 at the 5% level, given how much the two runs
    disagree; None where nothing can be said.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    method: str
    wins: int
    losses: int
    ties: int
    effect: float | None = None
    detectable: float | None = None


def paired_task(
    measure: Measure, first: Floats, second: Floats, clusters: Ints | None = None, *, seed: int = SEED
) -> Paired:
    """Two runs on one task, from the values of the same queries, float64 (n_queries,) each, and their clusters, int64.

    For a median the test is that of the signs of the differences, and there is no interval.
    """
    difference = second - first
    better = difference if measure.higher_is_better else -difference
    wins, losses = int((better > 0).sum()), int((better < 0).sum())
    if is_median(measure):
        codes, totals = cluster_totals(np.sign(difference), clusters)
        p, drawn = sign_flip(totals, seed=seed)
        return Paired(
            difference=aggregate(measure, second) - aggregate(measure, first),
            low=None,
            high=None,
            p=p,
            method=_method(drawn, hits=False),
            wins=wins,
            losses=losses,
            ties=len(difference) - wins - losses,
        )
    one = difference_interval(first, second, clusters)
    codes, totals = cluster_totals(difference, clusters)
    p, drawn = sign_flip(totals, seed=seed)
    hits = bool(np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all())
    return Paired(
        difference=one.value,
        low=one.low,
        high=one.high,
        p=p,
        method=_method(drawn, hits=hits and len(codes) == len(difference)),
        wins=wins,
        losses=losses,
        ties=len(difference) - wins - losses,
        effect=_effect(difference),
        detectable=detectable(one.shares, least=NEEDED / len(difference) if hits else 0.0),
    )


def paired_mean(
    weights: Mapping[str, float], differences: Mapping[str, Estimate], totals: Mapping[str, Floats], *, seed: int = SEED
) -> Paired:
    """Two runs on a mean, from its tasks' weights, estimates of differences, and total differences of clusters over queries.

    ``totals[task]`` belongs to ``differences[task].clusters``: the sum of a cluster's differences, divided by the task's queries.
    Clusters that tasks share are flipped together. All values are such that more is better.
    """
    parts = [(weight, differences[task]) for task, weight in weights.items()]
    codes = np.concatenate([one.clusters for _, one in parts])
    low, high = combined_interval(parts)
    _, joint = cluster_totals(np.concatenate([weight * totals[task] for task, weight in weights.items()]), codes)
    _, shares = cluster_totals(np.concatenate([weight * one.shares for weight, one in parts]), codes)
    p, drawn = sign_flip(joint, seed=seed)
    values = [one.value for _, one in parts]
    return Paired(
        difference=sum(weight * one.value for weight, one in parts),
        low=low,
        high=high,
        p=p,
        method=_method(drawn, hits=False),
        wins=sum(value > 0 for value in values),
        losses=sum(value < 0 for value in values),
        ties=sum(value == 0 for value in values),
        detectable=detectable(shares),
    )


def sign_flip(totals: Floats, *, seed: int = SEED, draws: int = DRAWS) -> tuple[float, bool]:
    """The two-sided p-value of the sum of ``totals``, float64 (n_clusters,), under random signs, and whether it was drawn.

    A drawn p-value is (1 + as extreme) / (1 + draws), so that it is never too small.
    """
    largest = float(np.abs(totals).max(initial=0.0))
    if largest == 0:
        return 1.0, False
    scaled = np.rint(totals / largest * 1e12) / 1e12
    observed = abs(float(scaled.sum())) - 1e-9
    sizes, counts = np.unique(np.abs(scaled[scaled != 0]), return_counts=True)
    if np.log2(counts + 1.0).sum() <= math.log2(ENUMERATED):
        sums, chances = _all_flips(sizes, counts)
        return min(1.0, float(chances[np.abs(sums) >= observed].sum())), False
    sums = _drawn_flips(np.repeat(sizes, counts), draws, np.random.default_rng(seed))
    return (1 + int((np.abs(sums) >= observed).sum())) / (1 + draws), True


def holm(p: Sequence[float]) -> list[float]:
    """P-values adjusted for their number by Holm's step-down rule (Scandinavian Journal of Statistics 1979)."""
    order = sorted(range(len(p)), key=lambda place: p[place])
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = largest
    return adjusted


def mark(p: float) -> str:
    """Stars of an adjusted p-value: one below 0.05, two below 0.01, three below 0.001."""
    return "*" * sum(p < level for level in (0.05, 0.01, 0.001))


def detectable(shares: Floats, *, least: float = 0.0) -> float | None:
    """The smallest true difference that a test at 5% finds in four of five trials, given how much the runs disagree.

    (z(0.975) + z(0.8)) times the standard error, from the clusters' ``shares`` of the error, float64 (n_clusters,) (Cohen 1988).
    ``least``: what is needed in any case; for 0/1 values six queries, since fewer discordant ones are never significant. None where
    there are fewer clusters than that, or no disagreement to judge by.
    """
    if len(shares) < NEEDED:
        return None
    error = math.sqrt(float(np.square(shares).sum()))
    return max((Z + NormalDist().inv_cdf(POWER)) * error, least) or None


def _effect(difference: Floats) -> float | None:
    spread = float(difference.std(ddof=1)) if len(difference) > 1 else 0.0
    return float(difference.mean()) / spread if spread > 0 else None


def _method(drawn: bool, *, hits: bool) -> str:
    if drawn:
        return f"signs flipped by cluster, {DRAWS:,} draws"
    return "McNemar, exact" if hits else "signs flipped by cluster, exact"


def _all_flips(sizes: Floats, counts: Ints) -> tuple[Floats, Floats]:
    """Every sum of ``counts`` signed copies of each size, and its chance."""
    sums, chances = np.zeros(1), np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        heads = np.arange(count + 1)
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
        chance = np.exp(logs[count] - logs[heads] - logs[count - heads] - count * math.log(2))
        sums = np.add.outer(sums, size * (2.0 * heads - count)).reshape(-1)
        chances = np.multiply.outer(chances, chance).reshape(-1)
    return sums, chances


def _drawn_flips(sizes: Floats, draws: int, random: np.random.Generator) -> Floats:
    """Sums under random signs, float64 (draws,): eight sizes at a time, by the table of their sums under each byte of signs."""
    padded = np.concatenate([sizes, np.zeros(-len(sizes) % 8)]).reshape(-1, 8)
    sums = np.zeros(draws)
    for start in range(0, len(padded), _BLOCK):
        tables = padded[start : start + _BLOCK] @ _SIGNS
        for table, signs in zip(tables, random.integers(0, 256, (len(tables), draws), np.uint8), strict=True):
            sums += table[signs]
    return sums
