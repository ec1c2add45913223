"""How often 95% intervals cover, and how often the paired test rejects, on simulated models with known true values.

    python benchmarks/intervals.py                  the tables below, about ten minutes
    python benchmarks/intervals.py --trials 500     quicker and coarser

First the exact coverage of Wilson's interval, by summing the binomial law. Then, for fractional measures and for clustered queries,
the coverage over simulated samples, beside three bootstraps by cluster: percentile, BCa and studentised (fewer samples, since they
are slow). Then means over tasks that share clusters, with their correlation and without; paired differences; the size of the paired
test under the null, and its power at the difference that is said to be detectable; and what a large run costs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from omnirecall.protocol.measures import Measure
from omnirecall.protocol.suites import Mean
from omnirecall.results.intervals import Estimate, difference_interval, mean_interval, mean_intervals
from omnirecall.results.paired import paired_task, sign_flip

SIZES = (52, 100, 1000)
RATES = (0.05, 0.5, 0.95)
ICC = 0.3
NORMAL = NormalDist()
Sample = tuple[np.ndarray, np.ndarray | None]


def wilson_coverage(n: int, p: float) -> float:
    """The chance that Wilson's interval of n hits-or-misses holds p."""
    total = 0.0
    for hits in range(n + 1):
        values = np.zeros(n)
        values[:hits] = 1
        one = mean_interval(values)
        if one.low <= p <= one.high:
            logs = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
            total += math.exp(logs + hits * math.log(p) + (n - hits) * math.log1p(-p))
    return total


def difficulty(random: np.random.Generator, p: float, size: int, icc: float = ICC) -> np.ndarray:
    """Chances of a hit, float64 (size,), with mean p and an intraclass correlation."""
    scale = (1 - icc) / icc
    return random.beta(p * scale, (1 - p) * scale, size)


def hits_in_clusters(random: np.random.Generator, p: float, clusters: int) -> Sample:
    """Hits of one to four queries a cluster."""
    sizes = random.integers(1, 5, clusters)
    chance = np.repeat(difficulty(random, p, clusters), sizes)
    return (random.random(len(chance)) < chance).astype(float), np.repeat(np.arange(clusters), sizes)


def hits_of_queries_in_clusters(random: np.random.Generator, p: float, queries: int) -> Sample:
    """Hits of so many queries, one to four a cluster."""
    values, codes = hits_in_clusters(random, p, queries)
    return values[:queries], codes[:queries]


def recall(random: np.random.Generator, p: float, n: int) -> Sample:
    """Recall of one to four relevant candidates."""
    relevant = random.integers(1, 5, n)
    return random.binomial(relevant, difficulty(random, p, n)) / relevant, None


def recall_in_clusters(random: np.random.Generator, p: float, clusters: int) -> Sample:
    """Recall of three relevant candidates, one to four queries a cluster."""
    sizes = random.integers(1, 5, clusters)
    chance = np.repeat(difficulty(random, p, clusters), sizes)
    return random.binomial(3, chance) / 3, np.repeat(np.arange(clusters), sizes)


def reciprocal_ranks(random: np.random.Generator, p: float, n: int) -> Sample:
    """Reciprocals of ranks up to 100, mixed with ones or zeros so that their mean is p."""
    ranks = 1 / random.integers(1, 101, n)
    mean = float((1 / np.arange(1, 101)).mean())
    if p <= mean:
        return ranks * (random.random(n) < p / mean), None
    return np.where(random.random(n) < (p - mean) / (1 - mean), 1.0, ranks), None


def gains(random: np.random.Generator, p: float, n: int) -> Sample:
    """Continuous values between 0 and 1, as of ndcg."""
    return difficulty(random, p, n, 0.25), None


def hits_with_ties(random: np.random.Generator, p: float, n: int) -> Sample:
    """Hits of which three in ten are halves, since two candidates tie."""
    one, other = (random.random(n) < p for _ in range(2))
    return np.where(random.random(n) < 0.3, (one.astype(float) + other) / 2, one), None


SCENARIOS: dict[str, Callable[[np.random.Generator, float, int], Sample]] = {
    "hits, n clusters": hits_in_clusters,
    "hits, n queries in clusters": hits_of_queries_in_clusters,
    "hits with ties": hits_with_ties,
    "recall": recall,
    "recall, n clusters": recall_in_clusters,
    "reciprocal ranks": reciprocal_ranks,
    "gains": gains,
}


def bootstraps(sample: Sample, random: np.random.Generator, draws: int = 999) -> list[tuple[float, float]]:
    """Percentile, BCa and studentised bootstrap intervals, clusters drawn with replacement (Davison and Hinkley 1997)."""
    values, codes = sample
    which = np.arange(len(values)) if codes is None else codes - codes.min()
    totals, sizes = np.bincount(which, values), np.bincount(which).astype(float)
    n, mean = len(totals), values.mean()
    weights = random.multinomial(n, np.full(n, 1 / n), draws).astype(float)
    counts = weights @ sizes
    means = weights @ totals / counts
    deviations = totals - mean * sizes
    if not deviations.any():
        return [(mean, mean)] * 3
    shift = NORMAL.inv_cdf(min(max(((means < mean).mean() + (means <= mean).mean()) / 2, 1e-4), 1 - 1e-4))
    bend = (deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5)
    levels = [NORMAL.cdf(shift + (shift + z) / (1 - bend * (shift + z))) for z in (-1.959964, 1.959964)]
    squares = weights @ totals**2 - 2 * means * (weights @ (totals * sizes)) + means**2 * (weights @ sizes**2)
    error = math.sqrt((deviations**2).sum()) / len(values)
    kept = squares > 1e-12
    ratios = (means[kept] - mean) / (np.sqrt(squares[kept]) / counts[kept])
    low, high = np.quantile(ratios, [0.975, 0.025]) if kept.any() else (0.0, 0.0)
    return [
        (float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))),
        (float(np.quantile(means, levels[0])), float(np.quantile(means, levels[1]))),
        (mean - low * error, mean - high * error),
    ]


def print_values(trials: int, slow: int) -> None:
    """Coverage of the interval of a task's value."""
    print(
        "Wilson, exact coverage\n\n| n | " + " | ".join(f"p = {p}" for p in RATES) + " |\n|---:|" + "---:|" * len(RATES)
    )
    for n in SIZES:
        print(f"| {n} | " + " | ".join(f"{wilson_coverage(n, p):.4f}" for p in RATES) + " |")
    print(f"\nsimulated coverage, {trials} samples ({slow} for the bootstraps, at most 200 where n is 1000)\n")
    print("| values | n | p | ours | percentile | BCa | studentised |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, draw in SCENARIOS.items():
        for n in SIZES:
            for p in RATES:
                random = np.random.default_rng(7)
                ours = np.mean([covers(mean_interval(*draw(random, p, n)).interval, p) for _ in range(trials)])
                found = [
                    [covers(one, p) for one in bootstraps(draw(random, p, n), random)]
                    for _ in range(slow if n < 1000 else min(slow, 200))
                ]
                others = " | ".join(f"{share:.3f}" for share in np.mean(found, axis=0)) if slow else " | | "
                print(f"| {name} | {n} | {p} | {ours:.3f} | {others} |", flush=True)


def covers(interval: tuple[float, float], value: float) -> bool:
    """Whether the interval holds the value, within rounding."""
    return interval[0] - 1e-12 <= value <= interval[1] + 1e-12


def tasks_of_one_suite(random: np.random.Generator, rates: tuple[float, ...], n: int, shared: int) -> dict[str, Sample]:
    """Hits of tasks with n clusters of one or two queries, the first ``shared`` tasks on the same clusters."""
    common, found = random.normal(size=n), {}
    for place, p in enumerate(rates):
        own = common if place < shared else random.normal(size=n)
        codes = np.arange(n) + (0 if place < shared else 10**6 * (place + 1))
        sizes = random.integers(1, 3, n)
        latent = math.sqrt(0.5) * np.repeat(own, sizes) + math.sqrt(0.5) * random.normal(size=sizes.sum())
        found[str(place)] = ((latent < NORMAL.inv_cdf(p)).astype(float), np.repeat(codes, sizes))
    return found


def print_means(trials: int) -> None:
    """Coverage of the interval of a mean over tasks."""
    print(f"\nmeans over tasks, {trials} samples\n")
    print("| hit rates | on shared clusters | n | ours | as if independent |\n|---|---:|---:|---:|---:|")
    cases = (
        ((0.05, 0.05, 0.05), 3), ((0.5, 0.5, 0.5), 3), ((0.95, 0.95, 0.95), 3), ((0.05, 0.5, 0.95), 3), ((0.05, 0.5, 0.95), 0),
        ((0.3, 0.6, 0.8, 0.9, 0.95, 0.97, 0.2, 0.5), 5), ((0.98,) * 8, 4),
    )  # fmt: skip
    for rates, shared in cases:
        tree = [Mean("mean", tuple(str(place) for place in range(len(rates))))]
        for n in SIZES:
            random = np.random.default_rng(11)
            joint, apart = [], []
            for _ in range(trials):
                found = {
                    name: mean_interval(*one) for name, one in tasks_of_one_suite(random, rates, n, shared).items()
                }
                joint.append(covers(mean_intervals(tree, found)["mean"], float(np.mean(rates))))
                alone = {
                    name: Estimate(one.value, *one.interval, one.clusters + 10**9 * (int(name) + 1), one.shares)
                    for name, one in found.items()
                }
                apart.append(covers(mean_intervals(tree, alone)["mean"], float(np.mean(rates))))
            print(
                f"| {', '.join(map(str, rates))} | {shared} | {n} | {np.mean(joint):.3f} | {np.mean(apart):.3f} |",
                flush=True,
            )


def two_runs(random: np.random.Generator, n: int, better: float, worse: float) -> tuple[np.ndarray, np.ndarray]:
    """Hits of two runs on n queries, the second alone hitting with chance ``better``, the first alone with ``worse``."""
    draw = random.random(n)
    rest = random.random(n) < 0.5
    first = np.where(draw < better, 0.0, np.where(draw < better + worse, 1.0, rest))
    second = np.where(draw < better, 1.0, np.where(draw < better + worse, 0.0, rest))
    return first, second


def print_differences(trials: int) -> None:
    """Coverage of the interval of a paired difference of hits, and the power of the test at what is said to be detectable."""
    print(
        f"\npaired differences of hits, {trials} samples\n\n| second only | first only | n | coverage |\n|---:|---:|---:|---:|"
    )
    for better, worse in ((0.01, 0.01), (0.04, 0.01), (0.1, 0.05), (0.2, 0.1), (0.5, 0.05), (0.25, 0.25), (0.9, 0.02)):
        for n in SIZES:
            random = np.random.default_rng(13)
            found = [
                covers(difference_interval(*two_runs(random, n, better, worse)).interval, better - worse)
                for _ in range(trials)
            ]
            print(f"| {better} | {worse} | {n} | {np.mean(found):.3f} |", flush=True)


def print_tests(trials: int) -> None:
    """How often the paired test rejects at 5%: under the null, and at the detectable difference."""
    print(
        f"\npaired test, share of {trials} samples with p < 0.05 under the null\n\n| differences | n | rejected |\n|---|---:|---:|"
    )
    hit = Measure("hit", 1)
    for n in SIZES:
        random = np.random.default_rng(17)
        p = [paired_task(hit, *two_runs(random, n, 0.1, 0.1)).p for _ in range(trials)]
        print(f"| hits, one in five differ | {n} | {np.mean(np.array(p) < 0.05):.3f} |", flush=True)
        few = min(trials, 1000)
        p = [clustered_null(random, n) for _ in range(few)]
        print(
            f"| recall in n clusters, difficulty shared ({few}) | {n} | {np.mean(np.array(p) < 0.05):.3f} |", flush=True
        )
        p = [sign_flip(random.exponential(1, n) - 1, draws=2000)[0] for _ in range(few)]
        print(f"| skewed, not exchangeable ({few}) | {n} | {np.mean(np.array(p) < 0.05):.3f} |", flush=True)
    print(
        f"\npower at the detectable difference, {trials} samples\n\n| discordant | n | detectable | power |\n|---:|---:|---:|---:|"
    )
    for n in (100, 300, 1000):
        for discordant in (0.1, 0.3):
            random = np.random.default_rng(19)
            said = paired_task(hit, *two_runs(random, 10**6, discordant / 2, discordant / 2)).detectable
            assert said is not None
            gap = said * math.sqrt(10**6 / n)
            rates = (discordant + gap) / 2, (discordant - gap) / 2
            p = (
                [paired_task(hit, *two_runs(random, n, *rates)).p for _ in range(trials)]
                if rates[1] > 0
                else [math.nan]
            )
            print(f"| {discordant} | {n} | {gap:.3f} | {np.mean(np.array(p) < 0.05):.3f} |", flush=True)


def clustered_null(random: np.random.Generator, clusters: int) -> float:
    """The p-value of two models that are equally good, on clusters with a difficulty of their own."""
    sizes = random.integers(1, 5, clusters)
    chance = np.repeat(difficulty(random, 0.5, clusters), sizes)
    codes = np.repeat(np.arange(clusters), sizes)
    first, second = random.binomial(3, chance) / 3, random.binomial(3, chance) / 3
    totals = np.bincount(codes, second - first)
    return sign_flip(totals, draws=2000)[0]


def print_costs() -> None:
    """Seconds for a run of 78 tasks with 1,000 queries each, and for a task of 50,000."""
    random = np.random.default_rng(23)
    tree = [Mean("mean", tuple(str(place) for place in range(78)))]
    tasks = {str(place): (1 / random.integers(1, 12, 1000), random.integers(0, 500, 1000)) for place in range(78)}
    others = {name: 1 / random.integers(1, 12, 1000) for name in tasks}
    mrr = Measure("mrr", 10)
    print("\n| work | s |\n|---|---:|")
    start = time.perf_counter()
    mean_intervals(tree, {name: mean_interval(*one) for name, one in tasks.items()})
    print(
        f"| intervals of 78 tasks of 1,000 queries in 500 clusters, and their mean | {time.perf_counter() - start:.2f} |"
    )
    start = time.perf_counter()
    for name, (values, codes) in tasks.items():
        paired_task(mrr, values, others[name], codes)
    print(f"| 78 paired tests of the same | {time.perf_counter() - start:.2f} |")
    values, others_50k, codes = random.random(50_000), random.random(50_000), random.integers(0, 20_000, 50_000)
    start = time.perf_counter()
    mean_interval(values, codes)
    print(f"| interval of 50,000 queries in 20,000 clusters | {time.perf_counter() - start:.3f} |")
    start = time.perf_counter()
    paired_task(mrr, values, others_50k, codes)
    print(f"| paired test of the same, all differences distinct | {time.perf_counter() - start:.2f} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000, help="samples for each line")
    parser.add_argument(
        "--bootstrap-trials",
        type=int,
        default=1000,
        help="samples for the bootstraps, at most 200 of them where n is 1000; 0 leaves them out",
    )
    arguments = parser.parse_args()
    print_values(arguments.trials, arguments.bootstrap_trials)
    print_means(arguments.trials)
    print_differences(arguments.trials)
    print_tests(arguments.trials)
    print_costs()


if __name__ == "__main__":
    main()
