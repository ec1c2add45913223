"""Late interaction: several vectors per item, scored by MaxSim (ColBERT, Khattab and Zaharia, SIGIR 2020).

The score of a query and a candidate is the mean over the query's vectors of the largest similarity to any of the
candidate's vectors. A maximum moves by no more than what it is taken over, so a bound on the product of two vectors
(see `filter`) bounds the maximum too, and the mean over the query's vectors; only the sum adds its own rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from omnirecall.ranking import exact
from omnirecall.ranking.filter import (
    U32,
    U64,
    Block,
    Center,
    Float32,
    Float64,
    Product,
    Queries,
    Ready,
    Scratch,
    gamma,
)
from omnirecall.ranking.inputs import Array, Floats, Ints, Ragged, RankingError, Table, as_rows, read_table
from omnirecall.ranking.vectors import check_rows

_BLOCK_VECTORS = 8192
_PRODUCT_BYTES = 1 << 24


@dataclass(frozen=True)
class Items:
    """Checked `Ragged` items: their vectors and where each item's begin, with `check_rows` of every vector."""

    table: Table
    offsets: Ints
    lengths: Array
    odd: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def vectors(self, items: Ints) -> tuple[Array, Ints]:
        """The vectors of some items, one after the other, and the offsets of each item's."""
        counts = self.offsets[items + 1] - self.offsets[items]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[items] - offsets[:-1], counts)
        return self.table.take(rows), offsets


def read_items(values: Ragged, name: str, cosine: bool) -> Items:
    """Check offsets and vectors; every item must have at least one vector."""
    table = read_table(values.values, name)
    offsets = as_rows(values.offsets, f"{name} offsets")
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(table):
        raise RankingError(f"the offsets of the {name} must rise from 0 to the number of vectors, {len(table)}.")
    bare = np.flatnonzero(np.diff(offsets) <= 0)
    if len(bare):
        raise RankingError(f"item {bare[0]} of the {name} has no vectors.")
    lengths, odd = np.empty(len(table), np.float32), np.empty(len(table), bool)
    for start in range(0, len(table), _BLOCK_VECTORS):
        stop = min(start + _BLOCK_VECTORS, len(table))
        try:
            lengths[start:stop], odd[start:stop] = check_rows(table.block(start, stop), start, name, cosine)
        except RankingError as error:
            raise RankingError(f"in the vectors of the {name}, {error}") from None
    return Items(table, offsets, lengths, odd)


@dataclass
class Bag(Block):
    """A block of candidates with several vectors each: those of item i are `rows[offsets[i]:offsets[i + 1]]`."""

    offsets: Ints = None  # type: ignore[assignment]

    def pick(self, where: Ints) -> Bag:
        counts = self.offsets[where + 1] - self.offsets[where]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[where] - offsets[:-1], counts)
        return Bag(self.ids[where], self.rows[rows], self.inverse[rows], self.unit, self.cosine, {}, offsets)


@dataclass
class ReadyBag:
    """A prepared block: its vectors, and where each candidate's begin."""

    vectors: Ready
    offsets: Ints
    left_over: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class MaxSim:
    """MaxSim from a product of vectors, `Float32` or `Float64`: largest per candidate, mean per query.

    `factor`: the length of the longest query vector; bounds for unit vectors grow by as much.
    """

    coarse = False

    def __init__(self, vectors: Float32 | Float64, offsets: Ints, u: float, factor: float) -> None:
        self.inner, self.offsets, self.factor = vectors, offsets, factor
        self.name, self.lowest = vectors.name, vectors.lowest
        self.at_most, self.at_least, self.values = vectors.at_most, vectors.at_least, vectors.values
        longest = int(np.diff(offsets).max(initial=1))
        # Unit vectors have similarities up to 1; the sum of a query's rounds once for each, and its mean once.
        self.sum_error = 1.01 * gamma(longest + 2, u) + exact.definition_error(longest)

    def prepare(self, block: Block) -> ReadyBag:
        assert isinstance(block, Bag)
        return ReadyBag(self.inner.prepare(block), block.offsets)

    def scores(self, ready: ReadyBag, queries: Ints | slice, scratch: Scratch) -> Array:
        vectors, offsets = ready.vectors, ready.offsets
        chosen = np.arange(len(self.offsets) - 1)[queries]
        kind = np.float32 if self.name == "float32" else np.float64
        out = scratch.numpy("means", (len(offsets) - 1, len(chosen)), kind)
        ends = np.cumsum(self.offsets[chosen + 1] - self.offsets[chosen])
        most = max(1, _PRODUCT_BYTES // (np.dtype(kind).itemsize * len(vectors.rows)))
        start = 0
        while start < len(chosen):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
            part = chosen[start:stop]
            counts = self.offsets[part + 1] - self.offsets[part]
            first = np.cumsum(counts) - counts
            rows = np.arange(counts.sum()) + np.repeat(self.offsets[part] - first, counts)
            products = self.inner.scores(vectors, rows, scratch)
            largest = np.maximum.reduceat(products, offsets[:-1], axis=0)
            out[:, start:stop] = np.add.reduceat(largest, first, axis=1) / counts.astype(kind)
            start = stop
        return out

    def unit(self, queries: Ints | slice) -> Floats:
        return np.ones(len(self.offsets[:-1][queries]))

    def error(self, ready: ReadyBag, queries: Ints | slice) -> Floats:
        worst = self.inner.error(ready.vectors, slice(None)).max(initial=0.0)
        return np.full(len(self.offsets[:-1][queries]), self.factor * (worst * 1.01 + self.sum_error))


class Late:
    """Candidates and queries of several vectors each; stands where `vectors.Dense` does."""

    def __init__(self, queries: Items, candidates: Items, cosine: bool) -> None:
        self.query_items, self.candidates, self.cosine = queries, candidates, cosine
        self.count, self.dimension = len(queries), queries.table.dimension
        rows = queries.table.block(0, len(queries.table))
        norms = exact.norms(rows)
        counts = np.diff(queries.offsets)
        # Under the dot product a query's vectors keep their sizes relative to their mean.
        mean = np.add.reduceat(norms, queries.offsets[:-1]) / counts if len(counts) else np.zeros(0)
        self.sizes = np.ones(len(counts)) if cosine else np.where(mean > 0, mean, 1.0)
        self.vectors = Queries(rows, norms)
        self.scaled = Queries(rows, norms if cosine else np.repeat(self.sizes, counts))
        self.largest = 1.0 if cosine else float((norms / self.scaled.norms).max(initial=1.0))

    def blocks(self, step: int) -> Iterator[tuple[int, int]]:
        """(first item, last item + 1) in turn: `step` vectors, or one item that has more."""
        offsets, start = self.candidates.offsets, 0
        while start < len(self.candidates):
            stop = int(np.searchsorted(offsets, offsets[start] + step, side="right")) - 1
            stop = max(start + 1, stop)
            yield start, stop
            start = stop

    def read(self, start: int, stop: int) -> list[Block]:
        """The items start to stop as a block."""
        ids = np.arange(start, stop)
        first, last = int(self.candidates.offsets[start]), int(self.candidates.offsets[stop])
        rows = self.candidates.table.block(first, last)
        lengths, odd = self.candidates.lengths[first:last], bool(self.candidates.odd[first:last].any())
        offsets = self.candidates.offsets[start : stop + 1] - first
        norms: Array = exact.norms(rows) if odd else lengths
        if self.cosine:
            return [Bag(ids, rows, 1 / norms, 1.0, True, {}, offsets)]
        unit = float(norms.max()) * (1 + gamma(self.dimension + 8, U32)) or 1.0
        inverse = np.full(len(rows), 1 / unit, np.float64 if odd else np.float32)
        return [Bag(ids, rows, inverse, unit, False, {}, offsets)]

    def pieces(self, top_k: int) -> Iterator[list[Block]]:
        """All candidates as blocks, a few at a time."""
        for start, stop in self.blocks(_BLOCK_VECTORS):
            yield self.read(start, stop)

    def center(self, sample: Block) -> Center:
        """None: what is taken out of a candidate would differ between a query's vectors."""
        return Center(np.zeros(self.dimension), 0.0, np.zeros(self.count))

    def products(self, center: Center, sample: Block, device: str | None, n_candidates: int) -> list[Product]:
        """float32 and float64."""
        flat = Center(center.vector, 0.0, np.zeros(len(self.vectors.rows)))
        offsets = self.query_items.offsets
        kinds = ((Float32(self.scaled, flat), U32), (Float64(self.scaled, flat), U64))
        return [MaxSim(inner, offsets, u, self.largest) for inner, u in kinds]

    def exact(self, block: Block, where: Ints, queries: Ints) -> Floats:
        """Exact scores of a block's items at `where` with `queries`, pair by pair."""
        assert isinstance(block, Bag)
        out = np.empty(len(where))
        for i, (item, query) in enumerate(zip(where.tolist(), queries.tolist(), strict=True)):
            out[i] = self._maxsim(block.rows[block.offsets[item] : block.offsets[item + 1]], query)
        return out

    def exact_far(self, where: Ints, queries: Ints) -> Floats:
        """Exact scores of items anywhere, pair by pair."""
        out = np.empty(len(where))
        for i, (item, query) in enumerate(zip(where.tolist(), queries.tolist(), strict=True)):
            offsets = self.candidates.offsets
            out[i] = self._maxsim(self.candidates.table.block(int(offsets[item]), int(offsets[item + 1])), query)
        return out

    def _maxsim(self, rows: Array, query: int) -> float:
        """Float64 products tell which vectors may be a maximum; those are scored exactly, then summed in order."""
        first, last = self.query_items.offsets[query], self.query_items.offsets[query + 1]
        mine, norms = self.vectors.rows[first:last], self.vectors.norms[first:last]
        theirs = exact.norms(rows) if self.cosine or self.dimension == 0 else np.ones(len(rows))
        lengths = theirs if self.cosine else np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        near = mine.astype(np.float64) @ rows.astype(np.float64).T
        bound = (
            norms[:, None] * lengths * (1.01 * gamma(self.dimension + 8, U64) + exact.definition_error(self.dimension))
        )
        if self.cosine:
            over = norms[:, None] * theirs
            near, bound = near / over, bound / over
        vector, row = np.nonzero(near + bound >= (near - bound).max(axis=1, keepdims=True))
        dots = exact.pair_dots(mine, rows, vector, row)
        if self.cosine:
            dots /= norms[vector] * theirs[row]
        largest = np.full((1, len(mine)), -np.inf)
        np.maximum.at(largest[0], vector, dots)
        return float(exact.ordered_sum(largest)[0] / len(mine))

    def lengths(self, items: Ints) -> Floats:
        """The norm of the longest vector of each item."""
        out = np.empty(len(items))
        for i, item in enumerate(items.tolist()):
            offsets = self.candidates.offsets
            out[i] = exact.norms(self.candidates.table.block(int(offsets[item]), int(offsets[item + 1]))).max()
        return out

    def refine(self, block: Block, where: Ints, queries: Ints, scratch: Scratch) -> None:
        """The products are float32 at least."""

    def alike(self, block: Block) -> tuple[Ints, Ints]:
        """The first of each group of identical items, and each item's group."""
        assert isinstance(block, Bag)
        seen: dict[bytes, int] = {}
        firsts: list[int] = []
        group = np.empty(len(block.ids), np.int64)
        for i in range(len(block.ids)):
            content = block.rows[block.offsets[i] : block.offsets[i + 1]].tobytes()
            group[i] = seen.setdefault(content, len(firsts))
            if group[i] == len(firsts):
                firsts.append(i)
        return np.array(firsts), group
