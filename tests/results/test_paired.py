"""Paired tests against scipy and brute force, their size under the null, wins and losses, effect sizes, what can be detected."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from omnirecall.protocol.measures import Measure
from omnirecall.results import paired as module
from omnirecall.results.intervals import difference_interval
from omnirecall.results.paired import detectable, holm, mark, paired_mean, paired_task, sign_flip

HIT, MRR, MEDIAN = Measure("hit", 1), Measure("mrr"), Measure("median_rank")


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 1), (6, 0), (30, 18), (300, 250), (4000, 3800)])
def test_mcnemar_is_the_binomial_test(wins: int, losses: int) -> None:
    """Two-sided, exact, for any number of discordant queries."""
    first = np.concatenate([np.zeros(wins), np.ones(losses), np.ones(10), np.zeros(7)])
    second = np.concatenate([np.ones(wins), np.zeros(losses), np.ones(10), np.zeros(7)])
    found = paired_task(HIT, first, second)
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert found.p == pytest.approx(expected, rel=1e-8)
    assert (found.wins, found.losses, found.ties) == (wins, losses, 17)
    assert found.method == "McNemar, exact"
    assert found.difference == pytest.approx((wins - losses) / len(first))


@pytest.mark.parametrize("seed", range(5))
def test_exact_flips_are_every_flip(seed: int) -> None:
    totals = np.round(np.random.default_rng(seed).normal(0.3, 1, 9), 1)
    totals[3] = totals[4]
    sums = [abs(np.dot(signs, totals)) for signs in itertools.product((-1, 1), repeat=9)]
    expected = np.mean(np.array(sums) >= abs(totals.sum()) - 1e-9)
    assert sign_flip(totals) == (pytest.approx(expected, abs=1e-12), False)


def test_drawn_flips_agree_with_scipy_and_with_their_seed() -> None:
    random = np.random.default_rng(0)
    totals = np.concatenate(
        [random.normal(0.25, 1, 60), np.full(5, 0.3), np.full(200, -0.01), random.choice([0.2, -0.2], 90)]
    )
    p, drawn = sign_flip(totals, seed=1)
    assert drawn
    judge = stats.permutation_test(
        (totals,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    )
    assert p == pytest.approx(judge.pvalue, abs=0.015)
    assert sign_flip(totals, seed=1)[0] == p
    assert sign_flip(totals, seed=2)[0] != p
    assert 20_001 * p == pytest.approx(round(20_001 * p))


def test_drawn_and_exact_flips_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same data, enumerated and drawn: sizes that occur once, a few times, often, and more often than a word has bits."""
    random = np.random.default_rng(3)
    for totals in (
        random.normal(0.5, 1, 16),
        random.choice([1.0, -1.0], 100, p=[0.6, 0.4]),
        random.choice([1, -1, 0.5], 40),
    ):
        exact, drawn = sign_flip(totals)
        assert not drawn
        with monkeypatch.context() as patch:
            patch.setattr(module, "ENUMERATED", 1)
            again, drawn = sign_flip(totals)
        assert drawn
        assert again == pytest.approx(exact, abs=0.015)


def test_a_drawn_p_value_is_never_zero() -> None:
    assert sign_flip(np.random.default_rng(0).uniform(1, 2, 60)) == (1 / 20_001, True)


def test_rounding_makes_no_difference_of_zero() -> None:
    totals = np.array([0.1 + 0.2 - 0.3, 1.0, -1.0, 0.0])
    assert sign_flip(totals)[0] == 1.0
    assert sign_flip(np.zeros(5)) == (1.0, False)
    assert sign_flip(np.empty(0)) == (1.0, False)


@pytest.mark.parametrize("n", [52, 100, 1000])
def test_the_size_for_hits(n: int) -> None:
    """At most 6.5% of 1,000 tests of two models that are equally good reject at 5%."""
    random = np.random.default_rng(6)
    rejected = 0
    for _ in range(1000):
        chance = random.beta(0.5, 0.5, n)
        first, second = (random.random((2, n)) < chance).astype(float)
        rejected += paired_task(HIT, first, second).p < 0.05
    assert 5 <= rejected <= 65


@pytest.mark.parametrize("n", [52, 100])
def test_the_size_for_clusters(n: int) -> None:
    """Queries of a cluster go together; taken one by one they would reject far too often."""
    random = np.random.default_rng(7)
    together = apart = 0
    for _ in range(1000):
        codes = np.repeat(np.arange(n), 3)
        gap = np.repeat(random.choice([-0.2, 0.0, 0.2], n), 3)
        difference = gap + random.choice([-0.1, 0.0, 0.1], len(codes))
        together += sign_flip(np.bincount(codes, difference), draws=1000)[0] < 0.05
        apart += sign_flip(difference, draws=1000)[0] < 0.05
    assert 30 <= together <= 65
    assert apart > 120


def test_clusters_are_flipped_together() -> None:
    first, second = np.zeros(12), np.ones(12)
    assert paired_task(HIT, first, second).p == pytest.approx(2 * 0.5**12)
    found = paired_task(HIT, first, second, np.repeat(np.arange(4), 3))
    assert found.p == pytest.approx(2 * 0.5**4)
    assert found.method == "signs flipped by cluster, exact"


def test_the_method_is_named_with_its_draws() -> None:
    random = np.random.default_rng(1)
    assert paired_task(MRR, random.random(100), random.random(100)).method == "signs flipped by cluster, 20,000 draws"


def test_effect_and_interval() -> None:
    random = np.random.default_rng(2)
    first, second = random.random(60), random.random(60)
    found = paired_task(MRR, first, second)
    one = difference_interval(first, second)
    assert (found.difference, found.low, found.high) == (one.value, one.low, one.high)
    assert found.effect == pytest.approx(np.mean(second - first) / np.std(second - first, ddof=1))
    assert found.effect == pytest.approx(stats.ttest_rel(second, first).statistic / np.sqrt(60))
    assert paired_task(MRR, first, first).effect is None


def test_lower_ranks_are_wins() -> None:
    first, second = np.array([5.0, 9, 3, 4, 8, 7, 2]), np.array([1.0, 2, 3, 1, 2, 2, 9])
    found = paired_task(MEDIAN, first, second)
    assert (found.wins, found.losses, found.ties) == (5, 1, 1)
    assert found.difference == 2.0 - 5.0
    assert (found.low, found.high, found.effect, found.detectable) == (None, None, None, None)
    assert found.p == pytest.approx(stats.binomtest(5, 6).pvalue)


def test_what_is_detectable_is_found_four_times_in_five() -> None:
    """Power of the exact test at the difference that a pair of runs with as much disagreement is said to show."""
    random = np.random.default_rng(8)
    n, discordant = 400, 0.3
    said = paired_task(HIT, *pair(random, 400_000, discordant / 2, discordant / 2)).detectable
    assert said is not None
    gap = said * np.sqrt(400_000 / n)
    found = [
        paired_task(HIT, *pair(random, n, (discordant + gap) / 2, (discordant - gap) / 2)).p < 0.05 for _ in range(600)
    ]
    assert 0.74 <= np.mean(found) <= 0.86


def pair(random: np.random.Generator, n: int, better: float, worse: float) -> tuple[np.ndarray, np.ndarray]:
    drawn = random.random(n)
    second = (drawn < better).astype(float)
    return ((drawn >= better) & (drawn < better + worse)).astype(float), second


def test_fewer_than_six_queries_show_nothing() -> None:
    assert paired_task(HIT, np.zeros(5), np.ones(5)).detectable is None
    assert paired_task(HIT, np.zeros(5), np.ones(5)).p > 0.05
    agreeing = paired_task(HIT, np.ones(50), np.ones(50))
    assert agreeing.detectable == pytest.approx(6 / 50)
    assert paired_task(HIT, np.zeros(6), np.ones(6)).p < 0.05
    assert detectable(np.zeros(50)) is None


def test_holm_against_its_definition() -> None:
    p = [0.01, 0.04, 0.03, 0.005, 0.2]
    assert holm(p) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert [mark(value) for value in (0.2, 0.05, 0.049, 0.009, 0.0009)] == ["", "", "*", "**", "***"]


def test_means_flip_shared_clusters_together() -> None:
    """A task counted twice on the same clusters says no more; on other clusters it does."""
    random = np.random.default_rng(5)
    first, second = random.random(40), random.random(40) + 0.1
    codes = np.arange(40)
    one, other = difference_interval(first, second, codes), difference_interval(first, second, codes + 1000)
    totals = (second - first) / 40
    alone = paired_mean({"a": 1.0}, {"a": one}, {"a": totals})
    same = paired_mean({"a": 0.5, "b": 0.5}, {"a": one, "b": one}, {"a": totals, "b": totals})
    apart = paired_mean({"a": 0.5, "b": 0.5}, {"a": one, "b": other}, {"a": totals, "b": totals})
    assert same.p == alone.p == sign_flip(totals)[0]
    assert same.detectable == pytest.approx(alone.detectable)
    assert (same.low, same.high) == pytest.approx((alone.low, alone.high))
    assert apart.p < same.p
    assert apart.high - apart.low < 0.8 * (same.high - same.low)
    assert apart.detectable == pytest.approx(same.detectable / np.sqrt(2))
    assert (apart.wins, apart.losses, apart.ties) == (2, 0, 0)
    assert apart.difference == pytest.approx(one.value)
