"""BEIR tables as parquet, tables of pairs, and the OmniRet evaluation as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from miniatures import assert_meant, assert_ran, config, starter, write

from omnirecall.errors import UserError
from omnirecall.protocol.items import TaskData
from omnirecall.sources.load import load_suite, read_task

SUITE = load_suite("omniret")
AUDIO = SUITE.task("audiocaps_t2a")


def test_the_whole_evaluation_is_what_the_writers_meant_and_runs(command: Callable, tmp_path: Path) -> None:
    meant = write(tmp_path / "data", SUITE.tasks)
    for task in SUITE.tasks:
        assert_meant(read_task(tmp_path / "data", task), meant[task.name], task.name)
    done = command(
        "run", "omniret", "--data", tmp_path / "data", "--model", "random:16", "--out", tmp_path / "runs", "--json"
    )
    assert done.code == 0, done.err
    assert_ran(done.json, meant)
    assert len(done.json["tasks"]) == 71


def sounds(root: Path, queries: list, corpus: list, qrels: list) -> TaskData:
    folder = root / "mteb" / "audiocaps_t2a"
    config(folder, "corpus", "corpus", corpus, ["audio"])
    config(folder, "queries", "test", queries)
    config(folder, "default", "test", qrels)
    return read_task(root, AUDIO)


SOUNDS = [{"_id": place, "audio": path.read_bytes()} for place, path in enumerate(starter("audio")[:3])]


def pair(query: object, candidate: object, score: int = 1) -> dict:
    return {"query-id": query, "corpus-id": candidate, "score": score}


def test_empty_queries_are_left_out_and_counted(tmp_path: Path) -> None:
    queries = [
        {"id": "a", "text": "rain"},
        {"id": "b", "text": "  "},
        {"id": "c", "text": None},
        {"id": "d", "text": "a dog"},
    ]
    data = sounds(tmp_path, queries, SOUNDS, [pair("a", "0"), pair("b", "1"), pair("c", "1"), pair("d", "2")])
    assert [item.id for item in data.queries] == ["a", "d"]
    assert data.judgments == {"a": {"0": 1.0}, "d": {"2": 1.0}}
    assert data.defects == {"empty-text": 2}


def test_numbers_as_ids_zero_grades_and_the_higher_of_two(tmp_path: Path) -> None:
    rows = [pair(7, 0, 1), pair(7, 0, 3), pair(7, 0, 2), pair(7, 1, 0), pair(8, 2, 1)]
    data = sounds(tmp_path, [{"_id": 7, "text": "x"}, {"_id": 8, "text": "y"}], SOUNDS, rows)
    assert data.judgments == {"7": {"0": 3.0}, "8": {"2": 1.0}}


def test_only_the_parts_of_the_direction(tmp_path: Path) -> None:
    corpus = [{**row, "text": "a caption beside the sound", "title": "x"} for row in SOUNDS]
    data = sounds(tmp_path, [{"id": "a", "text": "rain"}], corpus, [pair("a", "0")])
    assert {item.modalities for item in data.candidates} == {frozenset({"audio"})}
    task = msgspec.structs.replace(AUDIO, direction="T->A,T")
    both = read_task(tmp_path, task).candidates[0]
    assert (both.modalities, both.text) == ({"audio", "text"}, "x a caption beside the sound")


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column score; it has query-id, corpus-id"):
        sounds(tmp_path / "one", [{"id": "a", "text": "x"}], SOUNDS, [{"query-id": "a", "corpus-id": "0"}])
    with pytest.raises(UserError, match="no column of ids"):
        sounds(tmp_path / "two", [{"name": "a", "text": "x"}], SOUNDS, [pair("a", "0")])
    with pytest.raises(UserError, match="judgments name the query b"):
        sounds(tmp_path / "three", [{"id": "a", "text": "x"}], SOUNDS, [pair("a", "0"), pair("b", "0")])


def test_an_empty_cell_is_named(tmp_path: Path, command: Callable, refused: Callable) -> None:
    corpus = [*SOUNDS[:2], {"_id": 2, "audio": b""}]
    sounds(tmp_path, [{"id": "a", "text": "rain"}], corpus, [pair("a", "0")])
    run = (
        "run",
        "omniret",
        "--data",
        tmp_path,
        "--tasks",
        "audiocaps_t2a",
        "--model",
        "random:8",
        "--out",
        tmp_path / "runs",
    )
    refused(command(*run), "corpus-00000-of-00001.parquet: row 2", "audio")
    done = command(*run, "--on-missing", "skip", "--json")
    assert done.json["tasks"]["audiocaps_t2a"]["pool"] == 2
