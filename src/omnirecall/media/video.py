"""Video frames, by PyAV."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.media.frame_rules import wanted_frames
from omnirecall.media.image import named
from omnirecall.media.types import Frames
from omnirecall.protocol.items import MediaRef
from omnirecall.protocol.suites import MediaPolicy


def load_frames(ref: MediaRef, policy: MediaPolicy, place: str) -> Frames:
    """The frames that the policy asks for, among those that the decoder outputs.

    UserError, beginning with ``place``, for a file that is no video or has no frame that decodes.
    """
    av = require("av", "media")
    try:
        times = [time for time, _ in _decoded(av, ref)]
        if not times:
            raise UserError(f"{place}: no frame of {named(ref)} decodes")
        wanted = wanted_frames(policy, len(times))
        needed = set(wanted.tolist())
        pixels = {
            index: frame.to_ndarray(format="rgb24")
            for index, (_, frame) in enumerate(_decoded(av, ref))
            if index in needed
        }
    except av.FFmpegError as error:
        raise UserError(f"{place}: the video {named(ref)} cannot be read: {error.strerror}") from None
    return Frames(
        np.stack([pixels[index] for index in wanted.tolist()]), np.array([times[index] for index in wanted.tolist()])
    )


def _decoded(av: Any, ref: MediaRef) -> Any:
    """(time in seconds, frame) for each frame that decodes; a damaged end is left out."""
    with av.open(str(ref) if isinstance(ref, Path) else io.BytesIO(ref)) as container:
        if not container.streams.video:
            return
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        decoded = 0
        try:
            for frame in container.decode(stream):
                yield frame.time or 0.0, frame
                decoded += 1
        except av.InvalidDataError:
            if not decoded:
                raise
