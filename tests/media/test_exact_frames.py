"""Whatever the container and codec do, the frames are those of decoding everything: same numbers, times and pixels."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from unittest import mock

import av
import numpy as np
import pytest
from clips import X265, barcode, cut, decode_everything, make_clip, number_of, numbers_of, variable_times
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.media import pixels as pixels_module
from omnirecall.media import video
from omnirecall.media.video import load_frames
from omnirecall.protocol.suites import MediaPolicy

REALTIME = {"deadline": "realtime", "cpu-used": "8"}
X264 = "x264-params"

MAKERS: dict[str, Callable[[Path], Path]] = {
    "short groups": lambda d: make_clip(d / "a.mp4", 120, gop=12),
    "long groups": lambda d: make_clip(d / "a.mp4", 120, gop=250),
    "variable rate": lambda d: make_clip(d / "a.mp4", 120, pts=variable_times(120)),
    "29.97": lambda d: make_clip(d / "a.mp4", 90, rate=Fraction(30000, 1001)),
    "edit list": lambda d: cut(make_clip(d / "whole.mp4", 120, gop=250), d / "a.mp4", 1.17),
    "edit list, short groups": lambda d: cut(make_clip(d / "whole.mp4", 120, gop=12), d / "a.mp4", 1.17),
    "open groups": lambda d: make_clip(d / "a.mp4", 120, options={X264: "open-gop=1:keyint=24:bframes=3:scenecut=0"}),
    "open groups, cut": lambda d: cut(
        make_clip(d / "whole.mp4", 120, options={X264: "open-gop=1:keyint=24:bframes=3:scenecut=0"}), d / "a.mp4", 1.17
    ),
    "open groups of HEVC, cut": lambda d: cut(
        make_clip(d / "w.mp4", 120, "libx265", options={"x265-params": "open-gop=1:keyint=24:bframes=4:" + X265}),
        d / "a.mp4",
        1.17,
    ),
    "intra refresh": lambda d: make_clip(d / "a.mp4", 120, options={X264: "intra-refresh=1:keyint=12"}),
    "every frame a key": lambda d: make_clip(d / "a.mp4", 60, gop=1),
    "interlaced": lambda d: make_clip(d / "a.mp4", 60, options={"flags": "+ildct+ilme"}),
    "fragmented": lambda d: make_clip(d / "a.mp4", 120, gop=12, muxer={"movflags": "frag_keyframe+empty_moov"}),
    "starts above zero": lambda d: make_clip(d / "a.mkv", 60, gop=12, pts=[5000 + 33 * number for number in range(60)]),
    "transport stream": lambda d: make_clip(d / "a.ts", 60, gop=12),
    "mpeg2": lambda d: make_clip(d / "a.ts", 60, "mpeg2video", gop=12),
    "avi": lambda d: make_clip(d / "a.avi", 60, "mpeg4", gop=12, options={"bf": "2"}),
    "motion jpeg": lambda d: make_clip(d / "a.avi", 30, "mjpeg", pixel_format="yuvj420p"),
    "vp9": lambda d: make_clip(d / "a.webm", 90, "libvpx-vp9", gop=15, options=REALTIME),
    "vp8": lambda d: make_clip(d / "a.webm", 90, "libvpx", gop=15, options=REALTIME),
    "odd size": lambda d: make_clip(d / "a.webm", 30, "libvpx-vp9", size=(97, 65), options=REALTIME),
    "ten bits": lambda d: make_clip(d / "a.mp4", 60, "libx265", gop=12, pixel_format="yuv420p10le"),
    "with sound": lambda d: make_clip(d / "a.mp4", 60, sound=2),
    "one frame": lambda d: make_clip(d / "a.mp4", 1),
    "alternate reference frames": lambda _: Path(__file__).with_name("altref.webm"),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("count", [3, 8])
def test_frames_are_those_of_decoding_everything(kind: str, count: int, tmp_path: Path) -> None:
    path = MAKERS[kind](tmp_path)
    everything = decode_everything(path)
    wanted = np.round(np.linspace(0, len(everything) - 1, count)).astype(int)
    frames = load_frames(path, MediaPolicy(frames=count), "item x")
    assert frames.decodable == len(everything)
    assert frames.indices.tolist() == wanted.tolist()
    assert frames.times.tolist() == pytest.approx([everything[index].time for index in wanted])
    assert np.array_equal(frames.pixels, [everything[index].to_ndarray(format="rgb24") for index in wanted])
    assert frames.warnings == ()


def test_numbers_drawn_in_the_pixels(tmp_path: Path) -> None:
    assert numbers_of(load_frames(MAKERS["short groups"](tmp_path), MediaPolicy(), "item x").pixels) == [
        0, 17, 34, 51, 68, 85, 102, 119,
    ]  # fmt: skip
    cut_numbers = numbers_of(load_frames(MAKERS["edit list"](tmp_path), MediaPolicy(), "item x").pixels)
    assert (cut_numbers[0], cut_numbers[-1]) == (36, 119)
    altref = load_frames(Path(__file__).with_name("altref.webm"), MediaPolicy(rule="all"), "item x")
    assert altref.decodable == 150  # of 158 packets
    assert numbers_of(altref.pixels) == list(range(150))


def test_which_way_is_taken(tmp_path: Path) -> None:
    def ways(path: Path, count: int) -> list[str]:
        taken = []
        with (
            mock.patch.object(video, "by_seeking", side_effect=video.by_seeking, autospec=True) as seek,
            mock.patch.object(video, "in_order", side_effect=video.in_order, autospec=True) as order,
        ):
            load_frames(path, MediaPolicy(frames=count), "item x")
            taken += ["seek"] * seek.call_count + ["order"] * order.call_count
        return taken

    short = MAKERS["short groups"](tmp_path)
    assert ways(short, 3) == ["seek"]
    assert ways(short, 60) == ["order"]  # dense
    assert ways(MAKERS["long groups"](tmp_path), 8) == ["order"]
    assert ways(Path(__file__).with_name("altref.webm"), 3) == ["seek"]
    assert ways(MAKERS["edit list, short groups"](tmp_path), 4) == ["seek"]
    assert ways(MAKERS["open groups"](tmp_path), 3) == ["seek"]
    # Promised frames that do not come: the seek is not confirmed, and everything is decoded.
    assert ways(MAKERS["intra refresh"](tmp_path), 3)[-1] == "order"


def test_a_promise_that_is_not_kept_is_noticed(tmp_path: Path) -> None:
    """Without VP8's own bit the alternate reference frames count as frames; decoding must put that right."""
    path = Path(__file__).with_name("altref.webm")
    with mock.patch("omnirecall.media.scan.VP8_SHOWN", 0xFF):
        for count in (3, 8, 40):
            frames = load_frames(path, MediaPolicy(frames=count), "item x")
            assert frames.decodable == 150
            assert numbers_of(frames.pixels) == np.round(np.linspace(0, 149, count)).astype(int).tolist()


TURNS = {
    (0, False, False): lambda a: a,
    (90, False, False): lambda a: np.rot90(a, 1),
    (180, False, False): lambda a: np.rot90(a, 2),
    (270, False, False): lambda a: np.rot90(a, 3),
    (0, True, False): lambda a: a[:, ::-1],
    (0, False, True): lambda a: a[::-1],
    (90, True, False): lambda a: np.rot90(a, 1)[:, ::-1],
    (270, False, True): lambda a: np.rot90(a, 3)[::-1],
}


@pytest.mark.parametrize("turn", TURNS)
def test_rotation_metadata(turn: tuple[int, bool, bool], tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 4, rotation=turn)
    stored = [frame.to_ndarray(format="rgb24") for frame in decode_everything(path)]
    shown = load_frames(path, MediaPolicy(frames=2), "item x").pixels
    assert np.array_equal(shown[1], TURNS[turn](stored[3]))


def test_a_slant_is_told(tmp_path: Path) -> None:
    frames = load_frames(make_clip(tmp_path / "a.mp4", 4, rotation=(30, False, False)), MediaPolicy(), "item x")
    assert numbers_of(frames.pixels)[-1] == 3
    assert "right angle" in frames.warnings[0]


@pytest.mark.parametrize(("aspect", "width"), [(Fraction(2), 192), (Fraction(1, 2), 48), (Fraction(4, 3), 128)])
def test_pixels_become_square(aspect: Fraction, width: int, tmp_path: Path) -> None:
    frames = load_frames(make_clip(tmp_path / "a.mp4", 10, aspect=aspect), MediaPolicy(frames=2), "item x")
    assert frames.pixels.shape == (2, 64, width, 3)
    assert numbers_of(frames.pixels) == [0, 9]


def test_square_pixels_before_the_turn(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 4, aspect=Fraction(2), rotation=(90, False, False))
    assert load_frames(path, MediaPolicy(frames=1), "item x").pixels.shape == (1, 192, 64, 3)


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    def half_there(number: int, width: int, height: int) -> np.ndarray:
        return np.dstack([np.full((height, width, 3), 100, np.uint8), np.full((height, width), 51, np.uint8)])

    path = make_clip(tmp_path / "a.mov", 3, "qtrle", pixel_format="argb", draw=half_there)
    assert (load_frames(path, MediaPolicy(), "item x").pixels == (100 * 51 + 255 * 204) // 255).all()


def test_white_and_black_keep_their_range(tmp_path: Path) -> None:
    for value in (0, 255):
        path = make_clip(tmp_path / "a.mp4", 2, draw=lambda n, w, h, value=value: np.full((h, w, 3), value, np.uint8))
        assert np.abs(load_frames(path, MediaPolicy(), "item x").pixels.astype(int) - value).max() <= 1


def test_a_budget_is_kept_before_frames_are_held(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 10, size=(320, 192))
    frames = load_frames(path, MediaPolicy(frames=4, max_tokens=20, patch=28), "item x")
    assert frames.pixels.shape == (4, 84, 140, 3)
    assert numbers_of(frames.pixels) == [0, 3, 6, 9]
    with mock.patch.object(pixels_module, "MAX_HELD", 100_000):
        with pytest.raises(UserError, match=r"^item x: 4 frames of 320x192 .* max_pixels"):
            load_frames(path, MediaPolicy(frames=4), "item x")
        assert len(load_frames(path, MediaPolicy(frames=4, max_pixels=5000), "item x").pixels) == 4


def test_a_change_of_size_is_told(tmp_path: Path) -> None:
    pieces = [make_clip(tmp_path / f"{size[0]}.ts", 20, "mpeg2video", size=size) for size in ((96, 64), (128, 96))]
    path = tmp_path / "both.ts"
    path.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    frames = load_frames(path, MediaPolicy(), "item x")
    assert frames.decodable == len(decode_everything(path))
    assert frames.pixels.shape == (8, 64, 96, 3)
    assert any("change size" in warning for warning in frames.warnings)


@pytest.mark.parametrize("share", [0.5, 0.65, 0.8])
@pytest.mark.parametrize(
    ("name", "codec", "muxer"),
    [
        ("a.mp4", "libx264", {"movflags": "faststart"}),
        ("a.mkv", "libx264", {}),
        ("a.webm", "libvpx-vp9", {}),
        ("a.avi", "mpeg4", {}),
        ("a.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    ],
)
def test_of_a_cut_file_the_frames_that_decode_count(
    share: float, name: str, codec: str, muxer: dict[str, str], tmp_path: Path
) -> None:
    options = REALTIME if codec == "libvpx-vp9" else {}
    data = make_clip(tmp_path / name, 90, codec, gop=12, muxer=muxer, options=options).read_bytes()
    path = tmp_path / f"cut-{name}"
    end = int(len(data) * share)
    if "movflags" in muxer and "frag" in muxer["movflags"]:
        end = data.rfind(b"mdat", 0, end) + 40  # libav opens no file cut inside the index of a fragment
    path.write_bytes(data[:end])
    frames = load_frames(path, MediaPolicy(), "item x")
    assert 5 < frames.decodable < 90
    assert frames.warnings
    assert all(path.name in warning for warning in frames.warnings)
    everything = decode_everything(path)
    assert frames.decodable == len(everything)
    wanted = np.round(np.linspace(0, len(everything) - 1, 8)).astype(int)
    assert np.array_equal(frames.pixels, [everything[index].to_ndarray(format="rgb24") for index in wanted])


def test_damage_in_the_middle_is_told_and_what_follows_counts(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 90, gop=12)
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
        hurt = [packet.pos for packet in packets if packet.is_keyframe][3]
    data = bytearray(path.read_bytes())
    data[hurt : hurt + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    frames = load_frames(path, MediaPolicy(rule="all"), "item x")
    assert 60 < frames.decodable < 90
    assert number_of(frames.pixels[-1]) == 89
    assert any("do not decode" in warning for warning in frames.warnings)


def test_sound_is_never_read(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 60, sound=2)
    with av.open(str(path)) as container:
        spans = [(packet.pos, packet.size) for packet in container.demux(container.streams.audio[0]) if packet.size]
    data = bytearray(path.read_bytes())
    for start, size in spans:
        data[start : start + size] = b"\xff" * size
    before = load_frames(path, MediaPolicy(), "item x")
    after = load_frames(bytes(data), MediaPolicy(), "item x")
    assert np.array_equal(before.pixels, after.pixels)
    assert after.warnings == ()


def test_cover_art_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        cover = container.add_stream("png", rate=1)
        cover.width = cover.height = 16
        cover.pix_fmt = "rgb24"
        cover.disposition = 1024  # attached picture
        container.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux([*stream.encode(frame), *stream.encode(None)])
    with pytest.raises(UserError, match=r"item x: no frame of .*song\.m4a"):
        load_frames(path, MediaPolicy(), "item x")


def test_names_that_libav_would_take_for_addresses(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "concat:a%03d.mp4", 3)
    assert load_frames(path, MediaPolicy(), "item x").decodable == 3


# Animated pictures and folders.


def animation(path: Path, count: int, durations: list[int], **options: object) -> Path:
    pictures = [Image.fromarray(barcode(number, 96, 64)) for number in range(count)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0, **options)
    return path


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_animations(name: str, tmp_path: Path) -> None:
    durations = [40 + 10 * number for number in range(20)]
    path = animation(tmp_path / name, 20, durations, **({"lossless": True} if name == "a.webp" else {}))
    for ref in (path, path.read_bytes()):
        frames = load_frames(ref, MediaPolicy(), "item x")
        assert frames.decodable == 20
        assert numbers_of(frames.pixels) == frames.indices.tolist() == [0, 3, 5, 8, 11, 14, 16, 19]
        starts = np.cumsum([0, *durations])[:-1] / 1000
        assert frames.times.tolist() == pytest.approx(starts[frames.indices].tolist())
    ticks = load_frames(path, MediaPolicy(rule="fps", fps=2, frames=100), "item x")
    shown = [int(np.flatnonzero(starts <= tick / 2 + 1e-6)[-1]) for tick in range(int(starts[-1] * 2) + 1)]
    assert numbers_of(ticks.pixels) == shown


def test_transparent_animation_is_on_white(tmp_path: Path) -> None:
    pictures = [Image.new("RGBA", (8, 8), (0, 0, 0, 0)) for _ in range(3)]
    for place, picture in enumerate(pictures):
        picture.putpixel((place, 0), (255, 0, 0, 255))
    path = tmp_path / "a.webp"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=50, lossless=True)
    last = load_frames(path, MediaPolicy(frames=3), "item x").pixels[2]
    assert last[0, 2].tolist() == [255, 0, 0]
    assert (last[4:] == 255).all()


def test_a_cut_animation(tmp_path: Path) -> None:
    data = animation(tmp_path / "a.gif", 20, [50] * 20).read_bytes()
    (tmp_path / "cut.gif").write_bytes(data[: len(data) * 6 // 10])
    frames = load_frames(tmp_path / "cut.gif", MediaPolicy(), "item x")
    assert 5 < frames.decodable < 20
    assert numbers_of(frames.pixels) == frames.indices.tolist()
    (tmp_path / "b.gif").write_bytes(data[:40])
    with pytest.raises(UserError, match=r"item x: .*b\.gif"):
        load_frames(tmp_path / "b.gif", MediaPolicy(), "item x")


def test_a_folder_of_frames(tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(1, 13):  # frame_2 comes before frame_10
        Image.fromarray(barcode(number, 96, 64)).save(folder / f"frame_{number}.png")
    (folder / "notes.txt").write_text("no frame")
    (folder / ".hidden.png").write_text("no frame")
    frames = load_frames(folder, MediaPolicy(frames=4, rule="linspace_floor", stored=2), "item x")
    assert numbers_of(frames.pixels) == [1, 4, 8, 12]
    assert frames.decodable == 12
    assert np.isnan(frames.times).all()
    few = load_frames(folder, MediaPolicy(frames=64, shortage="keep"), "item x")
    assert numbers_of(few.pixels) == list(range(1, 13))
    with pytest.raises(UserError, match="fps needs the times"):
        load_frames(folder, MediaPolicy(rule="fps"), "item x")
    (folder / "frame_5.png").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"^item x: .*frame_5\.png"):
        load_frames(folder, MediaPolicy(rule="all"), "item x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"^item x: .*empty holds no pictures"):
        load_frames(tmp_path / "empty", MediaPolicy(), "item x")
