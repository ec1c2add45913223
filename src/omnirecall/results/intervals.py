"""95% intervals of a task's value and of means over tasks, from per-query values. Nothing is drawn at random.

One interval serves all. Over n independent queries with mean m, variance s2 and third central moment m3, the limits are the mu with

    (mu - m)^2 = t^2 / n * (s2 + m3 / s2 * (mu - m) - phi * (mu - m)^2),      phi = s2 / ((m - low) * (high - m)):

a score interval whose variance is a quadratic in the mean, with the slope m3 / s2 that it has in every natural exponential family
(Morris, "Natural Exponential Families with Quadratic Variance Functions", Annals of Statistics 1982). t is Student's quantile for
the degrees of freedom of a variance whose part from the mean is known, 2 n / (kurtosis - skewness^2 - 1) (Satterthwaite 1946);
the denominator is 0 for values of two kinds (Pearson's bound), so for values of 0 and 1 this is Wilson's interval (1927) exactly.
Before that the moments are mixed with those of a few pseudo-observations at the bounds that have the same mean (Agresti and Coull
1998; Bonett and Price 2012 for paired differences): 0/1 values stay as they are, others are guarded against what a small sample has
not shown.

Queries that share a source item are one cluster: n becomes the number of clusters, and the moments are those of the clusters'
totals around the mean (linearised, as Woodruff 1971), so that clusters of several sizes count as such.

A mean over tasks squares and adds the distances of the tasks' limits (Zou and Donner, Statistics in Medicine 2008; Newcombe 1998),
with the correlations that the shared clusters give: a cluster's totals in all tasks belong together, as when clusters are resampled
across the suite. `python benchmarks/intervals.py` prints the coverage of all this beside that of the bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.measures import Measure, aggregate
from omnirecall.protocol.suites import Mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Z = NormalDist().inv_cdf(0.975)
PSEUDO, PSEUDO_OF_DIFFERENCE = 3.0, 2.0
"""Pseudo-observations of a mean and of a paired difference."""
LEAST_FREEDOM = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A value with its 95% interval, and how each cluster of queries moved it.

    ``clusters``, int64 (n_clusters,): codes, the same across the tasks of a suite, in rising order; ``shares``, float64
    (n_clusters,): what each cluster adds to the error of ``value``; they sum to 0, and their squares to its variance. Both are
    empty for a median.
    """

    value: float
    low: float
    high: float
    clusters: Ints
    shares: Floats

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high)."""
        return self.low, self.high


def cluster_totals(values: Floats, clusters: Ints | None) -> tuple[Ints, Floats]:
    """The codes of the clusters, each once, and the sum of the values in each."""
    if clusters is None:
        return np.arange(len(values)), values
    codes, which = np.unique(clusters, return_inverse=True)
    return codes, np.bincount(which.reshape(-1), values, len(codes)).astype(np.float64, copy=False)


def value_interval(measure: Measure, values: Floats, clusters: Ints | None = None) -> Estimate:
    """A task's value and interval from its queries' values, float64 (n_queries,), and their clusters, int64 (n_queries,).

    Without ``clusters`` every query is its own. Raises ValueError where there is no query.
    """
    return median_interval(values, clusters) if is_median(measure) else mean_interval(values, clusters)


def is_median(measure: Measure) -> bool:
    """Whether a task's value is the median over its queries, not their mean."""
    return aggregate(measure, np.array([0.0, 0.0, 1.0])) == 0


def mean_interval(
    values: Floats, clusters: Ints | None = None, *, low: float = 0.0, high: float = 1.0, pseudo: float = PSEUDO
) -> Estimate:
    """The mean of values between ``low`` and ``high``, float64 (n,), and its interval; clusters as in value_interval."""
    if len(values) == 0:
        raise ValueError("there is no interval over no queries; give at least one")
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    codes, totals = cluster_totals(values - mean, clusters)
    limits = _limits(mean, totals * (len(codes) / len(values)), low, high, pseudo)
    return Estimate(mean, *limits, codes, totals / len(values))


def difference_interval(first: Floats, second: Floats, clusters: Ints | None = None) -> Estimate:
    """The mean of ``second - first``, values of the same queries between 0 and 1, float64 (n,), and its interval."""
    return mean_interval(second - first, clusters, low=-1.0, high=1.0, pseudo=PSEUDO_OF_DIFFERENCE)


def median_interval(values: Floats, clusters: Ints | None = None) -> Estimate:
    """The median of values, float64 (n,), and its interval: the quantiles at the limits of one half (Woodruff, JASA 1952)."""
    if len(values) == 0:
        raise ValueError("there is no interval over no queries; give at least one")
    ordered = np.sort(values)
    median = float(np.median(values))
    below = (values < median) + 0.5 * (values == median)
    half = mean_interval(below.astype(np.float64), clusters)
    places = len(values) * np.array([0.5 - half.value + half.low, 0.5 - half.value + half.high])
    first = int(np.clip(math.floor(places[0]) - 1, 0, len(values) - 1))
    last = int(np.clip(math.ceil(places[1]), 0, len(values) - 1))
    none = np.empty(0)
    return Estimate(median, float(ordered[first]), float(ordered[last]), none.astype(np.int64), none)


def combined_interval(parts: Sequence[tuple[float, Estimate]]) -> tuple[float, float]:
    """The interval of a weighted sum of estimates, from (weight, estimate), clusters that they share counted together."""
    value = sum(weight * one.value for weight, one in parts)
    return value - _distance(parts, down=True), value + _distance(parts, down=False)


def mean_weights(tree: Sequence[Mean], name: str) -> dict[str, float]:
    """The weight of each task in a mean of the tree, by task; of a task, 1."""
    means = {mean.name: mean for mean in tree}
    if name not in means:
        return {name: 1.0}
    parts = [mean_weights(tree, part) for part in means[name].of]
    if means[name].flat:
        below = dict.fromkeys(task for part in parts for task in part)
        return dict.fromkeys(below, 1 / len(below))
    weights: dict[str, float] = {}
    for part in parts:
        for task, weight in part.items():
            weights[task] = weights.get(task, 0.0) + weight / len(parts)
    return weights


def mean_intervals(tree: Sequence[Mean], tasks: Mapping[str, Estimate]) -> dict[str, tuple[float, float]]:
    """The interval of every mean of the tree that has an estimate for each task below it."""
    found = {}
    for mean in tree:
        weights = mean_weights(tree, mean.name)
        if all(task in tasks for task in weights):
            found[mean.name] = combined_interval([(weight, tasks[task]) for task, weight in weights.items()])
    return found


def _limits(mean: float, deviations: Floats, low: float, high: float, pseudo: float) -> tuple[float, float]:
    """The two solutions of the quadratic above, for the deviations of n clusters, float64 (n,)."""
    n, most = len(deviations), max((mean - low) * (high - mean), 0.0)
    slope, spread, variance, t = low + high - 2 * mean, 1.0, 0.0, Z
    if most > 0:
        ends = most, most * slope, most * ((high - low) ** 2 - 3 * most)
        moments = [
            (float((deviations**power).sum()) + pseudo * end) / (n + pseudo)
            for power, end in zip((2, 3, 4), ends, strict=True)
        ]
        variance, slope, spread = moments[0], moments[1] / moments[0], moments[0] / most
        t = _quantile(n, (moments[2] - moments[0] * slope**2) / variance**2 - 1)
    size = n + spread * t * t
    root = math.sqrt((t * t * slope) ** 2 + 4 * size * t * t * variance)
    middle = mean + t * t * slope / (2 * size)
    return max(low, min(mean, middle - root / (2 * size))), min(high, max(mean, middle + root / (2 * size)))


def _quantile(n: int, excess: float) -> float:
    """Student's 97.5% quantile with 2 n / excess degrees of freedom, by its expansion (Abramowitz and Stegun 26.7.5)."""
    freedom = max(2 * n / max(excess, 1e-12), LEAST_FREEDOM)
    terms = (
        Z,
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def _distance(parts: Sequence[tuple[float, Estimate]], down: bool) -> float:
    """How far below (above) the weighted sum its limit lies."""
    codes, scaled, alone = [], [], 0.0
    for weight, one in parts:
        below = one.value - one.low if down == (weight > 0) else one.high - one.value
        deviation = math.sqrt(float(np.square(one.shares).sum()))
        if deviation == 0:
            alone += (weight * below) ** 2
            continue
        codes.append(one.clusters)
        scaled.append(one.shares * (weight * below / deviation))
    if not codes:
        return math.sqrt(alone)
    _, totals = cluster_totals(np.concatenate(scaled), np.concatenate(codes))
    return math.sqrt(alone + float(np.square(totals).sum()))
