"""Small checkpoints with random weights, saved as the hub keeps them: true architectures of few dimensions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 320
WIDTH = 16
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CORPUS = (
    "a photo of a cat and a dog in the snow",
    "the sound of rain on a tin roof",
    "two boats cross the harbour at dawn",
)
SIDE = 32
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": WIDTH, "intermediate_size": 32}
TEXT = {**LAYERS, "vocab_size": VOCABULARY, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
VISION = {**LAYERS, "image_size": SIDE, "patch_size": 16}


def tokenizer(length: int, **more: Any) -> Any:
    """A byte-level tokenizer between <s> and </s> that cuts at ``length`` tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=length, **names, **more)


def pictures_to(kind: str = "CLIPImageProcessorPil") -> Any:
    """An image processor that makes pictures of SIDE pixels."""
    import transformers

    size = {"height": SIDE, "width": SIDE}
    if kind.startswith("CLIP"):
        return transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    return getattr(transformers, kind)(size=size, crop_size=size)


def save(folder: Path, model: Any, processor: Any) -> Path:
    """The model and its processor in a folder."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def dual_encoder(kind: str, folder: Path, **choices: Any) -> Path:
    """A dual encoder of this model_type, with weights that do not change from run to run."""
    import torch

    torch.manual_seed(7)
    model, processor = _BUILDERS[kind](**choices)
    return save(folder, spread(model), processor)


def spread(model: Any) -> Any:
    """The model with weights so wide that different inputs get clearly different vectors."""
    import torch

    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.3)
    return model


def _clip() -> tuple[Any, Any]:
    import transformers as t

    config = t.CLIPConfig(text_config={**TEXT, "max_position_embeddings": 20}, vision_config=VISION, projection_dim=12)
    return t.CLIPModel(config), t.CLIPProcessor(pictures_to(), tokenizer(20))


def _metaclip_2() -> tuple[Any, Any]:
    import transformers as t

    config = t.MetaClip2Config(
        text_config={**TEXT, "max_position_embeddings": 20}, vision_config=VISION, projection_dim=12
    )
    return t.MetaClip2Model(config), t.CLIPProcessor(pictures_to(), tokenizer(20))


def _siglip() -> tuple[Any, Any]:
    import transformers as t

    config = t.SiglipConfig(text_config={**TEXT, "max_position_embeddings": 64}, vision_config=VISION)
    return t.SiglipModel(config), t.SiglipProcessor(
        pictures_to("SiglipImageProcessorPil"), tokenizer(64, model_input_names=["input_ids"])
    )


def _siglip2() -> tuple[Any, Any]:
    import transformers as t

    vision = {**LAYERS, "num_patches": 16, "patch_size": 16}
    config = t.Siglip2Config(text_config={**TEXT, "max_position_embeddings": 64}, vision_config=vision)
    return t.Siglip2Model(config), t.Siglip2Processor(
        t.Siglip2ImageProcessorPil(patch_size=16, max_num_patches=16), tokenizer(64, model_input_names=["input_ids"])
    )


def _align() -> tuple[Any, Any]:
    import transformers as t

    vision = {
        "image_size": SIDE,
        "width_coefficient": 1.0,
        "depth_coefficient": 0.1,
        "hidden_dim": 16,
        "kernel_sizes": [3, 3],
        "in_channels": [32, 16],
        "out_channels": [16, 16],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
        "depthwise_padding": [],
    }
    config = t.AlignConfig(text_config={**TEXT, "max_position_embeddings": 64}, vision_config=vision, projection_dim=16)
    return t.AlignModel(config), t.AlignProcessor(pictures_to("EfficientNetImageProcessorPil"), tokenizer(64))


def _altclip() -> tuple[Any, Any]:
    import transformers as t

    config = t.AltCLIPConfig(
        text_config={**TEXT, "max_position_embeddings": 22, "project_dim": WIDTH},
        vision_config=VISION,
        projection_dim=12,
    )
    return t.AltCLIPModel(config), t.AltCLIPProcessor(pictures_to(), tokenizer(512))


def _chinese_clip() -> tuple[Any, Any]:
    import transformers as t

    config = t.ChineseCLIPConfig(
        text_config={**TEXT, "max_position_embeddings": 20}, vision_config=VISION, projection_dim=12
    )
    return t.ChineseCLIPModel(config), t.ChineseCLIPProcessor(
        pictures_to("ChineseCLIPImageProcessorPil"), tokenizer(20)
    )


def _aimv2() -> tuple[Any, Any]:
    import transformers as t

    config = t.Aimv2Config(
        text_config={**TEXT, "max_position_embeddings": 20},
        vision_config={**VISION, "is_native": False},
        projection_dim=12,
    )
    return t.Aimv2Model(config), t.CLIPProcessor(pictures_to(), tokenizer(20))


def _blip() -> tuple[Any, Any]:
    import transformers as t

    config = t.BlipConfig(
        text_config={**TEXT, "max_position_embeddings": 20, "encoder_hidden_size": WIDTH, "is_decoder": False},
        vision_config=VISION,
        projection_dim=12,
    )
    return t.BlipModel(config), t.BlipProcessor(pictures_to("BlipImageProcessorPil"), tokenizer(20))


def _clipseg() -> tuple[Any, Any]:
    import transformers as t

    config = t.CLIPSegConfig(
        text_config={**TEXT, "max_position_embeddings": 20}, vision_config=VISION, projection_dim=12
    )
    return t.CLIPSegModel(config), t.CLIPSegProcessor(pictures_to("ViTImageProcessorPil"), tokenizer(20))


def _flava() -> tuple[Any, Any]:
    import transformers as t

    config = t.FlavaConfig(
        text_config={**TEXT, "max_position_embeddings": 20},
        image_config=VISION,
        multimodal_config=LAYERS,
        image_codebook_config={"num_groups": 1, "hidden_size": 4, "num_blocks_per_group": 1},
        hidden_size=WIDTH,
        projection_dim=12,
    )
    return t.FlavaModel(config), t.FlavaProcessor(pictures_to("FlavaImageProcessorPil"), tokenizer(20))


def _groupvit() -> tuple[Any, Any]:
    import transformers as t

    vision = {
        **VISION,
        "patch_size": 8,
        "depths": [1, 1],
        "num_hidden_layers": 2,
        "num_group_tokens": [4, 0],
        "num_output_groups": [4, 2],
    }
    config = t.GroupViTConfig(
        text_config={**TEXT, "max_position_embeddings": 20},
        vision_config=vision,
        projection_dim=12,
        projection_intermediate_dim=24,
    )
    return t.GroupViTModel(config), t.CLIPProcessor(pictures_to(), tokenizer(20))


def _vision_text() -> tuple[Any, Any]:
    import transformers as t

    vision = t.ViTConfig(**VISION)
    text = t.RobertaConfig(**TEXT, max_position_embeddings=22)
    config = t.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=12)
    return t.VisionTextDualEncoderModel(config), t.VisionTextDualEncoderProcessor(
        pictures_to("ViTImageProcessorPil"), tokenizer(512)
    )


def clap(truncation: str = "fusion", length: int = 512) -> tuple[Any, Any]:
    """CLAP on sound of 8 kHz and one second, which fuses windows of what is longer, or draws one."""
    import transformers as t

    sound = {
        "spec_size": 64,
        "num_mel_bins": 64,
        "window_size": 4,
        "patch_size": 4,
        "patch_stride": [4, 4],
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "hidden_size": 32,
        "patch_embeds_hidden_size": 16,
        "num_classes": 4,
        "enable_fusion": truncation == "fusion",
    }
    config = t.ClapConfig(text_config={**TEXT, "max_position_embeddings": 22}, audio_config=sound, projection_dim=12)
    extractor = t.ClapFeatureExtractor(
        feature_size=64,
        sampling_rate=8000,
        hop_length=128,
        max_length_s=1,
        fft_window_size=256,
        frequency_max=4000,
        truncation=truncation,
    )
    return t.ClapModel(config), t.ClapProcessor(extractor, tokenizer(length))


def _xclip() -> tuple[Any, Any]:
    import transformers as t

    vision = {
        **VISION,
        "num_frames": 4,
        "mit_hidden_size": 12,
        "mit_intermediate_size": 24,
        "mit_num_attention_heads": 2,
        "mit_num_hidden_layers": 1,
    }
    config = t.XCLIPConfig(
        text_config={**TEXT, "max_position_embeddings": 20},
        vision_config=vision,
        projection_dim=12,
        prompt_layers=1,
        prompt_num_attention_heads=2,
    )
    return t.XCLIPModel(config), t.XCLIPProcessor(pictures_to("VideoMAEImageProcessorPil"), tokenizer(20))


_BUILDERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "aimv2": _aimv2,
    "align": _align,
    "altclip": _altclip,
    "blip": _blip,
    "chinese_clip": _chinese_clip,
    "clap": clap,
    "clip": _clip,
    "clipseg": _clipseg,
    "flava": _flava,
    "groupvit": _groupvit,
    "metaclip_2": _metaclip_2,
    "siglip": _siglip,
    "siglip2": _siglip2,
    "vision-text-dual-encoder": _vision_text,
    "xclip": _xclip,
}
KINDS = tuple(_BUILDERS)


def bert(folder: Path, length: int = 24, width: int = WIDTH) -> Any:
    """A text encoder of transformers in a folder, as a module of sentence-transformers."""
    import torch
    import transformers as t
    from sentence_transformers.sentence_transformer.modules import Transformer

    torch.manual_seed(width + length)
    config = t.BertConfig(**{**TEXT, "hidden_size": width}, max_position_embeddings=64)
    save(folder, spread(t.BertModel(config)), tokenizer(length))
    return Transformer(str(folder))


def sentences(folder: Path, prompts: dict[str, str] | None = None, **settings: Any) -> Path:
    """A text model of sentence-transformers: token vectors, their mean, a projection to 10 dimensions, unit length."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    first = bert(folder.with_name(folder.name + "-bert"))
    torch.manual_seed(1)
    modules = [first, Pooling(WIDTH, "mean"), Dense(WIDTH, 10), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return rewritten(folder / "config_sentence_transformers.json", prompts=prompts or {}, **settings)


def rewritten(file: Path, **values: Any) -> Path:
    """A JSON file with other values, None to leave one out; returns its folder."""
    content = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return file.parent


def sentence_dual(folder: Path, kind: str = "clip", **choices: Any) -> Path:
    """A dual encoder as a model of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    inner = dual_encoder(kind, folder.with_name(f"{folder.name}-{kind}"), **choices)
    SentenceTransformer(modules=[Transformer(str(inner))], device="cpu").save(str(folder), create_model_card=False)
    return folder


def router(folder: Path) -> Path:
    """Queries by a table of static vectors, documents by an encoder, both to unit length."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Router
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding

    torch.manual_seed(2)
    static = StaticEmbedding(tokenizer(24), embedding_dim=WIDTH)
    documents = [bert(folder.with_name(folder.name + "-bert")), Pooling(WIDTH, "mean")]
    routes = Router.for_query_document(query_modules=[static], document_modules=documents)
    SentenceTransformer(modules=[routes, Normalize()], device="cpu").save(str(folder), create_model_card=False)
    return folder


def router_of_parts(folder: Path) -> Path:
    """Text by one encoder and pictures by another, whatever the role."""
    import transformers as t
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    text = [bert(folder.with_name(folder.name + "-bert")), Pooling(WIDTH, "mean")]
    vision = folder.with_name(folder.name + "-vit")
    save(vision, spread(t.ViTModel(t.ViTConfig(**VISION))), pictures_to("ViTImageProcessorPil"))
    seen = [Transformer(str(vision)), Pooling(WIDTH, "mean")]
    routes = Router({"text": text, "image": seen})
    SentenceTransformer(modules=[routes], device="cpu").save(str(folder), create_model_card=False)
    return folder


def router_by_default(folder: Path) -> Path:
    """One route, which is the default and named by neither part nor role."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [bert(folder.with_name(folder.name + "-bert")), Pooling(WIDTH, "mean")]
    routes = Router({"small": modules}, default_route="small")
    SentenceTransformer(modules=[routes], device="cpu").save(str(folder), create_model_card=False)
    return folder


def multi_vector(folder: Path, expansion: dict[str, Any] | None = None) -> Path:
    """A late-interaction model: token vectors of 6 dimensions; queries may be filled up with mask tokens."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Transformer

    inner = folder.with_name(folder.name + "-bert")
    bert(inner)
    torch.manual_seed(3)
    modules = [
        Transformer(str(inner), query_length=None if expansion else 12, document_length=20, query_expansion=expansion),
        Dense(WIDTH, 6, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=["."]),
        Normalize(module_input_name="token_embeddings"),
    ]
    model = MultiVectorEncoder(modules=modules, device="cpu", prompts={"query": "[Q] ", "document": "[D] "})
    model.save(str(folder), create_model_card=False)
    return folder


CHAT = (
    "{%- for message in messages %}<{{ message.role }}>{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% elif part.type == 'audio' %}<audio>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}\n{% endfor %}"
)


def chat(folder: Path, length: int = 64) -> Path:
    """A vision-language model that takes text and pictures together through a chat template; the last token stands for all."""
    import torch
    import transformers as t
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = tokenizer(length, padding_side="left")
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**VISION),
        text_config=t.LlamaConfig(
            **{**TEXT, "vocab_size": len(words)}, num_key_value_heads=2, max_position_embeddings=128
        ),
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    torch.manual_seed(4)
    processor = t.LlavaProcessor(
        pictures_to(),
        words,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=CHAT,
    )
    inner = save(folder.with_name(folder.name + "-llava"), spread(t.LlavaModel(config)), processor)
    modules = [Transformer(str(inner)), Pooling(WIDTH, "lasttoken")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


def blip_retrieval(folder: Path) -> Path:
    """BLIP with the heads for retrieval, whose vectors have 10 dimensions."""
    import torch
    import transformers as t

    config = t.BlipConfig(
        text_config={**TEXT, "max_position_embeddings": 20, "encoder_hidden_size": WIDTH},
        vision_config=VISION,
        image_text_hidden_size=10,
    )
    torch.manual_seed(5)
    model = spread(t.BlipForImageTextRetrieval(config))
    return save(folder, model, t.BlipProcessor(pictures_to("BlipImageProcessorPil"), tokenizer(20)))
