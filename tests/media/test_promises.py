"""A packet scan is a shortcut: where a seek starts, what it costs, and that a broken promise is always noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from clips import make_clip, numbers_of

from omnirecall.media import video
from omnirecall.media.picking import Run, runs_for
from omnirecall.media.scan import Scan, scan_packets
from omnirecall.media.video import load_frames
from omnirecall.protocol.suites import MediaPolicy


def scan_of(times: list[int | None], keys: list[int]) -> Scan:
    shown = [time for time in times if time is not None]
    return Scan(times, keys, sorted(shown), True, 0, (), {time: times.index(time) for time in shown})


def test_where_a_seek_starts() -> None:
    # I B B P in decoding order, then an open group: its key is shown at 6, its leading pictures at 4 and 5.
    scan = scan_of([0, 3, 1, 2, 6, 4, 5, 9, 7, 8], [0, 4])
    assert [scan.start_for(time) for time in range(10)] == [0, 0, 0, 0, 0, 0, 4, 4, 4, 4]
    assert scan_of([3, 1, 2], [0]).start_for(1) is None  # needs a group that the file does not hold


def test_seek_or_in_order() -> None:
    scan = scan_of(list(range(1000)), list(range(0, 1000, 100)))
    assert runs_for(scan, [0, 500, 999]) == [Run(0, [0]), Run(500, [500]), Run(900, [999])]
    assert runs_for(scan, [0, 40, 500]) == [Run(0, [0, 40]), Run(500, [500])]
    assert runs_for(scan, [210, 395, 402]) == [Run(200, [210]), Run(300, [395, 402])]  # on the way: no seek
    assert runs_for(scan, list(range(0, 1000, 5))) is None
    assert runs_for(scan_of(list(range(1000)), [0]), [0, 500, 999]) is None


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("phantom", [1, 3])
def test_frames_that_were_promised_and_do_not_come(codec: str, phantom: int, tmp_path: Path) -> None:
    """As if every ``phantom``-th packet were a field or a hidden frame: all wanted timestamps exist, but the indices are wrong."""
    path = make_clip(tmp_path / "a.mp4", 120, codec, gop=12)

    def hopeful(*arguments: Any) -> Scan:
        scan = scan_packets(*arguments)
        extra = [time + 1 for time in scan.promised[::phantom]]
        places = {time + 1: scan.place_of[time] for time in scan.promised[::phantom]}
        return replace(scan, promised=sorted([*scan.promised, *extra]), place_of={**scan.place_of, **places})

    with mock.patch.object(video, "scan_packets", hopeful):
        for count in (2, 3, 8, 50):
            for rule in ("linspace_round", "segment_start"):
                frames = load_frames(path, MediaPolicy(frames=count, rule=rule), "item x")
                assert frames.decodable == 120
                assert numbers_of(frames.pixels) == frames.indices.tolist()
        spaced = load_frames(path, MediaPolicy(frames=3), "item x").indices
        assert spaced.tolist() == np.round(np.linspace(0, 119, 3)).astype(int).tolist()


def test_a_frame_that_comes_unpromised(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 120, gop=12)

    def forgetful(*arguments: Any) -> Scan:
        scan = scan_packets(*arguments)
        return replace(scan, promised=[time for place, time in enumerate(scan.promised) if place % 3 != 1])

    with mock.patch.object(video, "scan_packets", forgetful):
        for count in (3, 8, 50):
            frames = load_frames(path, MediaPolicy(frames=count), "item x")
            assert frames.decodable == 120
            assert numbers_of(frames.pixels) == frames.indices.tolist()
