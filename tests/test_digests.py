"""Hashes of files are remembered while the files stay what they are, and never a moment longer."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirecall import digests
from omnirecall.digests import file_digest, memory_path
from omnirecall.embedding.plan import media_digest
from omnirecall.errors import UserError
from omnirecall.protocol.items import Packed
from omnirecall.sources import packed

LONG_AGO = time.time_ns() - 10**12


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files whose bytes were read; the memory is the test's own and empty."""
    names: list[str] = []
    read = hashlib.file_digest

    def counted(file: Any, digest: Any) -> Any:
        names.append(Path(file.name).name)
        return read(file, digest)

    monkeypatch.setenv("OMNIRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests.hashlib, "file_digest", counted)
    yield names
    digests._local.__dict__.clear()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every file had been left alone for an hour."""
    now = time.time_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now() + 3600 * 10**9)


def hashed(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@pytest.mark.usefixtures("settled")
def test_an_unchanged_file_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    """By this thread, by another, and after a start anew; a second name of the same file is the same file."""
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    found = [file_digest(tmp_path / name) for name in "aabc"]
    thread = threading.Thread(target=lambda: found.append(file_digest(tmp_path / "a")))
    thread.start()
    thread.join()
    digests._local.__dict__.clear()
    found.append(file_digest(tmp_path / "a"))
    assert found == [hashed(b"content")] * 6
    assert reads == ["a"]


@pytest.mark.usefixtures("settled", "reads")
def test_cells_of_an_unchanged_table_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell by its row and column; those of a table in its place are others."""
    cells: list[tuple[int, str]] = []
    read = packed._GROUPS.cell

    def counted(path: Path, row: int, column: str) -> bytes:
        cells.append((row, column))
        return read(path, row, column)

    monkeypatch.setattr(packed._GROUPS, "cell", counted)
    path = tmp_path / "cells.parquet"
    pq.write_table(pa.table({"one": [b"a", b"b"], "two": [b"c", b"a"]}), path)
    places = [(row, column) for column in ("one", "two") for row in (0, 1)]
    for _ in range(3):
        found = [media_digest(Packed.at(path, row, column)) for row, column in places]
        assert found == [hashed(content) for content in (b"a", b"b", b"c", b"a")]
    assert cells == places
    assert file_digest(path) == hashed(path.read_bytes())
    pq.write_table(pa.table({"one": [b"d", b"b"]}), tmp_path / "new")
    (tmp_path / "new").replace(path)
    monkeypatch.setattr(packed, "_GROUPS", packed._Groups())
    assert media_digest(Packed.at(path, 0, "one")) == hashed(b"d")


@pytest.mark.usefixtures("settled")
def test_what_changes_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    """Other bytes of the same size under the same times are told by the time of the change itself."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    assert file_digest(path) == hashed(b"one")
    path.write_bytes(b"two")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    assert path.stat().st_mtime_ns == LONG_AGO
    assert file_digest(path) == hashed(b"two")
    other = tmp_path / "other"
    other.write_bytes(b"six")
    os.utime(other, ns=(LONG_AGO, LONG_AGO))
    other.replace(path)
    assert file_digest(path) == hashed(b"six")
    path.write_bytes(b"longer")
    assert file_digest(path) == hashed(b"longer")
    assert file_digest(path) == hashed(b"longer")
    assert reads == ["a"] * 4


def test_a_file_changed_just_now_is_not_remembered(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change again within the grain of its times; 2 s later it is remembered."""
    path, now = tmp_path / "a", time.time_ns
    path.write_bytes(b"one")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))  # which changes its other time to now
    changed = path.stat().st_ctime_ns
    for after, read in ((0, 1), (1_999_999_999, 2), (2_000_000_001, 3), (0, 3), (10**12, 3)):
        monkeypatch.setattr(digests.time, "time_ns", lambda after=after: changed + after)
        assert file_digest(path) == hashed(b"one")
        assert len(reads) == read
    monkeypatch.setattr(digests.time, "time_ns", now)
    later = tmp_path / "b"
    later.write_bytes(b"one")
    os.utime(later, ns=(now() + 10**15, now() + 10**15))  # a clock that ran ahead
    for _ in range(2):
        file_digest(later)
    assert reads[3:] == ["b", "b"]


def test_the_grain_of_times_is_real(tmp_path: Path, reads: list[str]) -> None:
    """Without the wait, a file rewritten at once might keep its mark; with it every content is seen."""
    path = tmp_path / "a"
    for number in range(50):
        path.write_bytes(b"%03d" % number)
        assert file_digest(path) == hashed(b"%03d" % number)
    assert len(reads) == 50


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("when", ["before", "between"])
def test_a_damaged_memory_only_costs_reading(when: str, tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    if when == "between":
        file_digest(path)
        digests._local.__dict__.clear()
    memory_path().parent.mkdir(exist_ok=True)
    for left in memory_path().parent.glob("digests.sqlite?*"):
        left.unlink()
    memory_path().write_bytes(b"no database at all, of some length " * 100)
    for _ in range(3):
        assert file_digest(path) == hashed(b"one")
    assert len(reads) == 3 + (when == "between")


@pytest.mark.usefixtures("settled")
def test_a_memory_damaged_while_it_is_open_only_costs_reading(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    file_digest(path)
    with closing(sqlite3.connect(memory_path())) as database:
        database.execute("drop table digest")
    for _ in range(2):
        assert file_digest(path) == hashed(b"one")
    assert len(reads) == 3


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("known", [False, True])
def test_a_locked_memory_costs_one_wait_and_then_reading(
    known: bool, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a wait at every file."""
    waits: list[str] = []
    connect = sqlite3.connect

    class Counting(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            try:
                return super().execute(*arguments)
            except sqlite3.OperationalError as error:
                waits.append(str(error))
                raise

    def impatient(path: Path, timeout: float, **options: Any) -> sqlite3.Connection:
        assert timeout <= 5
        return connect(path, timeout=0.1, factory=Counting, **options)

    monkeypatch.setattr(digests.sqlite3, "connect", impatient)
    paths = [tmp_path / str(number) for number in range(30)]
    for number, path in enumerate(paths):
        path.write_bytes(b"%d" % number)
    file_digest(paths[0])
    if not known:
        digests._local.__dict__.clear()
    with closing(connect(memory_path())) as other:
        other.execute("begin exclusive")
        for number, path in enumerate(paths[1:], 1):
            assert file_digest(path) == hashed(b"%d" % number)
    assert sorted(reads) == sorted(path.name for path in paths)
    assert waits == ["database is locked"]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("cache", ["a file", "/proc/nowhere", "~nobody-of-this-name/x"])
def test_a_memory_that_cannot_be_written_only_costs_reading(
    cache: str, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("OMNIRECALL_CACHE", str(tmp_path / cache) if cache == "a file" else cache)
    (tmp_path / "a").write_bytes(b"one")
    for _ in range(2):
        assert file_digest(tmp_path / "a") == hashed(b"one")
    assert reads == ["a", "a"]


@pytest.mark.usefixtures("settled")
def test_a_read_only_memory_is_used(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knows is known; what it does not know is read each time."""
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    file_digest(tmp_path / "a")
    digests._local.connection.execute("pragma query_only = on")
    assert file_digest(tmp_path / "a") == hashed(b"a")
    assert reads == ["a"]
    assert [file_digest(tmp_path / "b") for _ in range(2)] == [hashed(b"b")] * 2
    assert reads == ["a", "b", "b"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(UserError, match=str(path)):
            file_digest(path)


def test_where_the_memory_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIRECALL_CACHE", str(tmp_path / "one"))
    assert memory_path() == tmp_path / "one" / "digests.sqlite"
    monkeypatch.delenv("OMNIRECALL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    assert memory_path() == tmp_path / "two" / "omnirecall" / "digests.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert memory_path() == tmp_path / "home" / ".cache" / "omnirecall" / "digests.sqlite"
    monkeypatch.setenv("OMNIRECALL_CACHE", "~nobody-of-this-name/x")
    with pytest.raises(UserError, match="set OMNIRECALL_CACHE"):
        memory_path()
