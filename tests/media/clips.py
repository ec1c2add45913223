"""Small clips made at test time, each frame's number drawn in its pixels as a barcode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

BITS = 12
MILLISECONDS = Fraction(1, 1000)
X265 = "log-level=none:pools=none:frame-threads=1"
"""One thread: its pool of threads aborts at times on small frames."""


def barcode(number: int, width: int, height: int) -> np.ndarray:
    """A frame whose upper half holds ``number`` as twelve black or white columns; uint8 RGB, (height, width, 3).

    The lower half moves, so that frames differ and B-frames pay.
    """
    picture = np.empty((height, width, 3), np.uint8)
    for bit in range(BITS):
        columns = slice(bit * width // BITS, (bit + 1) * width // BITS)
        picture[: height // 2, columns] = 235 if number >> bit & 1 else 20
    ramp = (np.arange(width)[None, :] + 3 * number + np.arange(height - height // 2)[:, None]) % 256
    picture[height // 2 :] = np.stack([ramp, ramp[:, ::-1], 255 - ramp], -1)
    return picture


def number_of(pixels: np.ndarray) -> int:
    """The number drawn in an RGB frame."""
    height, width = pixels.shape[:2]
    band = pixels[height // 8 : height // 2 - height // 8]
    return sum(
        int(band[:, int((bit + 0.25) * width / BITS) : int((bit + 0.75) * width / BITS) + 1].mean() > 127) << bit
        for bit in range(BITS)
    )


def numbers_of(frames: np.ndarray) -> list[int]:
    """The number drawn in each frame."""
    return [number_of(pixels) for pixels in frames]


def make_clip(
    path: Path,
    count: int = 60,
    codec: str = "libx264",
    *,
    size: tuple[int, int] = (96, 64),
    rate: Fraction | int = 30,
    gop: int = 30,
    pts: Sequence[int] | None = None,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
    muxer: dict[str, str] | None = None,
    draw: Callable[[int, int, int], np.ndarray] = barcode,
    rotation: tuple[float, bool, bool] | None = None,
    aspect: Fraction | None = None,
    sound: int = 0,
) -> Path:
    """Write a clip of ``count`` numbered frames; returns ``path``.

    ``pts``: each frame's time in milliseconds, else a constant ``rate``. ``rotation``: counter-clockwise degrees, mirror
    left to right, mirror top to bottom. ``sound``: seconds of a tone beside the picture.
    """
    width, height = size
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, pixel_format, gop
        stream.thread_count = 1
        if codec in {"libx264", "libx265"}:
            stream.options = {"preset": "veryfast", "x265-params": X265, **(options or {})}
        if pts is not None:
            stream.codec_context.time_base = MILLISECONDS
        if aspect is not None:
            stream.sample_aspect_ratio = aspect
        if rotation is not None:
            stream.set_display_rotation(rotation[0], hflip=rotation[1], vflip=rotation[2])
        voice = container.add_stream("aac" if path.suffix == ".mp4" else "libopus", rate=48000) if sound else None
        for number in range(count):
            pixels = draw(number, width, height)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgba" if pixels.shape[2] == 4 else "rgb24")
            frame.pts = number if pts is None else pts[number]
            frame.time_base = Fraction(1) / rate if pts is None else MILLISECONDS
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if voice is not None:
            for chunk in audio_frames(tone(sound * 48000, 48000), 48000):
                container.mux(voice.encode(chunk))
            container.mux(voice.encode(None))
    return path


def cut(source: Path, target: Path, start: float) -> Path:
    """Copy ``source`` from ``start`` seconds on without decoding it: frames before the cut stay, hidden by an edit list."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = old.streams.video[0]
        copy = new.add_stream_from_template(stream)
        old.seek(int(start / stream.time_base), stream=stream)
        shift = int(start / stream.time_base)
        for packet in old.demux(stream):
            if packet.size:
                packet.pts -= shift
                packet.dts -= shift
                packet.stream = copy
                new.mux(packet)
    return target


def variable_times(count: int) -> list[int]:
    """Times in milliseconds with gaps of 10 to 200, the same on every run."""
    return np.cumsum(np.random.default_rng(7).integers(10, 200, count)).tolist()


def tone(samples: int, rate: int, channels: int = 1) -> np.ndarray:
    """A rising tone with a click at the start of every tenth of a second; float32, (channels, samples)."""
    time = np.arange(samples) / rate
    wave = 0.4 * np.sin(2 * np.pi * (200 + 300 * time) * time)
    wave[:: rate // 10] = 0.9
    return np.tile(wave.astype(np.float32), (channels, 1)) * np.linspace(1, 0.5, channels, dtype=np.float32)[:, None]


def audio_frames(samples: np.ndarray, rate: int, size: int = 1024) -> list[av.AudioFrame]:
    """Float samples, (channels, n), as planar frames."""
    frames = []
    for start in range(0, samples.shape[1], size):
        piece = np.ascontiguousarray(samples[:, start : start + size])
        frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="mono" if len(piece) == 1 else "stereo")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        frames.append(frame)
    return frames


def make_sound(path: Path, samples: np.ndarray, rate: int, codec: str, format: str | None = None) -> Path:
    """Write float samples, (channels, n), by ``codec``; returns ``path``."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono" if len(samples) == 1 else "stereo")
        if format:
            stream.codec_context.format = format
        for frame in audio_frames(samples, rate):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def decode_everything(path: Path) -> list[av.VideoFrame]:
    """Every frame that the decoder outputs, past packets that it refuses: the judge of all shortcuts."""
    frames: list[av.VideoFrame] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        try:
            for packet in container.demux(stream):
                with contextlib.suppress(av.FFmpegError):
                    frames += packet.decode()
        except av.FFmpegError:
            frames += stream.codec_context.decode(None)
    return frames
