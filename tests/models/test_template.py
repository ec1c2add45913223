"""The model that a user starts from: printed, saved and run as a newcomer would."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.load import load_model
from omnirecall.sources.load import load_suite


@pytest.fixture(scope="module")
def printed(command: Callable[..., Any]) -> str:
    done = command("models", "--template")
    assert (done.code, done.err) == (0, "")
    text: str = done.out
    return text


@pytest.fixture
def saved(printed: str, tmp_path: Path) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(printed)
    return path


def test_it_imports_numpy_the_items_and_nothing_else(printed: str) -> None:
    tree = ast.parse(printed)
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    others = {module for module in modules if module and module.split(".")[0] not in sys.stdlib_module_names}
    assert others == {"numpy", "numpy.typing", "omnirecall.media.types"}


def test_it_runs_unchanged_on_the_starter_suite(
    saved: Path, command: Callable[..., Any], run_of: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    done = command("run", "starter", "--model", f"py:{saved}:Model", "--limit", 2, "--out", tmp_path / "runs")
    assert done.code == 0, done.err
    run = run_of(tmp_path / "runs")
    assert set(run["tasks"]) == set(load_suite("starter").task_names())
    for name, record in run["tasks"].items():
        assert record["status"] == "ok", name
        assert 0 <= record["value"] <= 1, name
    assert run["model"]["name"] == "my-model"
    assert set(run["model"]["modalities"]) == {"text", "image", "video", "audio"}


def test_it_finds_what_shares_letters(
    saved: Path, command: Callable[..., Any], run_of: Callable[..., Any], tmp_path: Path
) -> None:
    words = ["run", "starter", "--tasks", "text-to-text", "--model", f"py:{saved}:Model", "--out", tmp_path / "runs"]
    assert command(*words).code == 0
    record = run_of(tmp_path / "runs")["tasks"]["text-to-text"]
    assert record["value"] > 20 * record["chance"]


def every_part() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "text": "a word",
        "image": Image.fromarray(draw.integers(0, 256, (9, 7, 3), np.uint8)),
        "video": Frames(draw.integers(0, 256, (3, 9, 7, 3), np.uint8), np.arange(3.0)),
        "audio": Samples(draw.standard_normal(5000).astype(np.float32), 16000),
    }


def test_every_combination_has_a_vector_of_its_own(saved: Path) -> None:
    model = load_model(f"py:{saved}:Model")
    parts = every_part()
    chosen = [names for size in range(1, 5) for names in combinations(parts, size)]
    items = [DecodedItem(id=",".join(names), **{name: parts[name] for name in names}) for names in chosen]
    vectors = np.concatenate([np.asarray(model.encode([item], role="query")) for item in items])
    assert vectors.dtype == np.float32
    assert vectors.shape == (15, model.dimension)
    assert np.isfinite(vectors).all()
    assert len(np.unique(vectors.round(5), axis=0)) == 15
    assert all(model.supports(set(names)) for names in chosen)
    assert not model.supports(set())
    assert not model.supports({"text", "smell"})


def test_empty_and_silent_items_have_vectors_too(saved: Path) -> None:
    model = load_model(f"py:{saved}:Model")
    for item in (
        DecodedItem(id="empty", text=""),
        DecodedItem(id="black", image=Image.new("RGB", (1, 1))),
        DecodedItem(id="silent", audio=Samples(np.zeros(3000, np.float32), 16000)),
        DecodedItem(id="none", audio=Samples(np.zeros(0, np.float32), 16000)),
    ):
        vector = np.asarray(model.encode([item], role="candidate"))
        assert np.isfinite(vector).all(), item.id
        assert vector.any(), item.id


def test_batch_and_single_agree_and_the_instruction_counts(saved: Path) -> None:
    model = load_model(f"py:{saved}:Model")
    items = [DecodedItem(id=str(row), text="word " * (row + 1)) for row in range(5)]
    alone = np.concatenate([np.asarray(model.encode([item], role="query")) for item in items])
    np.testing.assert_array_equal(np.asarray(model.encode(items, role="query")), alone)
    told = DecodedItem(id="0", text=items[0].text, instruction="find it")
    assert not np.array_equal(np.asarray(model.encode([told], role="query"))[0], alone[0])


def test_the_template_stands_alone(command: Callable[..., Any], refused: Callable[..., None]) -> None:
    refused(command("models", "starter", "--template"), "--template")
    refused(command("models", "--template", "--json"), "--template")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("Other = 3\n", "has no Model"),
        ("class Model:\n    name = 'm'\n", "the model lacks fingerprint, dimension, symmetric, supports, encode"),
        ("class Model:\n    name = \n", "line 2: not valid Python"),
    ],
)
def test_what_a_model_of_ones_own_lacks_is_named(tmp_path: Path, body: str, sentence: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(body)
    with pytest.raises(UserError, match=sentence):
        load_model(f"py:{path}:Model")


def test_names_of_modules_and_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(saved.parent)
    assert load_model("py:my_model:Model").fingerprint == load_model(f"py:{saved}:Model").fingerprint
    with pytest.raises(UserError, match="write py:module:attribute"):
        load_model("py:my_model")
    with pytest.raises(UserError, match="no module nosuch_module"):
        load_model("py:nosuch_module:Model")
    with pytest.raises(UserError, match="there is no such file"):
        load_model(f"py:{saved.parent}/none.py:Model")
