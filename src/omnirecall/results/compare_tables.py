"""A comparison as a table, for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from omnirecall.files import pretty_json
from omnirecall.protocol.measures import Measure
from omnirecall.results import grids
from omnirecall.results.compare import Comparison, Entry, Row
from omnirecall.results.grids import DIFFERS, MINUS, MISPRINT, SEEN, Cell, Column, Grid, Line
from omnirecall.results.paired import mark
from omnirecall.results.published import PublishedColumn
from omnirecall.results.tables import between, shown


def grid(comparison: Comparison) -> Grid:
    """The comparison as a table: values in percent, the best of a row bold, the second underlined."""
    first, *others = comparison.runs
    columns = [Column("task"), Column("measure"), Column(first.label, "right")]
    for one in others:
        columns += [
            Column(one.label, "right"),
            Column("difference", "right"),
            Column("won/lost", "right"),
            Column("shows", "right"),
        ]
    columns += [Column(column.model + (f" {SEEN}" if column.seen else ""), "right") for column in comparison.published]
    lines = tuple(_line(row, comparison.published) for row in comparison.rows)
    title = f"{comparison.suite} · {', '.join(one.label for one in comparison.runs)}"
    return Grid(title, tuple(columns), lines, comparison.footnotes)


def _line(row: Row, published: Sequence[PublishedColumn]) -> Line:
    best, second = _places(row, published)
    cells = [Cell(row.name, strong=row.kind == "mean"), Cell(row.measure)]
    for place, entry in enumerate(row.entries):
        text = entry.status if entry.value is None else shown(entry.value, row.measure)
        if entry.value is not None and entry.interval:
            text += f" [{between(entry.interval, row.measure)}]"
        cells.append(Cell(text, strong=place in best, second=place in second))
        if place:
            cells += _paired_cells(entry, row.measure)
    for place, column in enumerate(published, len(row.entries)):
        marks = DIFFERS * (row.name in column.differs) + MISPRINT * (row.name in column.misprints)
        text = shown(column.values[row.name], row.measure) + marks if row.name in column.values else ""
        cells.append(Cell(text, strong=place in best, second=place in second))
    return Line(tuple(cells), row.opens)


def _paired_cells(entry: Entry, measure: str) -> list[Cell]:
    paired = entry.paired
    if paired is None:
        return [Cell(""), Cell(""), Cell("")]
    text = signed(paired.difference, measure)
    if paired.low is not None and paired.high is not None:
        text += f" [{signed(paired.low, measure)}, {signed(paired.high, measure)}]"
    stars = mark(entry.adjusted) if entry.adjusted is not None else ""
    least = "" if paired.detectable is None else shown(paired.detectable, measure)
    return [Cell(f"{text} {stars}".rstrip()), Cell(f"{paired.wins}/{paired.losses}"), Cell(least)]


def signed(value: float, measure: str) -> str:
    """A difference as the table shows it, with its sign."""
    text = shown(abs(value), measure)
    return text if not text.strip("0.") else (MINUS if value < 0 else "+") + text


def _places(row: Row, published: Sequence[PublishedColumn]) -> tuple[set[int], set[int]]:
    """Which columns hold the best value as it is printed, and which the second best."""
    values = [entry.value for entry in row.entries] + [column.sound.get(row.name) for column in published]
    higher = row.kind == "mean" or Measure.parse(row.measure).higher_is_better
    printed = [None if value is None else float(shown(value, row.measure)) * (1 if higher else -1) for value in values]
    ranked = sorted({value for value in printed if value is not None}, reverse=True)
    if len(ranked) < 2:
        return set(), set()
    return (
        {place for place, value in enumerate(printed) if value == ranked[0]},
        {place for place, value in enumerate(printed) if value == ranked[1]},
    )


CSV_COLUMNS = (
    "kind", "name", "measure", "model", "source", "status", "value", "low", "high", "difference",
    "difference_low", "difference_high", "p", "p_holm", "test", "wins", "losses", "ties", "effect", "detectable", "marks",
)  # fmt: skip


def to_csv(comparison: Comparison) -> str:
    """One line for each task or mean and run or published row, unrounded."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        about = {"kind": row.kind, "name": row.name, "measure": row.measure}
        for one, entry in zip(comparison.runs, row.entries, strict=True):
            writer.writerow(about | {"model": one.label, "source": f"run {one.identity}"} | _csv_entry(entry))
        for column in comparison.published:
            if row.name in column.values:
                marks = [
                    word
                    for word, names in (("differs", column.differs), ("misprint", column.misprints))
                    if row.name in names
                ]
                marks += ["seen"] * bool(column.seen)
                value = {
                    "model": column.model,
                    "source": column.source,
                    "status": "published",
                    "value": column.values[row.name],
                }
                writer.writerow(about | value | {"marks": " ".join(marks)})
    return out.getvalue()


def _csv_entry(entry: Entry) -> dict[str, object]:
    cells: dict[str, object] = {"status": entry.status}
    if entry.value is not None:
        cells["value"] = entry.value
    if entry.interval:
        cells |= {"low": entry.interval[0], "high": entry.interval[1]}
    if (paired := entry.paired) is not None:
        cells |= {
            "difference": paired.difference,
            "difference_low": paired.low,
            "difference_high": paired.high,
            "p": paired.p,
            "p_holm": entry.adjusted,
            "test": paired.method,
            "wins": paired.wins,
            "losses": paired.losses,
            "ties": paired.ties,
            "effect": paired.effect,
            "detectable": paired.detectable,
            "marks": mark(1.0 if entry.adjusted is None else entry.adjusted),
        }
    return {name: "" if value is None else value for name, value in cells.items()}


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "table": lambda comparison: grids.terminal(grid(comparison)),
    "markdown": lambda comparison: grids.markdown(grid(comparison)),
    "latex": lambda comparison: grids.latex(grid(comparison)),
    "csv": to_csv,
    "json": pretty_json,
}


def render(comparison: Comparison, form: str) -> str:
    """The comparison in one of FORMATS."""
    return FORMATS[form](comparison)
