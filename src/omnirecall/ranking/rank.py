"""`rank`: vectors and judgments in, ranks out; `score_pairs`: only the scores of the relevant candidates."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from omnirecall.columns import empty as empty_column
from omnirecall.columns import scattered
from omnirecall.ranking import exact
from omnirecall.ranking.counting import Counter, Plan, Targets, choose_levels
from omnirecall.ranking.filter import Queries, full_sums
from omnirecall.ranking.gathered import Gathered, spans
from omnirecall.ranking.inputs import (
    Array,
    Floats,
    Ints,
    Lists,
    Lists64,
    Ragged,
    RankingError,
    Stream,
    Table,
    is_stream,
    read_lists,
    read_table,
    refuse_repeats,
)
from omnirecall.ranking.late_interaction import Late, read_items
from omnirecall.ranking.ranks import PairScores, Ranks
from omnirecall.ranking.topk import Best
from omnirecall.ranking.vectors import Dense, check_rows

_Task_contra = TypeVar("_Task_contra", contravariant=True)
_PAIR_CHUNK = 512
_UNKNOWN = 1 << 62
_GATHER = 16  # a pair gathered alone takes as long as this many in a block product


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
    positive_scores: PairScores | None = None,
) -> Ranks:
    """Count, for every relevant candidate, how many others of its query's pool score higher and how many tie.

    `queries`, `candidates`: matrices (n, d) of float16, float32, float64 or `BFloat16`, in memory or mapped from a
    file; or (table, row numbers); or `Ragged` for late interaction. `candidates` may also be a re-iterable source of
    matrices, which is read twice, or once where `positive_scores` is given.
    `positives`, `pool`, `exclude`: candidate rows per query, as a list of lists or (offsets, rows). Without `pool`
    every candidate is ranked; `exclude` is taken out of the pool. A query may have no positives.
    `similarity`: "cosine", or "dot" for the plain product.
    `top_k`: how many of the best to list, ordered by rounded score and then by `order` or row.
    `order` (n_candidates): break ties by this key, ascending, instead of counting them as tied.
    `positive_scores`: from `score_pairs`. Positives may then lie outside the pool, whose ranks are one piece for
    `Ranks.merge`.
    `device`: None chooses; "numpy" keeps torch out; "cuda" and other torch devices work there.

    Scores are exact: the float64 product in one fixed order, over both norms under cosine. Two tie when they are
    equal after rounding to 12 decimals; a dot product is first divided by the query's norm and by the largest norm
    among its positives (by 1 where it has none), so that ties do not depend on the rest of the pool. Counts depend
    on the stored vectors alone, not on blocks, threads, the order of rows or the device.

    Raises `RankingError` for NaN, infinite or (under cosine) zero rows, dimensions that differ, lists of the wrong
    length, rows out of range, repeated positives or pool rows, an empty pool, and positives outside the pool or
    among the excluded.
    """
    if top_k < 0:
        raise RankingError(f"top_k must not be negative, but is {top_k}.")
    vectors = _read(queries, candidates, similarity)
    n = vectors.count
    if positive_scores is None or not isinstance(vectors.candidates, Stream):
        known, m = _survey(vectors, positives)
    else:
        known, m = None, positive_scores.candidates
    wanted = read_lists(positives, "positives", n, m)
    refuse_repeats(wanted, "positives", m)
    pools = _read_pools(pool, exclude, n, m)
    if positive_scores is None:
        _refuse_outside(wanted, pools, m)
        positive_scores = known or _score(vectors, wanted, m)
    elif not (
        np.array_equal(positive_scores.offsets, wanted.offsets) and np.array_equal(positive_scores.rows, wanted.rows)
    ):
        raise RankingError("positive_scores belong to other positives.")
    keys = None
    if order is not None:
        keys = np.asarray(order)
        if keys.shape != (m,) or keys.dtype.kind not in "iu":
            raise RankingError(
                f"order must hold {m} whole numbers, one per candidate, not {keys.dtype} of shape {keys.shape}."
            )
    return _count(vectors, m, positive_scores, pools, top_k, device, keys)


def score_pairs(queries: Any, candidates: Any, positives: Lists, *, similarity: str = "cosine") -> PairScores:
    """Exact scores of each query's relevant candidates, in one pass over the candidates. Arguments as in `rank`."""
    vectors = _read(queries, candidates, similarity)
    known, m = _survey(vectors, positives)
    if known is not None:
        return known
    wanted = read_lists(positives, "positives", vectors.count, m)
    refuse_repeats(wanted, "positives", m)
    return _score(vectors, wanted, m)


def _read(queries: Any, candidates: Any, similarity: str) -> Dense | Late:
    if similarity not in ("cosine", "dot"):
        raise RankingError(f"similarity must be 'cosine' or 'dot', not {similarity!r}.")
    cosine = similarity == "cosine"
    if isinstance(queries, Ragged) or isinstance(candidates, Ragged):
        if not (isinstance(queries, Ragged) and isinstance(candidates, Ragged)):
            raise RankingError("queries and candidates must both be Ragged, or neither.")
        items = read_items(queries, "queries", cosine)
        others = read_items(candidates, "candidates", cosine)
        if items.table.dimension != others.table.dimension:
            raise RankingError(
                f"queries have {items.table.dimension} dimensions and candidates {others.table.dimension}."
            )
        return Late(items, others, cosine)
    table = read_table(queries, "queries")
    rows = table.block(0, len(table))
    check_rows(rows, 0, "queries", cosine)
    source = Stream(candidates) if is_stream(candidates) else read_table(candidates, "candidates")
    if isinstance(source, Table) and source.dimension != table.dimension:
        raise RankingError(f"queries have {table.dimension} dimensions and candidates {source.dimension}.")
    return Dense(source, Queries(rows, exact.norms(rows)), cosine, None, None)


def _survey(vectors: Dense | Late, positives: Lists) -> tuple[PairScores | None, int]:
    """Check every candidate before any work. A stream also gives the positives' scores, a table keeps its norms."""
    m = 0
    if not isinstance(vectors.candidates, Stream):
        m = len(vectors.candidates)
        if m and isinstance(vectors, Dense):
            lengths, odd = empty_column(m, np.float32), empty_column(m, bool)
            for start, rows in vectors.blocks(vectors.step(0)):
                here = slice(start, start + len(rows))
                lengths[here], odd[here] = check_rows(rows, start, "candidates", vectors.cosine)
            vectors.lengths, vectors.odd = lengths, odd
    elif isinstance(vectors, Dense):
        wanted = read_lists(positives, "positives", vectors.count, _UNKNOWN)
        refuse_repeats(wanted, "positives", int(wanted.rows.max(initial=0)) + 1)
        pairs = _Pairs(vectors, wanted)
        for start, rows in vectors.blocks(vectors.step(0)):
            check_rows(rows, start, "candidates", vectors.cosine)
            pairs.note(start, rows)
            m += len(rows)
        if m:
            read_lists(positives, "positives", vectors.count, m)
            return pairs.scores(m), m
    if not m:
        raise RankingError("the pool is empty: there are no candidates.")
    return None, m


@dataclass
class _Pools:
    """`inside`: pool rows per query, less those excluded, or None; `left_out`: excluded rows; `size` of each pool."""

    inside: Lists64 | None
    left_out: Lists64 | None
    size: Ints


def _read_pools(pool: Lists | None, exclude: Lists | None, n: int, m: int) -> _Pools:
    left_out = None
    size = np.full(n, m)
    if exclude is not None:
        given = read_lists(exclude, "exclude", n, m)
        left_out = _from_codes(np.unique(given.codes(m)), n, m)
        size = m - np.diff(left_out.offsets)
    inside = None
    if pool is not None:
        given = read_lists(pool, "pool", n, m)
        codes = refuse_repeats(given, "the pool", m)
        if left_out is not None:
            codes = codes[~_among(codes, left_out.codes(m))]
        inside = _from_codes(codes, n, m)
        size = np.diff(inside.offsets)
    empty = np.flatnonzero(size == 0)
    if len(empty):
        raise RankingError(f"the pool of query {empty[0]} is empty.")
    return _Pools(inside, left_out, size)


def _among(codes: Ints, others: Ints) -> npt.NDArray[np.bool_]:
    """Which codes are among the others, which are sorted."""
    if len(others) == 0:
        return np.zeros(len(codes), bool)
    place = np.minimum(np.searchsorted(others, codes), len(others) - 1)
    found: npt.NDArray[np.bool_] = others[place] == codes
    return found


def _from_codes(codes: Ints, n: int, m: int) -> Lists64:
    owner, rows = np.divmod(codes, m)
    return Lists64(np.searchsorted(owner, np.arange(n + 1)), rows)


def _refuse_outside(wanted: Lists64, pools: _Pools, m: int) -> None:
    codes = wanted.codes(m)
    if pools.left_out is not None:
        for code in codes[_among(codes, pools.left_out.codes(m))][:1]:
            raise RankingError(f"positive {code % m} of query {code // m} is excluded.")
    if pools.inside is not None:
        for code in codes[~_among(codes, pools.inside.codes(m))][:1]:
            raise RankingError(f"positive {code % m} of query {code // m} is outside its pool.")


class _Pairs:
    """Collects exact scores of pairs of query and relevant candidate, and the norms of the latter."""

    def __init__(self, vectors: Dense | Late, wanted: Lists64) -> None:
        self.vectors, self.wanted, self.owner = vectors, wanted, wanted.owner
        self.raw, self.norms = np.zeros(len(wanted.rows)), np.zeros(len(wanted.rows))
        self.by_row = np.argsort(wanted.rows, kind="stable")
        self.in_order = wanted.rows[self.by_row]

    def note(self, start: int, rows: Array) -> None:
        """Score the pairs whose candidates are among `rows`, the first of which is number `start`."""
        first, last = np.searchsorted(self.in_order, [start, start + len(rows)])
        if last > first:
            self.put(self.by_row[first:last], rows, self.in_order[first:last] - start)

    def put(self, pairs: Ints, rows: Array, where: Ints) -> None:
        """Score `pairs`, whose candidates are `rows[where]`."""
        assert isinstance(self.vectors, Dense)
        self.raw[pairs] = self.vectors.exact_rows(rows, where, self.owner[pairs])
        if not self.vectors.cosine:
            self.norms[pairs] = exact.norms(rows)[where]

    def scores(self, candidates: int) -> PairScores:
        """The result, with each query's tie scale."""
        scale = np.ones(self.vectors.count)
        if not self.vectors.cosine:
            reach = np.zeros(len(scale))
            np.maximum.at(reach, self.owner, self.norms)
            reach[reach == 0] = 1.0
            scale = self.vectors.sizes * reach
        return PairScores(self.wanted.offsets, self.wanted.rows, self.raw, scale, candidates)


def _score(vectors: Dense | Late, wanted: Lists64, candidates: int) -> PairScores:
    pairs = _Pairs(vectors, wanted)
    for start in range(0, len(pairs.by_row), _PAIR_CHUNK):
        part = pairs.by_row[start : start + _PAIR_CHUNK]
        used, back = np.unique(wanted.rows[part], return_inverse=True)
        if isinstance(vectors, Late):
            pairs.raw[part] = vectors.exact_far(wanted.rows[part], pairs.owner[part])
            pairs.norms[part] = vectors.lengths(used)[back]
        else:
            assert isinstance(vectors.candidates, Table)
            pairs.put(part, vectors.candidates.take(used), back)
            scattered(vectors.candidates.nbytes, len(used))
    return pairs.scores(candidates)


def _count(
    vectors: Dense | Late, m: int, known: PairScores, pools: _Pools, top_k: int, device: str | None, order: Array | None
) -> Ranks:
    n = vectors.count
    targets = Targets(known.offsets, known.rows, exact.tie_keys(known.scores / known.scale[_owner(known.offsets)]))
    best = Best(n, top_k, order)
    done: Sequence[Counter | Gathered] = []
    if n:
        reach = np.ones(n) if vectors.cosine else known.scale / vectors.sizes
        inside = pools.inside
        if (
            inside is not None
            and isinstance(vectors, Dense)
            and isinstance(vectors.candidates, Table)
            and len(inside.rows) * _GATHER < n * m
        ):
            vectors.unit_queries()
            workers = [Gathered(vectors, targets, best, inside, known.scale, reach, order) for _ in range(_workers())]
            _share(spans(inside, len(workers)), workers)
            done = workers
        else:
            with full_sums():
                done = _count_blocks(vectors, m, targets, best, known.scale, reach, pools, device, order, top_k)
        queries, where = best.unsettled()
        if len(where):
            raw = vectors.exact_far(where, queries)
            best.add_exact(queries, where, exact.tie_keys(raw / known.scale[queries]), raw)
    ids, top = best.lists()
    zero = np.zeros(len(known.rows), np.int64)
    return Ranks(
        known.offsets,
        sum((counter.greater for counter in done), zero),
        sum((counter.tied for counter in done), zero),
        known.scores,
        ids,
        top,
        pools.size,
        known.scale,
        order,
    )


def _owner(offsets: Ints) -> Ints:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _by_row(lists: Lists64 | None) -> tuple[Ints, Ints]:
    if lists is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(lists.rows, kind="stable")
    return lists.rows[order], lists.owner[order]


def _count_blocks(
    vectors: Dense | Late,
    m: int,
    targets: Targets,
    best: Best,
    scale: Floats,
    reach: Floats,
    pools: _Pools,
    device: str | None,
    order: Array | None,
    top_k: int,
) -> list[Counter]:
    pieces = vectors.pieces(top_k)
    first = next(pieces)
    sample = max(first, key=lambda block: len(block.ids))
    center = vectors.center(sample)
    products = vectors.products(center, sample, device, m)
    plan = Plan(
        products,
        vectors,
        targets,
        best,
        scale,
        reach,
        center,
        np.full(vectors.count, len(products) - 2),
        np.zeros(vectors.count, bool),
        _by_row(pools.left_out if pools.inside is None else None),
        None if pools.inside is None else _by_row(pools.inside),
        order,
        isinstance(vectors.candidates, Stream),
    )
    counter = Counter(plan)
    for block in first:
        counter.count(block)
    counter.finish()
    with _single_threaded():  # as the workers will be
        choose_levels(plan, sample, m)
    workers = [counter, *(Counter(plan) for _ in range(_workers() - 1))]
    _share((block for piece in pieces for block in piece), workers)
    return workers


class _Worker(Protocol[_Task_contra]):
    def count(self, task: _Task_contra, /) -> None: ...

    def finish(self) -> None: ...


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Products in this thread, and by numpy in any thread, take one thread each; restored at the end."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch is not None else 0
    try:
        with threadpool_limits(1, "blas"):
            if torch is not None:
                torch.set_num_threads(1)
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(threads)


def _share(tasks: Iterator[_Task_contra], workers: Sequence[_Worker[_Task_contra]]) -> None:
    """Hand tasks to workers as they come free, a thread each, with single-threaded products in every thread."""
    lock = threading.Lock()
    torch = sys.modules.get("torch")

    def work(worker: _Worker[_Task_contra]) -> None:
        if torch is not None:
            torch.set_num_threads(1)
        while True:
            with lock:
                task = next(tasks, None)
            if task is None:
                break
            worker.count(task)
        worker.finish()

    with _single_threaded(), ThreadPoolExecutor(len(workers)) as executor:
        list(executor.map(work, workers))
