"""What a run embeds: each distinct item once, in batches that depend on nothing but the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from omnirecall.digests import file_digest
from omnirecall.models.base import Embedder, Role
from omnirecall.protocol.items import MODALITIES, Item, MediaRef, Packed, worded
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.sources.packed import item_unpacked, unpacked

BATCH_SIZES = {"text": 256, "image": 32, "audio": 16, "video": 8}


@dataclass(frozen=True, slots=True)
class Contents:
    """Hashes of what items are made of; a file, a folder of frames or a cell of a table is read once."""

    _files: dict[MediaRef, str] = field(default_factory=dict)

    def parts(self, item: Item) -> list[list[str]]:
        """[modality, hash of its text or bytes] for each part of the item."""
        return [[part, self._digest(getattr(item, part))] for part in MODALITIES if part in item.modalities]

    def _digest(self, content: str | MediaRef) -> str:
        if isinstance(content, Path | Packed):
            if content not in self._files:
                self._files[content] = media_digest(content)
            return self._files[content]
        return hashlib.blake2b(content.encode() if isinstance(content, str) else content, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Job:
    """One item to embed, and the key under which its vector is stored."""

    planned: Item
    role: Role
    instruction: str
    media: MediaPolicy
    key: bytes

    @property
    def item(self) -> Item:
        """The item with media that stand in tables read from them; what is planned holds their places."""
        return item_unpacked(self.planned)


@dataclass(frozen=True, slots=True)
class Plan:
    """The distinct jobs of a run, in the order they were asked for."""

    model: Embedder
    batch: int | None = None
    contents: Contents = field(default_factory=Contents)
    jobs: dict[bytes, Job] = field(default_factory=dict)

    def add(self, items: Iterable[Item], role: Role, instruction: str, media: MediaPolicy, prompt: str) -> list[bytes]:
        """Plan the items of one role of one task; returns their keys in order.

        ``instruction`` is the task's; an item's own takes its place. Under the prompt mode ``card`` the text is the suite's own
        assembly and there is no instruction; under ``none`` there is neither.
        """
        keys = []
        for given in items:
            item = said(given, prompt, self.model)
            own = instruction if item.instruction is None else item.instruction
            spoken = own if prompt == "model" else ""
            key = self.key(item, role, spoken, media)
            self.jobs.setdefault(key, Job(item, role, spoken, media, key))
            keys.append(key)
        return keys

    def key(self, item: Item, role: Role, instruction: str, media: MediaPolicy) -> bytes:
        """The hash of all that decides the item's vector under this model: content, role, instruction, media policy."""
        parts: list[object] = [1, "" if self.model.symmetric else role, instruction, self.contents.parts(item)]
        if item.video is not None:
            parts.append(msgspec.to_builtins(media))
        if item.audio is not None or (item.video is not None and media.audio_track):
            parts += [self.model.sampling_rate, media.audio_window, media.audio_seconds]
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()

    def batches(self) -> list[list[Job]]:
        """The jobs in batches of one role and one set of modalities, texts of like length together."""
        groups: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
        for job in self.jobs.values():
            group = ("" if self.model.symmetric else job.role, tuple(sorted(job.planned.modalities)))
            groups.setdefault(group, []).append(job)
        batches = []
        for (_, modalities), jobs in groups.items():
            size = self.batch or min(BATCH_SIZES[part] for part in modalities)
            jobs.sort(key=lambda job: len(job.planned.text or ""))
            batches += [jobs[start : start + size] for start in range(0, len(jobs), size)]
        return batches


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
    content = unpacked(ref)
    return file_digest(content) if isinstance(content, Path) else hashlib.blake2b(content, digest_size=16).hexdigest()
