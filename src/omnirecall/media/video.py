"""Video frames: a film by libav, an animated picture by Pillow, or a folder of frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.media.animation import animation_frames, is_animation
from omnirecall.media.container import only, opened
from omnirecall.media.frame_rules import wanted_frames
from omnirecall.media.frames_folder import folder_frames
from omnirecall.media.image import named
from omnirecall.media.picking import UnconfirmedError, by_seeking, in_order, runs_for
from omnirecall.media.pixels import Developer, gathered
from omnirecall.media.scan import Scan, scan_packets, shortfall
from omnirecall.media.sizing import MAX_PIXELS
from omnirecall.media.types import Frames
from omnirecall.media.whole import is_cut_short
from omnirecall.protocol.items import MediaRef
from omnirecall.protocol.suites import MediaPolicy


def load_frames(ref: MediaRef, policy: MediaPolicy, place: str) -> Frames:
    """The frames that the policy asks for, among those that the decoder outputs; a film's sound is never read.

    ``ref``: a film, an animated GIF, WebP or PNG, or a folder of frames already extracted. A damaged file gives the frames that
    decode, and a warning. UserError, beginning with ``place``, for a file that is no video or has no frame that decodes.
    """
    if isinstance(ref, Path) and ref.is_dir():
        return folder_frames(ref, policy, place)
    if is_animation(ref):
        return animation_frames(ref, policy, place)
    with opened(ref, place, "video") as container:
        stream = only(container, picture_stream(container, ref, place))
        scan = scan_packets(container, stream, _libav_error())
        warnings = [*scan.damage, *shortfall(container, stream, scan)]
        if not warnings and is_cut_short(ref):
            warnings.append("the file is shorter than its headers say: it was cut off")
        frames = _by_seeking(container, stream, scan, policy, place)
    if frames is None:
        frames = _in_order(ref, scan, policy, place)
    return replace(frames, warnings=tuple(f"{named(ref)}: {warning}" for warning in (*warnings, *frames.warnings)))


def picture_stream(container: Any, ref: MediaRef, place: str) -> Any:
    """The video stream that libav thinks best, never cover art; UserError if there is none or its frames are too large."""
    films = [stream for stream in container.streams.video if not stream.disposition & stream.disposition.attached_pic]
    if not films:
        raise UserError(f"{place}: no frame of {named(ref)} decodes: it has no video")
    best = container.streams.best("video")
    stream = next((film for film in films if best is not None and film.index == best.index), films[0])
    if stream.codec_context is None:
        raise UserError(f"{place}: the video {named(ref)} has a codec that cannot be decoded here")
    if stream.width * stream.height > MAX_PIXELS:
        raise UserError(
            f"{place}: the frames of {named(ref)} are said to be {stream.width}x{stream.height}, more than is safe to open"
        )
    return stream


def _by_seeking(container: Any, stream: Any, scan: Scan, policy: MediaPolicy, place: str) -> Frames | None:
    """The frames by seeking; None where that is not cheaper or is not confirmed."""
    if not scan.trusted or not scan.promised:
        return None
    times = scan.seconds(stream)
    wanted = wanted_frames(policy, len(times), times)
    runs = runs_for(scan, np.unique(wanted).tolist())
    if runs is None:
        return None
    developer = Developer(policy, stream.sample_aspect_ratio, place, len(wanted))
    try:
        kept = by_seeking(container, stream, scan, runs, developer.rgb)
    except (UnconfirmedError, _libav_error()):
        return None
    return gathered(kept, times, wanted, developer.warnings)


def _in_order(ref: MediaRef, scan: Scan, policy: MediaPolicy, place: str) -> Frames:
    """The frames by decoding in order: once if the packets promised the right number of frames, else a second time."""
    with opened(ref, place, "video") as container:
        stream = only(container, picture_stream(container, ref, place))
        times = scan.seconds(stream)
        guess = wanted_frames(policy, len(times), times) if len(times) else np.empty(0, np.int64)
        developer = Developer(policy, stream.sample_aspect_ratio, place, len(guess))
        decoded = in_order(container, stream, np.unique(guess).tolist(), scan, developer.rgb, _libav_error())
    if decoded.complete:
        times = np.array(decoded.times)
    if not len(times):
        raise UserError(f"{place}: no frame of {named(ref)} decodes")
    wanted = wanted_frames(policy, len(times), times)
    if not decoded.kept.keys() >= set(wanted.tolist()):
        with opened(ref, place, "video") as container:
            stream = only(container, picture_stream(container, ref, place))
            developer = Developer(policy, stream.sample_aspect_ratio, place, len(wanted))
            again = in_order(
                container, stream, np.unique(wanted).tolist(), scan, developer.rgb, _libav_error(), sure=True
            )
        decoded.kept = again.kept
    return gathered(decoded.kept, times, wanted, [*decoded.damage, *developer.warnings])


def _libav_error() -> type[Exception]:
    error: type[Exception] = require("av", "media").FFmpegError
    return error
