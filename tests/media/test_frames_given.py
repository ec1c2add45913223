"""The frames that reach a model are those that the policy names, among those that the decoder outputs."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirecall.errors import UserError
from omnirecall.media.frame_rules import wanted_frames
from omnirecall.media.video import load_frames
from omnirecall.protocol.suites import MediaPolicy

FPS = 10
STEP = 4  # of brightness between one frame and the next; coarse enough to outlive the codec


def clip(path: Path, frames: int, codec: str = "libx264", **options: str) -> Path:
    """A clip whose frame i has the brightness 10 + 4 i."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            picture = np.full((32, 32, 3), 10 + STEP * index, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def shown(path: Path, policy: MediaPolicy) -> list[int]:
    """Which frames came, by their brightness."""
    frames = load_frames(path, policy, "item x")
    assert frames.pixels.dtype == np.uint8
    assert frames.pixels.shape[1:] == (32, 32, 3)
    found = np.rint((frames.pixels.mean((1, 2, 3)) - 10) / STEP).astype(int).tolist()
    assert frames.times.tolist() == pytest.approx([index / FPS for index in found], abs=1e-3)
    return found


@pytest.mark.parametrize("frames", [8, 9, 16, 23, 50])
def test_eight_frames_at_round_linspace(frames: int, tmp_path: Path) -> None:
    expected = np.round(np.linspace(0, frames - 1, 8)).astype(int).tolist()
    assert shown(clip(tmp_path / "a.mp4", frames), MediaPolicy()) == expected


@pytest.mark.parametrize("codec", ["mpeg4", "libvpx-vp9"])
def test_other_codecs(codec: str, tmp_path: Path) -> None:
    suffix = "webm" if codec == "libvpx-vp9" else "mp4"
    assert shown(clip(tmp_path / f"a.{suffix}", 20, codec), MediaPolicy(frames=4)) == [0, 6, 13, 19]


def test_a_short_video_repeats_frames_or_keeps_those_it_has(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", 3)
    assert shown(path, MediaPolicy()) == np.round(np.linspace(0, 2, 8)).astype(int).tolist()
    assert shown(path, MediaPolicy(shortage="keep")) == [0, 1, 2]
    assert shown(clip(tmp_path / "b.mp4", 1), MediaPolicy()) == [0] * 8


def test_the_other_rules(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", 10)
    assert shown(path, MediaPolicy(frames=4, rule="linspace_floor")) == [0, 3, 6, 9]
    assert shown(path, MediaPolicy(frames=3, rule="linspace_round")) == [0, 4, 9]  # 4.5 goes to the even one
    assert shown(path, MediaPolicy(frames=4, rule="segment_start")) == [0, 2, 5, 7]
    assert shown(path, MediaPolicy(rule="all")) == list(range(10))


@given(
    n=st.integers(1, 500),
    k=st.integers(1, 64),
    rule=st.sampled_from(["linspace_round", "linspace_floor", "segment_start"]),
)
def test_rules_stay_inside_and_in_order(n: int, k: int, rule: str) -> None:
    wanted = wanted_frames(MediaPolicy(frames=k, rule=rule), n)
    assert len(wanted) == k
    assert wanted[0] == 0
    assert (np.diff(wanted) >= 0).all()
    assert wanted[-1] < n
    if rule != "segment_start" and k > 1:
        assert wanted[-1] == n - 1
    kept = wanted_frames(MediaPolicy(frames=k, rule=rule, shortage="keep"), n)
    assert kept.tolist() == (list(range(n)) if n <= k else wanted.tolist())


def test_bytes_and_file_are_one(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", 12)
    of_file, of_bytes = (load_frames(ref, MediaPolicy(), "item x") for ref in (path, path.read_bytes()))
    assert np.array_equal(of_file.pixels, of_bytes.pixels)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}])
def test_a_file_cut_short_is_refused_or_told(share: float, options: dict[str, str], tmp_path: Path) -> None:
    whole = clip(tmp_path / "a.mp4", 40, **options).read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole[: int(len(whole) * share)])
    try:
        warnings = load_frames(path, MediaPolicy(), "item x").warnings
    except UserError as error:
        warnings = (str(error),)
    assert warnings
    assert all("cut.mp4" in warning for warning in warnings)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("no video at all\n" * 20)
    with pytest.raises(UserError, match=r"^item x: .*notes\.mp4"):
        load_frames(tmp_path / "notes.mp4", MediaPolicy(), "item x")
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    with pytest.raises(UserError, match=r"no frame of .*sound\.mp4"):
        load_frames(tmp_path / "sound.mp4", MediaPolicy(), "item x")


@pytest.fixture(scope="module")
def whole_clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return clip(tmp_path_factory.mktemp("clip") / "a.mp4", 6).read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_a_video_or_a_refusal(data: st.DataObject, whole_clip: bytes) -> None:
    raw = bytearray(whole_clip)
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refusal = "item x: "
    try:
        assert len(load_frames(bytes(raw), MediaPolicy(), "item x").pixels) == 8
    except UserError as error:
        refusal = str(error)
    assert refusal.startswith("item x: ")
