"""Errors that a user can cure, each one sentence that names the thing, the place and the cure."""

from __future__ import annotations

import importlib
from typing import Any


class UserError(Exception):
    """A mistake in the input; the command line prints its sentence and ends with code 2."""


class RunError(Exception):
    """The work itself failed; the command line prints its sentence and ends with code 1."""


def require(module: str, extra: str) -> Any:
    """Import ``module``, or raise UserError that names the extra which installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise UserError(f"{module} is not installed: run `pip install 'omnirecall[{extra}]'`") from None
