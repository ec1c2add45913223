"""Reading published rows, and which of their values may stand beside a run.

Columns: ``model``, ``source``, ``unit`` (``fraction`` or ``percent``), ``seen`` (what of the test domain was in the training data),
``misprints`` (names whose printed value contradicts the rest of the row), ``differs`` (names whose value is of other data or
measured in another way), ``note``, then one column for each task or mean. Lists are separated by blanks.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card, shipped_cards
from omnirecall.protocol.suites import Suite

PUBLISHED = Path(__file__).parent


class PublishedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model in one source. ``values`` are as printed, in ``unit``."""

    model: str
    source: str
    unit: Literal["fraction", "percent"]
    values: Mapping[str, float]
    seen: str = ""
    misprints: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    note: str = ""

    def share(self, name: str) -> float:
        """The value as a fraction of one; KeyError if the source has none."""
        return self.values[name] / (100 if self.unit == "percent" else 1)


def read_published(suite: str, folder: Path = PUBLISHED) -> list[PublishedRow]:
    """Every row of a suite's file, whole; none if there is no file. UserError names file, line and column."""
    path = folder / f"{suite}.csv"
    if not path.is_file():
        return []
    about = [field for field in PublishedRow.__struct_fields__ if field != "values"]
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if None in cells or None in cells.values():
                raise UserError(
                    f"{where}: {len(reader.fieldnames or ())} columns are named in the first line; give as many"
                )
            texts = {name: cell for name, cell in cells.items() if name not in about and cell}
            row: dict[str, object] = {name: cell for name, cell in cells.items() if name in about}
            row |= {name: cells[name].split() for name in ("misprints", "differs")}
            try:
                row["values"] = {name: float(text) for name, text in texts.items()}
                rows.append(msgspec.convert(row, PublishedRow))
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None
    return rows


def published_rows(suite: Suite) -> list[PublishedRow]:
    """The published values that may stand beside a run: those of the suite's own file and of what it takes over unchanged.

    Left out are values of other data (``differs``) and whatever rests on a task with an ``unknown`` fact. Misprints stay, marked.
    """
    names = {*suite.task_names(), *(mean.name for mean in suite.means)}
    rows = [_only(row, names) for row in read_published(suite.name)]
    for name, taken in suite.included.items():
        if name in shipped_cards():
            rows += [_only(row, set(taken)) for row in published_rows(read_card(shipped_card(name)))]
    known = [_only(row, {name for name in row.values if not suite.unknown_below(name)}) for row in rows]
    return [row for row in known if row.values]


def _only(row: PublishedRow, names: set[str]) -> PublishedRow:
    kept = names.difference(row.differs)
    return msgspec.structs.replace(row, values={name: value for name, value in row.values.items() if name in kept})
