"""Several hundred damaged files: each gives what decodes, or an error that names the item; no hang, no crash, no unbounded memory.

They are read in another process, so that a crash of a library in C fails one example and not the whole test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from clips import barcode, cut, make_clip, make_sound, tone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.media.audio import load_samples
from omnirecall.media.image import load_image
from omnirecall.media.video import load_frames
from omnirecall.protocol.suites import MediaPolicy

HANG = 10  # seconds
MEMORY = 1 << 30
RULES = ["linspace_round", "segment_start", "fps"]


def read(kind: str, data: bytes, rule: str) -> str:
    """What came of it: "", or the error's sentence."""
    try:
        if kind == "image":
            assert load_image(data, "item x").mode == "RGB"
        elif kind == "sound":
            samples = load_samples(data, 16000, "item x")
            assert samples.values.ndim == 1
        else:
            frames = load_frames(data, MediaPolicy(rule=rule), "item x")
            assert len(frames.pixels) == len(frames.indices) == len(frames.times)
            assert (frames.indices < frames.decodable).all()
    except UserError as error:
        return str(error)
    assert peak() < MEMORY, f"{peak() >> 20} MiB"
    return ""


def peak() -> int:
    """Bytes of this process at its highest. Not ru_maxrss, which a new process takes over from the one that started it."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, bytes]]:
    """(kind, contents) of small whole files."""
    d = tmp_path_factory.mktemp("whole")
    small = {"size": (48, 32), "gop": 6}
    made = [
        ("film", make_clip(d / "a.mp4", 24, **small)),
        ("film", make_clip(d / "front.mp4", 24, muxer={"movflags": "faststart"}, **small)),
        ("film", make_clip(d / "pieces.mp4", 24, muxer={"movflags": "frag_keyframe+empty_moov"}, **small)),
        ("film", cut(d / "a.mp4", d / "cut.mp4", 0.3)),
        ("film", make_clip(d / "hevc.mp4", 12, "libx265", pixel_format="yuv420p10le", gop=6)),
        ("film", make_clip(d / "a.mkv", 24, **small)),
        ("film", make_clip(d / "a.webm", 12, "libvpx-vp9", options={"deadline": "realtime", "cpu-used": "8"}, **small)),
        ("film", Path(__file__).with_name("altref.webm")),
        ("film", make_clip(d / "a.ts", 24, **small)),
        ("film", make_clip(d / "a.avi", 24, "mpeg4", **small)),
        ("film", make_clip(d / "turned.mp4", 12, rotation=(90, False, False), **small)),
        ("sound", make_clip(d / "sound.mp4", 6, sound=1, **small)),
    ]
    for name, codec, form in (
        ("a.wav", "pcm_s16le", None),
        ("a.flac", "flac", "s16"),
        ("a.mp3", "libmp3lame", None),
        ("a.opus", "libopus", None),
        ("a.m4a", "aac", None),
        ("a.aac", "aac", None),
    ):
        made.append(("sound", make_sound(d / name, tone(24000, 48000), 48000, codec, form)))
    pictures = [Image.fromarray(barcode(number, 48, 32)) for number in range(8)]
    for suffix in ("gif", "webp", "png"):
        path = d / f"moving.{suffix}"
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=50)
        made.append(("film", path))
    for suffix in ("jpg", "png", "webp", "tif", "bmp", "gif"):
        pictures[3].save(d / f"still.{suffix}")
        made.append(("image", d / f"still.{suffix}"))
    return [(kind, path.read_bytes()) for kind, path in made]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def damaged(data: bytes, draw: st.DrawFn) -> bytes:
    """The file with bytes changed, anywhere or in its headers, with a piece gone, doubled or zeroed, or with its end cut off."""
    raw = bytearray(data)
    place = st.integers(0, len(raw) - 1)
    how = draw(st.sampled_from(["bytes", "head", "cut", "gone", "twice", "zeros"]))
    if how in {"bytes", "head"}:
        where = place if how == "bytes" else st.one_of(st.integers(0, min(len(raw), 1500) - 1), st.integers(-1500, -1))
        for _ in range(draw(st.integers(1, 12))):
            spot = draw(where) % len(raw)
            raw[spot] = draw(st.one_of(st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 255)))
        return bytes(raw)
    start = draw(place)
    end = min(len(raw), start + draw(st.integers(1, 1000)))
    if how == "cut":
        del raw[start:]
    elif how == "gone":
        del raw[start:end]
    elif how == "twice":
        raw[start:start] = raw[start:end]
    else:
        raw[start:end] = bytes(end - start)
    return bytes(raw)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_damage_gives_what_decodes_or_an_error(
    data: st.DataObject, files: list[tuple[str, bytes]], elsewhere: ProcessPoolExecutor
) -> None:
    kind, whole = data.draw(st.sampled_from(files))
    raw = damaged(whole, data.draw)
    said = elsewhere.submit(read, kind, raw, data.draw(st.sampled_from(RULES))).result(timeout=HANG)
    assert not said or said.startswith("item x: ")
    assert "\n" not in said


@pytest.mark.parametrize("rule", RULES)
def test_whole_files_are_read(rule: str, files: list[tuple[str, bytes]], elsewhere: ProcessPoolExecutor) -> None:
    for kind, data in files:
        assert elsewhere.submit(read, kind, data, rule).result(timeout=HANG) == ""


@pytest.mark.parametrize(
    "junk", [b"", b"\0", b"RIFF\xff\xff\xff\xffWEBP", b"GIF89a", b"\x89PNG\r\n\x1a\n", bytes(5000), b"OggS" * 99]
)
@pytest.mark.parametrize("kind", ["film", "sound", "image"])
def test_files_that_are_none(kind: str, junk: bytes, elsewhere: ProcessPoolExecutor) -> None:
    assert elsewhere.submit(read, kind, junk, "linspace_round").result(timeout=HANG).startswith("item x: ")


def test_a_playlist_reaches_for_nothing(tmp_path: Path, elsewhere: ProcessPoolExecutor) -> None:
    clip = make_clip(tmp_path / "a.mp4", 3)
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n"
    reference = f"ffconcat version 1.0\nfile '{clip}'\n".encode()
    for text in (playlist, reference):
        said = elsewhere.submit(read, "film", text, "linspace_round").result(timeout=HANG)
        assert said.startswith("item x: ")
