"""``omnirecall frames`` shows what a model would see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def animation(tmp_path: Path) -> Path:
    """Twenty frames, the i-th of brightness 10 i, 50 ms each."""
    pictures = [Image.new("RGB", (20, 10), (10 * number,) * 3) for number in range(20)]
    path = tmp_path / "a.webp"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=50, lossless=True)
    return path


def test_json(animation: Path, command: Callable) -> None:
    result = command("frames", animation, "--count", 3, "--json")
    assert result.code == 0
    assert result.json == {
        "decodable": 20,
        "frames": [{"index": 0, "time": 0.0}, {"index": 10, "time": 0.5}, {"index": 19, "time": 0.95}],
        "warnings": [],
    }
    floor = command("frames", animation, "--count", 3, "--rule", "linspace_floor", "--json").json
    assert [frame["index"] for frame in floor["frames"]] == [0, 9, 19]
    rate = command("frames", animation, "--rule", "fps", "--fps", 4, "--json").json
    assert [frame["index"] for frame in rate["frames"]] == [0, 5, 10, 15]


def test_pictures(animation: Path, tmp_path: Path, command: Callable) -> None:
    result = command("frames", animation, "--count", 2, "--out", tmp_path / "out")
    assert result.code == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["0000_frame000000.png", "0001_frame000019.png"]
    assert all(name in result.out for name in names)
    assert np.asarray(Image.open(tmp_path / "out" / names[1])).tolist() == [[[190] * 3] * 20] * 10
    folder = command("frames", tmp_path / "out", "--shortage", "keep", "--json").json
    assert folder["frames"] == [{"index": 0, "time": None}, {"index": 1, "time": None}]


def test_the_default_is_eight_frames_with_repeats(animation: Path, command: Callable) -> None:
    assert len(command("frames", animation, "--json").json["frames"]) == 8
    small = command("frames", animation, "--max-pixels", 50)
    assert "8 of 10x5" in small.out


def test_a_damaged_file_is_told(animation: Path, tmp_path: Path, command: Callable) -> None:
    gif = tmp_path / "a.gif"
    pictures = [
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (32, 32, 3)).astype(np.uint8)) for n in range(9)
    ]
    pictures[0].save(gif, save_all=True, append_images=pictures[1:], duration=50)
    gif.write_bytes(gif.read_bytes()[:-2000])
    result = command("frames", gif, "--json")
    assert result.code == 0
    assert 0 < result.json["decodable"] < 9
    assert "a.gif" in result.json["warnings"][0]
    assert "warning: " in command("frames", gif).out


def test_mistakes(animation: Path, tmp_path: Path, command: Callable, refused: Callable) -> None:
    refused(command("frames", tmp_path / "none.mp4"), "none.mp4")
    (tmp_path / "notes.mp4").write_text("no video\n" * 9)
    refused(command("frames", tmp_path / "notes.mp4", "--json"), "notes.mp4")
    refused(command("frames", animation, "--count", 0), "count")
    refused(command("frames", animation, "--rule", "every"), "rule")
    refused(command("frames", animation, "--out", animation), animation.name)
