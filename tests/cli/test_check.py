"""``omnirecall check``: its exit codes, its table, its JSON, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import write

from omnirecall.sources.load import load_suite

CARD = """
[suite]
name = "small"
[[include]]
suite = "mbeir"
tasks = ["cirr_task7"]
[include.set."*"]
query_count = 3
candidate_count = 4
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    write(root, [load_suite("mbeir").task("cirr_task7")])
    (tmp_path / "small.toml").write_text(CARD)
    return root


def test_sound_data_end_with_code_0(command: Callable, data: Path) -> None:
    done = command("check", data.parent / "small.toml", "--data", data)
    assert (done.code, done.err) == (0, "")
    assert "cirr_task7" in done.out
    assert done.out.endswith("Nothing fails.\n")
    assert (data / ".omnirecall-check.jsonl").is_file()


def test_what_would_change_a_score_ends_with_code_1(command: Callable, data: Path) -> None:
    (data / "M-BEIR/mbeir_images/cirr_task7/c1.jpg").write_bytes(b"\xff\xd8 no picture")
    done = command("check", data.parent / "small.toml", "--data", data, "--json")
    assert (done.code, done.err) == (1, "")
    (task,) = done.json["tasks"]
    assert done.json["fails"] is True
    assert (task["queries"], task["candidates"], task["media"]) == (3, 4, 7)
    (issue,) = task["issues"]
    assert (issue["kind"], issue["count"], issue["fails"]) == ("undecodable-media", 1, True)
    assert "c1.jpg" in issue["examples"][0]
    assert command("check", data.parent / "small.toml", "--data", data, "--quick").code == 0
    quiet = command("check", data.parent / "small.toml", "--data", data, "-q")
    assert (quiet.code, quiet.out, quiet.err) == (1, "", "")


def test_only_the_tasks_asked_for(command: Callable, refused: Callable, data: Path) -> None:
    done = command("check", "mbeir", "--data", data, "--tasks", "cirr*", "--json")
    assert [task["task"] for task in done.json["tasks"]] == ["cirr_task7"]
    assert [(issue["kind"], issue["expected"]) for issue in done.json["tasks"][0]["issues"]] == [
        ("query-count", 4170),
        ("candidate-count", 21551),
    ]
    refused(command("check", "mbeir", "--data", data, "--tasks", "none"), "--tasks none")


def test_own_data(command: Callable, own_data: Callable, tmp_path: Path) -> None:
    folder = own_data(tmp_path / "mine")
    assert command("check", folder).code == 0
    folder = own_data(tmp_path / "copies", candidates=[{"id": name, "text": "uno"} for name in ("c1", "c2", "c3")])
    done = command("check", folder)
    assert done.code == 1
    assert "duplicate-content: 2 queries for which a copy of a relevant candidate is not relevant" in done.out


def test_mistakes_are_named(command: Callable, refused: Callable, data: Path, tmp_path: Path) -> None:
    refused(command("check", "uvrbb", "--data", data), "uvrbb", "did you mean uvrb")
    refused(command("check", "uvrb"), "--data")
    refused(command("check", "uvrb", "--data", tmp_path / "nowhere"), "nowhere", "no such folder")
    (tmp_path / "file").write_text("")
    small = ("check", data.parent / "small.toml", "--data", data, "--journal")
    refused(command(*small, tmp_path / "file" / "journal"), "--journal")
    assert command(*small, tmp_path / "deep" / "journal").code == 0
    assert (tmp_path / "deep" / "journal").is_file()
