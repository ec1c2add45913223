"""Embedding through a vision-language or omni model: an item becomes a prompt, and hidden states of its last layer the vector.

What differs between such models is data: which turn holds the instruction, which token is pooled, how many visual tokens a frame
may take. It comes as arguments; presets.toml holds those of published models, each with its source.

Sources:
    Prompt and last-token pooling: Jiang et al., E5-V, 2024; Zhang et al., GME, 2024; Guo et al., GVE, 2025.
    Late interaction: Faysse et al., ColPali, ICLR 2025.
    Adapters: Hu et al., LoRA, ICLR 2022.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.base import Encoded, ModelOptions, Role
from omnirecall.models.checkpoint import Checkpoint, find_checkpoint
from omnirecall.models.torch_parts import (
    as_vectors,
    check_device,
    check_safetensors,
    exact_arithmetic,
    fingerprint,
    loading,
)
from omnirecall.models.visual_tokens import Budget, Grid, Patches, clip_patches, frame_seconds, picture_patches
from omnirecall.ranking import BFloat16, Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


@dataclass(frozen=True, eq=False, slots=True)
class _Prepared:
    """One item as the model takes it. ``ids``: int64 tokens. ``cut``: how many of the text's are left out."""

    ids: NDArray[np.int64]
    cut: int
    pictures: Sequence[Patches]
    clips: Sequence[Patches]
    clip_seconds: Sequence[float]
    sounds: Sequence[NDArray[np.float32]]

    @property
    def frame_tokens(self) -> int:
        return max((patches.frame_tokens for patches in (*self.pictures, *self.clips)), default=0)


class VisionLanguage:
    """A vision-language or omni model as an ``Embedder``; the JSON files of its checkpoint say all but the vectors."""

    def __init__(
        self, spec: str, checkpoint: Checkpoint, kind: Architecture, recipe: Recipe, options: ModelOptions
    ) -> None:
        self.name = checkpoint.name
        self.device = options.device or "cpu"
        self.dtype = options.dtype or ("bfloat16" if self.device.startswith("cuda") else "float32")
        self.late_interaction = kind.late
        self._spec = spec
        self._checkpoint = checkpoint
        self._kind = kind
        self._recipe = recipe
        self._facts = read_facts(spec, checkpoint, kind, recipe)
        self._adapter = find_checkpoint("vlm", recipe.adapter) if recipe.adapter else None
        if self._adapter is not None:
            self.name = self._adapter.name
        self.dimension = self._facts.dimension
        self.sampling_rate = self._facts.sampling_rate

    @property
    def fingerprint(self) -> str:
        """Changes with the weights, the dtype, the arguments and the processor's files."""
        parts = {
            "recipe": "vlm-1",
            "weights": [self._checkpoint.identity, self._adapter and self._adapter.identity],
            "dtype": self.dtype,
            "architecture": self._kind.model,
            "arguments": asdict(self._recipe),
        }
        return fingerprint(parts)

    @property
    def symmetric(self) -> bool:
        """Whether a query and a candidate with the same parts and instruction get the same prompt."""
        recipe = self._recipe
        instructed_alike = recipe.instruction == "none" or recipe.instructed == "both"
        return instructed_alike and recipe.query_prefix == recipe.candidate_prefix

    @property
    def default_prompt(self) -> str:
        """``card`` where the model has no template of its own: the suite's own text is its prompt."""
        plain = self._recipe.template == "none" and not self._recipe.form
        return "card" if plain else "model"

    @property
    def media_tokens(self) -> Mapping[str, str]:
        """Modality to the word that marks it in a text; with a chat template, between its start and end tokens."""
        pictured = {"video"} if self._recipe.video == "pictures" else set()
        return MappingProxyType(
            {modality: self._word(modality) for modality in self._facts.marks if modality not in pictured}
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Instructions that are not used, sound that is not heard, frames that are seen as pictures."""
        notes = []
        if self._recipe.instruction == "none":
            notes.append("instructions are not used")
        elif self._recipe.instructed == "query":
            notes.append("instructions of candidates are not used")
        if "audio" in self._kind.modalities:
            notes.append(f"sound is cut at {self._facts.audio_seconds} s")
        if self._recipe.video == "pictures":
            notes.append("frames are seen as separate pictures")
        return tuple(notes)

    def supports(self, modalities: Set[str]) -> bool:
        """Every combination of what the model takes; under late interaction, text or image alone."""
        return (
            bool(modalities) and modalities <= self._kind.modalities and (len(modalities) == 1 or not self._kind.late)
        )

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Encoded:
        """Vectors in the model's dtype, shape (len(items), dimension), or Ragged with one for each token of the prompt.

        ``tokens_cut``: text tokens beyond max_length. ``frame_tokens``: tokens of one frame before frames are merged in time. No
        visual token is ever cut: UserError for an item whose frames alone exceed max_length.
        """
        prepared = [self._prepare(item, role) for item in items]
        vectors = self._network.embed(prepared)
        seen = [one.frame_tokens for one in prepared] if items and items[0].modalities & {"image", "video"} else []
        return Encoded(vectors, tokens_cut=[one.cut for one in prepared], frame_tokens=seen)

    @cached_property
    def _network(self) -> _Network:
        return _Network(self._spec, self._checkpoint, self._adapter, self._kind, self._recipe, self.dtype, self.device)

    @cached_property
    def _tokenizer(self) -> Any:
        library = require("transformers", EXTRA)
        return library.AutoTokenizer.from_pretrained(str(self._checkpoint.folder), local_files_only=True, use_fast=True)

    @cached_property
    def _image_processor(self) -> Any:
        library = require("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", EXTRA)
        folder = str(self._checkpoint.folder)
        if not (self._checkpoint.has("preprocessor_config.json") or self._checkpoint.has("processor_config.json")):
            raise UserError(f"{self._spec}: has no preprocessor_config.json, which says how pictures are prepared")
        return library.Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)

    @cached_property
    def _feature_extractor(self) -> Any:
        library = require("transformers", EXTRA)
        return library.WhisperFeatureExtractor.from_pretrained(str(self._checkpoint.folder), local_files_only=True)

    def _prepare(self, item: DecodedItem, role: Role) -> _Prepared:
        if not self.supports(item.modalities):
            raise ValueError(
                f"item {item.id} has {', '.join(sorted(item.modalities)) or 'nothing'}, which cannot be embedded"
            )
        facts = self._facts
        pictures: list[Patches] = []
        clips: list[Patches] = []
        clip_seconds: list[float] = []
        sounds: list[NDArray[np.float32]] = []
        inserts: dict[str, list[str]] = {}
        for part in self._parts(item):
            if isinstance(part, Samples):
                sounds.append(self._heard(part))
                mark = facts.marks["audio"]
                inserts.setdefault("audio", []).append(mark.token * sound_tokens(sounds[-1].shape[1]))
            elif isinstance(part, Frames):
                clips.append(clip_patches(self._image_processor, part.pixels, facts.frame, facts.grid))
                times, seconds = frame_seconds(part, self._recipe.frame_rate, CLOCKLESS_RATE)
                clip_seconds.append(seconds * facts.grid.frames)
                inserts.setdefault("video", []).append(self._clip_words(clips[-1], times))
            else:
                picture, budget = part
                pictures.append(picture_patches(self._image_processor, picture, budget, facts.grid))
                mark = facts.marks["image"]
                inserts.setdefault("image", []).append(mark.token * pictures[-1].tokens)
        ids, cut = self._tokens(item, role, inserts)
        return _Prepared(ids, cut, pictures, clips, clip_seconds, sounds)

    def _parts(self, item: DecodedItem) -> Iterator[Samples | Frames | tuple[Any, Budget]]:
        """The item's media in the order in which the model meets them."""
        inline = self._inline(item)
        for part in sorted(
            set(item.modalities) - {"text"}, key=lambda part: (inline.get(part, -1), self._recipe.order.index(part))
        ):
            if part == "audio":
                assert item.audio is not None
                yield item.audio
            elif part == "image":
                yield item.image, self._facts.image
            elif self._recipe.video == "pictures":
                assert item.video is not None
                pil = require("PIL.Image", EXTRA)
                share = self._facts.frame.share(len(item.video.pixels))
                for frame in item.video.pixels:
                    yield pil.fromarray(frame), share
            else:
                assert item.video is not None
                yield item.video

    def _heard(self, samples: Samples) -> NDArray[np.float32]:
        """The spectrogram of a sound, float32 of shape (bands, frames), without the frames of padding."""
        facts = self._facts
        if samples.rate != facts.sampling_rate:
            raise ValueError(f"sound of {samples.rate} samples a second, not {facts.sampling_rate}")
        values = np.asarray(samples.values, np.float32)[: facts.audio_seconds * facts.sampling_rate]
        # Fewer frames than these make no token.
        values = np.pad(values, (0, max(0, 4 * facts.step - len(values))))
        # The library pads to the longest sound it takes; the frames are the same after one window of silence, and cost less.
        length = (len(values) // facts.step + facts.window // facts.step + 2) * facts.step
        output = self._feature_extractor(
            values,
            sampling_rate=samples.rate,
            padding="max_length",
            max_length=length,
            return_attention_mask=True,
            return_tensors="np",
        )
        frames = int(output["attention_mask"][0].sum())
        return np.asarray(output["input_features"][0, :, :frames], np.float32)

    def _clip_words(self, clip: Patches, times: NDArray[np.float64]) -> str:
        """The tokens of a clip; with the time of each step, in seconds, where the model reads it."""
        mark = self._facts.marks["video"]
        if self._kind.clock != "text":
            return mark.token * clip.tokens
        merged = self._facts.grid.frames
        padded = np.concatenate([times, np.repeat(times[-1:], -len(times) % merged)]).reshape(-1, merged)
        middles = (padded[:, 0] + padded[:, -1]) / 2
        return "".join(
            f"<{middle:.1f} seconds>{mark.start}{mark.token * clip.frame_tokens}{mark.end}" for middle in middles
        )

    def _word(self, modality: str) -> str:
        mark = self._facts.marks[modality]
        plain = self._recipe.template == "none" and not self._recipe.form
        return mark.token if plain else f"{mark.start}{mark.token}{mark.end}"

    def _inline(self, item: DecodedItem) -> dict[str, int]:
        """The media of the item whose words its own text holds, and where."""
        text = item.text or ""
        return {
            part: text.index(self._facts.marks[part].token)
            for part in item.modalities - {"text"}
            if self._facts.marks[part].token in text
        }

    def _tokens(
        self, item: DecodedItem, role: Role, inserts: Mapping[str, Sequence[str]]
    ) -> tuple[NDArray[np.int64], int]:
        """The tokens of the prompt and how many of the text's tokens were cut."""
        text = item.text or ""
        prompt = self._prompt(item, role, text)
        tail = self._recipe.token
        whole = self._filled(item, prompt, inserts) + tail
        found = self._tokenizer(whole, return_offsets_mapping=True)
        ids = np.asarray(found["input_ids"], np.int64)
        if len(ids) == 0:
            ids = np.asarray([self._tokenizer.pad_token_id or 0], np.int64)
        most = self._recipe.max_length or self._facts.longest or len(ids)
        if len(ids) <= most:
            return ids, 0
        start, end = 0, len(whole) - len(tail)
        if self._recipe.cut == "text":
            start, end = self._text_span(item, role, whole, inserts)
        kept = self._kept(ids, np.asarray(found["offset_mapping"]), start, end, most)
        if kept is None:
            raise UserError(
                f"item {item.id}: its media and prompt take more than max_length={most} tokens, and these are never cut: raise"
                " --model-arg max_length, or lower max_frame_tokens or max_image_tokens"
            )
        return ids[kept], int(len(ids) - kept.sum())

    def _kept(
        self, ids: NDArray[np.int64], spans: NDArray[np.int64], start: int, end: int, most: int
    ) -> NDArray[np.bool_] | None:
        """Which tokens stay: all but the last words between the characters ``start`` and ``end``; None for too few."""
        marks = [mark.id for mark in self._facts.marks.values()]
        words = (spans[:, 0] >= start) & (spans[:, 1] <= end) & ~np.isin(ids, marks)
        if self._recipe.cut == "text":
            words &= ~np.isin(ids, self._tokenizer.all_special_ids)
        excess = len(ids) - most
        if words.sum() < excess:
            return None
        kept = np.ones(len(ids), bool)
        kept[np.flatnonzero(words)[-excess:]] = False
        return kept

    def _text_span(
        self, item: DecodedItem, role: Role, whole: str, inserts: Mapping[str, Sequence[str]]
    ) -> tuple[int, int]:
        """Where the item's own text stands in its prompt, as character positions."""
        border = "\ue000text\ue000"
        bordered = self._filled(item, self._prompt(item, role, f"{border}{item.text or ''}{border}"), inserts)
        before, after = bordered.partition(border)[0], bordered.rpartition(border)[2]
        return len(before), len(whole) - len(after) - len(self._recipe.token)

    def _filled(self, item: DecodedItem, prompt: str, inserts: Mapping[str, Sequence[str]]) -> str:
        """The prompt with as many tokens for each medium as the model makes of it."""
        strangers = [
            mark.token for part, mark in self._facts.marks.items() if part not in inserts and mark.token in prompt
        ]
        if inserts and strangers and self._kind.modalities == OMNI:
            raise UserError(
                f"item {item.id}: its text holds {strangers[0]}, but it has no such medium; take it out of the text"
            )
        for part, words in inserts.items():
            mark = self._facts.marks[part]
            if prompt.count(mark.token) != len(words):
                raise UserError(
                    f"item {item.id}: its prompt holds {mark.token} {prompt.count(mark.token)} times, for {len(words)} {part};"
                    " take the token out of its text"
                )
            borders = part == "video" and self._kind.clock == "text"
            pattern = re.escape(mark.token)
            if borders:
                pattern = f"(?:{re.escape(mark.start)})?{pattern}(?:{re.escape(mark.end)})?"
            rest = iter(words)
            prompt = re.sub(pattern, lambda _, rest=rest: next(rest), prompt)  # type: ignore[misc]
        return prompt

    def _prompt(self, item: DecodedItem, role: Role, text: str) -> str:
        """The item as the model reads it, with one token for each medium, and ``text`` in the place of its text."""
        recipe = self._recipe
        instruction = self._instruction(item, role)
        prefix = recipe.query_prefix if role == "query" else recipe.candidate_prefix
        main = next((part for part in ("image", "video", "audio") if part in item.modalities), "text")
        suffix = recipe.suffix.replace("{modality}", main)
        media = [part for part in self._media(item) if part not in self._inline(item)]
        if recipe.template == "none":
            return self._plain(item, media, instruction, f"{prefix}{text}") + suffix
        told = f"{instruction}\n" if recipe.instruction == "user" and instruction else ""
        content = [
            one
            for part in recipe.order
            for one in (self._said(f"{told}{prefix}{text}") if part == "text" else self._shown(item, part, media))
        ]
        messages = [{"role": "user", "content": [*content, *self._said(suffix)]}]
        if recipe.instruction == "system" and instruction:
            messages.insert(0, {"role": "system", "content": self._said(instruction)})
        return self._rendered(messages)

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        jinja = require("jinja2", EXTRA)
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._facts.template,
                tokenize=False,
                add_generation_prompt=self._recipe.generation_prompt,
            )
        except jinja.TemplateError as error:
            raise UserError(
                f"{self._spec}: its chat template refuses the prompt: {error}; try --model-arg instruction=user or template=none"
            ) from None
        return rendered

    def _instruction(self, item: DecodedItem, role: Role) -> str:
        recipe = self._recipe
        if recipe.instruction == "none":
            return ""
        own = item.instruction.strip() if role == "query" or recipe.instructed == "both" else ""
        if own and recipe.instruction_end and not unicodedata.category(own[-1]).startswith("P"):
            own += recipe.instruction_end
        return own or recipe.default_instruction

    def _media(self, item: DecodedItem) -> list[str]:
        return [part for part in self._recipe.order if part != "text" and part in item.modalities]

    def _said(self, text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text}] if text else []

    def _shown(self, item: DecodedItem, part: str, media: Sequence[str]) -> list[dict[str, str]]:
        """The entries of a chat that stand for one medium."""
        if part not in media:
            return []
        if part == "video" and self._recipe.video == "pictures":
            assert item.video is not None
            return [{"type": "image"}] * len(item.video.pixels)
        return [{"type": part}]

    def _plain(self, item: DecodedItem, media: Sequence[str], instruction: str, text: str) -> str:
        """The prompt without a chat template: the words of the media, the instruction and the text, or the model's own form."""
        recipe = self._recipe
        words = " ".join(self._word(entry["type"]) for part in media for entry in self._shown(item, part, media))
        form = recipe.form if media or not recipe.text_form else recipe.text_form
        if form:
            return form.replace("{media}", words).replace("{instruction}", instruction).replace("{text}", text)
        return " ".join(word for word in (words, instruction, text) if word)


def load(name: str, options: ModelOptions) -> VisionLanguage:
    """``vlm:FOLDER`` or ``vlm:OWNER/REPOSITORY[@REVISION]``, with the arguments of ``Recipe``."""
    spec = f"vlm:{name}"
    if not name:
        raise UserError("vlm: name a folder or a repository of the hub, as in vlm:Alibaba-NLP/GVE-3B")
    options.only(spec, *ARGUMENTS, dtype=True, revision=True)
    read_recipe(options)
    checkpoint = find_checkpoint("vlm", name, options.revision)
    if not checkpoint.has("config.json"):
        raise UserError(f"{spec}: {checkpoint.folder} has no config.json, so it is no checkpoint of transformers")
    model_type = options.args.get("architecture") or checkpoint.json("config.json").get("model_type")
    if model_type not in ARCHITECTURES:
        raise UserError(
            f"{spec}: is a {model_type}, which vlm does not know; it takes {', '.join(ARCHITECTURES)}:"
            " if it is one of these in all but name, give --model-arg architecture=NAME"
        )
    kind = ARCHITECTURES[model_type]
    options = replace(options, args={**kind.defaults, **options.args})
    return VisionLanguage(spec, checkpoint, kind, read_recipe(options), options)


def sound_tokens(frames: int) -> int:
    """Tokens that Qwen2.5-Omni makes of so many frames of a spectrogram: two halvings, the second without overlap."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


class _Network:
    """The weights, and the way from prepared items to vectors."""

    def __init__(
        self,
        spec: str,
        checkpoint: Checkpoint,
        adapter: Checkpoint | None,
        kind: Architecture,
        recipe: Recipe,
        dtype: str,
        device: str,
    ) -> None:
        self._torch = require("torch", EXTRA)
        check_device(device)
        self._kind, self._recipe, self._device = kind, recipe, device
        whole = _pretrained(spec, checkpoint, kind, recipe, getattr(self._torch, dtype))
        if adapter is not None:
            _merge_adapter(whole, adapter)
        if recipe.bidirectional:
            _see_both_ways(whole)
        # The head that predicts words is the largest matrix of a small model, and no vector needs it.
        self._model: Any = (whole if kind.late else whole.model).eval().to(device)

    def embed(self, items: Sequence[_Prepared]) -> NDArray[np.floating] | BFloat16 | Ragged:
        """One vector for each item, or one for each token of each."""
        torch = self._torch
        lengths = [len(one.ids) for one in items]
        with exact_arithmetic():
            output = self._model(**self._inputs(items), use_cache=False)
            states = output.embeddings if self._kind.late else output.last_hidden_state
            if self._kind.late:
                values = torch.cat([state[:length] for state, length in zip(states, lengths, strict=True)])
                return Ragged(as_vectors(values), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
            vectors = self._pooled(states, lengths)
            if self._recipe.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            return as_vectors(vectors)

    def _pooled(self, states: Any, lengths: Sequence[int]) -> Any:
        if self._recipe.pooling != "mean":
            return self._torch.stack([state[length - 1] for state, length in zip(states, lengths, strict=True)])
        # In float32, as a sum of many bfloat16 numbers loses the small ones.
        means = [state[:length].float().mean(dim=0) for state, length in zip(states, lengths, strict=True)]
        return self._torch.stack(means).to(states.dtype)

    def _inputs(self, items: Sequence[_Prepared]) -> dict[str, Any]:
        """The arguments of the model; padding is on the right, so that positions do not depend on the other items."""
        torch = self._torch
        longest = max(len(one.ids) for one in items)
        ids = np.zeros((len(items), longest), np.int64)
        mask = np.zeros((len(items), longest), np.int64)
        for row, one in enumerate(items):
            ids[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
        inputs = {"input_ids": self._tensor(ids), "attention_mask": self._tensor(mask)}
        if self._recipe.positions == "sequential":
            inputs["position_ids"] = torch.arange(longest, device=self._device).expand(3, len(items), longest)
        inputs |= self._visual(items)
        if self._kind.typed and len(inputs) > 2:
            inputs["mm_token_type_ids"] = self._types(inputs)
        return inputs | self._clock(items) | self._sound(items)

    def _visual(self, items: Sequence[_Prepared]) -> dict[str, Any]:
        inputs = {}
        for name, grid, lists in (
            ("pixel_values", "image_grid_thw", [one.pictures for one in items]),
            ("pixel_values_videos", "video_grid_thw", [one.clips for one in items]),
        ):
            patches = [one for several in lists for one in several]
            if not patches:
                continue
            values = [self._tensor(one.values) for one in patches]
            inputs[name] = (
                self._torch.nn.utils.rnn.pad_sequence(values, True) if self._kind.late else self._torch.cat(values)
            )
            inputs[grid] = self._tensor(np.asarray([one.thw for one in patches], np.int64))
        return inputs

    def _types(self, inputs: Mapping[str, Any]) -> Any:
        """The kind of each token: 1 for a picture's, 2 for a clip's, 0 for others."""
        config, ids = self._model.config, inputs["input_ids"]
        types = self._torch.zeros_like(ids)
        if "pixel_values" in inputs:
            types[ids == config.image_token_id] = 1
        if "pixel_values_videos" in inputs:
            types[ids == config.video_token_id] = 2
        return types

    def _clock(self, items: Sequence[_Prepared]) -> dict[str, Any]:
        seconds = [second for one in items for second in one.clip_seconds]
        if not seconds or self._kind.clock in ("", "text"):
            return {}
        return {self._kind.clock: self._tensor(np.asarray(seconds, np.float32))}

    def _sound(self, items: Sequence[_Prepared]) -> dict[str, Any]:
        sounds = [sound for one in items for sound in one.sounds]
        if not sounds:
            return {}
        longest = max(sound.shape[1] for sound in sounds)
        features = np.stack([np.pad(sound, ((0, 0), (0, longest - sound.shape[1]))) for sound in sounds])
        mask = np.stack([np.arange(longest) < sound.shape[1] for sound in sounds]).astype(np.int64)
        dtype = next(self._model.parameters()).dtype
        return {"input_features": self._tensor(features).to(dtype), "feature_attention_mask": self._tensor(mask)}

    def _tensor(self, values: NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _pretrained(spec: str, checkpoint: Checkpoint, kind: Architecture, recipe: Recipe, dtype: Any) -> Any:
    """The model with all its weights; UserError where the checkpoint lacks any."""
    library = require("transformers", EXTRA)
    check_safetensors(spec, checkpoint.folder)
    with loading(spec, checkpoint.folder), _quiet():
        config = getattr(library, kind.config).from_dict(_body(checkpoint, kind))
        model, report = getattr(library, kind.model).from_pretrained(
            str(checkpoint.folder),
            config=config,
            dtype=dtype,
            attn_implementation=recipe.attention,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    lacking = sorted({*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])} - {"lm_head.weight"})
    if lacking:
        raise UserError(
            f"{spec}: {len(lacking)} weights of {kind.model} are not in {checkpoint.folder}, the first {lacking[0]}:"
            " fetch the checkpoint again, or name the right --model-arg architecture"
        )
    return model


def _see_both_ways(model: Any) -> None:
    """Let every token of the text model attend to every other."""
    for module in model.modules():
        if getattr(module, "is_causal", None) is True:
            # The config, which the text model shares, decides the mask; flash attention has none and asks the module.
            module.is_causal = module.config.is_causal = False


def _merge_adapter(model: Any, adapter: Checkpoint) -> None:
    """Add a LoRA adapter to the weights: W + scale * B A (Hu et al., 2022); UserError for another kind of adapter."""
    torch = require("torch", EXTRA)
    files = require("safetensors.torch", EXTRA)
    config = adapter.json("adapter_config.json")
    path = adapter.folder / "adapter_model.safetensors"
    odd = [name for name in ("use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern") if config.get(name)]
    if config.get("peft_type") != "LORA" or odd or not path.is_file():
        why = (
            f"it sets {odd[0]}"
            if odd
            else "adapter_config.json and adapter_model.safetensors must be there and say LORA"
        )
        raise UserError(f"--model-arg adapter={adapter.name}: is not a plain LoRA adapter: {why}")
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    weights = files.load_file(path)
    modules = {_plain_path(name): module for name, module in model.named_modules()}
    used = set()
    for name, down in weights.items():
        target, found, _ = name.removeprefix("base_model.model.").partition(".lora_A")
        if not found:
            continue
        module = modules.get(_plain_path(target))
        up = weights.get(name.replace("lora_A", "lora_B"))
        if module is None or up is None or tuple(module.weight.shape) != (len(up), down.shape[1]):
            raise UserError(f"--model-arg adapter={adapter.name}: {name} fits no layer of the model")
        with torch.no_grad():
            module.weight += (scale * (up.float() @ down.float())).to(module.weight)
        used |= {name, name.replace("lora_A", "lora_B")}
    if not used or used != set(weights):
        rest = next(iter(set(weights) - used), "no weight")
        raise UserError(f"--model-arg adapter={adapter.name}: holds {rest}, which is no part of a plain LoRA adapter")


def _plain_path(name: str) -> str:
    """A layer's name without the wrappers that versions of the library put around the text model."""
    return ".".join(part for part in name.split(".") if part not in ("model", "language_model", "base_layer"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from printing what it reports of the weights; what matters of it becomes an error."""
    logging = require("transformers.utils.logging", EXTRA)
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
