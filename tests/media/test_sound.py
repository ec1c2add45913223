"""Sound becomes mono float32 at the rate a model asks for, as long as it was."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirecall.errors import UserError
from omnirecall.media.audio import load_samples


def tone(seconds: float, rate: int, hertz: float = 440.0, loud: float = 0.5) -> np.ndarray:
    return loud * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def wav(*channels: np.ndarray, rate: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.stack(channels, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def encoded(path: Path, codec: str, seconds: float, rate: int) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        noise = np.random.default_rng(0).normal(0, 2000, round(seconds * rate)).astype(np.int16)
        for start in range(0, len(noise), 960):
            frame = av.AudioFrame.from_ndarray(noise[None, start : start + 960], format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, start
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return path


def loudest(samples: np.ndarray, rate: int) -> float:
    """The strongest frequency, in hertz."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("wanted", [16000, 48000])
def test_rate_length_and_pitch(rate: int, wanted: int) -> None:
    samples = load_samples(wav(tone(1.5, rate), rate=rate), wanted, "item x")
    assert samples.rate == wanted
    assert samples.values.dtype == np.float32
    assert samples.values.ndim == 1
    assert abs(len(samples.values) - 1.5 * wanted) <= 0.005 * wanted
    assert loudest(samples.values, wanted) == pytest.approx(440, abs=2)
    assert np.abs(samples.values[wanted // 10 : -wanted // 10]).max() == pytest.approx(0.5, abs=0.02)


def test_channels_are_averaged() -> None:
    left, right = tone(1, 16000, 300, 0.4), tone(1, 16000, 1200, 0.2)
    values = load_samples(wav(left, right, rate=16000), 16000, "item x").values
    assert values == pytest.approx((left + right) / 2, abs=1e-3)


def test_untouched_where_nothing_is_to_do() -> None:
    sound = tone(0.3, 16000)
    assert load_samples(wav(sound, rate=16000), 16000, "item x").values == pytest.approx(sound, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "codec"), [("a.opus", "libopus"), ("a.flac", "flac"), ("a.mp3", "libmp3lame"), ("a.m4a", "aac")]
)
def test_codecs(name: str, codec: str, tmp_path: Path) -> None:
    path = encoded(tmp_path / name, codec, 2.0, 48000)
    of_file, of_bytes = (load_samples(ref, 16000, "item x").values for ref in (path, path.read_bytes()))
    assert len(of_file) == pytest.approx(32000, rel=0.03)
    assert np.array_equal(of_file, of_bytes)


@pytest.mark.parametrize(
    ("name", "codec"), [("a.opus", "libopus"), ("a.flac", "flac"), ("a.m4a", "aac"), ("a.wav", "pcm_s16le")]
)
@pytest.mark.parametrize("share", [0.01, 0.4, 0.9])
def test_a_file_cut_short_is_refused_or_told(name: str, codec: str, share: float, tmp_path: Path) -> None:
    path = encoded(tmp_path / name, codec, 3.0, 48000)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    try:
        warnings = load_samples(path, 16000, "item x").warnings
    except UserError as error:
        warnings = (str(error),)
    assert warnings
    assert all(name in warning for warning in warnings)


def test_a_wav_that_does_not_know_its_length_is_read() -> None:
    data = bytearray(wav(tone(1, 16000), rate=16000))
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"  # as a stream writes it
    assert len(load_samples(bytes(data), 16000, "item x").values) == 16000


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.wav").write_text("no sound at all\n" * 20)
    with pytest.raises(UserError, match=r"^item x: .*notes\.wav"):
        load_samples(tmp_path / "notes.wav", 16000, "item x")
    with av.open(str(tmp_path / "silent.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    with pytest.raises(UserError, match=r"silent\.mp4 has no sound"):
        load_samples(tmp_path / "silent.mp4", 16000, "item x")
    with pytest.raises(UserError, match="no sound"):
        load_samples(wav(np.zeros(0), rate=16000), 16000, "item x")


@pytest.fixture(scope="module")
def whole_sounds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("sound")
    codecs = (("a.opus", "libopus"), ("a.flac", "flac"), ("a.mp3", "libmp3lame"), ("a.wav", "pcm_s16le"))
    return [encoded(folder / name, codec, 0.5, 48000).read_bytes() for name, codec in codecs]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_damage_is_sound_or_a_refusal(data: st.DataObject, whole_sounds: list[bytes]) -> None:
    raw = bytearray(data.draw(st.sampled_from(whole_sounds)))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refusal = "item x: "
    try:
        assert load_samples(bytes(raw), 16000, "item x").values.ndim == 1
    except UserError as error:
        refusal = str(error)
    assert refusal.startswith("item x: ")
