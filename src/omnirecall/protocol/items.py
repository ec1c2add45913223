"""Items, the things that are embedded, and the judgments between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import overload

MODALITIES = ("text", "image", "video", "audio")
MEDIA = ("image", "video", "audio")
TOKENS = {"image": "<|image_1|>", "video": "<|video_1|>"}
"""Where a literal text places a medium; a model has its own words for it, or none."""

MediaRef = Path | bytes
"""Where a medium is: a file, a folder of a video's frames, or the file's own bytes."""

Judgments = Mapping[str, Mapping[str, float]]
"""Query id to candidate id to grade; a grade above 0 is relevant."""


class Packed(bytes):
    """A medium inside a larger file, such as a cell of a table: its value is its place until ``load`` reads it.

    ``column`` may lead into a struct: ``image.bytes``.
    """

    @classmethod
    def at(cls, path: Path, row: int, column: str) -> Packed:
        """The cell of ``column`` in ``row`` of a parquet file."""
        return cls(f"{path}\0{row}\0{column}".encode())

    @property
    def place(self) -> tuple[Path, int, str]:
        """File, row and column."""
        path, row, column = self.decode().split("\0")
        return Path(path), int(row), column


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to embed: an id and any of text, image, video and audio.

    ``instruction`` is the prompt of this row where rows differ; None takes the task's.
    ``literal`` is the text as the suite's own code assembles it from instruction and text, with TOKENS where media stand; None if
    it assembles nothing.
    ``cluster`` names what several items share, such as the source video; the same key across the tasks of a suite.
    """

    id: str
    text: str | None = None
    image: MediaRef | None = None
    video: MediaRef | None = None
    audio: MediaRef | None = None
    instruction: str | None = None
    cluster: str | None = None
    literal: str | None = None

    @property
    def modalities(self) -> frozenset[str]:
        """The parts that are present."""
        return frozenset(part for part in MODALITIES if getattr(self, part) is not None)


def worded(item: Item, tokens: Mapping[str, str]) -> Item:
    """The item as the suite's own code words it: its literal text, with the model's ``tokens`` for media, and no instruction.

    A model without a token for a medium gets the text without it.
    """
    if item.literal is None:
        return replace(item, instruction="")
    text = item.literal
    for part, token in TOKENS.items():
        text = text.replace(token, tokens[part]) if part in tokens else text.replace(f"{token} ", "").replace(token, "")
    return replace(item, text=text or None, instruction="")


@dataclass(frozen=True, slots=True)
class Ids(Sequence[str]):
    """The ids of items that may stay with their source."""

    items: Sequence[Item]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        """The id at a row, or those of a slice."""
        return Ids(self.items[row]) if isinstance(row, slice) else self.items[row].id

    def __iter__(self) -> Iterator[str]:
        return (item.id for item in self.items)


@dataclass(frozen=True, slots=True)
class TaskData:
    """The rows of one task.

    ``pools``: query id to the candidate ids it is ranked against; None where all share one pool.
    ``exclude``: query id to candidate ids left out of its pool.
    ``defects``: how often the reader met each kind of defect that it handled, by the kinds of ``Defect``.
    """

    queries: Sequence[Item]
    candidates: Sequence[Item]
    judgments: Judgments
    pools: Mapping[str, Sequence[str]] | None = None
    exclude: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unjudged: int = 0
    """Queries dropped because they have no relevant candidate, where the card allows it."""
    defects: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Ids of queries that are left out and score 0, each with the reason."""


def signature(modalities: frozenset[str]) -> str:
    """The parts as the field writes them, in a fixed order: ``T``, ``I,T``, ``A``, ``V``."""
    return ",".join(part[0].upper() for part in ("audio", "image", "text", "video") if part in modalities)
