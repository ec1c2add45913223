"""Long columns of numbers. Short ones stay in memory, long ones in files without a name, mapped, so that the memory of a run does
not grow with its items.

The files lie in the folder for temporary files, which TMPDIR names, and go with the process, however it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from omnirecall.errors import RunError

Column = NDArray[Any]
Ints = NDArray[np.int64]

IN_MEMORY = 1 << 20
"""Bytes up to which a column is kept in memory."""
PART = 1 << 16
"""Rows that are worked on at a time."""
_RUN = 1 << 18
_READ = 1 << 25
"""Bytes read from maps after which their pages are given back."""
_KINDS = 1 << 12
_AROUND = 1 << 16

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_read = [0]
_lock = threading.Lock()


def parts(n: int, size: int = PART) -> Iterator[slice]:
    """The rows of a column of length ``n``, some at a time."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> Column:
    """A column to be filled. RunError where the temporary folder has no room."""
    kind, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
    size = kind.itemsize * int(np.prod(shape))
    if size <= IN_MEMORY:
        return np.empty(shape, kind)
    with _room(), tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)  # all at once: a map over a full disk ends the process
        return mapped(file, kind, shape, writable=True)


def mapped(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...], *, writable: bool = False) -> Column:
    """What a file holds, mapped; a file shorter than ``shape`` asks for is a ValueError."""
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape))
    if size == 0:
        return np.zeros(shape, kind)
    return np.frombuffer(map_file(file, size, writable=writable), kind).reshape(shape)


def map_file(file: IO[bytes], size: int = 0, *, writable: bool = False) -> mmap.mmap:
    """The first ``size`` bytes of a file, or all of it, as a map whose pages are given back in time."""
    area = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    with _lock:
        _maps.add(area)
    return area


def touched(size: int) -> None:
    """Note that so many bytes of maps were read or written.

    Now and then their pages are given back; the system has their content and maps them again when they are read.
    """
    _read[0] += size
    if _read[0] >= _READ:
        with _lock:
            _read[0] = 0
            for area in _maps:
                area.madvise(mmap.MADV_DONTNEED)


def scattered(size: int, count: int) -> None:
    """Note that so many rows were read or written here and there in ``size`` bytes: the system maps what lies around them too."""
    touched(min(size, count * _AROUND))


class Growing:
    """A column whose length is not known yet, rows of ``width`` numbers."""

    def __init__(self, dtype: DTypeLike, width: int = 0) -> None:
        self._dtype, self._width = np.dtype(dtype), width
        self._held = bytearray()
        self._file: IO[bytes] | None = None

    def extend(self, values: bytes | bytearray | array[int] | Column) -> None:
        """Add rows, as an array or as their bytes."""
        self._held += values.tobytes() if isinstance(values, np.ndarray) else memoryview(values).cast("B")
        if len(self._held) > IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        with _room():
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the column grows)
            self._file.write(self._held)
            self._file.flush()
        self._held = bytearray()

    def column(self) -> Column:
        """All rows, (n,) or (n, width)."""
        if self._file is None:
            values: Column = np.frombuffer(self._held, self._dtype)
        else:
            self._spill()
            with self._file as file:
                values = mapped(file, self._dtype, (file.tell() // self._dtype.itemsize,), writable=True)
        return values.reshape(-1, self._width) if self._width else values


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{tempfile.gettempdir()}: cannot be written ({error.strerror or error}): a run keeps up to 100 bytes an item there;"
            f" free the disk, or name another folder in TMPDIR"
        ) from None


def joined(columns: Sequence[Column], like: Column) -> Column:
    """Columns end to end; ``like`` gives the dtype and width where there are none."""
    if len(columns) == 1:
        return columns[0]
    out = empty((sum(len(column) for column in columns), *like.shape[1:]), like.dtype)
    start = 0
    for column in columns:
        for part in parts(len(column)):
            out[start + part.start : start + part.stop] = column[part]
            touched(2 * column[part].nbytes)
        start += len(column)
    return out


def taken(column: Column, rows: Ints) -> Column:
    """``column[rows]``."""
    out = empty((len(rows), *column.shape[1:]), column.dtype)
    for part in parts(len(rows)):
        out[part] = column[rows[part]]
        touched(out[part].nbytes)
        scattered(column.nbytes, len(out[part]))
    return out


def where(marked: Column) -> Ints:
    """The rows that are marked, rising; ``marked`` is bool."""
    out = empty(sum(int(np.count_nonzero(marked[part])) for part in parts(len(marked))), np.int64)
    end = 0
    for part in parts(len(marked)):
        rows = np.flatnonzero(marked[part]) + part.start
        out[end : end + len(rows)] = rows
        end += len(rows)
        touched(rows.nbytes)
    return out


def sorted_rows(code: Callable[[slice], Ints], n: int, kinds: int) -> Ints:
    """Row numbers below ``n`` by their codes, rows of one code in order; int64 (n,).

    ``code`` gives the codes of a part of the rows, int64 from 0 to ``kinds`` - 1. A counting sort, some rows at a time.
    """
    if n <= _RUN:
        return np.argsort(code(slice(0, n)), kind="stable")
    ends = np.zeros(kinds, np.int64)
    for part in parts(n):
        ends += np.bincount(code(part), minlength=kinds)
    ends = np.cumsum(ends) - ends  # from here on, where the next row of each code goes
    out = empty(n, np.int64)
    for part in parts(n):
        codes = code(part)
        order = np.argsort(
            codes.astype(np.uint16) if kinds <= 1 << 16 else codes, kind="stable"
        )  # of 16 bits, by radix
        ordered = codes[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        counts = np.diff(np.append(starts, len(ordered)))
        before = np.arange(len(ordered)) - np.repeat(starts, counts)
        out[ends[ordered] + before] = order + part.start
        ends[ordered[starts]] += counts
        scattered(out.nbytes, len(codes))
    return out


def _kind(values: Column) -> Ints:
    """The upper bits of unsigned 64-bit values, which hashes spread evenly: below ``_KINDS``."""
    return (values >> np.uint64(52)).astype(np.int64)


def runs(values: Column) -> Iterator[Ints]:
    """Rows of a column of hashes, uint64 (n,), in runs that are short enough to be sorted in memory.

    A run holds all rows of its values, its values lie above those of the runs before it, and rows of equal values rise.
    """
    n = len(values)
    if n <= _RUN:
        yield np.arange(n)
        return
    order = sorted_rows(lambda part: _kind(values[part]), n, _KINDS)
    start = 0
    while start < n:
        stop = min(start + _RUN // 2, n)
        last = _kind(values[order[stop - 1 : stop]])[0]
        while stop < n and _kind(values[order[stop : stop + 1]])[0] == last:
            stop = _end_of(values, order, stop, int(last))
        yield order[start:stop]
        scattered(values.nbytes, stop - start)
        start = stop


def _end_of(values: Column, order: Ints, start: int, kind: int) -> int:
    """Where, from ``start`` on, another kind begins in the next rows, or their end."""
    rows = order[start : start + PART]
    other = np.flatnonzero(_kind(values[rows]) != kind)
    return start + (int(other[0]) if len(other) else len(rows))


class Hashes:
    """Hashes of names, to find those that are used again."""

    def __init__(self) -> None:
        self._coming, self._kept = array("q"), Growing(np.int64)

    def add(self, name: str) -> None:
        """Note a name."""
        self._coming.append(hash(name))
        if len(self._coming) == PART:
            self._keep()

    def _keep(self) -> None:
        self._kept.extend(self._coming)
        self._coming = array("q")

    def repeated(self) -> set[int]:
        """The hashes of which there are two or more: nearly always of equal names."""
        self._keep()
        values, again = self._kept.column(), set[int]()
        for rows in runs(values.view(np.uint64)):
            ordered = np.sort(values[rows])
            again.update(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        return again
