"""Chance floors: a random vector per content, and one vector for all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import ModelOptions, Role


@dataclass(frozen=True, slots=True)
class Baseline:
    """Embeds any item without looking at more than its bytes; ``constant`` gives every item the same vector."""

    dimension: int
    constant: bool
    symmetric: bool = True
    late_interaction: bool = False
    sampling_rate: int = 16000
    default_prompt: str = "none"
    media_tokens: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``constant:D`` or ``random:D``."""
        return f"{'constant' if self.constant else 'random'}:{self.dimension}"

    @property
    def fingerprint(self) -> str:
        """A hash of the name; the vectors depend on nothing else."""
        return hashlib.blake2b(f"baseline-1 {self.name}".encode(), digest_size=16).hexdigest()

    def supports(self, modalities: Set[str]) -> bool:
        """Every combination."""
        return bool(modalities)

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> NDArray[np.float32]:
        """Standard normal vectors seeded by the content, or ones; float32, shape (len(items), dimension)."""
        if self.constant:
            return np.ones((len(items), self.dimension), np.float32)
        return np.stack([self._seeded(item) for item in items])

    def _seeded(self, item: DecodedItem) -> NDArray[np.float32]:
        digest = hashlib.blake2b(digest_size=8)
        for part in _contents(item):
            digest.update(part)
        return np.random.default_rng(int.from_bytes(digest.digest())).standard_normal(self.dimension).astype(np.float32)


def _contents(item: DecodedItem) -> list[bytes]:
    parts = []
    if item.text is not None:
        parts += [b"text", item.text.encode()]
    if item.image is not None:
        parts += [b"image", item.image.tobytes()]
    if item.video is not None:
        parts += [b"video", item.video.pixels.tobytes()]
    if item.audio is not None:
        parts += [b"audio", item.audio.values.tobytes()]
    return parts


def _dimension(text: str, family: str) -> int:
    if not text:
        return 64
    if not text.isdigit() or not 0 < int(text) <= 65536:
        raise UserError(f"{family}:{text}: the dimension is a number from 1 to 65536, such as {family}:64")
    return int(text)


def load_random(name: str, options: ModelOptions) -> Baseline:
    """``random:D``; D is 64 if left out."""
    options.only("random")
    return Baseline(_dimension(name, "random"), constant=False)


def load_constant(name: str, options: ModelOptions) -> Baseline:
    """``constant:D``; D is 64 if left out."""
    options.only("constant")
    return Baseline(_dimension(name, "constant"), constant=True)
