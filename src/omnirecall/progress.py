"""How long work tells of its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""Called with what is being done and how many steps it has; gives the function to call as steps are done."""


def silent(what: str, total: int) -> AbstractContextManager[Advance]:
    """Progress that nobody sees."""
    return nullcontext(lambda _: None)
