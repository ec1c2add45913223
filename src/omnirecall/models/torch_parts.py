"""What the families that run on torch share: devices, dtypes, loading, and vectors as the store takes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.models.base import DTYPES
from omnirecall.ranking import BFloat16

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXTRA = "models"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FRAMES_AT_ONCE = 64
"""Pictures in one pass of a model, so that long videos do not fill the memory of the device."""


def fingerprint(recipe: dict[str, Any]) -> str:
    """The hash of all that decides a vector."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def config_dtype(config: dict[str, Any]) -> str:
    """The dtype that a config.json states for its weights; float32 where it states none that we know."""
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return stated if stated in DTYPES else "float32"


def check_device(device: str, extra: str = EXTRA) -> None:
    """UserError where torch cannot use the device here, or where it is not installed: ``extra`` installs it."""
    torch = require("torch", extra)
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(
            f"torch cannot use the device {device} here ({reason}): leave --device out, or name another"
        ) from None


def check_safetensors(spec: str, folder: Path) -> None:
    """UserError where a folder has no weights in safetensors; pickled ones are not read, because reading may run code."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    found = f"only {pickled[0]}, a pickle, which may run code when it is read" if pickled else "none"
    raise UserError(
        f"{spec}: {folder} must hold weights in safetensors, and has {found}: convert them to safetensors, or name a revision"
        " that has them"
    )


@contextmanager
def loading(spec: str, folder: Path) -> Iterator[None]:
    """Load without progress bars; whatever the library raises over a damaged checkpoint becomes a UserError."""
    logging = require("transformers.utils.logging", EXTRA)
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (UserError, MemoryError):
        raise
    except ImportError as error:
        raise UserError(f"{spec}: the model needs a library that is not installed: {_first_line(error)}") from error
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        # The libraries raise errors of every class for files that do not fit together; the cause stays for --debug.
        raise UserError(
            f"{spec}: {folder} cannot be loaded ({type(error).__name__}: {_first_line(error)}): check that its files are"
            " whole, and fetch them again if not"
        ) from error
    finally:
        if was_on:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given").rstrip(".")


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """No gradients, and no TF32, which would round the products of float32 to 10 bits of mantissa on a GPU."""
    torch = require("torch", EXTRA)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def fixed_draws() -> Iterator[None]:
    """The same draws from numpy's global generator each time; its state comes back afterwards.

    Feature extractors of sound take random windows of what is too long for them.
    """
    before = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(before)


def unit(vectors: Any) -> Any:
    """A tensor in float32, of unit length along the last axis; a zero vector stays zero."""
    return require("torch.nn.functional", EXTRA).normalize(vectors.float(), dim=-1)


def late_fusion(parts: Sequence[Any]) -> Any:
    """The normalised sum of an item's parts, each of unit length (late fusion); tensors of shape (n, d).

    One part alone is returned as it is.
    """
    if len(parts) == 1:
        return parts[0]
    return unit(sum(unit(part) for part in parts)).to(parts[0].dtype)


def frame_means(features: Any, counts: Sequence[int]) -> Any:
    """The mean of the unit vectors of each video's frames: shape (videos, d), from the frames' of shape (sum of counts, d)."""
    torch = require("torch", EXTRA)
    return torch.stack([frames.mean(0) for frames in unit(features).split(list(counts))]).to(features.dtype)


def as_vectors(tensor: Any) -> NDArray[np.floating] | BFloat16:
    """A tensor of shape (n, d) as numpy in its own dtype; bfloat16, which numpy lacks, as its bits."""
    torch = require("torch", EXTRA)
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return BFloat16(tensor.view(torch.uint16).numpy())
    array: NDArray[np.floating] = tensor.numpy()
    return array
