"""Media that stand in the cells of parquet files, read when they are wanted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError
from omnirecall.protocol.items import MEDIA, Item, MediaRef, Packed

KEPT_BYTES = 512 << 20
"""Row groups are kept up to so many bytes, and at least one."""


def cell(ref: Packed) -> bytes:
    """The bytes that stand at a place; UserError if there are none."""
    return _GROUPS.cell(*ref.place)


def unpacked(ref: MediaRef) -> MediaRef:
    """The bytes that a ``Packed`` stands for; any other reference as it is."""
    return cell(ref) if isinstance(ref, Packed) else ref


def item_unpacked(item: Item) -> Item:
    """The item with the bytes of its media in place of their places in tables."""
    cells: dict[str, Any] = {part: unpacked(ref) for part in MEDIA if isinstance(ref := getattr(item, part), Packed)}
    return replace(item, **cells) if cells else item


def place_of(ref: MediaRef) -> str:
    """Where a medium is, for a sentence."""
    if isinstance(ref, Packed):
        path, row, column = ref.place
        return f"{path}, row {row}, column {column.split('.')[0]}"
    return str(ref) if isinstance(ref, Path) else f"({len(ref)} bytes)"


def opened_parquet(path: Path) -> Any:
    """A parquet file, open; UserError if it is not whole."""
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise not_whole(path, error) from None


def not_whole(path: Path, error: Exception) -> UserError:
    """The sentence about a parquet file that cannot be read."""
    return UserError(f"{path}: not a whole parquet file ({str(error).splitlines()[0].split('. ')[0]}); fetch it again")


class _Groups:
    """The row groups read last, so that cells asked for in order are read once. Threads may share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: dict[Path, Any] = {}
        self.groups: OrderedDict[tuple[Path, int, str], Any] = OrderedDict()

    def cell(self, path: Path, row: int, column: str) -> bytes:
        with self.lock:
            if path not in self.files:
                self.files[path] = opened_parquet(path)
            value = self._group(path, row, column)
        while isinstance(value, Mapping):
            value = next(iter(value.values()))
        if not value:
            raise UserError(f"{path}: row {row}: the cell of {column} is empty; fetch the file again")
        return bytes(value)

    def _group(self, path: Path, row: int, column: str) -> Any:
        file, group = self.files[path], 0
        while row >= (size := file.metadata.row_group(group).num_rows):
            row, group = row - size, group + 1
        place = (path, group, column)
        if place not in self.groups:
            try:
                self.groups[place] = file.read_row_group(group, columns=[column]).column(0).combine_chunks()
            except (OSError, ValueError) as error:
                raise not_whole(path, error) from None
            while len(self.groups) > 1 and sum(group.nbytes for group in self.groups.values()) > KEPT_BYTES:
                self.groups.popitem(last=False)
        self.groups.move_to_end(place)
        return self.groups[place][row].as_py()


_GROUPS = _Groups()
