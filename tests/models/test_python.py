"""One's own model: as an object with only what it must have, by file, with arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnirecall import evaluate
from omnirecall.errors import UserError
from omnirecall.models.base import ModelOptions
from omnirecall.models.load import load_model
from omnirecall.models.template import Model


class Least:
    """All that a model must have, and no more."""

    name, fingerprint, dimension, symmetric = "least", "least-1", 4, True

    def supports(self, modalities: object) -> bool:
        return True

    def encode(self, items: Any, *, role: str) -> Any:
        return np.array([[len(item.id), 1, 2, 3] for item in items], np.float32)


@pytest.mark.parametrize("model", [Least(), Model()])
def test_an_object_with_only_what_it_must_have(model: Any, own_data: Callable, tmp_path: Path) -> None:
    run = evaluate(model, own_data(tmp_path / "data"), out=tmp_path / "runs")
    assert run.model.name == model.name
    assert all(task.status == "ok" for task in run.tasks.values())


def test_an_object_that_lacks_something(own_data: Callable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the model lacks supports, encode"):
        evaluate(
            type("Half", (), dict.fromkeys(("name", "fingerprint", "dimension", "symmetric"), 1))(), own_data(tmp_path)
        )  # type: ignore[arg-type]


def test_arguments_go_to_the_class(model: Callable, tmp_path: Path) -> None:
    name = model("\n    def __init__(self, size='3'):\n        self.name = 'sized-' + size\n")
    assert load_model(name).name == "sized-3"
    assert load_model(name, ModelOptions(args={"size": "5"})).name == "sized-5"
    with pytest.raises(UserError, match=r"unexpected keyword argument 'colour'"):
        load_model(name, ModelOptions(args={"colour": "red"}))
    with pytest.raises(UserError, match="has no choice of dtype"):
        load_model(name, ModelOptions(dtype="float16"))
    (tmp_path / "made.py").write_text((tmp_path / "model.py").read_text() + "\nmade = Model()\n")
    with pytest.raises(UserError, match="takes no arguments"):
        load_model(f"py:{tmp_path}/made.py:made", ModelOptions(args={"size": "5"}))
