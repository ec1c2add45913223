"""Samples stand where they stood before the encoder came, to the sample, in every format."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import av
import numpy as np
import pytest
from clips import audio_frames, make_clip, make_sound, tone

from omnirecall.errors import UserError
from omnirecall.media.audio import Amiss, load_samples, native_samples
from omnirecall.media.decode import decode_item
from omnirecall.protocol.items import Item
from omnirecall.protocol.suites import MediaPolicy

RATE = 48000
LENGTH = 100_003
"""No multiple of any codec's frame."""


def native(path: Path) -> np.ndarray:
    return np.concatenate([samples for samples, _ in native_samples(path, "item x", Amiss())], 1)


def shift(found: np.ndarray, true: np.ndarray) -> int:
    """By how many samples ``found`` lags behind ``true``, by their cross-correlation."""
    size = 1 << (len(found) + len(true)).bit_length()
    lag = int(np.fft.irfft(np.fft.rfft(found, size) * np.conj(np.fft.rfft(true, size))).argmax())
    return lag if lag < size // 2 else lag - size


FORMATS = {  # name: (codec, sample format, rate, samples after the last true one, largest error)
    "a.wav": ("pcm_s16le", "s16", RATE, 0, 1e-4),
    "b.wav": ("pcm_s24le", "s32", RATE, 0, 1e-6),
    "c.wav": ("pcm_u8", "u8", RATE, 0, 1e-2),
    "d.wav": ("pcm_f32le", "flt", RATE, 0, 0),
    "a.flac": ("flac", "s16", RATE, 0, 1e-4),
    "a.mp3": ("libmp3lame", None, RATE, 0, None),
    "a.opus": ("libopus", "flt", RATE, 0, None),
    "a.ogg": ("libopus", "flt", RATE, 0, None),
    "a.m4a": ("aac", None, RATE, 0, None),
    "a.mka": ("libopus", "flt", RATE, 0, None),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_aligned_to_the_sample(name: str, channels: int, tmp_path: Path) -> None:
    codec, form, rate, _, error = FORMATS[name]
    true = tone(LENGTH, rate, channels)
    found = native(make_sound(tmp_path / name, true, rate, codec, form))
    assert found.dtype == np.float32
    assert len(found) == channels
    assert shift(found[0], true[0]) == 0
    if error is not None:
        assert found.shape[1] == LENGTH
        assert np.abs(found - true).max() <= error
    else:  # a container's clock may be coarser than a sample, and an encoder may end on a whole frame
        assert abs(found.shape[1] - LENGTH) <= RATE // 1000 + (1152 if name != "a.m4a" else 0)


def test_adts_has_no_word_for_its_priming(tmp_path: Path) -> None:
    """A bare AAC stream cannot say what its encoder put in front: 1,024 samples here, which ffmpeg keeps too."""
    true = tone(LENGTH, RATE)
    assert shift(native(make_sound(tmp_path / "a.aac", true, RATE, "aac"))[0], true[0]) == 1024


@pytest.mark.parametrize(("length", "heard"), [(48000, 48000), (48512, 48480), (48007, 48000), (95999, 95999)])
def test_the_end_of_an_m4a(length: int, heard: int, tmp_path: Path) -> None:
    """Lengths that ffmpeg 9.0.2 writes; the edit list counts whole milliseconds, the last packet counts samples."""
    assert native(make_sound(tmp_path / "a.m4a", tone(length, RATE), RATE, "aac")).shape[1] == heard


def test_the_sound_of_a_film(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 30, sound=2)
    true = tone(96000, RATE)
    assert shift(native(path)[0], true[0]) == 0
    assert native(path).shape[1] == 96000
    film, own = (
        Item("x", video=path),
        Item("y", video=path, audio=make_sound(tmp_path / "a.wav", true, RATE, "pcm_s16le")),
    )
    heard = decode_item(film, MediaPolicy(audio_track=True), 16000, "")
    assert heard.modalities == {"video", "audio"}
    assert len(heard.audio.values) == 32000
    assert decode_item(film, MediaPolicy(), 16000, "").audio is None
    assert len(decode_item(own, MediaPolicy(audio_track=True), RATE, "").audio.values) == 96000
    silent = decode_item(Item("z", video=make_clip(tmp_path / "b.mp4", 3)), MediaPolicy(audio_track=True), 16000, "")
    assert silent.audio is None
    assert "no sound" in silent.warnings[0]


def test_windows_are_cut_out_of_the_whole(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.wav", tone(5 * 44100, 44100), 44100, "pcm_s16le")
    whole = load_samples(path, 16000, "item x").values
    assert len(whole) == 80000
    first = load_samples(path, 16000, "item x", MediaPolicy(audio_window="first", audio_seconds=1.5)).values
    assert np.array_equal(first, whole[:24000])
    centre = load_samples(path, 16000, "item x", MediaPolicy(audio_window="centre", audio_seconds=1.5)).values
    assert np.array_equal(centre, whole[28000:52000])
    for window in ("first", "centre"):
        short = load_samples(path, 16000, "item x", MediaPolicy(audio_window=window, audio_seconds=9.0)).values
        assert np.array_equal(short, whole)


def test_resampling_neither_moves_nor_scales(tmp_path: Path) -> None:
    time = np.arange(3 * 44100) / 44100
    wave = np.stack([0.5 * np.sin(2 * np.pi * 440 * time)]).astype(np.float32)
    found = load_samples(make_sound(tmp_path / "a.wav", wave, 44100, "pcm_f32le", "flt"), 16000, "item x").values
    true = 0.5 * np.sin(2 * np.pi * 440 * np.arange(48000) / 16000)
    assert np.abs(found - true)[200:-200].max() < 1e-4


def test_silence_is_sound(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.flac", np.zeros((2, 8000), np.float32), 16000, "flac", "s16")
    samples = load_samples(path, 16000, "item x")
    assert samples.values.tolist() == [0.0] * 8000
    assert samples.warnings == ()


def test_samples_that_are_no_number(tmp_path: Path) -> None:
    wave = tone(4000, 16000)
    wave[0, [3, 5, 7]] = np.nan, np.inf, -np.inf
    samples = load_samples(make_sound(tmp_path / "a.wav", wave, 16000, "pcm_f32le", "flt"), 16000, "item x")
    assert samples.values[[3, 5, 7]].tolist() == [0, 0, 0]
    assert np.isfinite(samples.values).all()
    assert "3 samples" in samples.warnings[0]


def test_a_change_of_rate_on_the_way(tmp_path: Path) -> None:
    pieces = [make_sound(tmp_path / f"{rate}.mp3", tone(rate, rate), rate, "libmp3lame") for rate in (48000, 32000)]
    (tmp_path / "both.mp3").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    assert abs(len(load_samples(tmp_path / "both.mp3", 16000, "item x").values) - 32000) < 1600


def test_memory_holds_the_window_and_not_the_file(tmp_path: Path) -> None:
    """Five minutes of sound are 58 MB as float32; a window of them takes a few."""
    import tracemalloc

    path = tmp_path / "long.flac"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        stream.codec_context.format = "s16"
        second = audio_frames(tone(RATE, RATE), RATE, RATE)[0]
        for number in range(300):
            second.pts = number * RATE
            container.mux(stream.encode(second))
        container.mux(stream.encode(None))
    for window in ("first", "centre"):
        tracemalloc.start()  # numpy tells it of its arrays
        values = load_samples(path, 16000, "item x", MediaPolicy(audio_window=window, audio_seconds=10.0)).values
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(values) == 160000
        assert peak < 8e6


def test_a_cover_picture_is_no_sound(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^item x: .*a\.mp4 has no sound"):
        load_samples(make_clip(tmp_path / "a.mp4", 3), 16000, "item x")


def test_a_frame_of_too_many_planes_is_left_out(tmp_path: Path) -> None:
    """A damaged AAC packet may claim 56 channels, of which PyAV counts 128 planes and reads past the end."""
    path = make_sound(tmp_path / "a.m4a", tone(LENGTH, RATE), RATE, "aac")
    whole = native(path)
    with mock.patch("omnirecall.media.audio._is_readable", side_effect=[True, False, *[True] * 200]):
        samples = load_samples(path, RATE, "item x")
    assert len(samples.values) == whole.shape[1] - 1024
    assert "1 packets" in samples.warnings[0]
