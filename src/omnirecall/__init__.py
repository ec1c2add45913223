"""OmniRecall: evaluation of omni-modal retrieval.

``run = omnirecall.evaluate("starter", "starter")`` measures a model on a suite; ``run.table()`` shows it.
``omnirecall.rank(queries, candidates, positives)`` ranks arrays. Names are imported when first used, to keep this import light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from omnirecall._version import __version__

if TYPE_CHECKING:
    from omnirecall.errors import RunError, UserError
    from omnirecall.evaluation import evaluate
    from omnirecall.models.load import load_model
    from omnirecall.protocol.items import Item
    from omnirecall.protocol.measures import Measure
    from omnirecall.protocol.suites import Suite, Task
    from omnirecall.ranking import Ranks, rank
    from omnirecall.sources.load import load_suite

_HOMES = {
    "evaluate": "omnirecall.evaluation",
    "rank": "omnirecall.ranking",
    "Ranks": "omnirecall.ranking",
    "load_suite": "omnirecall.sources.load",
    "load_model": "omnirecall.models.load",
    "Item": "omnirecall.protocol.items",
    "Measure": "omnirecall.protocol.measures",
    "Task": "omnirecall.protocol.suites",
    "Suite": "omnirecall.protocol.suites",
    "UserError": "omnirecall.errors",
    "RunError": "omnirecall.errors",
}

__all__ = [
    "Item",
    "Measure",
    "Ranks",
    "RunError",
    "Suite",
    "Task",
    "UserError",
    "__version__",
    "evaluate",
    "load_model",
    "load_suite",
    "rank",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
