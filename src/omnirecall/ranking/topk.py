"""The best candidates of every query, held as intervals until an exact score is needed."""

from __future__ import annotations

import threading

import numpy as np

from omnirecall.ranking.exact import KEY_UNIT
from omnirecall.ranking.inputs import Array, Floats, Ints

_SLACK = 1e-12  # half a key's width and more: an approximate score stands for a rounded one


class Best:
    """The top k per query from intervals that hold the candidates' scores (in tie units).

    `floor` (n,): a lower bound on the k-th best score of each query; what lies below cannot enter. It only rises, and
    readers may use a stale one. An exact score has its rounded value at both ends of the interval.
    """

    def __init__(self, n: int, k: int, order: Array | None) -> None:
        self.k, self.order = k, order
        self.floor = np.full(n, -np.inf if k else np.inf)
        self._lock = threading.Lock()
        self._parts: list[tuple[Ints, Ints, Floats, Floats, Floats]] = []
        self._held, self._limit = 0, 2 * n * k + 1000
        # The k-th best of the exact scores of one block: its key, and its tie order or row.
        self.held_key = np.full(n, -np.inf)
        self.held_rank = np.full(n, np.iinfo(np.int64).max)

    def raise_floor(self, queries: Ints, floor: Floats) -> None:
        """Note lower bounds on the k-th best score of some queries."""
        with self._lock:
            self.floor[queries] = np.maximum(self.floor[queries], floor - _SLACK)

    def hold(self, query: int, key: float, rank: int) -> None:
        """Note that k candidates of a query are known whose last has this key and tie order (or row)."""
        with self._lock:
            if key > self.held_key[query] or (key == self.held_key[query] and rank < self.held_rank[query]):
                self.held_key[query], self.held_rank[query] = key, rank
                self.floor[query] = max(self.floor[query], key / KEY_UNIT)

    def add(self, queries: Ints, rows: Ints, values: Floats, error: Floats | float) -> None:
        """Candidates whose scores, in tie units, lie within `error` of `values`."""
        keep = values + error >= self.floor[queries] - _SLACK
        queries, rows, values = queries[keep], rows[keep], values[keep]
        spread = (error[keep] if isinstance(error, np.ndarray) else error) + _SLACK
        self._add(queries, rows, values - spread, values + spread, np.full(len(rows), np.nan))

    def add_exact(self, queries: Ints, rows: Ints, keys: Floats, scores: Floats) -> None:
        """Candidates with their tie keys and scores."""
        rounded = keys / KEY_UNIT
        self._add(queries, rows, rounded, rounded, scores)

    def _add(self, *part: Array) -> None:
        if len(part[0]) == 0 or self.k == 0:
            return
        with self._lock:
            self._parts.append(part)  # type: ignore[arg-type]
            self._held += len(part[0])
            if self._held > self._limit:
                self._compact()
                self._limit = 2 * self._held + 1000

    def _compact(self) -> None:
        queries, rows, low, high, scores = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        by_low = _by_query_then(queries, low)
        first = np.searchsorted(queries[by_low], np.arange(len(self.floor)))
        last = np.append(first[1:], len(queries))
        full = np.flatnonzero(last - first >= self.k)
        kth = low[by_low[last[full] - self.k]] - 1e-9 * (self._blurred(low))
        self.floor[full] = np.maximum(self.floor[full], kth)
        keep = high >= self.floor[queries]
        settled = keep & ~np.isnan(scores)
        if settled.any():
            keep[np.flatnonzero(settled)[self._surplus(queries[settled], rows[settled], low[settled])]] = False
        self._parts = [(queries[keep], rows[keep], low[keep], high[keep], scores[keep])]
        self._held = int(np.count_nonzero(keep))

    @staticmethod
    def _blurred(low: Floats) -> float:
        return 1.0 if np.abs(low).max(initial=0.0) < 2 else 0.0

    def _ranked(self, queries: Ints, rows: Ints, low: Floats) -> tuple[Ints, Ints]:
        """The order by query, score, tie order and row, and each one's place within its query, both sorted."""
        keys = (rows, -low, queries) if self.order is None else (rows, self.order[rows], -low, queries)
        order = np.lexsort(keys)
        sorted_queries = queries[order]
        return order, np.arange(len(order)) - np.searchsorted(sorted_queries, sorted_queries)

    def _surplus(self, queries: Ints, rows: Ints, low: Floats) -> Ints:
        order, place = self._ranked(queries, rows, low)
        return order[place >= self.k]

    def unsettled(self) -> tuple[Ints, Ints]:
        """Queries and rows that may be among the best and whose exact scores are not known yet."""
        if not self._parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._compact()
        queries, rows, _, _, scores = self._parts[0]
        open_ = np.isnan(scores)
        self._parts = [tuple(column[~open_] for column in self._parts[0])]  # type: ignore[list-item]
        return queries[open_], rows[open_]

    def lists(self) -> tuple[Ints, Floats]:
        """Rows and scores, best first, (n, k), padded with -1 and NaN; every score must be exact by now."""
        ids = np.full((len(self.floor), self.k), -1, np.int64)
        top = np.full((len(self.floor), self.k), np.nan)
        if self._parts and self.k:
            queries, rows, low, _, scores = (np.concatenate(column) for column in zip(*self._parts, strict=True))
            order, place = self._ranked(queries, rows, low)
            order, place = order[place < self.k], place[place < self.k]
            ids[queries[order], place], top[queries[order], place] = rows[order], scores[order]
        return ids, top


def _by_query_then(queries: Ints, values: Floats) -> Ints:
    """Sorting order by query, then by value; values inside (-2, 2) may be out of order by 1e-9."""
    if np.abs(values).max(initial=0.0) < 2 and len(values) and queries.max() < 1 << 20:
        return np.argsort(4.0 * queries + values)
    return np.lexsort((values, queries))
