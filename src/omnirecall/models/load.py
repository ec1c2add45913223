"""From ``--model`` to an Embedder."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from omnirecall.errors import UserError
from omnirecall.models.base import Embedder

FAMILIES = {
    "starter": "omnirecall.models.starter:load",
    "random": "omnirecall.models.baselines:load_random",
    "constant": "omnirecall.models.baselines:load_constant",
    "py": "omnirecall.models.python:load",
}
"""Family to ``module:function``; the function takes what follows the colon, and the device."""


def load_model(spec: str, device: str | None = None) -> Embedder:
    """The model that ``FAMILY`` or ``FAMILY:NAME`` means; UserError lists the families."""
    family, _, name = spec.partition(":")
    if family not in FAMILIES:
        raise UserError(
            f"there is no model {spec}: write FAMILY or FAMILY:NAME, where FAMILY is one of {', '.join(FAMILIES)}"
        )
    module, function = FAMILIES[family].split(":")
    load: Callable[[str, str | None], Embedder] = getattr(importlib.import_module(module), function)
    return load(name, device)
