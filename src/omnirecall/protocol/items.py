"""Items, the things that are embedded, and the judgments between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODALITIES = ("text", "image", "video", "audio")

MediaRef = Path | bytes
"""Where a medium is: a file, or the file's own bytes."""

Judgments = Mapping[str, Mapping[str, float]]
"""Query id to candidate id to grade; a grade above 0 is relevant."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to embed: an id and any of text, image, video and audio.

    ``instruction`` is the prompt of this row where rows differ; None takes the task's.
    ``cluster`` names what several items share, such as the source video; the same key across the tasks of a suite.
    """

    id: str
    text: str | None = None
    image: MediaRef | None = None
    video: MediaRef | None = None
    audio: MediaRef | None = None
    instruction: str | None = None
    cluster: str | None = None

    @property
    def modalities(self) -> frozenset[str]:
        """The parts that are present."""
        return frozenset(part for part in MODALITIES if getattr(self, part) is not None)


@dataclass(frozen=True, slots=True)
class TaskData:
    """The rows of one task.

    ``pools``: query id to the candidate ids it is ranked against; None where all share one pool.
    ``exclude``: query id to candidate ids left out of its pool.
    """

    queries: Sequence[Item]
    candidates: Sequence[Item]
    judgments: Judgments
    pools: Mapping[str, Sequence[str]] | None = None
    exclude: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unjudged: int = 0
    """Queries dropped because they have no relevant candidate, where the card allows it."""


def signature(modalities: frozenset[str]) -> str:
    """The parts as the field writes them, in a fixed order: ``T``, ``I,T``, ``A``, ``V``."""
    return ",".join(part[0].upper() for part in ("audio", "image", "text", "video") if part in modalities)
