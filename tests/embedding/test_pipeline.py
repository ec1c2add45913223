"""From planned items to stored vectors: what a model must not give, what it may say, and what happens when memory runs out."""

from __future__ import annotations

import io
import json
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from models_of_form import Letters
from PIL import Image

import omnirecall
from omnirecall.embedding import pipeline
from omnirecall.embedding.engines.local import local
from omnirecall.embedding.pipeline import Embedded, Sizes, embed, encoded, joined, picked
from omnirecall.embedding.plan import Plan
from omnirecall.embedding.ranked import bfloat16_bits
from omnirecall.embedding.store import Store
from omnirecall.errors import RunError, UserError
from omnirecall.evaluation import evaluate
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Encoded
from omnirecall.protocol.items import Item
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.ranking import BFloat16, Ragged
from omnirecall.ranking.inputs import widen


class Giving(Letters):
    """A model whose ``give`` has the last word on what it gives for the items."""

    def __init__(self, give: Callable[[np.ndarray, list[str]], Any], **choices: Any) -> None:
        super().__init__(**choices)
        self.give = give

    def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
        return self.give(super().encode(items, role=role), [item.id for item in items])


def run(model: Letters, folder: Path, texts: Sequence[str] = "abcdef", batch: int = 2) -> tuple[Embedded, Store]:
    """Embed texts, whose ids are i0, i1 and so on."""
    plan = Plan(model, batch)
    plan.add([Item(f"i{row}", text=text) for row, text in enumerate(texts)], "query", "", MediaPolicy(), "none")
    store = Store(folder, model.fingerprint, model.dimension, model.name)
    return embed(plan.distinct(), store, local), store


def one_changed(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(vectors: np.ndarray) -> np.ndarray:
        vectors[1, 2] = value
        return vectors

    return change


def two_tokens(vectors: np.ndarray) -> np.ndarray:
    return np.repeat(vectors, 2, axis=0)


WRONG: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "a row too few": (lambda v: v[1:], r"shape \(1, 4\) for 2 items beginning with i2; \(2, 4\)"),
    "a row too many": (lambda v: np.concatenate([v, v[:1]]), r"shape \(3, 4\)"),
    "no rows": (lambda v: v[:0], r"shape \(0, 4\)"),
    "another dimension": (lambda v: v[:, :3], r"shape \(2, 3\)"),
    "one axis": (lambda v: v[0], r"shape \(4,\)"),
    "three axes": (lambda v: v[None], r"shape \(1, 2, 4\)"),
    "NaN": (one_changed(np.nan), "item i3 is NaN"),
    "infinite": (one_changed(np.inf), "item i3 is infinite"),
    "minus infinite": (one_changed(-np.inf), "item i3 is infinite"),
    "zero": (lambda v: v * [[1], [0]], "item i3 is zero"),
    "too large for float32": (lambda v: v.astype("f8") * [[1], [1e300]], "item i3 is infinite"),
    "infinite in float16": (lambda v: np.where([[False], [True]], np.inf, v / 1e5).astype("f2"), "item i3 is infinite"),
    "NaN in bfloat16": (lambda v: BFloat16(bfloat16_bits(v) | np.array([[0], [0x7FFF]], "u2")), "item i3 is NaN"),
    "zero in bfloat16": (lambda v: BFloat16(bfloat16_bits(v) * np.array([[1], [0]], "u2")), "item i3 is zero"),
    "whole numbers": (lambda v: v.astype(int), "gave int64 vectors for item i2"),
    "truth": (lambda v: v > 0, "gave bool vectors"),
    "words": (lambda v: v.astype(str), "gave <U"),
    "objects": (lambda v: v.astype(object), "gave object vectors"),
    "complex numbers": (lambda v: v.astype(complex), "gave complex128 vectors"),
    "nothing": (lambda v: None, "gave object vectors"),
    "lists of several lengths": (lambda v: [[1.0], [1.0, 2.0]], "gave list for item i2, which is no matrix"),
    "lists of vectors": (lambda v: Ragged(two_tokens(v), np.array([0, 2, 4])), "gave Ragged.*one vector an item"),
    "too few lengths of texts": (lambda v: Encoded(v, tokens_cut=[1]), "tokens_cut of 1 and frame_tokens of 2 for 2"),
    "too many frames": (
        lambda v: Encoded(v, frame_tokens=[1, 2, 3]),
        "frame_tokens of 3 for 2 items beginning with i2",
    ),
    "NaN beside notes": (lambda v: Encoded(one_changed(np.nan)(v), [1, 2], [3, 4]), "item i3 is NaN"),
}
OFFSETS = {
    "too few": [0, 4],
    "too many": [0, 1, 2, 4],
    "an item without a vector": [0, 0, 4],
    "not from 0": [1, 2, 4],
    "falling": [0, 5, 4],
    "fractions": [0.0, 2.0, 4.0],
    "two axes": [[0, 2, 4]],
    "one number": 4,
    "falling without a sign": np.array([0, 5, 4], np.uint8),
}
WRONG_LISTS: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    **{
        what: (
            lambda v, offsets=offsets: Ragged(two_tokens(v), np.array(offsets)),
            "gave offsets .* 2 items beginning with i2",
        )
        for what, offsets in OFFSETS.items()
    },
    "more vectors than offsets": (lambda v: Ragged(two_tokens(v), np.array([0, 1, 3])), r"shape \(4, 4\).*\(3, 4\)"),
    "fewer vectors than offsets": (lambda v: Ragged(v, np.array([0, 1, 10**12])), r"shape \(2, 4\)"),
    "one vector an item": (lambda v: v, "gave ndarray for 2 items beginning with i2; Ragged"),
    "NaN in a token": (
        lambda v: Ragged(np.concatenate([v, [[1, np.nan, 1, 1]]], dtype="f4"), np.array([0, 1, 3])),
        "item i3 is NaN",
    ),
    "zero in a first token": (
        lambda v: Ragged(two_tokens(v) * [[1], [1], [0], [1]], np.array([0, 2, 4])),
        "item i3 is zero",
    ),
    "infinite in a last token": (
        lambda v: Ragged(two_tokens(v) * [[1], [np.inf], [1], [1]], np.array([0, 2, 4])),
        "item i2 is infinite",
    ),
    "another dimension": (lambda v: Ragged(two_tokens(v)[:, 1:], np.array([0, 2, 4])), r"shape \(4, 3\)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_model_must_not_give(what: str, tmp_path: Path) -> None:
    """UserError names the model and the item or batch; what was done before is stored, and the next run goes on from there."""
    change, says = WRONG[what]
    model = Giving(lambda vectors, ids: change(vectors) if "i2" in ids else vectors)
    with pytest.raises(UserError, match=f"^model letters: .*{says}"):
        run(model, tmp_path)
    assert model.seen == [["i0", "i1"], ["i2", "i3"]]
    assert len(list(tmp_path.rglob("*.index"))) == 1  # its segment is closed
    after, store = run(Letters(), tmp_path)
    assert (after.now, len(store)) == (4, 6)


@pytest.mark.parametrize("what", WRONG_LISTS)
def test_what_a_model_of_late_interaction_must_not_give(what: str, tmp_path: Path) -> None:
    change, says = WRONG_LISTS[what]

    def give(vectors: np.ndarray, ids: list[str]) -> Any:
        return change(vectors) if "i2" in ids else Ragged(two_tokens(vectors), np.array([0, 2, 4]))

    with pytest.raises(UserError, match=f"^model letters: .*{says}"):
        run(Giving(give, late_interaction=True), tmp_path)
    after, store = run(Giving(lambda v, ids: Ragged(v, np.array([0, 1, 2])), late_interaction=True), tmp_path)
    assert (after.now, len(store)) == (4, 6)


RIGHT: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "float32": (lambda v: v, "float32"),
    "float64": (lambda v: v.astype("f8"), "float32"),
    "float16": (lambda v: (v / 1e5).astype("f2"), "float16"),
    "of another byte order": (lambda v: v.astype(">f4"), "float32"),
    "in columns": (np.asfortranarray, "float32"),
    "lists": (lambda v: v.tolist(), "float32"),
    "bfloat16": (lambda v: BFloat16(bfloat16_bits(v)), "bfloat16"),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_a_model_may_give(what: str, tmp_path: Path) -> None:
    """It is stored in its own dtype, float64 as float32."""
    change, kind = RIGHT[what]
    _, store = run(Giving(lambda vectors, ids: change(vectors)), tmp_path)
    table, rows = store.vectors(np.arange(6))
    assert ("bfloat16" if isinstance(table, BFloat16) else table.dtype.name) == kind
    got = widen((table.bits if isinstance(table, BFloat16) else table)[rows])
    given = change(np.stack([Letters().one(DecodedItem("", text=text), "query") for text in "abcdef"]))
    expected = widen(given.bits) if isinstance(given, BFloat16) else np.asarray(given, np.float32)
    np.testing.assert_array_equal(got, expected)


def test_tensors(tmp_path: Path) -> None:
    """Torch's own are taken where numpy knows them, and refused in a sentence where it does not."""
    torch = pytest.importorskip("torch")
    _, store = run(Giving(lambda vectors, ids: torch.from_numpy(vectors)), tmp_path / "0")
    table, rows = store.vectors(np.arange(6))
    np.testing.assert_array_equal(table[rows][0], Letters().one(DecodedItem("", text="a"), "query"))
    for number, change in enumerate((lambda t: t.bfloat16(), lambda t: t.requires_grad_(), lambda t: t.to("meta")), 1):
        with pytest.raises(UserError, match=r"gave Tensor for item i0, which is no matrix"):
            run(Giving(lambda vectors, ids, change=change: change(torch.from_numpy(vectors))), tmp_path / str(number))


class Small(Letters):
    """A model whose memory holds so many items at once; ``fails`` makes the error."""

    def __init__(self, holds: int, fails: Callable[[], BaseException] = MemoryError, **choices: Any) -> None:
        super().__init__(**choices)
        self.holds, self.fails = holds, fails

    def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
        given = super().encode(items, role=role)
        if len(items) > self.holds and items[0].text != "any number":
            raise self.fails()
        return self.shaped(given)

    def shaped(self, given: np.ndarray) -> Any:
        if not self.late_interaction:
            return given
        counts = given[:, 0].astype(int) % 3 + 1
        return Ragged(BFloat16(bfloat16_bits(np.repeat(given, counts, axis=0))), np.cumsum([0, *counts]))


def out_of_memory_of_torch() -> BaseException:
    torch = pytest.importorskip("torch")
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    "fails",
    [
        MemoryError,
        lambda: RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"),
        out_of_memory_of_torch,
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_out_of_memory_halves_the_batch(fails: Callable[[], BaseException], late: bool, tmp_path: Path) -> None:
    """And those of its kind that follow, for this run; every vector is that of its item, in its place."""
    texts = [f"{row:02d}" for row in range(20)]
    model = Small(3, fails, late_interaction=late)
    done, store = run(model, tmp_path / "small", texts, 10)
    assert [len(ids) for ids in model.seen] == [10, 5, 3, 3, 3, 1, 3, 3, 3, 1]
    assert done.splits == (
        "memory ran out at 10 text items; done 5 at a time",
        "memory ran out at 5 text items; done 3 at a time",
    )
    roomy, other = run(Small(99, late_interaction=late), tmp_path / "roomy", texts, 10)
    assert roomy.splits == ()
    got, expected = (one.vectors(np.arange(20)) for one in (store, other))
    if late:
        np.testing.assert_array_equal(got.offsets, expected.offsets)
        assert len(set(np.diff(got.offsets))) > 1
        (got, rows), (expected, other_rows) = got.values, expected.values
        np.testing.assert_array_equal(got.bits[rows], expected.bits[other_rows])
    else:
        np.testing.assert_array_equal(got[0][got[1]], expected[0][expected[1]])


def test_one_kind_that_is_too_large_leaves_the_others_alone() -> None:
    model, sizes = Small(2), Sizes()
    picture = Image.new("RGB", (2, 2))
    pictures = [DecodedItem(f"p{row}", image=picture) for row in range(4)]
    texts = [DecodedItem(f"t{row}", text="any number") for row in range(9)]
    for items in (pictures, texts, pictures[:1], pictures):
        encoded(model, items, "query", sizes)
    assert [len(ids) for ids in model.seen] == [4, 2, 2, 9, 1, 2, 2]
    assert sizes.most == {frozenset({"image"}): 2}


def test_one_item_that_is_too_large_ends_the_run(tmp_path: Path) -> None:
    """What fits is stored first."""

    class Picky(Letters):
        def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
            if any(item.id == "i3" for item in items):
                raise RuntimeError("CUDA out of memory")
            return super().encode(items, role=role)

    with pytest.raises(RunError, match=r"^model letters: one item, i3, is more than its memory holds$"):
        run(Picky(), tmp_path)
    after, _ = run(Letters(), tmp_path)
    assert after.now == 4


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes cannot be multiplied"), ValueError("out of memory"), KeyError("x")]
)
def test_other_errors_pass(error: Exception, tmp_path: Path) -> None:
    """Nothing is tried again, and what was done is stored."""
    model = Giving(lambda vectors, ids: vectors if "i0" in ids else (_ for _ in ()).throw(error))
    with pytest.raises(type(error)) as raised:
        run(model, tmp_path)
    assert raised.value is error
    assert model.seen == [["i0", "i1"], ["i2", "i3"]]
    assert run(Letters(), tmp_path)[0].now == 4


def test_memory_is_freed_once_nothing_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error holds on to what the model had made; it is gone when the device's memory is given back."""

    class Activations:
        pass

    class Full(Letters):
        def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
            made = Activations()
            if len(items) > 1:
                held.append(weakref.ref(made))
                raise RuntimeError("CUDA out of memory")
            return super().encode(items, role=role)

    held: list[weakref.ref[Activations]] = []
    freed: list[bool] = []
    monkeypatch.setattr(pipeline, "_free_memory", lambda: freed.append(held[-1]() is None))
    encoded(Full(), [DecodedItem(text, text=text) for text in "abcd"], "query", Sizes())
    assert freed == [True, True]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "lists"])
def test_chosen_rows_and_joined_parts(kind: str) -> None:
    """Against plain indexing."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((9, 3)).astype(np.float32)
    matrix = BFloat16(bfloat16_bits(values)) if kind == "bfloat16" else values
    if kind == "lists":
        vectors, rows = Ragged(matrix, np.array([0, 2, 3, 7, 9])), np.array([3, 0, 2])
        got = picked(vectors, rows)
        np.testing.assert_array_equal(got.offsets, [0, 2, 4, 8])
        np.testing.assert_array_equal(got.values, values[[7, 8, 0, 1, 3, 4, 5, 6]])
        whole = joined([got, vectors])
        np.testing.assert_array_equal(whole.offsets, [0, 2, 4, 8, 10, 11, 15, 17])
        np.testing.assert_array_equal(whole.values, np.concatenate([got.values, values]))
    else:
        rows = np.array([5, 1])
        got = joined([picked(matrix, rows), matrix])
        bits = got.bits if isinstance(got, BFloat16) else got
        plain = matrix.bits if isinstance(matrix, BFloat16) else matrix
        np.testing.assert_array_equal(bits, np.concatenate([plain[rows], plain]))


def test_a_stored_vector_stays_whatever_is_embedded_beside_it_later(tmp_path: Path) -> None:
    """A model's vectors may depend on the batch in their last bits, as padding makes them."""

    class Padded(Letters):
        def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
            return super().encode(items, role=role) + np.float32(0.001 * len(items))

    _, store = run(Padded(), tmp_path, ["a", "bb"], 2)
    table, rows = store.vectors(np.arange(2))
    before = table[rows].copy()
    for extra in (["ccc"], ["ccc", "dddd"], ["eeeee"]):  # other batches around the same items
        again, store = run(Padded(), tmp_path, ["a", "bb", *extra], 10)
        assert again.now == 2 + len(extra)
        assert len(store) == len(
            {*store.find(Plan(Padded()).add(TEXTS, "query", "", MediaPolicy(), "none")).tolist()} - {-1}
        )
        keys = Plan(Padded()).add([Item("", text="a"), Item("", text="bb")], "query", "", MediaPolicy(), "none")
        for seen in (store, Store(tmp_path, "letters-1", 4, "letters")):
            table, rows = seen.vectors(seen.find(keys))
            np.testing.assert_array_equal(table[rows], before)


TEXTS = [Item("", text=text) for text in ("a", "bb", "ccc", "dddd", "eeeee", "not there")]


def test_progress_counts_items(tmp_path: Path) -> None:
    """What is stored is done at once; then batch after batch."""
    model, steps = Letters(), []
    run(model, tmp_path, "abc", 1)
    plan = Plan(model, 2)
    plan.add([Item(text, text=text) for text in "abcdefg"], "query", "", MediaPolicy(), "none")
    done = embed(plan.distinct(), Store(tmp_path, "letters-1", 4, "letters"), local, steps.append)
    assert steps == [2, 2, 2, 1]
    assert (done.now, done.planned) == (5, 7)
    assert done.seconds >= done.waited >= 0


def cosine_ranks(vectors: Mapping[str, Any], queries: Sequence[str], candidates: Sequence[str], positives: Any) -> Any:
    return omnirecall.rank(
        *(np.stack([vectors[name] for name in names]) for names in (queries, candidates)), positives, top_k=3
    )


def read(run: Any, task: str = "mine") -> list[dict[str, Any]]:
    return pq.read_table(Path(run.folder) / "tasks" / f"{task}.parquet").to_pylist()


def as_ranked_by_hand(run: Any, ranks: Any, candidates: Sequence[str]) -> None:
    """A run's ranks of two queries with one relevant candidate each are those of `rank`."""
    rows = read(run)
    for name in ("greater", "tied"):
        assert [row[name][0] for row in rows] == getattr(ranks, name).tolist()
    assert [row["positive_scores"][0] for row in rows] == ranks.scores.tolist()
    assert [row["top_ids"] for row in rows] == [[candidates[place] for place in top] for top in ranks.top_ids.tolist()]
    assert [row["top_scores"] for row in rows] == ranks.top_scores.tolist()


NO_ENCODE = {"encode": lambda self, items, *, role: pytest.fail("embedded again")}


def never(model: Letters) -> Letters:
    """The same model, were it asked for a vector again."""
    fields = {name: value for name, value in vars(model).items() if name in Letters.__dataclass_fields__}
    return type("Never", (Letters,), NO_ENCODE)(**fields)  # type: ignore[no-any-return]


class Telling(Letters):
    """A model that takes two letters of a text, and so many tokens for a picture as it is wide."""

    def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
        cut = [max(0, len(item.text or "") - 2) for item in items]
        frames = [item.image.width if item.image is not None else 0 for item in items]
        return Encoded(super().encode(items, role=role), cut, frames)


@pytest.fixture
def pictures(tmp_path: Path, own_data: Callable) -> Path:
    """Two queries of text, and candidates of text and of pictures 5 and 9 pixels wide."""
    candidates = [
        {"id": "c1", "text": "uno"},
        {"id": "c2", "image": "5.png"},
        {"id": "c3", "image": "9.png"},
        {"id": "c4", "text": "a"},
    ]
    queries = [{"id": "q1", "text": "ab"}, {"id": "q2", "text": "longer"}]
    folder = own_data(tmp_path / "data", queries, candidates, [("q1", "c1", 1), ("q2", "c3", 1)])
    for width in (5, 9):
        out = io.BytesIO()
        Image.new("RGB", (width, 3), (width, 2, 3)).save(out, "PNG")
        (folder / f"{width}.png").write_bytes(out.getvalue())
    return folder


def test_what_a_model_says_of_its_vectors_is_in_the_record(pictures: Path, tmp_path: Path) -> None:
    """Texts cut, by role, and the most tokens of a picture; the same from the store. Above the card's bound: a deviation."""
    toml = (pictures / "task.toml").read_text()
    for bound, above in ((8, True), (9, False), (0, False)):
        (pictures / "task.toml").write_text(f"{toml}[media]\nmax_tokens = {bound}\n")
        first = evaluate(Telling(), pictures, out=tmp_path / "runs")
        warm = evaluate(never(Telling()), pictures, out=tmp_path / "runs")
        for run_ in (first, warm):
            record = run_.tasks["mine"]
            assert record.cut == {"queries": 1, "candidates": 1}
            assert record.frame_tokens == 9
            deviations = [line for line in run_.deviations if "visual tokens" in line]
            assert bool(deviations) == above
            assert all("up to 9 visual tokens" in line and "mine" in line for line in deviations)
            assert any("cut" in note and "1 queries" in note and "1 candidates" in note for note in run_.notes)
            kept = json.loads((Path(run_.folder) / "run.json").read_text())
            assert kept["tasks"]["mine"]["frame_tokens"] == 9
            assert kept["deviations"] == list(run_.deviations)
    (pictures / "task.toml").write_text(toml)
    plain = evaluate(Letters(fingerprint="silent"), pictures, out=tmp_path / "runs")
    assert (plain.tasks["mine"].cut, plain.tasks["mine"].frame_tokens, plain.notes) == ({}, 0, ())


def test_a_split_is_in_the_record(pictures: Path, tmp_path: Path) -> None:
    run_ = evaluate(Small(2), pictures, out=tmp_path / "runs")
    (note,) = run_.notes
    assert note == "memory ran out at 4 text items; done 2 at a time"
    assert json.loads((Path(run_.folder) / "run.json").read_text())["notes"] == [note]
    assert run_.tasks == evaluate(Letters(), pictures, out=tmp_path / "other").tasks


class Late(Letters):
    """As many vectors as an item has letters, in bfloat16; a picture has three."""

    def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
        lists = [self.tokens(item) for item in items]
        return Ragged(BFloat16(bfloat16_bits(np.concatenate(lists))), np.cumsum([0, *map(len, lists)]))

    def tokens(self, item: DecodedItem) -> np.ndarray:
        """The vectors of an item, (tokens, dimension)."""
        return (
            np.stack([self.one(DecodedItem("", text=word), "query") for word in item.text or f"{item.image!r:.3}"])
            - 3e4
        )


@pytest.mark.parametrize("dim", [None, 2])
@pytest.mark.parametrize("batch", [None, 1])
def test_late_interaction(dim: int | None, batch: int | None, pictures: Path, tmp_path: Path) -> None:
    """A run ranks as `rank` does with lists of vectors made by hand, cold, warm, and with a store that another run began."""
    model = Late(late_interaction=True)
    by_hand = {}
    for name in ("queries", "candidates"):
        for line in (pictures / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            image = Image.new("RGB", (9, 3)) if "image" in row else None
            by_hand[row["id"]] = model.tokens(DecodedItem("", text=row.get("text"), image=image))
    sides = []
    for names in (["q1", "q2"], ["c1", "c2", "c3", "c4"]):
        values = bfloat16_bits(np.concatenate([by_hand[name] for name in names]))[:, :dim]
        sides.append(Ragged(BFloat16(values), np.cumsum([0, *(len(by_hand[name]) for name in names)])))
    ranks = omnirecall.rank(*sides, [[0], [2]], top_k=4)
    options: dict[str, Any] = {"out": tmp_path / "runs", "dim": dim, "batch": batch}
    evaluate(model, pictures, **{**options, "limit": 1})
    runs = [evaluate(model, pictures, **options), evaluate(never(model), pictures, **options)]
    runs.append(evaluate(model, pictures, **{**options, "out": tmp_path / "cold"}))
    assert [run_.embedded["now"] for run_ in runs][1:] == [0, 6]
    for run_ in runs:
        as_ranked_by_hand(run_, ranks, ["c1", "c2", "c3", "c4"])


def test_a_model_of_vectors_by_id_is_asked_by_id(tmp_path: Path, own_data: Callable) -> None:
    """Nothing is decoded, so that media may even be damaged."""
    candidates = [{"id": f"c{row}", "image": "no.png", "text": "t"} for row in range(3)]
    folder = own_data(tmp_path / "data", candidates=candidates)
    (folder / "no.png").write_bytes(b"no picture")
    given: list[DecodedItem] = []
    rng = np.random.default_rng(0)
    vectors = {
        (role, f"{role[0]}{row}"): rng.standard_normal(4).astype("f4")
        for role in ("query", "candidate")
        for row in range(3)
    }

    class ById(Letters):
        def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
            given.extend(items)
            self.roles.append(role)
            return np.stack([vectors[role, item.id] for item in items])

    own_data(folder, candidates=candidates, qrels=[("q1", "c1", 1), ("q2", "c2", 1)])
    model = ById(by_id=True, symmetric=False)
    run_ = evaluate(model, folder, out=tmp_path / "runs")
    assert sorted(item.id for item in given) == ["c0", "c1", "c2", "q1", "q2"]
    assert {(item.text, item.image, item.task, item.instruction) for item in given} == {("", None, "mine", "")}
    assert sorted(model.roles) == ["candidate", "query"]
    sides = [
        np.stack([vectors[key] for key in vectors if key[1] in names]) for names in (("q1", "q2"), ("c0", "c1", "c2"))
    ]
    as_ranked_by_hand(run_, omnirecall.rank(*sides, [[1], [2]], top_k=3), ["c0", "c1", "c2"])
    assert evaluate(never(model), folder, out=tmp_path / "runs").tasks == run_.tasks


@pytest.mark.parametrize("late", [False, True])
def test_vectors_computed_elsewhere(late: bool, tmp_path: Path, own_data: Callable) -> None:
    """``vectors:`` in a whole run ranks as `rank` does with the same arrays; equal texts keep their own vectors."""
    candidates = [{"id": "c1", "text": "same"}, {"id": "c2", "text": "same"}, {"id": "c3", "text": "tre"}]
    folder = own_data(tmp_path / "data", [{"id": "q1", "text": "same"}, {"id": "q2", "text": "same"}], candidates)
    rng, sides = np.random.default_rng(1), []
    (tmp_path / "vectors" / "mine").mkdir(parents=True)
    for stem, ids in (("queries", ["q2", "q1"]), ("candidates", ["c3", "c1", "unused", "c2"])):
        counts = rng.integers(1, 4, len(ids)) if late else np.ones(len(ids), int)
        values, offsets = rng.standard_normal((counts.sum(), 5)).astype(np.float16), np.cumsum([0, *counts])
        more = {"offsets": offsets} if late else {}
        np.savez(tmp_path / "vectors" / "mine" / f"{stem}.npz", ids=np.array(ids), vectors=values, **more)
        order = [ids.index(name) for name in sorted(ids) if name != "unused"]
        vectors = Ragged(values, offsets)
        sides.append(picked(vectors, np.array(order)) if late else values[order])
    ranks = omnirecall.rank(*sides, [[0], [1]], top_k=3)
    for _ in range(2):
        run_ = evaluate(f"vectors:{tmp_path / 'vectors'}", folder, out=tmp_path / "runs")
        as_ranked_by_hand(run_, ranks, ["c1", "c2", "c3"])
    assert (run_.embedded["now"], run_.embedded["planned"]) == (0, 5)
    assert not math.isclose(*(row["positive_scores"][0] for row in read(run_)))
