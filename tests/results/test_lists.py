"""What an order of equal scores gives, as far as the stored lists show it, against whole rankings sorted in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_runs import Scored

from omnirecall.errors import UserError
from omnirecall.protocol.measures import Measure
from omnirecall.results.lists import EVER, ordered_task, refuse_deeper
from omnirecall.results.rescore import rescore
from omnirecall.results.stored import open_run


def by_hand(task: Scored, measure: str, tie_break: str) -> float:
    """A measure over whole rankings, by the definitions in the documents."""
    name, _, cut = measure.partition("@")
    found = []
    for scores, relevant in zip(task.scores, task.relevant, strict=True):
        rows = list(range(len(scores)))
        if tie_break == "docno":
            rows.sort(key=lambda row: task.candidates[row].encode(), reverse=True)
        rows.sort(key=lambda row: -scores[row])
        ranked = [task.candidates[row] for row in rows][: int(cut) if cut else None]
        hits = [place for place, one in enumerate(ranked) if one in relevant]
        found.append(
            {
                "hit": float(bool(hits)),
                "recall": len(hits) / len(relevant),
                "precision": len(hits) / int(cut or 1),
                "mrr": 1 / (hits[0] + 1) if hits else 0.0,
            }[name]
        )
    return float(np.mean(found))


def opened(folder: Path, make_run: Callable, task: Scored, top_k: int = 10):
    return open_run(make_run(folder, {"a": task}, top_k=top_k))


@pytest.mark.parametrize("tie_break", ["index", "docno"])
@pytest.mark.parametrize("measure", ["hit@1", "recall@3", "precision@5", "hit@7", "mrr@4"])
@pytest.mark.parametrize("top_k", [10, 25])
def test_ties_in_an_order(
    tmp_path: Path, make_run: Callable, random_task: Callable, tie_break: str, measure: str, top_k: int
) -> None:
    """Either the value of the whole rankings, or a refusal where a tied group goes on beyond the list."""
    task = random_task(4, 50, 30, skill=0.7, coarse=True)
    run = opened(tmp_path / "run", make_run, task, top_k)
    expected = by_hand(task, measure, tie_break)
    if top_k == 10 and tie_break == "docno" and Measure.parse(measure).k > ordered_task(run, "a", "docno").known.min():
        with pytest.raises(UserError, match="larger --top-k"):
            rescore(run, [Measure.parse(measure)], tie_break)
        return
    assert rescore(run, [Measure.parse(measure)], tie_break).tasks["a"][measure].value == pytest.approx(
        expected, abs=1e-12
    )
    assert rescore(run, [Measure.parse(measure)]).tasks["a"][measure].value != pytest.approx(expected, abs=1e-6)


def test_a_list_of_the_whole_pool_knows_every_order(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    task = random_task(5, 40, 12, skill=0.5, coarse=True)
    run = opened(tmp_path / "run", make_run, task, 12)
    for tie_break in ("index", "docno"):
        assert (ordered_task(run, "a", tie_break).known == EVER).all()
        assert rescore(run, [Measure("mrr")], tie_break).tasks["a"]["mrr"].value == pytest.approx(
            by_hand(task, "mrr", tie_break)
        )


def constant(n: int, m: int, relevant: list[Mapping[str, float]]) -> Scored:
    return Scored(np.zeros((n, m)), relevant)


def test_a_model_that_ties_everything(tmp_path: Path, make_run: Callable) -> None:
    """The rows give the order as far as the list goes; the order of ids is not known at all."""
    relevant = [{"c0": 1.0}, {"c3": 1.0}, {"c19": 1.0}]
    run = opened(tmp_path / "run", make_run, constant(3, 20, relevant), 5)
    index = rescore(run, [Measure("hit", 1), Measure("mrr", 5)], "index").tasks["a"]
    assert index["hit@1"].value == pytest.approx(1 / 3)
    assert index["mrr@5"].value == pytest.approx((1 + 1 / 4) / 3)
    assert ordered_task(run, "a", "index").known.tolist() == [5, 5, 5]
    with pytest.raises(UserError, match="hit@6 under --tie-break index needs the order"):
        rescore(run, [Measure("hit", 6)], "index")
    with pytest.raises(UserError, match="query q0 beyond the 5"):
        rescore(run, [Measure("hit", 1)], "docno")
    assert ordered_task(run, "a", "docno").known.tolist() == [0, 0, 0]
    assert rescore(run, [Measure("hit", 1)]).tasks["a"]["hit@1"].value == pytest.approx(1 / 20)
    assert rescore(run, [Measure("hit", 1)], "best").tasks["a"]["hit@1"].value == 1
    assert rescore(run, [Measure("hit", 1)], "worst").tasks["a"]["hit@1"].value == 0


def test_a_tie_among_relevant_ones_alone_needs_no_list(tmp_path: Path, make_run: Callable) -> None:
    """All the candidates of the tied group are relevant, so their ids are known; docno puts the greater id first."""
    scores = np.array([[5.0, 4, 3, 1, 1, 0]])
    run = opened(tmp_path / "run", make_run, Scored(scores, [{"c3": 2.0, "c4": 1.0}]), 2)
    found = ordered_task(run, "a", "docno")
    assert found.ranked.greater.tolist() == [4, 3]
    assert found.known.tolist() == [EVER]


def test_ties_of_others_do_not_matter(tmp_path: Path, make_run: Callable) -> None:
    run = opened(tmp_path / "run", make_run, Scored(np.array([[9.0, 1, 1, 1, 1, 1]]), [{"c0": 1.0}]), 2)
    found = ordered_task(run, "a", "docno")
    refuse_deeper([Measure("mrr")], found, run, "a", "")


def test_a_list_that_contradicts_the_counts_is_refused(tmp_path: Path, make_run: Callable) -> None:
    run = opened(tmp_path / "run", make_run, Scored(np.array([[1.0, 1, 0]]), [{"c0": 1.0}]))
    path = tmp_path / "run" / "tasks" / "a.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("top_ids")
    pq.write_table(table.set_column(place, "top_ids", pa.array([["c1", "c2", "c9"]])), path)
    with pytest.raises(UserError, match="query q0: its list does not hold"):
        ordered_task(run, "a", "docno")


def test_every_measure_in_expectation_is_that_of_the_run(
    tmp_path: Path, make_run: Callable, random_task: Callable
) -> None:
    """Depth does not matter for counts: a list of one is enough."""
    task = random_task(6, coarse=True)
    run = opened(tmp_path / "run", make_run, task, 1)
    found = rescore(run, [Measure.parse(text) for text in task.measures])
    for text, value in run.tasks["a"].measures.items():
        one = found.tasks["a"][text]
        assert (one.value, one.best, one.worst) == pytest.approx((value.value, value.best, value.worst))
        assert one.interval[0] < one.value < one.interval[1]


def test_ir_measures_agrees_under_docno(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    task = random_task(7, 40, 20, skill=0.8, coarse=True)
    run = opened(tmp_path / "run", make_run, task, 20)
    names = {"ndcg@5": "nDCG@5", "recall@3": "R@3", "map": "AP", "mrr": "RR", "precision@4": "P@4"}
    found = rescore(run, [Measure.parse(text) for text in names], "docno").tasks["a"]
    qrels = [
        ir_measures.Qrel(q, d, int(g))
        for q, row in zip(task.queries, task.relevant, strict=True)
        for d, g in row.items()
    ]
    ranked = [
        ir_measures.ScoredDoc(q, d, float(s))
        for q, row in zip(task.queries, task.scores, strict=True)
        for d, s in zip(task.candidates, row, strict=True)
    ]
    judged = ir_measures.calc_aggregate([ir_measures.parse_measure(name) for name in names.values()], qrels, ranked)
    for ours, theirs in names.items():
        assert found[ours].value == pytest.approx(judged[ir_measures.parse_measure(theirs)], abs=1e-9)
