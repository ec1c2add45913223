"""Reading cards: TOML files that describe a suite, each value with how sure it is.

A card holds ``[suite]``, ``[[task]]`` and ``[[mean]]``. Any value may be written as
``{value = ..., certainty = "stated", source = "..."}``; the value is used and the rest is kept as a Fact.

What tasks share is written once: ``[defaults]`` for every task, ``[defaults.mean]`` for every mean, and ``[group.NAME]`` for the
tasks (and groups) that say ``group = "NAME"`` or a list of names. A task's own values come first, then its groups', the last
first, then the defaults'; the tables ``data``, ``media`` and ``vectors`` are merged key by key. A fact without a value, such as
``query_count = {certainty = "stated", source = "Table 4"}``, covers the values that others give for that key.

``[[include]]`` takes over another suite: ``suite``, and ``tasks`` (names or globs) or ``means`` (names, with all below them).
``[include.set."GLOB"]`` changes values of the tasks taken; such a suite says in ``departs`` how it departs from the protocol.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.measures import Measure
from omnirecall.protocol.suites import Certainty, Defect, Fact, Mean, MediaPolicy, Suite, Task, VectorPolicy

LONGEST_NAME = 200
"""Bytes; a task's files are named after it, and file systems stop at 255."""

CARDS = Path(__file__).parent / "cards"
MERGED = ("data", "media", "vectors")
"""Tables that are merged key by key."""


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str = ""
    source: str = ""
    licence: str = ""
    notes: str = ""
    root: str | None = None
    departs: str = ""


class _Include(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suite: str
    tasks: tuple[str, ...] = ()
    means: tuple[str, ...] = ()
    set: Mapping[str, dict[str, Any]] = {}


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suite: _Head
    task: tuple[Task, ...] = ()
    mean: tuple[Mean, ...] = ()


ALSO: dict[type[msgspec.Struct], list[str]] = {Task: ["group"], _Card: ["defaults", "group", "include"]}
"""Keys that are no fields, since they are resolved before."""


def shipped_cards() -> list[str]:
    """Names of the cards that come with the package."""
    return sorted(path.stem for path in CARDS.glob("*.toml"))


def shipped_card(name: str) -> Path:
    """The path of a shipped card; UserError, with the nearest name, if there is none."""
    if name not in shipped_cards():
        near = difflib.get_close_matches(name, shipped_cards(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(shipped_cards())}"
        raise UserError(f"there is no suite and no folder named {name}: {hint}")
    return CARDS / f"{name}.toml"


def read_card(path: Path) -> Suite:
    """The suite that a card describes; UserError names the file, the place and the cure."""
    return _read_card(path, (path.stem,))


def _read_card(path: Path, above: tuple[str, ...]) -> Suite:
    raw = read_toml(path)
    return suite_from_table(raw, path, hashlib.sha256(path.read_bytes()).hexdigest(), above)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table; UserError names the file and the line."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def suite_from_table(table: Mapping[str, Any], path: Path, revision: str, above: tuple[str, ...] = ()) -> Suite:
    """A suite from a card's table; ``path`` names the card in errors, ``above`` the cards that include it."""
    table = dict(table)
    defaults = table.pop("defaults", {})
    shared = _Shared(defaults, table.pop("group", {}), path)
    for key in ("task", "mean", "include"):
        entries = table.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise UserError(f"{path}: [{key}] must be written [[{key}]], once for each {key}")
    taken = [_taken(entry, path, above) for entry in table.pop("include", [])]
    table["task"] = [
        *(task for one in taken for task in one.tasks),
        *(shared.task(entry, f"task {entry.get('name', n)}") for n, entry in enumerate(table.get("task", []), 1)),
    ]
    table["mean"] = [
        *(mean for one in taken for mean in one.means),
        *(shared.mean(entry, f"mean {entry.get('name', n)}") for n, entry in enumerate(table.get("mean", []), 1)),
    ]
    card = _convert(table, path)
    _check_names(card, path)
    if taken:
        revision = hashlib.sha256(" ".join([revision, *(one.revision for one in taken)]).encode()).hexdigest()
    return Suite(
        **msgspec.structs.asdict(card.suite),
        tasks=card.task,
        means=card.mean,
        revision=revision,
        included=_included(taken),
    )


def _included(taken: Iterable[_Taken]) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for one in taken:
        names[one.suite] = (*names.get(one.suite, ()), *one.unchanged)
    return names


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a card takes from a suite, as tables; ``unchanged`` names the tasks and means that stay as they are."""

    suite: str
    tasks: list[dict[str, Any]]
    means: list[dict[str, Any]]
    unchanged: tuple[str, ...]
    revision: str


def _taken(entry: Mapping[str, Any], path: Path, above: tuple[str, ...]) -> _Taken:
    try:
        include = msgspec.convert(entry, _Include)
    except msgspec.ValidationError as error:
        known = ", ".join(_Include.__struct_fields__)
        raise UserError(f"{path}: include {entry.get('suite', '')}: {error}; an include has {known}") from None
    beside = path.parent / f"{include.suite}.toml"
    card = beside if beside.is_file() else shipped_card(include.suite)
    if include.suite in above:
        raise UserError(f"{path}: the suite {include.suite} includes itself: {' > '.join((*above, include.suite))}")
    suite = _read_card(card, (*above, include.suite))
    place = f"include {include.suite}"
    means, tasks = _wanted(include, suite, path)
    tables = [_builtins(task) for task in suite.tasks if task.name in tasks]
    touched: set[str] = set()
    for glob, values in include.set.items():
        changed = [table for table in tables if fnmatch.fnmatchcase(table["name"], glob)]
        if not changed:
            raise UserError(f"{path}: {place}, set: {glob} matches no task that is taken{nearest(glob, tasks)}")
        layer = _layer(values, path, f"{place}, set {glob}")
        touched.update(table["name"] for table in changed)
        for table in changed:
            facts = table.pop("facts", {})
            merged = _merge([_Layer(_flat(table), facts), layer])
            table.clear()
            table.update(_parsed(merged, path, place))
    kept = [mean for mean in suite.means if mean.name in means]
    names = [*(name for name in suite.task_names() if name in tasks), *(mean.name for mean in kept)]
    return _Taken(
        suite=suite.name,
        tasks=tables,
        means=[_builtins(mean) for mean in kept],
        unchanged=tuple(name for name in names if not touched.intersection(suite.below(name))),
        revision=suite.revision,
    )


def _wanted(include: _Include, suite: Suite, path: Path) -> tuple[set[str], set[str]]:
    """The means and the tasks that an include takes from a suite."""
    parts = {mean.name: mean.of for mean in suite.means}
    means: set[str] = set()
    tasks: set[str] = set()

    def take(name: str) -> None:
        if name in parts:
            means.add(name)
            for part in parts[name]:
                take(part)
        else:
            tasks.add(name)

    for name in include.means:
        found = list(parts) if name == "*" else [name]
        for mean in found:
            if mean not in parts:
                raise UserError(f"{path}: include {suite.name}: it has no mean named {mean}{nearest(mean, parts)}")
            take(mean)
    for glob in include.tasks:
        matching = fnmatch.filter(suite.task_names(), glob)
        if not matching:
            raise UserError(f"{path}: include {suite.name}: no task matches {glob}{nearest(glob, suite.task_names())}")
        tasks.update(matching)
    if not tasks:
        raise UserError(f"{path}: include {suite.name}: name its `tasks` or `means`; `*` takes all")
    return means, tasks


def _builtins(entry: Task | Mean) -> dict[str, Any]:
    table: dict[str, Any] = msgspec.to_builtins(entry, enc_hook=str)
    if isinstance(entry, Task):
        table |= {"measure": entry.measure, "measures": list(entry.measures)}
    return table


@dataclass(frozen=True, slots=True)
class _Layer:
    """Values by dotted key, the facts of those that came with one, and the facts that cover values given elsewhere."""

    values: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    covers: dict[str, Any] = field(default_factory=dict)


class _Shared:
    """What the tasks and means of a card share: defaults and groups."""

    def __init__(self, defaults: Mapping[str, Any], groups: Mapping[str, Any], path: Path) -> None:
        if not isinstance(defaults, Mapping) or not isinstance(groups, Mapping):
            raise UserError(f"{path}: write [defaults] and [group.NAME], each once")
        self.path, self.groups = path, groups
        mean = defaults.get("mean", {})
        self.of_tasks = _layer({key: value for key, value in defaults.items() if key != "mean"}, path, "[defaults]")
        self.of_means = _layer(mean, path, "[defaults.mean]")

    def task(self, entry: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The table of a task, complete."""
        own = _layer({key: value for key, value in entry.items() if key != "group"}, self.path, place)
        return _parsed(_merge([self.of_tasks, *self.layers(entry, place, ()), own]), self.path, place)

    def mean(self, entry: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The table of a mean, complete."""
        return _merge([self.of_means, _layer(entry, self.path, place)])

    def layers(self, entry: Mapping[str, Any], place: str, above: tuple[str, ...]) -> list[_Layer]:
        """The groups of an entry, the most general first."""
        names = entry.get("group", [])
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{self.path}: {place}, key group: write the name of a group or a list of names")
        found = []
        for name in names:
            if not isinstance(self.groups.get(name), Mapping):
                raise UserError(f"{self.path}: {place}: there is no [group.{name}]{nearest(name, self.groups)}")
            if name in above:
                raise UserError(f"{self.path}: group {name} is its own group: {' > '.join((*above, name))}")
            group = self.groups[name]
            found += self.layers(group, f"group {name}", (*above, name))
            own = {key: value for key, value in group.items() if key != "group"}
            found.append(_layer(own, self.path, f"group {name}"))
        return found


def _merge(layers: list[_Layer]) -> dict[str, Any]:
    """One table of several layers, the last strongest, with the facts that hold for its values."""
    values: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    covers: dict[str, Any] = {}
    for layer in layers:
        covers |= layer.covers
        for key, value in layer.values.items():
            values[key] = value
            facts.pop(key, None)
            if key in layer.facts:
                facts[key] = layer.facts[key]
    known = {key: facts.get(key) or covers.get(key) for key in values} | layers[-1].covers
    table: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".") if key.split(".")[0] in MERGED else [key]
        place = table
        for step in above:
            place = place.setdefault(step, {})
        place[last] = value
    if facts := {key: fact for key, fact in known.items() if fact}:
        table["facts"] = facts
    return table


def _layer(entry: Mapping[str, Any], path: Path, place: str) -> _Layer:
    """Take ``{value, certainty, source}`` apart, at any depth of the merged tables."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{path}: {place} must be a table")
    layer = _Layer()
    for key, value in _flat(entry).items():
        if not (isinstance(value, Mapping) and "certainty" in value):
            if key in MERGED:
                raise UserError(f"{path}: {place}, key {key}: must be a table")
            layer.values[key] = value
            continue
        if unknown := set(value) - {"value", "certainty", "source"}:
            raise UserError(
                f"{path}: {place}, key {key}: unknown key {sorted(unknown)[0]}; a fact has value, certainty and source"
            )
        if value["certainty"] not in get_args(Certainty):
            raise UserError(
                f"{path}: {place}, key {key}: certainty {value['certainty']!r} is none of {', '.join(get_args(Certainty))}"
            )
        fact = {"certainty": value["certainty"], "source": value.get("source", "")}
        if "value" in value:
            inner = _flat({key: value["value"]})
            layer.values.update(inner)
            layer.facts.update(dict.fromkeys(inner, fact))
        else:
            layer.covers[key] = fact
    return layer


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The tables that are merged, as dotted keys; facts stay whole."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key.split(".")[0] in MERGED and isinstance(value, Mapping) and "certainty" not in value:
            flat |= _flat({f"{key}.{inner}": deeper for inner, deeper in value.items()})
        else:
            flat[key] = value
    return flat


def _parsed(table: dict[str, Any], path: Path, place: str) -> dict[str, Any]:
    """The table with its measures parsed."""
    try:
        if isinstance(table.get("measure"), str):
            table["measure"] = Measure.parse(table["measure"])
        if isinstance(table.get("measures"), list):
            table["measures"] = [
                measure if isinstance(measure, Measure) else Measure.parse(str(measure))
                for measure in table["measures"]
            ]
    except ValueError as error:
        raise UserError(f"{path}: {place}: {error}") from None
    return table


def _convert(table: Mapping[str, Any], path: Path) -> _Card:
    try:
        return msgspec.convert(table, _Card)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {_readable(str(error), table)}") from None


def _readable(message: str, table: Mapping[str, Any]) -> str:
    """Turn msgspec's ``... - at `$.task[2].measure` `` into the task's own name and key, and add the known keys."""
    found = re.match(r"(?P<what>.*?)(?: - at `\$(?P<place>.*)`)?$", message, re.DOTALL)
    what, place = (found["what"], found["place"] or "") if found else (message, "")
    what = what.replace("Object contains", "there is an").replace("Object missing", "missing")
    step = re.match(r"\.(task|mean)\[(\d+)\]\.?(.*)", place)
    if step:
        entry = table[step[1]][int(step[2])]
        name = (
            entry.get("name", f"number {int(step[2]) + 1}")
            if isinstance(entry, Mapping)
            else f"number {int(step[2]) + 1}"
        )
        inner: dict[str, type[msgspec.Struct]] = {
            "media": MediaPolicy,
            "vectors": VectorPolicy,
            "known_defects": Defect,
        }
        of_task = inner.get(re.split(r"[.\[]", step[3])[0], Task)
        kind: type[msgspec.Struct] = of_task if step[1] == "task" else Mean
        where = f"{step[1]} {name}" + (f", key {step[3]}" if step[3] else "")
    else:
        kind, where = (_Head, "[suite]") if place.startswith(".suite") else (_Card, place.lstrip(".") or "the card")
    known = [field for field in kind.__struct_fields__ if field != "facts"] + ALSO.get(kind, [])
    cure = f"; known keys: {', '.join(known)}" if "unknown field" in what else ""
    return f"{where}: {what}{cure}"


def _check_names(card: _Card, path: Path) -> None:
    names = [task.name for task in card.task] + [mean.name for mean in card.mean]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{path}: the name {name} is used {count} times; tasks and means need names of their own")
    if not card.task:
        raise UserError(f"{path}: no [[task]]; a suite has at least one")
    for name in names:
        if not re.fullmatch(r"[^/\\\x00-\x1f]+", name) or name in (".", "..") or len(name.encode()) > LONGEST_NAME:
            raise UserError(
                f"{path}: {name!r} cannot be a name: it must be usable as a file name, at most {LONGEST_NAME} bytes, without /"
                f" and control characters"
            )
    ranks = {task.name for task in card.task if not task.measure.higher_is_better}
    for mean in card.mean:
        if unfit := ranks.intersection(mean.of):
            raise UserError(
                f"{path}: mean {mean.name}: {min(unfit)} is measured by a rank, which is no share to take a mean of"
            )
        if not mean.of:
            raise UserError(f"{path}: mean {mean.name}: `of` is empty; name its tasks or means")
        for part in mean.of:
            if part not in names:
                raise UserError(
                    f"{path}: mean {mean.name}: there is no task or mean named {part}{nearest(part, names)}"
                )
    _refuse_cycles(card.mean, path)


def nearest(name: str, names: Iterable[str]) -> str:
    """``; did you mean X?`` with the nearest of the names, or "" if none is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _refuse_cycles(means: tuple[Mean, ...], path: Path) -> None:
    parts = {mean.name: mean.of for mean in means}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise UserError(f"{path}: mean {name} contains itself: {' > '.join((*above, name))}")
        for part in parts.get(name, ()):
            visit(part, (*above, name))

    for name in parts:
        visit(name, ())


__all__ = ["CARDS", "Fact", "nearest", "read_card", "read_toml", "shipped_card", "shipped_cards", "suite_from_table"]
