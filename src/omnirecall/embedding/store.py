"""Vectors on disk, found again by the content they were made from.

One folder per model fingerprint and dimension, which holds segments: see ``segments``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnirecall import columns
from omnirecall.embedding.segments import (
    Ints,
    Keys,
    Note,
    Segment,
    SegmentHeader,
    Writer,
    disk_errors,
    is_empty,
    opened,
)
from omnirecall.errors import RunError
from omnirecall.files import write_whole
from omnirecall.ranking import BFloat16, Ragged, Segments

TABLE_FILE = "table.json"
_FOUND_IN, _NOTES_IN = 24, 8
"""Bytes of a row of a segment's index that `find` and `notes` read."""

Vectors = NDArray[np.floating[Any]] | BFloat16 | Ragged


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of several vectors: how many texts were ``cut``, the most ``frame_tokens``, and the warnings, each once."""

    cut: int
    frame_tokens: int
    warnings: tuple[str, ...]


class TableHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """table.json: whose vectors a folder holds."""

    model: str
    fingerprint: str
    dimension: int


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
            if is_empty(path):  # its process was killed before its first append, or has not come to it
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
        rows = columns.empty(len(keys), np.int64)
        for where in columns.parts(len(keys)):
            part, some = rows[where], keys[where]
            part[:] = -1
            for start, segment in zip(self._starts, self._segments, strict=False):
                open_ = np.flatnonzero(part < 0)
                found = segment.find(some[open_])
                part[open_] = np.where(found >= 0, found + start, -1)
            columns.touched(part.nbytes + some.nbytes)
            columns.scattered(_FOUND_IN * len(self), len(some))
        return rows

    def lacks(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys are absent; bool of shape (n,)."""
        missing = columns.empty(len(keys), bool)
        for where in columns.parts(len(keys)):
            missing[where] = self.find(keys[where]) < 0
        return missing

    def vectors(self, rows: Ints, dimensions: int | None = None) -> Any:
        """The vectors at ``rows`` as the ranking takes them, (table, row numbers) or ``Ragged`` of that; nothing is copied.

        ``dimensions``: only the first so many of each vector. RunError where a row is -1.
        """
        if rows.min(initial=0) < 0:
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
            begin, end = segment.spans(local)
            starts[mine], counts[mine] = base + begin, end - begin
            base += len(segment.values)
        return starts, counts

    def notes(self, rows: Ints) -> Notes:
        """What there is to know of the vectors at ``rows``."""
        cut, frames, warnings = 0, 0, dict[str, None]()
        for where in columns.parts(len(rows)):
            some = rows[where]
            owner = np.searchsorted(self._starts, some, side="right") - 1
            for number, segment in enumerate(self._segments):
                local = some[owner == number] - self._starts[number]
                cut += int(np.count_nonzero(segment.tokens_cut[local]))
                frames = max(frames, int(segment.frame_tokens[local].max(initial=0)))
                said = np.fromiter(segment.warnings, np.int64)
                here = said[np.isin(said, local)].tolist()
                warnings |= {text: None for row in here for text in segment.warnings[row]}
            columns.scattered(_NOTES_IN * len(self), len(some))
        return Notes(cut, frames, tuple(warnings))

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
