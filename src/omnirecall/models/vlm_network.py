"""The weights of a vision-language model, and the way from prepared items to vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.models.checkpoint import Checkpoint
from omnirecall.models.torch_parts import (
    as_vectors,
    check_device,
    check_safetensors,
    exact_arithmetic,
    loading,
)
from omnirecall.models.visual_tokens import Patches
from omnirecall.ranking import BFloat16, Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

from omnirecall.models.vlm_recipe import EXTRA, Architecture, Recipe, _body


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
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


def sound_tokens(frames: int) -> int:
    """Tokens that Qwen2.5-Omni makes of so many frames of a spectrogram: two halvings, the second without overlap."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


class Network:
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

    def embed(self, items: Sequence[Prepared]) -> NDArray[np.floating] | BFloat16 | Ragged:
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

    def _inputs(self, items: Sequence[Prepared]) -> dict[str, Any]:
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

    def _visual(self, items: Sequence[Prepared]) -> dict[str, Any]:
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

    def _clock(self, items: Sequence[Prepared]) -> dict[str, Any]:
        seconds = [second for one in items for second in one.clip_seconds]
        if not seconds or self._kind.clock in ("", "text"):
            return {}
        return {self._kind.clock: self._tensor(np.asarray(seconds, np.float32))}

    def _sound(self, items: Sequence[Prepared]) -> dict[str, Any]:
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
    with loading(spec, checkpoint.folder), quiet():
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
def quiet() -> Iterator[None]:
    """Keep transformers from printing what it reports of the weights; what matters of it becomes an error."""
    logging = require("transformers.utils.logging", EXTRA)
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
