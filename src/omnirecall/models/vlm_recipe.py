"""What is known of a vision-language model before it is loaded: architecture, files, and the recipe of its prompt and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from omnirecall.errors import UserError
from omnirecall.models.base import ModelOptions
from omnirecall.models.checkpoint import Checkpoint
from omnirecall.models.visual_tokens import Budget, Grid

if TYPE_CHECKING:
    pass

EXTRA = "models"
VISUAL = frozenset({"text", "image", "video"})
OMNI = VISUAL | {"audio"}
CLOCKLESS_RATE = 2.0
"""Frames a second of a video that has no clock, as qwen-vl-utils takes a list of frames."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of model that transformers knows.

    ``model``, ``config``: its classes. ``part``: the part of config.json that describes it. ``patch``: pixels of a patch where the
    processor's file does not say. ``clock``: the input that takes the seconds of a step in time; ``text`` where the prompt says
    them. ``typed``: it takes the kind of each token. ``clip_budget``: its video processor's pixels are those of a whole clip.
    ``late``: it gives a vector for each token. ``defaults``: arguments where the user gives none.
    """

    model: str
    config: str
    modalities: frozenset[str] = VISUAL
    part: str = ""
    patch: int = 14
    clock: str = ""
    typed: bool = True
    clip_budget: bool = False
    late: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)


_OMNI = Architecture(
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen2_5OmniThinkerConfig",
    modalities=OMNI,
    clock="video_second_per_grid",
    typed=False,
)
ARCHITECTURES = {
    "qwen2_vl": Architecture("Qwen2VLForConditionalGeneration", "Qwen2VLConfig"),
    "qwen2_5_vl": Architecture("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", clock="second_per_grid_ts"),
    "qwen3_vl": Architecture(
        "Qwen3VLForConditionalGeneration", "Qwen3VLConfig", patch=16, clock="text", clip_budget=True
    ),
    "qwen2_5_omni_thinker": _OMNI,
    "qwen2_5_omni": replace(_OMNI, part="thinker_config"),
    "colqwen2": Architecture(
        "ColQwen2ForRetrieval",
        "ColQwen2Config",
        modalities=frozenset({"text", "image"}),
        typed=False,
        late=True,
        defaults={
            "template": "none",
            "instruction": "none",
            "form": "<|im_start|>user\n{media}Describe the image.<|im_end|><|endoftext|>",
            "text_form": "Query: {text}" + "<|endoftext|>" * 10 + "\n",
        },
    ),
}
"""model_type of config.json to what it means."""

CHOICES = {
    "template": ("chat", "none"),
    "instruction": ("system", "user", "none"),
    "instructed": ("both", "query"),
    "pooling": ("last", "mean", "token"),
    "positions": ("multimodal", "sequential"),
    "cut": ("text", "end"),
    "video": ("clip", "pictures"),
    "attention": ("sdpa", "eager", "flash_attention_2"),
}
"""Argument to its values; the first is the default."""
FLAGS = {"generation_prompt": True, "normalise": False, "bidirectional": False}
WORDS = (
    "architecture",
    "adapter",
    "default_instruction",
    "instruction_end",
    "query_prefix",
    "candidate_prefix",
    "suffix",
    "form",
    "text_form",
    "token",
)
NUMBERS = (
    "max_length",
    "min_image_tokens",
    "max_image_tokens",
    "min_frame_tokens",
    "max_frame_tokens",
    "max_video_tokens",
    "max_audio_seconds",
)
PARTS = ("video", "image", "audio", "text")
ARGUMENTS = (*CHOICES, *FLAGS, *WORDS, *NUMBERS, "order", "frame_rate")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The arguments of a model, as the user or a preset gives them.

    ``template``: the checkpoint's chat template, or none: the words of the media, the instruction and the text with spaces
    between. ``form``, ``text_form``: other assemblies without a template, of {media}, {instruction} and {text}; the second for text
    alone. ``order``: of the parts of a turn. ``query_prefix``, ``candidate_prefix``: before the text, by role. ``suffix``: at the
    end of the turn; {modality} in it is image, video, audio or text, the first that the item has. ``generation_prompt``: whether
    the prompt ends with the opening of the model's own turn.

    ``instruction``: the turn that holds it. ``instructed``: whose. ``default_instruction``: where an item has none.
    ``instruction_end``: added to an item's instruction that ends without punctuation.

    ``pooling``: the last state, the mean of all, or that of ``token``, which is appended to the prompt. ``normalise``: to unit
    length. ``bidirectional``: every token attends to every other. ``positions``: those that the architecture gives to pictures, or
    the place in the sequence. ``attention``: the implementation. ``adapter``: a LoRA adapter, a folder or a repository.
    ``architecture``: in place of model_type of config.json.

    ``max_length``: most tokens of a prompt; ``cut``: what yields, the end of the item's text or the end of the prompt.
    ``min_image_tokens`` to ``max_video_tokens``: tokens of a picture, of a frame before frames are merged in time, of a clip after.
    ``video``: as a clip, or its frames as pictures. ``frame_rate``: frames a second in place of the file's clock.
    ``max_audio_seconds``: what is heard of a sound.
    """

    template: str
    instruction: str
    instructed: str
    pooling: str
    positions: str
    cut: str
    video: str
    attention: str
    generation_prompt: bool
    normalise: bool
    bidirectional: bool
    architecture: str
    adapter: str
    default_instruction: str
    instruction_end: str
    query_prefix: str
    candidate_prefix: str
    suffix: str
    form: str
    text_form: str
    token: str
    max_length: int | None
    min_image_tokens: int | None
    max_image_tokens: int | None
    min_frame_tokens: int | None
    max_frame_tokens: int | None
    max_video_tokens: int | None
    max_audio_seconds: int | None
    order: tuple[str, ...]
    frame_rate: float | None


def read_recipe(options: ModelOptions) -> Recipe:
    """The arguments as values; UserError for one that the family does not take."""
    values: dict[str, Any] = {name: _choice(options, name) for name in CHOICES}
    values |= {name: options.flag(name, default) for name, default in FLAGS.items()}
    values |= {name: options.args.get(name, "") for name in WORDS}
    values |= {name: options.number(name) for name in NUMBERS}
    recipe = Recipe(**values, order=_order(options), frame_rate=_rate(options))
    if (recipe.pooling == "token") != bool(recipe.token):
        raise UserError(
            f"--model-arg pooling={recipe.pooling} with token={recipe.token or 'nothing'}: token=TOKEN, the token to append and"
            " pool, goes with pooling=token alone; token= takes a preset's away"
        )
    for least, most in (("min_image_tokens", "max_image_tokens"), ("min_frame_tokens", "max_frame_tokens")):
        if (values[least] or 0) > (values[most] or math.inf):
            raise UserError(f"--model-arg {least}={values[least]}: must not exceed {most}={values[most]}")
    if recipe.architecture and recipe.architecture not in ARCHITECTURES:
        raise UserError(f"--model-arg architecture={recipe.architecture}: is one of {', '.join(ARCHITECTURES)}")
    return recipe


def _choice(options: ModelOptions, name: str) -> str:
    values = CHOICES[name]
    value = options.args.get(name, values[0])
    if value not in values:
        raise UserError(f"--model-arg {name}={value}: write {', '.join(values)}")
    return value


def _order(options: ModelOptions) -> tuple[str, ...]:
    text = options.args.get("order", ",".join(PARTS))
    order = tuple(text.split(","))
    if sorted(order) != sorted(PARTS):
        raise UserError(
            f"--model-arg order={text}: write {', '.join(PARTS)} in the order wanted, with commas and no spaces"
        )
    return order


def _rate(options: ModelOptions) -> float | None:
    text = options.args.get("frame_rate")
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise UserError(f"--model-arg frame_rate={text}: give the frames a second, such as 1 or 2.5")
    return rate


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


@dataclass(frozen=True, slots=True)
class Mark:
    """How a medium stands in a prompt: ``token`` (number ``id``), once for each vector of it, between ``start`` and ``end``."""

    id: int
    token: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a checkpoint's JSON files say, as far as it shapes prompts and vectors."""

    dimension: int
    longest: int | None
    template: str
    marks: Mapping[str, Mark]
    grid: Grid
    image: Budget
    frame: Budget
    sampling_rate: int
    audio_seconds: int
    step: int
    window: int


def read_facts(spec: str, checkpoint: Checkpoint, kind: Architecture, recipe: Recipe) -> Facts:
    """The facts of a checkpoint; UserError for what is missing."""
    config = _body(checkpoint, kind)
    core = config.get("vlm_config", config)
    text = core.get("text_config", core)
    tokens = _added_tokens(spec, checkpoint)
    if recipe.token and recipe.token not in tokens.values():
        raise UserError(f"--model-arg token={recipe.token}: {spec} has no such special token")
    template = _chat_template(checkpoint)
    if recipe.template == "chat" and not template:
        raise UserError(f"{spec}: has no chat template: add chat_template.jinja, or give --model-arg template=none")
    image = _processor_file(checkpoint, "image_processor", "preprocessor_config.json")
    video = _processor_file(checkpoint, "video_processor", "video_preprocessor_config.json") or image
    sound = _processor_file(checkpoint, "feature_extractor", "preprocessor_config.json")
    grid = Grid(
        int(image.get("patch_size") or kind.patch),
        int(image.get("merge_size") or 2),
        int(image.get("temporal_patch_size") or 2),
    )
    rate = int(sound.get("sampling_rate", 16000))
    dimension = config.get("embedding_dim", 128) if kind.late else text.get("hidden_size")
    if not isinstance(dimension, int):
        raise UserError(f"{checkpoint.folder / 'config.json'}: does not say hidden_size, the length of a vector")
    return Facts(
        dimension=dimension,
        longest=text.get("max_position_embeddings"),
        template=template,
        marks=_marks(spec, core, kind, tokens),
        grid=grid,
        image=_image_budget(image, recipe, grid),
        frame=_frame_budget(video, kind, recipe, grid),
        sampling_rate=rate,
        audio_seconds=recipe.max_audio_seconds or int(sound.get("n_samples", 300 * rate)) // rate,
        step=int(sound.get("hop_length", 160)),
        window=int(sound.get("n_fft", 400)),
    )


def _body(checkpoint: Checkpoint, kind: Architecture) -> dict[str, Any]:
    """The part of config.json that describes the model."""
    config = checkpoint.json("config.json")
    body: dict[str, Any] = config.get(kind.part, config) if kind.part else config
    return body


def _processor_file(checkpoint: Checkpoint, part: str, file: str) -> dict[str, Any]:
    """A processor's options: from a file of its own, or from its part of processor_config.json."""
    own = checkpoint.json("processor_config.json").get(part)
    return own if isinstance(own, dict) else checkpoint.json(file)


def _chat_template(checkpoint: Checkpoint) -> str:
    """The checkpoint's own chat template, "" where it has none."""
    if checkpoint.has("chat_template.jinja"):
        return (checkpoint.folder / "chat_template.jinja").read_text("utf-8")
    for file in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        found = checkpoint.json(file).get("chat_template")
        if isinstance(found, list):
            found = next((entry["template"] for entry in found if entry.get("name") == "default"), None)
        if isinstance(found, str):
            return found
    return ""


def _added_tokens(spec: str, checkpoint: Checkpoint) -> dict[int, str]:
    path = checkpoint.folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{spec}: has no tokenizer.json: save the tokenizer with transformers 5 beside the weights")
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path}: cannot be read as a tokenizer: {error}") from None
    return {token.id: token.content for token in content.added_tokens}


_MARKS = {
    "image": (("image_token_id", "image_token_index"), 151655, "vision"),
    "video": (("video_token_id", "video_token_index"), 151656, "vision"),
    "audio": (("audio_token_id", "audio_token_index"), 151646, "audio"),
}
"""Modality to the names of its token in config.json, the number where none is there, and the kind of its start and end."""
_BORDERS = {
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "audio_start_token_id": 151647,
    "audio_end_token_id": 151648,
}


def _marks(spec: str, config: Mapping[str, Any], kind: Architecture, tokens: Mapping[int, str]) -> dict[str, Mark]:
    def content(number: int) -> str:
        if number not in tokens:
            raise UserError(
                f"{spec}: tokenizer.json has no token {number}, which config.json means to stand for a medium"
            )
        return tokens[number]

    marks = {}
    for modality in (part for part in PARTS if part in _MARKS and part in kind.modalities):
        names, default, border = _MARKS[modality]
        number = int(next((config[name] for name in names if name in config), default))
        start, end = (
            content(int(config.get(name, _BORDERS[name])))
            for name in (f"{border}_start_token_id", f"{border}_end_token_id")
        )
        marks[modality] = Mark(number, content(number), start, end)
    return marks


def _pixels(file: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    """The budget that a processor's file states, in pixels."""
    size = file.get("size") or {}
    return (
        int(file.get("min_pixels") or size.get("shortest_edge") or least),
        int(file.get("max_pixels") or size.get("longest_edge") or most),
    )


def _image_budget(file: Mapping[str, Any], recipe: Recipe, grid: Grid) -> Budget:
    least, most = _pixels(file, 4 * grid.side**2, 1280 * grid.side**2)
    return _bounded(least, most, recipe.min_image_tokens, recipe.max_image_tokens, grid)


def _frame_budget(file: Mapping[str, Any], kind: Architecture, recipe: Recipe, grid: Grid) -> Budget:
    least, most = _pixels(file, 128 * grid.side**2, 768 * grid.side**2)
    # Each step in time of a clip is made of several frames.
    clip = None if recipe.max_video_tokens is None else recipe.max_video_tokens * grid.frames * grid.side**2
    if kind.clip_budget:
        if clip is None and recipe.max_frame_tokens is None:
            clip = most
        least = min(least, 4 * grid.side**2)
    return replace(_bounded(least, most, recipe.min_frame_tokens, recipe.max_frame_tokens, grid), clip=clip)


def _bounded(least: int, most: int, min_tokens: int | None, max_tokens: int | None, grid: Grid) -> Budget:
    """A budget of pixels with the user's tokens in place of the file's; where only one end is given, the other yields."""
    least = least if min_tokens is None else min_tokens * grid.side**2
    most = most if max_tokens is None else max_tokens * grid.side**2
    if least > most and min_tokens is None:
        least = most
    return Budget(least, max(least, most))
