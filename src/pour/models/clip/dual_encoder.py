"""Dual encoders: where an image embedding comes from, how images and texts are embedded, and what they expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.modes import evaluating
from pour.models.networks.libraries import libraries_of
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.models.clip.texts import TextEncoder

__all__ = [
    "Expectations",
    "ImageProjection",
    "WeightPart",
    "embed_images",
    "expectations",
    "find_image_projection",
    "text_encoder",
]

WeightPart = tuple[nn.Module, str, int]
"""A tensor of a layer: the layer, the tensor's name in it, and the dimension that holds the features."""
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
_TEXTS_AT_ONCE = 256
# Where CLIP's temperature starts.
_FIRST_SCALE = 1 / 0.07


@dataclass(frozen=True)
class ImageProjection:
    """The layer of a dual encoder whose output is the image embedding, before it is normalised."""

    name: str
    """Dotted path inside the model."""
    module: nn.Module
    """The layer, or the :class:`ProjectedEmbedding` around it."""
    num_features: int
    """Width d of the embedding."""
    parts: tuple[WeightPart, ...]
    """Tensors of the linear map that the embedding ends in; none if it ends in another map."""
    why_not: str = ""
    """Why there is none."""

    @property
    def layer(self) -> nn.Module:
        """The layer itself, without a projector."""
        return self.module.layer if isinstance(self.module, ProjectedEmbedding) else self.module


@dataclass(frozen=True)
class Expectations:
    """What a dual encoder expects of images, and how it scores them."""

    mean: tuple[float, ...] | None
    """Channel means; None for a model that normalises by itself."""
    std: tuple[float, ...] | None
    image_size: int | None
    """The only size it takes, or None."""
    scale: float
    """What cosines are multiplied with."""
    bias: float = 0.0
    """What is added to the scores (SigLIP)."""


def find_image_projection(model: nn.Module) -> ImageProjection | None:
    """Where ``model`` makes its image embedding, or None for a model that is no dual encoder we know.

    Known are our own, transformers' models with a ``visual_projection`` (CLIP and its relatives) or with SigLIP's
    pooling head, and open_clip's.

    Example:
        >>> encoder = ImageTextEncoder(8, width=4, blocks=(1,))
        >>> find_image_projection(encoder).name
        'visual_projection'
        >>> find_image_projection(nn.Linear(3, 2)) is None
        True
    """
    model = unwrap(model)
    libraries = libraries_of(model)
    if isinstance(model, ImageTextEncoder) or "transformers" in libraries:
        projection = getattr(model, "visual_projection", None)
        layer = projection.layer if isinstance(projection, ProjectedEmbedding) else projection
        if isinstance(projection, nn.Module) and isinstance(layer, nn.Linear):
            return ImageProjection("visual_projection", projection, layer.out_features, _linear_parts(layer))
        return _siglip(model)
    if "open_clip" in libraries:
        return _open_clip(model)
    return None


def _linear_parts(layer: nn.Linear) -> tuple[WeightPart, ...]:
    return ((layer, "weight", 0),) if layer.bias is None else ((layer, "weight", 0), (layer, "bias", 0))


def _siglip(model: nn.Module) -> ImageProjection | None:
    # A classifier of transformers has the same tower, whose head it does not use.
    if isinstance(getattr(model, "classifier", None), nn.Module):
        return None
    tower = getattr(model, "vision_model", None)
    head = getattr(tower, "head", None)
    layer = head.layer if isinstance(head, ProjectedEmbedding) else head
    norm = getattr(layer, "layernorm", None)
    if not isinstance(head, nn.Module) or not isinstance(norm, nn.LayerNorm) or not hasattr(layer, "probe"):
        return None
    return ImageProjection(
        "vision_model.head",
        head,
        int(norm.normalized_shape[0]),
        (),
        "the embedding of a SigLIP model is a sum of two branches, x + MLP(LayerNorm(x)), and the first feeds the "
        "second, so that no linear layer can take the projection in",
    )


def _open_clip(model: nn.Module) -> ImageProjection | None:
    visual = getattr(model, "visual", None)
    if not isinstance(visual, nn.Module):
        return None
    tower = visual.layer if isinstance(visual, ProjectedEmbedding) else visual
    parts: tuple[WeightPart, ...] = ()
    why_not = f"its image tower, a {type(tower).__name__}, does not end in a linear layer"
    matrix = getattr(tower, "proj", None)
    if isinstance(matrix, nn.Linear):
        parts = _linear_parts(matrix)
    elif isinstance(matrix, nn.Parameter):
        parts = ((tower, "proj", 1),)
    else:
        last = _last_linear(tower)
        parts = () if last is None else _linear_parts(last)
    if not parts:
        width = getattr(tower, "output_dim", None) or getattr(model, "embed_dim", None)
        if not isinstance(width, int):
            raise UsageError(
                f"The width of the image embedding of this {type(model).__name__} cannot be read; open_clip's models "
                "with a linear projection are supported."
            )
        return ImageProjection("visual", visual, width, (), why_not)
    owner, name, dim = parts[0]
    return ImageProjection("visual", visual, int(getattr(owner, name).shape[dim]), parts)


def _last_linear(tower: nn.Module) -> nn.Linear | None:
    """The linear layer at the end of open_clip's ResNet tower (attention pooling) or timm tower (its head)."""
    pool = getattr(tower, "attnpool", None)
    if isinstance(pool, nn.Module):
        last = getattr(pool, "c_proj", None)
        return last if isinstance(last, nn.Linear) else None
    head = getattr(tower, "head", None)
    entries = list(head) if isinstance(head, nn.Sequential) else []
    if not entries:
        classifier = getattr(getattr(tower, "trunk", None), "get_classifier", None)
        last = classifier() if callable(classifier) else None
        return last if isinstance(last, nn.Linear) else None
    last = getattr(entries[-1], "fc2", entries[-1])
    return last if isinstance(last, nn.Linear) else None


def embed_images(model: nn.Module, images: Tensor) -> Tensor:
    """The unnormalised image embeddings (N, d) of ready pixels (N, C, H, W)."""
    if hasattr(model, "encode_image"):
        output: Any = model.encode_image(images)  # type: ignore[operator]
    elif hasattr(model, "get_image_features"):
        output = model.get_image_features(pixel_values=images)  # type: ignore[operator]
    else:
        output = model(pixel_values=images).image_embeds
    return _tensor(output)


def _tensor(output: Any) -> Tensor:
    """The embedding in what a library returns: a tensor, a tuple that starts with it, or transformers' output."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "pooler_output", None)
    found = output[0] if found is None else found
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise UsageError(f"The encoder gave a {type(output).__name__} without an embedding (N, d).")
    return found


def text_encoder(model: nn.Module, tokenizer: Any) -> TextEncoder:
    """The text tower of a transformers or open_clip model as a text encoder.

    Args:
        model: ``CLIPModel``, ``SiglipModel`` or a model of open_clip; it is not changed.
        tokenizer: transformers' tokenizer (or processor), or what ``open_clip.get_tokenizer`` gives.
    """
    model = unwrap(model)
    if not hasattr(model, "encode_text") and not hasattr(model, "get_text_features"):
        raise UsageError(
            f"This {type(model).__name__} has no text tower; give a CLIP model with both towers, or another encode=."
        )
    device = next(model.parameters()).device

    def encode(texts: Sequence[str]) -> Tensor:
        with evaluating(model):
            parts = [
                _encode(model, tokenizer, list(texts[start : start + _TEXTS_AT_ONCE]), device)
                for start in range(0, len(texts), _TEXTS_AT_ONCE)
            ]
        return torch.cat(parts)

    return encode


@torch.no_grad()
def _encode(model: nn.Module, tokenizer: Any, texts: list[str], device: torch.device) -> Tensor:
    if hasattr(model, "encode_text"):
        return _tensor(model.encode_text(tokenizer(texts).to(device)))  # type: ignore[operator]
    # SigLIP was trained on texts padded to their full length, and reads its answer off the last position.
    whole = "siglip" in str(getattr(getattr(model, "config", None), "model_type", ""))
    batch = tokenizer(texts, padding="max_length" if whole else True, truncation=True, return_tensors="pt")
    wanted = {name: value.to(device) for name, value in batch.items() if name in ("input_ids", "attention_mask")}
    return _tensor(model.get_text_features(**wanted))  # type: ignore[operator]


def expectations(model: nn.Module) -> Expectations:
    """Normalisation, image size and score scale of a dual encoder, as its library says."""
    model = unwrap(model)
    if isinstance(model, ImageTextEncoder):
        return Expectations(None, None, None, _FIRST_SCALE)
    scale = getattr(model, "logit_scale", None)
    value = float(scale.detach().exp()) if isinstance(scale, Tensor) else 100.0
    bias = getattr(model, "logit_bias", None)
    offset = float(bias.detach()) if isinstance(bias, Tensor) and bias.numel() == 1 else 0.0
    if "open_clip" in libraries_of(model):
        visual: Any = model.visual
        size = visual.image_size
        side = int(size[0] if isinstance(size, tuple | list) else size)
        given: Any = getattr(visual, "preprocess_cfg", None) or {}
        mean, std = given.get("mean", _CLIP_MEAN), given.get("std", _CLIP_STD)
        return Expectations(tuple(mean), tuple(std), side, value, offset)
    config: Any = model.config
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    siglip = "siglip" in str(config.model_type)
    mean, std = (_HALF, _HALF) if siglip else (_CLIP_MEAN, _CLIP_STD)
    return Expectations(mean, std, size if isinstance(size, int) else None, value, offset)
