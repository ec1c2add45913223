"""`pip install .` alone gives a light base that scores vectors and says what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import REPOSITORY, shell


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with nothing but the base."""
    folder = tmp_path_factory.mktemp("light")
    done = shell(
        f"{sys.executable} -m venv '{folder}/venv' && '{folder}/venv/bin/pip' install --quiet '{REPOSITORY}'", folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "venv" / "bin"


def test_no_heavy_library_comes_along(light: Path) -> None:
    """Neither torch nor media libraries."""
    listed = shell(f"'{light}/pip' list --format freeze", light).stdout.lower()
    assert "omnirecall" in listed
    assert not [name for name in ("torch", "transformers", "av==", "pillow", "pandas", "ray") if name in listed]


def test_it_scores_vectors(light: Path, tmp_path: Path) -> None:
    """The page on scoring runs in the light base."""
    script = (
        f"'{light}/python' -c \"import numpy as np; np.save('v.npy', np.eye(4, dtype='float32'))\"\n"
        "seq 0 3 | awk '{print $1, 0, $1, 1}' > qrels.trec\n"
        f"'{light}/omnirecall' score v.npy v.npy qrels.trec --measures hit@1 --per-query out.parquet\n"
    )
    done = shell(script, tmp_path)
    assert "hit@1  100.00" in done.stdout, done.stderr


@pytest.mark.parametrize("model", ["starter", "random:8"])
def test_a_missing_extra_is_one_sentence(light: Path, tmp_path: Path, model: str) -> None:
    """What to install is said, and nothing else."""
    done = shell(f"'{light}/omnirecall' run starter --model {model} --tasks text-to-image", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "pip install 'omnirecall[" in done.stderr
