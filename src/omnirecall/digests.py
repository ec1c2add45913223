"""Hashes of files and of parts of files, remembered while a file's size, times and inode stay the same."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omnirecall.errors import UserError

_SETTLED = 2_000_000_000  # ns; a file changed less than this ago may change again under the same time stamp
_local = threading.local()


def file_digest(path: Path) -> str:
    """The blake2b hash of a file's bytes, 16 bytes in hex; UserError if it cannot be read."""

    def read() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    return _remembered(path, "", read)


def part_digest(path: Path, part: str, content: Callable[[], bytes]) -> str:
    """The same of a named part of a file, such as a cell of a table; ``content`` reads it."""
    return _remembered(path, part, lambda: hashlib.blake2b(content(), digest_size=16).hexdigest())


def _remembered(path: Path, part: str, digest: Callable[[], str]) -> str:
    try:
        status = path.stat()
        memory = _memory()
        key = f"{status.st_dev} {status.st_ino} {part}".rstrip()
        mark = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        if memory is not None and (known := _recall(memory, key, mark)):
            return known
        found = digest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if memory is not None and time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED:
        try:
            memory.execute("insert or replace into digest values (?, ?, ?)", (key, mark, found))
        except sqlite3.Error:
            _forget()
    return found


def memory_path() -> Path:
    """The database of remembered hashes: in OMNIRECALL_CACHE, or the user's cache folder; UserError where there is no home."""
    cache = os.environ.get("OMNIRECALL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "omnirecall"
    try:
        return Path(cache).expanduser() / "digests.sqlite"
    except RuntimeError:
        raise UserError(f"{cache}: there is no home folder; set OMNIRECALL_CACHE to a folder") from None


def _recall(memory: sqlite3.Connection, key: str, mark: str) -> str | None:
    try:
        row = memory.execute("select digest from digest where file = ? and mark = ?", (key, mark)).fetchone()
    except sqlite3.Error:
        _forget()
        return None
    return row[0] if row else None


def _forget() -> None:
    """Do without the database from here on: to wait for a lock at every file would cost more than reading them."""
    _local.connection = None


def _memory() -> sqlite3.Connection | None:
    """The connection of the calling thread, or None where no database can be had: then every file is read."""
    try:
        path = memory_path()
    except UserError:
        return None
    if getattr(_local, "path", None) != path:
        _local.path, _local.connection = path, None
        with suppress(sqlite3.Error, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=5, isolation_level=None)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = off")
            connection.execute(
                "create table if not exists digest (file text primary key, mark text, digest text) without rowid"
            )
            _local.connection = connection
    connection = _local.connection
    return connection if isinstance(connection, sqlite3.Connection) else None
