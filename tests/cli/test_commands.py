"""Every command: help with an example, JSON alone on standard output, silence where asked."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from omnirecall import __version__
from omnirecall.cli import COMMANDS

FORMATS = ("table", "markdown", "latex", "csv", "json")


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_has_an_example(name: str | None, command: Callable) -> None:
    result = command(*([name] if name else []), "--help")
    assert (result.code, result.err) == (0, "")
    assert re.search(rf"Example:\s+omnirecall\s+{name or 'run'}", result.out)
    assert command(*([name] if name else []), "-h").out == result.out


def test_help_lists_every_command(command: Callable) -> None:
    text = command("--help").out
    for name, about in COMMANDS.items():
        assert re.search(rf"^  {name}\s+{re.escape(about)}", text, re.MULTILINE)
    assert command("--version").out.strip().endswith(__version__)


def test_no_command_shows_the_help(command: Callable) -> None:
    result = command()
    assert result.code == 2
    assert result.out == command("--help").out
    assert result.err == ""


@pytest.mark.parametrize("arguments", [["suites"], ["suites", "starter"], ["models"], ["models", "random:16"]])
def test_catalogue(arguments: list[str], command: Callable) -> None:
    text, data = command(*arguments), command(*arguments, "--json")
    assert (text.code, text.err, data.code, data.err) == (0, "", 0, "")
    assert text.out.strip()
    assert data.json


def test_what_the_catalogue_says(command: Callable) -> None:
    assert "starter" in command("suites").out
    suite = command("suites", "starter", "--json").json
    assert {"name", "tasks", "means"} <= set(suite)
    text = command("suites", "starter").out
    for task in suite["tasks"]:
        assert task["name"] in text
    model = command("models", "random:16", "--json").json
    assert (model["name"], model["dimension"]) == ("random:16", 16)
    assert model["modalities"] == ["text", "image", "video", "audio"]


@pytest.fixture
def run_folder(tmp_path: Path, own_data: Callable, command: Callable) -> Path:
    folder = own_data(tmp_path / "data")
    result = command("run", folder, "--model", "random:8", "--out", tmp_path / "runs", "--json")
    assert (result.code, result.err) == (0, "")
    (path,) = (tmp_path / "runs").rglob("run.json")
    on_disk = json.loads(path.read_text())
    printed = result.json
    assert printed.pop("folder") == str(path.parent)
    on_disk.pop("folder", None)
    assert printed == on_disk
    return path.parent


def test_reports(run_folder: Path, command: Callable) -> None:
    results = {form: command("report", run_folder, "--format", form) for form in FORMATS}
    assert {(result.code, result.err) for result in results.values()} == {(0, "")}
    for form, result in results.items():
        assert "mine" in result.out, form
        assert "hit@1" in result.out, form
    assert command("report", run_folder).out == results["table"].out
    assert command("report", run_folder / "run.json").out == results["table"].out
    assert command("report", run_folder, "--json").out == results["json"].out
    rows = list(csv.DictReader(io.StringIO(results["csv"].out)))
    run = results["json"].json
    values = {row["measure"]: float(row["value"]) for row in rows if row["kind"] == "task"}
    assert values == {name: measure["value"] for name, measure in run["tasks"]["mine"]["measures"].items()}


def test_quiet(tmp_path: Path, own_data: Callable, command: Callable) -> None:
    folder = own_data(tmp_path / "data")
    loud = command("run", folder, "--model", "random:8", "--out", tmp_path / "runs")
    assert (loud.code, loud.err) == (0, "")
    assert "5 of 5 items embedded now" in loud.out
    again = command("run", folder, "--model", "random:8", "--out", tmp_path / "runs")
    assert "0 of 5 items embedded now" in again.out
    quiet = command("run", folder, "--model", "random:8", "--out", tmp_path / "runs", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_what_fails_inside_a_model_ends_with_code_1(
    tmp_path: Path, own_data: Callable, command: Callable, model: Callable, no_leftovers: Callable
) -> None:
    name = model("\n    def encode(self, items, *, role):\n        raise RuntimeError('out of\\nmemory')\n")
    result = command("run", own_data(tmp_path / "data"), "--model", name, "--out", tmp_path / "runs")
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert "RuntimeError: out of\\nmemory" in result.err
    assert "--debug" in result.err
    no_leftovers(tmp_path / "runs")


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path, own_data: Callable, command: Callable) -> None:
    command("run", own_data(tmp_path / "data"), "--model", "random:8", "--out", tmp_path / "runs")
    (path,) = (tmp_path / "runs").rglob("run.json")
    script = f"{sys.executable} -m omnirecall report {path.parent} --format json | head -c 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


def test_what_libraries_warn_of_is_not_shown(tmp_path: Path, own_data: Callable) -> None:
    folder = own_data(tmp_path / "data", candidates=[{"id": "c1", "image": "a.jpg"}, {"id": "c2", "text": "due"}])
    damaged = b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01\x12"  # nine entries are announced, none is there
    Image.new("RGB", (8, 8)).save(folder / "a.jpg", exif=damaged)
    arguments = ["run", folder, "--model", "random:8", "--out", tmp_path / "runs", "-q"]
    done = subprocess.run([sys.executable, "-m", "omnirecall", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
