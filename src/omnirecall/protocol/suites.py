"""Tasks, suites and the tree of means, as values. A suite is a card: data, not code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from omnirecall.protocol.measures import Measure

Certainty = Literal["stated", "code", "derived", "peer", "assumed", "unknown"]
FrameRule = Literal["linspace_round", "linspace_floor", "segment_start", "fps", "all"]


class Fact(msgspec.Struct, frozen=True):
    """How sure a value of a card is, and where it comes from.

    stated: the paper; code: the authors' code; derived: recomputed from published figures; peer: a third party's code;
    assumed: ours; unknown.
    """

    certainty: Certainty
    source: str = ""


class MediaPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which frames and samples a model is given.

    ``frames`` frames by ``rule``; a video with fewer repeats frames (``repeat``) or gives those it has (``keep``).
    ``audio_track``: whether a video's sound goes to the model.
    """

    frames: int = 8
    rule: FrameRule = "linspace_round"
    shortage: Literal["repeat", "keep"] = "repeat"
    audio_track: bool = False


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of a paper's table.

    ``measure`` is the primary one; ``measures`` are reported beside it. ``data`` is what the source of layout
    ``data["layout"]`` needs to find the rows. ``query_count`` and ``candidate_count`` are the published sizes.
    """

    name: str
    measure: Measure
    title: str = ""
    direction: str = ""
    dataset: str = ""
    split: str = ""
    measures: tuple[Measure, ...] = ()
    instruction: str = ""
    candidate_instruction: str = ""
    similarity: Literal["cosine", "dot"] = "cosine"
    unjudged: Literal["refuse", "drop"] = "refuse"
    media: MediaPolicy = MediaPolicy()
    data: Mapping[str, Any] = {}
    query_count: int | None = None
    candidate_count: int | None = None
    facts: Mapping[str, Fact] = {}

    def all_measures(self) -> tuple[Measure, ...]:
        """The primary measure, then the others, each once."""
        return tuple(dict.fromkeys((self.measure, *self.measures)))


class Mean(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unweighted mean of tasks or of other means, by name."""

    name: str
    of: tuple[str, ...]
    facts: Mapping[str, Fact] = {}


class MeanValue(msgspec.Struct, frozen=True):
    """A mean over the tree. ``value`` is None unless every task below has a value; ``missing`` names those without."""

    value: float | None
    complete: bool
    missing: tuple[str, ...] = ()


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one benchmark and the tree of means over them.

    ``revision`` is the sha256 of the card; ``root`` is where the data lies if the suite brings its own.
    """

    name: str
    tasks: tuple[Task, ...]
    means: tuple[Mean, ...] = ()
    title: str = ""
    source: str = ""
    licence: str = ""
    notes: str = ""
    revision: str = ""
    root: str | None = None

    def task(self, name: str) -> Task:
        """The task of that name; KeyError if there is none."""
        return {task.name: task for task in self.tasks}[name]

    def task_names(self) -> list[str]:
        """Names in the card's order."""
        return [task.name for task in self.tasks]

    def facts(self) -> Iterator[tuple[str, str, Fact]]:
        """Every fact with its place: (task or mean, key, fact)."""
        entries: list[Task | Mean] = [*self.tasks, *self.means]
        for entry in entries:
            for key, fact in entry.facts.items():
                yield entry.name, key, fact


def mean_values(means: tuple[Mean, ...], values: Mapping[str, float]) -> dict[str, MeanValue]:
    """Every mean of the tree, from task values by name.

    A mean is complete only if every task below it has a value. Values are not rounded on the way.
    """
    by_name = {mean.name: mean for mean in means}
    known: dict[str, MeanValue] = {}

    def evaluate(name: str) -> MeanValue:
        if name not in by_name:
            return MeanValue(values[name], True) if name in values else MeanValue(None, False, (name,))
        if name not in known:
            parts = [evaluate(part) for part in by_name[name].of]
            missing = tuple(dict.fromkeys(task for part in parts for task in part.missing))
            present = [part.value for part in parts if part.value is not None]
            known[name] = MeanValue(None if missing else sum(present) / len(present), not missing, missing)
        return known[name]

    return {mean.name: evaluate(mean.name) for mean in means}
