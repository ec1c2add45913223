"""What the kernel accepts: vectors in several types and places, and lists of row numbers per query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from omnirecall.columns import touched

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Lists = Sequence[Any] | tuple[Any, Any]

_PIECE = 1 << 12


class RankingError(ValueError):
    """Input that cannot be ranked; the message is one sentence that names the row or list at fault."""


@dataclass(frozen=True)
class Segments:
    """Matrices of one dtype and width as one: the rows of the first, then those of the next. They stay where they are."""

    parts: tuple[Array, ...]

    def __post_init__(self) -> None:
        if len({(part.dtype, part.shape[1:]) for part in self.parts}) != 1 or self.parts[0].ndim != 2:
            raise RankingError("segments must be matrices of one dtype and width.")
        object.__setattr__(self, "starts", np.cumsum([0, *(len(part) for part in self.parts)]))

    starts: Ints = field(init=False)
    ndim = 2

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.starts[-1]), self.parts[0].shape[1]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, rows: slice | Ints) -> Array:
        """Rows by number, or a range of them; a copy where they lie in several parts."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise RankingError(f"segments are read in order, not in steps of {step}.")
            first = int(np.searchsorted(self.starts, start, side="right")) - 1
            if first < len(self.parts) and stop <= self.starts[first + 1]:
                return self.parts[first][start - self.starts[first] : stop - self.starts[first]]
            rows = np.arange(start, stop)
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for part in np.unique(owner):
            mine = owner == part
            out[mine] = self.parts[part][rows[mine] - self.starts[part]]
        return out


@dataclass(frozen=True)
class BFloat16:
    """bfloat16 values held as their uint16 bit patterns, shape (n, d): the upper half of a float32."""

    bits: npt.NDArray[np.uint16] | Segments

    def __post_init__(self) -> None:
        if self.bits.dtype != np.uint16:
            raise RankingError(f"bfloat16 bit patterns must be uint16, not {self.bits.dtype}.")


@dataclass(frozen=True)
class Ragged:
    """Several vectors per item (late interaction): item i owns rows `offsets[i]:offsets[i + 1]` of `values`.

    `values` is a matrix (sum of tokens, d) of any accepted type; `offsets` (items + 1) int64, rising from 0.
    """

    values: Any
    offsets: Ints


@dataclass(frozen=True)
class Table:
    """Rows that can be read in any order: a matrix in memory or mapped from a file, or chosen rows of one."""

    values: Array | Segments
    rows: Ints | None = None

    def __len__(self) -> int:
        return len(self.values) if self.rows is None else len(self.rows)

    @property
    def dimension(self) -> int:
        return int(self.values.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the whole matrix."""
        return len(self.values) * self.dimension * self.values.dtype.itemsize

    def block(self, start: int, stop: int) -> Array:
        """Rows start to stop as float32 (float64 where stored so), exactly."""
        found = self.values[start:stop] if self.rows is None else self.values[self.rows[start:stop]]
        touched(found.nbytes)
        return widen(found)

    def take(self, rows: Ints, out: Array | None = None) -> Array:
        """The rows named, as float32 (float64 where stored so), exactly; `out` is used where no widening is due."""
        where = rows if self.rows is None else self.rows[rows]
        touched(len(where) * self.dimension * self.values.dtype.itemsize)
        if out is not None and isinstance(self.values, np.ndarray) and out.dtype == self.values.dtype:
            # Without mode="clip" numpy would fill a buffer first; the row numbers are checked before.
            return np.take(self.values, where, axis=0, out=out[: len(where)], mode="clip")
        return widen(self.values[where])


@dataclass(frozen=True)
class Stream:
    """A re-iterable source of matrices: consecutive candidate rows, held one at a time."""

    source: Iterable[Any]

    def blocks(self, step: int, dimension: int) -> Iterator[tuple[int, Array]]:
        """(first row, rows) in pieces of at most `step` rows, as float32 (float64 where stored so)."""
        start = 0
        for part in self.source:
            values = read_matrix(part, "candidates")
            if values.shape[1] != dimension:
                raise RankingError(
                    f"queries have {dimension} dimensions, but row {start} of the candidates has {values.shape[1]}."
                )
            for first in range(0, len(values), step):
                piece = widen(values[first : first + step])
                yield start, piece
                start += len(piece)


def widen(values: Array) -> Array:
    """Stored values as float32, or float64 where stored so; exact for bfloat16 patterns, float16 and float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64 if values.dtype == np.float64 else np.float32, copy=False)


def read_matrix(values: Any, name: str) -> Array | Segments:
    """The stored matrix behind `values`: float16, float32 or float64, or uint16 for bfloat16."""
    if isinstance(values, BFloat16):
        bits = values.bits
        if bits.ndim != 2:
            raise RankingError(f"{name} must be a matrix, not an array of shape {bits.shape}.")
        return bits
    array = values if isinstance(values, np.ndarray | Segments) else np.asarray(values)
    if array.ndim != 2 or array.dtype not in (np.float16, np.float32, np.float64):
        raise RankingError(
            f"{name} must be a matrix of float16, float32, float64 or BFloat16, not {array.dtype} of shape {array.shape}."
        )
    return array if isinstance(array, Segments) else array.astype(array.dtype.newbyteorder("="), copy=False)


def read_table(values: Any, name: str) -> Table:
    """A matrix, or (matrix, row numbers), as a `Table`."""
    if not isinstance(values, tuple):
        return Table(read_matrix(values, name))
    if len(values) != 2:
        raise RankingError(f"{name} is a tuple of {len(values)}; a tuple must be (table, row numbers).")
    matrix, rows = read_matrix(values[0], name), as_rows(values[1], f"the row numbers of {name}")
    if len(rows) and (rows.min() < 0 or rows.max() >= len(matrix)):
        outside = np.flatnonzero((rows < 0) | (rows >= len(matrix)))
        raise RankingError(f"{name} name row {rows[outside[0]]} of a table with {len(matrix)} rows.")
    return Table(matrix, rows)


def is_stream(values: Any) -> bool:
    """Whether `values` is a source of blocks rather than a matrix, (matrix, rows) or `Ragged`."""
    if isinstance(values, np.ndarray | BFloat16 | tuple | Ragged | Segments) or hasattr(values, "__array__"):
        return False
    if isinstance(values, list):
        return len(values) > 0 and isinstance(values[0], np.ndarray | BFloat16) and _dimensions(values[0]) == 2
    return hasattr(values, "__iter__")


def _dimensions(values: Any) -> int:
    return int(values.bits.ndim if isinstance(values, BFloat16) else values.ndim)


def as_rows(values: Any, name: str) -> Ints:
    """A flat list of whole numbers as int64."""
    array = np.asarray(values if hasattr(values, "__array__") else list(values))
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RankingError(f"{name} must be a flat list of row numbers, not {array.dtype} of shape {array.shape}.")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Lists64:
    """Row numbers per query: those of query i are `rows[offsets[i]:offsets[i + 1]]`; `owner` is the query of each."""

    offsets: Ints
    rows: Ints

    @property
    def owner(self) -> Ints:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def codes(self, n_candidates: int) -> Ints:
        """One number per (query, row), rising with the query and then the row."""
        return self.owner * n_candidates + self.rows


def read_lists(lists: Lists, name: str, n_queries: int, n_candidates: int) -> Lists64:
    """Row-number lists, one per query, or (offsets, rows), checked against the number of queries and candidates."""
    if isinstance(lists, tuple):
        if len(lists) != 2:
            raise RankingError(f"{name} is a tuple of {len(lists)}; a tuple must be (offsets, rows).")
        offsets, rows = as_rows(lists[0], f"{name} offsets"), as_rows(lists[1], f"{name} rows")
        if len(offsets) != n_queries + 1:
            raise RankingError(f"{name} holds {max(0, len(offsets) - 1)} lists for {n_queries} queries.")
        if offsets[0] != 0 or offsets[-1] != len(rows) or np.any(np.diff(offsets) < 0):
            raise RankingError(f"{name}: the offsets must rise from 0 to the number of rows, {len(rows)}.")
    else:
        if len(lists) != n_queries:
            raise RankingError(f"{name} holds {len(lists)} lists for {n_queries} queries.")
        parts = [as_rows(part, f"{name} of query {i}") for i, part in enumerate(lists)]
        offsets = np.zeros(n_queries + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    outside = np.flatnonzero((rows < 0) | (rows >= n_candidates))
    if len(outside):
        query = int(np.searchsorted(offsets, outside[0], side="right")) - 1
        raise RankingError(
            f"{name} of query {query} names row {rows[outside[0]]}, but there are {n_candidates} candidates."
        )
    return Lists64(offsets, rows)


def refuse_repeats(lists: Lists64, name: str, n_candidates: int) -> Ints:
    """Refuse a row that a query's list names twice; returns the sorted codes."""
    codes = lists.codes(n_candidates)
    for start, stop in _pieces(lists.offsets):  # codes rise with the query, so that short sorts do
        codes[start:stop].sort()
    twice = np.flatnonzero(codes[1:] == codes[:-1])
    if len(twice):
        query, row = divmod(int(codes[twice[0]]), n_candidates)
        raise RankingError(f"{name} of query {query} names row {row} twice.")
    return codes


def _pieces(offsets: Ints) -> Iterator[tuple[int, int]]:
    """Consecutive lists in pieces of about `_PIECE` rows, or one list where it is longer."""
    start, total = 0, int(offsets[-1])
    while start < total:
        last = int(np.searchsorted(offsets, start + _PIECE, side="right")) - 1
        stop = int(offsets[last])
        if stop <= start:
            stop = int(offsets[np.searchsorted(offsets, start, side="right")])
        yield start, stop
        start = stop
