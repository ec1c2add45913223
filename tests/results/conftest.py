"""What the tests of results share."""

from __future__ import annotations

from collections.abc import Callable

import made_runs
import pytest


@pytest.fixture(scope="session")
def make_run() -> Callable:
    """Write a run folder of tasks by name (``made_runs.Scored``), and give its path."""
    return made_runs.make_run


@pytest.fixture(scope="session")
def random_task() -> Callable:
    """A task of random scores: ``random_task(seed, n, m, skill=..., coarse=..., **fields of Scored)``."""
    return made_runs.random_task
