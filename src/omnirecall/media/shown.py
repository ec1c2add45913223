"""What a model would see of a video, for a person to look at."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

from omnirecall.errors import UserError, require
from omnirecall.files import write_whole
from omnirecall.media.types import Frames
from omnirecall.media.video import load_frames
from omnirecall.protocol.suites import MediaPolicy


@dataclass(frozen=True, slots=True)
class Shown:
    """The frames of a video, and the pictures written of them, if any."""

    frames: Frames
    files: tuple[Path, ...] = ()

    def as_json(self) -> str:
        """``{"decodable": n, "frames": [{"index": i, "time": s}, ...], "warnings": [...]}``; a time that is not known is null."""
        frames = [
            {"index": index, "time": None if math.isnan(time) else time}
            for index, time in zip(self.frames.indices.tolist(), self.frames.times.tolist(), strict=True)
        ]
        shown = {"decodable": self.frames.decodable, "frames": frames, "warnings": list(self.frames.warnings)}
        return json.dumps(shown) + "\n"

    def as_text(self) -> str:
        """A line for each frame."""
        height, width = self.frames.pixels.shape[1:3]
        lines = [
            f"{self.frames.decodable} frames decode; a model would see {len(self.frames.indices)} of {width}x{height}:"
        ]
        for place, (index, time) in enumerate(zip(self.frames.indices, self.frames.times, strict=True)):
            when = "" if math.isnan(time) else f"{time:12.3f} s"
            lines.append(f"{index:8d}{when}{f'  {self.files[place]}' if self.files else ''}")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.frames.warnings)]) + "\n"


def shown_frames(video: Path, policy: MediaPolicy, out: Path | None) -> Shown:
    """Load the frames as for a model and, given ``out``, write each there as PNG, named by its place and its index.

    UserError for a video that gives no frame, or a folder that cannot be written.
    """
    frames = load_frames(video, policy, "frames")
    if out is None:
        return Shown(frames)
    image = require("PIL.Image", "media")
    files = tuple(out / f"{place:04d}_frame{index:06d}.png" for place, index in enumerate(frames.indices))
    try:
        for file, pixels in zip(files, frames.pixels, strict=True):
            encoded = io.BytesIO()
            image.fromarray(pixels).save(encoded, "PNG")
            write_whole(file, encoded.getvalue())
    except OSError as error:
        raise UserError(f"{out}: the frames cannot be written there: {error.strerror}; give another --out") from None
    return Shown(frames, files)
