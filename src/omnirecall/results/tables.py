"""A run as a table, for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from omnirecall.files import pretty_json
from omnirecall.protocol.suites import Mean
from omnirecall.results import grids
from omnirecall.results.grids import Cell, Column, Grid, Line, cells
from omnirecall.results.record import Run, TaskRecord

FEW = 3
INTERVAL = "95% interval"
COLUMNS = (
    Column("task"),
    Column("direction"),
    Column("queries", "right"),
    Column("pool", "right"),
    Column("measure"),
    Column("value", "right"),
    Column(INTERVAL, "right"),
    Column("chance", "right"),
)


def grid(run: Run) -> Grid:
    """What a table of this run says: values in percent with two decimals, tasks under the means that they are part of."""
    lines: list[Line] = []
    for kind, name, rule in rows(run.tasks, run.tree, run.means):
        lines.append(_task_line(name, run.tasks[name], rule) if kind == "task" else _mean_line(name, run, rule))
    return Grid(f"{run.suite} · {run.model.name} · {run.identity}", COLUMNS, tuple(lines), tuple(footnotes(run)))


def rows(tasks: Iterable[str], tree: Sequence[Mean], means: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """("task" or "mean", name, whether it opens a block): each group's tasks, then its mean, and at the end the means over groups.

    A task stands in the first group that holds it; a mean whose tasks stand elsewhere comes at the end.
    """
    left, waiting = dict.fromkeys(tasks), dict.fromkeys(means)
    here, over = set(left), {mean.name for mean in tree}
    for mean in tree:
        group = [task for task in mean.of if task in left]
        elsewhere = over.intersection(mean.of) or here.intersection(mean.of).difference(group)
        if not group or elsewhere or mean.name not in waiting:
            continue
        for place, task in enumerate(group):
            del left[task]
            yield "task", task, place == 0
        del waiting[mean.name]
        yield "mean", mean.name, False
    for place, task in enumerate(left):
        yield "task", task, place == 0
    for place, name in enumerate(waiting):
        yield "mean", name, place == 0


def footnotes(run: Run) -> Iterator[str]:
    """What a reader must know: statuses, ties, what lies outside the pool, incomplete means, departures, notes, assumed facts."""
    for name, task in run.tasks.items():
        yield from _task_notes(name, task)
    for name, mean in run.means.items():
        if not mean.complete:
            yield f"{name} is incomplete: no value for {', '.join(mean.missing)}."
    if any(mean.complete and name not in run.mean_intervals for name, mean in run.means.items()) and _has_intervals(
        run
    ):
        yield "The means have no intervals, since the card that says what they are means of is not at hand."
    for deviation in run.deviations:
        yield f"Departs from the protocol: {deviation}."
    for note in (*run.model.notes, *run.notes):
        yield f"{note[:1].upper()}{note[1:]}."
    for fact in run.uncertain:
        yield f"{fact}."
    for warning in run.media_warnings[:FEW]:
        yield f"Damaged: {warning}."
    if len(run.media_warnings) > FEW:
        yield f"{len(run.media_warnings) - FEW} more media are damaged; run.json names them."


def _task_notes(name: str, task: TaskRecord) -> Iterator[str]:
    if task.reason:
        yield f"{name}: {task.reason}."
    if task.best is not None and task.worst is not None and task.measures[task.measure].depends_on_ties:
        low, high = sorted((task.best, task.worst))
        yield (
            f"{name}: ties decide; {task.measure} lies between {shown(low, task.measure)} and {shown(high, task.measure)}"
            f" ({task.tied_queries} queries with a tie)."
        )
    if task.relevant_outside_pool:
        yield f"{name}: {task.relevant_outside_pool} relevant candidates lie outside the pool and count as not retrieved."
    if task.unjudged_queries:
        yield f"{name}: {task.unjudged_queries} queries without a relevant candidate were dropped, as the card allows."


def _has_intervals(run: Run) -> bool:
    return any(value.interval for task in run.tasks.values() for value in task.measures.values())


def _task_line(name: str, task: TaskRecord, rule: bool) -> Line:
    value = task.status if task.value is None else shown(task.value, task.measure)
    interval = task.measures[task.measure].interval if task.measure in task.measures else None
    chance = "" if task.chance is None else shown(task.chance, task.measure)
    measure = task.measure if task.printed in ("", task.measure) else f"{task.measure}, printed {task.printed}"
    counts = f"{task.queries:,}", f"{task.pool:,}"
    return Line(cells(name, task.direction, *counts, measure, value, between(interval, task.measure), chance), rule)


def _mean_line(name: str, run: Run, rule: bool) -> Line:
    value = run.means[name].value
    texts = name, "", "", "", "mean", "incomplete" if value is None else percent(value)
    return Line((*cells(*texts, strong=(0, 5)), Cell(between(run.mean_intervals.get(name))), Cell("")), rule)


def percent(value: float) -> str:
    """A share in percent, two decimals."""
    return f"{100 * value:.2f}"


def shown(value: float, measure: str) -> str:
    """Percent, but for a rank."""
    return f"{value:g}" if measure == "median_rank" else percent(value)


def between(interval: tuple[float, float] | None, measure: str = "") -> str:
    """An interval as its two limits, "" for none."""
    return "" if interval is None else grids.DASH.join(shown(limit, measure) for limit in interval)


def markdown(run: Run) -> str:
    """A pipe table."""
    return grids.markdown(grid(run))


def latex(run: Run) -> str:
    """A booktabs table."""
    return grids.latex(grid(run))


def terminal(run: Run) -> str:
    """A table drawn for the terminal."""
    return grids.terminal(grid(run))


def to_csv(run: Run) -> str:
    """One line per task and measure and per mean, unrounded, with best and worst case and the limits of the 95% interval."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ("kind", "name", "status", "measure", "value", "low", "high", "best", "worst", "queries", "pool", "primary")
    writer.writerow(head)
    for name, task in run.tasks.items():
        about = "task", name, task.status
        if not task.measures:
            writer.writerow([*about, task.measure, "", "", "", "", "", task.queries, task.pool, True])
        for measure, value in task.measures.items():
            numbers = value.value, *(value.interval or ("", "")), value.best, value.worst
            writer.writerow([*about, measure, *numbers, task.queries, task.pool, measure == task.measure])
    for name, mean in run.means.items():
        numbers = "" if mean.value is None else mean.value, *run.mean_intervals.get(name, ("", ""))
        writer.writerow(["mean", name, "ok" if mean.complete else "incomplete", "mean", *numbers, "", "", "", "", ""])
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
