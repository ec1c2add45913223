"""Reading own data: rows, judgments and pools, exactly as written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirecall.errors import UserError
from omnirecall.protocol.measures import Measure
from omnirecall.sources.folder import inside, read_items
from omnirecall.sources.load import data_root, load_suite, read_task
from omnirecall.sources.qrels import numbered_lines, read_pools, read_qrels
from omnirecall.sources.vectors import read_run_file

IDS = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), min_size=1, max_size=6).filter(str.strip)
WORDS = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=6)
GRADES = st.integers(-2, 5)


@settings(max_examples=60, deadline=None)
@given(
    table=st.dictionaries(IDS, st.dictionaries(IDS, GRADES, min_size=1, max_size=3), min_size=1, max_size=3),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_beir_judgments_come_back(
    table: dict[str, dict[str, int]], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("qrels") / "qrels.tsv"
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{c}\t{g}" for q, row in table.items() for c, g in row.items())]
    path.write_bytes(end.join(lines).encode())
    assert read_qrels(path) == table


@settings(max_examples=60, deadline=None)
@given(
    table=st.dictionaries(WORDS, st.dictionaries(WORDS, GRADES, min_size=1, max_size=3), min_size=1, max_size=3),
    blank=st.sampled_from([" ", "\t", "   "]),
    fifth=st.sampled_from([[], ["7"]]),
)
def test_trec_judgments_come_back(
    table: dict[str, dict[str, int]], blank: str, fifth: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("qrels") / "qrels"
    rows = [blank.join([q, "0", c, str(g), *fifth]) for q, row in table.items() for c, g in row.items()]
    path.write_text("\n".join(rows))
    assert read_qrels(path) == table


def test_a_judgment_may_be_said_twice_alike(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q 0 c 1\nq 0 c 1\n")
    assert read_qrels(tmp_path / "qrels") == {"q": {"c": 1.0}}


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("\ufeffa\u2028b\x0cc\x85d\n\n \ne\rf\r\n".encode())
    assert list(numbered_lines(tmp_path / "file")) == [(1, "a\u2028b\x0cc\x85d"), (4, "e\rf")]


def test_pools(tmp_path: Path) -> None:
    rows = [
        {"query-id": "a", "candidates": ["1", "2"]},
        {"query-id": "b", "candidates": ["3"], "exclude": ["4"]},
        {"query-id": "a", "exclude": ["2"]},
    ]
    (tmp_path / "pools").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_pools(tmp_path / "pools") == ({"a": ["1", "2"], "b": ["3"]}, {"b": ["4"], "a": ["2"]})
    (tmp_path / "pools").write_text(json.dumps(rows[2]))
    assert read_pools(tmp_path / "pools") == (None, {"a": ["2"]})


def test_a_run_file_keeps_its_order(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 b 1 0.5 t\nq Q0 a 2 0.5 t 7\nr Q0 a 1 -1e-3 t\n")
    run = read_run_file(tmp_path / "run")
    assert run == {"q": {"b": 0.5, "a": 0.5}, "r": {"a": -0.001}}
    assert list(run["q"]) == ["b", "a"]


def test_items(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    row = {"id": "1", "text": "words", "image": "a.png", "instruction": "i", "cluster": "k", "metadata": {"any": [1]}}
    (tmp_path / "items.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps({"id": "2", "text": None, "image": "a.png"})
    )
    first, second = read_items(tmp_path / "items.jsonl", tmp_path)
    assert (first.id, first.text, first.image, first.instruction, first.cluster) == (
        "1",
        "words",
        tmp_path / "a.png",
        "i",
        "k",
    )
    assert first.modalities == {"text", "image"}
    assert second.modalities == {"image"}
    assert second.instruction is None


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a\0b", "..", "a/../.."])
def test_paths_that_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"place: .*leads outside"):
        inside(tmp_path, name, "place")


@pytest.mark.parametrize("name", ["x", "a/b", "a/../b", "./x", "..x", "a..b/c"])
def test_paths_that_stay_inside(name: str, tmp_path: Path) -> None:
    assert inside(tmp_path, name, "place") == tmp_path / name


def test_a_folder_whose_name_begins_like_the_root_is_outside(tmp_path: Path) -> None:
    (tmp_path / "data-secret").mkdir()
    with pytest.raises(UserError, match="leads outside"):
        inside(tmp_path / "data", "../data-secret/x", "place")


def test_what_a_bare_task_takes(tmp_path: Path, own_data: Callable) -> None:
    folder = own_data(tmp_path / "my data", toml="")
    suite = load_suite(folder)
    (task,) = suite.tasks
    assert (suite.name, task.name) == ("my data", "my data")
    assert task.measure == Measure("hit", 1)
    assert Measure("ndcg", 10) in task.all_measures()
    data = read_task(data_root(suite, None), task)
    assert [item.id for item in data.queries] == ["q1", "q2"]
    assert [item.text for item in data.candidates] == ["uno", "due", "tre"]
    assert data.judgments == {"q1": {"c1": 1}, "q2": {"c2": 1}}
    assert data.pools is None
    assert data.exclude == {}


def test_several_files_make_one_table(tmp_path: Path, own_data: Callable, jsonl: Callable) -> None:
    toml = '[data]\ncandidates = ["candidates.jsonl", "more.jsonl"]\n'
    folder = own_data(tmp_path / "data", toml=toml)
    jsonl(folder / "more.jsonl", [{"id": "c4", "text": "x"}])
    suite = load_suite(folder)
    assert [item.id for item in read_task(folder, suite.tasks[0]).candidates] == ["c1", "c2", "c3", "c4"]
    jsonl(folder / "more.jsonl", [{"id": "c1", "text": "x"}])
    with pytest.raises(UserError, match=r"candidates\.jsonl, more\.jsonl: candidate id c1 is used 2 times"):
        read_task(folder, suite.tasks[0])


def test_the_task_may_stand_in_a_table_of_its_own(tmp_path: Path, own_data: Callable) -> None:
    folder = own_data(tmp_path / "data", toml='[task]\nname = "inner"\nmeasure = "mrr"\n')
    assert load_suite(folder).task("inner").measure == Measure("mrr")


def test_data_of_a_suite_may_lie_elsewhere(tmp_path: Path, own_data: Callable) -> None:
    suite = load_suite(own_data(tmp_path / "data"))
    assert data_root(suite, tmp_path) == tmp_path
    assert data_root(suite, None) == tmp_path / "data"
