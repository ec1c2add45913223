"""Ranks by the definition, in plain Python floats: the judge of the kernel. Slow, and shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Rows = Sequence[Sequence[float]]


def ordered_sum(terms: list[float]) -> float:
    """The upper half is added to the lower half until one number is left."""
    terms = list(terms)
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        for i in range(len(terms) - half):
            terms[i] += terms[half + i]
        terms = terms[:half]
    return terms[0] if terms else 0.0


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return ordered_sum([x * y for x, y in zip(a, b, strict=True)])


def norm(a: Sequence[float]) -> float:
    return math.sqrt(dot(a, a))


def reference(
    queries: np.ndarray,
    candidates: np.ndarray,
    positives: Sequence[Sequence[int]],
    *,
    pool: Sequence[Sequence[int]] | None = None,
    exclude: Sequence[Sequence[int]] | None = None,
    similarity: str = "cosine",
    top_k: int = 10,
    order: Sequence[int] | None = None,
) -> list[tuple[list[int], list[int], list[int]]]:
    """(greater, tied, top rows) per query."""
    rows = candidates.astype(np.float64).tolist()
    lengths = [norm(row) for row in rows]
    out = []
    for i, query in enumerate(queries.astype(np.float64).tolist()):
        length = norm(query)
        mine = [int(p) for p in positives[i]]
        if similarity == "cosine":
            scores = [dot(row, query) / (length * lengths[j]) for j, row in enumerate(rows)]
        else:
            largest = max((lengths[p] for p in mine), default=0.0)
            scale = (length or 1.0) * (largest or 1.0)
            scores = [dot(row, query) / scale for row in rows]
        out.append(count(scores, mine, i, pool, exclude, top_k, order))
    return out


def count(
    scores: Sequence[float],
    positives: Sequence[int],
    i: int,
    pool: Sequence[Sequence[int]] | None,
    exclude: Sequence[Sequence[int]] | None,
    top_k: int,
    order: Sequence[int] | None,
) -> tuple[list[int], list[int], list[int]]:
    """Counts and top rows of one query from its scores in tie units."""
    keys = [float(np.rint(score * 1e12)) for score in scores]
    allowed = set(range(len(scores))) if pool is None else {int(j) for j in pool[i]}
    allowed -= set() if exclude is None else {int(j) for j in exclude[i]}
    greater, tied = [], []
    for p in positives:
        others = [j for j in allowed if j != p]
        above = sum(keys[j] > keys[p] for j in others)
        same = [j for j in others if keys[j] == keys[p]]
        if order is not None:
            above += sum(order[j] < order[p] for j in same)
            same = [j for j in same if order[j] == order[p]]
        greater.append(above)
        tied.append(len(same))
    rank_of = range(len(scores)) if order is None else order
    top = sorted(allowed, key=lambda j: (-keys[j], rank_of[j], j))[:top_k]
    return greater, tied, top
