"""From vectors as a model emitted them to vectors as a suite ranks them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirecall import columns
from omnirecall.protocol.suites import VectorPolicy
from omnirecall.ranking import BFloat16, Ragged
from omnirecall.ranking.inputs import read_table

_BLOCK = 4096


def as_ranked(vectors: Any, policy: VectorPolicy) -> Any:
    """Vectors as the store gives them, divided by their norms and rounded to the policy's dtype where it says so.

    Where it says neither, they stay where they lie; else the result is a column.
    """
    if not policy.normalised and policy.dtype == "model":
        return vectors
    if isinstance(vectors, Ragged):
        return Ragged(as_ranked(vectors.values, policy), vectors.offsets)
    table = read_table(vectors, "vectors")
    kind = {"bfloat16": np.uint16, "float16": np.float16}.get(policy.dtype, np.float32)
    out = columns.empty((len(table), table.dimension), kind)
    for start in range(0, len(table), _BLOCK):
        rows = table.block(start, min(start + _BLOCK, len(table)))
        if policy.normalised:
            norms = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1, keepdims=True))
            rows = (rows / norms).astype(np.float32)
        out[start : start + len(rows)] = bfloat16_bits(rows) if policy.dtype == "bfloat16" else rows
        columns.touched(rows.nbytes)
    return BFloat16(out) if policy.dtype == "bfloat16" else out


def first_zero(vectors: Any) -> int | None:
    """The first item whose vector is all zero, or that has such a vector; None if there is none."""
    table = read_table(vectors.values if isinstance(vectors, Ragged) else vectors, "vectors")
    for start in range(0, len(table), _BLOCK):
        zero = np.flatnonzero(~table.block(start, min(start + _BLOCK, len(table))).any(axis=1))
        if len(zero):
            row = start + int(zero[0])
            return int(np.searchsorted(vectors.offsets, row, side="right")) - 1 if isinstance(vectors, Ragged) else row
    return None


def bfloat16_bits(vectors: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of float32 values rounded to bfloat16, halves to even: uint16, the same shape."""
    bits = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
