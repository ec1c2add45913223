"""Pictures, by Pillow."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from omnirecall.errors import UserError, require
from omnirecall.protocol.items import MediaRef

if TYPE_CHECKING:
    from PIL.Image import Image


def load_image(ref: MediaRef, place: str) -> Image:
    """The picture as RGB, upright by its EXIF orientation, transparency on white, the first frame of an animation.

    UserError, beginning with ``place``, for a file that is no picture, is truncated, or is larger than Pillow's limit.
    """
    image = require("PIL.Image", "media")
    ops = require("PIL.ImageOps", "media")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(ref if isinstance(ref, Path) else io.BytesIO(ref)) as picture:
                picture.load()
                return on_white(ops.exif_transpose(picture))
    except (image.DecompressionBombError, image.DecompressionBombWarning):
        raise UserError(f"{place}: the picture {named(ref)} has more pixels than is safe to open") from None
    except image.UnidentifiedImageError:
        raise UserError(f"{place}: {named(ref)} is not a picture that Pillow can read") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise UserError(f"{place}: the picture {named(ref)} cannot be read: {error}") from None


def on_white(picture: Image) -> Image:
    """RGB, with whatever is transparent laid on white."""
    image = require("PIL.Image", "media")
    if picture.mode.startswith("I;16") or picture.mode == "I":
        picture = picture.point(lambda value: value / 257).convert("L")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = image.new("RGBA", picture.size, "white")
        picture = image.alpha_composite(white, picture)
    result: Image = picture.convert("RGB")
    return result


def named(ref: MediaRef) -> str:
    """A medium's name for an error."""
    return str(ref) if isinstance(ref, Path) else f"({len(ref)} bytes)"
