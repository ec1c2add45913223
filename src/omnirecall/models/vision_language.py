"""Embedding through a vision-language or omni model: an item becomes a prompt, and hidden states of its last layer the vector.

What differs between such models is data: which turn holds the instruction, which token is pooled, how many visual tokens a frame
may take. It comes as arguments; presets.toml holds those of published models, each with its source.

Sources:
    Prompt and last-token pooling: Jiang et al., E5-V, 2024; Zhang et al., GME, 2024; Guo et al., GVE, 2025.
    Late interaction: Faysse et al., ColPali, ICLR 2025.
    Adapters: Hu et al., LoRA, ICLR 2022.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models.base import Encoded, ModelOptions, Role
from omnirecall.models.checkpoint import Checkpoint, find_checkpoint
from omnirecall.models.torch_parts import (
    fingerprint,
)
from omnirecall.models.visual_tokens import Budget, Patches, clip_patches, frame_seconds, picture_patches

if TYPE_CHECKING:
    from numpy.typing import NDArray

from omnirecall.models.vlm_network import Network, Prepared, sound_tokens
from omnirecall.models.vlm_recipe import (
    ARCHITECTURES,
    ARGUMENTS,
    CLOCKLESS_RATE,
    EXTRA,
    OMNI,
    Architecture,
    Recipe,
    read_facts,
    read_recipe,
)


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
    def _network(self) -> Network:
        return Network(self._spec, self._checkpoint, self._adapter, self._kind, self._recipe, self.dtype, self.device)

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

    def _prepare(self, item: DecodedItem, role: Role) -> Prepared:
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
        return Prepared(ids, cut, pictures, clips, clip_seconds, sounds)

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
