"""Tasks, suites and the tree of means, as values. A suite is a card: data, not code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from omnirecall.protocol.measures import Measure

Certainty = Literal["stated", "code", "derived", "peer", "assumed", "unknown"]
FrameRule = Literal["linspace_round", "linspace_floor", "segment_start", "fps", "all"]
AudioWindow = Literal["whole", "first", "centre"]
Identity = Literal["id", "text", "image", "image+text", "video", "clip"]
DefectKind = Literal[
    "relevant-outside-pool",
    "constant-image",
    "duplicate-row",
    "duplicate-candidate",
    "empty-text",
    "image-token-in-text",
]


class Fact(msgspec.Struct, frozen=True):
    """How sure a value of a card is, and where it comes from.

    stated: the paper; code: the authors' code; derived: recomputed from published figures; peer: a third party's code;
    assumed: ours; unknown.
    """

    certainty: Certainty
    source: str = ""

    @property
    def is_sure(self) -> bool:
        """Whether it is neither assumed nor unknown."""
        return self.certainty not in ("assumed", "unknown")


class VectorPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is ranked: the vectors as emitted, or normalised and rounded to ``dtype`` (``model``: the model's own) first."""

    normalised: bool = False
    dtype: Literal["model", "bfloat16", "float16", "float32"] = "model"


class Defect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known fault of the official data. An audit that counts ``count`` of ``kind`` has found nothing new."""

    kind: DefectKind
    count: int | None = None
    certainty: Certainty = "assumed"
    source: str = ""
    note: str = ""


class MediaPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which frames and samples a model is given.

    ``frames`` frames by ``rule``; a video with fewer repeats frames (``repeat``) or gives those it has (``keep``).
    ``audio_track``: whether a video's sound goes to the model.
    ``fps``: under the rule ``fps``, frames a second, at most ``frames`` of them.
    ``stored``: the rule picks among this many frames that an earlier step kept, ``floor(i * n / stored)``; 0: among all.
    ``min_pixels``, ``max_pixels``: a frame's area is brought between them, its aspect kept; 0: no bound.
    ``max_tokens``: the same upper bound counted in squares of ``patch`` pixels. ``patch``: a frame's sides are multiples of it.
    ``audio_window``: the whole sound, or its first or central ``audio_seconds``.
    """

    frames: Annotated[int, msgspec.Meta(ge=1)] = 8
    rule: FrameRule = "linspace_round"
    shortage: Literal["repeat", "keep"] = "repeat"
    audio_track: bool = False
    fps: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    stored: Annotated[int, msgspec.Meta(ge=0)] = 0
    min_pixels: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_pixels: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    patch: Annotated[int, msgspec.Meta(ge=1)] = 1
    audio_window: AudioWindow = "whole"
    audio_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of a paper's table.

    ``measure`` is the primary one, ``printed`` what the paper calls it; ``measures`` are reported beside it. ``data`` is what the
    source of layout ``data["layout"]`` needs to find the rows, ``version`` which release of them. ``query_count`` and
    ``candidate_count`` are the published sizes, ``pool_size`` the candidates of one query where each has its own pool.

    ``identity``: what makes two candidates one. ``own_source``: whether a query's own source item stays in its pool.
    ``text_format``: who assembles the text: nobody, UniIR's ``format_string``, or MMEB's parsers, byte for byte.
    ``old_names``: names that older tables use for this task, each with what was different then.
    """

    name: str
    measure: Measure
    title: str = ""
    direction: str = ""
    dataset: str = ""
    split: str = ""
    version: str = ""
    licence: str = ""
    notes: str = ""
    printed: str = ""
    measures: tuple[Measure, ...] = ()
    instruction: str = ""
    instruction_per_row: bool = False
    candidate_instruction: str = ""
    text_format: Literal["plain", "uniir", "mmeb"] = "plain"
    similarity: Literal["cosine", "dot"] = "cosine"
    vectors: VectorPolicy = VectorPolicy()
    pool: Literal["shared", "per-query"] = "shared"
    identity: Identity = "id"
    own_source: Literal["keep", "exclude"] = "keep"
    unjudged: Literal["refuse", "drop"] = "refuse"
    media: MediaPolicy = MediaPolicy()
    data: Mapping[str, Any] = {}
    query_count: int | None = None
    candidate_count: int | None = None
    pool_size: int | None = None
    known_defects: tuple[Defect, ...] = ()
    old_names: Mapping[str, str] = {}
    facts: Mapping[str, Fact] = {}

    def is_sure(self, key: str) -> bool:
        """Whether the card does not mark the value of ``key`` as assumed or unknown."""
        return key not in self.facts or self.facts[key].is_sure

    def all_measures(self) -> tuple[Measure, ...]:
        """The primary measure, then the others, each once."""
        return tuple(dict.fromkeys((self.measure, *self.measures)))


class Mean(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unweighted mean of tasks or of other means, by name; if ``flat``, of all tasks below these, each once."""

    name: str
    of: tuple[str, ...]
    flat: bool = False
    facts: Mapping[str, Fact] = {}


class MeanValue(msgspec.Struct, frozen=True):
    """A mean over the tree. ``value`` is None unless every task below has a value; ``missing`` names those without."""

    value: float | None
    complete: bool
    missing: tuple[str, ...] = ()


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one benchmark and the tree of means over them.

    ``revision`` is the sha256 of the card and of those it includes; ``root`` is where the data lies if the suite brings its own.
    ``included``: for each suite that this one includes, the names taken from it unchanged.
    ``departs``: how this suite departs from its benchmark's protocol, "" if it is that protocol.
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
    departs: str = ""
    included: Mapping[str, tuple[str, ...]] = {}

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

    def below(self, name: str) -> list[str]:
        """The tasks below a mean, in the tree's order, each once; of a task, itself."""
        return _tasks_below(name, {mean.name: mean for mean in self.means})

    def unknown_below(self, name: str) -> list[str]:
        """The tasks at or below ``name`` that have a fact of certainty ``unknown``: no published value belongs beside it."""
        return [
            task for task in self.below(name) if any(f.certainty == "unknown" for f in self.task(task).facts.values())
        ]


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
            mean = by_name[name]
            parts = [evaluate(part) for part in (_tasks_below(name, by_name) if mean.flat else mean.of)]
            missing = tuple(dict.fromkeys(task for part in parts for task in part.missing))
            present = [part.value for part in parts if part.value is not None]
            known[name] = MeanValue(None if missing else sum(present) / len(present), not missing, missing)
        return known[name]

    return {mean.name: evaluate(mean.name) for mean in means}


def _tasks_below(name: str, means: Mapping[str, Mean]) -> list[str]:
    if name not in means:
        return [name]
    return list(dict.fromkeys(task for part in means[name].of for task in _tasks_below(part, means)))
