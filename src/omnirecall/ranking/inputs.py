"""What the kernel accepts: vectors in several types and places, and lists of row numbers per query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class RankingError(ValueError):
    """Input that cannot be ranked; the message is one sentence that names the row or list at fault."""


@dataclass(frozen=True)
class BFloat16:
    """bfloat16 values held as uint16 bit patterns, shape (n, d): the upper half of a float32."""

    bits: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        if self.bits.dtype != np.uint16:
            raise RankingError(f"bfloat16 bit patterns must be uint16, not {self.bits.dtype}.")


def widen(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 bit patterns (exact)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


Lists = Sequence[Any] | tuple[Any, Any]


def read_lists(lists: Lists, name: str, n_queries: int, n_candidates: int) -> tuple[Ints, Ints]:
    """Row-number lists, one per query, or (offsets, rows), as offsets (n_queries + 1) and rows, both int64."""
    if isinstance(lists, tuple):
        if len(lists) != 2:
            raise RankingError(f"{name} is a tuple of {len(lists)}; a tuple must be (offsets, rows).")
        offsets, rows = _integers(lists[0], f"{name} offsets"), _integers(lists[1], f"{name} rows")
        if len(offsets) != n_queries + 1:
            raise RankingError(f"{name} holds {len(offsets) - 1} lists for {n_queries} queries.")
        if offsets[0] != 0 or offsets[-1] != len(rows) or np.any(np.diff(offsets) < 0):
            raise RankingError(f"{name}: the offsets must rise from 0 to the number of rows, {len(rows)}.")
    else:
        if len(lists) != n_queries:
            raise RankingError(f"{name} holds {len(lists)} lists for {n_queries} queries.")
        parts = [_integers(part, f"{name} of query {i}") for i, part in enumerate(lists)]
        offsets = np.zeros(n_queries + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    outside = np.flatnonzero((rows < 0) | (rows >= n_candidates))
    if len(outside):
        query = int(np.searchsorted(offsets, outside[0], side="right")) - 1
        raise RankingError(
            f"{name} of query {query} names row {rows[outside[0]]}, but there are {n_candidates} candidates."
        )
    return offsets, rows


def _integers(values: Iterable[int] | npt.ArrayLike, name: str) -> Ints:
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values))  # type: ignore[arg-type]
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RankingError(f"{name} must be a flat list of row numbers, not {array.dtype} of shape {array.shape}.")
    return array.astype(np.int64)
