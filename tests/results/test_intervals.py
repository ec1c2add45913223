"""Intervals: Wilson's exactly where it applies, and coverage on simulated models whose true values are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from omnirecall.protocol.measures import Measure
from omnirecall.protocol.suites import Mean, mean_values
from omnirecall.results.intervals import (
    Estimate,
    combined_interval,
    difference_interval,
    mean_interval,
    mean_intervals,
    mean_weights,
    median_interval,
    value_interval,
)

SIZES = (52, 100, 1000)
RATES = (0.05, 0.5, 0.95)
TRIALS = 1000
Draw = Callable[[np.random.Generator, float, int], tuple[np.ndarray, np.ndarray | None]]


def hits(count: int, n: int) -> np.ndarray:
    return (np.arange(n) < count).astype(float)


@pytest.mark.parametrize("n", [1, 7, 52, 100, 1000])
def test_wilson_for_hits(n: int) -> None:
    """The same limits as scipy's, for every number of hits, and for queries that are clusters of their own."""
    for count in range(0, n + 1, max(1, n // 50)):
        expected = stats.binomtest(count, n).proportion_ci(method="wilson")
        for clusters in (None, np.random.default_rng(count).permutation(n) * 3):
            one = mean_interval(hits(count, n), clusters)
            assert one.interval == pytest.approx((expected.low, expected.high), abs=1e-12)
            assert one.value == pytest.approx(count / n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("p", RATES)
def test_exact_coverage_for_hits(n: int, p: float) -> None:
    """The binomial law, summed over every number of hits."""
    counts = np.arange(n + 1)
    inside = [one.low <= p <= one.high for one in (mean_interval(hits(count, n)) for count in counts)]
    assert 0.93 <= stats.binom.pmf(counts, n, p)[inside].sum() <= 0.97


def chances(random: np.random.Generator, p: float, size: int, icc: float = 0.3) -> np.ndarray:
    scale = (1 - icc) / icc
    return random.beta(p * scale, (1 - p) * scale, size)


def clustered_hits(random: np.random.Generator, p: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    sizes = random.integers(1, 5, n)
    chance = np.repeat(chances(random, p, n), sizes)
    return (random.random(len(chance)) < chance).astype(float), np.repeat(np.arange(n), sizes)


def clustered_recall(random: np.random.Generator, p: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    sizes = random.integers(1, 5, n)
    return random.binomial(3, np.repeat(chances(random, p, n), sizes)) / 3, np.repeat(np.arange(n), sizes)


def recall(random: np.random.Generator, p: float, n: int) -> tuple[np.ndarray, None]:
    relevant = random.integers(1, 5, n)
    return random.binomial(relevant, chances(random, p, n)) / relevant, None


def reciprocal_ranks(random: np.random.Generator, p: float, n: int) -> tuple[np.ndarray, None]:
    ranks, mean = 1 / random.integers(1, 101, n), float((1 / np.arange(1, 101)).mean())
    if p <= mean:
        return ranks * (random.random(n) < p / mean), None
    return np.where(random.random(n) < (p - mean) / (1 - mean), 1.0, ranks), None


@pytest.mark.parametrize(
    "draw", [clustered_hits, clustered_recall, recall, reciprocal_ranks], ids=lambda draw: draw.__name__
)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("p", RATES)
def test_coverage(draw: Draw, n: int, p: float) -> None:
    """Of simulated samples, so many that chance moves the share by 0.4 points, 93 to 97% of the intervals hold the true value."""
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(3 * TRIALS):
        one = mean_interval(*draw(random, p, n))
        covered += one.low <= p <= one.high
    assert 0.93 <= covered / (3 * TRIALS) <= 0.97


def test_clusters_widen_and_their_names_do_not_matter() -> None:
    random = np.random.default_rng(1)
    values, clusters = clustered_hits(random, 0.5, 200)
    alone, together = mean_interval(values), mean_interval(values, clusters)
    assert together.high - together.low > 1.1 * (alone.high - alone.low)
    order = random.permutation(len(values))
    again = mean_interval(values[order], 10**12 - 7 * clusters[order])
    assert again.interval == pytest.approx(together.interval, abs=1e-12)
    assert together.shares.sum() == pytest.approx(0, abs=1e-12)


def test_two_copies_of_every_query_say_no_more() -> None:
    values = (np.random.default_rng(2).random(80) < 0.3).astype(float)
    copied = mean_interval(np.tile(values, 2), np.tile(np.arange(80), 2))
    assert copied.interval == pytest.approx(mean_interval(values).interval, abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2, 52])
def test_equal_values_are_not_certain(value: float, n: int) -> None:
    one = mean_interval(np.full(n, value))
    assert 0 <= one.low <= value <= one.high <= 1
    assert one.high - one.low > 0.5 / n
    assert mean_interval(np.full(n, value), np.zeros(n, np.int64)).high - one.low <= 1


def test_no_query_is_refused() -> None:
    for interval in (mean_interval, median_interval):
        with pytest.raises(ValueError, match="no queries"):
            interval(np.empty(0))


def test_which_interval_a_measure_has() -> None:
    ranks = np.array([1.0, 2, 3, 50, 7, 4, 5, 100, 2])
    assert value_interval(Measure("median_rank"), ranks).value == 4
    assert value_interval(Measure("mrr"), 1 / ranks).value == pytest.approx(np.mean(1 / ranks))


@pytest.mark.parametrize("clustered", [False, True])
def test_coverage_of_the_median(clustered: bool) -> None:
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(TRIALS):
        codes = np.repeat(np.arange(100), 2 if clustered else 1)
        ranks = np.exp(np.repeat(random.normal(size=100), 2 if clustered else 1) + 0.5 * random.normal(size=len(codes)))
        one = median_interval(ranks, codes)
        covered += one.low <= 1 <= one.high
    assert 0.93 <= covered / TRIALS <= 0.97


def one_suite(random: np.random.Generator, rates: tuple[float, ...], n: int, shared: int) -> dict[str, Estimate]:
    """Estimates of tasks with n clusters of one or two queries, the first ``shared`` tasks on the same clusters."""
    common, found = random.normal(size=n), {}
    for place, p in enumerate(rates):
        own = common if place < shared else random.normal(size=n)
        codes = np.arange(n) + (0 if place < shared else 10**6 * (place + 1))
        sizes = random.integers(1, 3, n)
        latent = math.sqrt(0.5) * (np.repeat(own, sizes) + random.normal(size=sizes.sum()))
        values = (latent < NormalDist().inv_cdf(p)).astype(float)
        found[str(place)] = mean_interval(values, np.repeat(codes, sizes))
    return found


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("rates", "shared"), [((0.5,) * 3, 3), ((0.05, 0.5, 0.95), 3), ((0.05, 0.5, 0.95), 0)])
def test_coverage_of_means(n: int, rates: tuple[float, ...], shared: int) -> None:
    """Clusters that tasks share count once: taken as independent, the tasks' mean would be called too sure."""
    random = np.random.default_rng(9)
    tree = [Mean("mean", ("0", "1", "2"))]
    together = apart = 0
    for _ in range(TRIALS):
        found = one_suite(random, rates, n, shared)
        alone = {
            name: Estimate(one.value, *one.interval, one.clusters + 10**9 * (int(name) + 1), one.shares)
            for name, one in found.items()
        }
        low, high = mean_intervals(tree, found)["mean"]
        together += low <= np.mean(rates) <= high
        low, high = mean_intervals(tree, alone)["mean"]
        apart += low <= np.mean(rates) <= high
    assert 0.93 <= together / TRIALS <= 0.97
    assert apart == together if shared == 0 else apart < together - 0.02 * TRIALS


def test_a_mean_of_one_task_is_that_task() -> None:
    one = mean_interval(hits(20, 52))
    assert combined_interval([(1.0, one)]) == pytest.approx(one.interval)
    assert combined_interval([(0.5, one), (0.5, one)]) == pytest.approx(one.interval)
    low, high = combined_interval([(1.0, one), (-1.0, one)])
    assert low <= 0 <= high


def test_tasks_without_a_miss_still_widen_a_mean() -> None:
    sure, other = mean_interval(hits(52, 52)), mean_interval(hits(26, 52))
    low, high = combined_interval([(0.5, sure), (0.5, other)])
    assert 0.75 - low > (other.value - other.low) / 2
    assert high - 0.75 == pytest.approx((other.high - other.value) / 2)


def test_weights_of_the_tree_give_its_values() -> None:
    tree = (
        Mean("a", ("one", "two")),
        Mean("b", ("two", "three", "four")),
        Mean("of means", ("a", "b")),
        Mean("of tasks", ("a", "b"), flat=True),
        Mean("mixed", ("of means", "one")),
    )
    values = dict(zip(("one", "two", "three", "four"), (0.11, 0.23, 0.5, 0.7), strict=True))
    for name, mean in mean_values(tree, values).items():
        weights = mean_weights(tree, name)
        assert sum(weights.values()) == pytest.approx(1)
        assert sum(weight * values[task] for task, weight in weights.items()) == pytest.approx(mean.value)
    estimates = {name: mean_interval(hits(round(100 * value), 100)) for name, value in values.items() if name != "four"}
    assert set(mean_intervals(tree, estimates)) == {"a"}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("better", "worse"), [(0.1, 0.05), (0.5, 0.05), (0.25, 0.25), (0.9, 0.02)])
def test_coverage_of_differences(n: int, better: float, worse: float) -> None:
    random = np.random.default_rng(4)
    covered = 0
    for _ in range(TRIALS):
        drawn = random.random(n)
        second = np.where(drawn < better, 1.0, 0.0)
        first = np.where((drawn >= better) & (drawn < better + worse), 1.0, 0.0)
        one = difference_interval(first, second)
        covered += one.low <= better - worse <= one.high
    assert 0.93 <= covered / TRIALS <= 0.975


def test_two_runs_that_agree_everywhere_may_still_differ() -> None:
    values = hits(20, 52)
    one = difference_interval(values, values)
    assert one.value == 0
    assert -0.1 < one.low < 0 < one.high < 0.1
