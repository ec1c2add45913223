"""The user's own model: ``py:module:attribute`` or ``py:path.py:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Embedder, Encoded, ModelOptions, Role

if TYPE_CHECKING:
    from omnirecall.models.base import Vectors

NEEDS = ("name", "fingerprint", "dimension", "symmetric", "supports", "encode")
DEFAULTED = ("late_interaction", "by_id", "sampling_rate", "default_prompt", "media_tokens", "notes")


class UserModel:
    """The user's object, with defaults for what it need not say: late interaction, sampling rate, prompt, media tokens, notes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name: str = inner.name
        self.fingerprint: str = inner.fingerprint
        self.dimension: int = inner.dimension
        self.symmetric: bool = inner.symmetric
        self.late_interaction: bool = getattr(inner, "late_interaction", False)
        self.by_id: bool = getattr(inner, "by_id", False)
        self.sampling_rate: int = getattr(inner, "sampling_rate", 16000)
        self.default_prompt: str = getattr(inner, "default_prompt", "model")
        self.media_tokens: Mapping[str, str] = getattr(inner, "media_tokens", {})
        self.notes: tuple[str, ...] = tuple(getattr(inner, "notes", ()))

    def supports(self, modalities: Set[str]) -> bool:
        """What the user's object says."""
        return bool(self.inner.supports(modalities))

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Vectors | Encoded:
        """What the user's object gives; the pipeline checks it."""
        given: Vectors | Encoded = self.inner.encode(items, role=role)
        return given


def as_embedder(model: Any, spec: str) -> Embedder:
    """The object itself where it says all that an Embedder does, else with defaults; UserError says what it lacks."""
    if missing := [need for need in NEEDS if not hasattr(model, need)]:
        raise UserError(f"{spec}: the model lacks {', '.join(missing)}; a model has {', '.join(NEEDS)}")
    return model if all(hasattr(model, name) for name in DEFAULTED) else UserModel(model)


def load(name: str, options: ModelOptions) -> Embedder:
    """The object, or what calling the class or function with ``--model-arg`` gives; UserError says what it lacks."""
    options.only(f"py:{name}", *options.args)
    where, _, attribute = name.rpartition(":")
    if not where:
        raise UserError(f"py:{name}: write py:module:attribute or py:path.py:attribute")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    if not hasattr(module, attribute):
        raise UserError(f"py:{name}: {where} has no {attribute}")
    model = getattr(module, attribute)
    if isinstance(model, type) or (callable(model) and not hasattr(model, "encode")):
        try:
            inspect.signature(model).bind(**options.args)
        except TypeError as error:
            raise UserError(f"py:{name}: {error}; give it with --model-arg KEY=VALUE, or leave it out") from None
        model = model(**options.args)
    elif options.args:
        raise UserError(
            f"--model-arg {next(iter(options.args))}: py:{name} is an object already, and takes no arguments"
        )
    return as_embedder(model, f"py:{name}")


def _from_name(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"py:{name}: no module {error.name} can be imported; install it or name a file") from None


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise UserError(f"py:{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"omnirecall_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"py:{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while it is made
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"py:{path}: line {error.lineno}: not valid Python: {error.msg}") from None
    return module
