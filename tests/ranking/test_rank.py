"""Counts against the definition, on every path the kernel can take."""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranking_reference import reference

import omnirecall.ranking.rank  # noqa: F401  (the module, which the function of the same name hides)
from omnirecall.ranking import BFloat16, PairScores, RankingError, Ranks, filter, gathered, rank, score_pairs, vectors

rank_module = sys.modules["omnirecall.ranking.rank"]
torch = pytest.importorskip("torch")


def agree(ranks: Ranks, expected: list[tuple[list[int], list[int], list[int]]]) -> None:
    for i, (greater, tied, top) in enumerate(expected):
        mine = slice(ranks.offsets[i], ranks.offsets[i + 1])
        assert (i, ranks.greater[mine].tolist()) == (i, greater)
        assert (i, ranks.tied[mine].tolist()) == (i, tied)
        listed = ranks.top_ids[i][ranks.top_ids[i] >= 0].tolist()
        assert (i, listed) == (i, top[: ranks.top_ids.shape[1]])


def equal(a: Ranks, b: Ranks) -> None:
    for name in ("offsets", "greater", "tied", "scores", "top_ids", "pool_size", "scale"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert np.array_equal(a.top_scores, b.top_scores, equal_nan=True)


def only_int8(queries: Any, center: Any, sample: Any, device: Any, work: float) -> list[Any]:
    return [filter.Int8(queries, center, sample)]


def only_bfloat16(queries: Any, center: Any, sample: Any, device: Any, work: float) -> list[Any]:
    return [filter.BFloat16Product(queries, center)]


def as_on_a_device(queries: Any, center: Any, sample: Any, device: Any, work: float) -> list[Any]:
    products = [filter.BFloat16Product(queries, center), filter.DeviceFloat64(queries, center, "cpu")]
    products[0].accumulation = filter.gamma(products[0].dimension, filter.U_DEVICE)
    return products


def nothing_fast(queries: Any, center: Any, sample: Any, device: Any, work: float) -> list[Any]:
    return []


PATHS: dict[str, Callable[..., list[Any]]] = {
    "float32": nothing_fast,
    "int8": only_int8,
    "bfloat16": only_bfloat16,
    "device": as_on_a_device,
}


@pytest.fixture(params=list(PATHS))
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the products, at every query's service, in small blocks shared by three workers."""
    take(request.param, monkeypatch)


def take(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "fast_products", PATHS[path])
    coarse_first(monkeypatch)
    monkeypatch.setattr(rank_module, "_workers", lambda: 3)
    monkeypatch.setattr(vectors.Dense, "step", lambda self, top_k: 53)


def coarse_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every query begin with the coarsest product after the first block, whatever it costs."""
    choose = rank_module.choose_levels

    def coarsest(plan: Any, block: Any, n_candidates: int) -> None:
        choose(plan, block, n_candidates)
        plan.level[plan.level < len(plan.products) - 1] = 0

    monkeypatch.setattr(rank_module, "choose_levels", coarsest)


def plain(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((n, d)).astype(np.float32), rng.standard_normal((m, d)).astype(np.float32)


def near_duplicates(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates one unit in the last place from each other, in one element or in all."""
    queries, candidates = plain(rng, n, m, d)
    base = candidates[:4]
    for i in range(4, m):
        row = base[i % 4].copy()
        where = slice(None) if i % 3 == 0 else slice(i % d, i % d + 1)
        row[where] = np.nextafter(row[where], np.float32(np.inf if i % 2 else -np.inf))
        candidates[i] = row
    queries[: n // 2] = base[0]
    return queries, candidates


def wild_norms(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Norms from 1e-42 (subnormal) to 1e37, repeated directions among them."""
    queries, candidates = plain(rng, n, m, d)
    candidates[m // 2 :] = candidates[: m - m // 2]
    sizes = 10.0 ** rng.uniform(-42, 37, m)
    sizes[: m // 4] = 1.0
    candidates = (candidates.astype(np.float64) * (sizes / 10)[:, None]).astype(np.float32)
    candidates[~candidates.any(axis=1)] = 1e-42
    return (queries * np.float32(1e-20)), candidates


def cancelling(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Large components that cancel in every product and leave a small remainder to rank by."""
    queries, candidates = plain(rng, n, m, d)
    queries[:, : d // 2] *= 300
    candidates[:, : d // 2 : 2] *= 1000
    pairs = d // 2 // 2 * 2
    queries[:, 1:pairs:2] = queries[:, 0:pairs:2]
    candidates[:, 1:pairs:2] = -candidates[:, 0:pairs:2]
    return queries, candidates


def heavy_tails(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    queries, candidates = plain(rng, n, m, d)
    return queries**5, candidates**7


def narrow_cone(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    queries, candidates = plain(rng, n, m, d)
    axis = rng.standard_normal(d).astype(np.float32)
    return np.float32(0.01) * queries + axis, np.float32(0.01) * candidates + axis


def collapsed(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """One vector for all, but for noise near float32's precision on a third of them."""
    queries, candidates = plain(rng, n, m, d)
    queries[:], candidates[:] = queries[0], candidates[0]
    third = candidates[::3]
    third *= 1 + rng.uniform(-2e-7, 2e-7, third.shape).astype(np.float32)
    return queries, candidates


def edge_duplicates(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """The same row at both sides of every block's edge, scaled by powers of two."""
    queries, candidates = plain(rng, n, m, d)
    for edge in range(53, m, 53):
        candidates[edge - 1] = candidates[5] * np.float32(4)
        candidates[edge] = candidates[5]
    queries[: n // 2] = candidates[5] + queries[: n // 2] / 4
    return queries, candidates


def few_values(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers: many exact ties, many zeros."""
    queries, candidates = plain(rng, n, m, d)
    queries, candidates = np.rint(queries), np.rint(candidates / 2)
    candidates[~candidates.any(axis=1), 0] = 1
    queries[~queries.any(axis=1), 0] = 1
    return queries, candidates


DATA = [
    plain,
    near_duplicates,
    wild_norms,
    cancelling,
    heavy_tails,
    narrow_cone,
    collapsed,
    edge_duplicates,
    few_values,
]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("data", DATA)
def test_every_path_counts_what_the_definition_counts(path: None, data: Any, similarity: str) -> None:
    rng = np.random.default_rng(7)
    n, m, d = 9, 230, 19
    queries, candidates = data(rng, n, m, d)
    positives = [rng.choice(m, size=size, replace=False).tolist() for size in (1, 0, 2, 5, 1, 20, 3, 1, 2)]
    for i in range(0, n, 2):
        best = int(np.argmax(candidates.astype(np.float64) @ queries[i].astype(np.float64)))
        positives[i] = [best] + [p for p in positives[i] if p != best]
    exclude = [[j for j in rng.integers(0, m, 6).tolist() if j not in positives[i]] for i in range(n)]
    order = rng.permutation(m)
    for top_k, excluded, keys in ((10, None, None), (0, exclude, None), (3, exclude, order), (300, None, order)):
        ranks = rank(queries, candidates, positives, exclude=excluded, similarity=similarity, top_k=top_k, order=keys)
        agree(
            ranks,
            reference(queries, candidates, positives, exclude=excluded, similarity=similarity, top_k=top_k, order=keys),
        )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("data", [plain, near_duplicates, wild_norms, few_values, collapsed])
@pytest.mark.parametrize("how", ["gathered", "in order", "in parts", *PATHS])
def test_pools_per_query(data: Any, similarity: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(how if how in PATHS else "float32", monkeypatch)
    monkeypatch.setattr(rank_module, "_GATHER", 10**12 if how in PATHS else 0)
    assert gathered._torch_for_samples() is torch
    if how == "gathered":
        monkeypatch.setattr(gathered, "_multiplies_samples", lambda torch: False)
    if how == "in parts":
        for name, value in (("_PAIRS", 50), ("_FEW_PAIRS", 1), ("_SPARSE", 100), ("_BLOCK_BYTES", 48 * 7)):
            monkeypatch.setattr(gathered, name, value)
    rng = np.random.default_rng(3)
    n, m, d = 7, 180, 12
    queries, candidates = data(rng, n, m, d)
    pool = [rng.choice(m, size=size, replace=False) for size in (180, 5, 90, 40, 170, 1, 60)]
    positives = [mine[: i % 4].tolist() for i, mine in enumerate(pool)]
    exclude = [mine[4:9].tolist() for mine in pool]
    order = rng.permutation(m)
    for top_k, excluded, keys in ((10, None, None), (4, exclude, order), (0, exclude, None)):
        options: dict[str, Any] = {
            "pool": pool, "exclude": excluded, "similarity": similarity, "top_k": top_k, "order": keys,
        }  # fmt: skip
        ranks = rank(queries, candidates, positives, **options)
        agree(ranks, reference(queries, candidates, positives, **options))
        sizes = [len(set(mine.tolist()) - set(exclude[i] if excluded else [])) for i, mine in enumerate(pool)]
        assert ranks.pool_size.tolist() == sizes


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_small_case(data: st.DataObject) -> None:
    n, m, d = (data.draw(st.integers(1, top)) for top in (4, 12, 5))
    numbers = st.sampled_from([0.0, 1.0, -1.0, 2.0, 3.0, 0.1, 1e-30, 7e29, float(np.nextafter(np.float32(1), 2))])
    rows = st.lists(numbers, min_size=d, max_size=d)
    queries = np.array(data.draw(st.lists(rows, min_size=n, max_size=n)), np.float32)
    candidates = np.array(data.draw(st.lists(rows, min_size=m, max_size=m)), np.float32)
    similarity = data.draw(st.sampled_from(["cosine", "dot"]))
    if similarity == "cosine":
        queries[~queries.any(axis=1)] = 1.0
        candidates[~candidates.any(axis=1)] = 1.0
    bits = st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=n, max_size=n)
    pool = None
    if data.draw(st.booleans()):
        pool = [[j for j in range(m) if mine[j]] or [m - 1] for mine in data.draw(bits)]
    wanted = data.draw(bits)
    positives = [[j for j in (pool[i] if pool else range(m)) if wanted[i][j]] for i in range(n)]
    spare = [sorted(set(pool[i] if pool else range(m)) - set(positives[i])) for i in range(n)]
    exclude = [mine[: len(mine) - (not positives[i])] for i, mine in enumerate(spare)]
    order = data.draw(st.none() | st.permutations(range(m)))
    excluded = exclude if data.draw(st.booleans()) else None
    options: dict[str, Any] = {"pool": pool, "exclude": excluded, "similarity": similarity, "top_k": 3, "order": order}
    agree(rank(queries, candidates, positives, **options), reference(queries, candidates, positives, **options))


def test_ties_of_whole_numbers_are_those_of_rational_arithmetic() -> None:
    """Exactly when sign and (dot^2 / norm^2) agree are two cosines equal; others here are 1e-9 apart."""
    rng = np.random.default_rng(11)
    queries = rng.integers(-3, 4, (6, 4)).astype(np.float32)
    queries[~queries.any(axis=1)] = 1
    candidates = rng.integers(-3, 4, (300, 4)).astype(np.float32)
    candidates[~candidates.any(axis=1)] = 1
    ranks = rank(queries, candidates, [[i] for i in range(6)])
    for i, query in enumerate(queries.astype(int).tolist()):
        signed = []
        for row in candidates.astype(int).tolist():
            product = sum(x * y for x, y in zip(query, row, strict=True))
            signed.append(Fraction(product * abs(product), sum(x * x for x in row)))
        assert ranks.greater[i] == sum(s > signed[i] for s in signed)
        assert ranks.tied[i] == sum(s == signed[i] for s in signed) - 1


def many(seed: int = 5, n: int = 120, m: int = 3000, d: int = 48) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Enough for several blocks and workers, with good, poor and tied positives; all values fit bfloat16."""
    rng = np.random.default_rng(seed)
    queries, candidates = plain(rng, n, m, d)
    candidates[m // 2 : m // 2 + 200] = candidates[:200]
    for i in range(0, n, 2):
        queries[i] = candidates[i * 3] + queries[i] / 2
    rough = [(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (queries, candidates)]
    return rough[0], rough[1], [[(i * 3) % m, (i * 7 + 1) % m] for i in range(n)]


def bfloat16(x: np.ndarray) -> BFloat16:
    return BFloat16((x.view(np.uint32) >> 16).astype(np.uint16))


def test_counts_do_not_depend_on_how_they_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    queries, candidates, positives = many()
    first = rank(queries, candidates, positives, device="numpy")
    assert first.tied.sum() > 0
    for name, products in PATHS.items():
        with monkeypatch.context() as patch:
            patch.setattr(vectors, "fast_products", products)
            coarse_first(patch)
            for step, workers in ((97, 1), (1000, 4), (5000, 2)):
                patch.setattr(vectors.Dense, "step", lambda self, top_k, step=step: step)
                patch.setattr(rank_module, "_workers", lambda workers=workers: workers)
                equal(rank(queries, candidates, positives), first), name
    equal(rank(bfloat16(queries), bfloat16(candidates), positives), first)
    equal(rank(queries.astype(np.float64), candidates.astype(np.float64), positives), first)
    np.save(tmp_path / "candidates.npy", candidates)
    equal(rank(queries, np.load(tmp_path / "candidates.npy", mmap_mode="r"), positives), first)
    spread = np.repeat(candidates, 2, axis=0)
    spread[::2] = 99
    equal(rank(queries, (spread, np.arange(1, len(spread), 2)), positives), first)
    blocks = [candidates[:7], candidates[7:2000], candidates[2000:]]
    equal(rank(queries, blocks, positives), first)
    equal(rank(queries, [bfloat16(block) for block in blocks], positives), first)
    known = score_pairs(queries, candidates, positives)
    equal(rank(queries, iter(blocks), positives, positive_scores=known), first)
    flat = (first.offsets, np.array(positives).ravel())
    equal(rank(queries, candidates, flat), first)


def test_float16_is_read_by_value() -> None:
    queries, candidates, positives = many()
    queries, candidates = queries.astype(np.float16), candidates.astype(np.float16)
    a = rank(queries, candidates, positives)
    equal(a, rank(queries.astype(np.float32), candidates.astype(np.float32), positives))


def test_order_of_rows_moves_nothing_but_row_numbers() -> None:
    queries, candidates, positives = many()
    shuffle = np.random.default_rng(0).permutation(len(candidates))
    place = np.argsort(shuffle)
    a = rank(queries, candidates, positives)
    b = rank(queries, candidates[shuffle], [[int(place[p]) for p in mine] for mine in positives])
    for name in ("greater", "tied", "scores", "top_scores"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_pieces_merge_into_the_whole(similarity: str) -> None:
    queries, candidates, positives = many()
    order = np.random.default_rng(2).permutation(len(candidates))
    for keys in (None, order):
        whole = rank(queries, candidates, positives, similarity=similarity, order=keys)
        known = score_pairs(queries, candidates, positives, similarity=similarity)
        pieces = []
        for part in range(3):
            pool = [np.arange(part, len(candidates), 3)] * len(queries)
            options: dict[str, Any] = {"similarity": similarity, "order": keys, "positive_scores": known}
            pieces.append(rank(queries, candidates, positives, pool=pool, **options))
        equal(Ranks.merge(pieces), whole)
        equal(Ranks.merge([Ranks.merge(pieces[:2]), pieces[2]]), whole)


def test_merge_refuses_what_does_not_belong_together() -> None:
    queries, candidates, positives = many(n=6)
    a = rank(queries, candidates, positives)
    with pytest.raises(RankingError, match="piece 1 has other positive scores"):
        Ranks.merge([a, dataclasses.replace(a, scores=a.scores + 1e-15)])
    with pytest.raises(RankingError, match="piece 1 ranks other pairs"):
        Ranks.merge([a, rank(queries, candidates, [mine[:1] for mine in positives])])
    with pytest.raises(RankingError, match="another length"):
        Ranks.merge([a, rank(queries, candidates, positives, top_k=3)])
    with pytest.raises(RankingError, match="no ranks"):
        Ranks.merge([])


def test_a_constant_model_ties_with_everything() -> None:
    ranks = rank(np.ones((50, 30), np.float32), np.full((4000, 30), 3, np.float32), [[i * 7] for i in range(50)])
    assert ranks.greater.tolist() == [0] * 50
    assert ranks.tied.tolist() == [3999] * 50
    assert ranks.top_ids.tolist() == [list(range(10))] * 50


def test_many_positives_per_query() -> None:
    queries, candidates, _ = many(n=5, m=800)
    positives = [np.random.default_rng(i).choice(800, 100, replace=False).tolist() for i in range(5)]
    agree(rank(queries, candidates, positives), reference(queries, candidates, positives))


@pytest.mark.parametrize("pooled", [False, True])
def test_memory_is_bounded(pooled: bool) -> None:
    """The score matrix would take 400 MB; the vectors take 13."""
    rng = np.random.default_rng(0)
    queries, candidates = plain(rng, 1000, 100_000, 32)
    positives = [[i] for i in range(1000)]
    pool = (
        [np.append(rng.choice(np.arange(1000, 100_000), 500, replace=False), i) for i in range(1000)]
        if pooled
        else None
    )
    tracemalloc.start()
    rank(queries, candidates, positives, pool=pool, device="numpy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": np.array([[np.nan, 1.0]])}, "row 0 of the queries holds NaN or infinity"),
        ({"candidates": np.array([[1.0, 1.0], [np.inf, 0.0]])}, "row 1 of the candidates holds NaN or infinity"),
        ({"candidates": np.array([[1.0, 1.0], [0.0, 0.0]])}, "row 1 of the candidates is a zero vector"),
        ({"candidates": [np.ones((1, 2)), np.zeros((1, 2))]}, "row 1 of the candidates is a zero vector"),
        ({"candidates": [np.ones((1, 2)), np.ones((1, 3))]}, "row 1 of the candidates has 3"),
        ({"candidates": np.array([[1.0, 1.0], [1e-200, 0.0]])}, "row 1 of the candidates has a norm outside"),
        ({"queries": np.zeros((1, 2), np.float32)}, "row 0 of the queries is a zero vector"),
        ({"candidates": np.ones((2, 3))}, "queries have 2 dimensions and candidates 3"),
        ({"candidates": np.ones((0, 2))}, "pool is empty"),
        ({"candidates": iter(())}, "pool is empty"),
        ({"candidates": np.ones((2, 2), int)}, "candidates must be a matrix"),
        ({"candidates": (np.ones((2, 2)), [0, 5])}, "row 5 of a table with 2 rows"),
        ({"positives": [[0], [1]]}, "positives holds 2 lists for 1 queries"),
        ({"positives": ([0, 1, 2], [0, 1])}, "positives holds 2 lists for 1 queries"),
        ({"positives": ([0, 1], [0, 1])}, "offsets must rise from 0"),
        ({"positives": [[2]]}, "positives of query 0 names row 2"),
        ({"positives": [[-1]]}, "positives of query 0 names row -1"),
        ({"positives": [[0.5]]}, "positives of query 0 must be a flat list"),
        ({"positives": [[1, 1]]}, "positives of query 0 names row 1 twice"),
        ({"pool": [[0]], "positives": [[1]]}, "positive 1 of query 0 is outside its pool"),
        ({"pool": [[0, 0]]}, "the pool of query 0 names row 0 twice"),
        ({"pool": [[0], [1]]}, "pool holds 2 lists"),
        ({"exclude": [[0]]}, "positive 0 of query 0 is excluded"),
        ({"exclude": [[7]]}, "exclude of query 0 names row 7"),
        ({"pool": [[]], "positives": [[]]}, "the pool of query 0 is empty"),
        ({"exclude": [[0, 1]], "positives": [[]]}, "the pool of query 0 is empty"),
        ({"similarity": "l2"}, "similarity must be"),
        ({"top_k": -1}, "top_k must not be negative"),
        ({"order": [1]}, "order must hold 2"),
    ],
)
def test_refusals_name_the_culprit(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "queries": np.ones((1, 2), np.float32),
        "candidates": np.ones((2, 2), np.float32),
        "positives": [[0]],
    }
    with pytest.raises(RankingError, match=message):
        rank(**(arguments | change))


def test_positive_scores_of_other_positives_are_refused() -> None:
    queries, candidates, positives = many(n=3)
    known: PairScores = score_pairs(queries, candidates, [[0], [1], [2]])
    with pytest.raises(RankingError, match="other positives"):
        rank(queries, candidates, positives, positive_scores=known)


def test_no_queries() -> None:
    ranks = rank(np.ones((0, 2), np.float32), np.ones((3, 2), np.float32), [])
    assert ranks.offsets.tolist() == [0]
    assert ranks.top_ids.shape == (0, 10)
