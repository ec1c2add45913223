"""Pictures, by Pillow."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.protocol.items import MediaRef

if TYPE_CHECKING:
    from PIL.Image import Image


def load_image(ref: MediaRef, place: str) -> Image:
    """The picture as RGB, upright by its EXIF orientation, transparency on white, the first frame of an animation.

    UserError, beginning with ``place``, for a file that is no picture, is truncated, or is larger than Pillow's limit.
    """
    image = require("PIL.Image", "media")
    try:
        with open_picture(ref, place) as picture:
            picture.load()
            return on_white(upright(picture))
    except UserError:
        raise
    except Exception as error:
        # Pillow's readers meet damaged files with whatever their parsing trips over: OSError, struct.error, KeyError and more.
        reason = "its data are damaged" if isinstance(error, image.DecompressionBombError) else _reason(error)
        raise UserError(f"{place}: the picture {named(ref)} cannot be read: {reason}") from None


def open_picture(ref: MediaRef, place: str) -> Any:
    """The picture with its header read and its pixels not yet; UserError if it is none, or claims more pixels than is safe.

    The bound is Pillow's ``MAX_IMAGE_PIXELS``, past which Pillow itself warns of a decompression bomb. It is checked here because a
    filter that makes warnings errors is shared between threads.
    """
    image = require("PIL.Image", "media")
    limit = image.MAX_IMAGE_PIXELS
    try:
        picture = image.open(ref if isinstance(ref, Path) else io.BytesIO(ref))
    except image.DecompressionBombError:
        raise UserError(_too_large(ref, place, limit)) from None
    except image.UnidentifiedImageError:
        raise UserError(f"{place}: {named(ref)} is not a picture that Pillow can read") from None
    except Exception as error:
        raise UserError(f"{place}: the picture {named(ref)} cannot be read: {_reason(error)}") from None
    if limit and picture.width * picture.height > limit:
        picture.close()
        raise UserError(_too_large(ref, place, limit))
    return picture


def upright(picture: Image) -> Image:
    """The picture turned as its EXIF orientation says; as stored where its EXIF is damaged."""
    ops = require("PIL.ImageOps", "media")
    with suppress(Exception):
        turned: Image = ops.exif_transpose(picture)
        return turned
    return picture


def on_white(picture: Image) -> Image:
    """RGB, with whatever is transparent laid on white; 16-bit grey by its upper eight bits, rounded."""
    image = require("PIL.Image", "media")
    if picture.mode.startswith("I"):
        grey = np.clip(np.asarray(picture).astype(np.int64), 0, 65535)
        picture = image.fromarray(((grey + 128) // 257).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = image.new("RGBA", picture.size, "white")
        picture = image.alpha_composite(white, picture)
    result: Image = picture.convert("RGB")
    return result


def named(ref: MediaRef) -> str:
    """A medium's name for an error."""
    return str(ref) if isinstance(ref, Path) else f"({len(ref)} bytes)"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _too_large(ref: MediaRef, place: str, limit: int) -> str:
    return f"{place}: the picture {named(ref)} has more pixels than is safe to open (more than {limit:,}); give a smaller copy"
