"""The starter suite run once, as `make demo` runs it, for all tests that need a real run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a bash script with this environment's commands first on the path."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **variables}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@dataclass(frozen=True)
class Demo:
    """What `make demo` printed, cold and warm, and where its runs are."""

    runs: Path
    cold: subprocess.CompletedProcess[str]
    warm: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`make demo`, twice, into a folder of its own."""
    runs = tmp_path_factory.mktemp("demo") / "runs"
    command = f"make demo VENV='{BIN.parent}' RUNS='{runs}'"
    return Demo(runs, shell(command, REPOSITORY), shell(command, REPOSITORY))
