"""A card's means from per-task values, such as the rows of a published table."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError
from omnirecall.files import pretty_json
from omnirecall.protocol.cards import nearest
from omnirecall.protocol.suites import MeanValue, Suite, mean_values

HEADER = ("task", "name", "dataset")


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a suite. ``deviations``: task to how its value departs from the card; ``notes``: about the values as a whole."""

    suite: Suite
    given: int
    means: Mapping[str, MeanValue]
    deviations: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_table(self) -> dict[str, dict[str, Any]]:
        """Mean to value (None if incomplete) and complete, and where it applies missing, deviations, unknown."""
        table = {}
        for name, mean in self.means.items():
            lists = {
                "missing": list(mean.missing),
                "deviations": [self.deviations[task] for task in self.suite.below(name) if task in self.deviations],
                "unknown": self.suite.unknown_below(name),
            }
            table[name] = {
                "value": mean.value,
                "complete": mean.complete,
                **{key: found for key, found in lists.items() if found},
            }
        return table

    def as_json(self) -> str:
        """The table as JSON."""
        return pretty_json(self.as_table())

    def as_text(self) -> str:
        """A line for each mean, and below them what is missing, what departs from the card and what is not known."""
        suite = self.suite
        lines = [f"{suite.name}: values for {self.given} of {len(suite.tasks)} tasks"]
        if not self.means:
            lines += ["", "The card has no means."]
        width = max((len(name) for name in self.means), default=0)
        if self.means:
            lines += ["", f"{'mean':<{width}}  {'value':>10}  tasks"]
        for name, mean in self.means.items():
            below = len(suite.below(name))
            shown = "incomplete" if mean.value is None else f"{mean.value:.4f}"
            counted = f"{below}" if mean.complete else f"{below - len(mean.missing)} of {below}"
            lines.append(f"{name:<{width}}  {shown:>10}  {counted}")
        if notes := list(self._notes()):
            lines += ["", *(f"- {note}" for note in notes)]
        return "\n".join(lines) + "\n"

    def _notes(self) -> Iterator[str]:
        incomplete: dict[tuple[str, ...], list[str]] = {}
        for name, mean in self.means.items():
            if not mean.complete:
                incomplete.setdefault(mean.missing, []).append(name)
        for missing, names in incomplete.items():
            verb = "is" if len(names) == 1 else "are"
            yield f"{', '.join(names)} {verb} incomplete: no value for {', '.join(missing)}."
        if self.suite.departs:
            yield f"Departs from the protocol: {self.suite.departs}."
        for deviation in self.deviations.values():
            yield f"Departs from the protocol: {deviation}."
        for name in self.means:
            if tasks := self.suite.unknown_below(name):
                yield f"{name} rests on what is not known of {', '.join(tasks)}: no published value belongs beside it."
        yield from self.notes


def means_of_file(suite: Suite, path: Path) -> Means:
    """The means of a CSV with ``task,value`` on each line; UserError names the file, the line and the cure."""
    old = {name: (task.name, what) for task in suite.tasks for name, what in task.old_names.items()}
    values: dict[str, float] = {}
    lines: dict[str, int] = {}
    deviations: dict[str, str] = {}
    for line, name, value in _rows(path):
        task, what = old.get(name, (name, ""))
        _check_name(suite, task, f"{path}, line {line}", [*suite.task_names(), *old])
        if task in values:
            also = f" under the name {name}" if what else ""
            raise UserError(
                f"{path}, line {line}: {task} has a value already{also}, in line {lines[task]}; give it once"
            )
        values[task], lines[task] = value, line
        if what:
            deviations[task] = f"{name} stands for {task}, {what}"
    if not values:
        raise UserError(f"{path}: no values; write task,value on each line")
    return Means(suite, len(values), mean_values(suite.means, values), deviations, _mixed(values))


def _rows(path: Path) -> Iterator[tuple[int, str, float]]:
    """Line number, name and value of each row that is neither blank nor a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                where = f"{path}, line {reader.line_num}"
                if not any(cell.strip() for cell in cells):
                    continue
                name, value = ",".join(cells[:-1]).strip(), cells[-1].strip()
                if reader.line_num == 1 and name.lower() in HEADER:
                    continue
                yield reader.line_num, name, _number(name, value, where)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; name a CSV with task,value on each line") from None
    except (UnicodeDecodeError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from None
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV: {error}") from None


def _number(name: str, value: str, where: str) -> float:
    if not name:
        raise UserError(f"{where}: {value!r} alone; write task,value")
    try:
        number = float(value)
    except ValueError:
        raise UserError(f"{where}: {value!r} is no number; write task,value") from None
    if not math.isfinite(number) or not 0 <= number <= 100:
        raise UserError(f"{where}: the value {value} of {name} is neither a fraction nor a percentage")
    return number


def _check_name(suite: Suite, name: str, where: str, known: list[str]) -> None:
    if name in suite.task_names():
        return
    if name in {mean.name for mean in suite.means}:
        raise UserError(f"{where}: {name} is a mean of {suite.name}, which is worked out here; leave it out")
    raise UserError(f"{where}: {suite.name} has no task named {name}{nearest(name, known)}")


def _mixed(values: Mapping[str, float]) -> tuple[str, ...]:
    """A warning where fractions and percentages seem to be mixed; values are never rescaled."""
    low, high = min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])
    if not (0 < values[low] < 1 < values[high]):
        return ()
    return (
        f"Fractions and percentages may be mixed ({low} {values[low]:g}, {high} {values[high]:g}); they are taken as given.",
    )
