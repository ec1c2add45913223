"""The certified bounds, attacked: no product may ever be further off than it says, nor say much more than it must."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from test_rank import DATA, heavy_tails, plain, wild_norms

from omnirecall.ranking import exact, filter
from omnirecall.ranking.filter import Block, Queries, Scratch
from omnirecall.ranking.inputs import Table
from omnirecall.ranking.vectors import Dense, check_rows

pytest.importorskip("torch")

JUDGE = 400 * float(np.finfo(np.longdouble).eps)  # the error of the true values that the bounds are held against

MAKERS: dict[str, Any] = {
    "int8": filter.Int8,
    "bfloat16": lambda queries, center, sample: filter.BFloat16Product(queries, center),
    "float32": lambda queries, center, sample: filter.Float32(queries, center),
    "float64": lambda queries, center, sample: filter.Float64(queries, center),
    "device float64": lambda queries, center, sample: filter.DeviceFloat64(queries, center, "cpu"),
}


def blocks(queries: np.ndarray, candidates: np.ndarray, cosine: bool) -> tuple[Dense, list[Block]]:
    dense = Dense(Table(candidates), Queries(queries, exact.norms(queries)), cosine, None, None)
    dense.lengths, dense.odd = check_rows(candidates, 0, "candidates", cosine)
    return dense, dense.read(0, candidates)


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", list(MAKERS))
def test_no_product_is_further_off_than_its_bound(name: str, data: Any, cosine: bool) -> None:
    for seed, d in ((0, 3), (1, 17), (2, 64), (3, 301)):
        queries, candidates = data(np.random.default_rng(seed), 8, 120, d)
        dense, parts = blocks(queries, candidates, cosine)
        sample = max(parts, key=lambda block: len(block.ids))
        center = dense.center(sample)
        product = MAKERS[name](dense.queries, center, sample)
        wide = queries.astype(np.longdouble)
        unit = wide / np.sqrt((wide * wide).sum(axis=1))[:, None]
        for block in parts:
            rows = block.rows.astype(np.longdouble)
            scale = np.sqrt((rows * rows).sum(axis=1))[:, None] if cosine else block.unit
            true = (rows / scale) @ unit.T
            ready = product.prepare(block)
            values = product.values(product.scores(ready, slice(None), Scratch()))
            got = values * product.unit(slice(None)) + center.over(block.unit).dots
            error = product.error(ready, slice(None))
            # A result rounded for storage may be off by that rounding too; comparisons are not (tested below).
            stored = {"bfloat16": 2.0**-8, "device float64": 2.0**-23}.get(name, 0.0) * np.abs(values)
            keep = np.setdiff1d(np.arange(len(block.ids)), ready.left_over)
            assert np.all((np.abs(got - true) <= error + stored + JUDGE)[keep])
            low, high = (true - JUDGE).astype(np.float64), (true + JUDGE).astype(np.float64)
            for q in range(len(queries)):
                shift = center.over(block.unit).dots[q]
                for i in keep[::7]:
                    at = np.array([q])
                    raw_low = np.array([(low[i, q] - shift - error[q]) / product.unit(at)[0]])
                    raw_high = np.array([(high[i, q] - shift + error[q]) / product.unit(at)[0]])
                    score = product.scores(ready, slice(None), Scratch())[i, q] if i == keep[0] else None
                    assert product.values(product.at_most(raw_low))[0] <= raw_low[0] + 1e-30
                    assert product.values(product.at_least(raw_high))[0] >= min(raw_high[0], 2.0**31 - 1)
                    if score is not None:
                        assert product.at_most(raw_low)[0] <= score <= product.at_least(raw_high)[0]


@pytest.mark.parametrize(("name", "most"), [("int8", 0.03), ("bfloat16", 5e-3), ("float32", 1e-4), ("float64", 2e-13)])
def test_bounds_are_tight_enough_to_be_of_use(name: str, most: float) -> None:
    queries, candidates = plain(np.random.default_rng(0), 20, 500, 512)
    dense, parts = blocks(queries, candidates, True)
    product = MAKERS[name](dense.queries, dense.center(parts[0]), parts[0])
    assert product.error(product.prepare(parts[0]), slice(None)).max() < most


def test_rows_that_suit_int8_badly_are_left_over() -> None:
    queries, candidates = plain(np.random.default_rng(0), 5, 400, 256)
    candidates[17] = heavy_tails(np.random.default_rng(1), 1, 1, 256)[1]
    dense, parts = blocks(queries, candidates, True)
    product = filter.Int8(dense.queries, dense.center(parts[0]), parts[0])
    assert 17 in product.prepare(parts[0]).left_over


def test_ordered_sum_is_the_same_in_any_company() -> None:
    rng = np.random.default_rng(0)
    for d in (1, 2, 5, 16, 17, 31, 100, 513):
        x = rng.standard_normal((700, d)) * 10.0 ** rng.uniform(-8, 8, (700, d))
        whole = exact.ordered_sum(x.copy())
        assert np.array_equal(whole, [exact.ordered_sum(row[None].copy())[0] for row in x])
        assert np.array_equal(whole[::-1], exact.ordered_sum(x[::-1].copy()))
        assert np.array_equal(whole, exact.ordered_sum(np.asfortranarray(x)))


def test_exact_scores_are_near_the_rational_ones() -> None:
    queries, candidates = wild_norms(np.random.default_rng(0), 4, 40, 33)
    candidates[0] = queries[0]
    norms = exact.norms(candidates)
    dots = exact.pair_dots(candidates, queries[:1])
    for i, row in enumerate(candidates.tolist()):
        true = sum(Fraction(x) * Fraction(y) for x, y in zip(row, queries[0].tolist(), strict=True))
        length = float(norms[i]) * float(exact.norms(queries[:1])[0])
        assert abs(float((Fraction(float(dots[i])) - true) / Fraction(length))) <= exact.definition_error(33)


def test_bfloat16_order() -> None:
    torch = pytest.importorskip("torch")
    patterns = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.int16)
    values = torch.from_numpy(patterns.copy()).view(torch.bfloat16).double().numpy()
    finite = np.isfinite(values)
    order = filter._in_order(patterns[finite].copy(), np.empty(finite.sum(), np.int16))
    ranked = values[finite][np.argsort(order)]
    assert np.all(np.diff(ranked) >= 0)
