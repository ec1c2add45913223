"""From a decoded frame to the RGB array that a model sees: upright, square pixels, on white, within the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.media.sizing import square_pixels, within_budget
from omnirecall.media.types import Frames
from omnirecall.protocol.suites import MediaPolicy

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_HELD = 1 << 32
"""Bytes that the frames of one video may take."""

UPRIGHT = (False, False, False)


@dataclass(slots=True)
class Developer:
    """Turns the frames of one video into RGB arrays, all of the size of the first one.

    ``aspect``: width of a pixel over its height. ``count``: how many there will be. ``size``: (width, height) of every frame
    once the first is done. ``warnings``: one sentence each.
    """

    policy: MediaPolicy
    aspect: Fraction | None
    place: str
    count: int
    size: tuple[int, int] | None = None
    warnings: list[str] = field(default_factory=list)

    def rgb(self, frame: Any) -> NDArray[np.uint8]:
        """The frame as uint8 RGB, shape (height, width, 3); scaled once, from the decoder's own pixels.

        Interlaced frames stay woven, both fields in one picture, as the decoder outputs them. UserError if all the frames
        together would take more memory than one video may.
        """
        turn = self._turn(frame)
        wide, high = square_pixels(frame.width, frame.height, self.aspect)
        wide, high = self._fitted(high, wide)[::-1] if turn[0] else self._fitted(wide, high)
        return turned(_converted(frame, wide, high), turn)

    def still(self, picture: Image) -> NDArray[np.uint8]:
        """The same of an RGB picture."""
        size = self._fitted(*picture.size)
        return np.asarray(picture if size == picture.size else picture.resize(size))

    def _fitted(self, wide: int, high: int) -> tuple[int, int]:
        """The size that every frame gets, given that this one would be shown at ``wide`` by ``high``."""
        size = within_budget(wide, high, self.policy)
        if self.size is None:
            self.size = size
            if self.count * size[0] * size[1] * 3 > MAX_HELD:
                raise UserError(
                    f"{self.place}: {self.count} frames of {size[0]}x{size[1]} would take more than {MAX_HELD >> 30} GiB;"
                    " ask for fewer frames or set max_pixels"
                )
        elif size != self.size:
            self._warn(
                f"frames change size, from {self.size[0]}x{self.size[1]} to {size[0]}x{size[1]}; all are given the first"
            )
        return self.size

    def _turn(self, frame: Any) -> tuple[bool, bool, bool]:
        matrix = frame.side_data.get("DISPLAYMATRIX")
        turn = UPRIGHT if matrix is None else turn_of(np.frombuffer(bytes(matrix), np.int32))
        if turn is None:
            self._warn("the turn that the file asks for is not by a right angle; frames are left as stored")
        return turn or UPRIGHT

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)


def gathered(
    kept: Mapping[int, NDArray[np.uint8]],
    times: NDArray[np.float64],
    wanted: NDArray[np.int64],
    warnings: Sequence[str],
) -> Frames:
    """The wanted frames, in order and with repeats, out of those ``kept`` by index; ``times``: of every frame, in seconds."""
    pixels = np.stack([kept[index] for index in wanted.tolist()])
    return Frames(pixels, times[wanted], wanted, len(times), tuple(warnings))


def turn_of(matrix: NDArray[np.int32]) -> tuple[bool, bool, bool] | None:
    """(swap axes, then mirror left to right, then mirror top to bottom) of a display matrix; None if it is no right angle.

    ``matrix``: nine fixed-point numbers a b u c d v x y w, where a stored point (p, q), q downwards, is shown at
    (a p + c q, b p + d q).
    """
    if len(matrix) != 9:
        return None
    a, b, _, c, d = (int(number) for number in matrix[:5])
    if not (b or c) and a and d:
        return False, a < 0, d < 0
    if not (a or d) and b and c:
        return True, c < 0, b < 0
    return None


def turned(pixels: NDArray[np.uint8], turn: tuple[bool, bool, bool]) -> NDArray[np.uint8]:
    """The picture, shape (height, width, 3), turned as ``turn_of`` describes."""
    swap, left_right, top_bottom = turn
    if swap:
        pixels = pixels.transpose(1, 0, 2)
    return np.ascontiguousarray(pixels[:: -1 if top_bottom else 1, :: -1 if left_right else 1])


def _converted(frame: Any, width: int, height: int) -> NDArray[np.uint8]:
    see_through = frame.format.name == "pal8" or any(component.is_alpha for component in frame.format.components)
    resized = (width, height) != (frame.width, frame.height)
    pixels: NDArray[np.uint8] = frame.reformat(
        width,
        height,
        "rgba" if see_through else "rgb24",
        interpolation="BICUBIC" if resized else None,
        threads=1,
    ).to_ndarray()
    if not see_through:
        return pixels
    alpha = pixels[..., 3:].astype(np.uint16)
    return ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
