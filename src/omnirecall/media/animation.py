"""Animated GIF, WebP and PNG, by Pillow: libav does not read animated WebP."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.media.frame_rules import wanted_frames
from omnirecall.media.image import named, on_white, open_picture
from omnirecall.media.pixels import Developer, gathered
from omnirecall.media.types import Frames
from omnirecall.protocol.items import MediaRef
from omnirecall.protocol.suites import MediaPolicy

MAX_DRAWN = 1 << 33
"""Pixels of all frames together, each drawn over the one before; a file that asks for more is damaged or hostile."""


def is_animation(ref: MediaRef) -> bool:
    """Whether the file begins as a GIF, a WebP or a PNG does; False for one that cannot be read."""
    try:
        if isinstance(ref, Path):
            with ref.open("rb") as file:
                head = file.read(12)
        else:
            head = ref[:12]
    except OSError:
        return False
    return head.startswith((b"GIF8", b"\x89PNG")) or (head[:4] == b"RIFF" and head[8:] == b"WEBP")


def animation_frames(ref: MediaRef, policy: MediaPolicy, place: str) -> Frames:
    """The frames that the policy asks for, each as it stands on the screen, on white; the times are sums of the durations.

    A damaged end is left out, with a warning. UserError, beginning with ``place``, for a file of which no frame decodes.
    """
    with open_picture(ref, place) as picture:
        stated = _stated_frames(picture)
        # Durations are met on the way, and a damaged file does not say its number: then it is gone through before the choice.
        guess = [] if policy.rule == "fps" or stated is None else wanted_frames(policy, stated).tolist()
        developer = Developer(policy, None, place, len(guess))
        times, kept, whole = _drawn(picture, stated, guess, developer, place)
    if not len(times):
        raise UserError(f"{place}: no frame of {named(ref)} decodes")
    wanted = wanted_frames(policy, len(times), times)
    if not kept.keys() >= set(wanted.tolist()):
        developer = Developer(policy, None, place, len(wanted))
        with open_picture(ref, place) as picture:
            _, kept, _ = _drawn(picture, len(times), wanted.tolist(), developer, place)
    warnings = [] if whole else [f"the animation is damaged after {len(times)} frames"]
    return gathered(kept, times, wanted, [f"{named(ref)}: {warning}" for warning in (*warnings, *developer.warnings)])


def _stated_frames(picture: Any) -> int | None:
    """How many frames the file says it has; None where it is too damaged to say."""
    try:
        return int(getattr(picture, "n_frames", 1))
    except Exception:  # counting walks through the file, and trips over damage in as many ways as reading does
        return None


def _drawn(
    picture: Any, count: int | None, wanted: Collection[int], developer: Developer, place: str
) -> tuple[NDArray[np.float64], dict[int, NDArray[np.uint8]], bool]:
    """The first ``count`` frames, or all: (time of each in seconds, pixels of the wanted ones by index, whether all decode)."""
    times: list[float] = []
    kept: dict[int, NDArray[np.uint8]] = {}
    clock, wanted = 0.0, set(wanted)  # milliseconds, as the files count
    for index in itertools.count() if count is None else range(count):
        if index * picture.width * picture.height > MAX_DRAWN:
            raise UserError(
                f"{place}: the animation has more frames of {picture.width}x{picture.height} than is safe to draw"
            )
        try:
            picture.seek(index)
            picture.load()
            pixels = on_white(picture) if index in wanted else None
        except Exception:  # as in load_image
            return np.array(times), kept, False
        times.append(clock / 1000)
        clock += float(picture.info.get("duration") or 0)
        if pixels is not None:
            kept[index] = developer.still(pixels)
    return np.array(times), kept, True
