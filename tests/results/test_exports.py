"""Exports, judged by the tools that read them: ir_measures with pytrec_eval, and the released scores of the leaderboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from made_runs import Scored

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card
from omnirecall.protocol.measures import Measure
from omnirecall.results.export import MMEB_MEASURES, Request, export, mmeb, trec, trec_id
from omnirecall.results.rescore import rescore
from omnirecall.results.stored import open_run


def judged(files, names: list[str]) -> dict[str, float]:
    """What ir_measures finds in a task's two files."""
    measures = [ir_measures.parse_measure(name) for name in names]
    qrels = list(ir_measures.read_trec_qrels(files.qrels))
    found = ir_measures.calc_aggregate(measures, qrels, list(ir_measures.read_trec_run(files.run)))
    return {name: found[measure] for name, measure in zip(names, measures, strict=True)}


@pytest.mark.parametrize("top_k", [10, 40])
def test_trec_eval_finds_the_values_of_docno(
    tmp_path: Path, make_run: Callable, random_task: Callable, top_k: int
) -> None:
    """With ties everywhere; the scores count down, so that the order of equal scores is no longer trec_eval's to choose."""
    tasks = {"a": random_task(1, 60, 40, skill=0.7), "b": random_task(2, 60, 40, skill=2.5, coarse=True)}
    run = open_run(make_run(tmp_path / "run", tasks, top_k=40 if top_k == 40 else 10))
    measures = {"hit@1": "Success@1", "recall@2": "R@2", "precision@1": "P@1", "ndcg@2": "nDCG@2"}
    if top_k == 40:
        measures |= {"mrr": "RR", "map": "AP", "ndcg@25": "nDCG@25"}
    wanted = [Measure.parse(text) for text in measures]
    written = trec(run, tmp_path / "out", wanted)
    expected = rescore(run, wanted, "docno")
    assert set(written) == {"a", "b"}
    for name, files in written.items():
        found = judged(files, list(measures.values()))
        for ours, theirs in measures.items():
            assert found[theirs] == pytest.approx(expected.tasks[name][ours].value, abs=1e-9), (name, ours)
            assert files.values[theirs] == pytest.approx(found[theirs], abs=1e-9)
    lines = Path(written["b"].run).read_text().splitlines()
    scores = [float(line.split()[4]) for line in lines if line.startswith("q0 ")]
    assert scores == list(range(min(top_k, 40), 0, -1))


def test_the_order_of_the_file_does_not_hang_on_ids(tmp_path: Path, make_run: Callable) -> None:
    """Two candidates tie; docno puts the greater id first, and reading the file by ids ascending changes nothing."""
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    run = open_run(make_run(tmp_path / "run", {"a": Scored(scores, [{"c0": 1}, {"c1": 1}], measures=("hit@1",))}))
    files = trec(run, tmp_path / "out", None)["a"]
    assert [line.split()[2] for line in Path(files.run).read_text().splitlines()] == ["c1", "c0", "c2"] * 2
    assert files.values == {"Success@1": 0.5}


def test_queries_without_any_result_count(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    """A relevant id outside the pool stays in the judgments, and its query scores 0."""
    task = Scored(
        np.random.default_rng(0).normal(size=(4, 6)),
        [{"c1": 1}, {"away": 1, "c2": 1}, {"away": 2}, {"c0": 1}],
        measures=("recall@3",),
    )
    run = open_run(make_run(tmp_path / "run", {"a": task}))
    files = trec(run, tmp_path / "out", None)["a"]
    assert judged(files, ["R@3"])["R@3"] == pytest.approx(run.tasks["a"].value)
    assert "q2 0 away 2\n" in Path(files.qrels).read_text()


def test_ids_with_blanks(tmp_path: Path, make_run: Callable) -> None:
    names = ["a b", "a\tb", "a%20b", "é\u2028", "plain", " "]
    assert len({trec_id(name) for name in names}) == len(names)
    assert [trec_id(name) for name in ("plain", "a b", "%", "é", "")] == ["plain", "a%20b", "%25", "é", "%"]
    scores = np.random.default_rng(1).normal(size=(6, 6))
    task = Scored(scores, [{name: 1} for name in names], query_ids=names, candidate_ids=names, measures=("recall@2",))
    run = open_run(make_run(tmp_path / "run", {"a": task}))
    files = trec(run, tmp_path / "out", None)["a"]
    assert all(len(line.split()) == 6 for line in Path(files.run).read_text().splitlines())
    assert judged(files, ["R@2"])["R@2"] == pytest.approx(run.tasks["a"].value)


def test_what_the_files_do_not_give_is_named(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    measures = ("hit@1", "ndcg@11", "mrr", "f1@2", "ndcg_exp@3", "median_rank", "map@3")
    run = open_run(make_run(tmp_path / "run", {"a": random_task(1, measures=measures)}))
    assert trec(run, tmp_path / "out", None)["a"].left_out == measures[1:]
    for text in ("ndcg@11", "mrr", "map"):
        with pytest.raises(UserError, match=f"{text} looks beyond the 10 candidates that are stored for query q0"):
            trec(run, tmp_path / "none", [Measure.parse(text)])
    for text in ("f1@2", "ndcg_exp@3", "median_rank", "map@3", "mrr@2"):
        with pytest.raises(UserError, match=f"{text}: trec_eval has no such measure"):
            trec(run, tmp_path / "none", [Measure.parse(text)])
    assert not (tmp_path / "none").exists()


def test_a_tie_that_goes_on_beyond_the_list_is_refused(tmp_path: Path, make_run: Callable) -> None:
    run = open_run(make_run(tmp_path / "run", {"a": Scored(np.zeros((2, 20)), [{"c0": 1}, {"c1": 1}])}))
    with pytest.raises(UserError, match="hit@1 in docno order needs the order"):
        trec(run, tmp_path / "none", None)


def test_grades_that_are_no_whole_numbers_are_refused(tmp_path: Path, make_run: Callable) -> None:
    run = open_run(make_run(tmp_path / "run", {"a": Scored(np.eye(2), [{"c0": 1}, {"c1": 0.5}])}))
    with pytest.raises(UserError, match=r"task a: TREC judgments are whole numbers, and the grade 0\.5"):
        trec(run, tmp_path / "out", None)


def test_tasks_are_chosen_by_globs(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    run = open_run(make_run(tmp_path / "run", {"a1": random_task(1), "a2": random_task(2), "b": random_task(3)}))
    assert list(trec(run, tmp_path / "out", None, ["a*"])) == ["a1", "a2"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a1.qrels", "a1.run", "a2.qrels", "a2.run"]
    with pytest.raises(UserError, match="--tasks z: no task with a value matches; there are a1, a2, b"):
        trec(run, tmp_path / "out", None, ["z"])


RELEASED = {
    "ImageNet-1K": "image",
    "CIRR": "image",
    "MSR-VTT": "video",
    "ViDoSeek-page-fixed": "visdoc",
    "ViDoRe_arxivqa": "visdoc",
}
"""Tasks and sections as github.com/TIGER-AI-Lab/VLM2Vec 6e1e1d4, experiments/report_score_v2.py, has them."""
KEYS = [
    *(
        f"{name}@{k}"
        for name in ("hit", "ndcg_linear", "ndcg_exponential", "precision", "recall", "f1", "map", "mrr")
        for k in (1, 5, 10)
    ),
    "num_pred",
    "num_data",
]
"""A task's keys in experiments/public/all_scores of the same commit, in their order."""
NOW = datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture
def mmeb_run(tmp_path: Path, make_run: Callable, random_task: Callable) -> Path:
    tasks = {name: random_task(seed, 30, 20, measures=("hit@1",)) for seed, name in enumerate(RELEASED)}
    return make_run(tmp_path / "run", tasks, suite="mmeb-v2", card=read_card(shipped_card("mmeb-v2")).revision)


def test_the_form_of_the_leaderboard(mmeb_run: Path) -> None:
    run = open_run(mmeb_run)
    data = json.loads(mmeb(run, ["url=https://example.org", "max_length_tokens=512"], NOW))
    assert list(data) == ["metadata", "metrics"]
    assert list(data["metadata"]) == [
        "model_name",
        "model_backbone",
        "model_size",
        "embedding_dimension",
        "max_length_tokens",
        "model_release_date",
        "data_source",
        "url",
        "report_generated_date",
    ]
    assert data["metadata"]["url"] == "https://example.org"
    assert data["metadata"]["max_length_tokens"] == 512
    assert data["metadata"]["embedding_dimension"] == 4
    assert data["metadata"]["model_size"] is None
    assert data["metadata"]["report_generated_date"] == "2026-01-02T03:04:05"
    assert list(data["metrics"]) == ["image", "video", "visdoc"]
    assert {name: section for section, tasks in data["metrics"].items() for name in tasks} == RELEASED
    for tasks in data["metrics"].values():
        for scores in tasks.values():
            assert list(scores) == KEYS
            assert scores["num_pred"] == scores["num_data"] == 30


def test_the_values_are_those_of_their_definitions(mmeb_run: Path, random_task: Callable) -> None:
    """Precision, recall, F1 and average precision of whole rankings, written out from the leaderboard's definitions."""
    scores = json.loads(mmeb(open_run(mmeb_run), [], NOW))["metrics"]["image"]["ImageNet-1K"]
    task = random_task(0, 30, 20, measures=("hit@1",))
    found: dict[str, list[float]] = {}
    for row, relevant in zip(task.scores, task.relevant, strict=True):
        ranked = [task.candidates[place] for place in np.argsort(-row)]
        for k in (1, 5, 10):
            hits = [place for place, one in enumerate(ranked[:k]) if one in relevant]
            p, r = len(hits) / k, len(hits) / len(relevant)
            gain = sum(1 / np.log2(place + 2) for place in hits) / sum(
                1 / np.log2(place + 2) for place in range(min(k, len(relevant)))
            )
            values = {
                "hit": float(bool(hits)),
                "precision": p,
                "recall": r,
                "f1": 2 * p * r / (p + r) if hits else 0.0,
                "map": sum((place + 1) / (one + 1) for place, one in enumerate(hits)) / min(k, len(relevant)),
                "mrr": 1 / (hits[0] + 1) if hits else 0.0,
                "ndcg_linear": gain,
                "ndcg_exponential": gain,
            }
            for name, value in values.items():
                found.setdefault(f"{name}@{k}", []).append(value)
    assert set(found) == set(MMEB_MEASURES)
    for name, values in found.items():
        assert scores[name] == pytest.approx(np.mean(values), abs=1e-12), name


def test_deviations_go_along(mmeb_run: Path) -> None:
    record = json.loads((mmeb_run / "run.json").read_text())
    (mmeb_run / "run.json").write_text(json.dumps(record | {"deviations": ["73 of 78 tasks left out"]}))
    assert json.loads(mmeb(open_run(mmeb_run), [], NOW))["metadata"]["deviations"] == ["73 of 78 tasks left out"]


def test_what_the_leaderboard_does_not_take(
    tmp_path: Path, mmeb_run: Path, make_run: Callable, random_task: Callable
) -> None:
    other = make_run(tmp_path / "other", {"a": random_task(1)}, suite="uvrb")
    older = make_run(tmp_path / "older", {"a": random_task(1)}, suite="mmeb-v2", card="older")
    for folder, metadata, said in (
        (other, [], "is a run of uvrb; the MMEB leaderboard takes runs of mmeb-v2"),
        (older, [], "another version of the card mmeb-v2"),
        (mmeb_run, ["colour=red"], "--meta colour="),
        (mmeb_run, ["url"], "--meta url: write KEY=VALUE"),
    ):
        with pytest.raises(UserError, match=said):
            mmeb(open_run(folder), metadata, NOW)


def test_options_that_do_not_go_together(tmp_path: Path, mmeb_run: Path) -> None:
    run, out = open_run(mmeb_run), tmp_path / "out"
    for request, said in (
        (Request("trec", out, metadata=("url=x",)), "--meta goes with --to mmeb"),
        (Request("mmeb", out, tasks=("a",)), "--tasks and --measures go with --to trec"),
        (Request("mmeb", tmp_path), "name a file inside a folder"),
        (Request("trec", mmeb_run / "run.json"), "is a file; name a folder"),
    ):
        with pytest.raises(UserError, match=said):
            export(run, request)
    assert not out.exists()
