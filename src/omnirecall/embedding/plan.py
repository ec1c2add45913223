"""What a run embeds: each distinct item once, in batches that depend on nothing but the plan."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnirecall import columns
from omnirecall.digests import file_digest, part_digest
from omnirecall.embedding.segments import Ints, Keys, no_keys
from omnirecall.errors import UserError
from omnirecall.models.base import Embedder, Role
from omnirecall.protocol.items import MEDIA, MODALITIES, Item, MediaRef, Packed, worded
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.sources.packed import cell, item_unpacked

BATCH_SIZES = {"text": 256, "image": 32, "audio": 16, "video": 8}
_LONGEST = (1 << 16) - 1
"""Texts of so many characters and more count as equally long in the order of batches."""
_KNOWN = 1 << 16
_EMPTY = hashlib.blake2b(digest_size=16)  # a copy of which is made sooner than another


@dataclass(frozen=True, slots=True)
class Contents:
    """Hashes of what items are made of; a file, a folder of frames or a cell of a table is read once, if not so many others come
    between.
    """

    _files: dict[MediaRef, bytes] = field(default_factory=dict)

    def digest(self, item: Item) -> bytes:
        """The hash of the item's parts, 16 bytes."""
        if item.text is not None and item.image is None and item.video is None and item.audio is None:
            held = item.text.encode("utf-8", "surrogatepass")  # as below, several times as fast
            hashed = _EMPTY.copy()
            hashed.update(b"text %d %b" % (len(held), held))
            return hashed.digest()
        hashed = _EMPTY.copy()
        for part in MODALITIES:
            content = getattr(item, part)
            if content is not None:
                held = content.encode("utf-8", "surrogatepass") if part == "text" else self._medium(content)
                hashed.update(f"{part} {len(held)} ".encode())  # the length, so that no text runs into the next part
                hashed.update(held)
        return hashed.digest()

    def _medium(self, ref: MediaRef) -> bytes:
        if not isinstance(ref, Path | Packed):
            return hashlib.blake2b(ref, digest_size=16).digest()
        if ref not in self._files:
            if len(self._files) == _KNOWN:
                self._files.clear()
            self._files[ref] = bytes.fromhex(media_digest(ref))
        return self._files[ref]


@dataclass(frozen=True, slots=True)
class Job:
    """One item to embed for a task. ``key``: 16 bytes, under which its vector is stored."""

    planned: Item
    role: Role
    instruction: str
    media: MediaPolicy
    task: str
    key: bytes

    @property
    def item(self) -> Item:
        """The item with media that stand in tables read from them; what is planned holds their places."""
        return item_unpacked(self.planned)

    @property
    def media_bytes(self) -> int:
        """Bytes of the files that are read to decode the item; none for media inside tables."""
        refs = [getattr(self.planned, part) for part in MEDIA]
        paths = [path for ref in refs if isinstance(ref, Path) for path in (ref.iterdir() if ref.is_dir() else [ref])]
        return sum(path.stat().st_size for path in paths)

    def refuse_changed(self, model: Embedder) -> None:
        """UserError if a file of the item is not what it was when it was planned."""
        files = [f"{part} {ref}" for part in MEDIA if isinstance(ref := getattr(self.planned, part), Path)]
        if not files or getattr(model, "by_id", False):
            return
        keyed = _Keyed(model, self.role, self.media, self.task)
        if keyed.digest(self.planned, self.instruction, Contents().digest(self.planned)) != self.key:
            raise UserError(f"item {self.planned.id}: {' or '.join(files)} changed while it was read; start again")


@dataclass(frozen=True, slots=True)
class Asked:
    """The items of one role of one task, where the source keeps them, and how they are asked for.

    ``keys`` (n, 2): where their vectors are stored. ``groups`` (n,): the number of each item's group in the plan. ``lengths`` (n,):
    of their texts, at most 65,535. ``digest``: the hash of the rows as the source gives them: ids, instructions, literal texts and
    contents.
    """

    items: Sequence[Item]
    role: Role
    instruction: str
    media: MediaPolicy
    prompt: str
    task: str
    keys: Keys
    groups: NDArray[np.int16]
    lengths: NDArray[np.uint16]
    digest: str


Group = tuple[str, tuple[str, ...]]
"""What items of one batch have in common: role, unless it changes nothing, and modalities."""


@dataclass(slots=True)
class Plan:
    """What a run asks for, and the distinct jobs of it. An item costs 20 bytes, in columns; items stay with their source."""

    model: Embedder
    batch: int | None = None
    contents: Contents = field(default_factory=Contents)
    asked: list[Asked] = field(default_factory=list)
    groups: dict[Group, int] = field(default_factory=dict)

    def add(
        self, items: Sequence[Item], role: Role, instruction: str, media: MediaPolicy, prompt: str, task: str = ""
    ) -> Keys:
        """Plan the items of one role of one task; returns their keys in order, shape (n, 2). As `ask`, of all items."""
        return self.ask(items, role, instruction, media, prompt, task).keys

    def ask(
        self,
        items: Sequence[Item],
        role: Role,
        instruction: str,
        media: MediaPolicy,
        prompt: str,
        task: str,
        look: Callable[[Item], None] = lambda item: None,
    ) -> Asked:
        """Plan the items of one role of one task, in one pass over them; ``look`` is called with each item first.

        ``instruction`` is the task's; an item's own takes its place. Under the prompt mode ``card`` the text is the suite's own
        assembly and there is no instruction; under ``none`` there is neither.
        """
        rows, kept = hashlib.sha256(), _Columns()
        keys, groups, lengths = bytearray(), array("h"), array("H")
        keyed = _Keyed(self.model, role, media, task)
        known: dict[tuple[bool, ...], int] = {}
        digest, encode = self.contents.digest, msgspec.json.Encoder().encode
        for given in items:
            look(given)
            content = digest(given)
            rows.update(encode([given.id, given.instruction, given.literal]))
            rows.update(content)
            item = said(given, prompt, self.model)
            keys += keyed.digest(item, _spoken(item, instruction, prompt), content if item is given else digest(item))
            shape = item.text is None, item.image is None, item.video is None, item.audio is None
            if shape not in known:
                group = ("" if self.model.symmetric else role, tuple(sorted(item.modalities)))
                known[shape] = self.groups.setdefault(group, len(self.groups))
            groups.append(known[shape])
            lengths.append(min(len(item.text or ""), _LONGEST))
            if len(lengths) == columns.PART:
                kept.extend(keys, groups, lengths)
                keys, groups, lengths = bytearray(), array("h"), array("H")
        kept.extend(keys, groups, lengths)
        asked = Asked(
            items,
            role,
            instruction,
            media,
            prompt,
            task,
            kept.keys.column(),
            kept.groups.column(),
            kept.lengths.column(),
            rows.hexdigest(),
        )
        self.asked.append(asked)
        return asked

    def drop(self, *asked: Asked) -> None:
        """Take back what was asked."""
        self.asked = [one for one in self.asked if all(one is not other for other in asked)]

    def parts(self, asked: Asked) -> list[frozenset[str]]:
        """The sets of modalities of the items asked for."""
        names = list(self.groups)
        return sorted({frozenset(names[group][1]) for group in np.unique(asked.groups)}, key=sorted)

    def distinct(self) -> Distinct:
        """The jobs of the plan, each once."""
        return Distinct(self)


class _Columns:
    """What a plan keeps of each item."""

    def __init__(self) -> None:
        self.keys, self.groups, self.lengths = columns.Growing("<u8", 2), columns.Growing("i2"), columns.Growing("u2")

    def extend(self, keys: bytearray, groups: array[int], lengths: array[int]) -> None:
        """Add items."""
        for column, values in ((self.keys, keys), (self.groups, groups), (self.lengths, lengths)):
            column.extend(values)


class _Keyed:
    """Keys of items of one role and media policy: the hash of all that decides an item's vector under a model."""

    def __init__(self, model: Embedder, role: Role, media: MediaPolicy, task: str) -> None:
        self.task, self.role = task, role
        self.by_id = getattr(model, "by_id", False)
        self.frames = msgspec.json.encode(media)
        self.sound = msgspec.json.encode([model.sampling_rate, media.audio_window, media.audio_seconds])
        self.track = media.audio_track
        self.symmetric = model.symmetric
        self.instruction, self.start = "", self._started("")

    def _started(self, instruction: str) -> hashlib.blake2b:
        """The hash of what comes before an item's content, the same for all items with one instruction."""
        hashed = hashlib.blake2b(b"3 " + (b"" if self.symmetric else self.role.encode()), digest_size=16)
        hashed.update(b"%d " % len(instruction))
        hashed.update(instruction.encode("utf-8", "surrogatepass"))
        return hashed

    def digest(self, item: Item, instruction: str, content: bytes) -> bytes:
        """16 bytes: content, role, instruction, and the media policy as far as it concerns the item."""
        if self.by_id:
            return hashlib.blake2b(msgspec.json.encode([self.task, self.role, item.id]), digest_size=16).digest()
        if instruction != self.instruction:
            self.instruction, self.start = instruction, self._started(instruction)
        hashed = self.start.copy()
        hashed.update(content)
        if item.video is not None:
            hashed.update(self.frames)
        if item.audio is not None or (item.video is not None and self.track):
            hashed.update(self.sound)
        return hashed.digest()


def _spoken(item: Item, instruction: str, prompt: str) -> str:
    """The instruction that the model is given with an item."""
    own = instruction if item.instruction is None else item.instruction
    return own if prompt == "model" else ""


class Distinct:
    """The distinct jobs of a plan, in the order of their batches: one role and one set of modalities each, texts of like length
    together. ``keys`` (n, 2). Batches are ranges of this order.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        asked = plan.asked
        self._starts = np.cumsum([0, *(len(one.keys) for one in asked)])
        keys = columns.joined([one.keys for one in asked], no_keys())
        groups = columns.joined([one.groups for one in asked], np.zeros(0, np.int16))
        lengths = columns.joined([one.lengths for one in asked], np.zeros(0, np.uint16))
        first = first_of_each(keys)

        def code(part: slice) -> Ints:
            rows = first[part]
            return groups[rows].astype(np.int64) << 16 | lengths[rows]

        order = columns.sorted_rows(code, len(first), len(plan.groups) << 16)  # the plan's order within equal lengths
        self._flat = columns.taken(first, order)
        self.keys: Keys = columns.taken(keys, self._flat)
        counts = np.zeros(len(plan.groups), np.int64)
        for part in columns.parts(len(first)):
            counts += np.bincount(groups[first[part]], minlength=len(counts))
        self._ends = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self._flat)

    @cached_property
    def spans(self) -> list[tuple[Group, range]]:
        """Each group, and its rows of ``keys``."""
        rows = [range(start, stop) for start, stop in itertools.pairwise(self._ends.tolist())]
        return [(name, mine) for name, mine in zip(self.plan.groups, rows, strict=True) if mine]

    @cached_property
    def batches(self) -> list[range]:
        """The batches, as ranges of rows of ``keys``."""
        found = []
        for (_, parts), rows in self.spans:
            size = self.plan.batch or min(BATCH_SIZES[part] for part in parts)
            found += [rows[at : at + size] for at in range(0, len(rows), size)]
        return found

    def todo(self, missing: NDArray[np.bool_]) -> list[range]:
        """The batches with a job among the ``missing`` rows (n,)."""
        return [batch for batch in self.batches if missing[batch.start : batch.stop].any()]

    def pieces(self, batch: range) -> list[range]:
        """A batch in pieces to be decoded side by side: each item with media alone, texts all together."""
        (_, parts), _ = self._span_of(batch)
        return [batch] if parts == ("text",) else [batch[i : i + 1] for i in range(len(batch))]

    def role(self, batch: range) -> Role:
        """The role of a batch's items, that of the first where roles change nothing."""
        return self.plan.asked[int(self._places(batch[:1])[0][0])].role

    def _span_of(self, batch: range) -> tuple[Group, range]:
        return next(span for span in self.spans if batch.start in span[1])

    def job(self, row: int) -> Job:
        """The job at a row; its item is made by the source."""
        return next(self.jobs(range(row, row + 1)))

    def jobs(self, rows: range) -> Iterator[Job]:
        """The jobs of a batch."""
        keys = self.keys[rows.start : rows.stop]
        for number, place, key in zip(*self._places(rows), keys, strict=True):
            asked = self.plan.asked[number]
            item = said(asked.items[place], asked.prompt, self.plan.model)
            spoken = _spoken(item, asked.instruction, asked.prompt)
            yield Job(item, asked.role, spoken, asked.media, asked.task, key.tobytes())

    def _places(self, rows: range) -> tuple[list[int], list[int]]:
        """Who asked for each job first, by number, and its item's row there."""
        flat = self._flat[rows.start : rows.stop]
        numbers = np.searchsorted(self._starts, flat, side="right") - 1
        return numbers.tolist(), (flat - self._starts[numbers]).tolist()


def first_of_each(keys: Keys) -> Ints:
    """The first row of each distinct key, rising."""
    first = columns.empty(len(keys), bool)
    for rows in columns.runs(keys[:, 0]):
        first[rows] = False
        some = keys[rows]
        order = np.lexsort((some[:, 1], some[:, 0]))  # stable, so that the first of equal keys is the first in the plan
        ordered = some[order]
        new = np.ones(len(some), bool)
        new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        first[rows[order[new]]] = True
        columns.scattered(keys.nbytes + first.nbytes, len(rows))
    return columns.where(first)


def said(item: Item, prompt: str, model: Embedder) -> Item:
    """The item as the prompt mode words it."""
    return worded(item, model.media_tokens) if prompt == "card" else item


def media_digest(ref: MediaRef) -> str:
    """The hash of a medium's bytes, or of the names and bytes of a folder's files."""
    if isinstance(ref, Path):
        if not ref.is_dir():
            return file_digest(ref)
        parts = "".join(f"{path.name} {file_digest(path)}\n" for path in sorted(ref.iterdir()) if path.is_file())
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
    if isinstance(ref, Packed):
        path, row, column = ref.place
        return part_digest(path, f"{row} {column}", partial(cell, ref))
    return hashlib.blake2b(ref, digest_size=16).hexdigest()
