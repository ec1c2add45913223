"""Models of sentence-transformers: one vector for an item, or, of a MultiVectorEncoder, one for each token.

Sources:
    Reimers and Gurevych, Sentence-BERT, EMNLP 2019.
    Late interaction: Khattab and Zaharia, ColBERT, SIGIR 2020.
    Late fusion of composed items: the score fusion of UniIR; Wei et al., ECCV 2024.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.models.base import Encoded, ModelOptions, Role
from omnirecall.models.checkpoint import Checkpoint, find_checkpoint
from omnirecall.models.dual_encoder import pictures, sampling_rate, vector_length, whole_number
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
from omnirecall.ranking import Ragged

if TYPE_CHECKING:
    from omnirecall.media.types import DecodedItem, Frames

PARTS = ("video", "image", "audio", "text")
"""The order of an item's parts in a composed input."""
LATE = frozenset({"MultiVectorEncoder", "ColBERT"})
LIBRARY = "sentence_transformers."
ROUTERS = frozenset({"Router", "Asym"})
BACKBONES = frozenset({"Transformer", "CLIPModel"})
WEIGHTED = BACKBONES | {
    "Dense",
    "StaticEmbedding",
    "LayerNorm",
    "LSTM",
    "CNN",
    "WeightedLayerPooling",
    "WordEmbeddings",
}
BACKBONE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
POOLINGS = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
ROLE_PROMPTS: Mapping[Role, tuple[str, ...]] = MappingProxyType(
    {"query": ("query",), "candidate": ("document", "passage", "corpus")}
)
TASKS: Mapping[Role, str] = MappingProxyType({"query": "query", "candidate": "document"})
"""The library's word for a role, by which it chooses routes, lengths and masks."""
SAMPLING_RATE = 16_000
CLOCKLESS_RATE = 2.0
"""Frames a second of a video that has no clock."""
ARGUMENTS = (
    "query_prompt",
    "candidate_prompt",
    "query_task",
    "candidate_task",
    "template",
    "instructed",
    "max_length",
    "dimension",
    "modalities",
    "trust_remote_code",
)


class _Listed(msgspec.Struct):
    type: str
    path: str
    kwargs: list[str] = []


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a model.

    ``kind``: its class, without the library's name. ``folder``: within the checkpoint. ``by_task``: it may treat queries and
    candidates differently.
    """

    kind: str
    folder: str
    by_task: bool = False

    def file(self, name: str) -> str:
        """A file of the module, as the checkpoint names it."""
        return str(PurePosixPath(self.folder) / name)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the checkpoint's files say of a model.

    ``routes``: the modules of the model, or, of a router, those of each of its routes. ``inputs``: what the model takes: a part, or
    several together. ``message``: a chat template puts any of its parts together. ``late``: a vector for each token.
    ``takes_task``: the library is told the role. ``by_task``: which may change the vector.
    """

    routes: tuple[tuple[Module, ...], ...]
    inputs: frozenset[frozenset[str]]
    message: bool
    late: bool
    takes_task: bool
    by_task: bool

    @property
    def first_modules(self) -> tuple[Module, ...]:
        """Those that take the items."""
        return tuple(route[0] for route in self.routes)

    @property
    def parts(self) -> frozenset[str]:
        """The parts that the model takes, alone or with others."""
        return frozenset(itertools.chain.from_iterable(self.inputs))

    @property
    def dual(self) -> bool:
        """Whether each part has an encoder of its own, so that those of an item are to be summed."""
        return not self.message and not self.late and len(self.parts) > 1

    @property
    def backend(self) -> str | None:
        """What prepares pictures: Pillow, even where torchvision is; for models of video torchvision, as nothing else takes one."""
        if "video" in self.parts:
            return "torchvision"
        return "pil" if "image" in self.parts else None

    def native(self, modalities: Set[str]) -> bool:
        """Whether the model itself takes an item with exactly these parts."""
        return frozenset(modalities) in self.inputs or (self.message and modalities <= self.parts)


@dataclass(frozen=True, slots=True)
class Wording:
    """How instructions and roles reach the model.

    ``prompts``: by role, before the text, or the system turn of a chat template. ``tasks``: the library's word for the role.
    ``template``: of {instruction} and {text}, for an item that has both, in place of its prompt; "" for none. ``instructed``: whose
    instructions are used, ``query`` or ``both``.
    """

    prompts: Mapping[Role, str]
    tasks: Mapping[Role, str]
    template: str
    instructed: str

    def said(self, item: DecodedItem, role: Role, message: bool) -> tuple[str, str | None]:
        """The prompt and the text of an item; ``message``: the model has a system turn."""
        instruction = item.instruction.strip() if role == "query" or self.instructed == "both" else ""
        if instruction and self.template and item.text is not None:
            values = {"instruction": instruction, "text": item.text}
            return "", re.sub(r"\{(instruction|text)\}", lambda match: values[match[1]], self.template)
        if instruction and message and not self.template:
            return instruction, item.text
        return self.prompts[role], item.text


class SentenceTransformers:
    """A model of sentence-transformers, an ``Embedder``.

    Vectors are what the model's modules give, in its dtype, normalised where it has a module for that. Where it takes several
    parts together, a composed item is one input; where each part has its own encoder, it is the normalised sum of its parts' unit
    vectors, and a video, if only pictures are taken, the mean of its frames' unit vectors.
    """

    media_tokens: Mapping[str, str] = MappingProxyType({})

    def __init__(self, spec: str, checkpoint: Checkpoint, options: ModelOptions) -> None:
        self._spec, self._checkpoint = spec, checkpoint
        self._trusted = options.flag("trust_remote_code")
        files = _Files(spec, checkpoint, self._trusted)
        self._layout = files.layout(options)
        self._wording = read_wording(files, options)
        self._max_length = options.number("max_length")
        self._device = options.device or "cpu"
        self.name: str = checkpoint.name
        self.dtype: str = options.dtype or config_dtype(
            checkpoint.json(self._layout.first_modules[0].file("config.json"))
        )
        self.dimension: int = files.dimension(self._layout, options)
        self.late_interaction: bool = self._layout.late
        self.sampling_rate: int = files.sampling_rate(self._layout)

    @property
    def fingerprint(self) -> str:
        """Changes with the files of the checkpoint, the dtype and the arguments."""
        return fingerprint(
            {
                "recipe": "st-1",
                "checkpoint": self._checkpoint.identity,
                "dtype": self.dtype,
                "wording": asdict(self._wording),
                "max_length": self._max_length,
                "trust_remote_code": self._trusted,
                "backend": self._layout.backend,
                "order": PARTS,
            }
        )

    @property
    def symmetric(self) -> bool:
        """True where neither modules, prompts nor instructions differ by role."""
        wording = self._wording
        alike = len(set(wording.prompts.values())) == 1
        instructed = bool(wording.template) or self._layout.message
        by_task = self._layout.by_task and len(set(wording.tasks.values())) > 1
        return alike and not by_task and (not instructed or wording.instructed == "both")

    @property
    def default_prompt(self) -> str:
        """``card`` where each part has its own encoder, as such models know no instructions, else ``model``."""
        return "card" if self._layout.dual else "model"

    @property
    def notes(self) -> tuple[str, ...]:
        """The prompt of each role, what becomes of instructions, and late fusion."""
        wording = self._wording
        notes = [f"prompt of each {role}: {json.dumps(prompt)}" for role, prompt in wording.prompts.items() if prompt]
        whose = "instructions" if wording.instructed == "both" else "instructions of queries"
        if wording.template:
            notes.append(f"{whose}: by the template {json.dumps(wording.template)}")
        else:
            notes.append(f"{whose}: in the system turn" if self._layout.message else "instructions are not used")
        if self._layout.dual:
            notes.append("composed items: late fusion, the normalised sum of the parts")
        if self._by_frames("video"):
            notes.append("video: the mean of its frames' unit vectors")
        return tuple(notes)

    def supports(self, modalities: Set[str]) -> bool:
        """Whether the model takes these parts together, or, where each has its own encoder, each of them."""
        if not modalities:
            return False
        alone = self._layout.dual and all(self._layout.native({part}) or self._by_frames(part) for part in modalities)
        return alone or self._layout.native(modalities)

    def _by_frames(self, part: str) -> bool:
        layout = self._layout
        return part == "video" and layout.dual and layout.native({"image"}) and not layout.native({"video"})

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Encoded:
        """Vectors in the model's dtype, shape (len(items), dimension), or Ragged with one for each token that is scored."""
        present = items[0].modalities
        if not self.supports(present):
            raise UserError(
                f"{self._spec}: item {items[0].id} has {' and '.join(sorted(present))}, which the model lacks"
            )
        said = [self._wording.said(item, role, self._layout.message) for item in items]
        prompts, task = [prompt for prompt, _ in said], self._wording.tasks[role] if self._layout.takes_task else None
        given = [
            {part: text if part == "text" else getattr(item, part) for part in PARTS if part in present}
            for item, (_, text) in zip(items, said, strict=True)
        ]
        with exact_arithmetic():
            if self._layout.native(present):
                rows, cut = self._network.rows(given, prompts, task)
                return Encoded(_vectors(rows, self._layout.late), tokens_cut=cut if "text" in present else ())
            parts, cut = [], []
            for part in given[0]:
                if self._by_frames(part):
                    parts.append(
                        self._network.frame_means([item.video for item in items if item.video is not None], task)
                    )
                    continue
                rows, lost = self._network.rows([{part: one[part]} for one in given], prompts, task)
                parts.append(_stacked(rows))
                cut = lost if part == "text" else cut
            return Encoded(as_vectors(late_fusion(parts)), tokens_cut=cut)

    @cached_property
    def _network(self) -> _Network:
        check_device(self._device)
        library = require("sentence_transformers", EXTRA)
        checkpoint, layout = self._checkpoint, self._layout
        for module in itertools.chain.from_iterable(layout.routes):
            if module.kind in WEIGHTED:
                check_safetensors(self._spec, checkpoint.folder / module.folder)
        if layout.backend == "torchvision":
            _check_torchvision(self._spec)
        kind = library.MultiVectorEncoder if layout.late else library.SentenceTransformer
        with loading(self._spec, checkpoint.folder):
            dtype = getattr(require("torch", EXTRA), self.dtype)
            model = kind(
                str(checkpoint.folder),
                device=self._device,
                local_files_only=True,
                trust_remote_code=self._trusted,
                model_kwargs={"dtype": dtype, "use_safetensors": True},
                processor_kwargs={"backend": layout.backend} if layout.backend else None,
            )
        for weights in model.parameters():
            if weights.is_floating_point() and weights.dtype != dtype:
                weights.data = weights.data.to(dtype)
        if self._max_length:
            model.max_seq_length = self._max_length
        alone = checkpoint.json(layout.first_modules[0].file("config.json")).get("model_type") == "clap"
        return _Network(self._spec, model.eval(), layout, alone)


def _check_torchvision(spec: str) -> None:
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        raise UserError(
            f"{spec}: the library prepares video with torchvision, which is not installed: install the build that belongs to your"
            " torch, or use vlm: if it knows the model"
        ) from None


class _Network:
    """The loaded model. ``sounds_alone``: its feature extractor draws windows, and for a batch together."""

    def __init__(self, spec: str, model: Any, layout: Layout, sounds_alone: bool) -> None:
        self._spec, self._model, self._layout = spec, model, layout
        self._sounds_alone = sounds_alone
        self._limit = min((_token_limit(module) for module in _first_modules(model)), default=math.inf)

    def rows(
        self, given: Sequence[Mapping[str, Any]], prompts: Sequence[str], task: str | None
    ) -> tuple[list[Any], list[int]]:
        """A tensor for each item, of shape (d,), or (tokens, d) under late interaction, and the tokens that it lost.

        ``given``: the parts of each item, the same for all.
        """
        inputs = [self._input(parts) for parts in given]
        rows: list[Any] = [None] * len(inputs)
        cut = [0] * len(inputs)
        for prompt, where in _together(prompts, alone=self._sounds_alone and "audio" in given[0]):
            some = [inputs[row] for row in where]
            with fixed_draws():
                found, lost = self._encode(some, prompt, task)
            for row, vectors, tokens in zip(where, found, lost, strict=True):
                rows[row], cut[row] = vectors, tokens
        return rows, cut

    def frame_means(self, videos: Sequence[Frames], task: str | None) -> Any:
        """The mean of the unit vectors of each video's frames, shape (len(videos), d)."""
        frames = [{"image": frame} for video in videos for frame in pictures(video.pixels)]
        passes = [frames[start : start + FRAMES_AT_ONCE] for start in range(0, len(frames), FRAMES_AT_ONCE)]
        rows = [row for some in passes for row in self.rows(some, [""] * len(some), task)[0]]
        return frame_means(_stacked(rows), [len(video.pixels) for video in videos])

    def _encode(self, inputs: list[Any], prompt: str, task: str | None) -> tuple[Sequence[Any], list[int]]:
        options: dict[str, Any] = {"prompt": prompt, "batch_size": len(inputs), "show_progress_bar": False}
        options |= (
            {"processing_kwargs": {"video": {"do_sample_frames": False}}} if "video" in self._layout.parts else {}
        )
        options |= {"task": task} if task is not None else {}
        options |= {} if self._layout.late else {"convert_to_tensor": True}
        longest = _Longest()
        hook = self._model[0].register_forward_pre_hook(longest)
        try:
            rows = self._model.encode(inputs, **options)
        except ValueError as error:
            role, what = f" as a {task}" if task else "", str(error).split("\n")[0].rstrip(".")
            raise UserError(f"{self._spec}: the model cannot embed such an item{role} ({what})") from error
        finally:
            hook.remove()
        full = longest.tokens >= self._limit
        return rows, [self._cut(one, prompt, task) for one in inputs] if full else [0] * len(inputs)

    def _cut(self, one: Any, prompt: str, task: str | None) -> int:
        """How many tokens the tokenizer leaves out of one input."""

        def tokens(**options: Any) -> int:
            features = self._model.preprocess([one], prompt=prompt, **({"task": task} if task else {}), **options)
            return int(features["attention_mask"].sum())

        whole = {"text": {"truncation": False, "max_length": None, "verbose": False}}
        return max(0, tokens(processing_kwargs=whole) - tokens())

    def _input(self, parts: Mapping[str, Any]) -> Any:
        """An item as the library takes it."""
        forms = {part: _FORMS[part](value) for part, value in parts.items()}
        if len(forms) > 1:
            return forms
        ((part, form),) = forms.items()
        if part != "text" or self._layout.parts == {"text"}:
            return form
        # The library takes a bare text that looks like the address or path of a medium for that medium, and reads it.
        if all(module.kind in BACKBONES for module in self._layout.first_modules):
            return forms
        if require("sentence_transformers.base.modality", EXTRA).infer_modality(form) != "text":
            raise UserError(
                f"{self._spec}: the model would take the text {form[:80]!r} for a medium: leave that item out"
            )
        return form


class _Longest:
    """Watches what goes into a model: the tokens of the longest item."""

    tokens: int = 0

    def __call__(self, module: Any, inputs: tuple[Mapping[str, Any]]) -> None:
        mask = inputs[0].get("attention_mask")
        if mask is not None:
            self.tokens = max(self.tokens, int(mask.sum(-1).max()))


def _first_modules(model: Any) -> list[Any]:
    routes = getattr(model[0], "sub_modules", None)
    return [model[0]] if routes is None else [route[0] for route in routes.values()]


def _token_limit(module: Any) -> float:
    """The least number of tokens at which a module may cut a text."""
    settings = getattr(module, "processing_kwargs", {}).get("text", {})
    limits = [getattr(module, name, None) for name in ("max_seq_length", "query_length", "document_length")]
    limits += [settings.get("max_length"), (getattr(module, "query_expansion", None) or {}).get("length")]
    return min((limit for limit in limits if limit is not None), default=math.inf)


def _together(prompts: Sequence[str], alone: bool) -> list[tuple[str, list[int]]]:
    """Each prompt with the rows that have it; each row by itself if they must be ``alone``."""
    if alone:
        return [(prompt, [row]) for row, prompt in enumerate(prompts)]
    rows: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(prompt, []).append(row)
    return list(rows.items())


def _video(frames: Frames) -> dict[str, Any]:
    """Frames with the clock and the places that they have in the file."""
    times, indices = frames.times, frames.indices
    clocked = len(times) > 1 and len(indices) == len(times) and bool(np.isfinite(times).all()) and times[-1] > times[0]
    places = [int(index) for index in indices] if clocked else list(range(len(frames.pixels)))
    rate = float((indices[-1] - indices[0]) / (times[-1] - times[0])) if clocked else CLOCKLESS_RATE
    total = max(frames.decodable, places[-1] + 1) if clocked else len(places)
    height, width = frames.pixels.shape[1:3]
    return {
        "array": frames.pixels,
        "video_metadata": {
            "total_num_frames": total,
            "fps": rate,
            "duration": total / rate,
            "frames_indices": places,
            "height": height,
            "width": width,
        },
    }


_FORMS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "text": lambda text: text,
        "image": lambda image: image,
        "video": _video,
        "audio": lambda sound: {"array": sound.values, "sampling_rate": sound.rate},
    }
)
"""Part to the form in which the library takes it."""


def _stacked(rows: Sequence[Any]) -> Any:
    return require("torch", EXTRA).stack(list(rows))


def _vectors(rows: Sequence[Any], late: bool) -> Any:
    if not late:
        return as_vectors(_stacked(rows))
    values = as_vectors(require("torch", EXTRA).cat(list(rows)))
    return Ragged(values, np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64))


class _Files:
    """The JSON files of a checkpoint, which say all that must be known before the library is loaded."""

    def __init__(self, spec: str, checkpoint: Checkpoint, trusted: bool) -> None:
        self.spec, self._checkpoint, self._trusted = spec, checkpoint, trusted
        self.settings = checkpoint.json("config_sentence_transformers.json")

    def damaged(self, file: str, what: str) -> UserError:
        """The error for a file that does not say what it must."""
        return UserError(f"{self.spec}: {self._checkpoint.folder / file}: {what}: fetch the file again")

    def layout(self, options: ModelOptions) -> Layout:
        """What the model is made of and takes."""
        kind = self.settings.get("model_type", "SentenceTransformer")
        if kind != "SentenceTransformer" and kind not in LATE:
            raise UserError(
                f"{self.spec}: {self._checkpoint.folder} holds a {kind}, whose output is no dense vector for each item: name a"
                " SentenceTransformer or a MultiVectorEncoder"
            )
        if self._checkpoint.has("adapter_config.json"):
            raise UserError(
                f"{self.spec}: {self._checkpoint.folder} holds an adapter, not a whole model: merge it into its base model"
                " (merge_and_unload of peft), save that, and name its folder"
            )
        modules = self._modules()
        router = modules[0].kind in ROUTERS
        routes, tasks = self._routes(modules) if router else ((modules,), False)
        inputs = self._inputs(routes, options)
        return Layout(
            routes=routes,
            inputs=inputs - {frozenset({"message"})},
            message=frozenset({"message"}) in inputs,
            late=kind in LATE,
            takes_task=tasks or not router,
            by_task=tasks or kind in LATE or any(self._reads_task(module) for route in routes for module in route),
        )

    def _modules(self) -> tuple[Module, ...]:
        path = self._checkpoint.folder / "modules.json"
        if not path.is_file():
            raise UserError(
                f"{self.spec}: {self._checkpoint.folder} has no modules.json, so it is no model of sentence-transformers: use"
                " hf: for a dual encoder of transformers, or vlm: for a vision-language model"
            )
        try:
            listed = msgspec.json.decode(path.read_bytes(), type=list[_Listed])
        except (OSError, msgspec.DecodeError) as error:
            raise self.damaged("modules.json", f"cannot be read as a list of modules ({error})") from None
        if not listed:
            raise self.damaged("modules.json", "lists no modules")
        return tuple(self._module("modules.json", one.type, one.path, bool(one.kwargs)) for one in listed)

    def _module(self, file: str, kind: str, folder: str, by_task: bool = False) -> Module:
        if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
            raise self.damaged(file, f"names the folder {folder}, which is outside of the checkpoint")
        if kind.startswith(LIBRARY):
            return Module(kind.rpartition(".")[2], folder, by_task)
        if self.settings.get("model_type") == "ColBERT" and kind.startswith("pylate."):
            return Module(kind.rpartition(".")[2], folder, by_task)
        if not self._trusted:
            raise UserError(
                f"{self.spec}: {self._checkpoint.folder / file} names {kind}, which is code of the checkpoint's authors: read it,"
                " and if you trust it add --model-arg trust_remote_code=true"
            )
        return Module(kind, folder, by_task=True)

    def _routes(self, modules: tuple[Module, ...]) -> tuple[tuple[tuple[Module, ...], ...], bool]:
        """The modules of each route, with those that follow the router, and whether a role chooses the route."""
        router, *rest = modules
        file = router.file("router_config.json")
        if not self._checkpoint.has(file):
            file = router.file("config.json")
        config = self._checkpoint.json(file)
        try:
            kinds, structure, parameters = config["types"], config["structure"], config["parameters"]
            routes = tuple(
                (*(self._module(file, kinds[name], router.file(name)) for name in names), *rest)
                for names in structure.values()
            )
            chosen = [ast.literal_eval(key)[0] for key in parameters.get("route_mappings") or {}]
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, SyntaxError):
            raise self.damaged(file, "does not describe the routes of a router") from None
        if not routes or not all(route[0].kind for route in routes):
            raise self.damaged(file, "has no routes")
        return routes, bool(set(TASKS.values()) & set(structure)) or any(task is not None for task in chosen)

    def _inputs(self, routes: Sequence[Sequence[Module]], options: ModelOptions) -> frozenset[frozenset[str]]:
        if "modalities" in options.args:
            chosen = options.args["modalities"].split(",")
            if wrong := [one for one in chosen if not set(one.split("+")) <= {*PARTS, "message"}]:
                raise UserError(
                    f"--model-arg modalities: {wrong[0]} is none of text, image, video, audio, message; write parts with commas"
                    " between, and + between those that go together"
                )
            return frozenset(frozenset(one.split("+")) for one in chosen)
        return frozenset(itertools.chain.from_iterable(self._taken(route[0]) for route in routes))

    def _taken(self, first: Module) -> set[frozenset[str]]:
        """What a first module takes; files older than the library's modality_config are those of text models."""
        listed = self._backbone(first).get("modality_config")
        if listed is None:
            names = ["text", "image"] if first.kind == "CLIPModel" else ["text"]
        elif isinstance(listed, dict):
            names = list(listed)
        else:
            raise self.damaged(first.file(BACKBONE_CONFIGS[0]), "its modality_config is no object")
        return {frozenset(name.split("+")) for name in names}

    def _backbone(self, module: Module) -> dict[str, Any]:
        """The settings of a module that holds a model of transformers."""
        if module.kind not in BACKBONES and module.kind.startswith(LIBRARY):
            return {}
        return next(
            (
                self._checkpoint.json(module.file(name))
                for name in BACKBONE_CONFIGS
                if self._checkpoint.has(module.file(name))
            ),
            {},
        )

    def _reads_task(self, module: Module) -> bool:
        """Whether a module may treat queries and candidates differently."""
        settings = self._backbone(module)
        lengths = any(settings.get(name) is not None for name in ("query_length", "document_length", "query_expansion"))
        return module.by_task or module.kind in ROUTERS or lengths or self._template_reads_task(module)

    def _template_reads_task(self, module: Module) -> bool:
        if module.kind not in BACKBONES:
            return False
        file = self._checkpoint.folder / module.file("chat_template.jinja")
        texts = [file.read_text(encoding="utf-8", errors="replace")] if file.is_file() else []
        texts += [
            json.dumps(self._checkpoint.json(module.file(name)).get("chat_template"))
            for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json")
        ]
        return any(re.search(r"\btask\b", text) for text in texts)

    def dimension(self, layout: Layout, options: ModelOptions) -> int:
        """The length of a vector; UserError where the files do not say it and no argument does."""
        given = options.number("dimension")
        if given is not None:
            return given
        width = self._last_width(layout.routes[0])
        if width is None:
            raise UserError(
                f"{self.spec}: the files in {self._checkpoint.folder} do not say how long the vectors are: add --model-arg"
                " dimension=N"
            )
        kept = self._number("config_sentence_transformers.json", self.settings, "truncate_dim")
        return min(width, kept or width)

    def _last_width(self, modules: Sequence[Module]) -> int | None:
        widths = [width for module in modules if (width := self._width(module))]
        return widths[-1] if widths else None

    def _number(self, file: str, config: Mapping[str, Any], *path: str) -> int | None:
        return whole_number(f"{self.spec}: {self._checkpoint.folder / file}", config, *path)

    def _width(self, module: Module) -> int | None:
        """The length of the vectors that a module makes, None where it leaves their length as it is."""
        if module.kind in BACKBONES:
            return self._backbone_width(module)
        if module.kind in ROUTERS:
            return self._last_width(self._routes((module,))[0][0])
        if module.kind == "StaticEmbedding":
            return self._static_width(module)
        file = module.file("config.json")
        config = self._checkpoint.json(file)
        if module.kind == "Dense":
            return self._number(file, config, "out_features")
        if module.kind == "Pooling":
            tokens = self._number(file, config, "embedding_dimension") or self._number(
                file, config, "word_embedding_dimension"
            )
            modes = config.get("pooling_mode") or [name for name in POOLINGS if config.get(f"pooling_mode_{name}")]
            return tokens and tokens * (len(modes) if isinstance(modes, list) and modes else 1)
        return None

    def _backbone_width(self, module: Module) -> int | None:
        file = module.file("config.json")
        config = self._checkpoint.json(file)
        settings = self._backbone(module)
        if settings.get("module_output_name") == "sentence_embedding" or module.kind == "CLIPModel":
            if found := vector_length(f"{self.spec}: {self._checkpoint.folder / file}", config):
                return found
            if found := self._number(file, config, "projection_dim"):
                return found
        if settings.get("transformer_task") == "retrieval" and (found := self._number(file, config, "embedding_dim")):
            return found
        paths = (("hidden_size",), ("text_config", "hidden_size"), ("d_model",), ("dim",))
        return next((found for path in paths if (found := self._number(file, config, *path))), None)

    def _static_width(self, module: Module) -> int | None:
        """The second side of the one matrix of a StaticEmbedding, from the head of its weights' file."""
        file = module.file("model.safetensors")
        if not self._checkpoint.has(file):
            return None
        try:
            with (self._checkpoint.folder / file).open("rb") as weights:
                head = msgspec.json.decode(weights.read(int.from_bytes(weights.read(8), "little")))
            return next(int(tensor["shape"][1]) for name, tensor in head.items() if name != "__metadata__")
        except (
            OSError,
            OverflowError,
            MemoryError,
            msgspec.DecodeError,
            StopIteration,
            LookupError,
            TypeError,
            AttributeError,
        ):
            raise self.damaged(file, "is no file of safetensors with a matrix") from None

    def sampling_rate(self, layout: Layout) -> int:
        """Samples a second of the feature extractor of the first module that has one."""
        rates = (sampling_rate(self._checkpoint, module.folder) for module in layout.first_modules)
        return next((rate for rate in rates if rate), SAMPLING_RATE)


def read_wording(files: _Files, options: ModelOptions) -> Wording:
    """Prompts by role, from the arguments or the checkpoint, and the template; UserError for one that cannot be used.

    A role without an argument has the checkpoint's first prompt of its names (query; document, passage, corpus), else the
    checkpoint's default prompt, else none.
    """
    saved = files.settings.get("prompts") or {}
    default = files.settings.get("default_prompt_name")
    if not isinstance(saved, dict) or not all(isinstance(text, str | None) for text in saved.values()):
        raise files.damaged("config_sentence_transformers.json", "its prompts are no object of texts")
    if default is not None and default not in saved:
        raise files.damaged(
            "config_sentence_transformers.json", f"its default prompt {default!r} is none of its prompts"
        )

    def prompt(role: Role) -> str:
        given = options.args.get(f"{role}_prompt")
        if given is not None:
            return (saved.get(given) or "") if given in saved else _lines(given)
        name = next((name for name in ROLE_PROMPTS[role] if name in saved), default)
        return (saved.get(name) or "") if name is not None else ""

    template = _lines(options.args.get("template", ""))
    if template and "{text}" not in template:
        raise UserError("--model-arg template: it must hold {text}, and {instruction} where the instruction goes")
    instructed = options.args.get("instructed", "query")
    if instructed not in ("query", "both"):
        raise UserError(f"--model-arg instructed={instructed}: write query or both")
    tasks = {role: options.args.get(f"{role}_task", TASKS[role]) for role in TASKS}
    return Wording({role: prompt(role) for role in TASKS}, tasks, template, instructed)


def _lines(text: str) -> str:
    r"""The argument with \n as the end of a line, as a shell hands it over."""
    return text.replace("\\n", "\n")


def load(name: str, options: ModelOptions) -> SentenceTransformers:
    """``st:FOLDER`` or ``st:owner/repository[@revision]``; UserError where it is no model of sentence-transformers."""
    spec = f"st:{name}"
    options.only(spec, *ARGUMENTS, dtype=True, revision=True)
    return SentenceTransformers(spec, find_checkpoint("st", name, options.revision), options)
