"""Whether media are there and decode, each looked at once: a journal keeps what was found, so that a stopped check goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from omnirecall.errors import UserError
from omnirecall.media.ahead import ahead
from omnirecall.media.audio import load_samples
from omnirecall.media.frames_folder import frame_files
from omnirecall.media.image import load_image
from omnirecall.media.video import load_frames
from omnirecall.protocol.items import MEDIA, Item, MediaRef, Packed
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.sources.packed import place_of, unpacked

RATE = 16000
FLUSHED = 64
"""Files looked at between two writes of the journal."""


class Medium(NamedTuple):
    """One medium to look at: the part it is of an item, where it is, and how a video's frames are taken."""

    part: str
    ref: MediaRef
    policy: MediaPolicy


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a look at a medium found. ``digest`` is that of its bytes; ``frames`` are those that a video's decoder outputs."""

    missing: bool = False
    problem: str = ""
    constant: bool = False
    frames: int = 0
    digest: str = ""


class _Line(msgspec.Struct):
    key: str
    stamp: str
    found: Finding


class Journal:
    """Findings by medium, kept in a file of one line each; None keeps them in memory. A medium that changed is looked at again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, tuple[str, Finding]] = {}
        self._unwritten: list[_Line] = []
        if path is not None and path.is_file():
            decoder = msgspec.json.Decoder(_Line)
            for line in path.read_bytes().splitlines():
                try:
                    row = decoder.decode(line)
                except msgspec.DecodeError:  # the last line of a check that was killed
                    continue
                self.known[row.key] = row.stamp, row.found

    def get(self, medium: Medium) -> Finding | None:
        """What an earlier look found, if the medium is as it was then."""
        known = self.known.get(medium_key(medium))
        return known[1] if known is not None and known[0] == medium_stamp(medium.ref) else None

    def put(self, medium: Medium, found: Finding) -> None:
        """Keep what was found; a missing medium is looked for each time."""
        if found.missing:
            return
        line = _Line(medium_key(medium), medium_stamp(medium.ref), found)
        self.known[line.key] = line.stamp, found
        self._unwritten.append(line)
        if len(self._unwritten) >= FLUSHED:
            self.flush()

    def flush(self) -> None:
        """Write what is not written; UserError if the file cannot be."""
        if self.path is not None and self._unwritten:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(b"\n" + b"\n".join(map(msgspec.json.encode, self._unwritten)) + b"\n")
            except OSError as error:
                raise UserError(f"{self.path}: {error.strerror}; name another file with --journal") from None
        self._unwritten.clear()


def media_of(items: Iterable[Item], policy: MediaPolicy) -> Iterator[Medium]:
    """The media of items."""
    for item in items:
        for part in MEDIA:
            if (ref := getattr(item, part)) is not None:
                yield Medium(part, ref, policy)


def medium_key(medium: Medium) -> str:
    """What a look at a medium depends on beside its bytes."""
    ref = medium.ref
    if isinstance(ref, Packed):
        place = ":".join(map(str, ref.place))
    else:
        place = str(ref) if isinstance(ref, Path) else hashlib.blake2b(ref, digest_size=16).hexdigest()
    if medium.part != "video":
        return f"{medium.part}:{place}"
    rule = hashlib.blake2b(msgspec.json.encode(medium.policy), digest_size=4).hexdigest()
    return f"video:{rule}:{place}"


def medium_stamp(ref: MediaRef) -> str:
    """Size and time of the file that holds a medium, and how many files a folder has; "" if it is gone."""
    path = ref.place[0] if isinstance(ref, Packed) else ref
    if not isinstance(path, Path):
        return "bytes"
    try:
        state = path.stat()
        size = len(frame_files(path)) if path.is_dir() else state.st_size
    except OSError:
        return ""
    return f"{size} {state.st_mtime_ns}"


def is_there(ref: MediaRef) -> bool:
    """Whether a file has bytes, a folder has frames, or bytes are not empty."""
    path = ref.place[0] if isinstance(ref, Packed) else ref
    if not isinstance(path, Path):
        return bool(path)
    try:
        return bool(frame_files(path)) if path.is_dir() else path.stat().st_size > 0
    except OSError:
        return False


def look_at(medium: Medium) -> Finding:
    """Read and decode one medium."""
    if not is_there(medium.ref):
        return Finding(missing=True)
    try:
        ref = unpacked(medium.ref)
        digest = _digest(ref)
        if medium.part == "image":
            image = load_image(ref, "")
            return Finding(constant=all(low == high for low, high in _extremes(image)), digest=digest)
        if medium.part == "audio":
            warnings: Sequence[str] = load_samples(ref, RATE, "", medium.policy).warnings
            return Finding(problem="; ".join(warnings), digest=digest)
        frames = load_frames(ref, medium.policy, "")
        return Finding(problem="; ".join(frames.warnings), frames=frames.decodable, digest=digest)
    except UserError as error:
        return Finding(problem=str(error).removeprefix(": "))
    except Exception as error:  # a check of many files goes on, whatever one of them does to a decoder
        return Finding(problem=f"{place_of(medium.ref)}: {type(error).__name__}: {error}")


def _extremes(image: Any) -> list[tuple[int, int]]:
    extremes = image.getextrema()
    return list(extremes) if isinstance(extremes[0], tuple) else [extremes]


def _digest(ref: MediaRef) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(ref, bytes):
        digest.update(ref)
    else:
        for path in frame_files(ref) if ref.is_dir() else [ref]:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def look_at_all(
    media: Iterable[Medium], journal: Journal, advance: Callable[[int], None] = lambda _: None
) -> dict[tuple[str, MediaRef], Finding]:
    """What is found of each distinct medium, by part and place; several are decoded at a time."""
    found: dict[tuple[str, MediaRef], Finding] = {}
    waiting: dict[tuple[str, MediaRef], Medium] = {}
    for medium in media:
        place = (medium.part, medium.ref)
        if place in found or place in waiting:
            continue
        if (known := journal.get(medium)) is not None:
            found[place] = known
            advance(1)
        else:
            waiting[place] = medium
    with closing(_ahead(waiting.values())) as results:
        try:
            for medium, future in results:
                finding = future.result()
                journal.put(medium, finding)
                found[medium.part, medium.ref] = finding
                advance(1)
        finally:
            journal.flush()
    return found


def _ahead(media: Iterable[Medium]) -> Any:
    return ahead(media, look_at, lambda _: 1 << 20)
