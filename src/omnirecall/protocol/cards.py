"""Reading cards: TOML files that describe a suite, each value with how sure it is.

A card holds ``[suite]``, optional ``[defaults]`` for every task, ``[[task]]`` and ``[[mean]]``. Any value may be written as
``{value = ..., certainty = "stated", source = "..."}``; the value is used and the rest is kept as a Fact.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.measures import Measure
from omnirecall.protocol.suites import Certainty, Fact, Mean, Suite, Task

CARDS = Path(__file__).parent / "cards"


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str = ""
    source: str = ""
    licence: str = ""
    notes: str = ""
    root: str | None = None


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suite: _Head
    task: tuple[Task, ...] = ()
    mean: tuple[Mean, ...] = ()


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
    raw = read_toml(path)
    return suite_from_table(raw, path, hashlib.sha256(path.read_bytes()).hexdigest())


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table; UserError names the file and the line."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def suite_from_table(table: Mapping[str, Any], path: Path, revision: str) -> Suite:
    """A suite from a card's table; ``path`` names the card in errors."""
    table = dict(table)
    defaults = table.pop("defaults", {})
    for key in ("task", "mean"):
        entries = table.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise UserError(f"{path}: [{key}] must be written [[{key}]], once for each {key}")
        merged = [{**defaults, **entry} for entry in entries] if key == "task" else entries
        table[key] = [
            _plain(entry, path, f"{key} {entry.get('name', number)}") for number, entry in enumerate(merged, 1)
        ]
    card = _convert(table, path)
    _check_names(card, path)
    head = card.suite
    return Suite(
        name=head.name,
        tasks=card.task,
        means=card.mean,
        title=head.title,
        source=head.source,
        licence=head.licence,
        notes=head.notes,
        root=head.root,
        revision=revision,
    )


def _plain(entry: Mapping[str, Any], path: Path, place: str) -> dict[str, Any]:
    """An entry with its facts taken apart and its measures parsed."""
    entry = _facts_apart(entry, path, place)
    try:
        if isinstance(entry.get("measure"), str):
            entry["measure"] = Measure.parse(entry["measure"])
        if isinstance(entry.get("measures"), list):
            entry["measures"] = [Measure.parse(str(text)) for text in entry["measures"]]
    except ValueError as error:
        raise UserError(f"{path}: {place}: {error}") from None
    return entry


def _facts_apart(entry: Mapping[str, Any], path: Path, place: str) -> dict[str, Any]:
    """Take ``{value, certainty, source}`` apart into the plain value and, under ``facts``, the rest."""
    plain: dict[str, Any] = {}
    facts: dict[str, dict[str, str]] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping) and "certainty" in value:
            if unknown := set(value) - {"value", "certainty", "source"}:
                raise UserError(
                    f"{path}: {place}, key {key}: unknown key {sorted(unknown)[0]}; a fact has value, certainty and source"
                )
            if value["certainty"] not in get_args(Certainty):
                raise UserError(
                    f"{path}: {place}, key {key}: certainty {value['certainty']!r} is none of {', '.join(get_args(Certainty))}"
                )
            facts[key] = {"certainty": value["certainty"], "source": value.get("source", "")}
            if "value" in value:
                plain[key] = value["value"]
        else:
            plain[key] = value
    return {**plain, "facts": facts} if facts else plain


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
        kind: type[msgspec.Struct] = Task if step[1] == "task" else Mean
        where = f"{step[1]} {name}" + (f", key {step[3]}" if step[3] else "")
    else:
        kind, where = (_Head, "[suite]") if place.startswith(".suite") else (_Card, place.lstrip(".") or "the card")
    cure = (
        f"; known keys: {', '.join(f for f in kind.__struct_fields__ if f != 'facts')}"
        if "unknown field" in what
        else ""
    )
    return f"{where}: {what}{cure}"


def _check_names(card: _Card, path: Path) -> None:
    names = [task.name for task in card.task] + [mean.name for mean in card.mean]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{path}: the name {name} is used {count} times; tasks and means need names of their own")
    if not card.task:
        raise UserError(f"{path}: no [[task]]; a suite has at least one")
    for name in names:
        if not re.fullmatch(r"[^/\\\x00-\x1f]+", name) or name in (".", ".."):
            raise UserError(
                f"{path}: {name!r} cannot be a name: it must be usable as a file name, without / and control characters"
            )
    for mean in card.mean:
        if not mean.of:
            raise UserError(f"{path}: mean {mean.name}: `of` is empty; name its tasks or means")
        for part in mean.of:
            if part not in names:
                raise UserError(
                    f"{path}: mean {mean.name}: there is no task or mean named {part}{_nearest(part, names)}"
                )
    _refuse_cycles(card.mean, path)


def _nearest(name: str, names: Iterable[str]) -> str:
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


__all__ = ["CARDS", "Fact", "read_card", "read_toml", "shipped_card", "shipped_cards", "suite_from_table"]
