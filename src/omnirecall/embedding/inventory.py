"""What a folder of vectors holds, whether it is whole, and what can go."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from omnirecall.embedding.segments import (
    alive,
    index_agrees,
    opened,
    read_appends,
    read_header,
    segment_matrix,
    whole_appends,
)
from omnirecall.embedding.store import TABLE_FILE, TableHeader
from omnirecall.errors import UserError
from omnirecall.files import left_behind
from omnirecall.locks import is_free


class Shelf(msgspec.Struct, frozen=True):
    """The vectors of one model: how many, in how many bytes and segments, in which dtype."""

    model: str
    fingerprint: str
    dimension: int
    dtype: str
    vectors: int
    bytes: int
    segments: int
    folder: str


class Finding(msgspec.Struct, frozen=True):
    """A segment that is not whole, or whose index differs: how many of its vectors are whole, of those that its rows name."""

    model: str
    segment: str
    whole: int
    named: int


class Freed(msgspec.Struct, frozen=True):
    """Something that can go."""

    path: str
    bytes: int
    reason: str


def _tables(root: Path) -> Iterator[tuple[Path, TableHeader]]:
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; --store names the folder of vectors, OUT/.store of a run")
    for folder in sorted(root.iterdir()):
        if (folder / TABLE_FILE).is_file():
            try:
                yield folder, msgspec.json.decode((folder / TABLE_FILE).read_bytes(), type=TableHeader)
            except msgspec.MsgspecError:
                raise UserError(f"{folder / TABLE_FILE}: is damaged; remove the folder {folder}") from None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def shelves(root: Path) -> list[Shelf]:
    """Every model whose vectors are stored under ``root``."""
    found = []
    for folder, header in _tables(root):
        segments = [segment for path in sorted(folder.glob("*.rows")) if (segment := opened(path)) is not None]
        found.append(
            Shelf(
                model=header.model,
                fingerprint=header.fingerprint,
                dimension=header.dimension,
                dtype=", ".join(sorted({segment.header.dtype for segment in segments})),
                vectors=sum(len(segment.row) for segment in segments),
                bytes=_size(folder),
                segments=len(segments),
                folder=str(folder),
            )
        )
    return found


def verify(root: Path) -> list[Finding]:
    """Read every vector and compare it with its checksum; what differs, or is named and not there.

    The index of a segment that is not whole is removed, so that runs find in it only what is whole.
    """
    found = []
    for folder, table in _tables(root):
        for path in sorted(folder.glob("*.rows")):
            header, named, kept = read_header(path), 0, 0
            if header is not None:
                named = sum(len(append.rows.key) for append in read_appends(path))
                appends = whole_appends(read_appends(path), segment_matrix(path, header), checked=True)
                kept = sum(len(append.rows.key) for append in appends)
            if header is None or kept < named or not index_agrees(path):
                if not alive(path):
                    path.with_suffix(".index").unlink(missing_ok=True)
                found.append(Finding(table.model, str(path), kept, named))
    return found


def prunable(root: Path, model: str | None) -> list[Freed]:
    """All vectors of the models that match a glob; without one, segments that hold nothing and what an interrupted write left."""
    found = []
    for folder, header in _tables(root):
        if model is not None:
            if fnmatch.fnmatchcase(header.model, model):
                if any(alive(path) for path in folder.glob("*.rows")):
                    raise UserError(f"{folder}: a run is adding vectors of {header.model}; wait until it ends")
                found.append(Freed(str(folder), _size(folder), f"the vectors of {header.model}"))
            continue
        for path in sorted(folder.iterdir()):
            if path.suffix == ".tmp" and left_behind(path):
                found.append(Freed(str(path), path.stat().st_size, "left by an interrupted write"))
            elif path.suffix == ".vectors" and not path.with_suffix(".rows").exists():
                found.append(Freed(str(path), path.stat().st_size, "vectors that nothing names"))
            elif (
                path.suffix == ".rows"
                and not alive(path)
                and ((segment := opened(path)) is None or len(segment.row) == 0)
            ):
                parts = sorted(folder.glob(f"{path.stem}.*"))
                found += [
                    Freed(str(part), part.stat().st_size, "a segment of which nothing can be read") for part in parts
                ]
    return found


def prune(freed: list[Freed]) -> None:
    """Remove what was found, but for what a run has taken up meanwhile."""
    for one in freed:
        path = Path(one.path)
        if path.is_dir():
            shutil.rmtree(path)
            continue
        with suppress(FileNotFoundError), path.open("rb") as file:
            if is_free(file):  # and stays so until it is gone
                path.unlink()
