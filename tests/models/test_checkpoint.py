"""Where a model's files come from: a folder, the local cache, a hub on loopback; and which family a bare path is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import Hub, environment, serving

from omnirecall.errors import UserError
from omnirecall.models.base import ModelOptions
from omnirecall.models.checkpoint import find_checkpoint, folder_digest
from omnirecall.models.load import load_model
from omnirecall.models.presets import presets

CONFIG = b'{"model_type": "clip"}'
FILES = {
    "config.json": CONFIG,
    "model.safetensors": b"w" * 2000,
    "pytorch_model.bin": b"p" * 2000,
    "sub/tokenizer.json": b"{}",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(monkeypatch) as hub:
        yield hub


@pytest.fixture
def find(hub: Hub, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``find_checkpoint`` in a process that asks this hub, with a cache of its own."""
    code = (
        "import json, sys\n"
        "from omnirecall.errors import UserError\n"
        "from omnirecall.models.checkpoint import find_checkpoint\n"
        "try:\n"
        "    found = find_checkpoint('hf', sys.argv[1], sys.argv[2] or None)\n"
        "    files = sorted(str(p.relative_to(found.folder)) for p in found.folder.rglob('*') if p.is_file())\n"
        "    print(json.dumps({'identity': found.identity, 'name': found.name, 'files': files}))\n"
        "except UserError as error:\n"
        "    print(json.dumps({'error': str(error)}))\n"
    )

    def run(name: str, revision: str = "", **more: str) -> dict[str, str]:
        env = {**os.environ, **environment(hub), "HF_HOME": str(tmp_path / "home"), **more}
        env.pop("HF_HUB_OFFLINE", None) if "HF_HUB_OFFLINE" not in more else None
        result = subprocess.run(
            [sys.executable, "-c", code, name, revision],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(result.stdout.splitlines()[-1])

    return run


def test_a_repository_is_fetched_once_and_never_its_pickles(hub: Hub, find: Callable) -> None:
    commit = hub.add("owner/clip", FILES)
    found = find("owner/clip")
    assert found["identity"] == f"owner/clip@{commit}"
    assert found["name"] == "clip"
    assert found["files"] == ["config.json", "model.safetensors", "sub/tokenizer.json"]
    assert not hub.got("*pytorch_model.bin", "HEAD")
    assert not hub.got("*pytorch_model.bin")
    asked = len(hub.asked)
    assert find("owner/clip") == found
    assert len(hub.asked) == asked, "what is in the cache is not asked for"


def test_a_revision_is_its_own_identity(hub: Hub, find: Callable) -> None:
    first = hub.add("owner/clip", FILES)
    second = hub.add("owner/clip", {**FILES, "config.json": b"{}"})
    assert find("owner/clip", first)["identity"].endswith(first)
    assert find(f"owner/clip@{second}")["identity"].endswith(second)
    assert "no such revision" in find("owner/clip", "0" * 40)["error"]


def test_what_cannot_be_had_is_said(hub: Hub, find: Callable) -> None:
    assert "no such repository" in find("owner/nothing")["error"]
    hub.add("owner/gated", FILES, token="secret")
    assert "access must be granted" in find("owner/gated")["error"]
    offline = find("owner/absent", HF_HUB_OFFLINE="1")["error"]
    assert "not in the local cache" in offline
    assert "no such folder" in find("../escape")["error"]
    assert "no such folder" in find("/no/where")["error"]


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "sub" / "x.json").write_bytes(b"{}")
    first = folder_digest(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("hidden files change nothing")
    assert folder_digest(folder) == first
    found = find_checkpoint("hf", str(folder))
    assert (found.name, found.identity) == ("model", first)
    assert found.json("config.json") == json.loads(CONFIG)
    assert found.json("absent.json") == {}
    (folder / "sub" / "x.json").rename(folder / "x.json")
    assert folder_digest(folder) != first
    (folder / "x.json").write_bytes(b"{")
    with pytest.raises(UserError, match=r"x\.json: cannot be read as JSON"):
        found.json("x.json")
    (folder / "x.json").write_bytes(b"[]")
    with pytest.raises(UserError, match="must hold a JSON object"):
        found.json("x.json")
    with pytest.raises(UserError, match="has no revisions"):
        find_checkpoint("hf", str(folder), "main")


@pytest.mark.parametrize(
    ("files", "family"),
    [
        ({"modules.json": b"[]", "config.json": CONFIG}, "st"),
        ({"config.json": CONFIG}, "hf"),
        ({"config.json": b'{"model_type": "qwen2_5_vl"}'}, "vlm"),
        ({"config.json": b'{"model_type": "unheard-of"}'}, "vlm"),
    ],
)
def test_a_bare_path_is_given_to_its_family(
    files: dict[str, bytes], family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    seen: list[str] = []
    for name in ("st", "hf", "vlm"):
        monkeypatch.setitem(sys.modules, f"fake_{name}", type(sys)(f"fake_{name}"))
        sys.modules[f"fake_{name}"].load = lambda path, options, name=name: seen.append(f"{name}:{path}")  # type: ignore[attr-defined]
        monkeypatch.setitem(load_model.__globals__["FAMILIES"], name, f"fake_{name}:load")
    load_model(str(tmp_path))
    assert seen == [f"{family}:{tmp_path}"]


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither modules\.json nor config\.json"):
        load_model(str(tmp_path))
    with pytest.raises(UserError, match="write a path, a preset's name"):
        load_model("nonsense")
    with pytest.raises(UserError, match="there is no such file"):
        load_model("absent.py:Model")


def test_a_preset_gives_way_to_the_users_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ModelOptions]] = []
    monkeypatch.setitem(sys.modules, "fake_vlm", type(sys)("fake_vlm"))
    sys.modules["fake_vlm"].load = lambda path, options: seen.append((path, options))  # type: ignore[attr-defined]
    monkeypatch.setitem(load_model.__globals__["FAMILIES"], "vlm", "fake_vlm:load")
    preset = presets()["gve-3b"]
    load_model("gve-3b", ModelOptions(args={"max_length": "1200"}))
    load_model("gve-3b", ModelOptions(revision="other"))
    assert seen[0] == (preset.name, ModelOptions(revision=preset.revision, args={**preset.args, "max_length": "1200"}))
    assert seen[1][1].revision == "other"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ModelOptions(dtype="float32"), "has no choice of dtype"),
        (ModelOptions(revision="main"), "has no revisions"),
        (ModelOptions(args={"x": "1"}), "has no such argument"),
    ],
)
def test_options_that_a_family_does_not_take(options: ModelOptions, said: str) -> None:
    for name in ("random:8", "constant:8", "starter"):
        with pytest.raises(UserError, match=said):
            load_model(name, options)
