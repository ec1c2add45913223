"""Runs in every state are shown, with what is known of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from omnirecall.errors import UserError
from omnirecall.evaluation import evaluate
from omnirecall.view.pages import Pages
from omnirecall.view.runs import RunsFolder, read_shown, safe_key


@pytest.fixture
def run(own_data: Callable[..., Path], tmp_path: Path) -> Path:
    """A run of a small task; its folder."""
    return Path(evaluate("random:8", own_data(tmp_path / "data"), out=tmp_path / "runs").folder)


def test_finished(run: Path) -> None:
    shown = read_shown(run)
    assert (shown.state, shown.problems, shown.title) == ("finished", (), "random:8")


def test_stopped_before_its_record(run: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    value = json.loads((run / "run.json").read_text())["tasks"]["mine"]["measures"]["hit@1"]["value"]
    (run / "run.json").unlink()
    (run / "tasks" / "mine.json").unlink()
    shown = read_shown(run)
    assert shown.state == "unfinished"
    assert shown.record.tasks["mine"].measures["hit@1"].value == value
    pages = pages_of(run.parent.parent)
    assert "unfinished" in fetched(pages, "")
    assert "stopped before its record" in fetched(pages, f"r/{shown.key}/")
    assert "q1" in fetched(pages, f"r/{shown.key}/t/mine/")


def test_not_finished_by_its_record(run: Path, rewritten: Callable[..., None]) -> None:
    rewritten(run, lambda record: record.update(finished=False))
    assert read_shown(run).state == "unfinished"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"run"', b"\xff\xfe\x00", b'{"tasks": '])
def test_damaged_record(content: bytes, run: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    (run / "run.json").write_bytes(content)
    shown = read_shown(run)
    assert shown.state == "damaged"
    assert shown.record.tasks["mine"].value is not None
    pages = pages_of(run.parent.parent)
    assert "damaged" in fetched(pages, "")
    assert "run.json" in fetched(pages, f"r/{shown.key}/")


@pytest.mark.parametrize("field", ["means", "model", "tasks", "card", "suite"])
def test_older_record(
    field: str, run: Path, rewritten: Callable[..., None], pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    def older(record: dict[str, Any]) -> None:
        del record[field]
        record["omnirecall"] = "0.0.1"

    rewritten(run, older)
    shown = read_shown(run)
    assert shown.state == "older"
    assert "0.0.1" in shown.problems[0]
    assert shown.record.tasks["mine"].value is not None
    assert shown.record.suite == "mine"
    pages = pages_of(run.parent.parent)
    assert "older version" in fetched(pages, "")
    assert "0.0.1" in fetched(pages, f"r/{shown.key}/")
    assert "q1" in fetched(pages, f"r/{shown.key}/t/mine/")


def test_fields_of_another_kind(
    run: Path, rewritten: Callable[..., None], pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    def other(record: dict[str, Any]) -> None:
        record["model"] = "my model"
        record["means"] = {"all": 0.5}
        record["tasks"]["mine"]["queries"] = "many"
        record["tasks"]["other"] = 7

    rewritten(run, other)
    shown = read_shown(run)
    assert (shown.state, shown.title) == ("older", "my model")
    assert shown.record.tasks["mine"].value is not None
    assert shown.record.tasks["other"].value is None
    assert "my model" in fetched(pages_of(run.parent.parent), f"r/{shown.key}/")


@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "columns"])
def test_damaged_ranks(damage: str, run: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    path = run / "tasks" / "mine.parquet"
    if damage == "gone":
        path.unlink()
    elif damage == "columns":
        pq.write_table(pq.read_table(path).drop_columns(["greater"]), path)
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else b"")
    key, pages = safe_key(run.name), pages_of(run.parent.parent)
    assert "random:8" in fetched(pages, "")
    assert ("no ranks" if damage == "gone" else "cannot be read") in fetched(pages, "s/mine/t/mine/")
    said = fetched(pages, f"r/{key}/t/mine/")
    assert "there are no ranks" in said or "cannot be read" in said


def test_data_folder_is_gone(
    run: Path, tmp_path: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    key = safe_key(run.name)
    said = fetched(pages_of(run.parent.parent), f"r/{key}/t/mine/")
    assert "The data folder is missing" in said
    assert str(tmp_path / "data") in said
    assert "q1" in said
    assert "uno" not in said
    moved = fetched(pages_of(run.parent.parent, data=(tmp_path / "elsewhere",)), f"r/{key}/t/mine/")
    assert "missing" not in moved
    assert "uno" in moved


def test_data_that_cannot_be_read_any_more(
    run: Path, tmp_path: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    (tmp_path / "data" / "queries.jsonl").write_text("not json\n")
    said = fetched(pages_of(run.parent.parent), f"r/{safe_key(run.name)}/t/mine/")
    assert "The items cannot be read" in said
    assert "q1" in said


def test_card_of_ones_own(
    tmp_path: Path, own_data: Callable[..., Path], pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    data = own_data(tmp_path / "data")
    (data / "task.toml").unlink()
    card = tmp_path / "card.toml"
    card.write_text('[suite]\nname = "cards"\n[[task]]\nname = "one"\nmeasure = "hit@1"\n')
    run = Path(evaluate("random:8", card, data=data, out=tmp_path / "runs").folder)
    path = f"r/{safe_key(run.name)}/t/one/"
    assert "The card of cards is not here" in fetched(pages_of(tmp_path / "runs"), path)
    assert "uno" in fetched(pages_of(tmp_path / "runs", cards=(card,)), path)


def test_no_folder_and_no_runs(tmp_path: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        RunsFolder([tmp_path / "nothing"])
    assert "There is no run" in fetched(pages_of(tmp_path), "")


def test_a_run_that_ends_while_the_page_is_open(run: Path) -> None:
    kept = (run / "run.json").read_bytes()
    (run / "run.json").unlink()
    runs = RunsFolder([run.parent.parent])
    assert [one.state for one in runs.runs().values()] == ["unfinished"]
    (run / "run.json").write_bytes(kept)
    assert [one.state for one in runs.runs().values()] == ["finished"]


def test_the_same_folder_name_twice(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy" / run.name)
    runs = RunsFolder([run.parent.parent, tmp_path / "copy", tmp_path / "copy"]).runs()
    assert len(runs) == 2
    assert len({one.folder for one in runs.values()}) == 2


@pytest.mark.parametrize(
    "name", ["plain-1.0_x", "a b", "a#b?c%d", "../up", "..", ".hidden", "é", "new\nline", "x" * 300, "<b>"]
)
def test_keys_are_plain(name: str) -> None:
    key = safe_key(name)
    assert key not in ("", ".", "..")
    assert not set(key) & set("/\\ #?%<>\"'&\n")
    assert len(key) <= 100
    assert safe_key(name + "!") != key
