"""Dual encoders of transformers: CLIP, SigLIP, ALIGN, CLAP, X-CLIP and relatives, by their features methods.

Sources:
    Late fusion of composed items: the score fusion of UniIR; Wei et al., ECCV 2024.
    Video as the mean of its frames: Luo et al., CLIP4Clip, 2021 (mean pooling).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.models.base import Encoded, ModelOptions, Role
from omnirecall.models.checkpoint import Checkpoint, find_checkpoint
from omnirecall.models.torch_parts import (
    EXTRA,
    FRAMES_AT_ONCE,
    as_vectors,
    check_device,
    check_safetensors,
    config_dtype,
    exact_arithmetic,
    fingerprint,
    fixed_draws,
    frame_means,
    late_fusion,
    loading,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnirecall.media.types import DecodedItem, Frames, Samples

ARGUMENTS = ("trust_remote_code",)
SAMPLING_RATE = 48_000
CLIP_FRAMES = 8
ROBERTAS = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm"})


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of dual encoder.

    ``takes``: the parts that it has a method for. ``dimension``: names in config.json, an outer one first, of the length of a
    vector, and ``width`` where the file leaves it out because it is the default. ``padded``: tokens to which every text is padded
    and cut, as the model was trained, where not to the longest. ``offset``: True where positions begin after that of the padding
    token, as in RoBERTa, so that so many fewer tokens fit. ``attention``: the implementation, where the library's choice is wrong.
    """

    takes: frozenset[str]
    width: int
    dimension: tuple[str, ...] = ("projection_dim",)
    padded: int | None = None
    offset: bool = False
    attention: str | None = None


_SEEN = frozenset({"text", "image"})
_SIGLIP = Kind(_SEEN, 768, ("vision_config", "hidden_size"), padded=64)
DUAL_ENCODERS: Mapping[str, Kind] = MappingProxyType(
    {
        # Under sdpa a batch in which no text is padded would lose the causal mask, and its vectors would be others.
        "aimv2": Kind(_SEEN, 512, attention="eager"),
        "align": Kind(_SEEN, 640, padded=64),
        "altclip": Kind(_SEEN, 768, offset=True),
        "blip": Kind(_SEEN, 512),
        "chinese_clip": Kind(_SEEN, 512),
        "clap": Kind(frozenset({"text", "audio"}), 512, offset=True),
        "clip": Kind(_SEEN, 512),
        "clipseg": Kind(_SEEN, 512),
        "flava": Kind(_SEEN, 768),
        "groupvit": Kind(_SEEN, 256),
        "metaclip_2": Kind(_SEEN, 512),
        "siglip": _SIGLIP,
        "siglip2": _SIGLIP,
        "vision-text-dual-encoder": Kind(_SEEN, 512),
        "xclip": Kind(frozenset({"text", "video"}), 512),
    }
)
"""model_type of config.json to what it means."""
BLIP_RETRIEVAL = "BlipForImageTextRetrieval"
_BLIP_RETRIEVAL = Kind(_SEEN, 256, ("image_text_hidden_size",))


class DualEncoder:
    """A dual encoder, an ``Embedder``: each part of an item has its own encoder into one space.

    A vector is what the model's features method gives, unnormalised where the model leaves it so, in the model's dtype. A
    composed item is the normalised sum of its parts' unit vectors. A video is the mean of its frames' unit vectors, or, under
    X-CLIP, the vector of as many frames as the model takes. Instructions are not used.
    """

    symmetric: bool = True
    late_interaction: bool = False
    default_prompt: str = "card"
    media_tokens: Mapping[str, str] = MappingProxyType({})

    def __init__(self, spec: str, checkpoint: Checkpoint, options: ModelOptions) -> None:
        self._spec, self._checkpoint = spec, checkpoint
        self._config = _config(spec, checkpoint)
        self._trusted = options.flag("trust_remote_code")
        self._kind = _kind(spec, checkpoint, self._config)
        self._device = options.device or "cpu"
        self.name: str = checkpoint.name
        self.dtype: str = options.dtype or config_dtype(self._config)
        self._where = f"{spec}: {checkpoint.folder / 'config.json'}"
        self.dimension: int = vector_length(self._where, self._config) or self._kind.width
        self.sampling_rate: int = sampling_rate(checkpoint) or SAMPLING_RATE

    @property
    def fingerprint(self) -> str:
        """Changes with the files of the checkpoint, the dtype and the way items are prepared."""
        return fingerprint(
            {
                "recipe": "hf-1",
                "checkpoint": self._checkpoint.identity,
                "dtype": self.dtype,
                "trust_remote_code": self._trusted,
                "images": "pil",
                "padded": self._kind.padded,
                "attention": self._kind.attention,
                "sound": "windows drawn with seed 0",
            }
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Late fusion, what becomes of a video and of long sound, and that instructions are not used."""
        takes = self._kind.takes
        notes = ["composed items: late fusion, the normalised sum of the parts", "instructions are not used"]
        if "video" in takes:
            notes.append(f"video: {self._clip_frames} frames, evenly chosen or repeated from those given")
            notes.append("text: without the prompts that X-CLIP makes from each video")
        elif "image" in takes:
            notes.append("video: the mean of its frames' unit vectors")
        if "audio" in takes:
            notes.append(
                "sound longer than the model takes: windows at fixed places, where the library draws them at random"
            )
        return tuple(notes)

    def supports(self, modalities: Set[str]) -> bool:
        """True for every combination of the parts that the model has an encoder for; frames count as pictures."""
        takes = self._kind.takes | ({"video"} if "image" in self._kind.takes else frozenset())
        return bool(modalities) and modalities <= takes

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Encoded:
        """Vectors in the model's dtype, shape (len(items), dimension). The role changes nothing."""
        present = items[0].modalities
        if not self.supports(present):
            raise UserError(
                f"{self._spec}: item {items[0].id} has {' and '.join(sorted(present))}, which the model lacks"
            )
        network, cut = self._network, [0] * len(items)
        parts = []
        with exact_arithmetic():
            if "text" in present:
                features, cut = network.texts([item.text or "" for item in items])
                parts.append(features)
            if "image" in present:
                parts.append(network.images([item.image for item in items]))
            if "video" in present:
                parts.append(network.videos([item.video for item in items if item.video is not None]))
            if "audio" in present:
                parts.append(network.sounds([item.audio for item in items if item.audio is not None]))
            return Encoded(as_vectors(late_fusion(parts)), tokens_cut=cut if "text" in present else ())

    @property
    def _clip_frames(self) -> int:
        return whole_number(self._where, self._config, "vision_config", "num_frames") or CLIP_FRAMES

    @cached_property
    def _network(self) -> _Network:
        check_device(self._device)
        library = require("transformers", EXTRA)
        check_safetensors(self._spec, self._checkpoint.folder)
        folder = str(self._checkpoint.folder)
        trusted = {"local_files_only": True, "trust_remote_code": self._trusted}
        with loading(self._spec, self._checkpoint.folder):
            dtype = getattr(require("torch", EXTRA), self.dtype)
            architecture = getattr(library, BLIP_RETRIEVAL) if self._kind is _BLIP_RETRIEVAL else library.AutoModel
            model, report = architecture.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                attn_implementation=self._kind.attention,
                **trusted,
            )
            # With or without torchvision, pictures are prepared by the same code.
            backend = {"backend": "pil"} if "audio" not in self._kind.takes else {}
            processor = library.AutoProcessor.from_pretrained(folder, **trusted, **backend)
        if lacking := sorted(report["missing_keys"]):
            raise UserError(
                f"{self._spec}: {self._checkpoint.folder} lacks {len(lacking)} weights of {type(model).__name__}, the first"
                f" {lacking[0]}, which would be random: name a checkpoint of the whole dual encoder"
            )
        return _Network(model.eval().to(self._device), processor, self._kind, self._device, self._clip_frames)


class _Network:
    """The loaded model with its processor."""

    def __init__(self, model: Any, processor: Any, kind: Kind, device: str, clip_frames: int) -> None:
        self._torch = require("torch", EXTRA)
        self._model, self._processor, self._kind = model, processor, kind
        self._device, self._dtype = device, next(model.parameters()).dtype
        self._clip_frames = clip_frames
        self._limit = self._token_limit()

    def _token_limit(self) -> int:
        """The most tokens of a text: the least of what the tokenizer, the positions and the training allow."""
        config = getattr(self._model.config, "text_config", self._model.config)
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and (self._kind.offset or config.model_type in ROBERTAS):
            positions -= (config.pad_token_id or 0) + 1
        limits = (self._processor.tokenizer.model_max_length, positions, self._kind.padded)
        return min(limit for limit in limits if limit is not None)

    def texts(self, texts: Sequence[str]) -> tuple[Any, list[int]]:
        """Features of shape (len(texts), d), and the tokens that each text lost."""
        untruncated = self._processor.tokenizer(list(texts), verbose=False)["input_ids"]
        cut = [max(0, len(tokens) - self._limit) for tokens in untruncated]
        inputs = self._processor(
            text=list(texts),
            padding="max_length" if self._kind.padded else "longest",
            truncation=True,
            max_length=self._limit,
            return_tensors="pt",
        )
        return self._features("text", inputs), cut

    def images(self, images: Sequence[Any]) -> Any:
        """Features of shape (len(images), d)."""
        passes = [images[start : start + FRAMES_AT_ONCE] for start in range(0, len(images), FRAMES_AT_ONCE)]
        prepare = self._processor
        return self._torch.cat(
            [self._features("image", prepare(images=list(some), return_tensors="pt")) for some in passes]
        )

    def videos(self, videos: Sequence[Frames]) -> Any:
        """Features of shape (len(videos), d): of clips, or the means of the frames' unit vectors."""
        if "video" not in self._kind.takes:
            frames = [frame for video in videos for frame in pictures(video.pixels)]
            return frame_means(self.images(frames), [len(video.pixels) for video in videos])
        return self._torch.cat([self._clip(video) for video in videos])

    def _clip(self, video: Frames) -> Any:
        frames = list(pictures(video.pixels[evenly(len(video.pixels), self._clip_frames)]))
        pixels = self._processor.image_processor(images=frames, return_tensors="pt")["pixel_values"]
        return self._features("video", {"pixel_values": pixels.reshape(1, len(frames), *pixels.shape[-3:])})

    def sounds(self, sounds: Sequence[Samples]) -> Any:
        """Features of shape (len(sounds), d); each sound is prepared alone, so that its vector depends on no other."""
        prepared = [self._sound(sound) for sound in sounds]
        return self._features("audio", {name: self._torch.cat([one[name] for one in prepared]) for name in prepared[0]})

    def _sound(self, sound: Samples) -> dict[str, Any]:
        extractor = self._processor.feature_extractor
        with fixed_draws():
            inputs = dict(extractor(sound.values, sampling_rate=sound.rate, return_tensors="pt"))
        if "is_longer" in inputs:
            # The library marks one of a batch of short sounds as long, at random.
            longer = len(sound.values) // extractor.hop_length > extractor.nb_max_samples // extractor.hop_length
            inputs["is_longer"] = self._torch.tensor([[longer]])
        return inputs

    def _features(self, part: str, inputs: Mapping[str, Any]) -> Any:
        """What the model's method for this part gives, shape (n, d)."""
        if self._kind is _BLIP_RETRIEVAL:
            return self._blip_features(part, inputs)
        method = getattr(self._model, f"get_{part}_features")
        taken = inspect.signature(method).parameters
        output = method(**{name: self._placed(value) for name, value in inputs.items() if name in taken})
        features = output if self._torch.is_tensor(output) else output.pooler_output
        # FLAVA projects every token; the first stands for the whole.
        return features[:, 0] if features.ndim == 3 else features

    def _blip_features(self, part: str, inputs: Mapping[str, Any]) -> Any:
        """The features that the model for retrieval, which has no method for them, compares."""
        model = self._model
        if part == "image":
            return model.vision_proj(model.vision_model(self._placed(inputs["pixel_values"])).last_hidden_state[:, 0])
        tokens = {name: self._placed(inputs[name]) for name in ("input_ids", "attention_mask")}
        return model.text_proj(model.text_encoder(**tokens).last_hidden_state[:, 0])

    def _placed(self, tensor: Any) -> Any:
        return tensor.to(self._device, self._dtype if tensor.is_floating_point() else None)


def load(name: str, options: ModelOptions) -> DualEncoder:
    """``hf:FOLDER`` or ``hf:owner/repository[@revision]``; UserError where it is no dual encoder."""
    spec = f"hf:{name}"
    options.only(spec, *ARGUMENTS, dtype=True, revision=True)
    return DualEncoder(spec, find_checkpoint("hf", name, options.revision), options)


def _config(spec: str, checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.json("config.json")
    if not config:
        raise UserError(f"{spec}: {checkpoint.folder} has no config.json: name the folder or repository of a model")
    return config


def _kind(spec: str, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Kind:
    kind = find_kind(config)
    if kind is None:
        cure = (
            "st: takes it, as it has a modules.json"
            if checkpoint.has("modules.json")
            else "vlm: and st: take other models"
        )
        raise UserError(
            f"{spec}: model_type {config.get('model_type')} in {checkpoint.folder / 'config.json'} is no dual encoder; those are"
            f" {', '.join(DUAL_ENCODERS)}; {cure}"
        )
    return kind


def find_kind(config: Mapping[str, Any]) -> Kind | None:
    """What a config.json says of a dual encoder, None where it is of another model."""
    if config.get("architectures") == [BLIP_RETRIEVAL]:
        return _BLIP_RETRIEVAL
    return DUAL_ENCODERS.get(str(config.get("model_type")))


def vector_length(where: str, config: Mapping[str, Any]) -> int | None:
    """The length of a dual encoder's vectors, from its config.json, the file that ``where`` names in errors; None for others."""
    kind = find_kind(config)
    return None if kind is None else whole_number(where, config, *kind.dimension) or kind.width


def whole_number(where: str, config: Mapping[str, Any], *path: str) -> int | None:
    """The number of 1 or more at this path of config.json, None where there is none; UserError for anything else."""
    value: Any = config
    for name in path:
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {'.'.join(path)} cannot be read: the file is damaged; fetch it again")
        value = value.get(name, {} if name != path[-1] else None)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"{where}: {'.'.join(path)} is {value!r}, not a whole number: fetch the file again")
    return value


def sampling_rate(checkpoint: Checkpoint, folder: str = "") -> int | None:
    """Samples a second that the feature extractor in a folder of the checkpoint takes, None where there is none."""
    together = checkpoint.json(str(PurePosixPath(folder) / "processor_config.json")).get("feature_extractor")
    alone = checkpoint.json(str(PurePosixPath(folder) / "preprocessor_config.json"))
    rate = (together if isinstance(together, dict) else alone).get("sampling_rate")
    return rate if type(rate) is int and rate > 0 else None


def evenly(frames: int, wanted: int) -> NDArray[np.int64]:
    """Numbers of ``wanted`` of so many frames, evenly from the first to the last, repeated where there are fewer."""
    return np.linspace(0, frames - 1, wanted).round().astype(np.int64)


def pictures(pixels: NDArray[np.uint8]) -> Iterable[Any]:
    """Frames, uint8 RGB of shape (n, height, width, 3), as pictures."""
    pil = require("PIL.Image", EXTRA)
    return (pil.fromarray(frame) for frame in pixels)
