"""`make demo`: the main job, end to end, on real media."""

from __future__ import annotations

import json
import re
import sys

import pytest

from .conftest import REPOSITORY, Demo, shell

LEAST = {
    "image-to-video": 0.80,
    "video-to-image": 0.75,
    "speech-to-text": 0.85,
    "text-to-speech": 0.85,
    "text-to-text": 0.85,
    "text-to-image": 0.10,
    "image-to-text": 0.08,
    "text-to-video": 0.06,
}
"""Well below what the recipe scores and far above chance: a wiring fault falls through these floors."""


def test_it_prints_every_task_and_mean(demo: Demo) -> None:
    """The table names each task of the suite, and the run has a value for each."""
    assert demo.cold.returncode == 0, demo.cold.stderr
    run = json.loads(next((demo.runs / "starter").glob("*/run.json")).read_text())
    assert len(run["tasks"]) == 14
    for name, task in run["tasks"].items():
        assert name in demo.cold.stdout
        assert task["status"] == "ok"
    assert all(mean["complete"] for mean in run["means"].values())


@pytest.mark.parametrize("task", LEAST)
def test_the_shared_space_is_wired_right(demo: Demo, task: str) -> None:
    """Each direction scores far above chance."""
    run = json.loads(next((demo.runs / "starter").glob("*/run.json")).read_text())
    assert run["tasks"][task]["measure"] == "hit@1"
    assert run["tasks"][task]["value"] > LEAST[task]
    assert run["tasks"][task]["value"] > 8 * run["tasks"][task]["chance"]


def test_the_second_run_embeds_nothing(demo: Demo) -> None:
    """The same table, from stored vectors."""
    assert re.search(r"^[1-9]\d* of \d+ items embedded now", demo.cold.stdout, re.MULTILINE)
    assert re.search(r"^0 of \d+ items embedded now", demo.warm.stdout, re.MULTILINE)
    assert _table(demo.warm.stdout) == _table(demo.cold.stdout)


def test_a_warm_run_loads_no_model_library(demo: Demo) -> None:
    """Neither torch nor the libraries that decode and transcribe are imported when every vector is stored."""
    script = (
        "import sys, omnirecall\n"
        f"run = omnirecall.evaluate('starter', 'starter', out=__import__('pathlib').Path({str(demo.runs)!r}))\n"
        "assert run.embedded['now'] == 0\n"
        "print([name for name in ('torch', 'transformers', 'sentence_transformers', 'ctranslate2', 'av') if name in sys.modules])\n"
    )
    done = shell(f"{sys.executable} - <<'END'\n{script}END", REPOSITORY)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_readme_shows_the_table_that_it_prints(demo: Demo) -> None:
    """The table in the README is the report of this run, within what rounding on another machine may change."""
    folder = next((demo.runs / "starter").glob("*/run.json")).parent
    report = shell(f"omnirecall report '{folder}' --format markdown", REPOSITORY).stdout
    readme = (REPOSITORY / "README.md").read_text()
    shown = readme.split("<!-- table: omnirecall run starter --model starter -->")[1].split("<!-- end of table -->")[0]
    rows, printed = _cells(shown), _cells(report)
    assert rows.keys() == printed.keys()
    for name, cells in rows.items():
        assert cells[:-3] == printed[name][:-3]
        assert float(cells[-3].strip("*")) == pytest.approx(float(printed[name][-3].strip("*")), abs=3)
        assert cells[-1] == printed[name][-1]


def _cells(table: str) -> dict[str, list[str]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in rows[2:]}


def _table(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("│", "├"))]
