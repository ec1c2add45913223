"""Long columns are what numpy makes of the same numbers in memory, whatever the sizes of their parts."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from omnirecall import columns
from omnirecall.embedding.plan import first_of_each
from omnirecall.errors import RunError

SIZES = st.tuples(st.sampled_from([0, 8, 64, 1 << 20]), st.integers(1, 20), st.integers(2, 20))


@contextmanager
def sizes(in_memory: int, part: int, run: int) -> Iterator[None]:
    """Columns that leave memory after ``in_memory`` bytes, worked on in parts of ``part`` rows and runs of ``run``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "IN_MEMORY", in_memory)
        patch.setattr(columns, "PART", part)
        patch.setattr(columns, "_RUN", run)
        patch.setattr(columns, "_READ", 100)
        patch.setattr(columns.parts, "__defaults__", (part,))
        yield


@given(values=arrays.arrays(np.uint64, st.integers(0, 60), elements=st.integers(0, 2**64 - 1)), given_sizes=SIZES)
def test_growing_joined_taken_where(values: Any, given_sizes: tuple[int, int, int]) -> None:
    with sizes(*given_sizes):
        half = len(values) // 2
        grown = columns.Growing(np.uint64)
        for part in (values[:half], values[half:]):
            grown.extend(part)
        column = grown.column()
        np.testing.assert_array_equal(column, values)
        wide = columns.Growing("<u8", 2)
        wide.extend(np.stack([values, values + np.uint64(1)], axis=1).tobytes())
        np.testing.assert_array_equal(wide.column(), np.stack([values, values + np.uint64(1)], axis=1))
        np.testing.assert_array_equal(columns.joined([column, values, values[:0]], values), [*values, *values])
        rows = np.arange(len(values))[::-1]
        np.testing.assert_array_equal(columns.taken(column, rows), values[::-1])
        np.testing.assert_array_equal(columns.where(values % 2 == 0), np.flatnonzero(values % 2 == 0))
    assert columns.joined([], np.zeros((0, 2), np.int16)).shape == (0, 2)


@given(codes=st.lists(st.integers(0, 5), max_size=60), given_sizes=SIZES)
def test_rows_by_code(codes: list[int], given_sizes: tuple[int, int, int]) -> None:
    array = np.array(codes, np.int64)
    with sizes(*given_sizes):
        found = columns.sorted_rows(lambda part: array[part], len(array), 6)
    np.testing.assert_array_equal(found, np.argsort(array, kind="stable"))


def keys(draw: Any) -> Any:
    """Keys of which some are equal, some share their first halves, and some only the bits by which runs are made."""
    few = st.sampled_from([0, 1, 1 << 52, 2**64 - 1, 7 << 60])
    half = st.one_of(few, st.integers(0, 2**64 - 1))
    return np.array(draw(st.lists(st.tuples(half, few), max_size=80)), np.uint64).reshape(-1, 2)


@given(data=st.data(), given_sizes=SIZES)
def test_runs_and_first_of_each(data: st.DataObject, given_sizes: tuple[int, int, int]) -> None:
    made = keys(data.draw)
    with sizes(*given_sizes):
        runs = [*columns.runs(made[:, 0])]
        first = first_of_each(made)
    highest = -1
    for run in runs:
        values = made[run, 0]
        assert int(values.min(initial=2**64 - 1)) > highest or len(run) == 0
        highest = int(values.max(initial=0))
        for value in np.unique(values):
            assert (np.diff(run[values == value]) > 0).all()
    assert sorted(row for run in runs for row in run.tolist()) == list(range(len(made)))
    expected = sorted({tuple(key): row for row, key in reversed([*enumerate(made.tolist())])}.values())
    assert first.tolist() == expected


@given(names=st.lists(st.text(max_size=2), max_size=60), given_sizes=SIZES)
def test_names_that_are_used_again(names: list[str], given_sizes: tuple[int, int, int]) -> None:
    with sizes(*given_sizes):
        hashes = columns.Hashes()
        for name in names:
            hashes.add(name)
        assert hashes.repeated() == {hash(name) for name in names if names.count(name) > 1}


def test_pages_that_are_given_back_are_read_again() -> None:
    with sizes(0, 4, 4):
        column = columns.empty(10_000, np.int64)
        column[:] = np.arange(10_000)
        columns.touched(columns._READ)
        np.testing.assert_array_equal(column, np.arange(10_000))


def test_no_file_is_left(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with sizes(0, 4, 4):
        column, grown = columns.empty(1000, np.int64), columns.Growing(np.int64)
        grown.extend(np.arange(1000))
        column[:] = grown.column()
    assert column.sum() == 499_500
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("place", "name", "work"),
    [
        (os, "posix_fallocate", lambda: columns.empty(10, np.int64)),
        (tempfile, "TemporaryFile", lambda: columns.Growing(np.int64).extend(np.arange(10))),
    ],
    ids=["empty", "growing"],
)
def test_a_full_temporary_folder_is_said(
    place: Any, name: str, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(place, name, full)
    with sizes(0, 4, 4), pytest.raises(RunError, match=r"No space left on device.*TMPDIR"):
        work()


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 99))
def test_a_million_rows(seed: int) -> None:
    """With the sizes that runs have."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 2**63, (400_000, 2), dtype=np.uint64) % np.uint64(10**5 + seed) * np.uint64(2**40)
    first = first_of_each(made)
    _, expected = np.unique(made, axis=0, return_index=True)
    np.testing.assert_array_equal(first, np.sort(expected))
    codes = (made[:, 0] % np.uint64(1000)).astype(np.int64)
    order = columns.sorted_rows(lambda part: codes[part], len(codes), 1000)
    np.testing.assert_array_equal(order, np.argsort(codes, kind="stable"))
