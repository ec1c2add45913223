"""Finished runs read back: whole or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card
from omnirecall.protocol.measures import Measure, score_queries
from omnirecall.protocol.suites import Mean
from omnirecall.results.intervals import combined_interval, value_interval
from omnirecall.results.stored import open_run, read_task, suite_clusters, with_intervals

TREE = (Mean("both", ("a", "b")),)


@pytest.fixture
def folder(tmp_path: Path, make_run: Callable, random_task: Callable) -> Path:
    clusters = [f"video {row // 3}" for row in range(60)]
    tasks = {"a": random_task(1, clusters=clusters), "b": random_task(2, clusters=clusters), "c": random_task(3)}
    return make_run(tmp_path / "run", tasks, tree=TREE)


def damage(folder: Path, change: Callable[[dict], None]) -> None:
    record = json.loads((folder / "run.json").read_text())
    change(record)
    (folder / "run.json").write_text(json.dumps(record))


def test_intervals_are_those_of_the_ranks(folder: Path) -> None:
    """Every measure of every task, with its clusters, and the means with the clusters that their tasks share."""
    run = with_intervals(open_run(folder))
    codes = np.arange(60) // 3
    estimates = {}
    for name in "abc":
        ranked = read_task(run, name).ranked
        for text, value in run.tasks[name].measures.items():
            scores = score_queries(Measure.parse(text), ranked).value
            one = value_interval(Measure.parse(text), scores, None if name == "c" else codes)
            assert value.interval == pytest.approx(one.interval)
            assert value.value == pytest.approx(one.value)
            if text == run.tasks[name].measure:
                estimates[name] = one
    shared = combined_interval([(0.5, estimates["a"]), (0.5, estimates["b"])])
    assert run.mean_intervals == {"both": pytest.approx(shared)}
    assert with_intervals(run) is run


def test_clusters_are_those_of_the_suite() -> None:
    codes = suite_clusters(
        {"a": pa.array(["x", None, "y", "x"]), "b": pa.array([None, "y", None]), "c": pa.array([], pa.string())}
    )
    assert codes["a"][0] == codes["a"][3]
    assert codes["a"][2] == codes["b"][1]
    assert len({*codes["a"], *codes["b"]}) == 5
    assert len(codes["c"]) == 0
    assert suite_clusters({"a": pa.array([None, None])})["a"].tolist() == [0, 1]


def test_the_tree_of_a_shipped_card(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    """A run that does not hold its tree takes that of the card, but only of the same version of it."""
    suite = read_card(shipped_card("uvrb"))
    for card, tree in ((suite.revision, suite.means), ("older", ())):
        folder = make_run(tmp_path / card, {"a": random_task(1)}, suite="uvrb", card=card)
        assert open_run(folder).tree == tree


def test_an_unfinished_run_is_refused(folder: Path) -> None:
    damage(folder, lambda record: record.update(finished=False))
    with pytest.raises(UserError, match="not finished"):
        open_run(folder)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "", ".."])
def test_a_task_that_leads_out_of_the_run_is_refused(folder: Path, name: str) -> None:
    damage(folder, lambda record: record["tasks"].update({name: record["tasks"].pop("a")}))
    with pytest.raises(UserError, match="cannot be the name of a task"):
        open_run(folder)


def test_a_value_that_is_missing_is_refused(folder: Path) -> None:
    damage(folder, lambda record: record["tasks"]["a"].update(value=None))
    with pytest.raises(UserError, match="task a is ok and has no value"):
        open_run(folder)


def test_what_a_damaged_parquet_says(folder: Path) -> None:
    """Missing, cut, of another form, of other ranks, by another version: each names the file and the cure."""
    run, path = open_run(folder), folder / "tasks" / "a.parquet"
    whole = path.read_bytes()
    table = pq.read_table(path)
    worse = pc_shifted(table)
    for content, said in (
        (None, "is missing"),
        (whole[: len(whole) // 2], "cannot be read"),
        (b"", "cannot be read"),
        (table.drop_columns(["cluster"]), "cannot be read"),
        (table.drop_columns(["greater"]), "cannot be read"),
        (worse, "not those that run.json sums up"),
        (table.slice(0, 30), "not those that run.json sums up"),
    ):
        path.unlink(missing_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            pq.write_table(content, path)
        with pytest.raises(UserError, match=said) as refusal:
            read_task(run, "a")
        assert str(path) in str(refusal.value)
        assert "run it again" in str(refusal.value)
        assert "\n" not in str(refusal.value)


def pc_shifted(table: pa.Table) -> pa.Table:
    """The same table with every relevant candidate three ranks lower."""
    place = table.schema.get_field_index("greater")
    lower = pa.array(
        [[above + 3 for above in row] for row in table.column("greater").to_pylist()], pa.list_(pa.int64())
    )
    sizes = table.schema.get_field_index("pool_size")
    larger = pa.array([size + 3 for size in table.column("pool_size").to_pylist()], pa.int64())
    return table.set_column(place, "greater", lower).set_column(sizes, "pool_size", larger)


def test_an_older_version_is_named(folder: Path) -> None:
    damage(folder, lambda record: record.update(omnirecall="0.0.1"))
    (folder / "tasks" / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"written by omnirecall 0\.0\.1"):
        read_task(open_run(folder), "a")
