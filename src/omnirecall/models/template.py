"""A model of your own for OmniRecall; run it with ``omnirecall run starter --model py:my_model.py:Model``.

It runs as it stands, on text, images, video and sound, with numpy alone: counts of letter triples, histograms of colours,
spectra of sounds. It knows nothing of meaning, so it scores near chance from one modality to another. Put your model in place of
``one`` and the methods after it, say what it is at the top of the class, and change ``fingerprint`` whenever a vector changes:
vectors are kept by it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from omnirecall.media.types import DecodedItem

Vector = NDArray[np.float32]


class Model:
    """Your model: what is known of it before it is loaded, and ``encode``."""

    name = "my-model"
    fingerprint = "my-model-1"
    dimension = 512
    symmetric = True  # False if a query and a candidate of the same content get different vectors
    default_prompt = "model"  # items carry the instruction; "card": the suite words the text; "none": no instruction
    sampling_rate = 16000  # samples a second in which you want sound

    def __init__(self) -> None:
        """Keep this quick and load weights in ``encode``, which a run whose vectors are all stored never calls."""

    def supports(self, modalities: Set[str]) -> bool:
        """Whether an item with exactly these parts can be embedded; tasks with others are reported as unsupported."""
        return bool(modalities) and modalities <= {"text", "image", "video", "audio"}

    def encode(self, items: Sequence[DecodedItem], *, role: str) -> Vector:
        """One vector an item, in order: shape (len(items), dimension). All items have the same parts and the same role.

        ``role`` is "query" or "candidate". Nothing need be normalised, but no vector may be zero.
        """
        return np.stack([self.one(item) for item in items])

    def one(self, item: DecodedItem) -> Vector:
        """The sum of the parts, each of length 1. A model that takes several parts at once would take ``item`` whole."""
        parts: list[Vector] = []
        if item.text is not None:
            parts.append(self.text(f"{item.instruction}\n{item.text}" if item.instruction else item.text))
        if item.image is not None:
            parts.append(self.picture(np.asarray(item.image)))
        if item.video is not None:
            parts.append(np.mean([self.picture(frame) for frame in item.video.pixels], axis=0, dtype=np.float32))
        if item.audio is not None:
            parts.append(self.sound(item.audio.values))
        return np.asarray(sum(part / np.linalg.norm(part) for part in parts), np.float32)

    def text(self, text: str) -> Vector:
        """Replace this: how often each letter triple occurs, by a hash of the triple."""
        padded = f" {text.lower()} "
        triples = [padded[start : start + 3] for start in range(max(1, len(padded) - 2))]
        places = [zlib.crc32(triple.encode()) % self.dimension for triple in triples]
        return np.asarray(np.bincount(places, minlength=self.dimension), np.float32)

    def picture(self, pixels: NDArray[np.uint8]) -> Vector:
        """Replace this: the share of pixels in each of 8 x 8 x 8 colours. ``pixels``: RGB, shape (height, width, 3)."""
        red, green, blue = (pixels[..., channel].astype(np.int64) // 32 for channel in range(3))
        counts = np.bincount((red * 64 + green * 8 + blue).ravel(), minlength=self.dimension)
        return np.asarray(np.sqrt(counts / counts.sum()), np.float32)

    def sound(self, samples: NDArray[np.float32]) -> Vector:
        """Replace this: the mean strength of each of 512 frequencies. ``samples``: full scale at 1, shape (n,)."""
        padded = np.pad(samples, (0, -len(samples) % 1024 if len(samples) else 1024))
        strength = np.abs(np.fft.rfft(padded.reshape(-1, 1024) * np.hanning(1024)))[:, 1:]
        return np.asarray(np.log1p(strength.mean(axis=0) + 1e-3), np.float32)
