"""Single-vector candidates: checked, cut into blocks, scored exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omnirecall.columns import scattered
from omnirecall.ranking import exact
from omnirecall.ranking.filter import (
    TINY,
    U32,
    Block,
    Center,
    Float32,
    Float64,
    Product,
    Queries,
    Scratch,
    centered,
    fast_products,
    gamma,
    preparation_error,
)
from omnirecall.ranking.inputs import Array, Floats, Ints, RankingError, Stream, Table

_BLOCK_BYTES = 1 << 22
_PLAIN = (1e-15, 1e15)  # norms that float32 arithmetic takes without over- or underflow
_DOUBLE = (1e-140, 1e140)  # norms that float64 arithmetic takes
_PAIRS = 512


def check_rows(rows: Array, start: int, name: str, cosine: bool) -> tuple[Array, Array]:
    """Norms (n,) float32 and which rows need float64 arithmetic (n,) bool; refuses rows that have no score.

    A norm is within gamma(d + 8) / 2 of the true one, relatively, where the row is not marked.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
        lengths = np.sqrt(squares)
    odd = ~((lengths > _PLAIN[0]) & (lengths < _PLAIN[1]))
    for i in np.flatnonzero(odd):
        row = rows[i : i + 1].astype(np.float64)
        if not np.isfinite(row).all():
            raise RankingError(f"row {start + i} of the {name} holds NaN or infinity.")
        if not row.any():
            if cosine:
                raise RankingError(f"row {start + i} of the {name} is a zero vector, which has no cosine.")
            continue
        largest = float(np.abs(row).max())
        if not _DOUBLE[0] < largest < _DOUBLE[1]:
            raise RankingError(f"row {start + i} of the {name} has a norm outside {_DOUBLE[0]:g} to {_DOUBLE[1]:g}.")
    return lengths.astype(np.float32), odd


@dataclass
class Dense:
    """Candidates with one vector each, read as a table or a stream, and the queries' vectors.

    `sizes` (n,): the queries' norms, 1 for a zero vector. `lengths`, `odd`: `check_rows` of every candidate, or None
    for a stream.
    """

    candidates: Table | Stream
    queries: Queries
    cosine: bool
    lengths: Array | None
    odd: Array | None

    def __post_init__(self) -> None:
        self.dimension = self.queries.rows.shape[1]
        self._origin = Center(np.zeros(self.dimension), 0.0, np.zeros(self.count))
        self._unit: Float32 | None = None
        self.sizes = np.where(self.queries.norms > 0, self.queries.norms, 1.0)
        self.slack = (
            gamma(self.dimension, U32) * 1.001
            + preparation_error(self.dimension, 0.0)
            + exact.definition_error(self.dimension)
        )

    @property
    def count(self) -> int:
        """How many queries there are."""
        return len(self.queries.rows)

    def step(self, top_k: int) -> int:
        """Rows in a block: enough to work fast, few enough to stay in the cache."""
        most = max(64, _BLOCK_BYTES // (4 * max(1, self.dimension)))
        wanted = max(1024, (1 << 22) // max(1, self.count))
        return int(max(4 * top_k, min(most, wanted)))

    def blocks(self, step: int) -> Iterator[tuple[int, Array]]:
        """(first row, rows) in turn."""
        if isinstance(self.candidates, Stream):
            yield from self.candidates.blocks(step, self.dimension)
            return
        for start in range(0, len(self.candidates), step):
            yield start, self.candidates.block(start, min(start + step, len(self.candidates)))

    def read(self, start: int, rows: Array) -> list[Block]:
        """A piece of the candidates as blocks: one, or under the dot product one for each size of norm."""
        stop = start + len(rows)
        if self.lengths is None or self.odd is None:
            lengths, odd = check_rows(rows, start, "candidates", self.cosine)
        else:
            lengths, odd = self.lengths[start:stop], self.odd[start:stop]
        ids = np.arange(start, stop)
        if self.cosine:
            inverse = 1 / (exact.norms(rows) if odd.any() else lengths)
            return [Block(ids, rows, inverse, 1.0, True)]
        true = exact.norms(rows) if odd.any() else lengths * (1 + gamma(self.dimension + 8, U32))
        classes = np.round(np.log2(np.maximum(true, TINY**5)))
        blocks = []
        for size in np.unique(classes):
            where = np.flatnonzero(classes == size)
            unit = float(true[where].max()) * (1 + 1e-9) or 1.0
            kind = np.float32 if _PLAIN[0] < unit < _PLAIN[1] else np.float64
            inverse = np.full(len(where), 1 / unit, kind)
            blocks.append(Block(ids[where], rows if len(where) == len(rows) else rows[where], inverse, unit, False))
        return blocks

    def pieces(self, top_k: int) -> Iterator[list[Block]]:
        """All candidates as blocks, a few at a time."""
        for start, rows in self.blocks(self.step(top_k)):
            yield self.read(start, rows)

    def center(self, sample: Block) -> Center:
        """The mean of a sample, in the candidates' own units under the dot product."""
        unit_rows = centered(sample, self._origin)
        vector = unit_rows.mean(axis=0, dtype=np.float64) * sample.unit
        return Center(vector, float(np.linalg.norm(vector)) * (1 + 1e-9), self.queries.dot(vector))

    def products(self, center: Center, sample: Block, device: str | None, n_candidates: int) -> list[Product]:
        """The products worth having, coarsest first; the last is float64."""
        work = float(len(self.queries.rows)) * n_candidates * self.dimension
        fine = Float32(self.queries, center)
        return [*fast_products(self.queries, center, sample, device, work), fine, Float64(self.queries, center)]

    def exact(self, block: Block, where: Ints, queries: Ints) -> Floats:
        """Exact scores of rows of a block, pair by pair: cosines, or dot products."""
        return self.exact_rows(block.rows, where, queries)

    def exact_rows(self, rows: Array, where: Ints, queries: Ints) -> Floats:
        """Exact scores of `rows[where]` with `queries`, pair by pair."""
        dots = exact.pair_dots(rows, self.queries.rows, where, queries)
        if self.cosine:
            used, back = np.unique(where, return_inverse=True)
            dots /= self.queries.norms[queries] * exact.norms(rows[used])[back]
        return dots

    def exact_far(self, where: Ints, queries: Ints) -> Floats:
        """Exact scores of candidates anywhere in the table, pair by pair, in bounded memory."""
        assert isinstance(self.candidates, Table)
        out = np.empty(len(where))
        by_row = np.argsort(where, kind="stable")
        for start in range(0, len(where), _PAIRS):
            part = by_row[start : start + _PAIRS]
            used, back = np.unique(where[part], return_inverse=True)
            out[part] = self.exact_rows(self.candidates.take(used), back, queries[part])
            scattered(self.candidates.nbytes, len(used))
        return out

    def unit_queries(self) -> tuple[Array, Floats, float]:
        """Unit query rows as float32, their residuals, and the bound on a product with a candidate over its norm."""
        if self._unit is None:
            self._unit = Float32(self.queries, self._origin)
        return self._unit.rows, self._unit.residual, self.slack

    def refine(self, block: Block, where: Ints, queries: Ints, scratch: Scratch) -> tuple[Floats, float]:
        """Scores over |q| and the block's unit, from float32 products of gathered rows, and their bound."""
        unit, residual, slack = self.unit_queries()
        plain = block.rows.dtype == np.float32 and block.inverse.dtype == np.float32
        out = np.empty(len(where))
        step = max(1, (1 << 20) // (4 * max(1, self.dimension)))
        for start in range(0, len(where), step):
            part = where[start : start + step]
            shape = (len(part), self.dimension)
            if plain:
                left = block.rows.take(part, axis=0, out=scratch.numpy("left", shape, np.float32), mode="clip")
            else:
                left = centered(block.pick(part), self._origin)
            right = scratch.numpy("right", shape, np.float32)
            unit.take(queries[start : start + step], axis=0, out=right, mode="clip")
            out[start : start + step] = np.einsum("ij,ij->i", left, right)
        if plain:
            out *= block.inverse[where]
        return out, slack + float(residual.max(initial=0.0))

    def alike(self, block: Block) -> tuple[Ints, Ints]:
        """The first of each group of identical rows, and each row's group."""
        rows = np.ascontiguousarray(block.rows)
        whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
        _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
        # Keep the groups in row order, as blocks are.
        order = np.argsort(first)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return first[order], back[inverse.ravel()]
