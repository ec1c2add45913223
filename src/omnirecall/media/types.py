"""Decoded media: what the pipeline hands to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image


@dataclass(frozen=True, eq=False, slots=True)
class Frames:
    """Video frames in time order.

    ``pixels``: uint8 RGB, shape (frames, height, width, 3). ``times``: seconds, float64, shape (frames,).
    """

    pixels: NDArray[np.uint8]
    times: NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Samples:
    """Mono sound. ``values``: float32 in [-1, 1], shape (n,). ``rate``: samples a second."""

    values: NDArray[np.float32]
    rate: int


@dataclass(frozen=True, eq=False, slots=True)
class DecodedItem:
    """One item with its media decoded; a part that the item lacks is None.

    ``image`` is an RGB picture. ``instruction`` is the prompt of this item's role, or "".
    """

    id: str
    text: str | None = None
    image: Image | None = None
    video: Frames | None = None
    audio: Samples | None = None
    instruction: str = ""

    @property
    def modalities(self) -> frozenset[str]:
        """The parts that are present, among text, image, video and audio."""
        return frozenset(part for part in ("text", "image", "video", "audio") if getattr(self, part) is not None)
