"""Every kind of dual encoder against the library called directly on the same input, on small random checkpoints."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import checkpoints
from PIL import Image

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.base import ModelOptions
from omnirecall.models.dual_encoder import DUAL_ENCODERS, evenly
from omnirecall.models.load import load_model
from omnirecall.ranking import BFloat16

TEXTS = ["a cat", "rain", "two boats cross the harbour at dawn and a dog sleeps in the snow", "word " * 40]
SEEN = [kind for kind in checkpoints.KINDS if kind not in ("clap", "xclip")]
LIMITS = {"siglip": 64, "siglip2": 64, "align": 64}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a kind's checkpoint, made when first asked for."""
    root = tmp_path_factory.mktemp("dual")

    def folder(kind: str) -> Path:
        if not (root / kind).exists():
            checkpoints.dual_encoder(kind, root / kind)
        return root / kind

    return folder


def picture(seed: int, size: tuple[int, int] = (50, 40)) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def clip(seed: int, frames: int) -> Frames:
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 30, 40, 3), dtype=np.uint8)
    return Frames(pixels, np.arange(frames) / 4, np.arange(frames), frames)


def sound(seed: int, samples: int) -> Samples:
    return Samples(np.random.default_rng(seed).normal(scale=0.1, size=samples).astype(np.float32), 8000)


def items(**parts: list[Any]) -> list[DecodedItem]:
    count = len(next(iter(parts.values())))
    return [DecodedItem(id=f"i{row}", **{name: values[row] for name, values in parts.items()}) for row in range(count)]


def vectors(model: Any, given: list[DecodedItem]) -> Any:
    return model.encode(given, role="query").vectors


def library(folder: Path, dtype: Any = None) -> tuple[Any, Any]:
    """The model and processor as the library's documentation loads them."""
    import torch
    from transformers import AutoModel, AutoProcessor

    model = AutoModel.from_pretrained(str(folder), dtype=dtype or torch.float32).eval()
    return model, AutoProcessor.from_pretrained(str(folder))


def direct(folder: Path, kind: str, part: str, values: list[Any], dtype: Any = None) -> Any:
    """The features by the calls that the library documents, as a tensor."""
    import torch

    model, processor = library(folder, dtype)
    if part == "text":
        padding = "max_length" if kind in LIMITS else True
        inputs = processor(
            text=values, padding=padding, truncation=True, max_length=LIMITS.get(kind, 20), return_tensors="pt"
        )
    else:
        inputs = processor(images=values, return_tensors="pt")
    inputs = {name: value.to(model.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.no_grad():
        output = getattr(model, f"get_{part}_features")(**inputs).pooler_output
    return output[:, 0] if kind == "flava" else output


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(1, np.abs(expected).max())


def test_every_kind_has_a_checkpoint_here() -> None:
    assert set(checkpoints.KINDS) == set(DUAL_ENCODERS)


@pytest.mark.parametrize("kind", checkpoints.KINDS)
def test_texts_get_the_librarys_vectors(kind: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(kind)
    model = load_model(f"hf:{folder}")
    found = vectors(model, items(text=TEXTS))
    same(found, direct(folder, kind, "text", TEXTS))
    assert found.shape == (len(TEXTS), model.dimension)
    assert found.dtype == np.float32
    assert np.abs(found[0] - found[1]).max() > 0.01 * np.abs(found).max()


@pytest.mark.parametrize("kind", SEEN)
def test_pictures_get_the_librarys_vectors(kind: str, checkpoint: Callable[[str], Path]) -> None:
    folder, pictures = checkpoint(kind), [picture(1), picture(2, (90, 33)), picture(3, (20, 64))]
    model = load_model(f"hf:{folder}")
    found = vectors(model, items(image=pictures))
    same(found, direct(folder, kind, "image", pictures))
    assert found.shape == (3, model.dimension)
    assert np.abs(found[0] - found[1]).max() > 0.01 * np.abs(found).max()


@pytest.mark.parametrize("kind", checkpoints.KINDS)
def test_the_batch_does_not_change_a_vector(kind: str, checkpoint: Callable[[str], Path]) -> None:
    model = load_model(f"hf:{checkpoint(kind)}")
    given = {
        "text": TEXTS,
        "image": [picture(1), picture(2, (90, 33)), picture(3, (20, 64))],
        "video": [clip(1, 1), clip(2, 9), clip(3, 4)],
        "audio": [sound(1, 500), sound(2, 8000), sound(3, 30_000), sound(4, 20)],
    }
    for part, values in given.items():
        if not model.supports({part}):
            continue
        together = vectors(model, items(**{part: values}))
        alone = np.concatenate([vectors(model, items(**{part: [value]})) for value in values])
        same(together, alone)
        same(vectors(model, items(**{part: values[::-1]})), together[::-1])


@pytest.mark.parametrize("kind", checkpoints.KINDS)
def test_lost_tokens_are_counted(kind: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(kind)
    long = "two boats cross the harbour " * 40
    _, processor = library(folder)
    expected = len(processor.tokenizer(long)["input_ids"]) - LIMITS.get(kind, 20)
    assert load_model(f"hf:{folder}").encode(items(text=["a", long]), role="query").tokens_cut == [0, expected]
    assert expected > 0


def test_a_composed_item_is_the_normalised_sum_of_its_parts(checkpoint: Callable[[str], Path]) -> None:
    model = load_model(f"hf:{checkpoint('clip')}")
    given = items(text=TEXTS[:2], image=[picture(1), picture(2)], video=[clip(1, 3), clip(2, 5)])
    parts = [
        unit(vectors(model, [DecodedItem(id=item.id, **{part: getattr(item, part)}) for item in given]))
        for part in ("text", "image", "video")
    ]
    same(vectors(model, given), unit(sum(parts)))
    assert "composed items: late fusion, the normalised sum of the parts" in model.notes


def test_a_video_is_the_mean_of_its_frames(checkpoint: Callable[[str], Path]) -> None:
    folder, videos = checkpoint("siglip"), [clip(1, 3), clip(2, 70)]
    model = load_model(f"hf:{folder}")
    frames = [[Image.fromarray(frame) for frame in video.pixels] for video in videos]
    expected = [unit(direct(folder, "siglip", "image", some).numpy()).mean(0) for some in frames]
    same(vectors(model, items(video=videos)), expected)
    assert "video: the mean of its frames' unit vectors" in model.notes


@pytest.mark.parametrize(("frames", "chosen"), [(4, [0, 1, 2, 3]), (9, [0, 3, 5, 8]), (2, [0, 0, 1, 1]), (1, [0] * 4)])
def test_x_clip_takes_as_many_frames_as_it_was_made_for(
    frames: int, chosen: list[int], checkpoint: Callable[[str], Path]
) -> None:
    import torch

    folder, video = checkpoint("xclip"), clip(frames, frames)
    assert evenly(frames, 4).tolist() == chosen
    model, processor = library(folder)
    inputs = processor(videos=[[Image.fromarray(video.pixels[place]) for place in chosen]], return_tensors="pt")
    with torch.no_grad():
        expected = model.get_video_features(inputs["pixel_values"]).pooler_output
    tested = load_model(f"hf:{folder}")
    same(vectors(tested, items(video=[video])), expected)
    assert "video: 4 frames, evenly chosen or repeated from those given" in tested.notes


@pytest.mark.parametrize("truncation", ["fusion", "rand_trunc"])
def test_clap_hears_the_same_windows_each_time(truncation: str, tmp_path: Path) -> None:
    import torch

    folder = checkpoints.dual_encoder("clap", tmp_path / "clap", truncation=truncation)
    model, processor = library(folder)
    sounds = [sound(1, 500), sound(2, 8000), sound(3, 30_000), sound(4, 8050)]
    expected = []
    for one, longer in zip(sounds, [False, False, True, False], strict=True):
        np.random.seed(0)
        inputs = processor(audio=one.values, sampling_rate=8000, return_tensors="pt")
        with torch.no_grad():
            # The library marks a lone short sound as long, by a draw among those of its batch.
            features = model.get_audio_features(inputs["input_features"], is_longer=torch.tensor([[longer]]))
        expected.append(features.pooler_output)
    np.random.seed(123)
    before = np.random.get_state()[1].copy()
    tested = load_model(f"hf:{folder}")
    found = vectors(tested, items(audio=sounds))
    same(found, torch.cat(expected))
    assert np.array_equal(np.random.get_state()[1], before)
    assert np.array_equal(found, vectors(tested, items(audio=sounds)))
    assert tested.sampling_rate == 8000


def test_bfloat16_gives_the_librarys_bits(checkpoint: Callable[[str], Path]) -> None:
    import torch

    folder = checkpoint("clip")
    model = load_model(f"hf:{folder}", ModelOptions(dtype="bfloat16"))
    for part, values in (("text", TEXTS), ("image", [picture(1), picture(2)])):
        found = vectors(model, items(**{part: values}))
        assert isinstance(found, BFloat16)
        expected = direct(folder, "clip", part, values, torch.bfloat16)
        assert expected.dtype == torch.bfloat16
        assert np.array_equal(found.bits, expected.view(torch.uint16).numpy())


def test_the_dtype_is_the_checkpoints_unless_another_is_named(tmp_path: Path) -> None:
    folder = checkpoints.dual_encoder("clip", tmp_path / "clip")
    checkpoints.rewritten(folder / "config.json", dtype="float16")
    assert vectors(load_model(f"hf:{folder}"), items(text=TEXTS)).dtype == np.float16
    assert vectors(load_model(f"hf:{folder}", ModelOptions(dtype="float32")), items(text=TEXTS)).dtype == np.float32


def test_blip_for_retrieval_compares_as_the_library_does(tmp_path: Path) -> None:
    import torch
    from transformers import AutoProcessor, BlipForImageTextRetrieval

    folder, pictures = checkpoints.blip_retrieval(tmp_path / "blip"), [picture(1), picture(2)]
    model, processor = BlipForImageTextRetrieval.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    inputs = processor(
        images=pictures, text=TEXTS[:3], padding=True, truncation=True, max_length=20, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(
            inputs["input_ids"], inputs["pixel_values"], attention_mask=inputs["attention_mask"], use_itm_head=False
        ).itm_score
    tested = load_model(f"hf:{folder}")
    found = unit(vectors(tested, items(image=pictures))) @ unit(vectors(tested, items(text=TEXTS[:3]))).T
    same(found, expected)
    assert tested.dimension == 10


def test_what_each_kind_supports(checkpoint: Callable[[str], Path]) -> None:
    def supported(kind: str) -> str:
        model = load_model(f"hf:{checkpoint(kind)}")
        return " ".join(part for part in ("text", "image", "video", "audio") if model.supports({part}))

    assert supported("clip") == supported("siglip2") == "text image video"
    assert supported("clap") == "text audio"
    assert supported("xclip") == "text video"
    clap = load_model(f"hf:{checkpoint('clap')}")
    assert clap.supports({"text", "audio"})
    assert not clap.supports({"text", "video"})
    assert not clap.supports(set())
    with pytest.raises(UserError, match="item i0 has image, which the model lacks"):
        clap.encode(items(image=[picture(1)]), role="query")
    assert (clap.symmetric, clap.late_interaction, clap.default_prompt) == (True, False, "card")


def test_the_fingerprint_covers_weights_dtype_and_nothing_of_the_device(tmp_path: Path) -> None:
    folder = checkpoints.dual_encoder("clip", tmp_path / "clip")
    first = load_model(f"hf:{folder}").fingerprint
    assert load_model(f"hf:{folder}", ModelOptions(device="cuda:3")).fingerprint == first
    assert load_model(f"hf:{folder}", ModelOptions(dtype="float16")).fingerprint != first
    shutil.copytree(folder, tmp_path / "other")
    assert load_model(f"hf:{tmp_path / 'other'}").fingerprint == first
    (tmp_path / "other" / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert load_model(f"hf:{tmp_path / 'other'}").fingerprint != first


def test_another_device_is_refused_when_torch_lacks_it(checkpoint: Callable[[str], Path]) -> None:
    model = load_model(f"hf:{checkpoint('clip')}", ModelOptions(device="nowhere"))
    with pytest.raises(UserError, match="torch cannot use the device nowhere"):
        model.encode(items(text=["a"]), role="query")


def test_pictures_are_prepared_by_pillow_even_where_torchvision_is(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    folder, asked, load = checkpoint("clip"), [], AutoProcessor.from_pretrained
    monkeypatch.setattr(
        AutoProcessor, "from_pretrained", lambda *name, **more: (asked.append(more), load(*name, **more))[1]
    )
    load_model(f"hf:{folder}").encode(items(image=[picture(1)]), role="query")
    assert [more["backend"] for more in asked] == ["pil"]


def test_a_missing_library_is_named_with_its_cure(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    model = load_model(f"hf:{checkpoint('clip')}")
    with pytest.raises(UserError, match=r"^transformers is not installed: run `pip install 'omnirecall\[models\]'`$"):
        model.encode(items(text=["a"]), role="query")


def test_folders_that_hold_no_dual_encoder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json: name the folder or repository of a model"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(
        UserError, match=r"model_type bert in .*config\.json is no dual encoder; those are aimv2.*; vlm: and st:"
    ):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(UserError, match=r"st: takes it, as it has a modules\.json"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "cl')
    with pytest.raises(UserError, match="cannot be read as JSON"):
        load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize("value", ["12", 0, -3, 1.5, True, [4]])
def test_a_damaged_dimension_is_refused(value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", "projection_dim": value}))
    with pytest.raises(
        UserError, match=r"config\.json: projection_dim is .*, not a whole number: fetch the file again"
    ):
        load_model(f"hf:{tmp_path}")


def test_a_damaged_part_of_the_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "siglip", "vision_config": 3}))
    with pytest.raises(UserError, match=r"config\.json: vision_config\.hidden_size cannot be read"):
        load_model(f"hf:{tmp_path}")


def test_weights_that_are_missing_pickled_or_damaged_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = checkpoints.dual_encoder("clip", tmp_path / "clip")
    file = folder / "model.safetensors"

    def refusal() -> str:
        with pytest.raises(UserError) as caught:
            load_model(f"hf:{folder}").encode(items(text=["a"]), role="query")
        return str(caught.value)

    weights = load_file(file)
    save_file(
        {name: value for name, value in weights.items() if "visual_projection" not in name}, file, {"format": "pt"}
    )
    assert "lacks 1 weights of CLIPModel, the first visual_projection.weight, which would be random" in refusal()
    file.write_bytes(file.read_bytes()[:2000])
    assert "cannot be loaded" in refusal()
    assert "check that its files are whole" in refusal()
    file.unlink()
    assert "must hold weights in safetensors, and has none" in refusal()
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    assert "only pytorch_model.bin, a pickle, which may run code when it is read: convert them" in refusal()


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    folder = checkpoints.dual_encoder("clip", tmp_path / "clip")
    mark = tmp_path / "it ran"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom transformers import CLIPModel as Evil, CLIPConfig as Config\n"
    )
    checkpoints.rewritten(folder / "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Config"})
    load_model(f"hf:{folder}").encode(items(text=["a"]), role="query")
    assert not mark.exists()


def test_arguments_that_the_family_does_not_take_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(UserError, match=r"--model-arg pooling: hf:.* has no such argument; it takes trust_remote_code"):
        load_model(f"hf:{checkpoint('clip')}", ModelOptions(args={"pooling": "mean"}))
