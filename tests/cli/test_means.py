"""`omnirecall means`, and what an incomplete group looks like wherever a mean is shown."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omnirecall.protocol.cards import read_card, shipped_card
from omnirecall.protocol.published.rows import read_published
from omnirecall.protocol.suites import mean_values
from omnirecall.results.record import ModelRecord, Run, TaskRecord, write_run
from omnirecall.results.scores import MeasureValue

ABOVE_CMRB = {"T", "FG", "TXT", "AVG_D", "AVG_A"}


def uvrb_row() -> dict[str, float]:
    row = next(row for row in read_published("uvrb") if row.model == "GVE-7B")
    return {name: row.values[name] for name in read_card(shipped_card("uvrb")).task_names()}


def write(path: Path, values: Mapping[str, object], header: str = "") -> Path:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(values.items())
    path.write_text(header + out.getvalue())
    return path


@pytest.fixture
def values(tmp_path: Path) -> Path:
    return write(tmp_path / "values.csv", uvrb_row())


def test_the_published_means_come_out(command: Any, values: Path) -> None:
    shown = command("means", "uvrb", values)
    assert shown.code == 0
    lines = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()[3:]}
    assert lines["AVG_D"] == ["0.5726", "16"]
    assert lines["FG"] == ["0.5693", "7"]
    assert "incomplete" not in shown.out
    means = command("means", "uvrb", values, "--json").json
    assert set(means["AVG_D"]) == {"value", "complete"}
    assert means["AVG_D"]["value"] == pytest.approx(0.573, abs=0.0011)
    assert means["AVG_A"]["complete"] is True


@pytest.mark.parametrize("header", ["task,value\n", "Dataset,score\n", "\ufefftask,value\n", "\n\n", ""])
def test_a_header_is_optional(command: Any, tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "values.csv", uvrb_row(), header)
    assert command("means", "uvrb", path, "--json").json["AVG_D"]["complete"] is True


def test_percentages_are_taken_as_given(command: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "values.csv", {name: 100 * value for name, value in uvrb_row().items()})
    assert command("means", "uvrb", path, "--json").json["AVG_D"]["value"] == pytest.approx(57.26, abs=0.01)
    assert "mixed" not in command("means", "uvrb", path).out
    mixed = write(tmp_path / "mixed.csv", {**uvrb_row(), "MSRVTT": 46.4})
    assert "Fractions and percentages may be mixed" in command("means", "uvrb", mixed).out


def test_one_task_missing_marks_its_groups_and_all_above(command: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "values.csv", {name: value for name, value in uvrb_row().items() if name != "CMRB"})
    means = command("means", "uvrb", path, "--json").json
    assert {name for name, mean in means.items() if not mean["complete"]} == ABOVE_CMRB
    for name, mean in means.items():
        if name in ABOVE_CMRB:
            assert mean == {"value": None, "complete": False, "missing": ["CMRB"]}
    shown = command("means", "uvrb", path).out
    assert {line.split()[0] for line in shown.splitlines() if line.split()[1:2] == ["incomplete"]} == ABOVE_CMRB
    assert "T, FG, TXT, AVG_D, AVG_A are incomplete: no value for CMRB." in shown


def run_without(folder: Path, left_out: str) -> Path:
    """A run of UVRB with one task left out, as a folder."""
    card = read_card(shipped_card("uvrb"))
    values = {name: value for name, value in uvrb_row().items() if name != left_out}
    records = {
        name: TaskRecord(
            status="ok",
            measure=str(card.task(name).measure),
            value=value,
            measures={str(card.task(name).measure): MeasureValue(value, value, value, (value - 0.01, value + 0.01))},
        )
        for name, value in values.items()
    }
    means = mean_values(card.means, values)
    run = Run(
        omnirecall="0",
        suite="uvrb",
        card=card.revision,
        model=ModelRecord(name="m", fingerprint="f", dimension=2, modalities=("text",)),
        tasks=records,
        means=means,
        mean_intervals={name: (mean.value, mean.value) for name, mean in means.items() if mean.value is not None},
    )
    write_run(folder, run)
    return folder


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "csv", "json"])
def test_an_incomplete_mean_is_marked_in_every_format_of_a_report(command: Any, tmp_path: Path, form: str) -> None:
    folder = run_without(tmp_path, "CMRB")
    shown = command("report", folder, "--format", form)
    assert shown.code == 0
    if form == "json":
        means = json.loads(shown.out)["means"]
        incomplete = {name for name, mean in means.items() if not mean["complete"]}
        assert all(means[name]["value"] is None and means[name]["missing"] == ["CMRB"] for name in incomplete)
    elif form == "csv":
        rows = [row for row in csv.DictReader(io.StringIO(shown.out)) if row["kind"] == "mean"]
        incomplete = {row["name"] for row in rows if row["status"] == "incomplete"}
        assert all(not row["value"] for row in rows if row["name"] in incomplete)
        assert len(rows) == 11
    else:
        cells = [
            [cell.strip(" *\\") for cell in line.replace("\u2502", "|").replace("&", "|").split("|")]
            for line in re.sub(r"\\textbf\{([^}]*)\}", r"\1", shown.out).splitlines()
        ]
        cells = [[cell.replace("\\_", "_") for cell in row if cell] for row in cells]
        incomplete = {row[0] for row in cells if "incomplete" in row}
        for name in ABOVE_CMRB:
            assert f"{name} is incomplete: no value for CMRB" in shown.out.replace("\n", " ").replace("\\_", "_")
    assert incomplete == ABOVE_CMRB


def test_old_page_sets_are_a_deviation(command: Any, tmp_path: Path) -> None:
    row = next(row for row in read_published("mmeb-v2-momentseeker-1800") if row.model.startswith("VLM2Vec-V2.0"))
    tasks = {name: value for name, value in row.values.items() if name not in ("Image", "Video", "VisDoc", "Overall")}
    assert "ViDoSeek-page" in tasks
    path = write(tmp_path / "values.csv", tasks)
    means = command("means", "mmeb-v2", path, "--json").json
    assert [round(100 * means[name]["value"], 2) for name in ("Image", "Video", "VisDoc", "Overall")] == [
        64.85,
        34.58,
        65.36,
        58.02,
    ]
    assert {name for name, mean in means.items() if "deviations" in mean} == {"VisDoc-OOD", "VisDoc", "Overall"}
    assert len(means["Overall"]["deviations"]) == 2
    shown = command("means", "mmeb-v2", path).out
    assert "Departs from the protocol: ViDoSeek-page stands for ViDoSeek-page-fixed, scored before" in shown
    new = write(tmp_path / "new.csv", {**tasks, "ViDoSeek-page-fixed": 0.8})
    refused = command("means", "mmeb-v2", new)
    assert refused.code == 2
    assert "ViDoSeek-page-fixed has a value already" in refused.err


def test_a_variant_and_the_unknown_say_so(command: Any, tmp_path: Path) -> None:
    union = next(row for row in read_published("mbeir-union"))
    shown = command("means", "mbeir-union", write(tmp_path / "u.csv", union.values)).out
    assert "Departs from the protocol: every query is ranked against the union of all pools" in shown
    card = read_card(shipped_card("omniret"))
    path = write(tmp_path / "o.csv", dict.fromkeys(card.task_names(), 0.5))
    means = command("means", "omniret", path, "--json").json
    assert {name for name, mean in means.items() if "unknown" in mean} == {"V->T", "T->V", "AVG"}
    assert means["AVG"]["value"] == 0.5
    assert "AVG rests on what is not known of msrvtt_v2t" in command("means", "omniret", path).out


def test_names_with_commas_need_no_quotes(command: Any, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text('A,T->A,23.0\n"A->V", 35.5\n')
    shown = command("means", "acm", tmp_path / "v.csv")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "acm: values for 2 of 5 tasks")
    assert command("means", "acm", tmp_path / "v.csv", "--json").json == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MSRVTT,0.4\nCRBG,0.5\n", "line 2: uvrb has no task named CRBG; did you mean CRB-G?"),
        ("name,value\nMSRVT,0.4\n", "line 2: uvrb has no task named MSRVT; did you mean MSRVTT?"),
        ("MSRVTT,0.4\nMSRVTT,0.4\n", "line 2: MSRVTT has a value already, in line 1; give it once"),
        ("MSRVTT,0.4\nAVG_D,0.4\n", "line 2: AVG_D is a mean of uvrb, which is worked out here; leave it out"),
        ("MSRVTT,high\n", "line 1: 'high' is no number; write task,value"),
        ("MSRVTT,nan\n", "line 1: the value nan of MSRVTT is neither a fraction nor a percentage"),
        ("MSRVTT,101\n", "line 1: the value 101 of MSRVTT is neither"),
        ("MSRVTT,-1\n", "line 1: the value -1 of MSRVTT is neither"),
        ("0.4\n", "line 1: '0.4' alone; write task,value"),
        ('MSRVTT,"0.4\n', "line 1: not CSV"),
        ("task,value\n", "no values; write task,value on each line"),
        ("", "no values"),
    ],
)
def test_refused_by_line(command: Any, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "v.csv").write_text(text)
    refused = command("means", "uvrb", tmp_path / "v.csv")
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert "v.csv" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_file_that_cannot_be_read(command: Any, tmp_path: Path) -> None:
    missing = command("means", "uvrb", tmp_path / "no.csv")
    assert (missing.code, "there is no such file" in missing.err) == (2, True)
    (tmp_path / "b.csv").write_bytes(b"MSRVTT,\xff\n")
    assert command("means", "uvrb", tmp_path / "b.csv").code == 2
    assert command("means", "uvrb", tmp_path).code == 2
    assert "did you mean uvrb?" in command("means", "uvbr", tmp_path / "no.csv").err


PAGE = Path(__file__).parents[2] / "docs" / "suites.md"


def blocks(kind: str) -> list[str]:
    """The blocks of the page of that kind, in its order."""
    return [part.split("```")[0] for part in PAGE.read_text().split(f"```{kind}\n")[1:]]


def test_the_page_shows_what_the_commands_print(command: Any, tmp_path: Path) -> None:
    listed, shown, means, table = blocks("text")
    assert command("suites").out == listed
    printed = command("suites", "uvrb").out.splitlines()
    assert all(line in printed for line in shown.splitlines() if line != "...")
    path = write(tmp_path / "values.csv", {name: value for name, value in uvrb_row().items() if name != "CMRB"})
    assert command("means", "uvrb", path).out == means
    assert command("means", "uvrb", path, "--json").out.startswith(table.removesuffix("...\n"))
    (tmp_path / "own.toml").write_text(blocks("toml")[0])
    card = read_card(tmp_path / "own.toml")
    assert card.task_names() == ["nights_task4", "clips"]
    assert card.task("clips").facts["query_count"].source == "Table 2"
