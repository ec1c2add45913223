"""A run as a table, for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass

from omnirecall.files import pretty_json
from omnirecall.results.record import Run, TaskRecord

FEW = 3
COLUMNS = ("task", "direction", "queries", "pool", "measure", "value", "chance")


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of cells under COLUMNS, and the sentences below them."""

    title: str
    rows: list[tuple[str, ...]]
    means: list[tuple[str, str]]
    footnotes: list[str]


def sheet(run: Run) -> Sheet:
    """What a table of this run says, values in percent with two decimals."""
    footnotes: list[str] = []
    rows = [_row(name, task, footnotes) for name, task in run.tasks.items()]
    means = []
    for name, mean in run.means.items():
        means.append((name, "incomplete" if mean.value is None else percent(mean.value)))
        if not mean.complete:
            footnotes.append(f"{name} is incomplete: no value for {', '.join(mean.missing)}.")
    footnotes += [f"Departs from the protocol: {deviation}." for deviation in run.deviations]
    footnotes += [f"{note[0].upper()}{note[1:]}." for note in (*run.model.notes, *run.notes)]
    footnotes += [f"{fact}." for fact in run.uncertain]
    footnotes += [f"Damaged: {warning}." for warning in run.media_warnings[:FEW]]
    if len(run.media_warnings) > FEW:
        footnotes.append(f"{len(run.media_warnings) - FEW} more media are damaged; run.json names them.")
    return Sheet(f"{run.suite} · {run.model.name} · {run.identity}", rows, means, footnotes)


def _row(name: str, task: TaskRecord, footnotes: list[str]) -> tuple[str, ...]:
    value = task.status if task.value is None else shown(task.value, task.measure)
    if task.reason:
        footnotes.append(f"{name}: {task.reason}.")
    if task.best is not None and task.worst is not None and task.measures[task.measure].depends_on_ties:
        low, high = sorted((task.best, task.worst))
        footnotes.append(
            f"{name}: ties decide; {task.measure} lies between {shown(low, task.measure)} and {shown(high, task.measure)}"
            f" ({task.tied_queries} queries with a tie)."
        )
    if task.relevant_outside_pool:
        footnotes.append(
            f"{name}: {task.relevant_outside_pool} relevant candidates lie outside the pool and count as not retrieved."
        )
    if task.unjudged_queries:
        footnotes.append(
            f"{name}: {task.unjudged_queries} queries without a relevant candidate were dropped, as the card allows."
        )
    chance = "" if task.chance is None else shown(task.chance, task.measure)
    measure = task.measure if task.printed in ("", task.measure) else f"{task.measure}, printed {task.printed}"
    return (name, task.direction, f"{task.queries:,}", f"{task.pool:,}", measure, value, chance)


def percent(value: float) -> str:
    """A share in percent, two decimals."""
    return f"{100 * value:.2f}"


def shown(value: float, measure: str) -> str:
    """Percent, but for a rank."""
    return f"{value:g}" if measure == "median_rank" else percent(value)


def markdown(run: Run) -> str:
    """A pipe table."""
    one = sheet(run)
    lines = [
        f"**{_pipe(one.title)}**",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---|---:|---:|---|---:|---:|",
        *("| " + " | ".join(_pipe(cell) for cell in row) + " |" for row in one.rows),
        *(f"| **{_pipe(name)}** |  |  |  | mean | **{value}** |  |" for name, value in one.means),
    ]
    notes = "".join(f"\n- {_pipe(note)}" for note in one.footnotes)
    return "\n".join(lines) + "\n" + notes + ("\n" if notes else "")


def latex(run: Run) -> str:
    """A booktabs table."""
    one = sheet(run)
    lines = [
        f"% {_flat(one.title)}",
        r"\begin{tabular}{llrrlrr}",
        r"\toprule",
        " & ".join(COLUMNS) + r" \\",
        r"\midrule",
        *(" & ".join(_tex(cell) for cell in row) + r" \\" for row in one.rows),
        *([r"\midrule"] if one.means else []),
        *(f"{_tex(name)} & & & & mean & {value} & \\\\" for name, value in one.means),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {_flat(note)}" for note in one.footnotes),
    ]
    return "\n".join(lines) + "\n"


def to_csv(run: Run) -> str:
    """One line per task and measure and per mean, unrounded, with best and worst case."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["kind", "name", "status", "measure", "value", "best", "worst", "queries", "pool", "primary"])
    for name, task in run.tasks.items():
        if not task.measures:
            writer.writerow(["task", name, task.status, task.measure, "", "", "", task.queries, task.pool, True])
        for measure, value in task.measures.items():
            primary = measure == task.measure
            writer.writerow(
                [
                    "task",
                    name,
                    task.status,
                    measure,
                    value.value,
                    value.best,
                    value.worst,
                    task.queries,
                    task.pool,
                    primary,
                ]
            )
    for name, mean in run.means.items():
        status = "ok" if mean.complete else "incomplete"
        writer.writerow(["mean", name, status, "mean", "" if mean.value is None else mean.value, "", "", "", "", ""])
    return out.getvalue()


def terminal(run: Run) -> str:
    """A table drawn for the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    one = sheet(run)
    table = Table(title=Text(_flat(one.title)), title_justify="left", caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("queries", "pool", "value", "chance") else "left")
    for row in one.rows:
        table.add_row(*(Text(_flat(cell)) for cell in row))
    if one.means:
        table.add_section()
    for name, value in one.means:
        table.add_row(Text(_flat(name), "bold"), "", "", "", "mean", Text(value, "bold"), "")
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(table)
    for note in one.footnotes:
        console.print(Text(_flat(f"- {note}")))
    return out.getvalue()


def to_json(run: Run) -> str:
    """The run record itself."""
    return pretty_json(run)


FORMATS: dict[str, Callable[[Run], str]] = {
    "table": terminal,
    "markdown": markdown,
    "latex": latex,
    "json": to_json,
    "csv": to_csv,
}


def render(run: Run, form: str) -> str:
    """The run in one of FORMATS."""
    return FORMATS[form](run)


def _flat(text: str) -> str:
    """Text on one line, without characters that steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _pipe(text: str) -> str:
    """Text in a Markdown cell or list that renders as itself: no mark-up, no HTML."""
    text = _flat(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\|`*\[\]~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "->": r"$\rightarrow$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    special |= {char: f"{{{char}}}" for char in "[*"}  # after a row's end they would be its arguments
    out = ""
    text = _flat(text)
    while text:
        step = 2 if text.startswith("->") else 1
        out += special.get(text[:step], text[:step])
        text = text[step:]
    return out
