"""Any model of mteb's registry: ``mteb:owner/name[@revision]``, at the revision that the registry pins.

mteb knows each model by a ``ModelMeta`` and embeds through ``encode(DataLoader of batches, task_metadata, prompt_type)``; a batch
is a dictionary of ``text``, ``image``, ``video`` and ``audio``. Importing mteb takes seconds, so what a run must know of a model is
remembered in the cache folder, by mteb's version.

Source: Muennighoff et al., MTEB, EACL 2023; Enevoldsen et al., MMTEB, ICLR 2025; Xiao et al., MIEB, ICCV 2025.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from omnirecall.digests import memory_path
from omnirecall.errors import UserError, require
from omnirecall.files import write_whole
from omnirecall.models.base import ModelOptions, Role
from omnirecall.protocol.items import MODALITIES
from omnirecall.ranking import BFloat16, Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnirecall.media.types import DecodedItem, Frames
    from omnirecall.models.base import Vectors

EXTRA = "mteb"
ARGS = ("dimension", "trust_remote_code", "frames", "rate", "composed", "loader")
PROMPT_TYPES = {"query": "query", "candidate": "document"}
TASK_NAME = "OmniRecall"
"""No task of mteb has this name, so a model's prompts for tasks by name stay out."""


class Known(msgspec.Struct, frozen=True):
    """What a run must know of a model, remembered from its ModelMeta. ``dimensions``: empty where mteb does not say."""

    name: str
    revision: str
    dimensions: tuple[int, ...]
    modalities: tuple[str, ...]
    kinds: tuple[str, ...]
    instructions: bool


@dataclass(eq=False)
class RegistryModel:
    """A model of mteb's registry, an ``Embedder``."""

    known: Known
    dimension: int
    version: str
    device: str | None
    shorten: bool
    trusted: bool
    frames: str
    sampling_rate: int
    composed: bool
    loader: Mapping[str, Any]
    symmetric: bool = False
    media_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """The model's name without its owner."""
        return self.known.name.rpartition("/")[2]

    @property
    def fingerprint(self) -> str:
        """The hash of name, revision, mteb's version, and the arguments that change a vector."""
        parts = [
            "mteb-1",
            self.known.name,
            self.known.revision,
            self.version,
            self.dimension,
            self.frames,
            self.sampling_rate,
            dict(self.loader),
        ]
        return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=16).hexdigest()

    @property
    def late_interaction(self) -> bool:
        """As the registry says."""
        return "late-interaction" in self.known.kinds

    @property
    def default_prompt(self) -> str:
        """``model`` where the registry says that the model takes instructions, else ``card``."""
        return "model" if self.known.instructions else "card"

    @property
    def notes(self) -> tuple[str, ...]:
        """Mteb's version, and what the registry leaves open."""
        notes = [f"through mteb {self.version}"]
        if not self.known.revision:
            notes.append("mteb pins no revision of this model, so its weights may change")
        if "video" in self.known.modalities and self.frames == "model":
            notes.append("mteb's own choice among the frames given")
        return tuple(notes)

    def supports(self, modalities: Set[str]) -> bool:
        """Any combination of the registry's modalities; one at a time under ``composed=false``."""
        fits = self.composed or len(modalities) == 1
        return bool(modalities) and modalities <= set(self.known.modalities) and fits

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Vectors:
        """What mteb's model gives: shape (len(items), dimension), or ``Ragged``; items are put to it by instruction."""
        groups: dict[str, list[int]] = {}
        for position, item in enumerate(items):
            groups.setdefault(item.instruction, []).append(position)
        rows: list[NDArray[Any]] = [np.empty(0)] * len(items)
        bfloat16 = False
        for instruction, positions in groups.items():
            given = self._encoded([items[position] for position in positions], role, instruction)
            bfloat16 = isinstance(given, BFloat16)
            vectors = np.asarray(given.bits) if isinstance(given, BFloat16) else given
            if len(vectors) != len(positions):
                raise UserError(
                    f"model {self.name}: gave {len(vectors)} vectors for {len(positions)} items beginning with"
                    f" {items[positions[0]].id}"
                )
            for position, vector in zip(positions, vectors, strict=True):
                rows[position] = vector
        if self.late_interaction:
            return _ragged(rows)
        stacked = np.stack(rows)
        return BFloat16(stacked) if bfloat16 else stacked

    def _encoded(self, items: Sequence[DecodedItem], role: Role, instruction: str) -> Any:
        from mteb.types import PromptType
        from torch.utils.data import DataLoader

        rows = Rows(items, self.frames == "model")
        loader: Any = DataLoader(rows, batch_size=len(items), collate_fn=_collated)  # type: ignore[arg-type]
        kind = PROMPT_TYPES[role]
        with warnings.catch_warnings(), self._no_remote_code():
            warnings.simplefilter("ignore")
            try:
                given = self._encode(
                    loader,
                    task_metadata=_task(sorted(rows.features), kind, instruction),
                    hf_split="test",
                    hf_subset="default",
                    prompt_type=PromptType(kind),
                    batch_size=len(items),
                    show_progress_bar=False,
                )
            except ImportError as error:
                raise UserError(f"mteb:{self.known.name}: {_one_line(error)}; install what it needs") from None
        wanted = getattr(loader.collate_fn, "target_sampling_rate", None)
        if "audio" in rows.features and wanted not in (None, self.sampling_rate):
            raise UserError(
                f"mteb:{self.known.name}: takes sound at {wanted} samples a second, not {self.sampling_rate}; pass"
                f" --model-arg rate={wanted}"
            )
        return [_array(one) for one in given] if self.late_interaction else _array(given)

    @cached_property
    def _model(self) -> Any:
        meta = _meta(self.known.name, self.known.revision)
        given: dict[str, Any] = dict(self.loader)
        if self.shorten:
            given["embed_dim"] = self.dimension
        if not self.trusted and (meta.loader_kwargs or {}).get("trust_remote_code"):
            given["trust_remote_code"] = False
        with warnings.catch_warnings(), self._no_remote_code():
            warnings.simplefilter("ignore")
            try:
                model = meta.load_model(device=self.device, **given)
            except ImportError as error:
                raise UserError(f"mteb:{self.known.name}: {_one_line(error)}") from None
            except (ValueError, TypeError, NotImplementedError, OSError) as error:
                if "trust_remote_code" in str(error) and not self.trusted:
                    raise UserError(self._remote_code()) from None
                raise UserError(f"mteb:{self.known.name}: cannot be loaded: {_one_line(error)}") from None
        if not (hasattr(model, "encode") or hasattr(model, "_encode")):
            raise UserError(f"mteb:{self.known.name}: has no encode, and so no vectors to rank by")
        return model

    @property
    def _encode(self) -> Callable[..., Any]:
        """The model's ``encode``; those late-interaction wrappers that search by themselves call it ``_encode``."""
        encode: Callable[..., Any] = getattr(self._model, "encode", None) or self._model._encode
        return encode

    def _remote_code(self) -> str:
        return (
            f"mteb:{self.known.name}: runs Python code out of its repository; read that code, and if you trust it, pass"
            " --model-arg trust_remote_code=true"
        )

    @contextmanager
    def _no_remote_code(self) -> Iterator[None]:
        """Unless the user trusts it, code out of a repository is refused at the one place where transformers fetches it.

        Many entries of the registry ask for such code themselves, so that leaving ``trust_remote_code`` out is not enough.
        """
        dynamic = require("transformers.dynamic_module_utils", EXTRA)

        def refuse(*_: object, **__: object) -> None:
            raise UserError(self._remote_code())

        fetch = dynamic.get_cached_module_file
        if not self.trusted:
            dynamic.get_cached_module_file = refuse
        try:
            yield
        finally:
            dynamic.get_cached_module_file = fetch


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Items as the rows of a data set, as mteb's own have them."""

    items: Sequence[DecodedItem]
    model_picks_frames: bool

    @property
    def features(self) -> dict[str, None]:
        """The names of the columns."""
        return {part: None for part in MODALITIES if part in self.items[0].modalities}

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.features)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> dict[str, Any]:
        item = self.items[row]
        values: dict[str, Any] = {"text": item.text, "image": item.image}
        if item.video is not None:
            values["video"] = Clip(item.video, self.model_picks_frames)
        if item.audio is not None:
            values["audio"] = {"array": item.audio.values, "sampling_rate": item.audio.rate}
        return {part: values[part] for part in self.features}


@dataclass(frozen=True, eq=False, slots=True)
class Clip:
    """Decoded frames where mteb expects a torchcodec VideoDecoder; all of them, unless the model picks."""

    video: Frames
    model_picks: bool

    @property
    def metadata(self) -> SimpleNamespace:
        """Number of frames, and seconds from the first to the end of the last."""
        times, count = self.video.times, len(self.video.pixels)
        step = float(times[-1] - times[0]) / (count - 1) if count > 1 else 1.0
        seconds = step * count
        return SimpleNamespace(num_frames=count, end_stream_seconds=seconds if np.isfinite(seconds) else float(count))

    def __len__(self) -> int:
        return len(self.video.pixels)

    def get_frames_at(self, indices: Sequence[int]) -> SimpleNamespace:
        """The frames as ``data``: a uint8 tensor of shape (frames, 3, height, width)."""
        import torch

        pixels = self.video.pixels[np.asarray(indices, np.int64)] if self.model_picks else self.video.pixels
        return SimpleNamespace(data=torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2))


def load(name: str, options: ModelOptions) -> RegistryModel:
    """``mteb:owner/name[@revision]``; UserError for a model that mteb does not have, or that has no vectors."""
    options.only("mteb", *ARGS, revision=True)
    registered, _, own = name.partition("@")
    try:
        version = metadata.version("mteb")
    except metadata.PackageNotFoundError:
        raise UserError("mteb is not installed: run `pip install 'omnirecall[mteb]'`") from None
    known = _known(registered, options.revision or own, version)
    if not {"dense", "late-interaction"} & set(known.kinds):
        raise UserError(
            f"mteb:{known.name}: is a {' '.join(known.kinds)} model, which gives no dense vectors to rank by"
        )
    frames = options.args.get("frames", "given")
    if frames not in ("given", "model"):
        raise UserError(f"--model-arg frames={frames}: write given or model")
    asked = options.number("dimension")
    return RegistryModel(
        known,
        _dimension(known, asked),
        version,
        options.device,
        shorten=asked is not None and len(known.dimensions) > 1,
        trusted=options.flag("trust_remote_code"),
        frames=frames,
        sampling_rate=options.number("rate", 16000) or 16000,
        composed=options.flag("composed", default=True),
        loader=_loader_arguments(options.args.get("loader", "{}")),
    )


def _dimension(known: Known, asked: int | None) -> int:
    possible = ", ".join(str(dimension) for dimension in known.dimensions)
    if asked is None:
        if not known.dimensions:
            raise UserError(
                f"mteb:{known.name}: mteb does not say how long its vectors are; pass --model-arg dimension=N"
            )
        return max(known.dimensions)
    if known.dimensions and asked not in known.dimensions:
        raise UserError(f"--model-arg dimension={asked}: the vectors of mteb:{known.name} have {possible} dimensions")
    return asked


def _loader_arguments(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict) or "trust_remote_code" in value:
        raise UserError(
            '--model-arg loader: must be a JSON object of arguments for mteb\'s loader, such as loader={"num_frames": 8};'
            " trust_remote_code is an argument of its own"
        )
    return value


def _known(name: str, revision: str, version: str) -> Known:
    """What is remembered of the model, else what mteb says, which is then remembered."""
    digest = hashlib.blake2b(f"mteb-1 {name}@{revision} {version}".encode(), digest_size=16).hexdigest()
    path = memory_path().parent / "mteb" / f"{digest}.json"
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Known)
    meta = _meta(name, revision)
    dimensions = meta.embed_dim if isinstance(meta.embed_dim, Sequence) else [meta.embed_dim] if meta.embed_dim else []
    known = Known(
        meta.name,
        meta.revision or "",
        tuple(sorted(dimensions)),
        tuple(part for part in MODALITIES if part in meta.modalities),
        tuple(meta.model_type),
        bool(meta.use_instructions),
    )
    with suppress(OSError):
        write_whole(path, msgspec.json.encode(known))
    return known


def _meta(name: str, revision: str) -> Any:
    mteb = require("mteb", EXTRA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return mteb.get_model_meta(name, revision or None)
        except KeyError as error:
            hint = str(error.args[0]).partition(".")[2].strip()
            raise UserError(
                f"mteb:{name}: mteb's registry has no such model{'; ' + hint if hint else ''}; a model of"
                " sentence-transformers that is not in it is st:owner/name"
            ) from None
        except ValueError as error:
            raise UserError(f"mteb:{name}: {_one_line(error)}") from None


def _task(modalities: list[str], kind: str, instruction: str) -> Any:
    """The little that mteb's models read of a task: its modalities, and the instruction as its prompt for this role."""
    module = require("mteb.abstasks.task_metadata", EXTRA)
    other = {"query": "document", "document": "query"}[kind]
    return module.TaskMetadata(
        dataset={"path": TASK_NAME, "revision": "1"},
        name=TASK_NAME,
        description=TASK_NAME,
        type="Retrieval" if modalities == ["text"] else "Any2AnyRetrieval",
        modalities=modalities,
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        prompt={kind: instruction, other: ""},
    )


def _collated(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def _array(given: Any) -> Any:
    """An array as it is; a tensor in its own dtype, bfloat16 as its bits."""
    if not hasattr(given, "detach"):
        return np.asarray(given)
    import torch

    tensor = given.detach().cpu()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return BFloat16(tensor.contiguous().view(torch.uint16).numpy())


def _ragged(rows: Sequence[Any]) -> Ragged:
    """Token vectors of each item end to end. Rows of zeros, with which mteb's wrappers pad a batch, are left out."""
    kept = [_widened(row) for row in rows]
    kept = [row[row.any(1)] for row in kept]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in kept])]).astype(np.int64)
    return Ragged(np.concatenate(kept), offsets)


def _widened(row: Any) -> NDArray[Any]:
    from omnirecall.ranking.inputs import widen

    return widen(np.asarray(row.bits)) if isinstance(row, BFloat16) else np.asarray(row)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
