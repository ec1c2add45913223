"""A table as cells, drawn for the terminal, Markdown and LaTeX."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH = 120
"""Columns of the terminal for sentences; a table takes what it needs."""
DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
DIFFERS, SEEN, MISPRINT = "\N{DAGGER}", "\N{DOUBLE DAGGER}", "\N{SECTION SIGN}"
"""Marks of published values: of another protocol, of a model that saw the domain in training, contradicted by its own row."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, printed bold if it is the best (``strong``) and underlined if it is the second best (``second``)."""

    text: str
    strong: bool = False
    second: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A row of cells, as many as the grid has columns; ``rule``: a line is drawn above it."""

    cells: tuple[Cell, ...]
    rule: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and on which side the cells stand."""

    title: str
    side: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table with sentences below it."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[str, ...] = ()


def cells(*texts: str, strong: Sequence[int] = ()) -> tuple[Cell, ...]:
    """Cells of these texts, those at the places ``strong`` bold."""
    return tuple(Cell(text, strong=place in strong) for place, text in enumerate(texts))


def markdown(grid: Grid) -> str:
    """A pipe table; the second best is in italics, since Markdown underlines nothing."""
    lines = [
        f"**{pipe(grid.title)}**",
        "",
        "| " + " | ".join(pipe(column.title) for column in grid.columns) + " |",
        "|" + "|".join("---:" if column.side == "right" else "---" for column in grid.columns) + "|",
        *("| " + " | ".join(_marked(cell) for cell in line.cells) + " |" for line in grid.lines),
    ]
    notes = "".join(f"\n- {pipe(note)}" for note in grid.footnotes)
    return "\n".join(lines) + "\n" + notes + ("\n" if notes else "")


def latex(grid: Grid) -> str:
    """A table for the package booktabs; title and footnotes are comments."""
    lines = [
        f"% {flat(grid.title)}",
        r"\begin{tabular}{" + "".join(column.side[0] for column in grid.columns) + "}",
        r"\toprule",
        " & ".join(tex(column.title) for column in grid.columns) + r" \\",
        r"\midrule",
    ]
    for place, line in enumerate(grid.lines):
        lines += [r"\midrule"] if line.rule and place else []
        lines.append(" & ".join(_set(cell) for cell in line.cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {flat(note)}" for note in grid.footnotes)]
    return "\n".join(lines) + "\n"


def terminal(grid: Grid) -> str:
    """A table drawn for the terminal, as wide as its cells are."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(flat(grid.title)), title_justify="left", caption_justify="left")
    for column in grid.columns:
        table.add_column(Text(flat(column.title)), justify=column.side)
    for place, line in enumerate(grid.lines):
        if line.rule and place:
            table.add_section()
        table.add_row(
            *(
                Text(flat(cell.text), "bold" if cell.strong else "underline" if cell.second else "")
                for cell in line.cells
            )
        )
    widest = [
        max(cell_len(flat(text)) for text in (column.title, *(line.cells[place].text for line in grid.lines)))
        for place, column in enumerate(grid.columns)
    ]
    out = io.StringIO()
    Console(file=out, width=max(sum(widest) + 3 * len(widest) + 1, cell_len(flat(grid.title)))).print(table)
    notes = Console(file=out, width=WIDTH)
    for note in grid.footnotes:
        notes.print(Text(flat(f"- {note}")))
    return out.getvalue()


def flat(text: str) -> str:
    """Text on one line, without characters that steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def pipe(text: str) -> str:
    """Text in a Markdown cell or list that renders as itself: no mark-up, no HTML."""
    text = flat(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\|`*\[\]~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def tex(text: str) -> str:
    """Text in a LaTeX cell that prints as itself."""
    special = {"\\": r"\textbackslash{}", "->": r"$\rightarrow$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    special |= {char: f"{{{char}}}" for char in "[*"}  # after a row's end they would be its arguments
    special |= {DASH: "--", MINUS: "$-$", DIFFERS: r"$\dagger$", SEEN: r"$\ddagger$", MISPRINT: r"\S{}"}
    out = ""
    text = flat(text)
    while text:
        step = 2 if text.startswith("->") else 1
        out += special.get(text[:step], text[:step])
        text = text[step:]
    return out


def _marked(cell: Cell) -> str:
    mark = "**" if cell.strong else "*" if cell.second else ""
    return f"{mark}{pipe(cell.text)}{mark}" if cell.text else ""


def _set(cell: Cell) -> str:
    if cell.strong:
        return rf"\textbf{{{tex(cell.text)}}}"
    return rf"\underline{{{tex(cell.text)}}}" if cell.second else tex(cell.text)
