"""Presets: known models as data, each a family, a repository and the family's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of presets.toml. ``source``: where the arguments come from. ``certainty``: as in a card."""

    family: str
    name: str
    about: str = ""
    revision: str = ""
    args: dict[str, str] = {}
    source: str = ""
    certainty: str = "assumed"


@cache
def presets() -> Mapping[str, Preset]:
    """Every preset by its name."""
    text = resources.files("omnirecall.models").joinpath("presets.toml").read_text("utf-8")
    return msgspec.toml.decode(text, type=dict[str, Preset])
