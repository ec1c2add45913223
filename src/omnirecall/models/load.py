"""From ``--model`` to an Embedder."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from omnirecall.errors import UserError
from omnirecall.models.base import Embedder, ModelOptions
from omnirecall.models.checkpoint import Checkpoint
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
    """The model that a preset's name, a path, ``FAMILY`` or ``FAMILY:NAME[@REVISION]`` means; UserError lists the families."""
    options = options or ModelOptions()
    preset = presets().get(spec)
    if preset is not None:
        revision = options.revision or preset.revision or None
        options = replace(options, revision=revision, args={**preset.args, **options.args})
        spec = f"{preset.family}:{preset.name}"
    family, _, name = (_spec_of_path(spec) or spec).partition(":")
    if family not in FAMILIES:
        raise UserError(
            f"there is no model {spec}: write a path, a preset's name (`omnirecall models` lists them), FAMILY or FAMILY:NAME,"
            f" where FAMILY is one of {', '.join(FAMILIES)}"
        )
    module, function = FAMILIES[family].split(":")
    load: Callable[[str, ModelOptions], Embedder] = getattr(importlib.import_module(module), function)
    return load(name, options)


def _spec_of_path(spec: str) -> str | None:
    """``FAMILY:PATH`` for a path: a folder by the files in it, or a file of Python with ``:ATTRIBUTE``; None if it is no path."""
    if spec.partition(":")[0].endswith(".py"):
        return f"py:{spec}"
    folder = Path(spec).expanduser()
    if not folder.is_dir() or spec in FAMILIES:
        return None
    if (folder / "modules.json").is_file():
        return f"st:{spec}"
    if not (folder / "config.json").is_file():
        raise UserError(f"{spec}: is no model's folder: there is neither modules.json nor config.json in it")
    from omnirecall.models.dual_encoder import find_kind

    config = Checkpoint(folder.name, folder, identity="").json("config.json")
    return f"hf:{spec}" if find_kind(config) is not None else f"vlm:{spec}"
