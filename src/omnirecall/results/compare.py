"""Several runs of one suite in one table: values, differences to the first run, wins and losses, published rows beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from omnirecall.errors import UserError
from omnirecall.results.grids import DIFFERS, MISPRINT, SEEN
from omnirecall.results.intervals import (
    Estimate,
    Floats,
    Ints,
    cluster_totals,
    difference_interval,
    is_median,
    mean_weights,
    value_interval,
)
from omnirecall.results.paired import DRAWS, POWER, SEED, Paired, holm, paired_mean, paired_task
from omnirecall.results.published import PublishedColumn
from omnirecall.results.record import Run
from omnirecall.results.stored import (
    intervals_of_means,
    primary_measure,
    primary_values,
    read_task,
    suite_clusters,
    task_path,
    valued_tasks,
)
from omnirecall.results.tables import footnotes, rows


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one task or mean. ``paired``: against the first run; ``adjusted``: its p-value after Holm's correction."""

    status: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    paired: Paired | None = None
    adjusted: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A task or a mean, with an entry for each run; ``opens``: it is the first of a group."""

    kind: str
    name: str
    measure: str
    entries: tuple[Entry, ...]
    opens: bool = False


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a run in the table, and which run it is."""

    label: str
    model: str
    identity: str
    fingerprint: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one suite side by side."""

    suite: str
    card: str
    runs: tuple[Compared, ...]
    rows: tuple[Row, ...]
    published: tuple[PublishedColumn, ...] = ()
    footnotes: tuple[str, ...] = ()
    seed: int = SEED


def compare(runs: Sequence[Run], published: Sequence[PublishedColumn] = (), *, seed: int = SEED) -> Comparison:
    """Opened runs of one suite, all against the first; UserError names what differs where they do not belong in one table."""
    if len(runs) < 2 and not published:
        raise UserError("give at least two runs to compare, or --published rows beside one")
    refuse_unlike(runs)
    labels = _labels(runs)
    sides = [_side(run) for run in runs]
    codes = suite_clusters(_clusters(sides))
    pairs = [None, *(_pair(sides[0], side, codes, seed) for side in sides[1:])]
    estimates = [
        {
            name: value_interval(primary_measure(side.run, name), values, codes[name])
            for name, values in side.values.items()
        }
        for side in sides
    ]
    means = [intervals_of_means(run, found) for run, found in zip(runs, estimates, strict=True)]
    tasks = dict.fromkeys(name for run in runs for name in run.tasks)
    listed = []
    for kind, name, opens in rows(tasks, runs[0].tree, runs[0].means):
        entries = []
        for run, pair, found, mean in zip(runs, pairs, estimates, means, strict=True):
            paired = None if pair is None else pair.get((kind, name))
            interval = found[name].interval if kind == "task" and name in found else mean.get(name)
            entries.append(_entry(run, kind, name, interval, paired))
        measure = next((run.tasks[name].measure for run in runs if name in run.tasks), "mean")
        listed.append(Row(kind=kind, name=name, measure=measure, entries=tuple(entries), opens=opens))
    compared = tuple(
        Compared(label=label, model=run.model.name, identity=run.identity, fingerprint=run.model.fingerprint)
        for label, run in zip(labels, runs, strict=True)
    )
    adjusted = _adjusted(listed)
    comparison = Comparison(
        suite=runs[0].suite, card=runs[0].card, runs=compared, rows=adjusted, published=tuple(published), seed=seed
    )
    return msgspec.structs.replace(comparison, footnotes=tuple(_footnotes(comparison, runs)))


def refuse_unlike(runs: Sequence[Run]) -> None:
    """UserError, naming what differs, if the runs do not measure the same."""
    first = runs[0]
    if again := [name for name, count in Counter(run.folder for run in runs).items() if count > 1]:
        raise UserError(f"{again[0]}: is named twice; a run differs from itself in nothing")
    for run in runs[1:]:
        both = f"{first.folder} and {run.folder}"
        if run.suite != first.suite:
            raise UserError(
                f"{both}: one is a run of {first.suite}, the other of {run.suite}; compare runs of one suite"
            )
        if run.card != first.card:
            raise UserError(
                f"{both}: their cards of {run.suite} differ (revisions {first.card[:12]} and {run.card[:12]}); run both on one"
            )
        for name in valued_tasks(first):
            if name in run.tasks and run.tasks[name].status == "ok":
                _refuse_unlike_task(first, run, name, both)


def _refuse_unlike_task(first: Run, run: Run, name: str, both: str) -> None:
    one, other = first.tasks[name], run.tasks[name]
    if one.measure != other.measure:
        raise UserError(
            f"{both}: task {name} is measured by {one.measure} and by {other.measure}; compare like with like"
        )
    for part in ("queries", "pool", "judgments"):
        if not one.hashes.get(part) or not other.hashes.get(part):
            raise UserError(
                f"{both}: task {name}: the {part} of one have no hash, so they may differ; run that one again"
            )
        if one.hashes[part] != other.hashes[part]:
            raise UserError(
                f"{both}: the {part} of task {name} differ ({one.queries:,} queries and {one.pool:,} candidates,"
                f" {other.queries:,} and {other.pool:,}); run both on the same data and with the same --limit"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """A run's values of the primary measures: float64 (n_queries,) by task, with the ids and clusters of the queries."""

    run: Run
    query_ids: Mapping[str, pa.Array]
    clusters: Mapping[str, pa.Array]
    values: Mapping[str, Floats]


def _side(run: Run) -> _Side:
    query_ids, clusters, values = {}, {}, {}
    for name in valued_tasks(run):
        task = read_task(run, name)
        query_ids[name], clusters[name] = task.query_ids, task.clusters
        values[name] = primary_values(run, name, task)
    return _Side(run, query_ids, clusters, values)


def _clusters(sides: Sequence[_Side]) -> dict[str, pa.Array]:
    """The clusters of each task as the first run that measured it has them."""
    found: dict[str, pa.Array] = {}
    for side in sides:
        for name, column in side.clusters.items():
            found.setdefault(name, column)
    return found


def _pair(first: _Side, second: _Side, codes: Mapping[str, Ints], seed: int) -> dict[tuple[str, str], Paired]:
    """The second run against the first on every task and mean that both have."""
    found: dict[tuple[str, str], Paired] = {}
    differences: dict[str, Estimate] = {}
    totals: dict[str, Floats] = {}
    for name in first.values:
        if name not in second.values:
            continue
        measure = primary_measure(first.run, name)
        one, other = first.values[name], _in_order(first, second, name)
        found["task", name] = paired_task(measure, one, other, codes[name], seed=seed)
        if not is_median(measure):
            differences[name] = difference_interval(one, other, codes[name])
            totals[name] = cluster_totals((other - one) / len(one), codes[name])[1]
    for mean in first.run.tree:
        weights = mean_weights(first.run.tree, mean.name)
        if mean.name in first.run.means and all(task in differences for task in weights):
            found["mean", mean.name] = paired_mean(weights, differences, totals, seed=seed)
    return found


def _in_order(first: _Side, second: _Side, name: str) -> Floats:
    """The second run's values in the order of the first run's queries."""
    ids, others, values = first.query_ids[name], second.query_ids[name], second.values[name]
    if ids.equals(others):
        return values
    places = pc.index_in(ids, value_set=others)
    if places.null_count or len(ids) != len(others):
        raise UserError(
            f"{task_path(second.run, name)}: its queries are not those of {task_path(first.run, name)}; run one again"
        )
    ordered: Floats = values[places.to_numpy()]
    return ordered


def _entry(run: Run, kind: str, name: str, interval: tuple[float, float] | None, paired: Paired | None) -> Entry:
    if kind == "mean":
        value = run.means[name].value if name in run.means else None
        return Entry(status="incomplete" if value is None else "ok", value=value, interval=interval, paired=paired)
    if name not in run.tasks:
        return Entry(status="not run")
    task = run.tasks[name]
    return Entry(status=task.status, value=task.value, interval=interval, paired=paired)


def _adjusted(listed: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with p-values adjusted over all tasks of all pairs of runs, and over all means of them."""
    found: dict[tuple[str, int], float] = {}
    for kind in ("task", "mean"):
        tests = [
            (row.name, place, entry.paired.p)
            for row in listed
            if row.kind == kind
            for place, entry in enumerate(row.entries)
            if entry.paired is not None
        ]
        for (name, place, _), p in zip(tests, holm([p for _, _, p in tests]), strict=True):
            found[f"{kind} {name}", place] = p
    return tuple(
        msgspec.structs.replace(
            row,
            entries=tuple(
                msgspec.structs.replace(entry, adjusted=found.get((f"{row.kind} {row.name}", place)))
                for place, entry in enumerate(row.entries)
            ),
        )
        for row in listed
    )


def _labels(runs: Sequence[Run]) -> list[str]:
    """The models' names, with the identity where two runs are of one model."""
    count = Counter(run.model.name for run in runs)
    return [run.model.name + (f" ({run.identity})" if count[run.model.name] > 1 else "") for run in runs]


def _footnotes(comparison: Comparison, runs: Sequence[Run]) -> Iterator[str]:
    first = comparison.runs[0].label
    tests = {
        kind: [e for row in comparison.rows if row.kind == kind for e in row.entries if e.paired]
        for kind in ("task", "mean")
    }
    yield f"Differences are to {first}, with 95% intervals; won and lost are queries, of a mean its tasks."
    yield (
        f"* p < 0.05, ** p < 0.01, *** p < 0.001 after Holm's correction over the {len(tests['task'])} tests of tasks"
        f" (and, apart from them, over the {len(tests['mean'])} of means)."
    )
    methods = Counter(entry.paired.method for found in tests.values() for entry in found if entry.paired)
    said = "; ".join(f"{method} ({count})" for method, count in methods.items())
    drawn = f"; seed {comparison.seed}" if any(f"{DRAWS:,}" in method for method in methods) else ""
    if said:
        yield f"Tests: {said}{drawn}."
    yield (
        f"Shows: the smallest difference that the test finds at 5% with a power of {POWER:g}, given how much the two runs"
        " disagree."
    )
    prompts = [{task.prompt for task in run.tasks.values() if task.status == "ok"} for run in runs]
    if len(set(map(frozenset, prompts))) > 1:
        named = "; ".join(
            f"{one.label}: {', '.join(sorted(words))}" for one, words in zip(comparison.runs, prompts, strict=True)
        )
        yield f"Prompts are worded by different hands ({named})."
    said_by: dict[str, list[str]] = {}
    for one, run in zip(comparison.runs, runs, strict=True):
        for note in footnotes(run):
            said_by.setdefault(note, []).append(one.label)
    for note, labels in said_by.items():
        yield note if len(labels) == len(runs) else f"{', '.join(labels)}: {note}"
    yield from _published_notes(comparison.published, departs=any(run.deviations for run in runs))


def _published_notes(columns: Sequence[PublishedColumn], departs: bool) -> Iterator[str]:
    if columns and departs:
        yield "Published values are of the protocol, from which runs beside them depart as said above."
    sources: dict[str, list[str]] = {}
    for column in columns:
        sources.setdefault(column.source, []).append(column.model)
    for source, models in sources.items():
        yield f"Published in {source}: {', '.join(models)}."
    seen: dict[str, list[str]] = {}
    for column in columns:
        if column.seen:
            seen.setdefault(column.seen, []).append(column.model)
    for what, models in seen.items():
        yield f"{SEEN} Seen in training, {', '.join(models)}: {what}."
    for column in columns:
        if column.differs:
            yield f"{DIFFERS} {column.model}: of other data or measured in another way: {', '.join(column.differs)}."
        if column.misprints:
            names = ", ".join(column.misprints)
            yield f"{MISPRINT} {column.model}: misprinted, since the rest of the row gives another value: {names}."
            yield f"{column.model}: {column.note}."
