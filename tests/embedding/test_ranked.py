"""Vectors as a suite ranks them, against torch's own rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirecall.embedding.ranked import as_ranked, bfloat16_bits, first_zero
from omnirecall.protocol.suites import VectorPolicy
from omnirecall.ranking import BFloat16, Ragged, Segments
from omnirecall.ranking.inputs import widen

torch = pytest.importorskip("torch")


def bits_by_torch(vectors: np.ndarray) -> np.ndarray:
    return torch.from_numpy(vectors).to(torch.bfloat16).view(torch.uint16).numpy()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=64))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    """Halves go to even, over the whole range."""
    vectors = np.array(values, np.float32).reshape(1, -1)
    np.testing.assert_array_equal(bfloat16_bits(vectors), bits_by_torch(vectors))


def test_halves_go_to_even() -> None:
    """The two halfway cases beside one."""
    halves = np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32)
    np.testing.assert_array_equal(bfloat16_bits(halves), [[0x3F80, 0x3F82]])


def test_normalised_then_rounded() -> None:
    """A card that asks for normalised bfloat16 vectors gets unit vectors, then rounds."""
    vectors = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32) * 100
    ranked = as_ranked(vectors, VectorPolicy(normalised=True, dtype="bfloat16"))
    assert isinstance(ranked, BFloat16)
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors).double(), dim=1).float().numpy()
    np.testing.assert_array_equal(ranked.bits, bits_by_torch(unit))


def test_the_model_s_own_vectors_stay() -> None:
    """Without a policy nothing changes."""
    vectors = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    assert as_ranked(vectors, VectorPolicy()) is vectors
    assert as_ranked(vectors, VectorPolicy(dtype="float16")).dtype == np.float16


def plain(kind: str, rows: int = 9000, seed: int = 0) -> tuple[np.ndarray, object]:
    """float32 numbers that the dtype holds exactly, and the matrix in that dtype."""
    values = np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)
    if kind == "bfloat16":
        bits = bits_by_torch(values)
        return widen(bits), BFloat16(bits)
    matrix = values.astype(kind)
    return matrix.astype(np.float32), matrix


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["model", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("normalised", [False, True])
def test_every_place_that_vectors_may_lie_in(kind: str, dtype: str, normalised: bool) -> None:
    """A matrix, segments, chosen rows of them, and lists of vectors give the same as torch does row by row."""
    values, matrix = plain(kind)
    expected = torch.from_numpy(values)
    if normalised:
        expected = torch.nn.functional.normalize(expected.double(), dim=1).float()
    if dtype in ("bfloat16", "float16"):
        expected = expected.to(getattr(torch, dtype)).float()
    policy = VectorPolicy(normalised=normalised, dtype=dtype)  # type: ignore[arg-type]
    stored = matrix.bits if isinstance(matrix, BFloat16) else matrix
    split = Segments((stored[:10], stored[10:5000], stored[5000:]))
    segments = BFloat16(split) if isinstance(matrix, BFloat16) else split
    rows = np.random.default_rng(1).permutation(9000)
    offsets = np.array([0, 4, 9000])
    for held, order in ((matrix, slice(None)), (segments, slice(None)), ((segments, rows), rows)):
        for lists in (False, True):
            ranked = as_ranked(Ragged(held, offsets) if lists else held, policy)
            if lists:
                assert isinstance(ranked, Ragged)
                np.testing.assert_array_equal(ranked.offsets, offsets)
                ranked = ranked.values
            if dtype == "model" and not normalised:
                assert ranked is held
            else:
                assert isinstance(ranked, BFloat16) == (dtype == "bfloat16")
                got = widen(ranked.bits if isinstance(ranked, BFloat16) else ranked)
                np.testing.assert_array_equal(got, expected.numpy()[order])


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("row", [0, 4095, 4096, 8999])
def test_the_first_zero(kind: str, row: int) -> None:
    """The item that it belongs to, whichever block it lies in; numbers of both signs that cancel are no zero."""
    _, matrix = plain(kind)
    stored = matrix.bits if isinstance(matrix, BFloat16) else matrix
    assert first_zero(matrix) is None
    stored[1] = np.array([1, -1, 0], np.float32).astype(stored.dtype) if kind != "bfloat16" else [0x3F80, 0xBF80, 0]
    assert first_zero(matrix) is None
    stored[row] = 0
    stored[8999] = 0
    assert first_zero(matrix) == row
    order = np.arange(9000)[::-1]
    assert first_zero((matrix, order)) == 0
    assert first_zero((matrix, order[1:])) == (None if row == 8999 else 8998 - row)
    assert first_zero(Ragged(matrix, np.array([0, 1, 4096, 9000]))) == (row > 0) + (row >= 4096)
