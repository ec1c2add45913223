"""Counts against brute force, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from omnirecall.ranking import BFloat16, RankingError, rank


def test_counts_on_whole_numbers() -> None:
    queries = np.array([[1.0, 0.0]], np.float32)
    candidates = np.array([[1, 0], [2, 0], [1, 1], [0, 1], [-1, 0], [3, 3]], np.float32)
    ranks = rank(queries, candidates, [[2, 0]], top_k=4)
    assert ranks.greater.tolist() == [2, 0]
    assert ranks.tied.tolist() == [1, 1]
    assert ranks.top_ids.tolist() == [[0, 1, 2, 5]]
    by_index = rank(queries, candidates, [[2, 0]], order=np.arange(6)[::-1])
    assert by_index.greater.tolist() == [3, 1]
    assert by_index.tied.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": np.array([[np.nan, 1.0]])}, "row 0 of the queries"),
        ({"candidates": np.array([[1.0, 1.0], [0.0, 0.0]])}, "row 1 of the candidates is a zero"),
        ({"candidates": np.ones((2, 3))}, "dimensions"),
        ({"positives": [[0], [1]]}, "2 lists for 1 queries"),
        ({"positives": [[2]]}, "row 2"),
        ({"positives": [[1, 1]]}, "twice"),
        ({"pool": [[0]], "positives": [[1]]}, "outside its pool"),
        ({"pool": [[0, 0]]}, "twice"),
        ({"exclude": [[0]]}, "excluded"),
        ({"pool": [[]], "positives": [[]]}, "empty"),
        ({"similarity": "l2"}, "similarity"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "queries": np.ones((1, 2), np.float32),
        "candidates": np.ones((2, 2), np.float32),
        "positives": [[0]],
    }
    with pytest.raises(RankingError, match=message):
        rank(**(arguments | change))  # type: ignore[arg-type]


def test_bfloat16_is_read_by_value() -> None:
    values = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    cut = (bits.astype(np.uint32) << 16).view(np.float32)
    a, b = rank(BFloat16(bits), BFloat16(bits), [[i] for i in range(20)]), rank(cut, cut, [[i] for i in range(20)])
    assert np.array_equal(a.scores, b.scores)
    assert np.array_equal(a.top_ids, b.top_ids)
