"""Measures as values, and what a query's ranks are worth under each of them.

A measure is a value such as ``hit@5``: it parses, prints, compares and hashes. A ranking enters as ``RankedJudgments``
(how many candidates score above, and how many score equal to, each relevant one) and leaves as ``Scores``.

Candidates with equal scores have no order. The value of a query is therefore the expectation over a uniformly random
order inside each tied group, in the closed forms of McSherry and Najork, "Computing Information Retrieval Performance
Measures Efficiently in the Presence of Tied Scores", ECIR 2008; the best and the worst order are scored beside it.

What each measure is, for a query with R relevant candidates (those outside the pool included) of which h are in the
top k:

    hit@k        1 if h > 0, else 0
    recall@k     h / R
    precision@k  h / k, also where the pool holds fewer than k candidates
    f1@k         2h / (k + R), the harmonic mean of precision@k and recall@k
    ndcg@k       DCG over the ideal DCG, gain = grade, discount = 1 / log2(rank + 1)   (Järvelin and Kekäläinen 2002)
    ndcg_exp@k   the same with gain = 2^grade - 1                                      (Burges et al. 2005)
    mrr, mrr@k   1 / rank of the first relevant candidate, 0 if it is not in the top k
    map          sum of the precisions at the ranks of the relevant candidates, over R (average precision)
    map@k        the same sum over ranks up to k, divided by min(R, k), as MMEB has it; trec_eval's AP@k divides by R
    median_rank  rank of the first relevant candidate, from 1; pool size + 1 if none is in the pool; summed up by the
                 median over the queries, the others by the mean
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import total_ordering
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["Measure", "MeasureError", "RankedJudgments", "Scores", "aggregate", "score_queries"]

LARGEST_CUT = 10**9 - 1
LARGEST_EXPONENT = 1000
"""The largest grade whose exponential gain stays a finite float64."""
NO_CUT = 2**62


class MeasureError(ValueError):
    """A text or a pair (name, k) that is no measure; the message says which measures there are."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Measure:
    """A measure by its name and, where it has one, its cut ``k``.

    Measures sort by name, then by k, the uncut one first. Raises MeasureError for an unknown name, a k where the
    measure takes none, or none where it needs one.
    """

    name: str
    k: int | None = None

    def __post_init__(self) -> None:
        if not _is_measure(self.name, self.k):
            raise MeasureError(_no_measure(str(self)))

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Read the printed form, e.g. ``ndcg@10``: any case, blanks around it allowed. Raises MeasureError."""
        printed = re.fullmatch(r"([A-Za-z0-9_]+)(?:@([1-9][0-9]{0,8}))?", text.strip())
        name = printed[1].lower() if printed else ""
        k = int(printed[2]) if printed and printed[2] else None
        if not _is_measure(name, k):
            raise MeasureError(_no_measure(text))
        return cls(name, k)

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Measure):
            return NotImplemented
        return (self.name, self.k or 0) < (other.name, other.k or 0)

    @property
    def higher_is_better(self) -> bool:
        """False for ranks, where the smaller value is the better one."""
        return _DEFINITIONS[self.name].higher_is_better


@dataclass(frozen=True, slots=True, eq=False)
class RankedJudgments:
    """For each query its relevant candidates and where they ranked.

    The pairs of query q are offsets[q] to offsets[q + 1] - 1, in any order. The arrays are checked once, here, and must
    not be changed afterwards. Raises ValueError, naming the query, where an array has another shape or dtype or where
    the numbers contradict each other (a tie that overlaps the next one or holds more relevant candidates than
    candidates, ...).
    """

    offsets: Ints
    """int64 (n_queries + 1,): starts at 0, never falls, ends at n_pairs."""
    grades: Floats
    """float64 (n_pairs,): the grade of each relevant candidate, above 0."""
    greater: Ints
    """int64 (n_pairs,): how many candidates score strictly higher; -1 for a relevant id outside the pool."""
    tied: Ints
    """int64 (n_pairs,): how many other candidates, relevant or not, score the same; ignored outside the pool."""
    pool_size: Ints
    """int64 (n_queries,): how many candidates were ranked for the query."""
    _groups: TieGroups = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_arrays(self)
        groups = _tie_groups(self)
        _check_groups(groups)
        object.__setattr__(self, "_groups", groups)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Per query, float64 (n_queries,) each: the expectation over the order of ties, and its best and worst order.

    ``best`` is what is better for the measure's user: the larger value, for ``median_rank`` the smaller.
    """

    value: Floats
    best: Floats
    worst: Floats


def score_queries(measure: Measure, judged: RankedJudgments) -> Scores:
    """Score every query. Raises ValueError, naming its index, for a query without any relevant candidate."""
    import numpy as np

    groups = judged._groups
    _refuse(groups.n_relevant == 0, np.arange(len(groups.n_relevant)), "has no relevant candidate; leave it out")
    score, k = _DEFINITIONS[measure.name].score, measure.k or NO_CUT
    value = score(groups, k)
    if not (groups.size > 1).any():
        return Scores(value, value.copy(), value.copy())
    best, worst = score(groups.relevant_first(), k), score(groups.relevant_last(), k)
    return Scores(value.clip(np.minimum(best, worst), np.maximum(best, worst)), best, worst)


def aggregate(measure: Measure, per_query: Floats) -> float:
    """One number over the queries, float64 (n_queries,): the mean, or the median for ``median_rank``.

    Raises ValueError where there is no query.
    """
    import numpy as np

    if len(per_query) == 0:
        raise ValueError(f"{measure} has no value over no queries; give at least one")
    return float(np.median(per_query) if _DEFINITIONS[measure.name].over_queries == "median" else np.mean(per_query))


@dataclass(frozen=True, slots=True, eq=False)
class TieGroups:
    """The relevant candidates in the pool, gathered by equal score: groups in the order of (query, rank).

    ``starts``, ``query``, ``above``, ``size``, ``relevant`` and ``relevant_above`` are int64 (n_groups,); ``grades``
    float64 (n_retrieved,), a group's own from its start on, falling; ``ideal_grades`` float64 (n_pairs,), all of a
    query's, falling; ``n_relevant`` and ``pool_size`` int64 (n_queries,).
    """

    grades: Floats
    starts: Ints
    query: Ints
    above: Ints
    """How many candidates rank above the group."""
    size: Ints
    """How many candidates the group holds."""
    relevant: Ints
    """How many of these are relevant."""
    relevant_above: Ints
    """How many relevant candidates rank above the group; 0 exactly for a query's first group."""
    ideal_grades: Floats
    n_relevant: Ints
    pool_size: Ints

    def inside(self, k: int) -> Ints:
        """How many places of each group are in the top k; int64 (n_groups,)."""
        return (k - self.above).clip(0, self.size)

    def sum_by_query(self, values: Floats) -> Floats:
        """Sums of float64 (n_groups,) over each query's groups; float64 (n_queries,)."""
        import numpy as np

        return np.bincount(self.query, values, len(self.n_relevant)).astype(np.float64, copy=False)

    def of_first_group(self, values: Floats, default: float | Floats) -> Floats:
        """Values, float64 (n_groups,), of each query's first group, the default for queries that have no group."""
        import numpy as np

        by_query = np.zeros(len(self.n_relevant)) + default
        first = self.relevant_above == 0
        by_query[self.query[first]] = values[first]
        return by_query

    def relevant_first(self) -> TieGroups:
        """The same without ties, in the best order: relevant candidates first, higher grades before lower ones."""
        return self._untied(self.above, self.grades)

    def relevant_last(self) -> TieGroups:
        """The same without ties, in the worst order: relevant candidates last, lower grades before higher ones."""
        import numpy as np

        mirrored = np.repeat(2 * self.starts + self.relevant - 1, self.relevant) - np.arange(len(self.grades))
        return self._untied(self.above + self.size - self.relevant, self.grades[mirrored])

    def _untied(self, above: Ints, grades: Floats) -> TieGroups:
        import numpy as np

        pairs = np.arange(len(grades))
        place = pairs - np.repeat(self.starts, self.relevant)
        return TieGroups(
            grades=grades,
            starts=pairs,
            query=np.repeat(self.query, self.relevant),
            above=np.repeat(above, self.relevant) + place,
            size=np.ones_like(pairs),
            relevant=np.ones_like(pairs),
            relevant_above=np.repeat(self.relevant_above, self.relevant) + place,
            ideal_grades=self.ideal_grades,
            n_relevant=self.n_relevant,
            pool_size=self.pool_size,
        )


def _hit(groups: TieGroups, k: int) -> Floats:
    return groups.of_first_group(_chance_of_any(groups.size, groups.relevant, groups.inside(k)), default=0.0)


def _recall(groups: TieGroups, k: int) -> Floats:
    return _relevant_in_top(groups, k) / groups.n_relevant


def _precision(groups: TieGroups, k: int) -> Floats:
    return _relevant_in_top(groups, k) / k


def _f1(groups: TieGroups, k: int) -> Floats:
    return 2 * _relevant_in_top(groups, k) / (k + groups.n_relevant)


def _ndcg(groups: TieGroups, k: int) -> Floats:
    return _normalised_gain(groups, k, lambda grades: grades)


def _ndcg_exp(groups: TieGroups, k: int) -> Floats:
    return _normalised_gain(groups, k, _exponential_gain)


def _reciprocal_rank(groups: TieGroups, k: int) -> Floats:
    import numpy as np

    inside = groups.inside(k)
    expected = _harmonic_between(groups.above, inside) / groups.size
    several = (groups.relevant > 1) & (groups.relevant_above == 0)
    if several.any():
        cases = np.stack([groups.above, groups.size, groups.relevant, inside], axis=1)[several]
        distinct, which = np.unique(cases, axis=0, return_inverse=True)
        expected[several] = np.array([_reciprocal_of_first(*case) for case in distinct.tolist()])[which.reshape(-1)]
    return groups.of_first_group(expected, default=0.0)


def _average_precision(groups: TieGroups, k: int) -> Floats:
    import numpy as np

    inside = groups.inside(k)
    precisions = inside * (groups.relevant_above + 1) / (groups.above + 1)
    tied = groups.size > 1
    precisions[tied] = _precisions_in_tie(
        groups.above[tied], groups.size[tied], groups.relevant[tied], groups.relevant_above[tied], inside[tied]
    )
    return groups.sum_by_query(precisions) / np.minimum(groups.n_relevant, k)


def _first_rank(groups: TieGroups, k: int) -> Floats:
    import numpy as np

    expected = groups.above + (groups.size + 1) / (groups.relevant + 1)
    return groups.of_first_group(expected, default=(groups.pool_size + 1).astype(np.float64))


def _relevant_in_top(groups: TieGroups, k: int) -> Floats:
    return groups.sum_by_query(groups.relevant * groups.inside(k) / groups.size)


def _chance_of_any(size: Ints, relevant: Ints, drawn: Ints) -> Floats:
    """Chance that ``drawn`` of ``size`` candidates, ``relevant`` of them relevant, include a relevant one.

    1 - C(size - relevant, drawn) / C(size, drawn), as a product over the smaller of relevant and drawn, which the
    hypergeometric law allows to swap; each factor is at most 1, so the product stays exact for millions.
    """
    import numpy as np

    fewer, more = np.minimum(relevant, drawn), np.maximum(relevant, drawn)
    none = np.ones(len(size))
    for i in range(fewer.max(initial=0)):
        none *= np.where(i < fewer, (size - more - i) / np.maximum(size - i, 1), 1.0)
    return 1.0 - none


def _harmonic_between(start: Ints, count: Ints) -> Floats:
    """1/(start+1) + ... + 1/(start+count): sixteen terms one by one, the rest by Euler and Maclaurin, to 1e-14."""
    import numpy as np

    total = np.zeros(len(start))
    for term in range(1, min(16, count.max(initial=0)) + 1):
        total += np.where(term <= count, 1.0 / (start + term), 0.0)
    rest = np.maximum(count - 16, 0)
    if not rest.any():
        return total
    middle: Floats = start + np.float64(16.5)
    return total + np.log1p(rest / middle) + _harmonic_correction(middle + rest) - _harmonic_correction(middle)


def _harmonic_correction(x: Floats) -> Floats:
    """H(x - 1/2) - log(x) - Euler's constant, from the expansion of the digamma function at the half (x > 16)."""
    s = x**-2
    return s * (1 / 24 - s * (7 / 960 - s * (31 / 8064 - s * (127 / 30720))))


def _reciprocal_of_first(above: int, size: int, relevant: int, inside: int) -> float:
    """Expected 1/rank of the first of several relevant candidates, 0 if it is not in the first ``inside`` places.

    The first one is at place j with chance C(size - j, relevant - 1) / C(size, relevant), here by its ratios.
    """
    import numpy as np

    before = np.arange(min(inside, size - relevant + 1))
    chance = np.cumprod(np.where(before == 0, relevant, size - relevant + 1 - before) / (size - before))
    return float(np.sum(chance / (above + 1 + before)))


def _precisions_in_tie(above: Ints, size: Ints, relevant: Ints, relevant_above: Ints, inside: Ints) -> Floats:
    """Expected sum of the precisions at the relevant candidates in the first ``inside`` places of each tied group.

    Place j holds a relevant one with chance relevant / size, and then relevant_above + 1 + (j - 1) * more of them rank
    at or above it, more = (relevant - 1) / (size - 1). Over the rank, above + j, this is a constant and a multiple of
    1 / rank, so the sum needs no loop.
    """
    more = (relevant - 1) / (size - 1)
    harmonic = _harmonic_between(above, inside)
    return relevant / size * ((relevant_above + 1 - more * (above + 1)) * harmonic + more * inside)


def _normalised_gain(groups: TieGroups, k: int, gain: Callable[[Floats], Floats]) -> Floats:
    import numpy as np

    last = min(k, max(groups.pool_size.max(initial=0), groups.n_relevant.max(initial=0)))
    discount_to = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, last + 2)))])

    upper, lower = np.minimum(groups.above + groups.size, last), np.minimum(groups.above, last)
    discount = (discount_to[upper] - discount_to[lower]) / groups.size
    dcg = groups.sum_by_query(np.add.reduceat(gain(groups.grades), groups.starts) * discount)

    query, above = _query_and_place(groups.n_relevant)
    ideal_discount = discount_to[np.minimum(above + 1, last)] - discount_to[np.minimum(above, last)]
    ideal = np.bincount(query, weights=gain(groups.ideal_grades) * ideal_discount, minlength=len(groups.n_relevant))
    return dcg / ideal


def _exponential_gain(grades: Floats) -> Floats:
    import numpy as np

    if grades.max(initial=0) > LARGEST_EXPONENT:
        raise ValueError(
            f"ndcg_exp takes grades up to {LARGEST_EXPONENT}, found {grades.max()}; use ndcg, whose gain is the grade"
        )
    return np.expm1(grades * math.log(2))


def _query_and_place(n_relevant: Ints) -> tuple[Ints, Ints]:
    """For every pair its query and its place among the query's pairs, from 0."""
    import numpy as np

    query = np.repeat(np.arange(len(n_relevant)), n_relevant)
    first = np.cumsum(n_relevant) - n_relevant
    return query, np.arange(len(query)) - first[query]


def _tie_groups(judged: RankedJudgments) -> TieGroups:
    import numpy as np

    n_relevant = np.diff(judged.offsets)
    query, _ = _query_and_place(n_relevant)
    retrieved = np.flatnonzero(judged.greater >= 0)
    ordered = retrieved[_order(query[retrieved], judged.greater[retrieved], -judged.grades[retrieved])]
    of_query, above, size = query[ordered], judged.greater[ordered], judged.tied[ordered] + 1

    opens = np.ones(len(ordered), dtype=np.bool_)
    opens[1:] = (np.diff(of_query) != 0) | (np.diff(above) != 0)
    starts = np.flatnonzero(opens)
    relevant = np.diff(starts, append=len(ordered))
    _refuse(
        size != np.repeat(size[starts], relevant),
        of_query,
        "has candidates with equally many above them but unequally many beside them (greater, tied)",
    )
    retrieved_to = np.cumsum(np.bincount(of_query, minlength=len(n_relevant)))
    first_of_query = np.concatenate([[0], retrieved_to]).astype(np.int64)[of_query[starts]]
    return TieGroups(
        grades=judged.grades[ordered],
        starts=starts,
        query=of_query[starts],
        above=above[starts],
        size=size[starts],
        relevant=relevant,
        relevant_above=starts - first_of_query,
        ideal_grades=judged.grades[_order(query, -judged.grades)],
        n_relevant=n_relevant,
        pool_size=judged.pool_size,
    )


def _order(*keys: Floats | Ints) -> Ints:
    """The order that sorts by the first key, then by the next ones; keys of one value each cost nothing."""
    import numpy as np

    telling = [key for key in keys if len(key) and key.min() < key.max()]
    return np.lexsort(telling[::-1]) if telling else np.arange(len(keys[0]))


def _check_arrays(judged: RankedJudgments) -> None:
    import numpy as np

    for name, dtype in (("offsets", "i8"), ("grades", "f8"), ("greater", "i8"), ("tied", "i8"), ("pool_size", "i8")):
        array = getattr(judged, name)
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.dtype(dtype):
            raise ValueError(f"{name} must be a one-dimensional array of {np.dtype(dtype)}")
    offsets, n_pairs, n_queries = judged.offsets, len(judged.grades), len(judged.pool_size)
    if len(offsets) != n_queries + 1:
        raise ValueError(f"offsets must have one entry more than pool_size, not {len(offsets)} for {n_queries}")
    if offsets[0] != 0 or offsets[-1] != n_pairs or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must run from 0 to the number of grades, {n_pairs}, without falling")
    if len(judged.greater) != n_pairs or len(judged.tied) != n_pairs:
        raise ValueError(
            f"grades, greater and tied must be equally long, not {n_pairs}, {len(judged.greater)} and "
            f"{len(judged.tied)}"
        )
    query, _ = _query_and_place(np.diff(offsets))
    pool, inside = judged.pool_size[query], judged.greater >= 0
    _refuse(judged.pool_size < 0, np.arange(n_queries), "has a negative pool_size")
    _refuse(~(np.isfinite(judged.grades) & (judged.grades > 0)), query, "has a grade that is not above 0 and finite")
    _refuse(judged.greater < -1, query, "has a negative greater other than -1, which means outside the pool")
    _refuse(inside & (judged.tied < 0), query, "has a negative tied")
    _refuse(inside & (judged.tied >= pool - judged.greater), query, "has greater + tied beyond its pool_size")


def _check_groups(groups: TieGroups) -> None:
    import numpy as np

    _refuse(groups.relevant > groups.size, groups.query, "has more relevant candidates in a tie than candidates (tied)")
    end = groups.above + groups.size
    overlaps = (np.diff(groups.query) == 0) & (groups.above[1:] < end[:-1])
    _refuse(overlaps, groups.query[1:], "has two different scores whose ranks overlap (greater, tied)")


def _refuse(bad: Bools, query: Ints, what: str) -> None:
    if bad.any():
        raise ValueError(f"query {query[bad.argmax()]} {what}")


class _Definition(NamedTuple):
    score: Callable[[TieGroups, int], Floats]
    cut: str
    higher_is_better: bool = True
    over_queries: str = "mean"


_DEFINITIONS = {
    "hit": _Definition(_hit, cut="required"),
    "recall": _Definition(_recall, cut="required"),
    "precision": _Definition(_precision, cut="required"),
    "f1": _Definition(_f1, cut="required"),
    "ndcg": _Definition(_ndcg, cut="required"),
    "ndcg_exp": _Definition(_ndcg_exp, cut="required"),
    "mrr": _Definition(_reciprocal_rank, cut="optional"),
    "map": _Definition(_average_precision, cut="optional"),
    "median_rank": _Definition(_first_rank, cut="none", higher_is_better=False, over_queries="median"),
}


def _is_measure(name: str, k: int | None) -> bool:
    if name not in _DEFINITIONS:
        return False
    if k is None:
        return _DEFINITIONS[name].cut != "required"
    return _DEFINITIONS[name].cut != "none" and type(k) is int and 1 <= k <= LARGEST_CUT


def _no_measure(text: str) -> str:
    printed = {"required": "{0}@k", "optional": "{0}, {0}@k", "none": "{0}"}
    known = ", ".join(printed[definition.cut].format(name) for name, definition in _DEFINITIONS.items())
    return f"{text!r} is not a measure; write one of {known}, with k from 1 to {LARGEST_CUT}"
