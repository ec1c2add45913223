"""Segments: the files in which one process after another appends vectors.

Each process that embeds appends to a segment of its own, three files:

    NAME.vectors   the vectors as the model emitted them, row after row, in its own dtype (bfloat16 as its bits)
    NAME.rows      an Arrow IPC stream, a batch per append: keys, numbers of vectors, notes, and checksums of these and the vectors
    NAME.index     a safetensors file, written when the segment is closed: the keys in order, and their rows

Arrow cannot lengthen a column in place, so the vectors stand beside it as plain rows: they are written once, and read as one
matrix where they lie. ``.rows`` is what counts: vectors that it does not name are not there. The index is made from it again
where it is missing. A segment that its process did not close, as when it was killed, is checked by its checksums when it is next
opened, and closed after the last whole append.
"""

from __future__ import annotations

import io
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from omnirecall import columns
from omnirecall.errors import RunError
from omnirecall.files import whole_file
from omnirecall.locks import hold, is_free

KEY_BYTES = 16
_TOGETHER = 64
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}

Keys = NDArray[np.uint64]
"""Keys as pairs of numbers, shape (n, 2)."""
Ints = NDArray[np.int64]
Warnings = dict[int, list[str]]
"""What was amiss with media, by row."""


def no_keys() -> Keys:
    """No keys, shape (0, 2)."""
    return np.zeros((0, 2), np.uint64)


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of the results must know of one vector. ``warnings``: what was amiss with its media, one sentence each.

    ``tokens_cut``, ``frame_tokens``: as in ``models.base.Encoded``.
    """

    warnings: tuple[str, ...] = ()
    tokens_cut: int = 0
    frame_tokens: int = 0


NO_NOTE = Note()


class SegmentHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a segment's vectors are laid out. ``ragged``: an item has as many vectors as its row says, else one."""

    dtype: str
    dimension: int
    ragged: bool


_ROW = pa.schema(
    [
        ("key", pa.binary(KEY_BYTES)),
        ("count", pa.int64()),
        ("tokens_cut", pa.int32()),
        ("frame_tokens", pa.int32()),
        ("warnings", pa.list_(pa.string())),
    ]
)
_INDEX = {"high": "U64", "low": "U64", "row": "I64", "begin": "I64", "tokens_cut": "I32", "frame_tokens": "I32"}
"""The tensors of an index, in the order of the file, by the dtypes of safetensors."""
_NUMPY: dict[str, np.dtype[Any]] = {"U64": np.dtype("<u8"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4")}


@dataclass(frozen=True, slots=True)
class Rows:
    """What an append says of its vectors. ``count``: of vectors, for each key. ``warning_ends`` (n + 1): in ``said``."""

    key: Keys
    count: Ints
    tokens_cut: NDArray[np.int32]
    frame_tokens: NDArray[np.int32]
    warning_ends: NDArray[np.int32]
    said: list[str]
    noted: bool = True
    """False only where no vector has a note."""

    @classmethod
    def of(cls, keys: Keys, count: Ints, notes: Sequence[Note]) -> Rows:
        """With the notes of the vectors, or none."""
        n = len(keys)
        cut, frames, ends = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n + 1, np.int32)
        said: list[str] = []
        noted = [(row, note) for row, note in enumerate(notes) if note is not NO_NOTE]
        for row, note in noted:
            cut[row], frames[row], ends[row + 1] = note.tokens_cut, note.frame_tokens, len(note.warnings)
            said += note.warnings
        if said:
            np.cumsum(ends, out=ends)
        return cls(np.ascontiguousarray(keys).astype("<u8", copy=False), count, cut, frames, ends, said, bool(noted))

    @classmethod
    def read(cls, batch: pa.RecordBatch) -> Rows:
        """From a batch of ``.rows``; ArrowInvalid where it is not sound."""
        batch.validate(full=True)
        key, count, cut, frames, warnings = batch.columns
        return cls(
            numbers(key, "<u8", 2).reshape(-1, 2),
            numbers(count, "<i8"),
            numbers(cut, "<i4"),
            numbers(frames, "<i4"),
            numbers(warnings.offsets, "<i4"),
            warnings.flatten().to_pylist(),
        )

    @property
    def check(self) -> int:
        """The checksum of all of it."""
        parts = (self.key, self.count, self.tokens_cut, self.frame_tokens, self.warning_ends)
        return checksum(b"".join([msgspec.json.encode(self.said), *(part.tobytes() for part in parts)]))

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """As Arrow has it, on the same memory."""
        key = pa.Array.from_buffers(pa.binary(KEY_BYTES), len(self.key), [None, pa.py_buffer(self.key)])
        noted = _noted(self) if self.noted else _not_noted(len(self.key))
        return pa.RecordBatch.from_arrays([key, _array(pa.int64(), self.count), *noted], schema=schema)

    def warnings(self, start: int) -> Warnings:
        """The warnings by row, where the first row is number ``start``."""
        ends = self.warning_ends
        return {start + row: self.said[ends[row] : ends[row + 1]] for row in np.flatnonzero(np.diff(ends)).tolist()}


def _noted(rows: Rows) -> list[pa.Array]:
    """The last three columns."""
    warnings = pa.ListArray.from_arrays(_array(pa.int32(), rows.warning_ends), pa.array(rows.said, pa.string()))
    return [_array(pa.int32(), rows.tokens_cut), _array(pa.int32(), rows.frame_tokens), warnings]


@lru_cache(maxsize=4)
def _not_noted(count: int) -> list[pa.Array]:
    """The same for vectors without notes, as nearly all are: most of the time of a small append would go into making them."""
    return _noted(Rows.of(np.zeros((count, 2), np.uint64), np.zeros(count, np.int64), ()))


def checksum(content: bytes | memoryview) -> int:
    """XXH3, 64 bits: several times as fast as a CRC, so that it costs little beside the write."""
    return xxhash.xxh3_64_intdigest(content)


def _array(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """Numbers as a column, on the same memory. (pa.array would import pandas where that is installed, in a third of a second.)"""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers(column: pa.Array, dtype: str, width: int = 1) -> NDArray[Any]:
    """A column's values where they lie, ``width`` numbers each."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype)[width * column.offset : width * (column.offset + len(column))]


class Writer:
    """A segment that grows. Other processes may read it meanwhile; a lock tells them that it is alive."""

    def __init__(self, folder: Path, header: SegmentHeader) -> None:
        self.header = header
        self._schema = _ROW.with_metadata({"segment": msgspec.json.encode(header)})
        self._coming, self._listing = io.BytesIO(), _Listing()
        self._stream = pa.ipc.new_stream(self._coming, self._schema)
        with disk_errors(folder):
            self.path, self._rows = _begun(folder)  # first, so that vectors without rows are nobody's
            self._vectors = self.path.with_suffix(".vectors").open("xb", buffering=0)

    def append(self, keys: Keys, values: NDArray[Any], counts: Ints, notes: Sequence[Note]) -> None:
        """Vectors first, then the rows that name them: a kill between the two leaves bytes that nothing names."""
        content = values.reshape(-1).view(np.uint8).data
        rows = Rows.of(keys, counts, notes)
        checks = {"vectors": str(checksum(content)), "rows": str(rows.check)}
        self._stream.write_batch(rows.batch(self._schema), custom_metadata=checks)
        with disk_errors(self.path.parent):
            _write_all(self._vectors, content)
            self._write_rows()
        self._listing.add(rows)

    def _write_rows(self) -> None:
        """What the stream holds, in one piece."""
        content = self._coming.getvalue()
        self._coming.seek(0)
        self._coming.truncate()
        _write_all(self._rows, memoryview(content))

    def close(self) -> None:
        """Make sure that all is on the disk, then write the index."""
        try:
            with disk_errors(self.path.parent):
                self._stream.close()
                self._write_rows()
                for file in (self._vectors, self._rows):
                    os.fsync(file.fileno())
                _write_index(self.path, self._listing.segment(self.header, segment_matrix(self.path, self.header)))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the segment as it is; whoever opens it next treats it as one whose process was killed."""
        self._vectors.close()
        self._rows.close()


def _begun(folder: Path) -> tuple[Path, IO[bytes]]:
    """A new ``.rows`` file, locked; another one where it was removed as left behind before it was locked."""
    while True:
        path = folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}.rows"
        file = path.open("xb", buffering=0)
        hold(file)
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()


def _write_all(file: IO[bytes], data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write into a RunError that says what is kept."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror or error}); what is embedded already is kept: free the disk"
            f" and run again"
        ) from None


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, open for reading. ``high``, ``low``, ``row``: its keys in the order of their first halves, and the row of each.

    ``begin``: where each row's vectors begin in ``values``. ``tokens_cut``, ``frame_tokens``: by row.
    """

    header: SegmentHeader
    values: NDArray[Any]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    row: Ints
    begin: Ints
    tokens_cut: NDArray[np.int32]
    frame_tokens: NDArray[np.int32]
    warnings: Warnings = field(default_factory=dict)

    def spans(self, rows: Ints) -> tuple[Ints, Ints]:
        """Where the vectors of each row begin and end in ``values``."""
        after = np.minimum(rows + 1, len(self.begin) - 1)
        return self.begin[rows], np.where(rows + 1 < len(self.begin), self.begin[after], len(self.values))

    def find(self, keys: Keys) -> Ints:
        """The row of each key, or -1; int64 of shape (n,)."""
        if len(self.row) == 0 or len(keys) == 0:
            return np.full(len(keys), -1, np.int64)
        order = np.argsort(keys[:, 0])  # so that the index is read in order
        high, low = keys[order, 0], keys[order, 1]
        place = np.searchsorted(self.high, high)
        found = np.full(len(keys), -1, np.int64)
        open_ = np.arange(len(keys))
        while len(open_):  # one round, and one more for each pair of keys with equal first halves
            open_ = open_[place[open_] < len(self.high)]
            open_ = open_[self.high[place[open_]] == high[open_]]
            hit = self.low[place[open_]] == low[open_]
            found[order[open_[hit]]] = self.row[place[open_[hit]]]
            open_ = open_[~hit]
            place[open_] += 1
        return found


def opened(path: Path) -> Segment | None:
    """The segment behind a ``.rows`` file; None if nothing of it can be read. One that a dead process left is closed first."""
    segment = _from_index(path)
    if segment is not None:
        return segment
    with suppress(OSError), path.open("rb") as file:  # where nothing can be written, it is read from its rows each time
        dead = is_free(file)
        segment = _from_rows(path, checked=True)
        if dead and segment is not None:
            _close_for_the_dead(path, segment)
    return segment


def _close_for_the_dead(path: Path, segment: Segment) -> None:
    """Write the index of a segment whose process is gone; first what it names must be on the disk."""
    for left in path.parent.glob(f".{path.stem}.index.*.tmp"):
        left.unlink(missing_ok=True)
    for part in (path.with_suffix(".vectors"), path):
        with part.open("rb") as file:
            os.fsync(file.fileno())
    _write_index(path, segment)


def is_empty(path: Path) -> bool:
    """Whether nothing was appended to a ``.rows`` file yet, or it is gone."""
    try:
        return path.stat().st_size == 0
    except OSError:  # removed meanwhile
        return True


def index_agrees(path: Path) -> bool:
    """Whether the index of a ``.rows`` file, if there is one, says what its rows do."""
    index, rows = _from_index(path), _from_rows(path, checked=False)
    if index is None or rows is None:
        return index is None
    same = all(np.array_equal(getattr(index, name), getattr(rows, name)) for name in _INDEX)
    return same and index.header == rows.header and index.warnings == rows.warnings


def alive(path: Path) -> bool:
    """Whether a process is appending to the segment of a ``.rows`` file."""
    with path.open("rb") as file:
        return not is_free(file)


def _from_index(path: Path) -> Segment | None:
    try:
        with path.with_suffix(".index").open("rb") as file:
            area = columns.map_file(file)
        start = 8 + int.from_bytes(area[:8], "little")
        head = msgspec.json.decode(area[8 : min(start, len(area))])
        said = msgspec.json.decode(head["__metadata__"]["omnirecall"], type=_Said)
        rows = int(head["row"]["shape"][0])
        if head != _index_head(rows, said):
            return None
        high, low, row, begin, cut, frames = (
            np.frombuffer(area, _NUMPY[kind], rows, start + head[name]["data_offsets"][0])
            for name, kind in _INDEX.items()
        )
        values = segment_matrix(path, said.segment)
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, ValueError, ArithmeticError):
        return None
    if len(values) < said.end:
        return None
    return Segment(said.segment, values[: said.end], high, low, row, begin, cut, frames, said.warnings)


def segment_matrix(path: Path, header: SegmentHeader) -> NDArray[Any]:
    """The whole rows of a segment's vectors, mapped from their file."""
    kind = np.dtype(DTYPES[header.dtype])
    with path.with_suffix(".vectors").open("rb") as file:
        rows = os.fstat(file.fileno()).st_size // (kind.itemsize * header.dimension)
        return columns.mapped(file, kind, (rows, header.dimension))


@dataclass(frozen=True, slots=True)
class Append:
    """One batch of a ``.rows`` file: what it says, and the checksum of all its vectors' bytes."""

    rows: Rows
    check: int

    @property
    def vectors(self) -> int:
        """How many vectors it names."""
        return int(self.rows.count.sum())


def read_header(path: Path) -> SegmentHeader | None:
    """The header of a ``.rows`` file; None if it cannot be read."""
    with suppress(*_TORN):
        return _header(_reader(path))
    return None


def read_appends(path: Path, *, checked: bool = True) -> Iterator[Append]:
    """The whole batches of a ``.rows`` file, in order; a torn one ends them, and with ``checked`` an altered one."""
    with suppress(*_TORN):
        reader = _reader(path)
        _header(reader)
        while reader.schema.equals(_ROW):
            batch, said = reader.read_next_batch_with_custom_metadata()
            rows = Rows.read(batch)
            if checked and int(said[b"rows"]) != rows.check:
                break
            yield Append(rows, int(said[b"vectors"]))
            columns.touched(batch.nbytes)


_TORN = (pa.ArrowException, OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError, StopIteration)


def _reader(path: Path) -> pa.ipc.RecordBatchStreamReader:
    with path.open("rb") as file:  # a map, so that no damaged length is asked of the memory
        return pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(columns.map_file(file))))


def _header(reader: Any) -> SegmentHeader:
    return msgspec.json.decode(reader.schema.metadata[b"segment"], type=SegmentHeader)


def _from_rows(path: Path, *, checked: bool) -> Segment | None:
    """A segment read from its rows; with ``checked``, up to the first append that is not what was written."""
    header = read_header(path)
    if header is None:
        return None
    try:
        values = segment_matrix(path, header)
    except (OSError, KeyError, ValueError, ArithmeticError):
        return None
    listing = _Listing()
    for append in whole_appends(read_appends(path, checked=checked), values, checked=checked):
        listing.add(append.rows)
    return listing.segment(header, values)


class _Listing:
    """What the appends of a segment have named so far."""

    def __init__(self) -> None:
        self._coming: list[Rows] = []
        self._keys, self._begins = columns.Growing("<u8", 2), columns.Growing("<i8")
        self._cut, self._frames = columns.Growing("<i4"), columns.Growing("<i4")
        self._warnings: Warnings = {}
        self._rows = self._end = 0

    def add(self, rows: Rows) -> None:
        """Take in an append."""
        self._coming.append(rows)
        if rows.said:
            self._warnings |= rows.warnings(self._rows)
        self._rows += len(rows.key)
        if len(self._coming) == _TOGETHER:
            self._take_in()

    def _take_in(self) -> None:
        coming, self._coming = self._coming, []
        if coming:
            counts = np.concatenate([rows.count for rows in coming])
            ends = self._end + np.cumsum(counts)
            self._begins.extend(ends - counts)
            self._end = int(ends[-1]) if len(ends) else self._end
            self._keys.extend(np.concatenate([rows.key for rows in coming]))
            self._cut.extend(np.concatenate([rows.tokens_cut for rows in coming]))
            self._frames.extend(np.concatenate([rows.frame_tokens for rows in coming]))

    def segment(self, header: SegmentHeader, values: NDArray[Any]) -> Segment:
        """All of it, in the order of the keys; nothing can be added any more."""
        self._take_in()
        key = self._keys.column()
        high, low, order = columns.Growing(np.uint64), columns.Growing(np.uint64), columns.Growing(np.int64)
        for run in columns.runs(key[:, 0]):  # `find` looks at every key with the first half that it seeks
            some = key[run]
            rising = np.argsort(some[:, 0], kind="stable")
            for column, part in ((high, some[rising, 0]), (low, some[rising, 1]), (order, run[rising])):
                column.extend(part)
            columns.scattered(key.nbytes, len(run))
        return Segment(
            header,
            values[: self._end],
            high.column(),
            low.column(),
            order.column(),
            self._begins.column(),
            self._cut.column(),
            self._frames.column(),
            self._warnings,
        )


def whole_appends(appends: Iterator[Append], values: NDArray[Any], *, checked: bool) -> Iterator[Append]:
    """The appends, from the first on, that have all their vectors; with ``checked``, also the very bytes that were written."""
    end = 0
    for append in appends:
        begin, end = end, end + append.vectors
        if end > len(values):
            return
        if checked:
            content = values[begin:end].reshape(-1).view(np.uint8)
            if checksum(content.data) != append.check:
                return
            columns.touched(content.nbytes)
        yield append


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index says beside its tensors. ``end``: how many vectors its rows name."""

    segment: SegmentHeader
    warnings: Warnings
    end: int


def _index_head(rows: int, said: _Said) -> dict[str, Any]:
    """The header of an index, as safetensors has it."""
    head: dict[str, Any] = {"__metadata__": {"omnirecall": msgspec.json.encode(said).decode()}}
    end = 0
    for name, kind in _INDEX.items():
        begin, end = end, end + rows * _NUMPY[kind].itemsize
        head[name] = {"dtype": kind, "shape": [rows], "data_offsets": [begin, end]}
    return head


def _write_index(path: Path, segment: Segment) -> None:
    rows, said = len(segment.row), _Said(segment.header, segment.warnings, len(segment.values))
    encoded = msgspec.json.encode(_index_head(rows, said))
    encoded += b" " * (-len(encoded) % 8)  # so that the numbers stand where their dtype wants them
    with whole_file(path.with_suffix(".index")) as temporary, temporary.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, kind in _INDEX.items():
            column = getattr(segment, name)
            for part in columns.parts(rows):
                file.write(column[part].astype(_NUMPY[kind]).tobytes())
                columns.touched(column[part].nbytes)
