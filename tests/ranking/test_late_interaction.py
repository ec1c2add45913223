"""MaxSim against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranking_reference import count, dot, norm, ordered_sum

from omnirecall.ranking import BFloat16, Ragged, RankingError, Ranks, late_interaction, rank, score_pairs


def items(rng: np.random.Generator, n: int, d: int, most: int) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, most + 1, n))])
    return Ragged(rng.standard_normal((offsets[-1], d)).astype(np.float32), offsets)


def parts(x: Ragged) -> list[list[list[float]]]:
    values = x.values.astype(np.float64)
    return [values[a:b].tolist() for a, b in zip(x.offsets[:-1], x.offsets[1:], strict=True)]


def reference(queries: Ragged, candidates: Ragged, positives: list[list[int]], similarity: str, **options: Any) -> Any:
    everyone = parts(candidates)
    lengths = [[norm(row) for row in item] for item in everyone]
    out = []
    for i, query in enumerate(parts(queries)):
        sizes = [norm(row) for row in query]
        scale = 1.0
        if similarity == "dot":
            scale = sum(sizes) / len(sizes) * max((max(lengths[p]) for p in positives[i]), default=1.0)
        scores = []
        for j, item in enumerate(everyone):
            largest = []
            for size, row in zip(sizes, query, strict=True):
                over = [size * length if similarity == "cosine" else 1.0 for length in lengths[j]]
                largest.append(max(dot(row, other) / by for other, by in zip(item, over, strict=True)))
            scores.append(ordered_sum(largest) / len(largest) / scale)
        out.append(
            count(scores, positives[i], i, options.get("pool"), options.get("exclude"), 10, options.get("order"))
        )
    return out


def agree(ranks: Ranks, expected: Any) -> None:
    for i, (greater, tied, top) in enumerate(expected):
        mine = slice(ranks.offsets[i], ranks.offsets[i + 1])
        assert ranks.greater[mine].tolist() == greater
        assert ranks.tied[mine].tolist() == tied
        assert ranks.top_ids[i][ranks.top_ids[i] >= 0].tolist() == top


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("kind", ["plain", "repeated", "constant", "near", "wild"])
def test_maxsim_counts_what_the_definition_counts(kind: str, similarity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_interaction, "_BLOCK_VECTORS", 60)
    monkeypatch.setattr(late_interaction, "_PRODUCT_BYTES", 2000)
    rng = np.random.default_rng(4)
    queries, candidates = items(rng, 6, 7, 4), items(rng, 70, 7, 9)
    if kind == "repeated":
        candidates.values[40:80] = candidates.values[:40]
    if kind == "constant":
        queries.values[:], candidates.values[:] = queries.values[0], candidates.values[0]
    if kind == "near":
        candidates.values[1:] = np.nextafter(candidates.values[0], np.float32(9))
        candidates.values[::3] = candidates.values[0]
    if kind == "wild":
        candidates.values[:] *= (10.0 ** rng.uniform(-25, 25, len(candidates.values)))[:, None].astype(np.float32)
    positives = [rng.choice(70, size, replace=False).tolist() for size in (1, 2, 0, 3, 1, 1)]
    order = rng.permutation(70)
    exclude = [[j for j in rng.integers(0, 70, 5).tolist() if j not in mine] for mine in positives]
    pool = [sorted({*mine, *rng.integers(0, 70, 30).tolist()}) for mine in positives]
    for options in ({}, {"exclude": exclude, "order": order}, {"pool": pool}):
        ranks = rank(queries, candidates, positives, similarity=similarity, **options)  # type: ignore[arg-type]
        agree(ranks, reference(queries, candidates, positives, similarity, **options))


def test_maxsim_pieces_and_types() -> None:
    rng = np.random.default_rng(1)
    queries, candidates = items(rng, 10, 16, 5), items(rng, 200, 16, 12)
    for x in (queries, candidates):
        x.values.view(np.uint32)[:] &= np.uint32(0xFFFF0000)
    positives = [[i, i + 50] for i in range(10)]
    whole = rank(queries, candidates, positives)
    known = score_pairs(queries, candidates, positives)
    halves = [[np.arange(i, 200, 2)] * 10 for i in range(2)]
    merged = Ranks.merge([rank(queries, candidates, positives, pool=p, positive_scores=known) for p in halves])
    for name in ("greater", "tied", "scores", "top_ids", "top_scores"):
        assert np.array_equal(getattr(whole, name), getattr(merged, name))
    half = [
        Ragged(BFloat16((x.values.view(np.uint32) >> 16).astype(np.uint16)), x.offsets) for x in (queries, candidates)
    ]
    assert np.array_equal(rank(half[0], half[1], positives).greater, whole.greater)


def test_one_vector_each_is_plain_retrieval() -> None:
    rng = np.random.default_rng(2)
    q, c = rng.standard_normal((20, 8)).astype(np.float32), rng.standard_normal((300, 8)).astype(np.float32)
    a = rank(q, c, [[i] for i in range(20)])
    b = rank(Ragged(q, np.arange(21)), Ragged(c, np.arange(301)), [[i] for i in range(20)])
    assert np.array_equal(a.greater, b.greater)
    assert np.array_equal(a.top_ids, b.top_ids)


@pytest.mark.parametrize(
    ("queries", "candidates", "message"),
    [
        (Ragged(np.ones((2, 3)), np.array([0, 2])), np.ones((2, 3)), "both be Ragged"),
        (
            Ragged(np.ones((2, 3)), np.array([0, 1])),
            Ragged(np.ones((2, 3)), np.array([0, 2])),
            "offsets of the queries",
        ),
        (
            Ragged(np.ones((2, 3)), np.array([0, 2])),
            Ragged(np.ones((2, 3)), np.array([0, 0, 2])),
            "item 0 of the candidates has no vectors",
        ),
        (Ragged(np.ones((2, 3)), np.array([0, 2])), Ragged(np.ones((2, 4)), np.array([0, 2])), "3 dimensions"),
        (Ragged(np.ones((2, 3)), np.array([0, 2])), Ragged(np.zeros((2, 3)), np.array([0, 2])), "zero vector"),
    ],
)
def test_refusals(queries: Any, candidates: Any, message: str) -> None:
    with pytest.raises(RankingError, match=message):
        rank(queries, candidates, [[0]])
