"""``omnirecall export`` and ``omnirecall score --run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ir_measures
import pytest


@pytest.fixture
def run(tmp_path: Path, own_data: Callable, command: Callable) -> Path:
    """A run of a model that ties everything, on a pool of three."""
    command("run", own_data(tmp_path / "data"), "--model", "constant:8", "--out", tmp_path / "runs", "-q")
    (folder,) = (tmp_path / "runs" / "mine").iterdir()
    return folder


def test_trec(run: Path, tmp_path: Path, command: Callable) -> None:
    done = command("export", run, "--to", "trec", "--out", tmp_path / "trec", "--measures", "mrr,hit@1", "--json")
    assert (done.code, done.err) == (0, "")
    files = done.json["mine"]
    qrels = list(ir_measures.read_trec_qrels(files["qrels"]))
    found = ir_measures.calc_aggregate([ir_measures.RR], qrels, list(ir_measures.read_trec_run(files["run"])))
    assert found[ir_measures.RR] == pytest.approx((1 / 3 + 1 / 2) / 2), "c3, c2, c1"
    assert found[ir_measures.RR] == files["values"]["RR"]
    again = command("score", "--run", run, "--measures", "mrr", "--tie-break", "docno", "--json").json
    assert again["tasks"]["mine"]["mrr"]["value"] == files["values"]["RR"]
    text = command("export", run, "--to", "trec", "--out", tmp_path / "trec", "--measures", "mrr")
    assert text.out == "mine: RR 0.4167\n"


def test_what_export_refuses(run: Path, tmp_path: Path, command: Callable, refused: Callable) -> None:
    out = tmp_path / "out"
    refused(command("export", run, "--out", out), "--to")
    refused(command("export", run, "--to", "trec"), "--out")
    refused(command("export", run, "--to", "mmeb", "--out", out), "is a run of mine")
    refused(command("export", run, "--to", "trec", "--out", out, "--measures", "f1@2"), "f1@2", "trec_eval")
    refused(command("export", run, "--to", "trec", "--out", out, "--measures", "no@2"), "no@2")
    refused(command("export", run, "--to", "trec", "--out", out, "--tasks", "x*"), "x*", "mine")
    refused(command("export", tmp_path, "--to", "trec", "--out", out), "run.json")
    assert not out.exists()


def test_other_measures_of_a_run(run: Path, command: Callable) -> None:
    done = command("score", "--run", run, "--measures", "recall@2,median_rank", "--json")
    assert (done.code, done.err) == (0, "")
    scores = done.json["tasks"]["mine"]
    assert scores["recall@2"]["value"] == pytest.approx(2 / 3)
    assert (scores["recall@2"]["best"], scores["recall@2"]["worst"]) == (1.0, 0.0)
    assert scores["recall@2"]["interval"][0] < 2 / 3 < scores["recall@2"]["interval"][1]
    assert done.json["tie_break"] == "expected"
    text = command("score", "--run", run, "--measures", "recall@2,median_rank").out
    for part in ("mine", "recall@2", "66.67", "median_rank"):
        assert part in text
    assert command("score", "--run", run, "--measures", "hit@1", "--tie-break", "index", "--json").json["tasks"][
        "mine"
    ]["hit@1"]["value"] == pytest.approx(0.5)


def test_neither_model_nor_data_are_needed(run: Path, tmp_path: Path, command: Callable) -> None:
    before = command("score", "--run", run, "--json").out
    for path in sorted((tmp_path / "data").iterdir()):
        path.unlink()
    assert command("score", "--run", run, "--json").out == before
    assert set(json.loads(before)["tasks"]["mine"]) == {"hit@1", "hit@5", "recall@5", "ndcg@10", "mrr"}


def test_what_goes_with_a_run_and_what_does_not(
    run: Path, tmp_path: Path, command: Callable, refused: Callable
) -> None:
    refused(command("score", "--run", run, "q.npy"), "leave out q.npy")
    for option in ("--pool", "--query-ids", "--candidate-ids", "--run-file", "--per-query"):
        refused(command("score", "--run", run, option, tmp_path / "x"), f"leave out {option}")
    refused(command("score", "--run", run, "--similarity", "dot"), "leave out --similarity")
    refused(command("score", "--run", run, "--measures", "no@1"), "no@1")
    refused(command("score", "--tasks", "a", "q.npy", "c.npy", "qrels"), "--tasks goes with --run")
    refused(command("score"), "Q.npy")
