"""``omnirecall compare``, from two real runs to every format, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

FORMATS = ("table", "markdown", "latex", "csv", "json")


@pytest.fixture
def runs(tmp_path: Path, own_data: Callable, command: Callable) -> list[Path]:
    """Runs of two models on one folder of own data: twelve queries, two of each cluster."""
    words = [f"word {number}" for number in range(12)]
    folder = own_data(
        tmp_path / "data",
        queries=[{"id": f"q{n}", "text": word, "cluster": f"source {n // 2}"} for n, word in enumerate(words)],
        candidates=[{"id": f"c{n}", "text": word} for n, word in enumerate(words)],
        qrels=[(f"q{n}", f"c{n}", 1) for n in range(12)],
    )
    out = tmp_path / "runs"
    for model in ("random:8", "constant:8"):
        assert command("run", folder, "--model", model, "--out", out, "-q").code == 0
    return sorted((out / "mine").iterdir(), reverse=True)


def test_every_format(runs: list[Path], command: Callable) -> None:
    results = {form: command("compare", *runs, "--format", form) for form in FORMATS}
    assert {(result.code, result.err) for result in results.values()} == {(0, "")}
    for form, result in results.items():
        for part in ("mine", "random:8", "constant:8", "hit@1"):
            assert part in result.out, form
    assert command("compare", *runs).out == results["table"].out
    assert command("compare", *runs, "--json").out == results["json"].out
    (task,) = [row for row in csv.DictReader(io.StringIO(results["csv"].out)) if row["model"] == "constant:8"]
    (row,) = results["json"].json["rows"]
    paired = row["entries"][1]["paired"]
    assert float(task["value"]) == row["entries"][1]["value"] == pytest.approx(1 / 12)
    assert float(task["p_holm"]) == row["entries"][1]["adjusted"] == paired["p"]
    assert (paired["losses"], paired["wins"]) == (12, 0)
    assert paired["p"] == pytest.approx(2 * 0.5**6), "the six clusters are flipped, not the twelve queries"


def test_the_seed_is_recorded(runs: list[Path], command: Callable) -> None:
    assert command("compare", *runs, "--seed", 5, "--json").json["seed"] == 5


def test_what_is_refused(
    runs: list[Path], tmp_path: Path, own_data: Callable, command: Callable, refused: Callable
) -> None:
    refused(command("compare"), "compare --help")
    refused(command("compare", runs[0]), "at least two runs")
    refused(command("compare", runs[0], runs[0]), "named twice")
    refused(command("compare", runs[0], tmp_path / "nothing"), "nothing", "no run.json")
    refused(command("compare", *runs, "--published"), "no published rows of mine")
    other = own_data(tmp_path / "data", qrels=[("q1", "c2", 1), ("q2", "c2", 1)])
    command("run", other, "--model", "random:8", "--out", tmp_path / "others", "-q")
    (folder,) = (tmp_path / "others" / "mine").iterdir()
    refused(command("compare", runs[0], folder), runs[0], folder, "the queries of task mine differ")


def test_damaged_and_unfinished_runs(runs: list[Path], command: Callable, refused: Callable) -> None:
    record = runs[0] / "run.json"
    whole = record.read_text()
    record.write_text(json.dumps(json.loads(whole) | {"finished": False}))
    for arguments in (["compare", *runs], ["report", runs[0]], ["score", "--run", runs[0]]):
        refused(command(*arguments), runs[0], "not finished")
    for content in (whole[:100], "[]", ""):
        record.write_text(content)
        refused(command("compare", *runs), record, "not a run record")
    record.write_text(whole)
    (runs[0] / "tasks" / "mine.parquet").write_bytes(b"PAR1")
    for arguments in (["compare", *runs], ["score", "--run", runs[0]]):
        refused(command(*arguments), "mine.parquet", "run it again")
