"""What a reader must know of a number stands under every table that shows it."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from omnirecall.results.tables import FORMATS

SUITE = """
[suite]
name = "small"
departs = "the pool is that of all tasks together"

[[task]]
name = "one"
measure = { value = "hit@1", certainty = "assumed", source = "no paper names it" }
printed = "R@1"
"""


def run_twice(command: Callable, folder: Path, out: Path) -> list[dict]:
    """The run record of a first run and of one from stored vectors."""
    return [command("run", folder, "--model", "random:8", "--out", out, "--json").json for _ in range(2)]


@pytest.fixture
def small(tmp_path: Path, own_data: Callable) -> Path:
    folder = own_data(tmp_path / "small")
    (folder / "task.toml").unlink()
    (folder / "suite.toml").write_text(SUITE)
    return folder


def test_departures_and_assumed_facts(small: Path, tmp_path: Path, command: Callable) -> None:
    """The card's departure is a deviation of the run, and an assumed fact is named with its source and its tasks."""
    run = run_twice(command, small, tmp_path / "runs")[0]
    assert run["deviations"] == ["the pool is that of all tasks together"]
    assert run["uncertain"] == ["measure assumed (no paper names it): one"]
    folder = next((tmp_path / "runs" / "small").iterdir())
    for form in set(FORMATS) - {"csv"}:
        shown = command("report", folder, "--format", form).out.replace("\n", " ")
        assert "the pool is that of all tasks together" in shown
        assert "no paper names it" in shown
    assert "hit@1, printed R@1" in command("report", folder).out


def test_other_sizes_than_the_card_are_a_deviation(small: Path, tmp_path: Path, command: Callable) -> None:
    """A pool or a set of queries of another size is not the benchmark, unless a limit was asked for, which says so itself."""
    card = small / "suite.toml"
    said = "other numbers of queries or candidates than the card in 1 tasks: one"
    for line, options, expected in (
        ("query_count = 2\ncandidate_count = 3", [], False),
        ("query_count = 5", [], True),
        ("candidate_count = 5", [], True),
        ("query_count = 5", ["--limit", 1], False),
        ('candidate_count = { value = 5, certainty = "assumed" }', [], False),
    ):
        card.write_text(f"{SUITE}{line}\n")
        run = command("run", small, "--model", "random:8", "--out", tmp_path / "runs", "--json", *options).json
        assert (said in run["deviations"]) == expected, line


def cut_wav(path: Path) -> None:
    """A sound file that ends in the middle of what its header promises."""
    whole = io.BytesIO()
    with wave.open(whole, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((np.sin(np.arange(16000) / 20) * 9000).astype("<i2").tobytes())
    path.write_bytes(whole.getvalue()[:20000])


def test_damaged_media_are_named_cold_and_warm(tmp_path: Path, own_data: Callable, command: Callable) -> None:
    """A file that was cut short decodes as far as it goes, and every run says so, also when nothing is decoded."""
    folder = own_data(tmp_path / "mine", candidates=[{"id": "c1", "audio": "c1.wav"}, {"id": "c2", "text": "two"}])
    cut_wav(folder / "c1.wav")
    for run in run_twice(command, folder, tmp_path / "runs"):
        assert len(run["media_warnings"]) == 1
        assert "c1.wav" in run["media_warnings"][0]
    assert "c1.wav" in command("report", next((tmp_path / "runs" / "mine").iterdir())).out
