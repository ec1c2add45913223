"""The leaderboard of a suite: models down, means and tasks across, as the card's tree has them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from omnirecall.errors import UserError
from omnirecall.protocol.suites import Mean
from omnirecall.results.grids import DIFFERS, MISPRINT
from omnirecall.results.published import PublishedColumn, published_beside
from omnirecall.results.record import TaskRecord
from omnirecall.results.tables import shown
from omnirecall.view.runs import ShownRun


@dataclass(frozen=True, slots=True)
class Column:
    """A mean or a task. ``key``: its name in the page. ``parent``: the key of the group that shows and hides it, "" at the top."""

    key: str
    name: str
    is_mean: bool
    parent: str
    depth: int
    opens: bool = False
    """Whether it has columns below it."""
    open: bool = False
    """Whether those are shown at first."""
    visible: bool = True
    about: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with its interval, all as fractions, or a word in its place. ``marks``: signs explained under the table."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    word: str = ""
    marks: str = ""
    note: str = ""
    best: bool = False
    measure: str = ""

    @property
    def text(self) -> str:
        """The value in percent, or the word."""
        return self.word if self.value is None else shown(self.value, self.measure)

    @property
    def interval(self) -> str:
        """The 95% interval, or ""."""
        if self.low is None or self.high is None:
            return ""
        return f"{shown(self.low, self.measure)}\u2013{shown(self.high, self.measure)}"


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A run, or a published row where ``run`` is None."""

    label: str
    note: str
    cells: Mapping[str, Cell]
    run: ShownRun | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """The table of one suite."""

    columns: tuple[Column, ...]
    rows: tuple[BoardRow, ...]
    published: tuple[BoardRow, ...]
    footnotes: tuple[str, ...] = ()

    @property
    def has_intervals(self) -> bool:
        """Whether any value has its interval."""
        return any(cell.interval for row in self.rows for cell in row.cells.values())


TIES, INCOMPLETE = "~", "\N{WHITE BULLET}"
MARKS = {
    TIES: "the order of ties moves this value by more than 0.1 points",
    DIFFERS: "of other data, or measured in another way",
    MISPRINT: "a known misprint of the source",
    INCOMPLETE: "incomplete: a task below has no value",
}


def columns_of(tree: Sequence[Mean], runs: Sequence[ShownRun]) -> tuple[Column, ...]:
    """The tree of means from its roots down, then the tasks; a name stands once, where it is met first."""
    names = list(dict.fromkeys(name for run in runs for name in run.record.tasks))
    means = {mean.name: mean.of for mean in tree} or {name: () for run in runs for name in run.record.means}
    below = {name for of in means.values() for name in of}
    roots = [name for name in means if name not in below]
    roots.sort(key=lambda name: -len(means[name]))
    order = list(_walk([*roots, *names], means, "", 0, set()))
    shown_names = {name for name, _, _ in order if name in names or _has_tasks(name, means, set(names))}
    order = [entry for entry in order if entry[0] in shown_names or not means.get(entry[0])]
    keys = {name: f"c{place}" for place, (name, _, _) in enumerate(order)}
    parents = {parent for _, parent, _ in order}
    open_ = {name for name, _, depth in order if depth == 0 and name in means and any(n in means for n in means[name])}
    if len(order) <= 10:
        open_ = set(parents)
    about = {name: _about(runs, name) for name in names}
    visible: set[str] = set()
    columns = []
    for name, parent, depth in order:
        if not parent or (parent in visible and parent in open_):
            visible.add(name)
        columns.append(
            Column(
                key=keys[name],
                name=name,
                is_mean=name in means,
                parent=keys.get(parent, ""),
                depth=depth,
                opens=name in parents,
                open=name in open_,
                visible=name in visible,
                about=about.get(name, ""),
            )
        )
    return tuple(columns)


def _walk(
    names: Sequence[str], means: Mapping[str, Sequence[str]], parent: str, depth: int, seen: set[str]
) -> Iterator[tuple[str, str, int]]:
    for name in names:
        if name in seen:
            continue
        seen.add(name)
        yield name, parent, depth
        yield from _walk(means.get(name, ()), means, name, depth + 1, seen)


def _has_tasks(name: str, means: Mapping[str, Sequence[str]], tasks: set[str]) -> bool:
    return name in tasks or any(_has_tasks(one, means, tasks) for one in means.get(name, ()))


def _about(runs: Sequence[ShownRun], name: str) -> str:
    record = next((run.record.tasks[name] for run in runs if name in run.record.tasks), None)
    if record is None:
        return ""
    printed = f", printed {record.printed}" if record.printed not in ("", record.measure) else ""
    return f"{record.measure}{printed}"


def board_of(
    tree: Sequence[Mean], runs: Sequence[ShownRun], intervals: Mapping[str, Mapping[str, tuple[float, float]]]
) -> Board:
    """The leaderboard of runs of one suite. ``intervals``: run key to name of task or mean to its 95% interval."""
    columns = columns_of(tree, runs)
    rows = [
        BoardRow(run.title, _note(run), {c.key: _cell(run, c, intervals.get(run.key, {})) for c in columns}, run)
        for run in runs
    ]
    published = [_published(row, columns, runs) for row in _published_columns(runs)]
    rows = _with_best(sorted(rows, key=lambda row: _depth(row, columns)), columns)
    used = {mark for row in (*rows, *published) for cell in row.cells.values() for mark in cell.marks}
    return Board(
        columns, tuple(rows), tuple(published), tuple(f"{mark} {MARKS[mark]}" for mark in MARKS if mark in used)
    )


def _published_columns(runs: Sequence[ShownRun]) -> list[PublishedColumn]:
    """The published rows that belong beside any of the runs."""
    for run in runs:
        with suppress(UserError):  # none are known, or the run is of another version of the card
            return published_beside(run.record)
    return []


def _published(row: PublishedColumn, columns: Sequence[Column], runs: Sequence[ShownRun]) -> BoardRow:
    cells = {column.key: Cell() for column in columns}
    for column in columns:
        if column.name in row.values:
            marks = DIFFERS if column.name in row.differs else ""
            marks += MISPRINT if column.name in row.misprints else ""
            cells[column.key] = Cell(row.values[column.name], marks=marks, measure=_measure(runs, column.name))
    seen = f" Seen in training: {row.seen}." if row.seen else ""
    return BoardRow(row.model, f"{row.source}.{seen}" + (f" {row.note}." if row.note else ""), cells)


def _depth(row: BoardRow, columns: Sequence[Column]) -> float:
    """Where a row stands at first: by its first column, the best value on top, rows without one at the end."""
    cell = row.cells[columns[0].key] if columns else Cell()
    if cell.value is None:
        return math.inf
    return cell.value if cell.measure == "median_rank" else -cell.value


def _measure(runs: Sequence[ShownRun], name: str) -> str:
    return next((run.record.tasks[name].measure for run in runs if name in run.record.tasks), "")


def _note(run: ShownRun) -> str:
    return ", ".join(part for part in (run.record.identity, _departs(run)) if part)


def _departs(run: ShownRun) -> str:
    n = len(run.record.deviations)
    return f"{n} deviation{'s' if n > 1 else ''}" if n else ""


def _cell(run: ShownRun, column: Column, intervals: Mapping[str, tuple[float, float]]) -> Cell:
    low, high = intervals.get(column.name, (None, None))
    if column.is_mean:
        mean = run.record.means.get(column.name)
        if mean is None:
            return Cell(word="\u2013", note="not recorded")
        if mean.value is None:
            return Cell(word="\u2013", marks=INCOMPLETE, note=f"incomplete: no value for {', '.join(mean.missing)}")
        return Cell(mean.value, low, high)
    task = run.record.tasks.get(column.name)
    if task is None:
        return Cell(word="\u2013", note="not in this run")
    if task.value is None:
        return Cell(word=task.status, note=task.reason)
    return Cell(task.value, low, high, marks=TIES if _tied(task) else "", note=_spread(task), measure=task.measure)


def _tied(task: TaskRecord) -> bool:
    value = task.measures.get(task.measure)
    return value is not None and value.depends_on_ties


def _spread(task: TaskRecord) -> str:
    if task.best is None or task.worst is None or not _tied(task):
        return ""
    low, high = sorted((task.best, task.worst))
    return f"between {shown(low, task.measure)} and {shown(high, task.measure)} by the order of ties"


def _with_best(rows: list[BoardRow], columns: Sequence[Column]) -> list[BoardRow]:
    if len(rows) < 2:
        return rows
    for column in columns:
        values = [row.cells[column.key].value for row in rows]
        present = [value for value in values if value is not None]
        if not present:
            continue
        lowest = any(row.cells[column.key].measure == "median_rank" for row in rows)
        top = min(present) if lowest else max(present)
        rows = [
            replace(row, cells={**row.cells, column.key: replace(cell, best=True)})
            if (cell := row.cells[column.key]).value == top
            else row
            for row in rows
        ]
    return rows


def abilities(runs: Sequence[ShownRun], board: Board) -> tuple[str, list[dict[str, object]]]:
    """(what the picture compares, one row for each run and ability): the card's groups, else directions, else tasks."""
    from omnirecall.view.summary import by_direction

    groups = [column for column in board.columns if column.is_mean and column.parent]
    tasks = [column for column in board.columns if not column.is_mean]
    if len(groups) >= 3:
        return "groups", _points(board, groups, runs)
    found: list[dict[str, object]] = []
    for run in runs:
        names = [column.name for column in tasks if column.name in run.record.tasks]
        found += [
            {"run": run.title, "key": run.key, "name": one["direction"], "value": one["value"]}
            for one in by_direction(run.record.tasks, names)
        ]
    if len({row["name"] for row in found}) >= 3:
        return "directions", found
    return "tasks", _points(board, tasks, runs)


def _points(board: Board, columns: Sequence[Column], runs: Sequence[ShownRun]) -> list[dict[str, object]]:
    order = {run.key: place for place, run in enumerate(runs)}
    points: list[dict[str, object]] = []
    for row in sorted(board.rows, key=lambda row: order.get(row.run.key if row.run else "", 0)):
        for column in columns:
            cell = row.cells[column.key]
            if (
                cell.value is not None
                and cell.measure != "median_rank"
                and row.run is not None
                and row.run.key in order
            ):
                point: dict[str, object] = {
                    "run": row.label,
                    "key": row.run.key,
                    "name": column.name,
                    "value": cell.value,
                }
                points.append(point | {"low": cell.low, "high": cell.high})
    return points
