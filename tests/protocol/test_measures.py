"""Measures against other judges: ir-measures without ties, every order of the ties by hand, and exact arithmetic."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations, product
from statistics import fmean, median

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirecall.protocol.measures import Measure, MeasureError, RankedJudgments, Scores, aggregate, score_queries

CUTS = (1, 2, 3, 5, 10)
CUT_NAMES = ("hit", "recall", "precision", "f1", "ndcg", "ndcg_exp", "mrr", "map")
MEASURES = [Measure(name, k) for name in CUT_NAMES for k in CUTS] + [
    Measure(name) for name in ("mrr", "map", "median_rank")
]
EXACT = 1e-9


@dataclass(frozen=True)
class Query:
    """One query by its candidates, each with a score and a grade (0: not relevant), and the grades outside the pool."""

    scores: tuple[float, ...]
    grades: tuple[int, ...]
    outside: tuple[int, ...] = ()

    @property
    def all_grades(self) -> list[int]:
        return [grade for grade in (*self.grades, *self.outside) if grade > 0]

    def orders(self) -> list[tuple[tuple[int, ...], int]]:
        """Grades in rank order, for every order of the tied groups, with how many orders look like that."""
        levels = sorted(set(self.scores), reverse=True)
        groups = [[g for g, s in zip(self.grades, self.scores, strict=True) if s == level] for level in levels]
        choices = product(*(Counter(permutations(group)).items() for group in groups))
        return [(sum((g for g, _ in choice), ()), math.prod(times for _, times in choice)) for choice in choices]


def judgments(queries: list[Query]) -> RankedJudgments:
    """Ranks by counting scores one by one, pairs in the order of the candidates."""
    offsets, grades, greater, tied = [0], [], [], []
    for query in queries:
        for score, grade in zip(query.scores, query.grades, strict=True):
            if grade > 0:
                grades.append(grade)
                greater.append(sum(other > score for other in query.scores))
                tied.append(sum(other == score for other in query.scores) - 1)
        for grade in query.outside:
            grades.append(grade)
            greater.append(-1)
            tied.append(0)
        offsets.append(len(grades))
    return RankedJudgments(
        np.array(offsets, dtype=np.int64),
        np.array(grades, dtype=np.float64),
        np.array(greater, dtype=np.int64),
        np.array(tied, dtype=np.int64),
        np.array([len(query.scores) for query in queries], dtype=np.int64),
    )


def one_group(above: int, size: int, relevant: int, pool: int | None = None) -> RankedJudgments:
    """One query whose relevant candidates all lie in one tie."""
    return RankedJudgments(
        np.array([0, relevant]),
        np.ones(relevant),
        np.full(relevant, above),
        np.full(relevant, size - 1),
        np.array([pool or above + size]),
    )


def by_definition(measure: Measure, ranked: tuple[int, ...], all_grades: list[int]) -> float:
    """The measure of one ranking without ties, grades in rank order, straight from its definition."""
    k = measure.k if measure.k is not None else len(ranked)
    relevant_ranks = [rank for rank, grade in enumerate(ranked, start=1) if grade > 0]
    in_top = [rank for rank in relevant_ranks if rank <= k]
    recall, precision = len(in_top) / len(all_grades), len(in_top) / max(k, 1)
    match measure.name:
        case "hit":
            return float(bool(in_top))
        case "recall":
            return recall
        case "precision":
            return precision
        case "f1":
            return 2 * precision * recall / (precision + recall) if in_top else 0.0
        case "ndcg" | "ndcg_exp":
            gain = (lambda grade: grade) if measure.name == "ndcg" else (lambda grade: 2**grade - 1)
            ideal = sorted(all_grades, reverse=True)[:k]
            dcg, ideal_dcg = (
                sum(gain(grade) / math.log2(rank + 1) for rank, grade in enumerate(grades, start=1))
                for grades in (ranked[:k], ideal)
            )
            return dcg / ideal_dcg
        case "mrr":
            return 1 / in_top[0] if in_top else 0.0
        case "map":
            precisions = [sum(other <= rank for other in in_top) / rank for rank in in_top]
            return sum(precisions) / (len(all_grades) if measure.k is None else min(len(all_grades), k))
        case "median_rank":
            return float(relevant_ranks[0] if relevant_ranks else len(ranked) + 1)
    raise AssertionError(measure)


def by_every_order(measure: Measure, query: Query) -> tuple[float, float, float]:
    """Mean, best and worst over all orders of the tied groups."""
    outcomes = [(by_definition(measure, ranked, query.all_grades), times) for ranked, times in query.orders()]
    mean = math.fsum(value * times for value, times in outcomes) / sum(times for _, times in outcomes)
    lowest, highest = min(value for value, _ in outcomes), max(value for value, _ in outcomes)
    return (mean, lowest, highest) if measure.name == "median_rank" else (mean, highest, lowest)


def scored(measure: str | Measure, judged: RankedJudgments) -> tuple[float, float, float]:
    scores = score_queries(Measure.parse(str(measure)), judged)
    return float(scores.value[0]), float(scores.best[0]), float(scores.worst[0])


def untied_query(rng: np.random.Generator) -> Query:
    """Up to 40 candidates at distinct whole scores, about a third of them relevant, some relevant ids outside."""
    size = int(rng.integers(1, 41))
    grades = rng.integers(1, 5, size) * (rng.random(size) < rng.choice([0.05, 0.3, 0.8]))
    outside = rng.integers(1, 5, int(rng.integers(0, 4)))
    if not grades.any() and not len(outside):
        grades[rng.integers(size)] = 2
    scores = rng.permutation(size).astype(float)
    return Query(tuple(scores.tolist()), tuple(grades.tolist()), tuple(outside.tolist()))


@st.composite
def tied_query(draw: st.DrawFn, largest: int = 7) -> Query:
    candidates = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=largest))
    outside = draw(st.lists(st.integers(1, 3), max_size=2))
    if not outside and not any(grade for _, grade in candidates):
        candidates[0] = (candidates[0][0], 1)
    return Query(
        tuple(float(score) for score, _ in candidates), tuple(grade for _, grade in candidates), tuple(outside)
    )


# --- without ties: other people's judges ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untied() -> list[Query]:
    rng = np.random.default_rng(20240607)
    return [untied_query(rng) for _ in range(4000)]


@pytest.fixture(scope="module")
def untied_judged(untied: list[Query]) -> RankedJudgments:
    return judgments(untied)


def judged_by_ir_measures(queries: list[Query], wanted: list[str], provider: object) -> dict[str, np.ndarray]:
    qrels = {
        str(q): {f"in{i}": grade for i, grade in enumerate(query.grades) if grade > 0}
        | {f"out{i}": grade for i, grade in enumerate(query.outside)}
        for q, query in enumerate(queries)
    }
    run = {str(q): {f"in{i}": score for i, score in enumerate(query.scores)} for q, query in enumerate(queries)}
    values = {name: np.zeros(len(queries)) for name in wanted}
    for metric in provider.iter_calc([ir_measures.parse_measure(name) for name in wanted], qrels, run):
        values[str(metric.measure)][int(metric.query_id)] = metric.value
    return values


@pytest.mark.parametrize("k", CUTS)
def test_pytrec_eval_agrees_without_ties(untied: list[Query], untied_judged: RankedJudgments, k: int) -> None:
    exponential = str(ir_measures.parse_measure(f"nDCG(gains={{1: 1, 2: 3, 3: 7, 4: 15}})@{k}"))
    names = [f"Success@{k}", f"R@{k}", f"P@{k}", f"nDCG@{k}", exponential, "RR", "AP", f"AP@{k}"]
    theirs = judged_by_ir_measures(untied, names, ir_measures.pytrec_eval)
    precision, recall = theirs[f"P@{k}"], theirs[f"R@{k}"]
    n_relevant = np.diff(untied_judged.offsets)
    expected = {
        f"hit@{k}": theirs[f"Success@{k}"],
        f"recall@{k}": recall,
        f"precision@{k}": precision,
        f"f1@{k}": 2 * precision * recall / np.where(precision > 0, precision + recall, 1),
        f"ndcg@{k}": theirs[f"nDCG@{k}"],
        f"ndcg_exp@{k}": theirs[exponential],
        "mrr": theirs["RR"],
        "map": theirs["AP"],
        f"map@{k}": theirs[f"AP@{k}"] * n_relevant / np.minimum(n_relevant, k),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(
            score_queries(Measure.parse(name), untied_judged).value, values, rtol=0, atol=EXACT, err_msg=name
        )


@pytest.mark.parametrize("k", CUTS)
def test_the_msmarco_script_agrees_on_cut_reciprocal_rank(
    untied: list[Query], untied_judged: RankedJudgments, k: int
) -> None:
    theirs = judged_by_ir_measures(untied, [f"RR@{k}"], ir_measures.msmarco)[f"RR@{k}"]
    np.testing.assert_allclose(score_queries(Measure("mrr", k), untied_judged).value, theirs, rtol=0, atol=EXACT)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_the_definitions_agree_without_ties(
    untied: list[Query], untied_judged: RankedJudgments, measure: Measure
) -> None:
    scores = score_queries(measure, untied_judged)
    expected = [by_definition(measure, query.orders()[0][0], query.all_grades) for query in untied]
    for values in (scores.value, scores.best, scores.worst):
        np.testing.assert_allclose(values, expected, rtol=0, atol=EXACT)


def test_the_cut_average_precision_divides_by_the_smaller_of_relevant_and_k() -> None:
    query = Query(scores=(4, 3, 2, 1), grades=(1, 0, 1, 1))
    assert scored("map@2", judgments([query]))[0] == pytest.approx(1 / 2)
    assert judged_by_ir_measures([query], ["AP@2"], ir_measures.pytrec_eval)["AP@2"][0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_a_perfect_ranking_scores_exactly_one(measure: Measure) -> None:
    perfect = [Query(tuple(range(60, 0, -1)), (4, 3, 2, *[1] * (n - 3), *[0] * (60 - n))) for n in range(3, 60)]
    values = score_queries(measure, judgments(perfect)).value
    if measure.name in ("hit", "ndcg", "ndcg_exp", "mrr", "map", "median_rank"):
        assert (values == 1.0).all()
    else:
        assert (values <= 1.0).all()


# --- with ties: every order -----------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(st.lists(tied_query(), min_size=1, max_size=3))
def test_every_order_of_the_ties_agrees(queries: list[Query]) -> None:
    judged = judgments(queries)
    for measure in MEASURES:
        scores = score_queries(measure, judged)
        expected = np.array([by_every_order(measure, query) for query in queries]).T
        for name, values, wanted in zip(
            ("value", "best", "worst"), (scores.value, scores.best, scores.worst), expected, strict=True
        ):
            np.testing.assert_allclose(values, wanted, rtol=0, atol=EXACT, err_msg=f"{measure} {name}")


@pytest.mark.parametrize(("above", "relevant_above"), [(0, 0), (1, 0), (1, 1), (4, 1), (4, 3)])
@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_every_order_of_one_tie_agrees_for_each_number_of_relevant(above: int, relevant_above: int, size: int) -> None:
    for relevant in range(1, size + 1):
        grades_above = (*[2] * relevant_above, *[0] * (above - relevant_above))
        grades_in_tie = (*[1, 2, 3, 3, 2, 1, 1][:relevant], *[0] * (size - relevant))
        query = Query((*range(100, 100 - above, -1), *[0] * size), grades_above + grades_in_tie)
        for measure in MEASURES:
            expected = by_every_order(measure, query)
            assert scored(measure, judgments([query])) == pytest.approx(expected, rel=0, abs=EXACT), (measure, relevant)


@settings(max_examples=100, deadline=None)
@given(st.lists(tied_query(largest=30), min_size=1, max_size=8), st.randoms())
def test_properties_that_hold_for_any_ranking(queries: list[Query], random: object) -> None:
    judged = judgments(queries)
    by_measure: dict[tuple[str, int | None], Scores] = {(m.name, m.k): score_queries(m, judged) for m in MEASURES}
    slack = 1e-12
    for (name, _), scores in by_measure.items():
        low, high = (scores.best, scores.worst) if name == "median_rank" else (scores.worst, scores.best)
        assert (low <= scores.value).all()
        assert (scores.value <= high).all()
        if name != "median_rank":
            assert (low >= 0).all()
            assert (high <= 1 + slack).all()
    for side in ("value", "best", "worst"):
        of = {key: getattr(scores, side) for key, scores in by_measure.items()}
        for k in CUTS:
            assert (of["hit", k] >= of["recall", k] - slack).all()
            assert (of["hit", k] >= of["precision", k] - slack).all()
            assert (of["hit", k] >= of["mrr", k] - slack).all()
            assert (of["hit", k] <= k * of["precision", k] + slack).all()
        assert (of["mrr", None] >= of["mrr", 10] - slack).all()
        for name in ("hit", "recall", "mrr"):
            for k, larger in pairwise(CUTS):
                assert (of[name, k] <= of[name, larger] + slack).all()
        assert of["hit", 1] == pytest.approx(of["precision", 1], abs=slack)
        assert of["hit", 1] == pytest.approx(of["mrr", 1], abs=slack)
    assert_pairs_have_no_order(judged, random)


def assert_pairs_have_no_order(judged: RankedJudgments, random: object) -> None:
    order = []
    for start, end in zip(judged.offsets[:-1].tolist(), judged.offsets[1:].tolist(), strict=True):
        pairs = list(range(start, end))
        random.shuffle(pairs)
        order += pairs
    shuffled = RankedJudgments(
        judged.offsets, judged.grades[order], judged.greater[order], judged.tied[order], judged.pool_size
    )
    for measure in MEASURES:
        one, other = score_queries(measure, judged), score_queries(measure, shuffled)
        for side in ("value", "best", "worst"):
            np.testing.assert_array_equal(getattr(one, side), getattr(other, side), err_msg=f"{measure} {side}")


@settings(max_examples=30, deadline=None)
@given(st.lists(tied_query(largest=12), min_size=2, max_size=8))
def test_a_query_scores_the_same_alone_as_among_others(queries: list[Query]) -> None:
    together = judgments(queries)
    for measure in MEASURES:
        scores = score_queries(measure, together)
        for q, query in enumerate(queries):
            alone = scored(measure, judgments([query]))
            assert alone == pytest.approx((scores.value[q], scores.best[q], scores.worst[q]), abs=1e-12)


# --- ties of millions: exact arithmetic -----------------------------------------------------------------------------


def test_a_constant_vector_scores_chance() -> None:
    pools, relevant = [1, 2, 294, 5_600_000], [1, 2, 3, 100]
    offsets = np.concatenate([[0], np.cumsum(relevant)])
    tied = np.repeat(np.array(pools) - 1, relevant)
    judged = RankedJudgments(offsets, np.ones(offsets[-1]), np.zeros_like(tied), tied, np.array(pools))
    chance = [r / n for r, n in zip(relevant, pools, strict=True)]
    for name in ("hit@1", "precision@1", "ndcg@1", "map@1", "mrr@1"):
        scores = score_queries(Measure.parse(name), judged)
        np.testing.assert_allclose(scores.value, chance, rtol=1e-9, atol=0, err_msg=name)
        assert aggregate(Measure.parse(name), scores.value) == pytest.approx(fmean(chance))
        assert scores.best.tolist() == [1, 1, 1, 1]
        assert scores.worst.tolist() == [1, 1, 0, 0]


def exact_hit(above: int, size: int, relevant: int, k: int) -> Fraction:
    drawn = min(max(k - above, 0), size)
    return 1 - Fraction(math.comb(size - relevant, drawn), math.comb(size, drawn))


@pytest.mark.parametrize("size", [3, 1000, 1_000_000, 5_600_000])
@pytest.mark.parametrize("relevant", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("above", [0, 3])
@pytest.mark.parametrize("k", [1, 5, 10, 1000])
def test_the_chance_of_a_hit_is_exact_for_millions(size: int, relevant: int, above: int, k: int) -> None:
    relevant = min(relevant, size)
    expected = exact_hit(above, size, relevant, k)
    assert scored(f"hit@{k}", one_group(above, size, relevant))[0] == pytest.approx(
        float(expected), rel=1e-9, abs=1e-15
    )


def test_the_chance_of_a_hit_is_exact_for_a_deep_cut() -> None:
    size, k = 5_600_000, 2_800_000
    for relevant in (1, 2, 7, 100):
        missed = Fraction(1)
        for i in range(relevant):
            missed *= Fraction(size - k - i, size - i)
        assert scored(f"hit@{k}", one_group(0, size, relevant))[0] == pytest.approx(float(1 - missed), rel=1e-13)


def harmonic(n: int) -> float:
    return math.fsum(1 / rank for rank in range(1, n + 1))


@pytest.mark.parametrize("size", [50, 1000, 1_000_000])
@pytest.mark.parametrize("relevant", [1, 2, 5, 50])
def test_reciprocal_rank_of_a_constant_model_is_exact(size: int, relevant: int) -> None:
    """Sum over j of C(n - j, m - 1) / j is C(n, m - 1) (H(n) - H(m - 1)), so the expectation has a closed form."""
    expected = relevant / (size - relevant + 1) * (harmonic(size) - harmonic(relevant - 1))
    assert scored("mrr", one_group(0, size, relevant))[0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("size", [2, 17, 300])
@pytest.mark.parametrize("above", [0, 1, 16, 40, 5_000_000])
@pytest.mark.parametrize("k", [None, 20, 5_000_010])
def test_reciprocal_rank_and_average_precision_match_fractions(size: int, above: int, k: int | None) -> None:
    suffix = "" if k is None else f"@{k}"
    places = range(1, (size if k is None else min(max(k - above, 0), size)) + 1)
    for relevant in {1, 2, min(size, 12), size}:
        judged = one_group(above, size, relevant)
        first = sum(
            (Fraction(math.comb(size - j, relevant - 1), math.comb(size, relevant) * (above + j)) for j in places),
            Fraction(0),
        )
        precisions = sum(
            (
                Fraction(relevant, size) * (1 + Fraction((j - 1) * (relevant - 1), max(size - 1, 1))) / (above + j)
                for j in places
            ),
            Fraction(0),
        )
        divisor = relevant if k is None else min(relevant, k)
        assert scored(f"mrr{suffix}", judged)[0] == pytest.approx(float(first), rel=1e-9, abs=1e-15)
        assert scored(f"map{suffix}", judged)[0] == pytest.approx(float(precisions / divisor), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("above", [0, 7])
def test_average_precision_of_a_tie_of_millions_matches_the_sum_over_its_places(above: int) -> None:
    size, relevant = 5_600_000, 100
    place = np.arange(1, size + 1)
    terms = relevant / size * (1 + (place - 1) * (relevant - 1) / (size - 1)) / (above + place)
    expected = math.fsum(terms.tolist()) / relevant
    assert scored("map", one_group(above, size, relevant))[0] == pytest.approx(expected, rel=1e-10)


def test_expected_first_rank_and_gain_of_a_tie_of_millions() -> None:
    size, relevant = 5_600_000, 100
    judged = one_group(3, size, relevant)
    assert scored("median_rank", judged) == pytest.approx((3 + (size + 1) / (relevant + 1), 4, 3 + size - relevant + 1))
    discounts = math.fsum(1 / math.log2(rank + 1) for rank in range(4, 11))
    ideal = math.fsum(1 / math.log2(rank + 1) for rank in range(1, 11))
    assert scored("ndcg@10", judged)[0] == pytest.approx(relevant * discounts / size / ideal, rel=1e-10)


# --- examples by hand -----------------------------------------------------------------------------------------------


def test_relevant_ids_outside_the_pool_stay_in_the_denominators() -> None:
    judged = judgments([Query(scores=(2, 1), grades=(0, 1), outside=(1,))])
    expected = {"hit@2": 1, "recall@2": 1 / 2, "precision@2": 1 / 2, "f1@2": 1 / 2, "mrr": 1 / 2, "map": 1 / 4}
    for name, value in expected.items():
        assert scored(name, judged)[0] == pytest.approx(value)
    assert scored("ndcg@2", judged)[0] == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))


def test_a_query_without_a_relevant_candidate_in_its_pool_scores_zero_and_ranks_behind_the_pool() -> None:
    judged = judgments([Query(scores=(1, 1, 0), grades=(0, 0, 0), outside=(1, 2))])
    for measure in MEASURES:
        nothing = 4.0 if measure.name == "median_rank" else 0.0
        assert scored(measure, judged) == (nothing, nothing, nothing)


def test_precision_divides_by_k_where_the_pool_is_smaller() -> None:
    assert scored("precision@5", judgments([Query(scores=(1, 0), grades=(1, 1))]))[0] == pytest.approx(2 / 5)


def test_the_median_is_over_queries_and_the_mean_over_all_others() -> None:
    per_query = np.array([1.0, 2.0, 30.0, 4.0])
    assert aggregate(Measure("median_rank"), per_query) == median(per_query.tolist()) == 3.0
    assert aggregate(Measure("mrr"), per_query) == 9.25


def test_hit_and_recall_differ_with_several_relevant_candidates() -> None:
    """A published recipe for "Recall@5" counts the retrieved share; the prose beside it asks for any retrieved one."""
    retrieved, relevant = [7, 3, 9, 0, 4, 8, 1, 2, 5, 6], {3, 4, 6, 8}
    recipe = len(relevant.intersection(retrieved[:5])) / len(relevant)
    prose = float(any(item in relevant for item in retrieved[:5]))
    grades = tuple(int(item in relevant) for item in retrieved)
    judged = judgments([Query(tuple(range(10, 0, -1)), grades)])
    assert scored("recall@5", judged)[0] == recipe == 0.5
    assert scored("hit@5", judged)[0] == prose == 1.0


def test_a_published_recipe_scores_one_for_a_random_model_where_the_definition_scores_chance() -> None:
    """It compares top-k indices (n, k) with labels (n,): at k = 1 every row meets the labels of all queries."""
    n = 400
    similarity = np.random.default_rng(0).random((n, n))
    labels = np.arange(n)
    top_1 = np.argsort(-similarity, axis=1)[:, :1]
    assert np.mean(np.any(top_1 == labels, axis=1)) == 1.0

    greater = (similarity > similarity[labels, labels][:, None]).sum(axis=1)
    judged = RankedJudgments(np.arange(n + 1), np.ones(n), greater, np.zeros(n, dtype=np.int64), np.full(n, n))
    hit = aggregate(Measure("hit", 1), score_queries(Measure("hit", 1), judged).value)
    assert hit == np.mean(top_1[:, 0] == labels)
    assert hit < 4 / n


# --- measures as values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_a_measure_prints_what_it_parses(measure: Measure) -> None:
    assert Measure.parse(str(measure)) == measure
    assert Measure.parse(f" {str(measure).upper()}\n") == measure
    assert pickle.loads(pickle.dumps(measure)) == measure


def test_a_measure_is_a_value() -> None:
    assert str(Measure("hit", 5)) == "hit@5"
    assert str(Measure("mrr")) == "mrr"
    assert Measure.parse("nDCG_Exp@5") == Measure("ndcg_exp", 5)
    assert len({Measure("hit", 5), Measure.parse("hit@5"), Measure("hit", 1)}) == 2
    unsorted = [Measure("mrr", 10), Measure("recall", 5), Measure("hit", 10), Measure("mrr"), Measure("hit", 5)]
    assert [str(measure) for measure in sorted(unsorted)] == ["hit@5", "hit@10", "mrr", "mrr@10", "recall@5"]
    assert Measure("hit", 5) <= Measure("hit", 5)
    with pytest.raises(AttributeError):
        Measure("hit", 5).k = 6  # type: ignore[misc]
    with pytest.raises(TypeError):
        _ = Measure("hit", 5) < "hit@5"


def test_only_ranks_are_better_when_lower() -> None:
    assert {measure.name for measure in MEASURES if not measure.higher_is_better} == {"median_rank"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "hit", "recall", "precision", "f1", "ndcg", "ndcg_exp", "median_rank@5", "R@1"),
        *("hit@", "hit@0", "mrr@0", "hit@-1", "hit@05", "hit@+5", "hit@1.0", "hit@5@5", "hit @5", "hit@1_0"),
        *("hit@\u0665", "hit@1000000000", "mrr@" + "9" * 5000),
    ],
)
def test_a_text_that_is_no_measure_is_named_with_the_cure(text: str) -> None:
    with pytest.raises(MeasureError) as caught:
        Measure.parse(text)
    message = str(caught.value)
    assert message.startswith(repr(text))
    assert "hit@k, recall@k, precision@k, f1@k, ndcg@k, ndcg_exp@k, mrr, mrr@k, map, map@k, median_rank" in message
    assert "\n" not in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "k"), [("hit", None), ("hit", 0), ("hit", True), ("hit", 1.0), ("median_rank", 1), ("", 1), ("HIT", 1)]
)
def test_a_measure_is_checked_when_made(name: str, k: object) -> None:
    with pytest.raises(MeasureError):
        Measure(name, k)  # type: ignore[arg-type]


def test_importing_measures_does_not_import_numpy() -> None:
    code = "import sys, omnirecall.protocol.measures; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- judgments that contradict themselves ---------------------------------------------------------------------------

SOUND = {
    "offsets": np.array([0, 1, 4]),
    "grades": np.array([1.0, 2.0, 1.0, 3.0]),
    "greater": np.array([0, 5, 5, -1]),
    "tied": np.array([0, 2, 2, 0]),
    "pool_size": np.array([1, 9]),
}


def test_sound_judgments_are_taken() -> None:
    RankedJudgments(**SOUND)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([0, 4])}, "offsets must have one entry more"),
        ({"offsets": np.array([0, 1, 3])}, "offsets must run from 0"),
        ({"offsets": np.array([1, 1, 4])}, "offsets must run from 0"),
        ({"offsets": np.array([0, 5, 4])}, "offsets must run from 0"),
        ({"offsets": np.array([0.0, 1.0, 4.0])}, "offsets must be a one-dimensional array of int64"),
        ({"grades": np.array([1, 2, 1, 3])}, "grades must be a one-dimensional array of float64"),
        ({"grades": np.array([1.0, 2.0, 1.0])}, "offsets must run from 0"),
        ({"tied": np.array([[0, 2, 2, 0]])}, "tied must be a one-dimensional array of int64"),
        ({"greater": [0, 5, 5, -1]}, "greater must be a one-dimensional array of int64"),
        ({"tied": np.array([0, 2, 2])}, "equally long"),
        ({"grades": np.array([1.0, 2.0, 0.0, 3.0])}, "query 1 has a grade"),
        ({"grades": np.array([np.nan, 2.0, 1.0, 3.0])}, "query 0 has a grade"),
        ({"grades": np.array([1.0, 2.0, np.inf, 3.0])}, "query 1 has a grade"),
        ({"greater": np.array([0, 5, 5, -2])}, "query 1 has a negative greater"),
        ({"tied": np.array([0, 2, -1, 0])}, "query 1 has a negative tied"),
        ({"pool_size": np.array([1, 7])}, "query 1 has greater \\+ tied beyond its pool_size"),
        ({"greater": np.array([1, 5, 5, -1])}, "query 0 has greater \\+ tied beyond its pool_size"),
        ({"pool_size": np.array([-1, 9])}, "query 0 has a negative pool_size"),
        ({"tied": np.array([0, 2, 3, 0])}, "query 1 has candidates with equally many above"),
        ({"tied": np.array([0, 0, 0, 0])}, "query 1 has more relevant candidates in a tie than candidates"),
        ({"greater": np.array([0, 4, 5, -1]), "tied": np.array([0, 1, 0, 0])}, "query 1 has two different scores"),
    ],
)
def test_contradictions_are_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RankedJudgments(**{**SOUND, **change})


def test_a_query_without_relevant_candidates_is_refused_by_its_index() -> None:
    judged = RankedJudgments(
        np.array([0, 1, 1]), np.ones(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.array([3, 3])
    )
    for measure in MEASURES:
        with pytest.raises(ValueError, match="query 1 has no relevant candidate"):
            score_queries(measure, judged)


def test_no_queries_have_no_scores_and_no_mean() -> None:
    none = np.zeros(0, dtype=np.int64)
    judged = RankedJudgments(np.array([0]), np.zeros(0), none, none, none)
    for measure in MEASURES:
        assert score_queries(measure, judged).value.shape == (0,)
    with pytest.raises(ValueError, match="hit@1 has no value over no queries"):
        aggregate(Measure("hit", 1), np.zeros(0))


def test_exponential_gain_refuses_grades_that_overflow() -> None:
    judged = RankedJudgments(
        np.array([0, 1]), np.array([2000.0]), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.array([3])
    )
    assert scored("ndcg@5", judged)[0] == 1.0
    with pytest.raises(ValueError, match=r"grades up to 1000, found 2000\.0"):
        score_queries(Measure("ndcg_exp", 5), judged)
