"""Tiny randomly initialised dual encoders of every family that pour knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from pour._torchvision import torchvision_works
from pour.models.clip.image_encoder import ImageTextEncoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torchvision_works()

WIDTH = 24
SIDE = 32


def ours() -> nn.Module:
    torch.manual_seed(0)
    return ImageTextEncoder(WIDTH, width=8, blocks=(1, 1))


def hf_clip() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        projection_dim=WIDTH,
        text_config={**TEXT, "eos_token_id": 2, "bos_token_id": 1},
        vision_config={**VISION},
    )
    return transformers.CLIPModel(config).eval()


def hf_siglip() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    # SigLIP has no projection: both towers are as wide as the embedding.
    config = transformers.SiglipConfig(
        text_config={**TEXT, "hidden_size": WIDTH, "projection_size": WIDTH},
        vision_config={**VISION, "hidden_size": WIDTH},
    )
    return transformers.SiglipModel(config).eval()


def open_clip_vit() -> nn.Module:
    return _open_clip({"image_size": SIDE, "layers": 2, "width": 32, "patch_size": 8, "head_width": 16})


def open_clip_resnet() -> nn.Module:
    return _open_clip({"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None})


def open_clip_timm() -> nn.Module:
    return _open_clip({"image_size": SIDE, "timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear"})


def open_clip_mlp() -> nn.Module:
    return _open_clip({"image_size": SIDE, "timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "mlp"})


def _open_clip(vision: dict[str, object]) -> nn.Module:
    model = pytest.importorskip("open_clip.model")
    torch.manual_seed(0)
    text = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
    return model.CLIP(WIDTH, vision, text).eval()


TEXT = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": 8,
}

FOLDABLE: dict[str, Callable[[], nn.Module]] = {
    "ours": ours,
    "CLIPModel": hf_clip,
    "open_clip ViT": open_clip_vit,
    "open_clip ResNet": open_clip_resnet,
    "open_clip timm": open_clip_timm,
    "open_clip timm, MLP": open_clip_mlp,
}
FAMILIES = {**FOLDABLE, "SiglipModel": hf_siglip}


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


WORDS = ("[PAD]", "[BOS]", "[EOS]", "[UNK]", "a", "photo", "of", "the", "cat", "dog", "fish", "ship", "red", "blue")


def save_tokenizer(folder: Path) -> None:
    """Write a word-level tokenizer that transformers opens as it does a published one."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    plain.normalizer = tokenizers.normalizers.Lowercase()
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 1), ("[EOS]", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        unk_token="[UNK]",
        model_max_length=16,
    ).save_pretrained(folder)
