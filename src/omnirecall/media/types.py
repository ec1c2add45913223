"""Decoded media: what the pipeline hands to a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image


def _no_indices() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Frames:
    """Video frames in time order.

    ``pixels``: uint8 RGB, shape (frames, height, width, 3). ``times``: seconds on the file's own clock, float64, shape
    (frames,); NaN where a folder of pictures has no clock. ``indices``: each frame's place among the ``decodable`` frames that the
    decoder outputs, int64, shape (frames,). ``warnings``: what was amiss with the file, one sentence each.
    """

    pixels: NDArray[np.uint8]
    times: NDArray[np.float64]
    indices: NDArray[np.int64] = field(default_factory=_no_indices)
    decodable: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Samples:
    """Mono sound. ``values``: float32, full scale at 1, shape (n,). ``rate``: samples a second. ``warnings``: as for ``Frames``."""

    values: NDArray[np.float32]
    rate: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class DecodedItem:
    """One item with its media decoded; a part that the item lacks is None.

    ``image`` is an RGB picture. ``instruction`` is the prompt of this item's role, or "". ``task`` is the name of the task whose
    row the item is, where the model asks for items by id, else "".
    """

    id: str
    text: str | None = None
    image: Image | None = None
    video: Frames | None = None
    audio: Samples | None = None
    instruction: str = ""
    task: str = ""

    @property
    def modalities(self) -> frozenset[str]:
        """The parts that are present, among text, image, video and audio."""
        return frozenset(part for part in ("text", "image", "video", "audio") if getattr(self, part) is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the pixels and samples take."""
        image = 0 if self.image is None else 3 * self.image.width * self.image.height
        video = 0 if self.video is None else self.video.pixels.nbytes
        return image + video + (0 if self.audio is None else self.audio.values.nbytes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was amiss with the item's media, one sentence each; empty where all is well."""
        return tuple(warning for part in (self.video, self.audio) if part is not None for warning in part.warnings)
