"""`run --plan` and `store`: what would be embedded, what is stored, whether it is whole, what can go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnirecall.embedding.inventory import prunable, prune
from omnirecall.embedding.segments import SegmentHeader, Writer, alive
from omnirecall.locks import hold


@pytest.fixture
def folder(tmp_path: Path, own_data: Callable) -> Path:
    return own_data(tmp_path / "data")


def test_a_plan_embeds_and_writes_nothing(folder: Path, tmp_path: Path, command: Callable) -> None:
    out = tmp_path / "runs"
    plan = command("run", folder, "--model", "random:8", "--out", out, "--plan", "--json").json
    assert not out.exists()
    assert plan["items"] == sum(one["items"] for one in plan["tasks"])
    assert plan["missing"] == plan["distinct"] == sum(group["missing"] for group in plan["groups"])
    assert plan["vector_bytes"] == 4 * 8 * plan["missing"]
    assert plan["batches"] == sum(group["batches"] for group in plan["groups"])

    run = command("run", folder, "--model", "random:8", "--out", out, "--json").json
    assert run["embedded"]["now"] == plan["missing"]
    after = command("run", folder, "--model", "random:8", "--out", out, "--plan", "--json").json
    assert (after["missing"], after["batches"]) == (0, 0)
    assert {one["missing"] for one in after["tasks"]} == {0}


def test_items_that_two_roles_share_are_planned_once(tmp_path: Path, command: Callable, jsonl: Callable) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    jsonl(folder / "queries.jsonl", [{"id": "q1", "text": "one"}, {"id": "q2", "text": "two"}])
    jsonl(
        folder / "candidates.jsonl",
        [{"id": "c1", "text": "one"}, {"id": "c2", "text": "one"}, {"id": "c3", "text": "3"}],
    )
    (folder / "qrels.tsv").write_text("q1 0 c1 1\nq2 0 c3 1\n")
    (folder / "task.toml").write_text('name = "own"\n')
    plan = command("run", folder, "--model", "random:8", "--out", tmp_path / "runs", "--plan", "--json").json
    assert (plan["items"], plan["distinct"]) == (5, 3)
    assert [(one["items"], one["distinct"]) for one in plan["tasks"]] == [(2, 2), (3, 2)]
    text = command("run", folder, "--model", "random:8", "--out", tmp_path / "runs", "--plan").out
    assert "5 items, 3 distinct, 3 to embed in 1 batches" in text


def test_a_task_that_the_model_cannot_embed_is_named_in_the_plan(
    folder: Path, tmp_path: Path, model: Callable, command: Callable
) -> None:
    name = model("\n    def supports(self, modalities):\n        return modalities == {'audio'}\n")
    plan = command("run", folder, "--model", name, "--out", tmp_path / "runs", "--plan", "--json").json
    assert next(iter(plan["without"].values())).endswith("(queries)")
    assert plan["items"] == 0


def test_list_verify_and_prune(folder: Path, tmp_path: Path, command: Callable, refused: Callable) -> None:
    out, store = tmp_path / "runs", tmp_path / "runs" / ".store"
    for model in ("random:8", "constant:4"):
        assert command("run", folder, "--model", model, "--out", out, "-q").code == 0
    shelves = {one["model"]: one for one in command("store", "ls", "--store", store, "--json").json}
    assert set(shelves) == {"random:8", "constant:4"}
    assert shelves["random:8"]["dimension"] == 8
    assert shelves["random:8"]["dtype"] == "float32"
    assert shelves["random:8"]["vectors"] == shelves["constant:4"]["vectors"] > 0
    assert "random:8" in command("store", "ls", "--store", store).out
    assert command("store", "verify", "--store", store).out == "all vectors are whole\n"

    (vectors,) = Path(shelves["random:8"]["folder"]).glob("*.vectors")
    content = bytearray(vectors.read_bytes())
    content[5] ^= 1
    vectors.write_bytes(content)
    spoiled = command("store", "verify", "--store", store, "--json")
    assert spoiled.code == 1
    assert [(one["model"], one["whole"]) for one in spoiled.json] == [("random:8", 0)]
    assert str(vectors.with_suffix(".rows")) in command("store", "verify", "--store", store).out
    again = command("run", folder, "--model", "random:8", "--out", out, "--json").json
    assert again["embedded"]["now"] == again["embedded"]["planned"]

    listed = command("store", "prune", "--store", store, "--model", "const*")
    assert "can go" in listed.out
    assert Path(shelves["constant:4"]["folder"]).is_dir()
    assert "removed" in command("store", "prune", "--store", store, "--model", "const*", "--yes").out
    assert not Path(shelves["constant:4"]["folder"]).exists()
    assert Path(shelves["random:8"]["folder"]).is_dir()

    refused(command("store", "ls", "--store", tmp_path / "nowhere"), "nowhere", "no such folder")


def test_prune_takes_what_an_interruption_left(folder: Path, tmp_path: Path, command: Callable) -> None:
    out, store = tmp_path / "runs", tmp_path / "runs" / ".store"
    assert command("run", folder, "--model", "random:8", "--out", out, "-q").code == 0
    (table,) = (path for path in store.iterdir() if path.is_dir())
    whole = sorted(table.iterdir())
    (table / ".x.arrow.abc.tmp").write_bytes(b"half")
    (table / "00000000000000000001-aa.vectors").write_bytes(b"unnamed")
    (table / "00000000000000000002-bb.rows").write_bytes(b"")
    found = command("store", "prune", "--store", store, "--yes", "--json").json
    assert len(found) == 3
    assert sorted(table.iterdir()) == whole
    assert json.loads(command("store", "prune", "--store", store, "--json").out) == []
    again = command("run", folder, "--model", "random:8", "--out", out, "--json").json
    assert again["embedded"]["now"] == 0


def test_prune_leaves_what_a_run_is_at(folder: Path, tmp_path: Path, command: Callable, refused: Callable) -> None:
    """Its vectors, the segment that it has just begun, and one that it took up after the list was made."""
    out, store = tmp_path / "runs", tmp_path / "runs" / ".store"
    assert command("run", folder, "--model", "random:8", "--out", out, "-q").code == 0
    (table,) = (path for path in store.iterdir() if path.is_dir())
    left = table / "00000000000000000001-aa.rows"
    left.write_bytes(b"")
    listed = prunable(store, None)
    assert [one.path for one in listed] == [str(left)]
    writer = Writer(table, SegmentHeader("float32", 8, False))
    with left.open("rb") as file:
        hold(file)
        prune(listed)
        assert left.exists()
    assert [one.path for one in prunable(store, None)] == [str(left)]
    refused(command("store", "prune", "--store", store, "--model", "*"), "a run is adding vectors of random:8")
    writer.abandon()
    prune(listed)
    assert not left.exists()


def test_a_segment_removed_as_it_began_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = []

    def hold_late(file: Any) -> None:
        if not gone:
            gone.extend(tmp_path.glob("*.rows"))
            gone[0].unlink()
        hold(file)

    monkeypatch.setattr("omnirecall.embedding.segments.hold", hold_late)
    writer = Writer(tmp_path, SegmentHeader("float32", 8, False))
    assert writer.path.exists()
    assert writer.path != gone[0]
    assert alive(writer.path)
    writer.abandon()
