"""Counts for small pools per query: gather the pool, one matrix-vector product, exact scores for what is left open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omnirecall.ranking import exact
from omnirecall.ranking.counting import Targets
from omnirecall.ranking.filter import Block, Scratch
from omnirecall.ranking.inputs import Array, Floats, Ints, Lists64, Table
from omnirecall.ranking.topk import Best
from omnirecall.ranking.vectors import Dense

_ROWS_BYTES = 1 << 23
_MANY = 256
_IN_CACHE = 256


@dataclass
class Gathered:
    """One worker. `scale`, `reach`: as in `counting.Plan`."""

    dense: Dense
    targets: Targets
    best: Best
    inside: Lists64
    scale: Floats
    reach: Floats
    order: Array | None

    def __post_init__(self) -> None:
        self.greater = np.zeros(len(self.targets.rows), np.int64)
        self.tied = np.zeros(len(self.targets.rows), np.int64)
        self.scratch = Scratch()
        self.products, self.residual, self.slack = self.dense.unit_queries()
        self.step = max(256, _ROWS_BYTES // (4 * self.dense.dimension))

    def count(self, query: int) -> None:
        """Rank one query's pool."""
        first, last = self.inside.offsets[query], self.inside.offsets[query + 1]
        for start in range(first, last, self.step):
            self._count(query, self.inside.rows[start : min(start + self.step, last)])

    def finish(self) -> None:
        """Nothing is held back."""

    def _count(self, query: int, rows: Ints) -> None:
        dense, targets, best = self.dense, self.targets, self.best
        assert isinstance(dense.candidates, Table)
        assert dense.lengths is not None
        assert dense.odd is not None
        vectors, values = self._product(query, rows)
        lengths = dense.lengths[rows]
        if vectors.dtype != np.float32 or dense.odd[rows].any():
            # Rare: float64 tables and norms beyond float32. Exact scores for all.
            values, error = np.zeros(len(rows)), np.full(len(rows), np.inf)
        else:
            error = np.full(len(rows), self.slack + float(self.residual[query]))
            if dense.cosine:
                values /= lengths
            else:
                values /= self.reach[query]
                error *= lengths * (1 + self.slack) / self.reach[query]
        block = Block(rows, vectors, lengths, 1.0, dense.cosine)
        for pair in range(targets.offsets[query], targets.offsets[query + 1]):
            above = values - error > targets.high[pair]
            open_ = (values + error >= targets.low[pair]) & ~above & (rows != targets.rows[pair])
            self.greater[pair] += np.count_nonzero(above)
            where = np.flatnonzero(open_)
            if len(where):
                keys, _ = self._exact(block, where, query)
                self.greater[pair] += np.count_nonzero(keys > targets.keys[pair])
                self._ties(rows[where[keys == targets.keys[pair]]], pair)
        if not best.k:
            return
        low = values - error
        floor = np.partition(low, len(low) - best.k)[len(low) - best.k] if len(low) > best.k else -np.inf
        floor = max(floor - 1e-12, best.floor[query])
        where = np.flatnonzero(values + error >= floor - 1e-12)
        if len(where) <= 4 * best.k + 64 and np.isfinite(error).all():
            best.add(np.full(len(where), query), rows[where], values[where], error[where])
            return
        keys, raw = self._exact(block, where, query)
        rank_of = rows[where] if self.order is None else self.order[rows[where]]
        top = np.lexsort((rows[where], rank_of, -keys))[: best.k]
        best.add_exact(np.full(len(top), query), rows[where[top]], keys[top], raw[top])

    def _product(self, query: int, rows: Ints) -> tuple[Array, Floats]:
        """The gathered rows and their float32 products with the unit query, some at a time while they are in cache."""
        table = self.dense.candidates
        assert isinstance(table, Table)
        if table.values.dtype == np.float64:
            return table.take(rows), np.zeros(len(rows))  # all scored exactly
        vectors = self.scratch.numpy("rows", (len(rows), self.dense.dimension), np.float32)
        values = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), _IN_CACHE):
            part = slice(start, start + _IN_CACHE)
            if table.values.dtype == np.float32:
                table.take(rows[part], out=vectors[part])
            else:
                vectors[part] = table.take(rows[part])
            np.matmul(vectors[part], self.products[query], out=values[part])
        return vectors, values.astype(np.float64)

    def _ties(self, rows: Ints, pair: int) -> None:
        if self.order is None:
            self.tied[pair] += len(rows)
            return
        mine, theirs = self.order[rows], self.order[self.targets.rows[pair]]
        self.greater[pair] += np.count_nonzero(mine < theirs)
        self.tied[pair] += np.count_nonzero(mine == theirs)

    def _exact(self, block: Block, where: Ints, query: int) -> tuple[Floats, Floats]:
        """Tie keys and scores of some of the gathered rows; equal rows are scored once."""
        if len(where) < _MANY:
            raw = self.dense.exact(block, where, np.full(len(where), query))
        else:
            part = block.pick(where)
            firsts, inverse = self.dense.alike(part)
            raw = self.dense.exact(part, firsts, np.full(len(firsts), query))[inverse]
        return exact.tie_keys(raw / self.scale[query]), raw
