"""The vlm: family on small checkpoints of the true architectures, against the library called directly on the same input."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.base import Embedder, Encoded, ModelOptions
from omnirecall.models.load import load_model
from omnirecall.models.visual_tokens import Budget, Grid, clip_patches, fitted_size, frame_seconds, smart_size
from omnirecall.ranking import BFloat16, Ragged

sys.path.insert(0, str(Path(__file__).parent))
from vlm_checkpoints import (
    KINDS,
    MEDIA,
    SYSTEM,
    library_model,
    library_processor,
    save_checkpoint,
    sound_extractor,
    write,
)

RANDOM = np.random.default_rng(7)
LONG = "find the video that shows a cat and a dog in the snow " * 12
SHOWN = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}


def picture(height: int, width: int) -> Any:
    from PIL import Image

    return Image.fromarray(RANDOM.integers(0, 255, (height, width, 3), dtype=np.uint8))


def frames(count: int, height: int, width: int, step: int = 10, rate: float = 10.0) -> Frames:
    """Frames 0, step, 2 * step, ... of a film of count * step frames."""
    pixels = RANDOM.integers(0, 255, (count, height, width, 3), dtype=np.uint8)
    indices = np.arange(count) * step
    return Frames(pixels, indices / rate, indices, count * step)


def sound(length: int) -> Samples:
    return Samples((RANDOM.standard_normal(length) * 0.1).astype(np.float32), 16000)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def find(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_checkpoint(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return find


@pytest.fixture
def copied(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint that the test may damage."""
    return lambda kind: Path(shutil.copytree(checkpoint(kind), tmp_path / kind))


def load(folder: Path, dtype: str | None = None, **args: object) -> Embedder:
    return load_model(
        f"vlm:{folder}", ModelOptions(dtype=dtype, args={name: str(value) for name, value in args.items()})
    )


def embed(model: Embedder, *items: DecodedItem, role: Any = "query") -> NDArray[Any]:
    vectors = encoded(model, *items, role=role).vectors
    assert isinstance(vectors, np.ndarray)
    return vectors


def encoded(model: Embedder, *items: DecodedItem, role: Any = "query") -> Encoded:
    result = model.encode(items, role=role)
    assert isinstance(result, Encoded)
    return result


def library_states(kind: str, folder: Path, inputs: Any, **more: Any) -> NDArray[np.float32]:
    """The last hidden states of the library's own model, shape (items, tokens, 32)."""
    import torch

    with torch.no_grad():
        states: NDArray[np.float32] = library_model(kind, folder).model(**inputs, **more).last_hidden_state.numpy()
    return states


def side(kind: str) -> int:
    return 32 if kind == "qwen3_vl" else 28


def turn(text: str, kind: str = "qwen2_5_vl", system: str | None = None) -> str:
    """The prompt written out: a user turn, and the opening of the assistant's."""
    default = "" if kind == "qwen3_vl" else SYSTEM
    head = default if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    return f"{head}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def library_inputs(kind: str, folder: Path, prompts: Sequence[str], items: Sequence[DecodedItem]) -> Any:
    """What the library's processor makes of the prompts and the items' media; frames keep their size."""
    from transformers.video_utils import VideoMetadata

    videos = [item.video for item in items if item.video is not None]
    size = videos[0].pixels.shape[1:3] if videos else (28, 28)
    processor = library_processor(kind, folder, size)
    options: dict[str, Any] = {}
    if images := [item.image for item in items if item.image is not None]:
        options["images"] = images
    if videos:
        options["videos"] = [video.pixels for video in videos]
        # A film of 10 frames a second, of which each tenth is taken.
        metadata = [
            VideoMetadata(total_num_frames=video.decodable, fps=10.0, frames_indices=video.indices.tolist())
            for video in videos
        ]
        options |= {"videos_kwargs": {"fps": 1.0}} if kind == "qwen2_5_omni_thinker" else {"video_metadata": metadata}
    if kind == "qwen3_vl":
        # This version of the library leaves the template's own start and end around those of each step; the model's authors do
        # not (transformers 4.57).
        prompts = [prompt.replace(SHOWN["video"], MEDIA["video"]) for prompt in prompts]
    if sounds := [item.audio.values for item in items if item.audio is not None]:
        options["audio"] = sounds
    return processor(text=list(prompts), return_tensors="pt", padding=True, **options)


ITEMS = {
    "text": lambda kind: DecodedItem("t", text="find a cat in the snow"),
    "image": lambda kind: DecodedItem("i", image=picture(70, 120)),
    "video": lambda kind: DecodedItem("v", video=frames(4, 2 * side(kind), 3 * side(kind))),
    "odd video": lambda kind: DecodedItem("o", video=frames(3, 3 * side(kind), 2 * side(kind))),
    "all": lambda kind: DecodedItem(
        "a", text="a dog", image=picture(90, 60), video=frames(2, 2 * side(kind), 2 * side(kind))
    ),
    "audio": lambda kind: DecodedItem("s", audio=sound(9000)),
    "omni": lambda kind: DecodedItem(
        "m", text="a dog", image=picture(90, 60), video=frames(4, 56, 56), audio=sound(20001)
    ),
}


def shown(item: DecodedItem) -> str:
    """The media and text of an item as a turn has them by default."""
    words = "".join(SHOWN[part] for part in ("video", "image", "audio") if part in item.modalities)
    return words + (item.text or "")


CASES = [
    (kind, case)
    for kind, case in product(KINDS, ITEMS)
    if case not in ("audio", "omni") or kind == "qwen2_5_omni_thinker"
]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_equals_the_library(kind: str, case: str, checkpoint: Callable[[str], Path]) -> None:
    folder, item = checkpoint(kind), ITEMS[case](kind)
    inputs = library_inputs(kind, folder, [turn(shown(item), kind)], [item])
    expected = library_states(kind, folder, inputs)[0]
    result = encoded(load(folder), item)
    np.testing.assert_allclose(result.vectors, expected[-1:], atol=1e-5, rtol=0)
    np.testing.assert_allclose(embed(load(folder, pooling="mean"), item), expected.mean(0)[None], atol=1e-5, rtol=0)
    grids = [inputs[name] for name in ("image_grid_thw", "video_grid_thw") if name in inputs]
    most = max((int(grid[1] * grid[2]) // 4 for rows in grids for grid in rows), default=0)
    assert list(result.frame_tokens) == ([most] if grids else [])
    assert list(result.tokens_cut) == [0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_batch_equals_its_items_alone(kind: str, pooling: str, checkpoint: Callable[[str], Path]) -> None:
    n = side(kind)
    groups = [
        [DecodedItem(str(i), text=text) for i, text in enumerate(("a", LONG, "find a cat"))],
        [
            DecodedItem(str(i), text=t, image=picture(*s))
            for i, (t, s) in enumerate([("a", (300, 90)), (LONG, (20, 30))])
        ],
        [
            DecodedItem(str(i), text=t, video=v)
            for i, (t, v) in enumerate([("a", frames(7, n, 5 * n)), (LONG, frames(2, 2 * n, 2 * n, step=3))])
        ],
    ]
    if kind == "qwen2_5_omni_thinker":
        groups.append(
            [DecodedItem(str(i), text=t, audio=sound(s)) for i, (t, s) in enumerate([("a", 40000), (LONG, 900)])]
        )
        groups.append([replace(a, audio=sound(3000 * (i + 1))) for i, a in enumerate(groups[2])])
    for bidirectional in ("false", "true"):
        model = load(checkpoint(kind), pooling=pooling, bidirectional=bidirectional)
        for items in groups:
            together = embed(model, *items)
            apart = np.concatenate([embed(model, item) for item in items])
            np.testing.assert_allclose(together, apart, atol=1e-5, rtol=0)
            np.testing.assert_allclose(embed(model, *reversed(items))[::-1], apart, atol=1e-5, rtol=0)
            assert np.abs(apart[0] - apart[1]).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left_gives_the_same(kind: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(kind)
    items = [DecodedItem("1", text="a", image=picture(100, 60)), DecodedItem("2", text=LONG, image=picture(30, 60))]
    processor = library_processor(kind, folder)
    prompts = [turn(shown(item), kind) for item in items]
    inputs = processor(
        text=prompts,
        images=[item.image for item in items],
        return_tensors="pt",
        text_kwargs={"padding": True, "padding_side": "left"},
    )
    assert inputs["attention_mask"][0, 0] == 0
    expected = library_states(kind, folder, inputs)[:, -1]
    np.testing.assert_allclose(embed(load(folder), *items), expected, atol=1e-5, rtol=0)


def test_time_reaches_the_model(checkpoint: Callable[[str], Path]) -> None:
    for kind in ("qwen2_5_vl", "qwen2_5_omni_thinker", "qwen3_vl"):
        model = load(checkpoint(kind))
        slow = frames(4, 2 * side(kind), 2 * side(kind))
        fast = replace(slow, times=slow.times / 4)
        assert (
            np.abs(embed(model, DecodedItem("1", video=slow)) - embed(model, DecodedItem("2", video=fast))).max() > 1e-3
        )
        told = load(checkpoint(kind), frame_rate=1)
        np.testing.assert_array_equal(
            embed(told, DecodedItem("1", video=slow)), embed(told, DecodedItem("2", video=fast)), strict=True
        )


def test_frame_seconds() -> None:
    film = frames(3, 28, 28, step=10, rate=5.0)
    late = replace(film, times=film.times + 1.4)
    for video in (film, late):
        times, seconds = frame_seconds(video, None, 2.0)
        np.testing.assert_allclose(times, [0, 2, 4])
        assert seconds == pytest.approx(30 / 5 / 3)
    later = replace(film, indices=film.indices + 5, times=film.times + 1.0)
    np.testing.assert_allclose(frame_seconds(later, None, 2.0)[0], [1, 3, 5])
    bare = replace(film, times=np.full(3, np.nan))
    np.testing.assert_allclose(frame_seconds(bare, None, 2.0)[0], [0, 0.5, 1])
    assert frame_seconds(bare, None, 2.0)[1] == 0.5
    assert frame_seconds(film, 4.0, 2.0)[1] == 0.25
    still = Frames(film.pixels[:1], np.zeros(1))
    assert frame_seconds(still, None, 2.0)[1] == 0.5
    uncounted = Frames(film.pixels, film.times)
    np.testing.assert_allclose(frame_seconds(uncounted, None, 2.0)[0], [0, 2, 4])
    assert frame_seconds(uncounted, None, 2.0)[1] == pytest.approx(2)


# Prompts


def library_vector(kind: str, folder: Path, prompt: str, item: DecodedItem, **more: Any) -> NDArray[np.float32]:
    return library_states(kind, folder, library_inputs(kind, folder, [prompt], [item]), **more)[:, -1]


def test_instruction_in_the_turn_that_is_asked_for(checkpoint: Callable[[str], Path]) -> None:
    kind, folder = "qwen2_5_vl", checkpoint("qwen2_5_vl")
    item = DecodedItem("1", text="a cat", image=picture(60, 60), instruction="Find the dog")
    bare = replace(item, instruction="")
    user, system, none = (load(folder, instruction=where) for where in ("user", "system", "none"))

    def same(model: Embedder, asked: DecodedItem, prompt: str, role: str = "query") -> None:
        np.testing.assert_allclose(
            embed(model, asked, role=role), library_vector(kind, folder, prompt, asked), atol=1e-5, rtol=0
        )

    same(user, item, turn(SHOWN["image"] + "Find the dog\na cat"))
    same(system, item, turn(SHOWN["image"] + "a cat", system="Find the dog"))
    for model, asked in ((none, item), (user, bare), (system, bare)):
        same(model, asked, turn(SHOWN["image"] + "a cat"))
    default = load(folder, default_instruction="Represent it.", instruction_end=".", instructed="query")
    same(default, bare, turn(SHOWN["image"] + "a cat", system="Represent it."))
    same(default, item, turn(SHOWN["image"] + "a cat", system="Find the dog."))
    same(default, item, turn(SHOWN["image"] + "a cat", system="Represent it."), role="candidate")
    prefixed = load(
        folder, query_prefix="query: ", candidate_prefix="passage: ", order="text,image,video,audio", instruction="none"
    )
    same(prefixed, item, turn("query: a cat" + SHOWN["image"]))
    same(prefixed, item, turn("passage: a cat" + SHOWN["image"]), role="candidate")
    summed = load(folder, suffix="\nThe {modality} in one word:", generation_prompt="false", instruction="none")
    same(summed, item, turn(SHOWN["image"] + "a cat\nThe image in one word:").removesuffix("<|im_start|>assistant\n"))
    assert [model.symmetric for model in (user, system, none, default, prefixed)] == [True, True, True, False, False]
    for model in (user, system, none):
        np.testing.assert_array_equal(embed(model, item), embed(model, item, role="candidate"))


def test_a_named_token_is_appended_and_pooled(checkpoint: Callable[[str], Path]) -> None:
    kind, folder = "qwen2_5_vl", checkpoint("qwen2_5_vl")
    item = DecodedItem("1", text="a cat", video=frames(2, 56, 56))
    model = load(folder, pooling="token", token="<|endoftext|>", normalise="true")
    expected = library_vector(kind, folder, turn(SHOWN["video"] + "a cat") + "<|endoftext|>", item)
    np.testing.assert_allclose(embed(model, item), expected / np.linalg.norm(expected), atol=1e-5, rtol=0)


def test_the_suites_own_text_marks_its_media(checkpoint: Callable[[str], Path]) -> None:
    kind, folder = "qwen2_vl", checkpoint("qwen2_vl")
    item = DecodedItem("1", text="", image=picture(60, 60))
    model = load(folder)
    assert model.default_prompt == "model"
    text = f"Find {model.media_tokens['image']}\nwith a cat"
    expected = library_vector(kind, folder, turn(f"Find {SHOWN['image']}\nwith a cat", kind), item)
    np.testing.assert_allclose(embed(model, replace(item, text=text)), expected, atol=1e-5, rtol=0)
    plain = load(folder, template="none", positions="sequential")
    assert plain.default_prompt == "card"
    assert dict(plain.media_tokens) == {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    literal = "<|image_pad|> Represent the given image.\n"
    inputs = library_inputs(kind, folder, [literal], [item])
    places = np.broadcast_to(np.arange(inputs["input_ids"].shape[1]), (3, 1, inputs["input_ids"].shape[1])).copy()
    import torch

    expected = library_states(kind, folder, inputs, position_ids=torch.from_numpy(places))[:, -1]
    np.testing.assert_allclose(embed(plain, replace(item, text=literal)), expected, atol=1e-5, rtol=0)
    otherwise = embed(load(folder, template="none"), replace(item, text=literal))
    np.testing.assert_allclose(otherwise, library_vector(kind, folder, literal, item), atol=1e-5, rtol=0)
    assert np.abs(otherwise - expected).max() > 1e-3
    worded = replace(item, text="a cat", instruction="Find it")
    expected = library_vector(kind, folder, "<|image_pad|> Find it a cat", item)
    np.testing.assert_allclose(embed(load(folder, template="none"), worded), expected, atol=1e-5, rtol=0)
    assert np.isfinite(embed(plain, DecodedItem("2", text=""))).all()


def test_a_strange_mark_in_a_text(checkpoint: Callable[[str], Path]) -> None:
    kind, folder = "qwen2_5_vl", checkpoint("qwen2_5_vl")
    model = load(folder)
    alone = DecodedItem("web-1", text="<|image_pad|>\nwhat is it?")
    tokens = library_processor(kind, folder).tokenizer(turn(alone.text or ""), return_tensors="pt")
    np.testing.assert_allclose(embed(model, alone), library_states(kind, folder, tokens)[:, -1], atol=1e-5, rtol=0)
    twice = DecodedItem("web-2", text="<|image_pad|> <|image_pad|>", image=picture(60, 60))
    with pytest.raises(UserError, match=r"item web-2.*<\|image_pad\|> 2 times"):
        embed(model, twice)
    video = DecodedItem("web-3", text="<|video_pad|>", image=picture(60, 60))
    assert np.isfinite(embed(model, video)).all()
    with pytest.raises(UserError, match=r"item web-3.*<\|video_pad\|>"):
        embed(load(checkpoint("qwen2_5_omni_thinker")), video)


def test_frames_as_pictures(checkpoint: Callable[[str], Path]) -> None:
    from PIL import Image

    kind, folder = "qwen2_vl", checkpoint("qwen2_vl")
    clip = frames(3, 56, 84)
    model = load(folder, video="pictures")
    assert "video" not in model.media_tokens
    processor = library_processor(kind, folder)
    prompt = turn(SHOWN["image"] * 3 + "a cat", kind)
    inputs = processor(text=[prompt], images=[Image.fromarray(frame) for frame in clip.pixels], return_tensors="pt")
    result = encoded(model, DecodedItem("1", text="a cat", video=clip))
    np.testing.assert_allclose(result.vectors, library_states(kind, folder, inputs)[:, -1], atol=1e-5, rtol=0)
    assert list(result.frame_tokens) == [6]


# Lengths and budgets


def test_long_texts_are_cut_and_counted(checkpoint: Callable[[str], Path]) -> None:
    import torch

    kind, folder = "qwen2_5_vl", checkpoint("qwen2_5_vl")
    tokens = library_processor(kind, folder).tokenizer
    before, after = turn("TEXT").split("TEXT")
    head, words, tail = (tokens(text)["input_ids"] for text in (before, LONG.strip(), f"{after}<|endoftext|>"))
    whole = tokens(turn(LONG.strip()) + "<|endoftext|>")["input_ids"]
    assert whole == head + words + tail
    model = load(folder, pooling="token", token="<|endoftext|>", max_length=60)
    item = DecodedItem("1", text=LONG.strip())
    result = encoded(model, item, DecodedItem("2", text="short"))
    assert list(result.tokens_cut) == [len(whole) - 60, 0]
    kept = head + words[: 60 - len(head) - len(tail)] + tail
    expected = library_states(kind, folder, {"input_ids": torch.tensor([kept])})[:, -1]
    assert isinstance(result.vectors, np.ndarray)
    np.testing.assert_allclose(result.vectors[:1], expected, atol=1e-5, rtol=0)
    ended = load(folder, pooling="token", token="<|endoftext|>", max_length=60, cut="end")
    assert list(encoded(ended, item).tokens_cut) == [len(whole) - 60]
    kept = (head + words + tail)[:59] + tail[-1:]
    expected = library_states(kind, folder, {"input_ids": torch.tensor([kept])})[:, -1]
    np.testing.assert_allclose(embed(ended, item), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_visual_tokens_are_never_cut(kind: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(kind)
    item = DecodedItem("long-1", text=LONG, image=picture(80, 80), video=frames(3, 2 * side(kind), 2 * side(kind)))
    whole = library_inputs(kind, folder, [turn(shown(item), kind)], [item])
    count = whole["input_ids"].shape[1]
    for cut in ("text", "end"):
        result = encoded(load(folder, max_length=count - 50, cut=cut), item)
        assert list(result.tokens_cut) == [50]
        assert np.isfinite(result.vectors).all()
        with pytest.raises(UserError, match=r"item long-1.*max_length=8"):
            encoded(load(folder, max_length=8, cut=cut), item)
    marked = replace(item, text=f"{LONG} {SHOWN['video']} {LONG}")
    result = encoded(load(folder, max_length=count, cut="text"), marked)
    assert result.tokens_cut[0] > 0
    assert np.isfinite(result.vectors).all()


def test_the_text_is_cut_at_the_positions_that_the_model_takes(copied: Callable[[str], Path]) -> None:
    folder = copied("qwen2_vl")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 50
    write(folder / "config.json", config)
    result = encoded(load(folder), DecodedItem("1", text=LONG))
    assert result.tokens_cut[0] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_budgets_hold(kind: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(kind)
    model = load(folder, max_frame_tokens=200, min_frame_tokens=128, max_image_tokens=30, min_image_tokens=20)
    large = encoded(model, DecodedItem("1", video=frames(2, 720, 1280)))
    assert 150 < large.frame_tokens[0] <= 200
    small = encoded(model, DecodedItem("2", video=frames(2, 40, 60)))
    assert 128 <= small.frame_tokens[0] <= 200
    for shape in ((900, 1600), (20, 20), (3, 4000), (1500, 2)):
        assert encoded(model, DecodedItem("3", image=picture(*shape))).frame_tokens[0] <= 30
    clipped = load(folder, max_frame_tokens=200, min_frame_tokens=4, max_video_tokens=40)
    wide = encoded(clipped, DecodedItem("1", video=frames(8, 720, 1280)))
    assert 4 <= wide.frame_tokens[0] <= 10


def test_sizes_are_the_librarys_wherever_they_fit() -> None:
    rng = np.random.default_rng(0)
    same = 0
    for _ in range(3000):
        height, width = (int(n) for n in np.exp(rng.uniform(0, 8.5, 2)))
        most = int(rng.integers(1, 300))
        budget = Budget(int(rng.integers(1, most + 1)) * 784, most * 784)
        rows, columns = fitted_size(height, width, budget, 28)
        assert rows % 28 == columns % 28 == 0
        assert 0 < rows * columns <= budget.most
        known = smart_size(height, width, budget, 28)
        if known is not None and known[0] * known[1] <= budget.most:
            same += 1
            assert (rows, columns) == known
    assert same > 2000


def test_a_clip_is_its_frames(checkpoint: Callable[[str], Path]) -> None:
    """Against the library's own making of patches, and the pixels of a picture."""
    processor = library_processor("qwen2_vl", checkpoint("qwen2_vl"), (56, 84))
    for count in (1, 2, 5):
        film = frames(count, 56, 84)
        ours = clip_patches(processor.image_processor, film.pixels, Budget(4 * 784, 9 * 784), Grid(14, 2, 2))
        theirs = processor.video_processor([film.pixels])
        np.testing.assert_allclose(ours.values, theirs["pixel_values_videos"].numpy(), atol=1e-6)
        assert list(ours.thw) == theirs["video_grid_thw"][0].tolist()


# Attention, dtype, sound


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions(kind: str, checkpoint: Callable[[str], Path]) -> None:
    """Against the library's text model with a mask written by hand in which every token sees every other."""
    import torch

    folder = checkpoint(kind)
    tokens = library_processor(kind, folder).tokenizer(turn("find a cat", kind), return_tensors="pt")["input_ids"]
    count = tokens.shape[1]
    whole = library_model(kind, folder)
    whole.set_attn_implementation("eager")
    with torch.no_grad():
        states = whole.model.language_model(
            inputs_embeds=whole.get_input_embeddings()(tokens),
            position_ids=torch.arange(count).expand(3, 1, count),
            attention_mask={"full_attention": torch.zeros(1, 1, count, count)}
            if kind != "qwen3_vl"
            else torch.zeros(1, 1, count, count),
        ).last_hidden_state
    item = DecodedItem("1", text="find a cat")
    both = load(folder, bidirectional="true", pooling="mean")
    np.testing.assert_allclose(embed(both, item), states.mean(1).numpy(), atol=1e-5, rtol=0)
    assert np.abs(embed(load(folder, pooling="mean"), item) - embed(both, item)).max() > 0.01
    # Padded, so that the mask is made rather than implied.
    pair = embed(both, item, DecodedItem("2", text=LONG))
    np.testing.assert_allclose(pair[:1], states.mean(1).numpy(), atol=1e-5, rtol=0)


def test_other_dtypes(checkpoint: Callable[[str], Path]) -> None:
    import torch

    folder = checkpoint("qwen2_5_vl")
    item = DecodedItem("1", text="find a cat", image=picture(60, 60))
    inputs = library_inputs("qwen2_5_vl", folder, [turn(shown(item))], [item])
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        with torch.no_grad():
            states = library_model("qwen2_5_vl", folder, dtype=dtype).model(**inputs).last_hidden_state[:, -1]
        vectors = encoded(load(folder, dtype=name), item).vectors
        bits = vectors.bits if isinstance(vectors, BFloat16) else np.asarray(vectors).view(np.uint16)
        np.testing.assert_array_equal(bits, states.view(torch.int16).numpy().view(np.uint16), strict=True)


def test_sound_is_cut_where_the_model_stops_hearing(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("qwen2_5_omni_thinker")
    model = load(folder)
    assert model.sampling_rate == 16000
    assert "sound is cut at 4 s" in model.notes
    long = sound(5 * 16000)
    cut = replace(long, values=long.values[: 4 * 16000])
    np.testing.assert_array_equal(embed(model, DecodedItem("1", audio=long)), embed(model, DecodedItem("2", audio=cut)))
    short = load(folder, max_audio_seconds=1)
    second = replace(long, values=long.values[:16000])
    np.testing.assert_array_equal(
        embed(short, DecodedItem("1", audio=long)), embed(short, DecodedItem("2", audio=second))
    )
    assert np.isfinite(embed(model, DecodedItem("3", audio=sound(1)))).all()
    with pytest.raises(ValueError, match="8000 samples a second"):
        embed(model, DecodedItem("4", audio=replace(long, rate=8000)))
    assert sound_extractor().n_samples == 64000


# Late interaction, adapters, other names of the same model


def test_late_interaction_equals_the_library(checkpoint: Callable[[str], Path]) -> None:
    import torch
    from transformers import AutoImageProcessor, AutoTokenizer, ColQwen2Processor

    folder = checkpoint("colqwen2")
    model = load(folder)
    assert (model.dimension, model.late_interaction, model.default_prompt) == (24, True, "model")
    assert model.supports({"text"})
    assert not any(model.supports(parts) for parts in ({"text", "image"}, {"video"}, set()))
    whole = library_model("colqwen2", folder)
    processor = ColQwen2Processor(
        image_processor=AutoImageProcessor.from_pretrained(folder, backend="pil"),
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    pages = [picture(120, 60), picture(50, 60)]
    texts = ["a cat", LONG]
    for items, asked in (
        ([DecodedItem(str(i), image=page) for i, page in enumerate(pages)], {"images": pages}),
        ([DecodedItem(str(i), text=text) for i, text in enumerate(texts)], {"text": texts}),
    ):
        result = encoded(model, *items).vectors
        assert isinstance(result, Ragged)
        for row in range(2):
            inputs = processor(**{name: [values[row]] for name, values in asked.items()})
            with torch.no_grad():
                expected = whole(**inputs).embeddings[0].numpy()
            got = result.values[result.offsets[row] : result.offsets[row + 1]]
            np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)


def adapter(folder: Path, width: int = 32, **config: Any) -> Path:
    """A LoRA adapter as peft saves it, on a layer of the text model and one of the vision tower."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(3)
    folder.mkdir()
    layers = {"model.layers.1.self_attn.q_proj": (32, width), "visual.blocks.0.attn.qkv": (16, 48)}
    weights = {}
    for name, (fan_in, fan_out) in layers.items():
        weights[f"base_model.model.{name}.lora_A.weight"] = torch.randn(4, fan_in)
        weights[f"base_model.model.{name}.lora_B.weight"] = torch.randn(fan_out, 4)
    save_file(weights, folder / "adapter_model.safetensors")
    write(folder / "adapter_config.json", {"peft_type": "LORA", "r": 4, "lora_alpha": 2, **config})
    return folder


def test_an_adapter_is_added_to_the_weights(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = checkpoint("qwen2_vl")
    item = DecodedItem("1", text="a cat", image=picture(60, 60))
    added = load_file(adapter(tmp_path / "lora") / "adapter_model.safetensors")
    whole = library_model("qwen2_vl", folder)
    for name, module in (
        ("model.layers.1.self_attn.q_proj", whole.model.language_model.layers[1].self_attn.q_proj),
        ("visual.blocks.0.attn.qkv", whole.model.visual.blocks[0].attn.qkv),
    ):
        up, down = (added[f"base_model.model.{name}.lora_{side}.weight"] for side in "BA")
        module.weight.data += 2 / 4 * up @ down
    inputs = library_inputs("qwen2_vl", folder, [turn(shown(item), "qwen2_vl")], [item])
    with torch.no_grad():
        expected = whole.model(**inputs).last_hidden_state[:, -1].numpy()
    model = load(folder, adapter=tmp_path / "lora")
    np.testing.assert_allclose(embed(model, item), expected, atol=1e-4, rtol=0)
    assert np.abs(embed(load(folder), item) - expected).max() > 0.01
    assert model.name == "lora"
    assert model.fingerprint != load(folder).fingerprint
    with pytest.raises(UserError, match="use_dora"):
        embed(load(folder, adapter=adapter(tmp_path / "dora", use_dora=True)), item)
    with pytest.raises(UserError, match="fits no layer"):
        embed(load(folder, adapter=adapter(tmp_path / "wide", width=48)), item)
    with pytest.raises(UserError, match="fits no layer"):
        embed(load(checkpoint("colqwen2"), adapter=tmp_path / "lora"), replace(item, text=None))


def test_the_thinker_inside_a_whole_omni_model(
    checkpoint: Callable[[str], Path], copied: Callable[[str], Path]
) -> None:
    from safetensors.torch import load_file, save_file

    kind = "qwen2_5_omni_thinker"
    item = DecodedItem("1", text="a cat", image=picture(60, 60), audio=sound(8000))
    expected = embed(load(checkpoint(kind)), item)
    folder = copied(kind)
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "model_type": "otheromni"})
    with pytest.raises(UserError, match="otheromni"):
        load(folder)
    np.testing.assert_array_equal(embed(load(folder, architecture=kind), item), expected)
    write(folder / "config.json", {"model_type": "qwen2_5_omni", "thinker_config": config})
    weights = load_file(folder / "model.safetensors")
    save_file(
        {f"thinker.{name}": value for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    np.testing.assert_array_equal(embed(load(folder), item), expected)


# What needs no library; mistakes


def test_facts_need_no_library(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("qwen2_5_omni_thinker")
    program = (
        "import sys; from omnirecall.models.load import load_model; m = load_model(sys.argv[1]);"
        "print(m.dimension, m.symmetric, m.sampling_rate, m.default_prompt, len(m.fingerprint), m.supports({'text', 'audio'}),"
        "m.late_interaction, m.media_tokens['audio'], m.notes);"
        "print([x for x in ('torch', 'transformers', 'PIL', 'safetensors') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, f"vlm:{folder}"], capture_output=True, text=True, check=True)
    facts, modules = done.stdout.splitlines()
    assert facts == "32 True 16000 model 64 True False <|audio_bos|><|AUDIO|><|audio_eos|> ('sound is cut at 4 s',)"
    assert modules == "[]"


def test_fingerprint_follows_what_changes_a_vector(
    checkpoint: Callable[[str], Path], copied: Callable[[str], Path]
) -> None:
    folder = checkpoint("qwen2_vl")
    models = [
        load(folder),
        load(folder, dtype="bfloat16"),
        load(folder, pooling="mean"),
        load(folder, max_frame_tokens=200),
        load(folder, suffix="."),
        load(checkpoint("qwen3_vl")),
    ]
    assert len({model.fingerprint for model in models}) == len(models)
    assert load(folder).fingerprint == models[0].fingerprint
    other = copied("qwen2_vl")
    assert load(other).fingerprint == models[0].fingerprint
    (other / "chat_template.jinja").write_text("{{ messages }}")
    assert load(other).fingerprint != models[0].fingerprint


def test_supports(checkpoint: Callable[[str], Path]) -> None:
    visual, omni = load(checkpoint("qwen2_vl")), load(checkpoint("qwen2_5_omni_thinker"))
    assert visual.supports({"text", "image", "video"})
    assert not visual.supports({"audio"})
    assert not visual.supports(set())
    assert omni.supports({"text", "image", "video", "audio"})
    with pytest.raises(ValueError, match="audio"):
        embed(visual, DecodedItem("1", audio=sound(10)))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"poolling": "last"}, ["poolling", "pooling"]),
        ({"pooling": "first"}, ["pooling=first", "last, mean, token"]),
        ({"pooling": "token"}, ["pooling=token", "token=nothing"]),
        ({"token": "<|endoftext|>"}, ["pooling=last", "token=<|endoftext|>"]),
        ({"pooling": "token", "token": "<|eod|>"}, ["<|eod|>", "special token"]),
        ({"max_length": "0"}, ["max_length=0"]),
        ({"min_frame_tokens": "9", "max_frame_tokens": "8"}, ["min_frame_tokens=9", "max_frame_tokens=8"]),
        ({"order": "text,image"}, ["order=text,image"]),
        ({"frame_rate": "fast"}, ["frame_rate=fast"]),
        ({"frame_rate": "inf"}, ["frame_rate=inf"]),
        ({"architecture": "bert"}, ["architecture=bert", "qwen2_vl"]),
        ({"normalise": "yes"}, ["normalise=yes"]),
    ],
)
def test_wrong_arguments(args: dict[str, str], words: list[str], checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(UserError) as caught:
        load(checkpoint("qwen2_vl"), **args)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_wrong_folders(copied: Callable[[str], Path], tmp_path: Path) -> None:
    for spec, message in (
        (f"vlm:{tmp_path}/none", "no such folder"),
        ("vlm:", "name a folder"),
        (f"vlm:{tmp_path}", "config.json"),
    ):
        with pytest.raises(UserError, match=message):
            load_model(spec)
    with pytest.raises(UserError, match="float8"):
        load(tmp_path, dtype="float8")
    write(tmp_path / "config.json", {"model_type": "bert"})
    with pytest.raises(UserError, match="is a bert"):
        load(tmp_path)
    folder = copied("qwen2_vl")
    (folder / "chat_template.jinja").rename(folder / "kept")
    with pytest.raises(UserError, match="no chat template"):
        load(folder)
    write(folder / "chat_template.json", {"chat_template": (folder / "kept").read_text()})
    item = DecodedItem("1", text="a", image=picture(60, 60))
    assert np.isfinite(embed(load(folder), item)).all()
    write(folder / "chat_template.json", {"chat_template": "{{ raise_exception('no system turn') }}"})
    with pytest.raises(UserError, match="no system turn"):
        embed(load(folder), item)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match="preprocessor_config"):
        embed(load(folder, template="none"), item)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(folder)


def test_missing_weights(copied: Callable[[str], Path]) -> None:
    from safetensors.torch import load_file, save_file

    folder, item = copied("qwen2_vl"), DecodedItem("1", text="a")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert np.isfinite(embed(load(folder), item)).all()
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"1 weights.*layers\.1\.mlp\.up_proj"):
        embed(load(folder), item)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickle"):
        embed(load(folder), item)
