"""Vectors on disk, found again by the content they were made from.

One folder per model fingerprint and dimension. Each process that embeds appends to a segment of its own, three files:

    NAME.vectors   the vectors as the model emitted them, row after row, in its own dtype (bfloat16 as its bits)
    NAME.rows      an Arrow IPC stream, a batch per append: keys, numbers of vectors, notes, and checksums of these and the vectors
    NAME.index     an Arrow IPC file, written when the segment is closed: the keys in order, and their rows

Arrow cannot lengthen a column in place, so the vectors stand beside it as plain rows: they are written once, and read as one
matrix where they lie. ``.rows`` is what counts: vectors that it does not name are not there. The index is made from it again
where it is missing. A segment that its process did not close, as when it was killed, is checked by its checksums when it is next
opened, and closed after the last whole append.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnirecall.errors import RunError
from omnirecall.files import whole_file, write_whole
from omnirecall.locks import hold, is_free
from omnirecall.ranking import BFloat16, Ragged, Segments

KEY_BYTES = 16
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
TABLE_FILE = "table.json"
_BLOCK = 1 << 16

Keys = NDArray[np.uint64]
"""Keys as pairs of numbers, shape (n, 2)."""
Vectors = NDArray[np.floating[Any]] | BFloat16 | Ragged
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of the results must know of one vector. ``warnings``: what was amiss with its media, one sentence each.

    ``tokens_cut``, ``frame_tokens``: as in ``models.base.Encoded``.
    """

    warnings: tuple[str, ...] = ()
    tokens_cut: int = 0
    frame_tokens: int = 0


NO_NOTE = Note()


def as_keys(digests: Iterable[bytes | bytearray]) -> Keys:
    """16-byte digests as keys, shape (n, 2)."""
    return joined_keys(b"".join(digests))


def joined_keys(digests: bytes | bytearray) -> Keys:
    """16-byte digests end to end as keys, shape (n, 2), where they lie."""
    return np.frombuffer(digests, "<u8").reshape(-1, 2).astype(np.uint64, copy=False)


def no_keys() -> Keys:
    """No keys, shape (0, 2)."""
    return np.zeros((0, 2), np.uint64)


class TableHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """table.json: whose vectors a folder holds."""

    model: str
    fingerprint: str
    dimension: int


class SegmentHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a segment's vectors are laid out. ``ragged``: an item has as many vectors as its row says, else one."""

    dtype: str
    dimension: int
    ragged: bool


def table_folder(root: Path, fingerprint: str, dimension: int) -> Path:
    """Where the vectors of a model lie."""
    return root / hashlib.blake2b(f"{fingerprint} {dimension}".encode(), digest_size=16).hexdigest()


class Store:
    """The vectors of one model. ``damaged`` lists segments that could not be read; their items count as absent."""

    def __init__(self, root: Path, fingerprint: str, dimension: int, name: str) -> None:
        self.folder = table_folder(root, fingerprint, dimension)
        self.dimension = dimension
        self.header = TableHeader(name, fingerprint, dimension)
        self.damaged: list[Path] = []
        self._writer: Writer | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read what there is now: this process's own closed segments, and what other processes have appended."""
        self._segments: list[Segment] = []
        self.damaged = []
        for path in sorted(self.folder.glob("*.rows")):
            if _is_empty(path):  # its process was killed before its first append, or has not come to it
                continue
            segment = opened(path)
            if segment is None or not self._fits(segment.header):
                self.damaged.append(path)
            elif len(segment.row):
                self._segments.append(segment)
        self._starts = np.cumsum([0, *(len(segment.row) for segment in self._segments)])

    def _fits(self, header: SegmentHeader) -> bool:
        """Whether a segment can stand beside those before it."""
        return header.dimension == self.dimension and all(one.header == header for one in self._segments[:1])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def find(self, keys: Keys) -> Ints:
        """The row of each key, or -1 where it is absent; int64 of shape (n,)."""
        rows = np.full(len(keys), -1, np.int64)
        for begin in range(0, len(keys), _BLOCK):  # so that it takes no memory but its result
            part, some = rows[begin : begin + _BLOCK], keys[begin : begin + _BLOCK]
            for start, segment in zip(self._starts, self._segments, strict=False):
                open_ = np.flatnonzero(part < 0)
                found = segment.find(some[open_])
                part[open_] = np.where(found >= 0, found + start, -1)
        return rows

    def vectors(self, rows: Ints, dimensions: int | None = None) -> Any:
        """The vectors at ``rows`` as the ranking takes them, (table, row numbers) or ``Ragged`` of that; nothing is copied.

        ``dimensions``: only the first so many of each vector. RunError where a row is -1.
        """
        if (rows < 0).any():
            raise RunError(
                f"{self.folder}: {np.count_nonzero(rows < 0)} vectors are gone from the store since they were embedded; run again"
            )
        parts = [segment.values[:, :dimensions] for segment in self._segments]
        if not parts:
            return np.zeros((0, dimensions or self.dimension), np.float32)
        header = self._segments[0].header
        matrix: Any = parts[0] if len(parts) == 1 else Segments(tuple(parts))
        table = BFloat16(matrix) if header.dtype == "bfloat16" else matrix
        if not header.ragged:
            return table, rows
        starts, counts = self._tokens(rows)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Ragged((table, np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])), offsets)

    def _tokens(self, rows: Ints) -> tuple[Ints, Ints]:
        """Where each row's vectors begin in the joined matrix, and how many there are."""
        starts, counts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        owner, base = np.searchsorted(self._starts, rows, side="right") - 1, 0
        for number, segment in enumerate(self._segments):
            mine = owner == number
            local = rows[mine] - self._starts[number]
            begins = segment.begins
            starts[mine] = base + begins[local]
            counts[mine] = begins[local + 1] - begins[local]
            base += len(segment.values)
        return starts, counts

    def notes(self, rows: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32], list[str]]:
        """``tokens_cut`` and ``frame_tokens`` of each row, and the warnings, each once."""
        cut, frames = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32)
        warnings: dict[str, None] = {}
        for begin in range(0, len(rows), _BLOCK):
            some, part = rows[begin : begin + _BLOCK], slice(begin, begin + _BLOCK)
            owner = np.searchsorted(self._starts, some, side="right") - 1
            for number, segment in enumerate(self._segments):
                mine = owner == number
                local = some[mine] - self._starts[number]
                cut[part][mine], frames[part][mine] = segment.tokens_cut[local], segment.frame_tokens[local]
                said = np.fromiter(segment.warnings, np.int64)
                here = said[np.isin(said, local)].tolist()
                warnings |= {text: None for row in here for text in segment.warnings[row]}
        return cut, frames, list(warnings)

    def append(self, keys: Keys, vectors: Vectors, notes: Sequence[Note] = ()) -> None:
        """Add vectors under their keys, in one piece: a process that is killed has added all of them or none.

        RunError where the disk is full or cannot be written; what was there stays.
        """
        if len(keys) == 0:
            return
        header, values, counts = _layout(vectors)
        held = self._writer.header if self._writer else self._segments[0].header if self._segments else header
        if held != header:
            raise RunError(
                f"the model gave {header.dtype} vectors of {header.dimension} dimensions, and the store holds {held.dtype} of"
                f" {held.dimension} under the same fingerprint; a model whose vectors change must change its fingerprint"
            )
        if self._writer is None:
            with disk_errors(self.folder):
                if not (self.folder / TABLE_FILE).is_file():
                    write_whole(self.folder / TABLE_FILE, msgspec.json.encode(self.header))
            self._writer = Writer(self.folder, header)
        try:
            self._writer.append(keys, values, counts, notes)
        except RunError:  # what it has written in part is dropped as after a kill
            self._writer.abandon()
            self._writer = None
            raise

    def close(self) -> None:
        """Close this process's segment, and read all that there is now."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            self.refresh()


def _layout(vectors: Vectors) -> tuple[SegmentHeader, NDArray[Any], Ints]:
    """How vectors are stored: header, matrix, and the number of matrix rows for each item."""
    ragged = isinstance(vectors, Ragged)
    counts = np.diff(vectors.offsets) if isinstance(vectors, Ragged) else None
    values = vectors.values if isinstance(vectors, Ragged) else vectors
    dtype = "bfloat16" if isinstance(values, BFloat16) else str(values.dtype)
    matrix = np.ascontiguousarray(values.bits if isinstance(values, BFloat16) else values)
    header = SegmentHeader(dtype, matrix.shape[1], ragged)
    return header, matrix, np.ones(len(matrix), np.int64) if counts is None else counts.astype(np.int64)


_ROW = pa.schema(
    [
        ("key", pa.binary(KEY_BYTES)),
        ("count", pa.int64()),
        ("tokens_cut", pa.int32()),
        ("frame_tokens", pa.int32()),
        ("warnings", pa.list_(pa.string())),
    ]
)
_INDEX = pa.schema(
    [
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("row", pa.int64()),
        ("begin", pa.int64()),
        ("tokens_cut", pa.int32()),
        ("frame_tokens", pa.int32()),
    ]
)


_NUMBERS = ("count", "tokens_cut", "frame_tokens")


class Writer:
    """A segment that grows. Other processes may read it meanwhile; a lock tells them that it is alive."""

    def __init__(self, folder: Path, header: SegmentHeader) -> None:
        stem = folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        self.header = header
        self.path = stem.with_suffix(".rows")
        self._schema = _ROW.with_metadata({"segment": msgspec.json.encode(header)})
        self._coming = io.BytesIO()
        self._stream = pa.ipc.new_stream(self._coming, self._schema)
        with disk_errors(folder):
            self._rows = self.path.open("xb", buffering=0)  # first, so that vectors without rows are nobody's
            hold(self._rows)
            self._vectors = stem.with_suffix(".vectors").open("xb", buffering=0)

    def append(self, keys: Keys, values: NDArray[Any], counts: Ints, notes: Sequence[Note]) -> None:
        """Vectors first, then the rows that name them: a kill between the two leaves bytes that nothing names."""
        content = values.reshape(-1).view(np.uint8).data
        columns = [_key_column(keys), pa.array(counts, pa.int64()), *_note_columns(notes, len(keys))]
        batch = pa.record_batch(columns, schema=self._schema)
        checks = {"vectors": str(zlib.crc32(content)), "rows": str(_rows_check(batch))}
        self._stream.write_batch(batch, custom_metadata=checks)
        with disk_errors(self.path.parent):
            _write_all(self._vectors, content)
            self._write_rows()

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
                segment = _from_rows(self.path, checked=False)
                if segment is not None:
                    _write_index(self.path, segment)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the segment as it is; whoever opens it next treats it as one whose process was killed."""
        self._vectors.close()
        self._rows.close()


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
    warnings: dict[int, list[str]] = field(default_factory=dict)

    @property
    def begins(self) -> Ints:
        """``begin``, and where the last row's vectors end; int64 of shape (rows + 1,)."""
        return np.append(self.begin, len(self.values))

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


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:  # removed meanwhile
        return True


def index_agrees(path: Path) -> bool:
    """Whether the index of a ``.rows`` file, if there is one, says what its rows do."""
    index, rows = _from_index(path), _from_rows(path, checked=False)
    if index is None or rows is None:
        return index is None
    columns = ("high", "low", "row", "begin", "tokens_cut", "frame_tokens")
    same = all(np.array_equal(getattr(index, name), getattr(rows, name)) for name in columns)
    return same and index.header == rows.header and index.warnings == rows.warnings


def alive(path: Path) -> bool:
    """Whether a process is appending to the segment of a ``.rows`` file."""
    with path.open("rb") as file:
        return not is_free(file)


def _from_index(path: Path) -> Segment | None:
    try:
        with pa.memory_map(str(path.with_suffix(".index"))) as source:
            reader = pa.ipc.open_file(source)
            header = msgspec.json.decode(reader.schema.metadata[b"segment"], type=SegmentHeader)
            said = msgspec.json.decode(reader.schema.metadata[b"warnings"], type=dict[int, list[str]])
            end = int(reader.schema.metadata[b"end"])
            table = reader.get_batch(0)
        columns = {name: table.column(name).to_numpy() for name in _INDEX.names}
        values = segment_matrix(path, header)
    except (OSError, pa.ArrowException, msgspec.MsgspecError, KeyError, ValueError, ArithmeticError):
        return None
    if len(values) < end:
        return None
    return Segment(
        header,
        values[:end],
        columns["high"],
        columns["low"],
        columns["row"],
        columns["begin"],
        columns["tokens_cut"],
        columns["frame_tokens"],
        said,
    )


def segment_matrix(path: Path, header: SegmentHeader) -> NDArray[Any]:
    """The whole rows of a segment's vectors, mapped from their file."""
    kind = np.dtype(DTYPES[header.dtype])
    file = path.with_suffix(".vectors")
    rows = file.stat().st_size // (kind.itemsize * header.dimension)
    if rows == 0:
        return np.zeros((0, header.dimension), kind)
    return np.memmap(file, kind, "r", shape=(rows, header.dimension))


@dataclass(frozen=True, slots=True)
class Append:
    """One batch of a ``.rows`` file: its rows, and the checksum of all their vectors' bytes."""

    rows: pa.RecordBatch
    check: int

    @property
    def vectors(self) -> int:
        """How many vectors it names."""
        return int(self.rows.column("count").to_numpy().sum())


def read_appends(path: Path, *, checked: bool = True) -> tuple[SegmentHeader | None, list[Append]]:
    """The header and the whole batches of a ``.rows`` file, in order; a torn one ends them, and with ``checked`` an altered one."""
    header, found = None, []
    torn = (pa.ArrowException, OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError, StopIteration)
    with suppress(*torn), pa.memory_map(str(path)) as file:  # a map, so that no damaged length is asked of the memory
        reader = pa.ipc.open_stream(file)
        header = msgspec.json.decode(reader.schema.metadata[b"segment"], type=SegmentHeader)
        while reader.schema.equals(_ROW):
            batch, said = reader.read_next_batch_with_custom_metadata()
            if checked and int(said[b"rows"]) != _rows_check(batch):
                break
            found.append(Append(batch, int(said[b"vectors"])))
    return header, found


def _rows_check(batch: pa.RecordBatch) -> int:
    """The checksum of what a batch says; ArrowInvalid where it is not sound."""
    batch.validate(full=True)
    warnings = batch.column("warnings")
    parts = [_key_numbers(batch.column("key")), *(batch.column(name).to_numpy() for name in _NUMBERS)]
    parts.append(warnings.value_lengths().to_numpy())
    check = zlib.crc32(msgspec.json.encode(warnings.flatten().to_pylist()))
    for part in parts:
        check = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, check)
    return check


def _key_column(keys: Keys) -> pa.Array:
    """Keys as a column."""
    content = pa.py_buffer(np.ascontiguousarray(keys).astype("<u8", copy=False))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys), [None, content])


def _note_columns(notes: Sequence[Note], count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """``tokens_cut``, ``frame_tokens`` and ``warnings`` of ``count`` rows; no notes are as many without anything."""
    cut, frames, ends = np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count + 1, np.int32)
    said: list[str] = []
    for row, note in enumerate(notes):
        if note is not NO_NOTE:
            cut[row], frames[row], ends[row + 1] = note.tokens_cut, note.frame_tokens, len(note.warnings)
            said += note.warnings
    warnings = pa.ListArray.from_arrays(pa.array(np.cumsum(ends, dtype=np.int32)), pa.array(said, pa.string()))
    return pa.array(cut), pa.array(frames), warnings


def _key_numbers(column: pa.Array) -> NDArray[np.uint64]:
    """A column of keys as numbers, two for each."""
    start, stop = 2 * column.offset, 2 * (column.offset + len(column))
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, "<u8")[start:stop] if buffer is not None else np.zeros(0, "<u8")


def _from_rows(path: Path, *, checked: bool) -> Segment | None:
    """A segment read from its rows; with ``checked``, up to the first append that is not what was written."""
    header, appends = read_appends(path, checked=checked)
    if header is None:
        return None
    try:
        values = segment_matrix(path, header)
    except (OSError, KeyError, ValueError, ArithmeticError):
        return None
    whole = whole_appends(appends, values, checked=checked)
    batches = [append.rows for append in appends[:whole]]
    rows = pa.Table.from_batches(batches, _ROW)
    counts, cut, frames = (rows.column(name).to_numpy() for name in _NUMBERS)
    end = int(counts.sum())
    begins = np.cumsum(counts) - counts
    del counts  # these columns are as long as the segment, and each is let go of as soon as it can be
    keys = [_key_numbers(batch.column("key")) for batch in batches]
    high, low = (np.concatenate([np.zeros(0, np.uint64), *(part[half::2] for part in keys)]) for half in (0, 1))
    order = np.argsort(high, kind="stable")  # `find` looks at every key with the first half that it seeks
    high, low = high[order], low[order]
    return Segment(header, values[:end], high, low, order, begins, cut, frames, _warnings_by_row(batches))


def _warnings_by_row(batches: Sequence[pa.RecordBatch]) -> dict[int, list[str]]:
    said: dict[int, list[str]] = {}
    start = 0
    for batch in batches:
        warnings = batch.column("warnings")
        if len(warnings.flatten()):
            said |= {start + row: one for row, one in enumerate(warnings.to_pylist()) if one}
        start += len(batch)
    return said


def whole_appends(appends: Sequence[Append], values: NDArray[Any], *, checked: bool) -> int:
    """How many appends, from the first on, have all their vectors; with ``checked``, also the very bytes that were written."""
    end = 0
    for number, append in enumerate(appends):
        begin, end = end, end + append.vectors
        if end > len(values) or (
            checked and zlib.crc32(values[begin:end].reshape(-1).view(np.uint8).data) != append.check
        ):
            return number
    return len(appends)


def _write_index(path: Path, segment: Segment) -> None:
    schema = _INDEX.with_metadata(
        {
            "segment": msgspec.json.encode(segment.header),
            "warnings": msgspec.json.encode(segment.warnings),
            "end": str(len(segment.values)),
        }
    )
    columns = (
        segment.high,
        segment.low,
        segment.row,
        segment.begin,
        segment.tokens_cut,
        segment.frame_tokens,
    )
    batch = pa.record_batch([pa.array(column) for column in columns], schema=schema)
    with (
        whole_file(path.with_suffix(".index")) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        writer.write_batch(batch)
