"""The items of a task, in an index on disk: made once by a process of its own, so that the server stays small.

The index is an SQLite file with a row for each item: role, row, id, text, instruction and where its media are. Media are named in
addresses by a hash of their place, so that no part of an address is ever a path.
"""

from __future__ import annotations

import hashlib
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError
from omnirecall.protocol.items import MEDIA, Item, MediaRef, Packed, signature
from omnirecall.protocol.suites import Task
from omnirecall.sources.load import read_task

SCHEMA = """
create table item (role text, row integer, id text, parts text, text text, instruction text, cluster text, folded text,
                   image text, video text, audio text, primary key (role, id)) without rowid;
create table media (name text primary key, place blob) without rowid;
create table about (key text primary key, value text);
"""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """One item of the index. ``media``: part to the name that addresses use and the place itself."""

    role: str
    row: int
    id: str
    parts: str
    text: str | None
    instruction: str | None
    cluster: str | None
    media: Mapping[str, tuple[str, MediaRef]]


def media_name(ref: MediaRef) -> str:
    """The hash of a medium's place, or of its bytes where it has none."""
    content = b"f" + str(ref).encode(errors="surrogateescape") if isinstance(ref, Path) else b"p" + ref
    return hashlib.blake2b(content, digest_size=10).hexdigest()


def _place(ref: MediaRef) -> bytes:
    if isinstance(ref, Path):
        return b"f" + str(ref).encode(errors="surrogateescape")
    return (b"p" if isinstance(ref, Packed) else b"b") + bytes(ref)


def _ref(place: bytes) -> MediaRef:
    if place[:1] == b"f":
        return Path(place[1:].decode(errors="surrogateescape"))
    return Packed(place[1:]) if place[:1] == b"p" else place[1:]


def folded(text: str) -> str:
    """Text as searches compare it: compatibility forms made one, case folded."""
    return unicodedata.normalize("NFKC", text).casefold()


def write_index(root: Path, task: Task, out: Path) -> None:
    """Read the task and write its index whole; what is amiss with the data stands in the index itself."""
    temporary = out.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(temporary)) as index:
        index.execute("pragma journal_mode = off")
        index.execute("pragma synchronous = off")
        index.executescript(SCHEMA)
        try:
            data = read_task(root, task)
            for role, items in (("q", data.queries), ("c", data.candidates)):
                index.executemany(
                    "insert or ignore into item values (?,?,?,?,?,?,?,?,?,?,?)",
                    (_row(role, row, item) for row, item in enumerate(items)),
                )
                index.executemany("insert or ignore into media values (?, ?)", _media(items))
        except (UserError, OSError) as error:
            index.execute("insert into about values ('problem', ?)", (str(error),))
        index.commit()
    temporary.replace(out)


def _row(role: str, row: int, item: Item) -> tuple[Any, ...]:
    media = [None if (ref := getattr(item, part)) is None else media_name(ref) for part in MEDIA]
    said = f"{item.id}\n{item.text or ''}"
    return (
        role,
        row,
        _storable(item.id),
        signature(item.modalities),
        None if item.text is None else _storable(item.text),
        item.instruction,
        item.cluster,
        _storable(folded(said)),
        *media,
    )


def _storable(text: str) -> str:
    """Text without halves of characters, which SQLite does not take."""
    return text.encode("utf-8", "replace").decode()


def _media(items: Iterable[Item]) -> Iterator[tuple[str, bytes]]:
    for item in items:
        for part in MEDIA:
            if (ref := getattr(item, part)) is not None:
                yield media_name(ref), _place(ref)


class Index:
    """A finished index. Each call opens the file anew, so that threads may share this."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self._open()) as index:
            row = index.execute("select value from about where key = 'problem'").fetchone()
        self.problem: str = row[0] if row else ""

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)

    def items(self, role: str, ids: Iterable[str]) -> dict[str, ShownItem]:
        """Items by id; those that the data do not hold are left out."""
        wanted = [(_storable(name), name) for name in dict.fromkeys(ids)]
        found: dict[str, ShownItem] = {}
        if self.problem:
            return found
        with closing(self._open()) as index:
            for stored, name in wanted:
                row = index.execute(
                    "select role, row, id, parts, text, instruction, cluster, image, video, audio from item"
                    " where role = ? and id = ?",
                    (role, stored),
                ).fetchone()
                if row is not None:
                    media = {}
                    for part, media_name_ in zip(MEDIA, row[7:], strict=True):
                        if media_name_ is not None:
                            place = index.execute("select place from media where name = ?", (media_name_,)).fetchone()
                            media[part] = (media_name_, _ref(place[0]))
                    found[name] = ShownItem(row[0], row[1], name, row[3], row[4], row[5], row[6], media)
        return found

    def medium(self, name: str) -> MediaRef | None:
        """Where the medium of that name is."""
        if self.problem:
            return None
        with closing(self._open()) as index:
            row = index.execute("select place from media where name = ?", (name,)).fetchone()
        return None if row is None else _ref(row[0])

    def matching(self, text: str, parts: str) -> set[str] | None:
        """Ids of the queries whose id or text holds ``text`` and whose modalities are ``parts``; None if neither is asked for."""
        if self.problem or not (text or parts):
            return None
        with closing(self._open()) as index:
            rows = index.execute(
                "select id from item where role = 'q' and (? = '' or instr(folded, ?) > 0) and (? = '' or parts = ?)",
                (text, folded(text), parts, parts),
            )
            return {row[0] for row in rows}

    def parts(self, role: str) -> list[str]:
        """Which combinations of modalities the items of a role have."""
        if self.problem:
            return []
        with closing(self._open()) as index:
            rows = index.execute("select distinct parts from item where role = ? order by parts", (role,))
            return [row[0] for row in rows]

    def parts_by_id(self, role: str) -> dict[str, str]:
        """The modalities of every item of a role."""
        if self.problem:
            return {}
        with closing(self._open()) as index:
            return dict(index.execute("select id, parts from item where role = ?", (role,)))

    def counts(self) -> dict[str, int]:
        """How many items each role has."""
        if self.problem:
            return {}
        with closing(self._open()) as index:
            return dict(index.execute("select role, count(*) from item group by role"))
