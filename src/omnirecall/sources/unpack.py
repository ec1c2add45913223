"""Archives, whole or in parts, unpacked as a stream into a folder of their own, and moved into place when they are whole."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from omnirecall.errors import RunError

ARCHIVE = re.compile(
    r"(?P<name>.+\.(?P<kind>tar\.gz|tgz|tar|zip))(?P<part>[.-](?:part[-_.]?(?:\d+|[a-z]{2})|\d+))?", re.DOTALL
)
BLOCK = 1 << 20
RESERVE = 64 << 20
"""Bytes of the disk that unpacking leaves free."""
TOPS = 20
"""Names at the top of what was unpacked that are remembered."""
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What came out of an archive: files, their bytes, and some of the names at its top."""

    files: int
    bytes: int
    tops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    """A file with its size and content, a link with its target from the archive's root, or a folder, which has neither."""

    name: str
    size: int = 0
    content: IO[bytes] | None = None
    target: str | None = None


def archives(names: Iterable[str]) -> dict[str, list[str]]:
    """The archives among the names, each with its parts in order; RunError if a number is missing between them."""
    found: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for name in names:
        if match := ARCHIVE.fullmatch(name):
            part = match["part"] or ""
            number = re.sub(r"\D", "", part)
            found[match["name"]].append((int(number or 0), part, name))
    for archive, parts in found.items():
        parts.sort()
        numbers = [number for number, part, _ in parts if re.search(r"\d", part)]
        for wanted, given in enumerate(numbers, min([1, *numbers])):
            if given != wanted:
                raise RunError(f"{archive}: there is a part {given} and no part {wanted}")
    return {archive: [name for _, _, name in parts] for archive, parts in found.items()}


def streamable(archive: str) -> bool:
    """Whether the archive of that name is read from its first byte to its last, so that read parts may go."""
    return not archive.endswith(".zip")


def unpack(
    archive: str,
    parts: Iterable[Path],
    staging: Path,
    *,
    drop: Sequence[str] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Unpacked:
    """Unpack the parts of an archive into ``staging``, which is emptied first, and removed if something goes wrong.

    Leading folders of a member whose names are in ``drop`` are left out. A link becomes another name of its file. RunError for a
    member that would leave the folder, a link out of it, a device, and what does not fit on the disk.
    """
    shutil.rmtree(staging, ignore_errors=True)
    writer = _Writer(archive, staging, drop)
    try:
        staging.mkdir(parents=True)
        for member in (_tar if streamable(archive) else _zip)(parts, writer, advance):
            writer.add(member)
        writer.link()
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, BROKEN):
            raise RunError(
                f"{archive}: not a whole archive ({error or type(error).__name__}); fetch it again"
            ) from None
        if isinstance(error, OSError):
            raise disk_error(error, staging.parent, f"{archive}: ") from None
        raise
    return Unpacked(writer.files, writer.bytes, tuple(sorted(writer.tops)[:TOPS]))


def move_into(staging: Path, folder: Path) -> None:
    """Move every file below ``staging`` to the same place below ``folder``, over what is there; may be stopped and repeated."""
    for here, _, names in os.walk(staging):
        target = folder / Path(here).relative_to(staging)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (Path(here) / name).replace(target / name)


def disk_error(error: OSError, folder: Path, what: str = "") -> RunError:
    """The sentence about a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(f"the disk of {folder} is full: make room, and the same command goes on where it stopped")
    return RunError(f"{what}{error.filename or folder}: {error.strerror or error}")


def _tar(parts: Iterable[Path], writer: _Writer, advance: Callable[[int], None]) -> Iterator[_Member]:
    """The members of a tar, in order; its end is looked for, and the checksum of the compressed stream is read."""
    stream = io.BufferedReader(_Joined(parts, advance), BLOCK)
    plain = gzip.GzipFile(fileobj=stream) if stream.peek(2)[:2] == b"\x1f\x8b" else stream
    tail = _Tail(plain)
    with tarfile.open(fileobj=tail, mode="r|", bufsize=BLOCK) as tar:  # type: ignore[call-overload]
        while (info := tar.next()) is not None:
            tar.members.clear()  # else it keeps every member
            if info.isreg():
                yield _Member(info.name, info.size, tar.extractfile(info))
            elif info.isdir():
                yield _Member(info.name)
            elif info.issym():
                yield _Member(info.name, target=str(PurePosixPath(info.name).parent / info.linkname))
            elif info.islnk():
                yield _Member(info.name, target=info.linkname)
            else:
                raise writer.refused(f"{info.name!r} is a device or a pipe")
    while tail.read(BLOCK):
        pass
    if tail.last.strip(b"\0"):
        raise EOFError("it ends before its last block")


def _zip(parts: Iterable[Path], writer: _Writer, advance: Callable[[int], None]) -> Iterator[_Member]:
    paths = list(parts)
    if len(paths) > 1:
        raise writer.refused("a zip in parts cannot be read")
    with zipfile.ZipFile(paths[0]) as file:
        writer.needs(sum(info.file_size for info in file.infolist()), "it")
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.flag_bits & 1:
                raise writer.refused(f"{info.filename!r} is encrypted")
            if info.is_dir():
                yield _Member(info.filename)
            elif kind == stat.S_IFLNK:
                link = PurePosixPath(os.fsdecode(file.read(info)))
                yield _Member(info.filename, target=str(PurePosixPath(info.filename).parent / link))
            elif kind in (0, stat.S_IFREG):
                with file.open(info) as content:
                    yield _Member(info.filename, info.file_size, content)
            else:
                raise writer.refused(f"{info.filename!r} is a device or a pipe")
            advance(info.compress_size)


class _Joined(io.RawIOBase):
    """Files read one after another as one; the next is asked for when the one before is read through."""

    def __init__(self, parts: Iterable[Path], advance: Callable[[int], None]) -> None:
        self.parts = iter(parts)
        self.advance = advance
        self.file: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if self.file is None:
                path = next(self.parts, None)
                if path is None:
                    return 0
                self.file = path.open("rb")
            if count := self.file.readinto(buffer):  # type: ignore[attr-defined]
                self.advance(count)
                return int(count)
            self.file.close()
            self.file = None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        super().close()


@dataclass
class _Tail:
    """A stream that remembers the last block that was read from it."""

    stream: IO[bytes] | io.BufferedReader | gzip.GzipFile
    last: bytes = b"not read"

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        if data:
            self.last = (self.last + data[-tarfile.BLOCKSIZE :])[-tarfile.BLOCKSIZE :]
        return data


@dataclass
class _Writer:
    """Members as files below a folder, in which nothing but files and folders is ever made."""

    archive: str
    folder: Path
    drop: Sequence[str]
    files: int = 0
    bytes: int = 0
    tops: set[str] = field(default_factory=set)
    links: dict[PurePosixPath, PurePosixPath] = field(default_factory=dict)

    def add(self, member: _Member) -> None:
        path = self.inside(member.name, repr(member.name))
        if member.target is not None:
            what = f"the link {member.name!r}, to {member.target!r},"
            self.links[path] = self.inside(os.path.normpath(member.target), what)
        elif member.content is not None:
            self.needs(member.size, repr(member.name))
            with self.place(path).open("wb") as out:
                shutil.copyfileobj(member.content, out, BLOCK)
                written = out.tell()
            if written != member.size:
                raise EOFError(f"{member.name!r} has {written} of {member.size} bytes")
            self.bytes += written

    def link(self) -> None:
        """Make the links, each another name of its file, once all files are there."""
        while self.links:
            ready = {path: target for path, target in self.links.items() if (self.folder / target).is_file()}
            if not ready:
                path, target = next(iter(self.links.items()))
                raise self.refused(f"the link '{path}' leads to '{target}', which is no file in it")
            for path, target in ready.items():
                del self.links[path]
                if path != target:
                    place = self.place(path)
                    place.unlink(missing_ok=True)
                    try:
                        place.hardlink_to(self.folder / target)
                    except OSError:  # the disk knows no such names
                        self.needs((self.folder / target).stat().st_size, f"'{path}'")
                        shutil.copyfile(self.folder / target, place)

    def place(self, path: PurePosixPath) -> Path:
        if not path.parts:
            raise self.refused("a file has no name")
        self.files += 1
        if len(self.tops) < TOPS:
            self.tops.add(path.parts[0])
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def inside(self, name: str, what: str) -> PurePosixPath:
        """The place below the folder of a member, or of a link's target."""
        path = PurePosixPath(name)
        steps = list(path.parts)
        if path.is_absolute() or ".." in steps or "\0" in name:
            raise self.refused(f"{what} leads out of the folder")
        while len(steps) > 1 and steps[0] in self.drop:
            del steps[0]
        return PurePosixPath(*steps)

    def refused(self, reason: str) -> RunError:
        return RunError(f"{self.archive}: refused: {reason}")

    def needs(self, size: int, what: str) -> None:
        """RunError if so many bytes do not fit on the disk."""
        free = shutil.disk_usage(self.folder).free
        if size > free - RESERVE:
            raise self.refused(
                f"{what} unpacks to {in_bytes(size)}, and {in_bytes(free)} is free in {self.folder.parent}; make room"
            )


def in_bytes(size: float) -> str:
    """A size as people read it: 12.3 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
