"""Files cut short are told from whole ones, whatever byte they end at."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from omnirecall.media.whole import is_cut_short


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(1600))
    return out.getvalue()


def sound(path: Path, codec: str) -> bytes:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=48000)
        stream.layout = "mono"
        noise = np.random.default_rng(0).normal(0, 2000, 48000).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(noise[None], format="s16", layout="mono")
        frame.sample_rate = 48000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return path.read_bytes()


def film(path: Path, **options: str) -> bytes:
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(10):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode())
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    return {
        "wav": wav(),
        "opus": sound(folder / "a.opus", "libopus"),
        "m4a": sound(folder / "a.m4a", "aac"),
        "mp4": film(folder / "a.mp4"),
        "faststart": film(folder / "b.mp4", movflags="faststart"),
    }


KINDS = ["wav", "opus", "m4a", "mp4", "faststart"]


@pytest.mark.parametrize("kind", KINDS)
def test_whole(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    assert not is_cut_short(whole[kind])
    (tmp_path / "file").write_bytes(whole[kind])
    assert not is_cut_short(tmp_path / "file")


@pytest.mark.parametrize("kind", ["wav", "mp4", "faststart", "m4a"])
def test_cut_at_any_byte(kind: str, whole: dict[str, bytes]) -> None:
    data = whole[kind]
    starts = [start for start in range(len(data)) if data[start + 4 : start + 8] in (b"free", b"mdat", b"moov")]
    between_boxes = {start + byte for start in starts for byte in range(8)}
    for end in range(20, len(data) - 1):
        if end not in between_boxes:
            assert is_cut_short(data[:end]), end


def test_an_ogg_file_cut_inside_a_page(whole: dict[str, bytes]) -> None:
    data = whole["opus"]
    last = data.rfind(b"OggS")
    assert all(is_cut_short(data[:end]) for end in range(last + 4, len(data)))
    assert not is_cut_short(data[:last])  # whole pages; that more were to come is not written anywhere


def test_lengths_that_are_not_known() -> None:
    data = bytearray(wav())
    data[4:8] = b"\xff\xff\xff\xff"
    assert not is_cut_short(bytes(data))
    assert not is_cut_short(b"")
    assert not is_cut_short(b"any other file")
