"""The store gives back what was put in, whole or not at all, whoever writes beside it and wherever it was killed."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnirecall
from omnirecall import locks as locks_module
from omnirecall.embedding import segments as segments_module
from omnirecall.embedding.pipeline import joined
from omnirecall.embedding.ranked import bfloat16_bits
from omnirecall.embedding.segments import Note, alive, no_keys
from omnirecall.embedding.store import Notes, Store
from omnirecall.errors import RunError
from omnirecall.files import whole_file, write_whole
from omnirecall.ranking import BFloat16, Ragged, Segments
from omnirecall.ranking.inputs import widen

KINDS = ("float32", "float16", "bfloat16")


def opened(folder: Path, dimension: int = 3) -> Store:
    return Store(folder, "f", dimension, "m")


def some_keys(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64)


def typed(values: np.ndarray, kind: str) -> Any:
    return BFloat16(bfloat16_bits(values.astype(np.float32))) if kind == "bfloat16" else values.astype(kind)


def made(count: int, dimension: int, kind: str, seed: int = 0) -> Any:
    return typed(np.random.default_rng(seed).standard_normal((count, dimension)), kind)


def made_ragged(counts: Sequence[int], dimension: int, kind: str, seed: int = 0) -> Ragged:
    return Ragged(made(sum(counts), dimension, kind, seed), np.cumsum([0, *counts]))


def bits(values: Any) -> np.ndarray:
    """The stored bits of a matrix, or of chosen rows of one, as whole numbers."""
    if isinstance(values, tuple):
        table, rows = values
        values = BFloat16(table.bits[rows]) if isinstance(table, BFloat16) else table[rows]
    matrix = values.bits if isinstance(values, BFloat16) else values
    matrix = matrix[: len(matrix)]
    return np.ascontiguousarray(matrix).view(f"u{matrix.dtype.itemsize}")


def part(vectors: Any, start: int, stop: int) -> Any:
    """Items ``start`` to ``stop``."""
    if isinstance(vectors, Ragged):
        begin, end = vectors.offsets[start], vectors.offsets[stop]
        return Ragged(part(vectors.values, begin, end), vectors.offsets[start : stop + 1] - begin)
    return BFloat16(vectors.bits[start:stop]) if isinstance(vectors, BFloat16) else vectors[start:stop]


def filled(
    folder: Path, keys: np.ndarray, vectors: Any, ends: Sequence[int], per_segment: int = 1, dimension: int = 3
) -> Store:
    """A store with the items appended up to each of ``ends``, so many appends to a segment."""
    store, start = opened(folder, dimension), 0
    for number, stop in enumerate(ends):
        store.append(keys[start:stop], part(vectors, start, stop))
        start = stop
        if (number + 1) % per_segment == 0:
            store.close()
    store.close()
    return store


@contextmanager
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without waiting for the disk, where the order of writes is not what is tested."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    ragged=st.booleans(),
    sizes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=4),
    per_segment=st.integers(1, 3),
    dimension=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_round_trip(
    kind: str,
    ragged: bool,
    sizes: list[list[int]],
    per_segment: int,
    dimension: int,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Every bit of every vector comes back under its key, from as many segments as there are."""
    folder, rng = tmp_path_factory.mktemp("store"), np.random.default_rng(seed)
    counts = [count for batch in sizes for count in batch]
    vectors = made_ragged(counts, dimension, kind, seed) if ragged else made(len(counts), dimension, kind, seed)
    keys, ends = some_keys(len(counts), seed), np.cumsum([len(batch) for batch in sizes])
    writer = filled(folder, keys, vectors, ends, per_segment, dimension)
    order = rng.permutation(len(keys))
    for store in (writer, opened(folder, dimension)):
        assert (len(store), store.damaged) == (len(keys), [])
        got = store.vectors(store.find(keys[order]))
        if ragged:
            assert isinstance(got, Ragged)
            np.testing.assert_array_equal(np.diff(got.offsets), np.array(counts)[order])
            for place, item in enumerate(order):
                table, rows = got.values
                mine = rows[got.offsets[place] : got.offsets[place + 1]]
                np.testing.assert_array_equal(bits((table, mine)), bits(part(vectors, item, item + 1).values))
        else:
            np.testing.assert_array_equal(bits(got), bits(vectors)[order])
    assert len(list(folder.rglob("*.rows"))) == -(-len(sizes) // per_segment)


@settings(max_examples=25, deadline=None)
@given(
    notes=st.lists(
        st.tuples(st.lists(st.text(max_size=6), max_size=3), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
        min_size=1,
        max_size=6,
    ),
    cut=st.integers(0, 6),
)
def test_notes_come_back(
    notes: list[tuple[list[str], int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a closed segment, from one that is at work, and from two."""
    folder, keys = tmp_path_factory.mktemp("store"), some_keys(len(notes))
    vectors, said = (
        made(len(notes), 3, "float32"),
        [Note(tuple(texts), tokens, frames) for texts, tokens, frames in notes],
    )
    store = opened(folder)
    store.append(keys[:cut], vectors[:cut], said[:cut])
    store.close()
    store.append(keys[cut:], vectors[cut:], said[cut:])
    for seen in (opened(folder), store):
        order = np.arange(len(notes))[::-1]
        for some in (order, *np.split(order, len(order))):
            told = seen.notes(seen.find(keys[some]))
            assert told.cut == sum(notes[row][1] > 0 for row in some)
            assert told.frame_tokens == max(notes[row][2] for row in some)
            assert len(told.warnings) == len(set(told.warnings))
            assert set(told.warnings) == {text for row in some for text in notes[row][0]}
        store.close()


def is_mapped(values: Any) -> bool:
    """Whether an array lies in a file."""
    while isinstance(values, np.ndarray):
        values = values.base
    return isinstance(values.obj if isinstance(values, memoryview) else values, mmap.mmap)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_vectors_are_handed_over_where_they_lie(kind: str, ragged: bool, tmp_path: Path) -> None:
    """No copy for one segment or several, nor for fewer dimensions."""
    counts = [1, 3, 2, 1, 4, 1]
    vectors = made_ragged(counts, 5, kind) if ragged else made(6, 5, kind)
    for number, ends in enumerate(([6], [2, 3, 6])):
        keys = some_keys(6)
        store = filled(tmp_path / str(number), keys, vectors, ends, dimension=5)
        for dimensions in (None, 2):
            got = store.vectors(store.find(keys[::-1]), dimensions)
            table, rows = got.values if isinstance(got, Ragged) else got
            matrix = table.bits if isinstance(table, BFloat16) else table
            assert isinstance(matrix, Segments) == (len(ends) > 1)
            parts = matrix.parts if isinstance(matrix, Segments) else (matrix,)
            assert len(parts) == len(ends)
            files = sorted(store.folder.glob("*.vectors"))
            for piece, path, segment in zip(parts, files, store._segments, strict=True):
                assert is_mapped(piece)
                assert np.array_equal(segment.values.view(np.uint8).ravel(), np.fromfile(path, np.uint8))
                assert np.shares_memory(piece, segment.values)
                assert piece.shape[1] == (dimensions or 5)
            whole = vectors.values if isinstance(vectors, Ragged) else vectors
            if not ragged:
                np.testing.assert_array_equal(bits((table, rows)), bits(whole)[::-1, :dimensions])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dimensions", [None, 3])
def test_ranks_over_segments_are_those_over_one_matrix(
    kind: str, ragged: bool, dimensions: int | None, tmp_path: Path
) -> None:
    """With a shared pool and with pools of each query's own, ties and all."""
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 4, 90).tolist()
    whole = rng.integers(-2, 3, (sum(counts) if ragged else 90, 6)) + 0.25
    vectors = Ragged(typed(whole, kind), np.cumsum([0, *counts])) if ragged else typed(whole, kind)
    twice = part(vectors, 20, 35)  # some items are the same
    vectors = joined([vectors, twice])
    keys = some_keys(105)
    store = filled(tmp_path, keys, vectors, [7, 8, 30, 61, 105], per_segment=2, dimension=6)
    order = rng.permutation(105)
    queries, candidates = order[:12], order[12:]

    def plain(items: np.ndarray) -> Any:
        pieces = [part(vectors, item, item + 1) for item in items]
        values = [bits(piece.values if ragged else piece)[:, :dimensions] for piece in pieces]
        stacked = np.concatenate(values)
        matrix = BFloat16(stacked) if kind == "bfloat16" else stacked.view(kind)
        return Ragged(matrix, np.cumsum([0, *(len(value) for value in values)])) if ragged else matrix

    positives = [rng.choice(93, 3, replace=False) for _ in range(12)]
    pools = [np.union1d(own, rng.choice(93, 20, replace=False)) for own in positives]
    exclude = [np.setdiff1d(rng.choice(93, 9, replace=False), own) for own in positives]
    stored = [store.vectors(store.find(keys[items]), dimensions) for items in (queries, candidates)]
    for lists in ({}, {"pool": pools}, {"exclude": exclude}):
        got = omnirecall.rank(*stored, positives, **lists)
        expected = omnirecall.rank(plain(queries), plain(candidates), positives, **lists)
        for name in ("greater", "tied", "scores", "top_ids", "top_scores", "pool_size"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), name)
        assert got.tied.any()


def test_equal_halves_of_keys_are_told_apart(tmp_path: Path) -> None:
    """Many keys share their first half, some their second, and lookups hit and miss among them."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(rng.integers(0, 2**64, 4, np.uint64), rng.integers(0, 2**64, 50, np.uint64)), -1)
    keys = rng.permutation(grid.reshape(-1, 2))
    held, absent = keys[:150], keys[150:]
    store = filled(tmp_path, held, made(150, 3, "float32"), [60, 150])
    assert len(np.unique(held[:, 0])) == 4
    order = rng.permutation(200)
    found = store.find(np.concatenate([held, absent])[order])
    expected = np.concatenate([np.arange(150), np.full(50, -1)])[order]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(store.find(held[:, ::-1]), -1)  # the halves have their places


def test_a_hundred_thousand_keys(tmp_path: Path) -> None:
    """Each finds its own row, and a hundred thousand others find none."""
    keys = some_keys(100_000, 1)
    vectors = np.arange(300_000, dtype=np.float32).reshape(-1, 3) + 1
    store = filled(tmp_path, keys, vectors, [100, 40_000, 100_000])
    order = np.random.default_rng(2).permutation(100_000)
    rows = store.find(keys[order])
    np.testing.assert_array_equal(bits(store.vectors(rows)), bits(vectors[order]))
    np.testing.assert_array_equal(store.find(some_keys(100_000, 3)), -1)
    assert store.find(no_keys()).shape == (0,)


def test_an_empty_store(tmp_path: Path) -> None:
    """Nothing is written until something is kept."""
    store = opened(tmp_path)
    np.testing.assert_array_equal(store.find(some_keys(3)), -1)
    store.append(no_keys(), np.zeros((0, 3), np.float32))
    store.close()
    assert len(store) == 0
    assert not list(tmp_path.iterdir())


def test_another_fingerprint_or_dimension_sees_nothing(tmp_path: Path) -> None:
    filled(tmp_path, some_keys(1), np.ones((1, 3), np.float32), [1])
    assert len(Store(tmp_path, "g", 3, "m")) == 0
    assert len(Store(tmp_path, "f", 2, "m")) == 0
    assert len(Store(tmp_path, "f", 3, "another name")) == 1


def test_a_vector_that_is_gone_is_no_other_vector(tmp_path: Path) -> None:
    for number, vectors in enumerate((made(2, 3, "float32"), made_ragged([2, 2], 3, "float32"))):
        store = filled(tmp_path / str(number), some_keys(2), vectors, [2])
        with pytest.raises(RunError, match="1 vectors are gone"):
            store.vectors(store.find(np.concatenate([some_keys(2)[:1], some_keys(1, 9)])))


@pytest.mark.parametrize("closed", [False, True])
def test_one_fingerprint_gives_one_kind_of_vector(closed: bool, tmp_path: Path) -> None:
    """In one process and from one to the next: else bytes of the one would be read as the other."""
    keys, store = some_keys(4), opened(tmp_path)
    store.append(keys[:2], made(2, 3, "float32"))
    if closed:
        store.close()
    for other in (made(1, 3, "float16"), made(1, 3, "bfloat16"), made(1, 4, "float32"), made_ragged([1], 3, "float32")):
        with pytest.raises(RunError, match="must change its fingerprint"):
            store.append(keys[2:3], other)
    store.append(keys[3:], made(1, 3, "float32", 7))
    store.close()
    np.testing.assert_array_equal(store.find(keys) < 0, [False, False, True, False])
    np.testing.assert_array_equal(bits(store.vectors(store.find(keys[3:]))), bits(made(1, 3, "float32", 7)))


def test_a_segment_of_another_kind_is_left_out_and_named(tmp_path: Path) -> None:
    """As when two processes, each with an empty store before it, kept different dtypes."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.append(some_keys(2), made(2, 3, "float32"))
    second.append(some_keys(2, 1), made(2, 3, "float16"))
    first.close()
    second.close()
    assert [path.suffix for path in second.damaged] == [".rows"]
    np.testing.assert_array_equal(second.find(some_keys(2, 1)), -1)
    assert (second.find(some_keys(2)) >= 0).all()


APPEND = """
import sys, time
from pathlib import Path
import numpy as np
from omnirecall.embedding.store import Notes, Store

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(seed)
store = Store(folder, "f", 3, "m")
keys = rng.integers(0, 2**64, (int(sys.argv[3]), 2), np.uint64)
print("ready", flush=True)
sys.stdin.readline()
for number in range(len(keys) // 5):
    vectors = np.full((5, 3), 100 * seed + number + 1, np.float32)
    store.append(keys[5 * number : 5 * number + 5], vectors)
print("done", flush=True)
sys.stdin.readline()
store.close()
"""


@contextmanager
def appending(folder: Path, seed: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that appends when told to, and closes its segment when told again."""
    process = subprocess.Popen(
        [sys.executable, "-c", APPEND, str(folder), str(seed), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert said_by(process) == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def appended_by(store: Store, seed: int, count: int, *, whole: int | None = None) -> None:
    """The store holds the first ``whole`` appends of a process, and no others of it."""
    keys = some_keys(count, seed)
    rows, held = store.find(keys), 5 * (count // 5 if whole is None else whole)
    np.testing.assert_array_equal(rows >= 0, np.arange(count) < held)
    expected = np.repeat(100 * seed + np.arange(held // 5) + 1, 5)[:, None] * np.ones((1, 3), np.float32)
    if held:
        np.testing.assert_array_equal(bits(store.vectors(rows[:held])), bits(expected.astype(np.float32)))


def test_two_processes_append_at_once(tmp_path: Path) -> None:
    """Neither loses anything, and a third that opens the store meanwhile sees only whole appends."""
    with appending(tmp_path, 1, 400) as one, appending(tmp_path, 2, 400) as other:
        for process in (one, other):
            tell(process)
        for _ in range(15):
            seen = opened(tmp_path)
            assert not seen.damaged
            for seed in (1, 2):
                held = int((seen.find(some_keys(400, seed)) >= 0).sum())
                assert held % 5 == 0
                appended_by(seen, seed, 400, whole=held // 5)
        for process in (one, other):
            assert said_by(process) == "done"
            tell(process)
            assert process.wait(30) == 0
    store = opened(tmp_path)
    appended_by(store, 1, 400)
    appended_by(store, 2, 400)
    assert len(store) == 800
    assert len(list(store.folder.glob("*.index"))) == 2


def test_a_live_segment_is_read_and_left_to_its_process(tmp_path: Path) -> None:
    """Its index is written by its process, or, once that is dead, by whoever opens it next."""
    with appending(tmp_path, 1, 10) as killed, appending(tmp_path, 2, 10) as ended:
        for process in (killed, ended):
            tell(process)
            assert said_by(process) == "done"
        store = opened(tmp_path)
        appended_by(store, 1, 10)
        appended_by(store, 2, 10)
        assert all(alive(path) for path in store.folder.glob("*.rows"))
        assert not list(store.folder.glob("*.index"))
        tell(ended)
        assert ended.wait(30) == 0
        assert len(list(store.folder.glob("*.index"))) == 1
        appended_by(opened(tmp_path), 1, 10)
        assert len(list(store.folder.glob("*.index"))) == 1
        killed.kill()
        killed.wait(30)
    assert not any(alive(path) for path in store.folder.glob("*.rows"))
    appended_by(opened(tmp_path), 1, 10)
    assert len(list(store.folder.glob("*.index"))) == 2


def test_two_that_open_a_dead_segment_at_once_both_check_it(tmp_path: Path) -> None:
    """One that is at it must not look alive to the other, which would then trust what is there."""
    path, _ = torn_store(tmp_path, 2)
    content = path.with_suffix(".vectors").read_bytes()
    path.with_suffix(".vectors").write_bytes(content[:-1] + b"\x7f")
    with path.open("rb") as file:
        assert locks_module.is_free(file)
        store = opened(tmp_path)
    assert len(store) == 2
    assert path.with_suffix(".index").exists()


def test_a_live_segment_is_checked_too(tmp_path: Path) -> None:
    """Over a network, rows may be seen before the vectors that they name."""
    store, keys = opened(tmp_path), some_keys(4)
    for start in (0, 2):
        store.append(keys[start : start + 2], made(2, 3, "float32", start))
    (path,) = store.folder.glob("*.vectors")
    with path.open("r+b") as file:
        file.seek(-24, os.SEEK_END)
        file.write(bytes(24))
    np.testing.assert_array_equal(opened(tmp_path).find(keys) >= 0, [True, True, False, False])
    assert not path.with_suffix(".index").exists()


def torn_store(folder: Path, appends: int, ragged: bool = False) -> tuple[Path, list[tuple[int, int]]]:
    """The ``.rows`` of a segment whose process was killed, and the sizes of .rows and .vectors after each append of 2 items."""
    store, sizes = opened(folder), [(0, 0)]
    for number in range(appends):
        vectors = made_ragged([1, 2], 3, "float32", number) if ragged else made(2, 3, "float32", number)
        store.append(some_keys(2, number), vectors, [Note(("cut short",), 3, 4), Note()])
        (path,) = store.folder.glob("*.rows")
        sizes.append((path.stat().st_size, path.with_suffix(".vectors").stat().st_size))
    assert store._writer is not None
    store._writer.abandon()
    assert not path.with_suffix(".index").exists()
    return path, sizes


def damaged_at(content: bytes, place: int) -> Iterator[bytes]:
    """Cut off at a place, filled with zeros from there, and with a byte changed there."""
    yield content[:place]
    yield content[:place] + bytes(len(content) - place)
    yield content[:place] + bytes([content[place] ^ (0x01, 0xFF)[place % 2]]) + content[place + 1 :]


@pytest.mark.parametrize("suffix", [".rows", ".vectors"])
@pytest.mark.parametrize(("ragged", "appends"), [(False, 1), (True, 3)])
def test_a_torn_append_is_dropped_and_the_earlier_ones_stay(
    suffix: str, ragged: bool, appends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every byte of the last append: exactly the earlier ones, or, where nothing but padding changed, all of them."""
    path, sizes = torn_store(tmp_path, appends, ragged)
    torn, which = path.with_suffix(suffix), (".rows", ".vectors").index(suffix)
    content, index, write_index = torn.read_bytes(), path.with_suffix(".index"), segments_module._write_index
    places = range(sizes[-2][which], sizes[-1][which])
    padding = 0
    with quick_disk(monkeypatch):
        for place in places:
            indexed = place % 16 == 0
            monkeypatch.setattr(segments_module, "_write_index", write_index if indexed else lambda *_: None)
            for broken in damaged_at(content, place):
                if broken == content:
                    continue
                torn.write_bytes(broken)
                index.unlink(missing_ok=True)
                for _ in range(1 + indexed):  # as found, and from the index that was then written
                    store = opened(tmp_path)
                    whole = appends if (store.find(some_keys(2, appends - 1)) >= 0).all() else appends - 1
                    padding += whole == appends
                    assert len(store) == 2 * whole, f"byte {place}"
                    assert set(store.damaged) <= ({path} if whole == 0 else set())
                    for number in range(whole):
                        as_appended(store, number, ragged)
    assert padding < len(places)  # of about three times as many
    assert padding == 0 or suffix == ".rows"


def as_appended(store: Store, number: int, ragged: bool) -> None:
    """The store holds just what `torn_store` appended."""
    rows = store.find(some_keys(2, number))
    got, expected = store.vectors(rows), made(2, 3, "float32", number)
    if ragged:
        expected = made_ragged([1, 2], 3, "float32", number)
        np.testing.assert_array_equal(got.offsets, expected.offsets)
        got, expected = got.values, expected.values
    assert np.array_equal(bits(got), bits(expected))
    assert store.notes(rows) == Notes(1, 4, ("cut short",))


def test_a_segment_killed_before_its_first_append_is_no_damage(tmp_path: Path) -> None:
    """Neither while its process is at work nor after."""
    keys = some_keys(2)
    filled(tmp_path, keys, made(2, 3, "float32"), [2])
    writer = segments_module.Writer(opened(tmp_path).folder, segments_module.SegmentHeader("float32", 3, False))
    for _ in range(2):
        store = opened(tmp_path)
        assert (len(store), store.damaged) == (2, [])
        assert len(list(store.folder.glob("*.index"))) == 1
        writer.abandon()


def test_an_index_is_a_safetensors_file(tmp_path: Path) -> None:
    """Read by that library, it holds the keys in order, and where each one's row and vectors are."""
    numpy = pytest.importorskip("safetensors.numpy")
    keys, counts = some_keys(30), [1, 2, 3] * 10
    store = filled(tmp_path, keys, made_ragged(counts, 3, "float32"), [7, 30], per_segment=2)
    (index,) = store.folder.glob("*.index")
    tensors = numpy.load_file(index)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    np.testing.assert_array_equal(tensors["row"], order)
    np.testing.assert_array_equal(np.stack([tensors["high"], tensors["low"]], axis=1), keys[order])
    np.testing.assert_array_equal(tensors["begin"], np.cumsum(counts) - counts)
    assert {name: tensor.dtype.name for name, tensor in tensors.items()} == {
        **dict.fromkeys(("high", "low"), "uint64"),
        **dict.fromkeys(("row", "begin"), "int64"),
        **dict.fromkeys(("tokens_cut", "frame_tokens"), "int32"),
    }


def test_a_lost_or_damaged_index_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, vectors = some_keys(20), made_ragged([1, 2] * 10, 3, "bfloat16")
    store = filled(tmp_path, keys, vectors, [9, 20], per_segment=2)
    (index,) = store.folder.glob("*.index")
    whole = index.read_bytes()
    with quick_disk(monkeypatch):
        for broken in (
            None,
            b"",
            bytes(len(whole)),
            (2**60).to_bytes(8, "little"),
            *(whole[:cut] for cut in range(0, len(whole), 37)),
        ):
            if broken is None:
                index.unlink()
            else:
                index.write_bytes(broken)
            store = opened(tmp_path)
            assert (len(store), store.damaged) == (20, [])
            got = store.vectors(store.find(keys))
            np.testing.assert_array_equal(bits(got.values), bits(vectors.values))
            assert index.read_bytes() == whole


@pytest.mark.parametrize("suffix", [".rows", ".vectors"])
def test_a_damaged_segment_is_named_and_the_others_stay(suffix: str, tmp_path: Path) -> None:
    keys, vectors = some_keys(6), made(6, 3, "float32")
    store = filled(tmp_path, keys, vectors, [2, 4, 6])
    path = sorted(store.folder.glob("*.rows"))[1]
    path.with_suffix(".index").unlink()
    path.with_suffix(suffix).unlink()
    if suffix == ".rows":
        path.write_bytes(b"no Arrow stream at all")
    store = opened(tmp_path)
    assert store.damaged == [path]
    np.testing.assert_array_equal(store.find(keys) < 0, [False, False, True, True, False, False])
    np.testing.assert_array_equal(bits(store.vectors(store.find(keys[4:]))), bits(vectors[4:]))
    store.append(keys[2:4], vectors[2:4])
    store.close()
    np.testing.assert_array_equal(bits(store.vectors(store.find(keys))), bits(vectors))


@pytest.mark.parametrize("closed", [False, True])
def test_vectors_cut_short_after_the_segment_was_closed(closed: bool, tmp_path: Path) -> None:
    """The index names more than there is; what is whole stays."""
    keys, vectors = some_keys(6), made(6, 3, "float32")
    store = filled(tmp_path, keys, vectors, [2, 4, 6], per_segment=3)
    (path,) = store.folder.glob("*.vectors")
    path.write_bytes(path.read_bytes()[: 12 * 5])
    store = opened(tmp_path)
    np.testing.assert_array_equal(store.find(keys) < 0, [False] * 4 + [True] * 2)
    np.testing.assert_array_equal(bits(store.vectors(store.find(keys[:4]))), bits(vectors[:4]))


@contextmanager
def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder in which nothing can be written, by root neither."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    with monkeypatch.context() as patch:
        patch.setattr("omnirecall.files.tempfile.mkstemp", refuse)
        patch.setattr(Path, "unlink", refuse)
        for one in folders:
            one.chmod(0o555)
        try:
            yield
        finally:
            for one in folders:
                one.chmod(0o755)


def test_a_read_only_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed segments and dead ones; what should be kept there is refused in a sentence."""
    keys, vectors = some_keys(2, 9), made(2, 3, "float32", 9)
    filled(tmp_path, keys, vectors, [2])
    torn_store(tmp_path / "dead", 2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    with read_only(tmp_path, monkeypatch):
        store = opened(tmp_path)
        np.testing.assert_array_equal(bits(store.vectors(store.find(keys))), bits(vectors))
        for _ in range(2):
            assert len(opened(tmp_path / "dead")) == 4
        empty = opened(tmp_path / "none")
        with pytest.raises(RunError, match="cannot be written"):
            empty.append(some_keys(1), made(1, 3, "float32"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_dead_segment_is_on_the_disk_before_its_index_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves vectors in the memory of the system alone: an index that outlives a power cut must not name them."""
    path, _ = torn_store(tmp_path, 2)
    done: list[object] = []
    sync, rename = os.fsync, Path.replace

    def seen(handle: int) -> None:
        done.append(os.fstat(handle).st_ino)
        sync(handle)

    def renamed(self: Path, target: Path) -> Path:
        done.append(target.name)
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Path, "replace", renamed)
    opened(tmp_path)
    place = done.index(path.with_suffix(".index").name)
    for part_path in (path, path.with_suffix(".vectors")):
        assert part_path.stat().st_ino in done[:place]


def test_what_a_kill_left_of_an_index_goes(tmp_path: Path) -> None:
    path, _ = torn_store(tmp_path, 1)
    left = path.parent / f".{path.stem}.index.x1y2.tmp"
    left.write_bytes(b"half an index")
    assert len(opened(tmp_path)) == 2
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("place", [0, 7, 23, 24, 30, 400])
@pytest.mark.parametrize("freed", [False, True])
def test_a_full_disk_keeps_what_was_whole(
    place: int, freed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up ``place`` bytes into an append, of vectors first and then of rows; what was whole is kept."""
    keys, vectors = some_keys(6), made(6, 3, "float32")
    store, room, write = opened(tmp_path), [10**6], segments_module._write_all

    def write_what_fits(file: Any, data: memoryview) -> None:
        fits, room[0] = data[: room[0]], max(0, room[0] - len(data))
        write(file, fits)
        if len(fits) < len(data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(segments_module, "_write_all", write_what_fits)
    store.append(keys[:2], vectors[:2])
    room[0] = place
    with pytest.raises(RunError, match="No space left on device"):
        store.append(keys[2:4], vectors[2:4])
    if freed:
        room[0] = 10**6
        store.append(keys[4:], vectors[4:])
    store.close()
    for seen in (store, opened(tmp_path)):
        held = np.array([True, True, False, False, freed, freed])
        np.testing.assert_array_equal(seen.find(keys) >= 0, held)
        np.testing.assert_array_equal(bits(seen.vectors(seen.find(keys[held]))), bits(vectors[held]))
        assert seen.damaged == []


def test_an_index_that_does_not_fit_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, vectors, store = some_keys(2), made(2, 3, "float32"), opened(tmp_path)
    store.append(keys, vectors)

    def refuse(path: Path, segment: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segments_module, "_write_index", refuse)
        with pytest.raises(RunError, match="No space left on device"):
            store.close()
    for seen in (store, opened(tmp_path)):
        np.testing.assert_array_equal(bits(seen.vectors(seen.find(keys))), bits(vectors))
    assert not any(alive(path) for path in store.folder.glob("*.rows"))


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is then dead after a day without an append."""

    class NoLocks:
        LOCK_EX, LOCK_SH, LOCK_NB = 2, 1, 4

        @staticmethod
        def flock(file: Any, how: int) -> None:
            raise OSError(95, "Operation not supported")

    path, _ = torn_store(tmp_path / "first", 2)
    for number, locks in enumerate((NoLocks, None)):
        folder = shutil.copytree(tmp_path / "first", tmp_path / str(number))
        (path,) = folder.rglob("*.rows")
        with monkeypatch.context() as patch:
            patch.setattr(locks_module, "fcntl", locks)
            assert len(opened(folder)) == 4
            assert not path.with_suffix(".index").exists()
            os.utime(path, (time.time() - 90_000,) * 2)
            assert len(opened(folder)) == 4
            assert path.with_suffix(".index").exists()
            keys = some_keys(1, 77)
            store = opened(folder)
            store.append(keys, made(1, 3, "float32"))
            store.close()
            assert store.find(keys)[0] == 4


def test_widened_vectors_are_what_was_rounded(tmp_path: Path) -> None:
    """bfloat16 comes back as the numbers that its bits mean."""
    exact = np.array([[1, -2.5, 0.15625], [3e38, 1e-38, -0.0078125]], np.float32)
    store = filled(tmp_path, some_keys(2), BFloat16(bfloat16_bits(exact)), [2])
    table, rows = store.vectors(store.find(some_keys(2)))
    np.testing.assert_allclose(widen(table.bits[rows]), exact, rtol=2**-8)
    np.testing.assert_array_equal(widen(table.bits[rows])[0], exact[0])


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"

    def fail_in_the_middle() -> None:
        with whole_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail_in_the_middle()
    assert not list(path.parent.iterdir())
    write_whole(path, "one")
    with pytest.raises(RuntimeError, match="stopped"):
        fail_in_the_middle()
    assert path.read_text() == "one"
    write_whole(path, b"two")
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert path.read_text() == "two"
