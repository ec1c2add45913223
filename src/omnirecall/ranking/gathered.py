"""Counts for pools of their own: only the scores of each pool are computed, and exact ones for what is left open."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from omnirecall.ranking import exact
from omnirecall.ranking.counting import Targets
from omnirecall.ranking.filter import Block, Scratch
from omnirecall.ranking.inputs import Array, Floats, Ints, Lists64, Table, widen
from omnirecall.ranking.topk import Best
from omnirecall.ranking.vectors import Dense

_PAIRS = 1 << 19  # of a pool's rows at work at a time: most of a table is then read once for many queries
_FEW_PAIRS = 1 << 12
_SPARSE = 4  # a table is read in order where a part of the pools meets at least this share of it
_BLOCK_BYTES = 1 << 23
_MANY = 256
_IN_CACHE = 256


@dataclass(frozen=True)
class Span:
    """Consecutive queries, `first` to `last` - 1, and the part of their pools that is at work: `start` to `stop`."""

    first: int
    last: int
    start: int
    stop: int


def spans(inside: Lists64, workers: int) -> Iterator[Span]:
    """All pools in parts of at most `_PAIRS` rows, the same for every worker where there are enough; big pools are cut."""
    most = int(min(_PAIRS, max(_FEW_PAIRS, -(-len(inside.rows) // workers))))
    query, n = 0, len(inside.offsets) - 1
    while query < n:
        start = int(inside.offsets[query])
        last = int(np.searchsorted(inside.offsets, start + most, side="right")) - 1
        if last > query:
            yield Span(query, last, start, int(inside.offsets[last]))
        else:
            last, stop = query + 1, int(inside.offsets[query + 1])
            for part in range(start, stop, most):
                yield Span(query, last, part, min(part + most, stop))
        query = last


def _torch_for_samples() -> Any:
    """torch, where it is loaded already and multiplies at chosen places, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and _multiplies_samples(torch) else None


@cache
def _multiplies_samples(torch: Any) -> bool:
    one = np.ones((1, 1), np.float32)
    with warnings.catch_warnings():  # that sparse matrices are in beta, said once
        warnings.simplefilter("ignore")
        try:
            return bool(_sampled_product(torch, np.array([0, 1]), np.array([0]), one, one)[0] == 1)
        except (RuntimeError, AttributeError):  # builds of torch differ in what they do with sparse matrices
            return False


def _sampled_product(torch: Any, offsets: Ints, columns: Ints, left: Array, right: Array) -> Array:
    """left[i].right[columns[j]], float32, for every j in offsets[i]:offsets[i + 1]; both float32 with d columns."""
    pattern = torch.sparse_csr_tensor(
        torch.from_numpy(offsets),
        torch.from_numpy(columns),
        torch.zeros(len(columns)),
        (len(left), len(right)),
        check_invariants=False,
    )
    found = torch.sparse.sampled_addmm(pattern, torch.from_numpy(left), torch.from_numpy(right).t(), beta=0.0)
    values: Array = found.values().numpy()
    return values


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
    torch: Any = field(default_factory=_torch_for_samples)

    def __post_init__(self) -> None:
        assert isinstance(self.dense.candidates, Table)
        self.table = self.dense.candidates
        self.greater = np.zeros(len(self.targets.rows), np.int64)
        self.tied = np.zeros(len(self.targets.rows), np.int64)
        self.scratch = Scratch()
        self.products, self.residual, self.slack = self.dense.unit_queries()

    def count(self, span: Span) -> None:
        """Rank the candidates of a span."""
        queries = np.arange(span.first, span.last)
        bounds = np.clip(self.inside.offsets[span.first : span.last + 1], span.start, span.stop) - span.start
        rows = self.inside.rows[span.start : span.stop]
        owner = np.repeat(queries, np.diff(bounds))
        values, error = self._values(rows, owner, bounds)
        for slot in range(int(np.diff(self.targets.offsets)[queries].max(initial=0))):
            self._count_slot(slot, rows, owner, bounds, values - error, values + error)
        if self.best.k:
            self._list(rows, owner, bounds, values, error)

    def finish(self) -> None:
        """Nothing is held back."""

    def _count_slot(self, slot: int, rows: Ints, owner: Ints, bounds: Ints, low: Floats, high: Floats) -> None:
        """Compare every candidate with the relevant one of its query that stands at `slot`."""
        targets = self.targets
        first = int(owner[0])
        queries = np.arange(first, int(owner[-1]) + 1)
        pair = targets.offsets[queries] + slot
        has = pair < targets.offsets[queries + 1]
        pair = np.where(has, pair, 0)
        spread = owner - first
        above = low > np.where(has, targets.high[pair], np.inf)[spread]
        near = (high >= targets.low[pair][spread]) & ~above & has[spread]
        where = np.flatnonzero(near)
        where = where[rows[where] != targets.rows[pair[spread[where]]]]
        total = np.concatenate([[0], np.cumsum(above)])
        self.greater[pair[has]] += (total[bounds[1:]] - total[bounds[:-1]])[has]
        if len(where) == 0:
            return
        keys, _ = self._exact(rows[where], owner[where])
        of = pair[spread[where]]
        np.add.at(self.greater, of[keys > targets.keys[of]], 1)
        equal = keys == targets.keys[of]
        self._ties(rows[where[equal]], of[equal])

    def _list(self, rows: Ints, owner: Ints, bounds: Ints, values: Floats, error: Floats) -> None:
        """Offer each query's best candidates."""
        best, low, high = self.best, values - error, values + error
        first, k = int(owner[0]), best.k
        floor = best.floor[first : int(owner[-1]) + 1].copy()
        for i in np.flatnonzero(np.diff(bounds) > k):
            mine = low[bounds[i] : bounds[i + 1]]
            floor[i] = max(floor[i], np.partition(mine, len(mine) - k)[len(mine) - k] - 1e-12)
        where = np.flatnonzero(high >= floor[owner - first] - 1e-12)
        number = np.bincount(owner[where] - first, minlength=len(floor))
        loose = np.isinf(error[where]) | (number > 4 * k + 64)[owner[where] - first]
        plain = where[~loose]
        best.add(owner[plain], rows[plain], values[plain], error[plain])
        where = where[loose]
        if len(where):
            keys, raw = self._exact(rows[where], owner[where])
            rank_of = rows[where] if self.order is None else self.order[rows[where]]
            place = np.lexsort((rows[where], rank_of, -keys, owner[where]))
            before = np.arange(len(place)) - np.searchsorted(owner[where], owner[where])
            top = place[before < k]
            best.add_exact(owner[where[top]], rows[where[top]], keys[top], raw[top])

    def _values(self, rows: Ints, owner: Ints, bounds: Ints) -> tuple[Floats, Floats]:
        """Scores in tie units, and their bounds."""
        dense = self.dense
        assert dense.lengths is not None
        assert dense.odd is not None
        if self.table.values.dtype == np.float64:
            return np.zeros(len(rows)), np.full(len(rows), np.inf)  # all scored exactly
        in_order = self.torch is not None and len(rows) * _SPARSE >= len(self.table.values)
        values = self._sampled(rows, owner) if in_order else self._taken(rows, bounds, int(owner[0]))
        lengths = dense.lengths[rows]
        error = self.slack + self.residual[owner]
        odd = dense.odd[rows]
        lengths[odd] = 1.0
        if dense.cosine:
            values = values / lengths
        else:
            values = values / self.reach[owner]
            error *= lengths * (1 + self.slack) / self.reach[owner]
        values[odd], error[odd] = 0.0, np.inf  # norms beyond float32: exact scores for all
        return values, error

    def _sampled(self, rows: Ints, owner: Ints) -> Floats:
        """float32 products by torch, candidate by candidate, so that the table is read once and in order."""
        table = self.table
        stored = rows if table.rows is None else table.rows[rows]
        order = np.sort((stored << 32) | np.arange(len(rows)))
        place = order & 0xFFFFFFFF
        order >>= 32
        first, last = int(owner[0]), int(owner[-1]) + 1
        column = owner[place] - first
        right = np.ascontiguousarray(self.products[first:last])
        values = np.empty(len(rows))
        step = max(1, _BLOCK_BYTES // (4 * self.dense.dimension))
        for start in range(int(order[0]), int(order[-1]) + 1, step):
            here = slice(*np.searchsorted(order, [start, start + step]))
            left = widen(table.values[start : start + step])
            left = left if left.flags.writeable and left.flags.c_contiguous else left.copy()
            offsets = np.zeros(len(left) + 1, np.int64)
            np.cumsum(np.bincount(order[here] - start, minlength=len(left)), out=offsets[1:])
            values[place[here]] = _sampled_product(self.torch, offsets, column[here], left, right)
        return values

    def _taken(self, rows: Ints, bounds: Ints, first: int) -> Floats:
        """float32 products of gathered rows, some at a time while they are in cache."""
        values = np.empty(len(rows), np.float32)
        vectors = self.scratch.numpy("rows", (_IN_CACHE, self.dense.dimension), np.float32)
        for i in range(len(bounds) - 1):
            for start in range(bounds[i], bounds[i + 1], _IN_CACHE):
                stop = min(start + _IN_CACHE, bounds[i + 1])
                part = self.table.take(rows[start:stop], out=vectors)
                np.matmul(part, self.products[first + i], out=values[start:stop])
        return values.astype(np.float64)

    def _ties(self, rows: Ints, pair: Ints) -> None:
        if self.order is not None:
            mine, theirs = self.order[rows], self.order[self.targets.rows[pair]]
            np.add.at(self.greater, pair[mine < theirs], 1)
            pair = pair[mine == theirs]
        np.add.at(self.tied, pair, 1)

    def _exact(self, rows: Ints, owner: Ints) -> tuple[Floats, Floats]:
        """Tie keys and scores of candidates with the queries of `owner`, which rises; many equal rows are scored once."""
        raw = np.empty(len(rows))
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        stops = np.append(starts[1:], len(rows))
        many = stops - starts >= _MANY
        few = np.repeat(~many, stops - starts)
        raw[few] = self.dense.exact_far(rows[few], owner[few])
        for start, stop in zip(starts[many], stops[many], strict=True):
            raw[start:stop] = self._exact_many(rows[start:stop], int(owner[start]))
        return exact.tie_keys(raw / self.scale[owner]), raw

    def _exact_many(self, rows: Ints, query: int) -> Floats:
        out = np.empty(len(rows))
        for start in range(0, len(rows), 4 * _MANY):
            part = rows[start : start + 4 * _MANY]
            block = Block(part, self.table.take(part), np.ones(len(part), np.float32), 1.0, self.dense.cosine)
            firsts, inverse = self.dense.alike(block)
            out[start : start + len(part)] = self.dense.exact(block, firsts, np.full(len(firsts), query))[inverse]
        return out
