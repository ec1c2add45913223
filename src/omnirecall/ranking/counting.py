"""Counts over blocks of a shared pool: a fast product decides what it can, exact scores decide the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from omnirecall.ranking import exact
from omnirecall.ranking.filter import Block, Center, Product, Scratch
from omnirecall.ranking.inputs import Array, Floats, Ints
from omnirecall.ranking.topk import Best

_GROUP = 16
_SCORES_BYTES = 1 << 23
_SORT_FROM = 12
_SETTLE_QUERIES = 128
_SAMPLE = 512
_ASIDE = 512
_DEEP = 1 / 500  # listing one pair costs as much as counting 500
_OPEN_COST = 80  # time to take up one open pair, in pairs of a float32 block product

_Made = TypeVar("_Made")


class Scorer(Protocol):
    """What the counting needs to know of vectors: exact scores, and better ones than a coarse product's."""

    def exact(self, block: Block, where: Ints, queries: Ints) -> Floats:
        """Exact scores of the block's rows at `where` with `queries`, pair by pair."""
        ...

    def refine(self, block: Block, where: Ints, queries: Ints, scratch: Scratch) -> tuple[Floats, float] | None:
        """The same to float32 precision, over |q| and the block's unit, with a bound; None if the product did that."""
        ...

    def alike(self, block: Block) -> tuple[Ints, Ints]:
        """For each row of the block, the place of an equal row in a list of unlike rows: (places of those, inverse)."""
        ...


@dataclass
class Targets:
    """The relevant candidates: pairs of query and row, grouped by query, with the borders of their ties.

    `low`, `high`: the scores, in tie units, that round to the pair's key lie between them. `least` (n,): the smallest
    `low` of each query, infinite where it has no relevant candidate.
    """

    offsets: Ints
    rows: Ints
    keys: Floats
    low: Floats = field(init=False)
    high: Floats = field(init=False)
    least: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.low, self.high = (self.keys - 0.5) / exact.KEY_UNIT, (self.keys + 0.5) / exact.KEY_UNIT
        n = len(self.offsets) - 1
        self.owner = np.repeat(np.arange(n), np.diff(self.offsets))
        self.least = np.full(n, np.inf)
        np.minimum.at(self.least, self.owner, self.low)
        # Pairs by query and score, for looking up many scores at once; scores beyond +-1.5 meet no border.
        self.sorted = np.lexsort((self.keys, self.owner))
        self._ladder = 4.0 * self.owner[self.sorted] + self.keys[self.sorted] / exact.KEY_UNIT

    def place(self, queries: Ints, values: Floats) -> Ints:
        """How many of the sorted pairs lie below (query, value), to about 1e-9."""
        place: Ints = np.searchsorted(self._ladder, 4.0 * queries + np.clip(values, -1.5, 1.5))
        return place


@dataclass
class Plan:
    """All that workers share. `reach` (n,): tie units per |q| (1 under cosine).

    `level` (n,): which product each query is at. `deep` (n,): whether so few candidates beat its relevant ones that they
    are listed one by one, instead of counted.
    `left_out`: pairs (rows, queries) to leave out, sorted by row. `inside`: pairs of per-query pools, sorted by row,
    or None where the whole table is the pool. `settle_now`: rows cannot be read again later.
    """

    products: Sequence[Product]
    scorer: Scorer
    targets: Targets
    best: Best
    scale: Floats
    reach: Floats
    center: Center
    level: Ints
    deep: Array
    left_out: tuple[Ints, Ints]
    inside: tuple[Ints, Ints] | None
    order: Array | None
    settle_now: bool


class Counter:
    """One worker: takes blocks, adds to its own counts, shares the plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.greater = np.zeros(len(plan.targets.rows), np.int64)
        self.tied = np.zeros(len(plan.targets.rows), np.int64)
        self.scratch = Scratch()
        self._aside: dict[int, tuple[Ints, list[Block]]] = {}

    def count(self, block: Block) -> None:
        """Rank a block's rows against every query, each at the level that suits it."""
        levels = self.plan.level.copy()
        for level in np.unique(levels):
            self._at_level(int(level), block, np.flatnonzero(levels == level))

    def _at_level(self, level: int, block: Block, queries: Ints) -> None:
        if len(block.ids) == 0 or len(queries) == 0:
            return
        if level == len(self.plan.products) - 1:
            for start in range(0, len(queries), _SETTLE_QUERIES):
                self._settle(block, queries[start : start + _SETTLE_QUERIES])
            return
        product = self.plan.products[level]
        if product.name not in block.prepared:
            block.prepared[product.name] = product.prepare(block)
        ready = block.prepared[product.name]
        tile = max(64, _SCORES_BYTES // (4 * len(block.ids)))
        coarse = [self._filter(product, ready, block, queries[i : i + tile]) for i in range(0, len(queries), tile)]
        too_coarse = np.concatenate(coarse)
        if len(too_coarse):
            # The next product takes over, for this block and those that follow.
            self.plan.level[too_coarse] = np.maximum(self.plan.level[too_coarse], level + 1)
            self._at_level(level + 1, block, too_coarse)
        if len(ready.left_over):
            rest = np.setdiff1d(queries, too_coarse, assume_unique=True)
            self._set_aside(level, rest, block.pick(ready.left_over))

    def _set_aside(self, level: int, queries: Ints, block: Block) -> None:
        """Keep rows that a product left over until there are enough of them for the next."""
        held = self._aside.get(level)
        if held is not None and not (np.array_equal(held[0], queries) and held[1][0].like(block)):
            self._take_up(level)
        blocks = self._aside.setdefault(level, (queries, []))[1]
        blocks.append(block)
        if sum(len(part.ids) for part in blocks) >= _ASIDE:
            self._take_up(level)

    def _take_up(self, level: int) -> None:
        queries, blocks = self._aside.pop(level)
        self._at_level(level + 1, Block.join(blocks), queries)

    def finish(self) -> None:
        """Count what was set aside; coarser levels first, as they may set rows aside for finer ones."""
        for level in range(len(self.plan.products)):
            if level in self._aside:
                self._take_up(level)

    def _filter(self, product: Product, ready: object, block: Block, queries: Ints) -> Ints:
        """Count what the product decides, settle the rest; returns queries for which that would be too many."""
        plan, targets = self.plan, self.plan.targets
        n, b = len(queries), len(block.ids)
        together = int(queries[-1]) - int(queries[0]) == n - 1
        chosen: Ints | slice = slice(int(queries[0]), int(queries[-1]) + 1) if together else queries
        scores = product.scores(ready, chosen, self.scratch)
        self._leave_out(product, scores, block, queries, ready.left_over)  # type: ignore[attr-defined]
        frame = _Frame(product, plan, block, queries, chosen, ready, self.scratch)

        unknown = np.flatnonzero(plan.best.floor[queries] == -np.inf)
        if len(unknown):
            kth = _kth_largest(product, scores, unknown, plan.best.k)
            value = frame.value(kth, unknown) - frame.error[unknown] / frame.ratio[unknown]
            plan.best.raise_floor(queries[unknown], value)
        floor = plan.best.floor[queries]
        floor = np.where(plan.deep[queries], np.minimum(floor, targets.least[queries]), floor)
        covered = targets.least[queries] >= floor
        limit = max(4 * plan.best.k, b // 8, 64)

        where, column = _listed(scores, frame.below(floor, slice(None)))
        listed = np.bincount(column, minlength=n)
        coarse = listed > limit
        plan.deep[queries[listed > max(32, 4 * _DEEP * b)]] = False
        loose = np.flatnonzero(~covered & np.isfinite(targets.least[queries]) & ~coarse)
        bands = self._count_bands(product, scores, frame, loose, limit, coarse)

        if coarse.any():
            keep = ~coarse[column]
            where, column = where[keep], column[keep]
        self._take_list(frame, scores, where, column, covered)
        for pair_where, pair_column, pair in bands:
            self._decide(frame, scores, pair_where, pair_column, pair)
        return queries[coarse]

    def _leave_out(self, product: Product, scores: Array, block: Block, queries: Ints, left_over: Ints) -> None:
        plan = self.plan
        if len(left_over):
            scores[left_over] = product.lowest
        if plan.inside is not None:
            where, column = _pairs_in(plan.inside, block.ids, queries, len(plan.level))
            outside = np.ones(scores.shape, bool)
            outside[where, column] = False
            np.copyto(scores, product.lowest, where=outside)
        if len(plan.left_out[0]):
            scores[_pairs_in(plan.left_out, block.ids, queries, len(plan.level))] = product.lowest

    def _take_list(self, frame: _Frame, scores: Array, where: Ints, column: Ints, covered: Array) -> None:
        """Candidates above a query's floor: they may be among its best, and beat or tie its relevant ones."""
        if len(where) == 0:
            return
        plan, targets, block = self.plan, self.plan.targets, frame.block
        queries = frame.queries[column]
        values, error = frame.improve(scores, where, column)
        if plan.settle_now:
            keep = values + error >= plan.best.floor[queries] - 1e-12
            raw = plan.scorer.exact(block, where[keep], queries[keep])
            keys = exact.tie_keys(raw / plan.scale[queries[keep]])
            plan.best.add_exact(queries[keep], block.ids[where[keep]], keys, raw)
        else:
            plan.best.add(queries, block.ids[where], values, error)  # what lies below the floor is dropped

        use = covered[column] & (values + error >= targets.least[queries])
        where, queries, values, error = where[use], queries[use], values[use], error[use] + 1e-8
        if len(where) == 0:
            return
        first = targets.offsets[queries]
        beaten = np.maximum(targets.place(queries, values - error), first)
        open_ = np.minimum(targets.place(queries, values + error), targets.offsets[queries + 1])
        # Pairs first:beaten lose to the candidate; beaten:open_ are within the bound.
        step = np.bincount(first, minlength=len(targets.rows) + 1) - np.bincount(
            beaten, minlength=len(targets.rows) + 1
        )
        self.greater[targets.sorted] += np.cumsum(step)[:-1]
        count = np.maximum(open_ - beaten, 0)
        pair = targets.sorted[_ranges(beaten, count)]
        self._compare(block, np.repeat(where, count), pair)

    def _count_bands(
        self, product: Product, scores: Array, frame: _Frame, columns: Ints, limit: int, coarse: Array
    ) -> list[tuple[Ints, Ints, Ints]]:
        """Counts for queries whose relevant candidates lie below the floor, and the pairs that the bound leaves open.

        Sets `coarse` where those are more than `limit`.
        """
        if len(columns) == 0:
            return []
        targets = self.plan.targets
        queries = frame.queries[columns]
        number = np.diff(targets.offsets)[queries]
        if number.max() >= _SORT_FROM:
            return self._count_sorted(product, scores, frame, columns, limit, coarse)
        found: list[tuple[Ints, Ints, Ints]] = []
        # Where most columns count, the others get a threshold that nothing reaches: cheaper than a copy.
        most = 2 * len(columns) >= scores.shape[1]
        view, place_of = (scores, columns) if most else (np.take(scores, columns, axis=1), np.arange(len(columns)))
        unreached = np.full(view.shape[1], np.inf if scores.dtype.kind == "f" else np.iinfo(scores.dtype).max)
        above = self.scratch.numpy("above", view.shape, np.bool_)
        near = self.scratch.numpy("near", view.shape, np.bool_)
        totals: list[tuple[Ints, Ints, Ints]] = []
        for slot in range(int(number.max())):
            use = np.flatnonzero(number > slot)
            pair = targets.offsets[queries[use]] + slot
            at = place_of[use]
            upper, lower = unreached.astype(scores.dtype), unreached.astype(scores.dtype)
            upper[at] = frame.above(targets.high[pair], columns[use])
            lower[at] = frame.below(targets.low[pair], columns[use])
            np.greater(view, upper, out=above)
            np.greater_equal(view, lower, out=near)
            more, least = _column_sums(above)[at], _column_sums(near)[at]
            totals.append((pair, more, use))
            coarse[columns[use[least - more > limit]]] = True
            near ^= above
            near[:, at[least - more > limit]] = False
            where, place = _nonzero(near)
            slot_of = np.zeros(view.shape[1], np.int64)
            slot_of[at] = np.arange(len(use))
            kept = slot_of[place]
            found.append((where, columns[use[kept]], pair[kept]))
        for pair, more, use in totals:
            keep = ~coarse[columns[use]]
            self.greater[pair[keep]] += more[keep]
        return [(w[~coarse[c]], c[~coarse[c]], p[~coarse[c]]) for w, c, p in found]

    def _count_sorted(
        self, product: Product, scores: Array, frame: _Frame, columns: Ints, limit: int, coarse: Array
    ) -> list[tuple[Ints, Ints, Ints]]:
        """The same for many relevant candidates per query: one sort of the scores instead of a pass for each."""
        targets = self.plan.targets
        found: list[tuple[Ints, Ints, Ints]] = []
        for column in columns:
            pair = np.arange(targets.offsets[frame.queries[column]], targets.offsets[frame.queries[column] + 1])
            column_of = np.full(len(pair), column)
            mine = np.ascontiguousarray(scores[:, column])
            ladder = np.sort(mine)
            above = frame.above(targets.high[pair], column_of)
            below = frame.below(targets.low[pair], column_of)
            more = len(ladder) - np.searchsorted(ladder, above, side="right")
            near = len(ladder) - np.searchsorted(ladder, below, side="left") - more
            if near.sum() > limit + len(pair):
                coarse[column] = True
                continue
            self.greater[pair] += more
            for i in np.flatnonzero(near):
                where = np.flatnonzero((mine >= below[i]) & (mine <= above[i]))
                found.append((where, np.full(len(where), column), np.full(len(where), pair[i])))
        return found

    def _decide(self, frame: _Frame, scores: Array, where: Ints, column: Ints, pair: Ints) -> None:
        """Pairs of a row and a relevant candidate that the product left open: a better score first, then the exact."""
        if len(where) == 0:
            return
        targets = self.plan.targets
        values, error = frame.improve(scores, where, column)
        above = values - error > targets.high[pair]
        np.add.at(self.greater, pair[above], 1)
        open_ = ~above & (values + error >= targets.low[pair])
        self._compare(frame.block, where[open_], pair[open_])

    def _compare(self, block: Block, where: Ints, pair: Ints) -> None:
        """Exact comparison of the block's rows at `where` with relevant candidates, one by one."""
        targets = self.plan.targets
        other = block.ids[where] != targets.rows[pair]
        where, pair = where[other], pair[other]
        if len(where) == 0:
            return
        queries = targets.owner[pair]
        keys = exact.tie_keys(self.plan.scorer.exact(block, where, queries) / self.plan.scale[queries])
        np.add.at(self.greater, pair[keys > targets.keys[pair]], 1)
        equal = keys == targets.keys[pair]
        self._note_ties(block.ids[where[equal]], pair[equal])

    def _note_ties(self, rows: Ints, pair: Ints) -> None:
        order = self.plan.order
        if order is not None:
            mine, theirs = order[rows], order[self.plan.targets.rows[pair]]
            np.add.at(self.greater, pair[mine < theirs], 1)
            pair = pair[mine == theirs]
        np.add.at(self.tied, pair, 1)

    def _settle(self, block: Block, queries: Ints) -> None:
        """The last level: float64 products of unlike rows, exact scores where even these leave a tie open."""
        plan, targets = self.plan, self.plan.targets
        product = plan.products[-1]
        if "unlike" not in block.prepared:
            firsts, inverse = plan.scorer.alike(block)
            unlike = block.pick(firsts)
            block.prepared["unlike"] = (unlike, inverse, product.prepare(unlike))
        unlike, inverse, ready = block.prepared["unlike"]
        scores = product.scores(ready, queries, self.scratch)[inverse]
        self._leave_out(product, scores, block, queries, np.zeros(0, np.int64))
        frame = _Frame(product, plan, block, queries, queries, ready, self.scratch)
        number = np.diff(targets.offsets)[queries]
        for slot in range(int(number.max(initial=0))):
            columns = np.flatnonzero(number > slot)
            pair = targets.offsets[queries[columns]] + slot
            self._settle_slot(
                frame, scores if len(columns) == len(queries) else scores[:, columns], columns, pair, inverse, unlike
            )
        if plan.best.k:
            self._settle_best(frame, scores, unlike, inverse)

    def _settle_slot(
        self, frame: _Frame, scores: Floats, columns: Ints, pair: Ints, inverse: Ints, unlike: Block
    ) -> None:
        plan, targets, block = self.plan, self.plan.targets, frame.block
        own = np.searchsorted(block.ids, targets.rows[pair])
        here = np.flatnonzero(block.ids[np.minimum(own, len(block.ids) - 1)] == targets.rows[pair])
        held = scores[own[here], here]
        scores[own[here], here] = -np.inf
        above = scores > frame.above(targets.high[pair], columns)
        near = scores >= frame.below(targets.low[pair], columns)
        near ^= above
        same = scores < frame.below(targets.high[pair], columns)
        same &= scores > frame.above(targets.low[pair], columns)
        near &= ~same
        self.greater[pair] += _column_sums(above)
        if plan.order is None:
            self.tied[pair] += _column_sums(same)
        else:
            where, place = np.nonzero(same)
            self._note_ties(block.ids[where], pair[place])
        where, place = _nonzero(near)
        scores[own[here], here] = held
        if len(where) == 0:
            return
        # Equal rows have equal scores: one exact score for each unlike row and query.
        queries = frame.queries[columns]
        codes, back = np.unique(inverse[where] * len(queries) + place, return_inverse=True)
        rows, cells = np.divmod(codes, len(queries))
        raw = plan.scorer.exact(unlike, rows, queries[cells])
        keys = exact.tie_keys(raw / plan.scale[queries[cells]])[back]
        np.add.at(self.greater, pair[place[keys > targets.keys[pair[place]]]], 1)
        equal = keys == targets.keys[pair[place]]
        self._note_ties(block.ids[where[equal]], pair[place[equal]])

    def _settle_best(self, frame: _Frame, scores: Floats, unlike: Block, inverse: Ints) -> None:
        """The block's k best per query, exactly, where they may enter the query's best."""
        plan, block = self.plan, frame.block
        k, best = plan.best.k, plan.best
        top = frame.value(scores.max(axis=0), np.arange(len(frame.queries)))
        # A row that only equals the k-th best enters by its order, or else by its number.
        rank_of = block.ids if plan.order is None else plan.order[block.ids]
        held, floor = best.held_key[frame.queries], exact.tie_keys(best.floor[frame.queries])
        late = (held >= floor) & (rank_of.min() > best.held_rank[frame.queries])
        border = (floor + np.where(late, 0.5, -0.5)) / exact.KEY_UNIT
        for column in np.flatnonzero(top + frame.error / frame.ratio >= border):
            mine = scores[:, column]
            kth = np.partition(mine, len(mine) - k)[len(mine) - k] if len(mine) > k else -np.inf
            near = max(kth - 2 * frame.error[column], frame.below(border[[column]], np.array([column]))[0])
            where = np.flatnonzero((mine >= near) & (mine > -np.inf))
            rows, back = np.unique(inverse[where], return_inverse=True)
            query = frame.queries[column]
            raw = plan.scorer.exact(unlike, rows, np.full(len(rows), query))[back]
            key = exact.tie_keys(raw / plan.scale[query])
            first = np.lexsort((block.ids[where], rank_of[where], -key))[:k]
            best.add_exact(np.full(len(first), query), block.ids[where[first]], key[first], raw[first])
            if len(first) == k:
                best.hold(int(query), float(key[first[-1]]), int(rank_of[where[first[-1]]]))


class _Frame:
    """A block's scores as numbers in tie units, and thresholds in tie units as scores."""

    def __init__(
        self,
        product: Product,
        plan: Plan,
        block: Block,
        queries: Ints,
        chosen: Ints | slice,
        ready: object,
        scratch: Scratch,
    ) -> None:
        self.scratch = scratch
        self.product, self.plan, self.block, self.queries = product, plan, block, queries
        self.error = product.error(ready, chosen)
        self.step = product.unit(chosen)
        self.ratio = plan.reach[queries] / block.unit
        self.shift = plan.center.over(block.unit).dots[queries]

    def below(self, x: Floats, at: Ints | slice) -> Array:
        """Scores smaller than this are certainly of candidates below x."""
        return self.product.at_most(self._raw(x, at, -1.0))

    def above(self, x: Floats, at: Ints | slice) -> Array:
        """Scores larger than this are certainly of candidates above x."""
        return self.product.at_least(self._raw(x, at, 1.0))

    def _raw(self, x: Floats, at: Ints | slice, sign: float) -> Floats:
        return (x * self.ratio[at] - self.shift[at] + sign * self.error[at]) / self.step[at]

    def value(self, scores: Floats, at: Ints) -> Floats:
        """Scores as numbers in tie units."""
        return (scores * self.step[at] + self.shift[at]) / self.ratio[at]

    def improve(self, scores: Array, where: Ints, column: Ints) -> tuple[Floats, Floats]:
        """Scores in tie units with their bounds, to float32 precision."""
        better = (
            self.plan.scorer.refine(self.block, where, self.queries[column], self.scratch)
            if self.product.coarse
            else None
        )
        if better is None:
            values = self.value(self.product.values(scores[where, column]), column)
            return values, self.error[column] / self.ratio[column]
        return better[0] / self.ratio[column], better[1] / self.ratio[column]


def _pairs_in(pairs: tuple[Ints, Ints], ids: Ints, queries: Ints, n: int) -> tuple[Ints, Ints]:
    """Those of `pairs` (rows, queries; sorted by row) that lie in ids x queries, as places in both."""
    start, stop = np.searchsorted(pairs[0], [ids[0], ids[-1] + 1])
    rows, owners = pairs[0][start:stop], pairs[1][start:stop]
    where = np.searchsorted(ids, rows)
    column = np.full(n, -1)
    column[queries] = np.arange(len(queries))
    keep = (ids[np.minimum(where, len(ids) - 1)] == rows) & (column[owners] >= 0)
    return where[keep], column[owners[keep]]


def _groups(scores: Array, reduce: np.ufunc) -> Array:
    whole = len(scores) // _GROUP * _GROUP
    parts = reduce.reduce(scores[:whole].reshape(-1, _GROUP, scores.shape[1]), axis=1)
    if whole == len(scores):
        return parts  # type: ignore[no-any-return]
    return np.concatenate([parts, reduce.reduce(scores[whole:], axis=0)[None]])


def _listed(scores: Array, threshold: Array) -> tuple[Ints, Ints]:
    """Rows and columns of the scores at or above their column's threshold, rare ones: whole groups are passed over."""
    group, column = _nonzero(_groups(scores, np.maximum) >= threshold)
    if len(group) * 1000 > scores.size:
        return _nonzero(scores >= threshold)
    where = group[:, None] * _GROUP + np.arange(_GROUP)
    inside = np.minimum(where, len(scores) - 1)
    hit, place = np.nonzero((scores[inside, column[:, None]] >= threshold[column][:, None]) & (where == inside))
    return where[hit, place], column[hit]


def _nonzero(mask: Array) -> tuple[Ints, Ints]:
    flat = np.flatnonzero(mask)
    rows, columns = np.divmod(flat, mask.shape[1])
    return rows, columns


def _column_sums(mask: Array) -> Ints:
    """How many are true in each column; sums of up to 255 fit a byte, which is faster."""
    total = np.zeros(mask.shape[1], np.int64)
    small = mask.view(np.uint8)
    for start in range(0, len(mask), 255):
        total += np.add.reduce(small[start : start + 255], axis=0, dtype=np.uint8)
    return total


def _kth_largest(product: Product, scores: Array, columns: Ints, k: int) -> Floats:
    """A lower bound on the k-th largest score per column, from the largest of each group of rows; else -inf."""
    part = scores if len(columns) == scores.shape[1] else scores[:, columns]
    if len(part) < k:
        return np.full(len(columns), -np.inf)
    if len(part) // _GROUP >= k:
        part = _groups(part, np.maximum)
    kth = np.partition(part, len(part) - k, axis=0)[len(part) - k]
    return np.where(kth == product.lowest, -np.inf, product.values(kth))


def _ranges(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, ... (count[0] of them), start[1], ..."""
    ends = np.cumsum(count)
    numbers: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - (ends - count), count)
    return numbers


def choose_levels(plan: Plan, block: Block, n_candidates: int) -> None:
    """Give every query the cheapest product, judged by a first block: time of the product and of what it leaves open."""
    products = plan.products[:-1]
    counter = Counter(plan)
    n_seen = len(block.ids)
    block = block.pick(np.arange(0, len(block.ids), max(1, len(block.ids) // _SAMPLE)))
    n, b = len(plan.level), len(block.ids)
    fine = products[-1]
    sample = slice(0, min(n, 256))
    setup, per_pair = np.empty(len(products)), np.empty(len(products))
    for i, product in enumerate(products):
        ready, setup[i] = _timed(lambda product=product: product.prepare(block))  # type: ignore[misc]
        block.prepared[product.name] = ready
        _, took = _timed(lambda product=product, ready=ready: product.scores(ready, sample, counter.scratch))  # type: ignore[misc]
        per_pair[i] = took / (b * (sample.stop - sample.start))
    per_open = per_pair[-1] * _OPEN_COST
    # The floor rises as 1 / rows seen, so what lies above it adds up to a logarithm.
    rounds = n_seen / b * np.log(max(2.0, n_candidates / n_seen))
    tile = max(64, _SCORES_BYTES // (4 * b))
    cost = np.empty((len(products), n))
    beaten = np.zeros((len(products), n), np.int64)
    for start in range(0, n, tile):
        queries = np.arange(start, min(start + tile, n))
        ready = block.prepared[fine.name]
        scores = fine.scores(ready, queries, counter.scratch)
        counter._leave_out(fine, scores, block, queries, ready.left_over)
        frame = _Frame(fine, plan, block, queries, queries, ready, counter.scratch)
        least, floor = plan.targets.least[queries], plan.best.floor[queries]
        found = np.isfinite(least)
        for i, product in enumerate(products):
            frame.error = product.error(block.prepared[product.name], queries)
            open_ = _column_sums(scores >= frame.below(floor, slice(None))) * rounds
            won = _column_sums(scores >= frame.below(np.where(found, least, np.inf), slice(None)))
            lower = np.flatnonzero(found & (least < floor))
            if len(lower):
                near = won[lower] - _column_sums(scores[:, lower] > frame.above(least[lower], lower))
                open_[lower] += np.where(won[lower] < _DEEP * b, won[lower], near) * (n_candidates / b)
            cost[i, queries] = per_pair[i] * n_candidates + open_ * per_open
            beaten[i, queries] = won
    chosen = _cheapest(cost, setup * (n_candidates / b))
    plan.deep[:] = np.isfinite(plan.targets.least) & (beaten[chosen, np.arange(n)] < _DEEP * b)
    still = plan.level == len(products) - 1
    plan.level[still] = chosen[still]


def _timed(work: Callable[[], _Made]) -> tuple[_Made, float]:
    """The result, and the lesser time of two calls."""
    took = []
    for _ in range(2):
        begin = time.perf_counter()
        made = work()
        took.append(time.perf_counter() - begin)
    return made, min(took)


def _cheapest(cost: Floats, setup: Floats) -> Ints:
    """For each query its cheapest product, among those that save more time, over all queries, than preparing blocks for them takes.

    `cost` (products, n): seconds. `setup` (products,): seconds, paid once by all queries of a product.
    """
    cost = cost.copy()
    while True:
        chosen: Ints = np.argmin(cost, axis=0)
        held = np.unique(chosen)
        if len(held) == 1:
            return chosen
        saved = np.empty(len(held))
        for i, product in enumerate(held):
            mine = chosen == product
            others = np.delete(cost[:, mine], product, axis=0).min(axis=0)
            saved[i] = (others - cost[product, mine]).sum() - setup[product]
        worst = int(np.argmin(saved))
        if saved[worst] >= 0:
            return chosen
        cost[held[worst]] = np.inf
