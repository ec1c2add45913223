"""Sound, by PyAV and soxr."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirecall.errors import UserError, require
from omnirecall.media.animation import is_animation
from omnirecall.media.container import only, opened
from omnirecall.media.image import named
from omnirecall.media.types import Samples
from omnirecall.media.whole import is_cut_short
from omnirecall.protocol.items import MediaRef
from omnirecall.protocol.suites import MediaPolicy

MAX_HELD = 1 << 32
"""Bytes that the samples of one sound may take: about 18 hours at 16 kHz."""

RATES = range(1_000, 1_000_000)
"""Native rates that are believed; a header with another is damaged."""


def load_samples(ref: MediaRef, rate: int, place: str, policy: MediaPolicy | None = None) -> Samples:
    """The best sound track as mono float32 at ``rate`` samples a second, cut to the policy's audio window.

    Before resampling the samples are those that ffmpeg's own command writes: what an encoder added in front (the priming of
    AAC, MP3 and Opus) and behind it is left out where the file says how much it is, and a track that starts late is not padded.
    Channels are averaged, then resampled by soxr, then the window is cut: the first ``audio_seconds``, or the central ones, or
    all. A sound shorter than the window stays as it is. Memory holds the window, not the file.

    A damaged file gives the samples that decode, and a warning. UserError, beginning with ``place``, for one without any.
    """
    policy = policy or MediaPolicy()
    size = round(policy.audio_seconds * rate)
    amiss = Amiss()
    if policy.audio_window == "whole":
        values = _cut(resampled(ref, rate, place, amiss), 0, MAX_HELD // 4 + 1)
    elif policy.audio_window == "first":
        values = _cut(resampled(ref, rate, place, amiss), 0, size)
    else:
        # Decoded twice, so that an hour needs no more memory than its window.
        total = sum(len(piece) for piece in resampled(ref, rate, place, Amiss()))
        values = _cut(resampled(ref, rate, place, amiss), max(0, total - size) // 2, size)
    if not len(values):
        raise UserError(f"{place}: no sound in {named(ref)} decodes")
    if values.nbytes > MAX_HELD:
        raise UserError(f"{place}: the sound {named(ref)} takes more than {MAX_HELD >> 30} GiB; set an audio window")
    amiss.end = amiss.end or is_cut_short(ref)
    return Samples(values, rate, tuple(f"{named(ref)}: {sentence}" for sentence in amiss.sentences()))


def has_sound(ref: MediaRef, place: str) -> bool:
    """Whether a film has a sound track; folders of frames and animated pictures have none."""
    if is_animation(ref) or (isinstance(ref, Path) and ref.is_dir()):
        return False
    with opened(ref, place, "video") as container:
        return bool(container.streams.audio)


@dataclass(slots=True)
class Amiss:
    """What was wrong with a sound: packets that do not decode, samples that are no number, and a damaged ``end``.

    ``primed`` is no fault: an MP4 whose edit list hides what the encoder of AAC put in front.
    """

    packets: int = 0
    samples: int = 0
    end: bool = False
    primed: bool = False

    def sentences(self) -> list[str]:
        """The same in words."""
        told = {
            f"{self.packets} packets of sound do not decode": self.packets,
            f"{self.samples} samples are no finite number, and are taken as silence": self.samples,
            "the sound ends in the middle of its data: it was cut off": self.end,
        }
        return [sentence for sentence, count in told.items() if count]


def resampled(ref: MediaRef, rate: int, place: str, amiss: Amiss) -> Iterator[NDArray[np.float32]]:
    """Pieces of the sound, one after the other: mono float32 at ``rate`` samples a second, shape (n,); notes what is ``amiss``."""
    soxr = require("soxr", "media")
    stream, native = None, rate
    for samples, own_rate in native_samples(ref, place, amiss):
        mono = samples.mean(0, dtype=np.float32)
        if own_rate != native:
            if stream is not None:
                yield stream.resample_chunk(mono[:0], last=True)
            native = own_rate
            stream = soxr.ResampleStream(native, rate, 1, dtype="float32") if native != rate else None
        yield mono if stream is None else stream.resample_chunk(mono)
    if stream is not None:
        yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def native_samples(ref: MediaRef, place: str, amiss: Amiss) -> Iterator[tuple[NDArray[np.float32], int]]:
    """(samples, rate) of each frame that decodes, as the file has them; float32, full scale at 1, shape (channels, n).

    Notes what is ``amiss``. UserError, beginning with ``place``, for a file without a sound track.
    """
    with opened(ref, place, "sound") as container:
        stream = only(container, _sound_stream(container, ref, place))
        before = None
        for frame in _decoded(container, stream, amiss):
            if frame.sample_rate not in RATES:
                raise UserError(f"{place}: the sound {named(ref)} claims {frame.sample_rate} samples a second")
            if before is not None:
                yield _real(as_floats(before), amiss), before.sample_rate
            before = frame
        if before is not None:
            length = _last_length(stream, before) if amiss.primed and not amiss.end else before.samples
            yield _real(as_floats(before)[:, :length], amiss), before.sample_rate


def _decoded(container: Any, stream: Any, amiss: Amiss) -> Iterator[Any]:
    decode_error = require("av", "media").FFmpegError
    is_aac_in_mp4 = stream.codec_context.name == "aac" and "mp4" in container.format.name.split(",")
    try:
        for number, packet in enumerate(container.demux(stream)):
            if number == 0:
                amiss.primed = is_aac_in_mp4 and packet.pts is not None and packet.pts < 0
            try:
                frames = packet.decode()
            except decode_error:
                amiss.packets += 1
                amiss.end = True
                continue
            if packet.size:  # a packet without bytes only flushes the decoder
                amiss.end = False
            sound = [frame for frame in frames if _is_readable(frame)]
            amiss.packets += len(sound) < len(frames)
            yield from sound
    except decode_error:
        amiss.end = True


def _last_length(stream: Any, frame: Any) -> int:
    """How many samples of the last frame belong to the sound, in an MP4 whose edit list hides the priming of AAC.

    The track's duration and the last packet's say where the sound ends, and ffmpeg cuts at the earlier one. It does since its
    version 9; earlier ones, and the library this runs on, hand out the encoder's padding too.
    """
    ends = [Fraction(frame.samples, frame.sample_rate), frame.duration * frame.time_base]
    if stream.duration and frame.pts is not None:
        ends.append(((stream.start_time or 0) + stream.duration) * stream.time_base - frame.pts * frame.time_base)
    samples: int = round(min(end for end in ends if end > 0) * frame.sample_rate)
    return samples


def _real(samples: NDArray[np.float32], amiss: Amiss) -> NDArray[np.float32]:
    """The samples, with silence for those that are no finite number."""
    real = np.isfinite(samples)
    if real.all():
        return samples
    amiss.samples += samples.size - int(np.count_nonzero(real))
    return np.where(real, samples, np.float32(0))


def _is_readable(frame: Any) -> bool:
    """Whether PyAV counts a frame's planes rightly; of a damaged frame with dozens of channels it would read past the last."""
    return not frame.format.is_planar or len(frame.planes) == frame.layout.nb_channels


def as_floats(frame: Any) -> NDArray[np.float32]:
    """A decoded frame's samples; float32, full scale at 1, shape (channels, n)."""
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    middle, full = (128, 128) if values.dtype == np.uint8 else (0, 2.0 ** (8 * values.dtype.itemsize - 1))
    if values.dtype.kind != "f":
        values = (values.astype(np.float64) - middle) / full
    return np.asarray(values, np.float32)


def _sound_stream(container: Any, ref: MediaRef, place: str) -> Any:
    stream = container.streams.best("audio")
    if stream is None:
        raise UserError(f"{place}: {named(ref)} has no sound")
    if stream.codec_context is None:
        raise UserError(f"{place}: the sound of {named(ref)} has a codec that cannot be decoded here")
    return stream


def _cut(pieces: Iterator[NDArray[np.float32]], start: int, size: int) -> NDArray[np.float32]:
    """``size`` samples from the ``start``-th on, or as many as there are; reads no further than it needs."""
    held, passed = bytearray(), 0
    for piece in pieces:
        wanted = piece[max(0, start - passed) : max(0, start + size - passed)]
        held += wanted.tobytes()
        passed += len(piece)
        if passed >= start + size:
            break
    return np.frombuffer(held, np.float32)
