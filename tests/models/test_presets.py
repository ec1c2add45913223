"""Every preset: what it says, and that its family takes its arguments."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.base import Encoded, ModelOptions
from omnirecall.models.load import FAMILIES, load_model
from omnirecall.models.presets import Preset, presets
from omnirecall.models.vlm_recipe import ARCHITECTURES, ARGUMENTS, read_recipe

sys.path.insert(0, str(Path(__file__).parent))
from vlm_checkpoints import save_checkpoint

ALL = sorted(presets().items())
NAMES = [name for name, _ in ALL]
VLM = [(name, preset) for name, preset in ALL if preset.family == "vlm"]


@pytest.mark.parametrize(("name", "preset"), ALL, ids=NAMES)
def test_a_preset_says_where_it_comes_from(name: str, preset: Preset) -> None:
    assert preset.family in FAMILIES
    assert name not in FAMILIES
    assert re.fullmatch(r"[a-z0-9.-]+", name)
    assert preset.about
    assert preset.certainty in {"stated", "code", "derived", "peer", "assumed"}
    if found := re.fullmatch(r"as ([a-z0-9-]+)", preset.source):
        assert preset.args == presets()[found[1]].args
    else:
        assert len(preset.source) > 40
    assert preset.family != "vlm" or re.fullmatch(r"[\w.-]+/[\w.-]+", preset.name)
    assert re.fullmatch(r"([0-9a-f]{40})?", preset.revision)


@pytest.mark.parametrize(("name", "preset"), VLM, ids=[name for name, _ in VLM])
def test_the_family_takes_its_arguments(name: str, preset: Preset) -> None:
    options = ModelOptions(args=preset.args, revision=preset.revision or None)
    options.only(name, *ARGUMENTS, dtype=True, revision=True)
    read_recipe(options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    kinds = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni_thinker")
    return {kind: save_checkpoint(tmp_path_factory.mktemp(kind), kind) for kind in kinds}


def embedded(model: Any, item: DecodedItem, role: Any = "query") -> Encoded:
    result = model.encode([item], role=role)
    assert isinstance(result, Encoded)
    assert isinstance(result.vectors, np.ndarray)
    assert np.isfinite(result.vectors).all()
    return result


@pytest.mark.parametrize(("name", "preset"), VLM, ids=[name for name, _ in VLM])
def test_it_embeds_with_a_small_model_of_its_architecture(
    name: str, preset: Preset, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = preset.args.get("architecture", "qwen2_5_omni_thinker")
    args = {key: value for key, value in preset.args.items() if key != "adapter"}
    small = Preset(preset.family, str(folders[kind]), args=args)
    monkeypatch.setattr("omnirecall.models.load.presets", lambda: {name: small})
    model = load_model(name)
    pixels = np.random.default_rng(0).integers(0, 255, (8, 270, 480, 3), dtype=np.uint8)
    clip = Frames(pixels, np.arange(8.0), np.arange(8) * 10, 80)
    items = [
        DecodedItem("t", text="a cat in the snow", instruction="Find the video"),
        DecodedItem("i", text="a dog", image=Image.fromarray(pixels[0])),
        DecodedItem("v", video=clip),
    ]
    if "audio" in ARCHITECTURES[kind].modalities:
        items.append(DecodedItem("s", audio=Samples(np.ones(8000, np.float32), 16000)))
    results = [embedded(model, item) for item in items]
    if preset.args.get("normalise") == "true":
        for result in results:
            assert np.linalg.norm(np.asarray(result.vectors)) == pytest.approx(1, abs=1e-5)
    most = preset.args.get("max_frame_tokens")
    assert most is None or results[2].frame_tokens[0] <= int(most)
    assert all(result.tokens_cut == [0] for result in results)
    turned = np.asarray(embedded(model, items[0], role="candidate").vectors)
    assert np.array_equal(turned, np.asarray(results[0].vectors)) == model.symmetric


def test_a_users_argument_goes_before_the_presets(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders["qwen2_vl"]
    preset = Preset("vlm", str(folder), args={"pooling": "mean", "normalise": "true"})
    monkeypatch.setattr("omnirecall.models.load.presets", lambda: {"small": preset})
    item = DecodedItem("t", text="a cat")
    vector = np.asarray(embedded(load_model("small", ModelOptions(args={"pooling": "last"})), item).vectors)
    plain = ModelOptions(args={"pooling": "last", "normalise": "true"})
    np.testing.assert_array_equal(vector, np.asarray(embedded(load_model(f"vlm:{folder}", plain), item).vectors))
    assert np.abs(vector - np.asarray(embedded(load_model("small"), item).vectors)).max() > 0.01
    with pytest.raises(UserError, match=r"--model-arg pool:.*no such argument"):
        load_model("small", ModelOptions(args={"pool": "last"}))


def test_gve_reads_as_its_authors_wrote_it(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt, written out: what the chat template gave, and the pooled token after it."""
    folder = Path(shutil.copytree(folders["qwen2_5_vl"], tmp_path / "gve"))
    monkeypatch.setattr(
        "omnirecall.models.load.presets", lambda: {"gve": Preset("vlm", str(folder), args=presets()["gve-3b"].args)}
    )
    raw = Preset(
        "vlm",
        str(folder),
        args={
            "template": "none",
            "form": "{text}",
            "normalise": "true",
            "min_frame_tokens": "128",
            "max_frame_tokens": "200",
        },
    )
    pixels = np.random.default_rng(1).integers(0, 255, (8, 270, 480, 3), dtype=np.uint8)
    item = DecodedItem(
        "v", text="a cat", video=Frames(pixels, np.arange(8.0), np.arange(8) * 10, 80), instruction="Find the clip."
    )
    vector = np.asarray(embedded(load_model("gve"), item).vectors)
    written = (
        "<|im_start|>system\nFind the clip.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>a cat<|im_end|>\n"
        "<|im_start|>assistant\n<|endoftext|>"
    )
    monkeypatch.setattr("omnirecall.models.load.presets", lambda: {"raw": raw})
    plain = DecodedItem("v", text=written, video=item.video)
    np.testing.assert_allclose(vector, np.asarray(embedded(load_model("raw"), plain).vectors), atol=1e-5, rtol=0)
