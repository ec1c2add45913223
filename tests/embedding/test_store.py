"""The store gives back what was put in, whole or not at all, and a plan is the same whatever is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirecall.embedding.pipeline import embed
from omnirecall.embedding.plan import Plan
from omnirecall.embedding.store import KEY_BYTES, Store
from omnirecall.files import whole_file, write_whole
from omnirecall.media.types import DecodedItem
from omnirecall.protocol.items import Item
from omnirecall.protocol.suites import MediaPolicy


@dataclass
class Counting:
    """A model whose vectors depend on the batch in the last bits, as padding makes them."""

    name: str = "counting"
    fingerprint: str = "counting-1"
    dimension: int = 3
    symmetric: bool = True
    sampling_rate: int = 16000
    default_prompt: str = "none"
    notes: tuple[str, ...] = ()
    seen: list[list[str]] = field(default_factory=list)

    def supports(self, modalities: object) -> bool:
        return True

    def encode(self, items: list[DecodedItem], *, role: str) -> np.ndarray:
        self.seen.append([item.text or "" for item in items])
        return np.array([[len(item.text or ""), 1, 1e-6 * len(items)] for item in items], np.float32)


def planned(model: Counting, texts: list[str], batch: int) -> tuple[Plan, list[bytes]]:
    plan = Plan(model, batch)
    items = [Item(f"i{n}", text=text) for n, text in enumerate(texts)]
    return plan, plan.add(items, "query", "", MediaPolicy(), "none")


def opened(folder: Path, model: Counting) -> Store:
    return Store(folder, model.fingerprint, model.dimension, model.name)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=4),
    dimension=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_round_trip(sizes: list[int], dimension: int, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, rng = tmp_path_factory.mktemp("store"), np.random.default_rng(seed)
    store = Store(folder, "f", dimension, "m")
    keys: list[bytes] = []
    vectors = rng.standard_normal((sum(sizes), dimension)).astype(np.float32)
    for size in sizes:
        fresh = [rng.bytes(KEY_BYTES) for _ in range(size)]
        store.append(fresh, vectors[len(keys) : len(keys) + size])
        keys += fresh
    order = rng.permutation(len(keys)).tolist()
    for one in (store, Store(folder, "f", dimension, "m")):
        assert len(one) == len(keys)
        assert one.holds_all(keys)
        assert b"\0" * KEY_BYTES not in one
        assert np.array_equal(one.gather([keys[row] for row in order]), vectors[order])
    with pytest.raises(KeyError):
        store.gather([b"\0" * KEY_BYTES])


def test_another_fingerprint_sees_nothing(tmp_path: Path) -> None:
    Store(tmp_path, "a", 2, "m").append([b"k" * KEY_BYTES], np.ones((1, 2), np.float32))
    assert len(Store(tmp_path, "b", 2, "m")) == 0
    assert len(Store(tmp_path, "a", 3, "m")) == 0
    assert len(Store(tmp_path, "a", 2, "m")) == 1


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 10**6), data=st.binary(max_size=20))
def test_a_shard_of_other_bytes_is_damaged_not_fatal(
    cut: int, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    Store(folder, "f", 2, "m").append([b"k" * KEY_BYTES], np.ones((1, 2), np.float32))
    (path,) = folder.rglob("*.arrow")
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)] + data)
    store = Store(folder, "f", 2, "m")
    assert (store.damaged, len(store)) == ([path], 0)


def test_each_content_is_planned_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").write_bytes(b"same")
    plan = Plan(Counting())
    items = [
        Item("1", text="x"),
        Item("2", text="x"),
        Item("3", image=tmp_path / "a"),
        Item("4", image=tmp_path / "b"),
        Item("5", image=b"same"),
        Item("6", audio=b"same"),
        Item("7", text="x", image=b"same"),
    ]
    keys = plan.add(items, "query", "", MediaPolicy(), "none")
    assert [keys.index(key) for key in keys] == [0, 0, 2, 2, 2, 5, 6]
    assert len(plan.jobs) == 4


def test_what_a_key_depends_on() -> None:
    model = Counting()
    two_sided, other_rate = Counting(symmetric=False), Counting(sampling_rate=8000)
    text, video, audio = Item("t", text="x"), Item("v", video=b"v"), Item("a", audio=b"a")
    few = MediaPolicy(frames=4)

    def key(
        item: Item, of: Counting = model, role: str = "query", says: str = "", media: MediaPolicy | None = None
    ) -> bytes:
        return Plan(of).key(item, role, says, media or MediaPolicy())  # type: ignore[arg-type]

    assert key(text) == key(Item("other id", text="x")) == key(text, role="candidate") == key(text, media=few)
    assert key(text) != key(text, says="find")
    assert key(text) != key(Item("t", text="y"))
    assert key(text, two_sided) != key(text, two_sided, role="candidate")
    assert key(video) != key(video, media=few)
    assert key(audio) != key(audio, other_rate)
    assert key(text) == key(text, other_rate)


def test_batches_do_not_depend_on_what_is_stored(tmp_path: Path) -> None:
    texts = [f"{'x' * (n % 5)}{n}" for n in range(20)]
    plan, keys = planned(Counting(), texts, 4)
    batches = [[job.key for job in batch] for batch in plan.batches()]
    assert sorted(key for batch in batches for key in batch) == sorted(keys)
    assert [len(batch) for batch in batches] == [4] * 5
    store = opened(tmp_path, Counting())
    store.append([batches[1][2]], np.ones((1, 3), np.float32))
    model = Counting()
    again, _ = planned(model, texts, 4)
    assert [[job.key for job in batch] for batch in again.batches()] == batches
    assert embed(again, store).now == 20
    assert [len(batch) for batch in model.seen] == [4] * 5


def test_a_stored_vector_stays_whatever_is_embedded_beside_it_later(tmp_path: Path) -> None:
    model = Counting()
    small, keys = planned(model, ["a", "bb"], 2)
    embed(small, opened(tmp_path, model))
    before = opened(tmp_path, model).gather(keys)
    for extra in (["ccc"], ["ccc", "dddd"], ["eeeee"]):  # other batches around the same items
        plan, _ = planned(model, ["a", "bb", *extra], 10)
        store = opened(tmp_path, model)
        embed(plan, store)
        assert np.array_equal(store.gather(keys), before)
        assert np.array_equal(opened(tmp_path, model).gather(keys), before)


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
