"""Sound, by PyAV."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.media.image import named
from omnirecall.media.types import Samples
from omnirecall.protocol.items import MediaRef


def load_samples(ref: MediaRef, rate: int, place: str) -> Samples:
    """The first audio track as mono float32 at ``rate`` samples a second.

    UserError, beginning with ``place``, for a file without sound that decodes.
    """
    av = require("av", "media")
    pieces = []
    try:
        with av.open(str(ref) if isinstance(ref, Path) else io.BytesIO(ref)) as container:
            if not container.streams.audio:
                raise UserError(f"{place}: {named(ref)} has no sound")
            resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            for frame in container.decode(container.streams.audio[0]):
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
            pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    except av.FFmpegError as error:
        raise UserError(f"{place}: the sound {named(ref)} cannot be read: {error.strerror}") from None
    if not sum(len(piece) for piece in pieces):
        raise UserError(f"{place}: no sound in {named(ref)} decodes")
    return Samples(np.concatenate(pieces).astype(np.float32), rate)
