"""Small vision-language models with random weights, saved as the hub keeps them: true architectures, 32 dimensions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEDIA = {"image": "<|image_pad|>", "video": "<|video_pad|>", "audio": "<|AUDIO|>"}
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|AUDIO|>",
)
CORPUS = (
    "find the video that shows a cat and a dog in the snow",
    "You are a helpful assistant. system user assistant",
    "Represent the given image with the following question: what is in it? 0.5 seconds 1.5 seconds",
)
VOCABULARY = 400
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
}
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
TEMPLATE = (
    "{%- if default_system and messages[0].role != 'system' %}{{ default_system }}{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- for part in message.content %}"
    "{%- if part.type == 'text' %}{{ part.text }}"
    "{%- elif part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'audio' %}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}"
    "{%- endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_template(system: str) -> str:
    """A template of the form that these models carry: turns between im_start and im_end, and a default system turn or none."""
    return "{%- set default_system = " + json.dumps(system) + " %}" + TEMPLATE


def tokenizer() -> Any:
    """A byte-level tokenizer with the special tokens; also what the library's processors ask of it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|endoftext|>", additional_special_tokens=list(SPECIAL[1:])
    )


def _vision(**more: Any) -> dict[str, Any]:
    return {"depth": 1, "num_heads": 2, "initializer_range": 0.3, "patch_size": 14, **more}


def _numbers(tokens: Any, *names: str) -> dict[str, int]:
    words = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "image_token_index": "<|image_pad|>",
        "video_token_index": "<|video_pad|>",
        "audio_token_index": "<|AUDIO|>",
        "audio_start_token_id": "<|audio_bos|>",
        "audio_end_token_id": "<|audio_eos|>",
    }
    return {name: tokens.convert_tokens_to_ids(words[name]) for name in names}


PLAIN = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
OMNI = (
    "image_token_index",
    "video_token_index",
    "audio_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "audio_start_token_id",
    "audio_end_token_id",
)


def _model(kind: str, tokens: Any) -> Any:
    import transformers as t

    if kind == "qwen2_vl":
        vision = _vision(embed_dim=16, hidden_size=32, mlp_ratio=2)
        return t.Qwen2VLForConditionalGeneration(
            t.Qwen2VLConfig(text_config=TEXT, vision_config=vision, **_numbers(tokens, *PLAIN))
        )
    qwen25 = _vision(
        depth=2, hidden_size=16, out_hidden_size=32, intermediate_size=24, fullatt_block_indexes=[1], window_size=56
    )
    if kind == "qwen2_5_vl":
        vision = {**qwen25, "tokens_per_second": 2}
        return t.Qwen2_5_VLForConditionalGeneration(
            t.Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision, **_numbers(tokens, *PLAIN))
        )
    if kind == "qwen3_vl":
        vision = _vision(
            hidden_size=16,
            out_hidden_size=32,
            intermediate_size=24,
            patch_size=16,
            deepstack_visual_indexes=[0],
            num_position_embeddings=64,
        )
        text = {**TEXT, "head_dim": 8}
        return t.Qwen3VLForConditionalGeneration(
            t.Qwen3VLConfig(text_config=text, vision_config=vision, **_numbers(tokens, *PLAIN))
        )
    if kind == "colqwen2":
        vlm = t.Qwen2VLConfig(
            text_config=TEXT,
            vision_config=_vision(embed_dim=16, hidden_size=32, mlp_ratio=2),
            **_numbers(tokens, *PLAIN),
        )
        return t.ColQwen2ForRetrieval(
            t.ColQwen2Config(vlm_config=vlm.to_dict(), embedding_dim=24, initializer_range=0.3)
        )
    sound = {
        "num_mel_bins": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "d_model": 16,
        "output_dim": 32,
        "n_window": 10,
        "max_source_positions": 200,
        "initializer_range": 0.3,
    }
    config = t.Qwen2_5OmniThinkerConfig(
        audio_config=sound,
        vision_config=qwen25,
        text_config=TEXT,
        position_id_per_seconds=25,
        initializer_range=0.3,
        **_numbers(tokens, *OMNI),
    )
    return t.Qwen2_5OmniThinkerForConditionalGeneration(config)


KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni_thinker")


def save_checkpoint(folder: Path, kind: str, **preprocessor: Any) -> Path:
    """A checkpoint of this model_type, with a processor's files; ``preprocessor`` replaces options of the latter."""
    import torch
    from transformers import Qwen2VLImageProcessorPil

    torch.manual_seed(sorted((*KINDS, "colqwen2")).index(kind))
    tokens = tokenizer()
    _model(kind, tokens).eval().save_pretrained(folder)
    tokens.save_pretrained(folder)
    system = SYSTEM if kind != "qwen3_vl" else ""
    (folder / "chat_template.jinja").write_text(chat_template(system), "utf-8")
    options: dict[str, Any] = {"min_pixels": 4 * 28 * 28, "max_pixels": 16 * 28 * 28, "patch_size": 14, **preprocessor}
    if kind == "qwen3_vl":
        options |= {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    image = Qwen2VLImageProcessorPil(**options).to_dict()
    if kind == "qwen2_5_omni_thinker":
        image |= {key: value for key, value in sound_extractor().to_dict().items() if key != "processor_class"}
    write(folder / "preprocessor_config.json", image)
    video = {"size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 9 * 28 * 28}}
    if kind == "qwen3_vl":
        video = {"size": {"shortest_edge": 4096, "longest_edge": 64 * 32 * 32}}
    write(folder / "video_preprocessor_config.json", video)
    return folder


def sound_extractor() -> Any:
    """The feature extractor of the omni checkpoint: 16 bands, at most 4 seconds."""
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=16, sampling_rate=16000, hop_length=160, chunk_length=4, n_fft=400)


def write(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file."""
    path.write_text(json.dumps(dict(value), default=str), "utf-8")


class VideoProcessor:
    """In place of the library's video processor, which needs torchvision: Pillow resizes, the library's code makes patches."""

    model_input_names = ("pixel_values_videos", "video_grid_thw")
    temporal_patch_size = 2
    merge_size = 2

    def __init__(self, image: Any, size: tuple[int, int]) -> None:
        self.image, self.size = image, size

    def fetch_videos(self, videos: Any, *_: Any, **__: Any) -> Any:
        """Already frames."""
        return videos

    def __call__(self, videos: Any, **options: Any) -> Any:
        """``videos``: arrays of shape (frames, height, width, 3)."""
        import numpy as np
        import torch
        from PIL import Image
        from transformers import BatchFeature
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

        height, width = self.size
        mean, std = np.asarray(self.image.image_mean), np.asarray(self.image.image_std)
        values, grids = [], []
        for video in videos:
            frames = [
                Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC) for frame in np.asarray(video)
            ]
            scaled = (np.stack([np.asarray(frame) for frame in frames]) / 255 - mean) / std
            tensor = torch.from_numpy(scaled.transpose(0, 3, 1, 2).astype(np.float32))[None]
            patches, *grid = Qwen3VLVideoProcessor.patchify(None, tensor, self.image.patch_size, 2, 2)
            values.append(patches[0])
            grids.append(grid)
        data = {"pixel_values_videos": torch.cat(values), "video_grid_thw": torch.tensor(grids)}
        return BatchFeature({**data, "video_metadata": options.get("video_metadata")})


def library_processor(kind: str, folder: Path, frame_size: tuple[int, int] = (28, 28)) -> Any:
    """The library's own processor of this model, with the stand-in for its video processor, which resizes to ``frame_size``."""
    from unittest import mock

    import transformers as t
    from transformers.processing_utils import ProcessorMixin

    words = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "audio_token": "<|AUDIO|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    }
    tokens = t.AutoTokenizer.from_pretrained(folder)
    for name, word in words.items():
        setattr(tokens, name, word)
        setattr(tokens, f"{name}_id", tokens.convert_tokens_to_ids(word))
    image = t.AutoImageProcessor.from_pretrained(folder, backend="pil")
    parts: dict[str, Any] = {
        "image_processor": image,
        "tokenizer": tokens,
        "video_processor": VideoProcessor(image, frame_size),
    }
    if kind == "qwen2_5_omni_thinker":
        parts["feature_extractor"] = sound_extractor()
    classes = {
        "qwen2_vl": t.Qwen2VLProcessor,
        "qwen2_5_vl": t.Qwen2_5_VLProcessor,
        "qwen3_vl": t.Qwen3VLProcessor,
        "qwen2_5_omni_thinker": t.Qwen2_5OmniProcessor,
    }
    with mock.patch.object(ProcessorMixin, "check_argument_for_proper_class", return_value=None):
        return classes[kind](**parts)


def library_model(kind: str, folder: Path, **options: Any) -> Any:
    """The model as the library loads it, head and all."""
    import transformers as t

    auto = {
        "qwen2_5_omni_thinker": t.Qwen2_5OmniThinkerForConditionalGeneration,
        "colqwen2": t.ColQwen2ForRetrieval,
    }.get(kind, t.AutoModelForImageTextToText)
    return auto.from_pretrained(folder, **options).eval()
