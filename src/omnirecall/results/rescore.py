"""Other measures of a finished run, from its ranks, without any model or media."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import msgspec

from omnirecall.errors import UserError
from omnirecall.files import pretty_json
from omnirecall.protocol.measures import Measure, Scores, aggregate, score_queries
from omnirecall.protocol.suites import mean_values
from omnirecall.results import grids
from omnirecall.results.grids import Cell, Column, Grid, Line, cells
from omnirecall.results.intervals import Estimate, mean_intervals, value_interval
from omnirecall.results.lists import ordered_task, refuse_deeper
from omnirecall.results.record import Run
from omnirecall.results.scores import MeasureValue
from omnirecall.results.stored import StoredTask, read_task, suite_clusters, task_path, valued_tasks
from omnirecall.results.tables import between, shown


class MeanScore(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mean over the tree of one measure, and its 95% interval."""

    value: float
    interval: tuple[float, float] | None = None


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """Measures by task and printed name, and the complete means by measure and name."""

    suite: str
    model: str
    identity: str
    tie_break: str
    tasks: Mapping[str, Mapping[str, MeasureValue]]
    means: Mapping[str, Mapping[str, MeanScore]]

    def as_json(self) -> str:
        """Indented JSON."""
        return pretty_json(self)

    def as_text(self) -> str:
        """A table: a line for each task and mean, a column for each measure."""
        return grids.terminal(self.grid())

    def grid(self) -> Grid:
        """The table."""
        measures = list(next(iter(self.tasks.values())))
        lines = [
            Line((Cell(name), *(Cell(_shown(one, found[one])) for one in measures)))
            for name, found in self.tasks.items()
        ]
        names = dict.fromkeys(name for found in self.means.values() for name in found)
        for place, name in enumerate(names):
            texts = [_shown(one, self.means[one][name]) if name in self.means[one] else "" for one in measures]
            lines.append(Line(cells(name, *texts, strong=(0,)), rule=place == 0))
        columns = (Column("task"), *(Column(one, "right") for one in measures))
        notes = (f"Equal scores: {self.tie_break}; 95% intervals.",)
        return Grid(f"{self.suite} · {self.model} · {self.identity}", columns, tuple(lines), notes)


def rescore(run: Run, measures: Sequence[Measure], tie_break: str = "expected", globs: Sequence[str] = ()) -> Rescored:
    """Score an opened run by other measures, on the tasks that match a glob; UserError for what needs more than is stored.

    ``tie_break``: ``expected``, ``best``, ``worst``, or ``index`` and ``docno`` as far as the stored lists show the order.
    """
    stored = {name: read_task(run, name) for name in chosen_tasks(run, globs)}
    codes = suite_clusters({name: task.clusters for name, task in stored.items()})
    values: dict[str, dict[str, MeasureValue]] = {}
    estimates: dict[str, dict[str, Estimate]] = {str(measure): {} for measure in measures}
    for name, task in stored.items():
        per_query = _per_query(run, name, task, measures, tie_break)
        values[name] = {}
        for measure in measures:
            scores = per_query[measure]
            one = value_interval(measure, scores.value, codes[name])
            extremes = aggregate(measure, scores.best), aggregate(measure, scores.worst)
            values[name][str(measure)] = MeasureValue(one.value, *extremes, one.interval)
            estimates[str(measure)][name] = one
    means = {text: _means(run, found) for text, found in estimates.items()}
    return Rescored(
        suite=run.suite, model=run.model.name, identity=run.identity, tie_break=tie_break, tasks=values, means=means
    )


def chosen_tasks(run: Run, globs: Sequence[str]) -> list[str]:
    """The tasks with a value that match any of the globs; UserError if one matches none, or if the run has none."""
    valued = valued_tasks(run)
    if not valued:
        raise UserError(f"{run.folder}: no task of the run has a value; `omnirecall report` says why")
    for glob in globs:
        if not fnmatch.filter(valued, glob):
            raise UserError(f"--tasks {glob}: no task with a value matches; there are {', '.join(valued)}")
    return [name for name in valued if not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)]


def _per_query(
    run: Run, name: str, task: StoredTask, measures: Sequence[Measure], tie_break: str
) -> dict[Measure, Scores]:
    """Every query's scores: the value under the order of ties that was asked for, the extremes over all orders."""
    ordered = None
    if tie_break in ("index", "docno"):
        found = ordered_task(run, name, tie_break)
        refuse_deeper(measures, found, run, name, f"under --tie-break {tie_break}")
        ordered = found.ranked
    scored = {}
    for measure in measures:
        try:
            scores = score_queries(measure, task.ranked)
            chosen = score_queries(measure, ordered) if ordered else scores
        except ValueError as error:
            raise UserError(f"{task_path(run, name)}: {measure}: {error}") from None
        value = {"best": scores.best, "worst": scores.worst}.get(tie_break, chosen.value)
        scored[measure] = Scores(value, scores.best, scores.worst)
    return scored


def _means(run: Run, estimates: Mapping[str, Estimate]) -> dict[str, MeanScore]:
    found = mean_values(run.tree, {name: one.value for name, one in estimates.items()})
    intervals = mean_intervals(run.tree, estimates)
    return {name: MeanScore(mean.value, intervals.get(name)) for name, mean in found.items() if mean.value is not None}


def _shown(measure: str, one: MeasureValue | MeanScore) -> str:
    return shown(one.value, measure) + (f" [{between(one.interval, measure)}]" if one.interval else "")
