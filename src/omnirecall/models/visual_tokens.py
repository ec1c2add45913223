"""Pictures and frames as the patches that a vision-language model of the Qwen line takes, within a budget of tokens.

The pixels are computed by the checkpoint's own image processor of transformers, on the CPU through Pillow, for frames too: its
video processor needs torchvision, whose resize rounds otherwise. A clip is its frames, two and two in one patch (Qwen2-VL, Wang
et al., 2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import require

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from omnirecall.media.types import Frames

EXTRA = "models"
LONGEST_RATIO = 200
"""A picture whose sides differ more is stretched to this ratio: the library takes no other."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How pixels become tokens: patches of ``patch`` pixels a side, ``merge`` by ``merge`` patches a token, and ``frames`` frames
    of a clip in one patch.
    """

    patch: int
    merge: int
    frames: int

    @property
    def side(self) -> int:
        """Pixels along a side of a token."""
        return self.patch * self.merge


@dataclass(frozen=True, slots=True)
class Budget:
    """Least and most pixels of a picture or frame; ``clip``: most pixels of all frames of a clip together, or None."""

    least: int
    most: int
    clip: int | None = None

    def share(self, frames: int) -> Budget:
        """The budget of one frame of a clip of so many frames."""
        if self.clip is None:
            return self
        # A share below the least would leave no size at all; the margin is that of the reference implementation.
        most = max(min(self.most, self.clip // frames), int(self.least * 1.05))
        return Budget(self.least, most)


@dataclass(frozen=True, eq=False, slots=True)
class Patches:
    """A picture or clip as the model takes it. ``values``: float32, (patches, width). ``thw``: patches in time, down, across."""

    values: NDArray[np.float32]
    thw: tuple[int, int, int]
    merge: int

    @property
    def frame_tokens(self) -> int:
        """Tokens of one picture, or of one step in time of a clip."""
        return self.thw[1] * self.thw[2] // self.merge**2

    @property
    def tokens(self) -> int:
        """Tokens of the whole."""
        return self.thw[0] * self.frame_tokens


def picture_patches(processor: Any, picture: Image, budget: Budget, grid: Grid) -> Patches:
    """A picture as patches, by the image processor of transformers."""
    values, (height, width) = _patches(processor, [picture], budget, grid)
    return Patches(values, (1, height, width), grid.merge)


def clip_patches(processor: Any, pixels: NDArray[np.uint8], budget: Budget, grid: Grid) -> Patches:
    """Frames, uint8 RGB of shape (n, height, width, 3), as patches; the last frame is repeated where a patch lacks one."""
    pil = require("PIL.Image", EXTRA)
    short = -len(pixels) % grid.frames
    share = budget.share(len(pixels) + short)
    values, (height, width) = _patches(processor, [pil.fromarray(frame) for frame in pixels], share, grid)
    # The processor fills the time of a patch with the same picture over and over; one of these is the frame.
    frames = values.reshape(len(pixels), height * width, -1, grid.frames, grid.patch**2)[:, :, :, 0]
    frames = np.concatenate([frames, np.repeat(frames[-1:], short, axis=0)])
    steps = len(frames) // grid.frames
    pairs = frames.reshape(steps, grid.frames, height * width, -1, grid.patch**2).transpose(0, 2, 3, 1, 4)
    return Patches(pairs.reshape(steps * height * width, -1), (steps, height, width), grid.merge)


def _patches(
    processor: Any, pictures: Sequence[Image], budget: Budget, grid: Grid
) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """Patches of pictures of one size, shape (pictures * patches, width), and the patches down and across each."""
    width, height = pictures[0].size
    target, least = fitted_size(height, width, budget, grid.side), budget.least
    if target != smart_size(height, width, budget, grid.side):
        # One far longer than wide: the processor would refuse it, or exceed the budget.
        bicubic = require("PIL.Image", EXTRA).Resampling.BICUBIC
        pictures = [picture.convert("RGB").resize((target[1], target[0]), bicubic) for picture in pictures]
        least = grid.side**2
    size = {"shortest_edge": least, "longest_edge": budget.most}
    output = processor(images=list(pictures), size=size, return_tensors="np")
    _, down, across = (int(n) for n in output["image_grid_thw"][0])
    return np.asarray(output["pixel_values"], np.float32), (down, across)


def fitted_size(height: int, width: int, budget: Budget, side: int) -> tuple[int, int]:
    """Height and width in pixels, multiples of ``side`` and never more than the budget, near the picture's shape."""
    if max(height, width) > LONGEST_RATIO * min(height, width):
        short = math.ceil(max(height, width) / LONGEST_RATIO)
        height, width = max(height, short), max(width, short)
    rows, columns = (n // side for n in smart_size(height, width, budget, side) or (height, width))
    most = max(1, budget.most // side**2)
    if rows * columns > most:
        rows, columns = (rows, most // rows) if rows <= columns else (most // columns, columns)
        rows, columns = min(max(rows, 1), most), min(max(columns, 1), most)
    return rows * side, columns * side


def smart_size(height: int, width: int, budget: Budget, side: int) -> tuple[int, int] | None:
    """The size that the library's processor resizes to; None where it refuses the picture."""
    library = require("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", EXTRA)
    if max(height, width) > LONGEST_RATIO * min(height, width):
        return None
    rows, columns = library.smart_resize(height, width, side, budget.least, budget.most)
    return int(rows), int(columns)


def frame_seconds(frames: Frames, rate: float | None, default: float) -> tuple[NDArray[np.float64], float]:
    """The time of each frame from the start of the video, shape (frames,), and the seconds of video that a frame stands for.

    ``rate``: frames a second that hold instead of the file's clock. ``default``: the same where the file has no clock.
    The second is the length of the video over the frames taken from it, as qwen-vl-utils and transformers count it.
    """
    count = len(frames.pixels)
    clock = None if rate is not None else _file_rate(frames)
    if clock is None:
        steady = default if rate is None else rate
        return np.arange(count) / steady, 1 / steady
    if len(frames.indices) == count and frames.decodable:
        return frames.times - frames.times[0] + frames.indices[0] / clock, frames.decodable / clock / count
    return frames.times - frames.times[0], 1 / clock


def _file_rate(frames: Frames) -> float | None:
    """Frames a second of the file, where the frames tell; else of the frames taken; None without a clock."""
    if len(frames.pixels) < 2 or not np.isfinite(frames.times).all():
        return None
    span = float(frames.times[-1] - frames.times[0])
    if span <= 0:
        return None
    known = len(frames.indices) == len(frames.pixels) and frames.decodable
    steps = int(frames.indices[-1] - frames.indices[0]) if known else len(frames.pixels) - 1
    return steps / span if steps > 0 else None
