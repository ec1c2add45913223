"""`rank`: vectors and judgments in, ranks out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from omnirecall.ranking import exact
from omnirecall.ranking.inputs import BFloat16, Lists, RankingError, read_lists, widen
from omnirecall.ranking.ranks import Ranks

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def rank(
    queries: Any,
    candidates: Any,
    positives: Lists,
    *,
    pool: Lists | None = None,
    exclude: Lists | None = None,
    similarity: str = "cosine",
    top_k: int = 10,
    device: str | None = None,
    order: npt.ArrayLike | None = None,
) -> Ranks:
    """Count, for every relevant candidate, how many of its query's pool score higher and how many tie."""
    if similarity not in ("cosine", "dot"):
        raise RankingError(f"similarity must be 'cosine' or 'dot', not {similarity!r}.")
    q, c = _table(queries, "queries", similarity), _table(candidates, "candidates", similarity)
    if q.shape[1] != c.shape[1]:
        raise RankingError(f"queries have {q.shape[1]} dimensions and candidates {c.shape[1]}.")
    n, m = len(q), len(c)
    if m == 0:
        raise RankingError("the pool is empty: there are no candidates.")
    offsets, rows = read_lists(positives, "positives", n, m)
    keys = None if order is None else np.asarray(order)
    if keys is not None and keys.shape != (m,):
        raise RankingError(f"order holds {keys.size} keys for {m} candidates.")
    allowed = np.ones((n, m), bool)
    if pool is not None:
        pool_offsets, pool_rows = read_lists(pool, "pool", n, m)
        owner = np.repeat(np.arange(n), np.diff(pool_offsets))
        allowed[:] = False
        allowed[owner, pool_rows] = True
        short = np.flatnonzero(allowed.sum(1) != np.diff(pool_offsets))
        if len(short):
            raise RankingError(f"the pool of query {short[0]} names a row twice.")
    pooled = allowed.copy()
    if exclude is not None:
        x_offsets, x_rows = read_lists(exclude, "exclude", n, m)
        allowed[np.repeat(np.arange(n), np.diff(x_offsets)), x_rows] = False
    empty = np.flatnonzero(~allowed.any(1))
    if len(empty):
        raise RankingError(f"the pool of query {empty[0]} is empty.")
    owner = np.repeat(np.arange(n), np.diff(offsets))
    _, first = np.unique(owner * m + rows, return_index=True)
    if len(first) != len(rows):
        pair = np.setdiff1d(np.arange(len(rows)), first)[0]
        raise RankingError(f"the positives of query {owner[pair]} name row {rows[pair]} twice.")
    for pair in np.flatnonzero(~allowed[owner, rows])[:1]:
        where = "excluded" if pooled[owner[pair], rows[pair]] else "outside its pool"
        raise RankingError(f"positive {rows[pair]} of query {owner[pair]} is {where}.")

    q_norms, c_norms = exact.norms(q), exact.norms(c)
    greater, tied = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    scores = np.zeros(len(rows))
    top_ids = np.full((n, top_k), -1, np.int64)
    top_scores = np.full((n, top_k), np.nan)
    for i in range(n):
        mine = rows[offsets[i] : offsets[i + 1]]
        s = exact.pair_dots(c, q[i : i + 1])
        if similarity == "cosine":
            s /= q_norms[i] * c_norms
            scale = 1.0
        else:
            scale = q_norms[i] * (c_norms[mine].max() if len(mine) else 1.0)
            if scale == 0.0:
                scale = q_norms[i] or 1.0
        key = exact.tie_keys(s / scale)
        here = np.flatnonzero(allowed[i])
        ranked = key[here]
        for j, row in enumerate(mine, start=int(offsets[i])):
            scores[j] = s[row]
            greater[j] = np.count_nonzero(ranked > key[row])
            same = here[ranked == key[row]]
            if keys is None:
                tied[j] = len(same) - 1
            else:
                greater[j] += np.count_nonzero(keys[same] < keys[row])
                tied[j] = np.count_nonzero(keys[same] == keys[row]) - 1
        best = np.lexsort((here, -ranked) if keys is None else (here, keys[here], -ranked))[:top_k]
        top_ids[i, : len(best)], top_scores[i, : len(best)] = here[best], s[here[best]]
    return Ranks(offsets, greater, tied, scores, top_ids, top_scores, allowed.sum(1))


def _table(values: Any, name: str, similarity: str) -> Floats:
    raw = widen(values.bits) if isinstance(values, BFloat16) else np.asarray(values)
    if raw.ndim != 2 or raw.dtype.kind != "f":
        raise RankingError(f"{name} must be a matrix of floating-point numbers, not {raw.dtype} of shape {raw.shape}.")
    table = raw.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(table).all(1))
    if len(bad):
        raise RankingError(f"row {bad[0]} of the {name} holds NaN or infinity.")
    if similarity == "cosine":
        zero = np.flatnonzero(~table.any(1))
        if len(zero):
            raise RankingError(f"row {zero[0]} of the {name} is a zero vector, which has no cosine.")
    return table
