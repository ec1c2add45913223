"""Items that stay on disk: a jsonl file of millions of lines as a sequence."""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, overload

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item
from omnirecall.sources.qrels import placed_lines
from omnirecall.sources.tables import damaged

Row = TypeVar("Row")
_STRIDE = 32


class JsonlItems(Sequence[Item], Generic[Row]):
    """The items of a jsonl file, made when asked for; memory holds where every 32nd row begins, a quarter of a byte a row.

    ``kind`` is the type of a row, of which ``make`` makes an item. Every row is parsed once at the start, and ``look`` is called
    with its line's number and the row: UserError names one that is damaged, as ``complaint`` words it.
    """

    def __init__(
        self,
        path: Path,
        kind: type[Row],
        make: Callable[[Row], Item],
        look: Callable[[int, Row], object] = lambda number, row: None,
        complaint: Callable[[Path, int, Exception], UserError] = damaged,
    ) -> None:
        self.path, self._make = path, make
        self._parse = msgspec.json.Decoder(kind).decode
        self._count, self._starts = 0, array("q")
        for number, start, line in placed_lines(path):
            try:
                row = self._parse(line)
            except (msgspec.DecodeError, UnicodeEncodeError) as error:
                raise complaint(path, number, error) from None
            look(number, row)
            if self._count % _STRIDE == 0:
                self._starts.append(start)
            self._count += 1
        self._starts.append(path.stat().st_size)
        self._stamp = _stamp(path)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> Item: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Item]: ...
    def __getitem__(self, row: int | slice) -> Item | Sequence[Item]:
        """One item, or a list of those of a slice."""
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        block, place = divmod(range(self._count)[row], _STRIDE)
        start, end = self._starts[block], self._starts[block + 1]
        lines = io.BytesIO(os.pread(self._file.fileno(), end - start, start))
        return self._item(next(islice(filter(bytes.strip, lines), place, None)))

    def __iter__(self) -> Iterator[Item]:
        """All items in the file's order, read in one go."""
        if _stamp(self.path) != self._stamp:
            raise UserError(f"{self.path}: the file changed while it was read; start again")
        with self.path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield self._item(line)

    @cached_property
    def _file(self) -> BinaryIO:
        return self.path.open("rb")

    def _item(self, line: bytes) -> Item:
        return self._make(self._parse(line.removeprefix(b"\xef\xbb\xbf")))


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns
