"""From ``--model`` to an Embedder."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

from omnirecall.errors import UserError
from omnirecall.models.base import Embedder, ModelOptions
from omnirecall.models.presets import presets

FAMILIES = {
    "starter": "omnirecall.models.starter:load",
    "st": "omnirecall.models.sentence_transformers:load",
    "hf": "omnirecall.models.dual_encoder:load",
    "vlm": "omnirecall.models.vision_language:load",
    "mteb": "omnirecall.models.mteb_registry:load",
    "http": "omnirecall.models.endpoint:load",
    "vectors": "omnirecall.models.precomputed:load",
    "random": "omnirecall.models.baselines:load_random",
    "constant": "omnirecall.models.baselines:load_constant",
    "py": "omnirecall.models.python:load",
}
"""Family to ``module:function``; the function takes what follows the colon, and ModelOptions."""


def load_model(spec: str, options: ModelOptions | None = None) -> Embedder:
    """The model that a preset's name, ``FAMILY`` or ``FAMILY:NAME[@REVISION]`` means; UserError lists the families."""
    options = options or ModelOptions()
    preset = presets().get(spec)
    if preset is not None:
        revision = options.revision or preset.revision or None
        options = replace(options, revision=revision, args={**preset.args, **options.args})
        spec = f"{preset.family}:{preset.name}"
    family, _, name = spec.partition(":")
    if family not in FAMILIES:
        raise UserError(
            f"there is no model {spec}: write a preset's name (`omnirecall models` lists them), FAMILY or FAMILY:NAME, where"
            f" FAMILY is one of {', '.join(FAMILIES)}"
        )
    module, function = FAMILIES[family].split(":")
    load: Callable[[str, ModelOptions], Embedder] = getattr(importlib.import_module(module), function)
    return load(name, options)
