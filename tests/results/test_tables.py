"""Reports: what stands in every format, and names that would break out of one."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirecall.protocol.suites import Mean, MeanValue
from omnirecall.results.record import ModelRecord, Run, TaskRecord, read_run, write_run
from omnirecall.results.scores import MeasureValue
from omnirecall.results.tables import FORMATS, render, rows

HOSTILE = [
    "a|b",
    "a\\|b",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "*bold* _it_ `code` ~~out~~",
    "[link](javascript:alert(1))",
    "50% & more_of #1 $x$ {y} ^z ~",
    "\\end{tabular}",
    "[2pt] first",
    "*starred",
    "two\u2028lines",
    "\x1b[31mred",
    '=1+1, "quoted"',
    "[red]markup[/red]",
]


def record(**changes: Any) -> TaskRecord:
    measures = {"hit@1": MeasureValue(0.25, 0.5, 0.125), "median_rank": MeasureValue(3.5, 3.5, 3.5)}
    fields: dict[str, Any] = {
        "status": "ok",
        "measure": "hit@1",
        "value": 0.25,
        "best": 0.5,
        "worst": 0.125,
        "chance": 0.1,
        "queries": 1234,
        "pool": 56789,
        "direction": "T->I",
        "tied_queries": 7,
        "measures": measures,
    }
    return TaskRecord(**(fields | changes))


def run_of(*names: str, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "omnirecall": "0",
        "suite": "some suite",
        "card": "c",
        "model": ModelRecord("some model", "f", 4, ("text",)),
        "tasks": {name: record() for name in names},
        "means": {"all": MeanValue(0.25, True)},
        "identity": "0123456789ab",
    }
    return Run(**(fields | changes))


@pytest.mark.parametrize("form", FORMATS)
def test_what_stands_in_every_format(form: str) -> None:
    text = render(run_of("one"), form)
    assert text.endswith("\n")
    for part in ("one", "hit@1", "1234" if form in ("csv", "json") else "1,234"):
        assert part in text
    assert ("0.25" if form in ("csv", "json") else "25.00") in text


def test_ties_are_told() -> None:
    for form in ("table", "markdown", "latex"):
        text = " ".join(render(run_of("one"), form).split())
        assert "one: ties decide; hit@1 lies between 12.50 and 50.00 (7 queries with a tie)" in text


def test_ranks_are_no_percentages() -> None:
    text = render(
        run_of("one", tasks={"one": record(measure="median_rank", value=3.5, best=3.5, worst=3.5)}), "markdown"
    )
    assert "| median_rank | 3.5 |" in text


def test_what_is_not_ok_has_no_number() -> None:
    missing = record(
        status="unsupported", value=None, best=None, worst=None, chance=None, measures={}, reason="why not"
    )
    run = run_of("x", tasks={"one": record(), "two": missing}, means={"all": MeanValue(None, False, ("two",))})
    for form in ("table", "markdown", "latex", "csv"):
        text = render(run, form)
        assert "unsupported" in text
        assert "incomplete" in text
    for form in ("table", "markdown", "latex"):
        text = " ".join(render(run, form).split())
        assert "two: why not." in text
        assert "| **all** | | | | mean | **incomplete** |" in text or re.search(
            r"all\}? [│& ]*mean [│&] (\\textbf\{)?incomplete", text
        )
        assert "all is incomplete: no value for two." in text
    assert json.loads(render(run, "json"))["means"]["all"] == {"value": None, "complete": False, "missing": ["two"]}


def test_deviations_and_counts_are_told() -> None:
    run = run_of(
        "x",
        tasks={"one": record(relevant_outside_pool=3, unjudged_queries=4)},
        deviations=("only the first 2 queries of each task",),
        notes=("a shard was damaged",),
    )
    for form in ("table", "markdown", "latex"):
        text = " ".join(render(run, form).split())
        for sentence in (
            "only the first 2 queries",
            "3 relevant candidates lie outside",
            "4 queries without",
            "A shard was damaged",
        ):
            assert sentence in text, form


def cells(line: str) -> list[str]:
    """The cells of a Markdown row, by the rule that a backslash takes the bar after it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)(?:\\\\)*\|", line)][1:-1]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_markdown(name: str) -> None:
    run = run_of(name, deviations=(f"1 of 2 tasks left out: {name}",), means={name: MeanValue(None, False, (name,))})
    text = render(run, "markdown")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert len({len(cells(line)) for line in rows}) == 1
    assert "<" not in text.replace("&lt;", "")
    shown = re.sub(r"\\(.)", r"\1", cells(rows[2])[0]).replace("&lt;", "<").replace("&amp;", "&")
    assert shown.split() == name.replace("\x1b", " ").split()
    for mark in ("*bold*", "`code`", "[link]", "[red]", "~~"):
        assert not re.search(rf"(?<!\\){re.escape(mark)}", text.replace("**", ""))
    assert "_it_" not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_latex(name: str) -> None:
    text = render(run_of(name, means={name: MeanValue(0.5, True)}, suite=f"{name}\n\\input{{x}}"), "latex")
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert "\\input" not in "\n".join(body)
    rows = [line for line in body if line.endswith(r"\\")]
    assert len(rows) == 3
    for row in rows:
        plain = row.replace(r"\textbackslash{}", "").replace(r"$\rightarrow$", "").removesuffix(r"\\")
        assert len(re.findall(r"(?<!\\)&", plain)) == 7
        assert not re.search(r"(?<!\\)[%$#_]", plain)
        assert not re.search(r"^\s*[\[*]", plain.replace(r"\textbf{", ""))
        assert plain.count("{") == plain.count("}")
    assert body[-1] == r"\end{tabular}"
    assert sum(r"\end{tabular}" in line for line in body) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_csv_json_and_terminal(name: str) -> None:
    run = run_of(name)
    rows = list(csv.DictReader(io.StringIO(render(run, "csv"))))
    assert {row["name"] for row in rows if row["kind"] == "task"} == {name}
    assert list(json.loads(render(run, "json"))["tasks"]) == [name]
    if name.isprintable() and len(name) < 20:
        assert name in render(run, "table")
    assert "\x1b" not in render(run, "table")


def test_a_long_name_is_whole_in_the_terminal() -> None:
    name = "a-task-with-a-name-of-more-than-sixty-letters-and-without-any-blank"
    text = render(run_of(name), "table")
    assert name in text.replace("\n", "").replace("│", "").replace(" ", "")


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    run = run_of("one", "two")
    write_run(tmp_path / "run", run)
    assert msgspec.structs.replace(read_run(tmp_path / "run"), folder="") == run
    assert read_run(tmp_path / "run").folder == str(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "tasks" / "two.json").read_text())["task"] == "two"


def grouped() -> Run:
    tree = (
        Mean("first", ("b", "a")),
        Mean("second", ("c",)),
        Mean("again", ("a", "c")),
        Mean("of means", ("first", "second")),
    )
    tasks = {name: record() for name in ("a", "b", "c", "d")}
    means = {mean.name: MeanValue(0.25, True) for mean in tree}
    return run_of("x", tasks=tasks, means=means, tree=tree, mean_intervals={"first": (0.2, 0.3125)})


def test_tasks_stand_under_their_groups() -> None:
    """A group's tasks, its mean, what is in no group, then the means over groups and those whose tasks stand elsewhere."""
    run = grouped()
    found = list(rows(run.tasks, run.tree, run.means))
    assert [name for _, name, _ in found] == ["b", "a", "first", "c", "second", "d", "again", "of means"]
    assert [name for _, name, opens in found if opens] == ["b", "c", "d", "again"]
    assert [name for kind, name, _ in found if kind == "mean"] == ["first", "second", "again", "of means"]
    lines = [line for line in render(run, "markdown").splitlines() if line.startswith("|")][2:]
    assert [cells(line)[0].strip("*") for line in lines] == [name for _, name, _ in found]
    assert render(run, "latex").count(r"\midrule") == 4


def test_a_group_with_a_task_that_was_not_run_keeps_its_tasks() -> None:
    run = grouped()
    found = [name for _, name, _ in rows([name for name in run.tasks if name != "b"], run.tree, run.means)]
    assert found == ["a", "first", "c", "second", "d", "again", "of means"]


def test_intervals_stand_beside_values() -> None:
    measures = {
        "hit@1": MeasureValue(0.25, 0.25, 0.25, (0.125, 0.4375)),
        "mrr": MeasureValue(0.5, 0.5, 0.5, (0.25, 0.75)),
    }
    run = run_of("x", tasks={"one": record(measures=measures)}, mean_intervals={"all": (0.2, 0.3125)})
    assert "| 25.00 | 12.50\u201343.75 | 10.00 |" in render(run, "markdown")
    assert "| **25.00** | 20.00\u201331.25 |" in render(run, "markdown")
    assert "25.00 & 12.50--43.75 & 10.00" in render(run, "latex")
    found = {row["measure"]: row for row in csv.DictReader(io.StringIO(render(run, "csv")))}
    assert (float(found["mrr"]["low"]), float(found["mrr"]["high"])) == (0.25, 0.75)
    assert (float(found["mean"]["low"]), float(found["mean"]["high"])) == (0.2, 0.3125)
    assert json.loads(render(run, "json"))["tasks"]["one"]["measures"]["hit@1"]["interval"] == [0.125, 0.4375]


def test_a_mean_without_an_interval_is_explained() -> None:
    measures = {"hit@1": MeasureValue(0.25, 0.25, 0.25, (0.125, 0.4375))}
    said = "means have no intervals"
    assert said in render(run_of("x", tasks={"one": record(measures=measures)}), "markdown")
    assert said not in render(
        run_of("x", tasks={"one": record(measures=measures)}, mean_intervals={"all": (0, 1)}), "markdown"
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
def test_latex_compiles(tmp_path: Path) -> None:
    """Every hostile name at once, in tasks and means, through pdflatex."""
    printable = [name for name in HOSTILE if name.isprintable()]
    means = {name: MeanValue(0.5, True) for name in printable}
    table = render(run_of(*printable, means=means, mean_intervals=dict.fromkeys(printable, (0.1, 0.9))), "latex")
    head = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "table.tex").write_text(f"{head}{table}\\end{{document}}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 1000
