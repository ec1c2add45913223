"""Pictures become RGB, upright, on white, or a refusal that names item and file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.media.image import load_image


def encoded(picture: Image.Image, form: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def pixels(data: bytes | Path) -> np.ndarray:
    picture = load_image(data, "item x")
    assert picture.mode == "RGB"
    return np.asarray(picture)


# what each EXIF orientation says about the stored rows and columns (EXIF 2.3, tag 0x0112)
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation(orientation: int) -> None:
    stored = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
    picture = Image.fromarray(stored)
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(pixels(encoded(picture, exif=exif)), UPRIGHT[orientation](stored))


def test_transparency_is_laid_on_white() -> None:
    rgba = np.array([[[200, 100, 0, 0], [200, 100, 0, 255], [0, 0, 0, 51]]], np.uint8)
    assert pixels(encoded(Image.fromarray(rgba))).tolist() == [[[255, 255, 255], [200, 100, 0], [204, 204, 204]]]
    grey = np.array([[[40, 0], [40, 255]]], np.uint8)
    assert pixels(encoded(Image.fromarray(grey, "LA"))).tolist() == [[[255] * 3, [40] * 3]]


def test_palette() -> None:
    picture = Image.new("P", (3, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    picture.putdata([0, 1, 2])
    assert pixels(encoded(picture)).tolist() == [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    assert pixels(encoded(picture, transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255], [70, 80, 90]]]


def test_cmyk() -> None:
    picture = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = pixels(encoded(picture, "JPEG"))[4, 4].tolist()
    assert (red > 240, green < 15, blue < 15) == (True, True, True)


def test_sixteen_bits_of_grey() -> None:
    levels = np.array([[0, 257, 128 * 257, 254 * 257, 65535]], np.uint16)
    assert pixels(encoded(Image.fromarray(levels)))[0, :, 0].tolist() == [0, 1, 128, 254, 255]
    assert pixels(encoded(Image.fromarray(levels), "TIFF"))[0, :, 2].tolist() == [0, 1, 128, 254, 255]


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey(mode: str) -> None:
    assert pixels(encoded(Image.new(mode, (2, 2), 255))).tolist() == [[[255] * 3] * 2] * 2


def test_first_frame_of_an_animation() -> None:
    first, second = Image.new("RGB", (4, 4), (250, 0, 0)), Image.new("RGB", (4, 4), (0, 0, 250))
    assert pixels(encoded(first, "GIF", save_all=True, append_images=[second]))[0, 0, 0] > 240


def test_bytes_and_file_are_one(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)))
    (tmp_path / "a.png").write_bytes(data)
    assert np.array_equal(pixels(data), pixels(tmp_path / "a.png"))


NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_file_cut_short_is_refused(form: str, share: float, tmp_path: Path) -> None:
    data = encoded(NOISE, form)
    path = tmp_path / f"cut.{form.lower()}"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UserError, match=r"^item x: .*cut\."):
        load_image(path, "item x")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("no picture at all")
    with pytest.raises(UserError, match=r"item x: .*notes\.png is not a picture"):
        load_image(tmp_path / "notes.png", "item x")
    with pytest.raises(UserError, match=r"item x: \(3 bytes\) is not a picture"):
        load_image(b"abc", "item x")


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(NOISE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UserError, match="more pixels than is safe"):
        load_image(data, "item x")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    with pytest.raises(UserError, match="more pixels than is safe"):
        load_image(data, "item x")


WHOLE = [encoded(NOISE, form) for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "ICO", "PPM")]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_a_picture_or_a_refusal(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(WHOLE)))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, min(len(raw) - 1, data.draw(st.sampled_from([40, 10**6])))))] = data.draw(
            st.integers(0, 255)
        )
    refusal = "item x: "
    try:
        assert load_image(bytes(raw), "item x").mode == "RGB"
    except UserError as error:
        refusal = str(error)
    assert refusal.startswith("item x: ")
