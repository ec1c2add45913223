"""Vectors as a suite ranks them, against torch's own rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirecall.embedding.ranked import as_ranked, bfloat16_bits
from omnirecall.protocol.suites import VectorPolicy
from omnirecall.ranking import BFloat16

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
