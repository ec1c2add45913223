"""What a run embeds: each distinct content once, in batches that are a function of the plan."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models_of_form import Letters, as_bytes

from omnirecall.embedding.engines.local import local
from omnirecall.embedding.pipeline import embed
from omnirecall.embedding.plan import BATCH_SIZES, Contents, Distinct, Plan
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem
from omnirecall.protocol.items import Item, Packed
from omnirecall.protocol.suites import MediaPolicy

POLICY = MediaPolicy()


def texts(*lines: str) -> list[Item]:
    return [Item(f"i{row}", text=line) for row, line in enumerate(lines)]


def key(
    item: Item,
    model: Letters | None = None,
    role: Any = "query",
    instruction: str = "",
    media: MediaPolicy = POLICY,
    prompt: str = "model",
    task: str = "",
) -> bytes:
    return as_bytes(Plan(model or Letters()).add([item], role, instruction, media, prompt, task))[0]


def batches_of(distinct: Distinct) -> list[list[str]]:
    """The texts of each batch."""
    return [[job.item.text or "" for job in distinct.jobs(batch)] for batch in distinct.batches]


def test_each_content_is_planned_once(tmp_path: Path) -> None:
    """By its bytes, wherever they lie: files, cells of tables, bytes; across tasks, and roles where they change nothing."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"same")
    pq.write_table(pa.table({"pixels": [b"other", b"same"]}), tmp_path / "cells.parquet")
    items = [
        Item("1", text="x"),
        Item("2", text="x"),
        Item("3", image=tmp_path / "a"),
        Item("4", image=tmp_path / "b"),
        Item("5", image=b"same"),
        Item("6", audio=b"same"),
        Item("7", text="x", image=b"same"),
        Item("8", image=Packed.at(tmp_path / "cells.parquet", 1, "pixels")),
        Item("9", image=Packed.at(tmp_path / "cells.parquet", 0, "pixels")),
    ]
    for symmetric, count in ((True, 5), (False, 10)):
        plan = Plan(Letters(symmetric=symmetric))
        keys = [
            as_bytes(plan.add(items, role, "", POLICY, "none", task))
            for task in "st"
            for role in ("query", "candidate")
        ]
        assert [keys[0].index(one) for one in keys[0]] == [0, 0, 2, 2, 2, 5, 6, 2, 8]
        assert keys[0] == keys[2]
        assert keys[1] == keys[3]
        assert (keys[0] == keys[1]) == symmetric
        distinct = plan.distinct()
        assert len(distinct) == len({*as_bytes(distinct.keys)}) == count
        jobs = list(distinct.jobs(range(len(distinct))))
        assert {job.planned.id for job in jobs} == {"1", "3", "6", "7", "9"}  # the first of each
        assert {job.role for job in jobs} == ({"query"} if symmetric else {"query", "candidate"})


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    reads = []
    monkeypatch.setattr("omnirecall.embedding.plan.file_digest", lambda path: reads.append(path) or "00" * 16)
    plan = Plan(Letters())
    for role in ("query", "candidate"):
        plan.add([Item(str(n), image=tmp_path / "a") for n in range(3)], role, "", POLICY, "none")  # type: ignore[arg-type]
    assert reads == [tmp_path / "a"]


def test_a_folder_of_frames_is_its_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for frame in "ab":
            (tmp_path / name / frame).write_bytes(frame.encode())
    one, two = (Item("v", video=tmp_path / name) for name in ("one", "two"))
    assert key(one) == key(two)
    (tmp_path / "two" / "b").rename(tmp_path / "two" / "c")
    renamed = key(two)
    (tmp_path / "two" / "c").write_bytes(b"c")
    assert len({key(one), renamed, key(two)}) == 3


def test_what_changes_after_it_was_planned_is_refused(tmp_path: Path) -> None:
    (tmp_path / "film").mkdir()
    for name in ("a", "b", "film/1", "film/2"):
        (tmp_path / name).write_bytes(name.encode())
    items = [
        Item("1", text="words"),
        Item("2", image=tmp_path / "a"),
        Item("3", text="words", image=tmp_path / "b"),
        Item("4", video=tmp_path / "film"),
        Item("5", image=b"in memory"),
    ]
    model = Letters(symmetric=False)
    plan = Plan(model)
    plan.add(items, "candidate", "find", POLICY, "model", "task")
    distinct = plan.distinct()
    jobs = {job.planned.id: job for job in distinct.jobs(range(len(distinct)))}
    for job in jobs.values():
        job.refuse_changed(model)
    for name, number in (("b", "3"), ("film/2", "4")):
        (tmp_path / name).write_bytes(b"other")
        with pytest.raises(
            UserError, match=rf"^item {number}: \w+ .*{name[:4]} changed while it was read; start again$"
        ):
            jobs.pop(number).refuse_changed(model)
        for job in jobs.values():
            job.refuse_changed(model)


def test_no_part_runs_into_the_next() -> None:
    """A text that holds the bytes of what follows it is another content."""
    pictures = (str(number).encode() for number in itertools.count())
    picture, digest = next((one, digest) for one in pictures if (digest := as_text(Contents()._medium(one))))
    crafted = [f"a{gap}image{digest}{gap}" for gap in ("", "\0\0")]
    contents = {Contents().digest(item) for item in (*texts(*crafted), Item("", text="a", image=picture))}
    assert len(contents) == 3
    parts = [
        Item("1", text="ab"),
        Item("2", text="a"),
        Item("3", image=b"a"),
        Item("4", video=b"a"),
        Item("5", audio=b"a"),
    ]
    assert len({Contents().digest(item) for item in parts}) == 5


def as_text(digest: bytes) -> str:
    """A digest that happens to be a text, or ""."""
    try:
        return digest.decode()
    except UnicodeDecodeError:
        return ""


def test_what_a_key_depends_on() -> None:
    text, image = Item("t", text="x"), Item("i", image=b"i")
    video, audio = Item("v", video=b"v"), Item("a", audio=b"a")
    both = Item("b", text="x", image=b"i")
    lopsided = Letters(symmetric=False)
    alone = {
        "text": key(text),
        "its text": key(replace(text, text="y")),
        "instruction": key(text, instruction="find"),
        "own instruction": key(replace(text, instruction="seek"), instruction="find"),
        "a role that counts": key(text, lopsided),
        "the other role": key(text, lopsided, role="candidate"),
        "image": key(image),
        "video": key(video),
        "audio": key(audio),
        "both": key(both),
    }
    assert len(set(alone.values())) == len(alone)
    same = [
        key(replace(text, id="other", cluster="c")),
        key(text, role="candidate"),
        key(text, task="another"),
        key(text, instruction="find", prompt="none"),
        key(replace(text, instruction="seek"), prompt="none"),
        key(text, media=replaced(frames=3, audio_track=True)),
        key(text, Letters(sampling_rate=8000)),
    ]
    assert set(same) == {key(text)}
    assert key(replace(text, instruction=""), instruction="find") == key(text)  # a row that wants none
    assert key(replace(text, instruction="find")) == key(text, instruction="find")


def replaced(**fields: Any) -> MediaPolicy:
    return msgspec.structs.replace(POLICY, **fields)


def test_the_media_policy_counts_where_it_is_heard_or_seen() -> None:
    text, image = Item("t", text="x"), Item("i", image=b"i")
    video, audio = Item("v", video=b"v"), Item("a", audio=b"a")
    frames, track = replaced(frames=POLICY.frames + 1), replaced(audio_track=True)
    window = replaced(audio_window="random" if POLICY.audio_window != "random" else "start", audio_seconds=3.0)
    slow = Letters(sampling_rate=8000)
    assert key(video, media=frames) != key(video)
    assert key(video, media=track) != key(video)
    assert key(video, slow) == key(video)
    assert key(video, slow, media=track) != key(video, media=track)
    assert key(audio, media=frames) == key(audio)
    assert key(audio, media=track) == key(audio)
    assert key(audio, slow) != key(audio)
    assert key(audio, media=window) != key(audio)
    for item in (text, image):
        assert {key(item, model, media=media) for model in (slow, Letters()) for media in (frames, track, window)} == {
            key(item)
        }


def test_the_prompt_mode_words_the_item() -> None:
    """``card``: the literal assembly is the text; ``model``: the instruction stands apart; ``none``: there is none."""
    item = Item("q", text="dog", image=b"i", instruction="find", literal="<|image_1|> find dog")
    model = Letters(media_tokens={"image": "<img>"})
    assert len({key(item, model, prompt=prompt) for prompt in ("model", "card", "none")}) == 3
    assert key(item, model, prompt="card") == key(
        replace(item, text="<img> find dog", instruction=None), model, prompt="none"
    )
    assert key(item, model, prompt="card") != key(item, Letters(), prompt="card")
    plan = Plan(model)
    for prompt in ("model", "card", "none"):
        plan.add([item], "query", "task's", POLICY, prompt)
    jobs = [plan.distinct().job(row) for row in range(3)]
    assert {(job.planned.text, job.instruction) for job in jobs} == {
        ("dog", "find"),
        ("dog", ""),
        ("<img> find dog", ""),
    }


def test_models_of_vectors_by_id_are_asked_by_task_role_and_id() -> None:
    model = Letters(by_id=True, symmetric=False)
    item = Item("a", text="x", image=b"i")
    assert key(item, model, task="s") == key(Item("a", text="y"), model, task="s", instruction="find")
    others = {key(item, model, task="s"), key(item, model, task="t"), key(item, model, "candidate", task="s")}
    others.add(key(replace(item, id="b"), model, task="s"))
    assert len(others) == 4


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(st.text(max_size=5), max_size=40), batch=st.integers(1, 7), stored=st.sets(st.integers(0, 39)))
def test_batches_are_a_function_of_the_plan(
    lines: list[str], batch: int, stored: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Texts of like length together, each once; the same whatever is stored, and those that lack a vector are done whole."""
    model = Letters()
    plan = Plan(model, batch)
    keys = plan.add(texts(*lines), "query", "", POLICY, "none")
    distinct = plan.distinct()
    planned = batches_of(distinct)
    flat = [line for one in planned for line in one]
    assert sorted(flat) == sorted(set(lines))
    assert [len(line) for line in flat] == sorted(len(line) for line in flat)
    assert [len(one) for one in planned[:-1]] == [batch] * (len(planned) - 1)
    store = Store(tmp_path_factory.mktemp("store"), model.fingerprint, model.dimension, model.name)
    held = [row for row in sorted(stored) if row < len(distinct)]
    store.append(distinct.keys[held], np.full((len(held), 4), 9, np.float32))
    store.close()
    again = Plan(model, batch)
    again.add(texts(*lines), "query", "", POLICY, "none")
    assert batches_of(again.distinct()) == planned
    embedded = embed(again.distinct(), store, local)
    first = {item.text or "": item.id for item in reversed(texts(*lines))}
    todo = [one for one, rows in zip(planned, distinct.batches, strict=True) if set(rows) - set(held)]
    assert model.seen == [[first[line] for line in one] for one in todo]
    assert embedded.now == sum(len(one) for one in todo)
    table, rows = store.vectors(store.find(keys)) if lines else (np.zeros((0, 4)), np.zeros(0, int))
    matrix = table[rows]
    for row, line in enumerate(lines):
        place = flat.index(line)
        expected = np.full(4, 9) if place in held else model.one(DecodedItem("", text=line), "query")
        np.testing.assert_array_equal(matrix[row], expected)


def test_a_batch_has_one_set_of_modalities_and_one_role() -> None:
    model = Letters(symmetric=False)
    plan = Plan(model)
    picture = b"not decoded here"
    items = [
        Item(f"{n}", text=f"{n}" if n % 2 else None, image=picture + str(n).encode() if n % 3 else None)
        for n in range(1, 300)
    ]
    items = [item for item in items if item.modalities]
    for role in ("query", "candidate"):
        plan.add(items, role, "", POLICY, "none")  # type: ignore[arg-type]
    distinct = plan.distinct()
    seen = []
    for batch in distinct.batches:
        jobs = list(distinct.jobs(batch))
        ((role, parts),) = {(job.role, job.planned.modalities) for job in jobs}
        assert len(jobs) <= min(BATCH_SIZES[part] for part in parts)
        seen += [(role, job.planned.id) for job in jobs]
    assert sorted(seen) == sorted((role, item.id) for role in ("query", "candidate") for item in items)
    assert len(distinct.batches) == sum(
        -(-sum(item.modalities == parts for item in items) // min(BATCH_SIZES[part] for part in parts)) * 2
        for parts in {item.modalities for item in items}
    )


def test_an_item_is_asked_for_as_its_first_task_asks() -> None:
    """Equal keys mean equal vectors, so any task's job will do; media policies that count keep items apart."""
    plan = Plan(Letters())
    video = Item("v", video=b"v")
    keys = [
        plan.add([video], "query", "", media, "none", str(media.frames))
        for media in (POLICY, replaced(frames=3), POLICY)
    ]
    assert np.array_equal(keys[0], keys[2])
    assert not np.array_equal(keys[0], keys[1])
    assert sorted(job.media.frames for job in plan.distinct().jobs(range(2))) == sorted({3, POLICY.frames})


def test_lone_surrogates_are_bytes_like_others() -> None:
    odd = [key(Item("a", text="\ud800")), key(Item("a", text="\ud801")), key(Item("a", text="x"), instruction="\ud800")]
    assert len({*odd, key(Item("a", text="x"))}) == 4


def test_a_medium_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.png"):
        key(Item("a", image=tmp_path / "gone.png"))


def test_an_empty_plan(tmp_path: Path) -> None:
    plan = Plan(Letters())
    assert plan.add([], "query", "", POLICY, "none").shape == (0, 2)
    distinct = plan.distinct()
    assert (len(distinct), distinct.batches) == (0, [])
    assert embed(distinct, Store(tmp_path, "f", 4, "m"), local).now == 0
