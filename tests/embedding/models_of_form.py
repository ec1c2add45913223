"""Models for the tests of the embedding room: small, deterministic, and telling of what they were asked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omnirecall.embedding.segments import KEY_BYTES, Keys
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Role


@dataclass
class Letters:
    """A vector from the bytes of what an item holds; ``seen`` are the ids of each call, ``roles`` its role."""

    name: str = "letters"
    fingerprint: str = "letters-1"
    dimension: int = 4
    symmetric: bool = True
    late_interaction: bool = False
    sampling_rate: int = 16000
    default_prompt: str = "model"
    media_tokens: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    by_id: bool = False
    seen: list[list[str]] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)

    def supports(self, modalities: Set[str]) -> bool:
        return bool(modalities)

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Any:
        self.seen.append([item.id for item in items])
        self.roles.append(role)
        return np.stack([self.one(item, role) for item in items])

    def one(self, item: DecodedItem, role: Role) -> np.ndarray:
        """The vector of an item, float32 of ``dimension``."""
        said = [item.instruction, item.text or "", "" if self.symmetric else role]
        digest = hashlib.sha256("|".join(said).encode("utf-8", "surrogatepass"))
        if item.image is not None:
            digest.update(np.asarray(item.image).tobytes())
        return np.frombuffer(digest.digest()[: 2 * self.dimension], np.uint16).astype(np.float32) + 1


def as_bytes(keys: Keys) -> list[bytes]:
    """Keys as 16-byte digests."""
    flat = np.ascontiguousarray(keys).astype("<u8", copy=False).tobytes()
    return [flat[start : start + KEY_BYTES] for start in range(0, len(flat), KEY_BYTES)]
