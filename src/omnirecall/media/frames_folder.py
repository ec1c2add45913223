"""A folder of frames that were extracted earlier, as MMEB-V2 and many others ship their videos."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from omnirecall.errors import UserError
from omnirecall.media.frame_rules import wanted_frames
from omnirecall.media.image import load_image
from omnirecall.media.pixels import Developer, gathered
from omnirecall.media.types import Frames
from omnirecall.protocol.suites import MediaPolicy

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm"})


def frame_files(folder: Path) -> list[Path]:
    """The pictures in the folder, by natural order: 2.jpg before 10.jpg; hidden files and others are left out."""
    files = (file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
    return sorted(files, key=lambda file: (natural_key(file.name), file.name))


def natural_key(name: str) -> list[tuple[int, str]]:
    """A sort key by which digits compare as the numbers they spell."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def folder_frames(folder: Path, policy: MediaPolicy, place: str) -> Frames:
    """The frames that the policy asks for; their times are NaN, since the folder has no clock.

    The step ``policy.stored`` is what made the folder, and is not done again. UserError, beginning with ``place``, for a folder
    without pictures, a picture that does not decode, or a rule that needs times.
    """
    try:
        files = frame_files(folder)
    except OSError as error:
        raise UserError(f"{place}: the folder {folder} cannot be read: {error.strerror}") from None
    if not files:
        raise UserError(f"{place}: the folder {folder} holds no pictures ({', '.join(sorted(SUFFIXES))})")
    if policy.rule == "fps":
        raise UserError(
            f"{place}: the rule fps needs the times of frames, and the folder {folder} has none; use another rule"
        )
    wanted = wanted_frames(policy, len(files), stored=True)
    developer = Developer(policy, None, place, len(wanted))
    kept = {index: developer.still(load_image(files[index], place)) for index in np.unique(wanted).tolist()}
    warnings = [f"{folder}: {warning}" for warning in developer.warnings]
    return gathered(kept, np.full(len(files), np.nan), wanted, warnings)
