"""Comparisons: what stands in the table, and which runs do not belong in one."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card
from omnirecall.protocol.suites import Mean
from omnirecall.results.compare import Comparison, compare
from omnirecall.results.compare_tables import FORMATS, render, signed
from omnirecall.results.paired import holm, paired_task
from omnirecall.results.published import PublishedColumn, published_beside
from omnirecall.results.record import Run
from omnirecall.results.stored import open_run, primary_measure, primary_values, read_task

TREE = (Mean("both", ("a", "b")),)
Make = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path, make_run: Callable, random_task: Callable) -> Make:
    """An opened run of two tasks whose clusters are shared: ``run("name", skill, **changes)``."""

    def made(model: str, skill: float, *, only: str = "ab", **changes: Any) -> Run:
        clusters = [f"video {row // 2}" for row in range(60)]
        fields = {"a": {}, "b": {"clusters": clusters}}
        tasks = {name: random_task(ord(name), skill=skill, **fields[name]) for name in only}
        return open_run(make_run(tmp_path / model, tasks, model=model, tree=TREE, **changes))

    return made


def values(run: Run, name: str) -> np.ndarray:
    return primary_values(run, name, read_task(run, name))


def entry(comparison: Comparison, name: str, place: int) -> Any:
    return next(row for row in comparison.rows if row.name == name).entries[place]


def test_differences_are_those_of_the_queries(run: Make) -> None:
    first, second, third = run("weak", 0.5), run("strong", 2.0), run("middle", 1.2)
    found = compare([first, second, third])
    assert [(row.kind, row.name) for row in found.rows] == [("task", "a"), ("task", "b"), ("mean", "both")]
    a = entry(found, "a", 1).paired
    one, other = values(first, "a"), values(second, "a")
    wins, losses = int((other > one).sum()), int((other < one).sum())
    assert (a.wins, a.losses, a.ties) == (wins, losses, 60 - wins - losses)
    assert a.p == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)
    assert a.difference == pytest.approx(other.mean() - one.mean())
    b = entry(found, "b", 2).paired
    assert b == paired_task(primary_measure(first, "b"), values(first, "b"), values(third, "b"), np.arange(60) // 2)
    assert entry(found, "a", 0).paired is None
    mean = entry(found, "both", 1).paired
    assert mean.difference == pytest.approx(second.means["both"].value - first.means["both"].value)
    assert mean.low < mean.difference < mean.high


def test_holm_is_over_all_tests_of_tasks(run: Make) -> None:
    found = compare([run("weak", 0.5), run("strong", 1.4), run("middle", 1.0)])
    tests = [entry(found, name, place) for name in "ab" for place in (1, 2)]
    assert [one.adjusted for one in tests] == pytest.approx(holm([one.paired.p for one in tests]))
    means = [entry(found, "both", place) for place in (1, 2)]
    assert [one.adjusted for one in means] == pytest.approx(holm([one.paired.p for one in means]))
    notes = " ".join(found.footnotes)
    assert "over the 4 tests of tasks" in notes
    assert "over the 2 of means" in notes
    assert "McNemar, exact (2)" in notes


def test_queries_in_another_order_are_matched_by_their_ids(run: Make) -> None:
    first, second = run("weak", 0.5), run("strong", 2.0)
    straight = compare([first, second])
    path = Path(second.folder) / "tasks" / "a.parquet"
    pq.write_table(pq.read_table(path).take(np.random.default_rng(0).permutation(60)), path)
    assert compare([first, second]).rows == straight.rows


def test_a_task_that_one_run_lacks(run: Make) -> None:
    found = compare([run("weak", 0.5), run("strong", 2.0, only="a")])
    assert entry(found, "b", 1).status == "not run"
    assert entry(found, "both", 1).status == "incomplete"
    assert entry(found, "b", 1).paired is None
    assert entry(found, "a", 1).paired is not None
    assert "strong: both is incomplete: no value for b." in found.footnotes
    other = compare([run("partial", 2.0, only="a"), run("weaker", 0.4)])
    assert [row.name for row in other.rows if row.kind == "task"] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"suite": "other"}, "one is a run of made, the other of other"),
        ({"card": "another card"}, "their cards of made differ"),
    ],
)
def test_runs_of_other_cards_are_refused(run: Make, changes: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        compare([run("weak", 0.5), run("strong", 2.0, **changes)])


@pytest.mark.parametrize("part", ["queries", "pool", "judgments"])
def test_tasks_on_other_data_are_refused(tmp_path: Path, make_run: Callable, random_task: Callable, part: str) -> None:
    hashes = {"queries": "q", "pool": "p", "judgments": "j"}
    first = open_run(make_run(tmp_path / "first", {"a": random_task(1)}))
    for other, said in ((hashes | {part: "x"}, f"the {part} of task a differ"), ({}, "have no hash")):
        second = open_run(make_run(tmp_path / "second", {"a": random_task(1, hashes=other)}))
        with pytest.raises(UserError, match=said) as refusal:
            compare([first, second])
        assert str(first.folder) in str(refusal.value)
        assert str(second.folder) in str(refusal.value)


def test_other_measures_are_refused(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    runs = [
        open_run(make_run(tmp_path / measure, {"a": random_task(1, measures=(measure,))}))
        for measure in ("hit@1", "mrr")
    ]
    with pytest.raises(UserError, match="task a is measured by hit@1 and by mrr"):
        compare(runs)


def test_fewer_than_two_runs_are_refused(run: Make) -> None:
    one = run("weak", 0.5)
    with pytest.raises(UserError, match="at least two"):
        compare([one])
    with pytest.raises(UserError, match="named twice"):
        compare([one, one])


def test_deviations_and_prompts_are_told(run: Make) -> None:
    found = compare(
        [run("weak", 0.5), run("strong", 2.0, deviations=("only the first 60 queries",), uncertain=("x assumed: a",))]
    )
    assert "strong: Departs from the protocol: only the first 60 queries." in found.footnotes
    assert "strong: x assumed: a." in found.footnotes


COLUMNS = (
    PublishedColumn(
        model="Paper|1", source="arXiv 1", values={"a": 0.99, "both": 0.5}, seen="its training part", differs=("a",)
    ),
    PublishedColumn(
        model="Paper_2", source="arXiv 1", values={"a": 0.98, "b": 0.01}, misprints=("a",), note="zero-shot"
    ),
    PublishedColumn(model="Paper_3", source="arXiv 2", values={"a": 0.97}),
)


@pytest.mark.parametrize("form", FORMATS)
def test_what_stands_in_every_format(run: Make, form: str) -> None:
    found = compare([run("weak", 0.5), run("strong", 2.0)], COLUMNS)
    text = render(found, form)
    assert text.endswith("\n")
    for part in ("weak", "strong", "both", "hit@1", "Paper"):
        assert part in text
    if form not in ("csv", "json"):
        notes = " ".join(text.split())
        for part in (
            "Published in arXiv 1: Paper",
            "its training part",
            "measured in another way: a",
            "misprinted",
            "zero-shot",
        ):
            assert part in notes


def test_published_values_stand_beside_with_their_marks(run: Make) -> None:
    text = render(compare([run("weak", 0.5), run("strong", 2.0)], COLUMNS), "markdown")
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "Paper\\|1 \u2021" in lines["task"]
    assert "99.00\u2020" in lines["a"]
    assert "98.00\u00a7" in lines["a"]
    assert "**97.00**" in lines["a"]
    assert "**99.00" not in lines["a"]
    rows = list(csv.DictReader(io.StringIO(render(compare([run("w", 0.5), run("s", 2.0)], COLUMNS), "csv"))))
    published = {(row["model"], row["name"]): row for row in rows if row["status"] == "published"}
    assert published["Paper|1", "a"]["marks"] == "differs seen"
    assert published["Paper_2", "a"]["marks"] == "misprint"
    assert float(published["Paper_3", "a"]["value"]) == 0.97
    assert published["Paper_3", "a"]["source"] == "arXiv 2"


def test_the_best_is_bold_and_the_second_underlined(run: Make) -> None:
    found = compare([run("weak", 0.5), run("strong", 2.0), run("middle", 1.2)])
    shown = {row.name: [one.value for one in row.entries] for row in found.rows}
    text = render(found, "latex")
    for name, (weak, strong, middle) in shown.items():
        (line,) = [line for line in text.splitlines() if re.match(rf"(\\textbf{{)?{name}}}? &", line)]
        assert strong > middle > weak
        assert rf"\textbf{{{100 * strong:.2f} " in line
        assert rf"\underline{{{100 * middle:.2f} " in line
        assert f"& {100 * weak:.2f} " in line
    assert r"\toprule" in text


def test_json_holds_the_whole_comparison(run: Make) -> None:
    found = compare([run("weak", 0.5), run("strong", 2.0)], seed=7)
    data = json.loads(render(found, "json"))
    assert data["seed"] == 7
    assert data["rows"][0]["entries"][1]["paired"]["p"] == entry(found, "a", 1).paired.p
    assert data["runs"][1]["identity"] == "id-strong"
    assert str(Path(open_run(Path(run("weak", 0.5).folder)).folder)) not in json.dumps(data)


def test_signs() -> None:
    assert [signed(value, "hit@1") for value in (0.1234, -0.5, 0.0, -0.000001)] == [
        "+12.34",
        "\u221250.00",
        "0.00",
        "0.00",
    ]


def test_two_runs_of_one_model_are_told_apart(tmp_path: Path, make_run: Callable, random_task: Callable) -> None:
    runs = [
        open_run(make_run(tmp_path / name, {"a": random_task(1, skill=skill)}, identity=name))
        for name, skill in (("1a", 0.5), ("2b", 1.0))
    ]
    assert [one.label for one in compare(runs).runs] == ["one (1a)", "one (2b)"]


def shipped_run(suite: str, **changes: Any) -> Run:
    from omnirecall.results.record import ModelRecord

    card = read_card(shipped_card(suite)).revision
    fields = {
        "omnirecall": "0",
        "suite": suite,
        "card": card,
        "model": ModelRecord("m", "f", 1, ()),
        "tasks": {},
        "means": {},
    }
    return Run(**(fields | changes))


def test_published_rows_of_a_card() -> None:
    """Fractions, misprints and what was seen marked; nothing that rests on an unknown fact; other data marked, not left out."""
    columns = {column.model: column for column in published_beside(shipped_run("uvrb"))}
    suite = read_card(shipped_card("uvrb"))
    assert "GVE-7B" in columns
    assert columns["GME-2B"].misprints == ("AVG_A",)
    assert "AVG_A" not in columns["GME-2B"].sound
    assert columns["GVE-7B"].seen
    for column in columns.values():
        assert all(0 <= value <= 1 for value in column.values.values())
        assert not [name for name in column.values if suite.unknown_below(name)]
    page_sets = published_beside(shipped_run("mmeb-v2-momentseeker-1800"), ["VLM2Vec-V2.0*"])
    assert [column for column in page_sets if "Overall" in column.differs and "Overall" in column.values]
    assert [column.model for column in published_beside(shipped_run("uvrb"), ["GVE-?B"])] == ["GVE-3B", "GVE-7B"]


@pytest.mark.parametrize(
    ("changes", "globs", "said"),
    [
        ({"suite": "starter"}, (), "no published rows of starter"),
        ({"suite": "mine", "card": "x"}, (), "no published rows of mine"),
        ({"suite": "uvrb", "card": "older"}, (), "another version of the card uvrb"),
        ({"suite": "uvrb"}, ("GVE-70B",), "no published row of uvrb is of such a model"),
    ],
)
def test_published_rows_that_do_not_fit(changes: dict, globs: tuple[str, ...], said: str) -> None:
    run = shipped_run("uvrb") if changes["suite"] not in ("uvrb", "starter") else shipped_run(changes["suite"])
    run = msgspec.structs.replace(run, **changes)
    with pytest.raises(UserError, match=said):
        published_beside(run, globs)
