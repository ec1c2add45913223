"""Media as a browser takes them: only from the data folders of the runs that are shown, under a type read from their bytes."""

from __future__ import annotations

import hashlib
import io
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from omnirecall.errors import UserError, require
from omnirecall.protocol.items import MediaRef, Packed
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.sources.packed import unpacked

KEPT_BYTES = 64 << 20
"""Frames are kept up to so many bytes, so that the eight pictures of a video decode it once."""
MOST_FRAMES = 256
"""Frames of one video that are shown; a rule that takes every frame may give thousands."""
SHOWN_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/x-matroska",
    "avi": "video/x-msvideo",
    "mpg": "video/mpeg",
}
PICTURES = ("png", "jpg", "gif", "webp", "avif", "bmp")
UNKNOWN = "application/octet-stream"


class OutsideError(UserError):
    """A medium that lies outside the data folders."""


def allowed(ref: MediaRef, root: Path) -> MediaRef:
    """The medium with its path resolved; OutsideError if it does not lie below ``root``, links followed."""
    if isinstance(ref, Packed):
        path, row, column = ref.place
        return Packed.at(_inside(path, root), row, column)
    return _inside(ref, root) if isinstance(ref, Path) else ref


def _inside(path: Path, root: Path) -> Path:
    try:
        real = path.resolve(strict=True)
        if real.is_relative_to(root.resolve()):
            if not (real.is_file() or real.is_dir()):
                raise UserError(f"{path}: is neither a file nor a folder")
            return real
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    raise OutsideError(f"{path.name}: lies outside the data folder of its run, and is not shown")


def head(ref: MediaRef) -> bytes:
    """The first bytes of a medium."""
    if isinstance(ref, Path):
        try:
            with ref.open("rb") as file:
                return file.read(64)
        except OSError as error:
            raise UserError(f"{ref}: the file cannot be read: {error.strerror}") from None
    content = unpacked(ref)
    return head(content) if isinstance(content, Path) else content[:64]


def kind_of(first: bytes) -> str:
    """The ending that stands for the type of a file that begins so; "" for one that a browser is not given by type."""
    brand = first[8:12]
    box = first[4:8] == b"ftyp"
    riff = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
    starts = {
        b"\x89PNG\r\n": "png",
        b"\xff\xd8\xff": "jpg",
        b"GIF8": "gif",
        b"BM": "bmp",
        b"fLaC": "flac",
        b"OggS": "ogg",
        b"ID3": "mp3",
        b"\xff\xf1": "aac",
        b"\xff\xf9": "aac",
        b"\xff\xfb": "mp3",
        b"\xff\xf3": "mp3",
        b"\xff\xf2": "mp3",
        b"\x00\x00\x01\xba": "mpg",
    }
    if first[:4] == b"RIFF":
        return riff.get(brand, "")
    if box:
        return "avif" if brand in (b"avif", b"avis") else "m4a" if brand.startswith(b"M4A") else "mp4"
    if first[:4] == b"\x1aE\xdf\xa3":
        return "webm" if b"webm" in first else "mkv"
    return next((kind for start, kind in starts.items() if first.startswith(start)), "")


def ending(ref: MediaRef) -> str:
    """``.png`` and the like, by the bytes of the medium; "" where it has no type that is shown, or cannot be read."""
    try:
        if isinstance(ref, Path) and ref.is_dir():
            return ""
        kind = kind_of(head(ref))
    except (UserError, OSError):
        return ""
    return f".{kind}" if kind else ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as the model saw it. ``index``: its place among those that the decoder outputs; ``time`` in seconds, if known."""

    index: int
    time: float | None
    png: bytes


@dataclass(frozen=True, slots=True)
class FramesShown:
    """The frames of a video in order. ``decodable``: how many the decoder outputs. ``left_out``: frames past MOST_FRAMES."""

    decodable: int
    width: int
    height: int
    frames: tuple[Frame, ...]
    warnings: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its pictures."""
        return sum(len(frame.png) for frame in self.frames)


class FrameKeeper:
    """Frames of the videos looked at last. Threads may share it; one video is decoded by one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decoding = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], FramesShown] = OrderedDict()

    def frames(self, name: str, ref: MediaRef, policy: MediaPolicy) -> FramesShown:
        """The frames that the policy gives a model; UserError if none decodes."""
        key = (name, policy_name(policy))
        with self._decoding:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            shown = frames_shown(ref, policy)
            with self._lock:
                self._kept[key] = shown
                while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > KEPT_BYTES:
                    self._kept.popitem(last=False)
        return shown


def frames_shown(ref: MediaRef, policy: MediaPolicy) -> FramesShown:
    """Decode a video as for a model and write its frames as PNG, which loses nothing."""
    from omnirecall.media.video import load_frames

    frames = load_frames(unpacked(ref), policy, "video")
    pixels = frames.pixels[:MOST_FRAMES]
    return FramesShown(
        decodable=frames.decodable,
        width=int(frames.pixels.shape[2]),
        height=int(frames.pixels.shape[1]),
        frames=tuple(
            Frame(int(index), None if math.isnan(time) else float(time), _png(one))
            for index, time, one in zip(frames.indices, frames.times, pixels, strict=False)
        ),
        warnings=frames.warnings,
        left_out=max(0, len(frames.pixels) - MOST_FRAMES),
    )


def _png(pixels: Any) -> bytes:
    out = io.BytesIO()
    require("PIL.Image", "media").fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()


def picture_png(ref: MediaRef) -> bytes:
    """A picture of a type that browsers do not show, as PNG, as the model saw it."""
    import numpy as np

    from omnirecall.media.image import load_image

    return _png(np.asarray(load_image(unpacked(ref), "picture")))


def policy_name(policy: MediaPolicy) -> str:
    """A media policy as part of an address."""
    return hashlib.blake2b(msgspec.json.encode(policy, order="deterministic"), digest_size=5).hexdigest()


def policies_by_name(policies: Iterable[MediaPolicy]) -> dict[str, MediaPolicy]:
    """The policies that addresses may name."""
    return {policy_name(policy): policy for policy in policies}
