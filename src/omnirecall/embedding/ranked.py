"""From vectors as a model emitted them to vectors as a suite ranks them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.suites import VectorPolicy
from omnirecall.ranking import BFloat16

Ranked = NDArray[np.floating] | BFloat16


def as_ranked(vectors: NDArray[np.float32], policy: VectorPolicy) -> Ranked:
    """The vectors, shape (n, dimension), divided by their norms and rounded to the policy's dtype where it says so."""
    if policy.normalised:
        norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
        vectors = (vectors / norms).astype(np.float32)
    if policy.dtype == "bfloat16":
        return BFloat16(bfloat16_bits(vectors))
    return vectors.astype(np.float16) if policy.dtype == "float16" else vectors


def bfloat16_bits(vectors: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of float32 values rounded to bfloat16, halves to even: uint16, the same shape."""
    bits = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
