"""Dual encoders: find the layer of the image embedding, embed images and texts, and read the expected images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.clip.texts import in_parts
from pour.models.modes import evaluating
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.unwrap import libraries_of, unwrap

if TYPE_CHECKING:
    from pour.models.clip.texts import TextEncoder

__all__ = [
    "ImageProjection",
    "WeightPart",
    "embed_images",
    "expectations",
    "find_image_projection",
    "text_encoder",
]

WeightPart = tuple[nn.Module, str, int]
"""A tensor of a layer: the layer, the tensor's name in it, and the dimension that contains the features."""
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_SIGLIP_MEAN = _SIGLIP_STD = (0.5, 0.5, 0.5)
# CLIP's temperature at the start of its training.
_FIRST_SCALE = 1 / 0.07


@dataclass(frozen=True)
class ImageProjection:
    """The layer of a dual encoder whose output is the image embedding, before it is normalised."""

    name: str
    """Dotted path inside the model."""
    module: nn.Module
    """Layer, or the `ProjectedEmbedding` around it."""
    num_features: int
    """Width d of the embedding."""
    parts: tuple[WeightPart, ...] = ()
    """Tensors of the last linear map of the embedding. Empty if the last map is not linear."""
    why_not: str = ""
    """Reason for empty `parts`, as a part of a sentence."""

    @property
    def layer(self) -> nn.Module:
        """Layer itself, without a projector."""
        layer: nn.Module = _without_projector(self.module)
        return layer


def _without_projector(module: Any) -> Any:
    return module.layer if isinstance(module, ProjectedEmbedding) else module


def find_image_projection(model: nn.Module) -> ImageProjection | None:
    """Return the layer of the image embedding, or None for a model that is no known dual encoder.

    Known dual encoders are the encoders of pour, the models of transformers with a `visual_projection` (CLIP and
    similar models) or with SigLIP's pooling head, and the models of open_clip.

    Examples:
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
        layer = _without_projector(projection)
        if isinstance(projection, nn.Module) and isinstance(layer, nn.Linear):
            return ImageProjection("visual_projection", projection, layer.out_features, _parts_of(layer))
        return _siglip(model)
    return _open_clip(model) if "open_clip" in libraries else None


def _parts_of(layer: nn.Linear) -> tuple[WeightPart, ...]:
    return tuple((layer, name, 0) for name in ("weight", "bias") if getattr(layer, name) is not None)


def _siglip(model: nn.Module) -> ImageProjection | None:
    head = getattr(getattr(model, "vision_model", None), "head", None)
    layer = _without_projector(head)
    norm = getattr(layer, "layernorm", None)
    if not isinstance(head, nn.Module) or not isinstance(norm, nn.LayerNorm) or not hasattr(layer, "probe"):
        return None
    # A classifier of transformers has the same tower, but does not use the tower's head.
    if isinstance(getattr(model, "classifier", None), nn.Module):
        return None
    return ImageProjection(
        "vision_model.head",
        head,
        int(norm.normalized_shape[0]),
        why_not="the embedding of a SigLIP model is a sum of two branches, x + MLP(LayerNorm(x)), and the first is the "
        "input of the second, so that no linear layer can contain the projection",
    )


def _open_clip(model: nn.Module) -> ImageProjection | None:
    visual = getattr(model, "visual", None)
    if not isinstance(visual, nn.Module):
        return None
    tower = _without_projector(visual)
    matrix = getattr(tower, "proj", None)
    last = matrix if isinstance(matrix, nn.Linear) else _last_linear(tower)
    if isinstance(matrix, nn.Parameter):
        return ImageProjection("visual", visual, matrix.shape[1], ((tower, "proj", 1),))
    if last is not None:
        return ImageProjection("visual", visual, last.out_features, _parts_of(last))
    width = getattr(tower, "output_dim", None) or getattr(model, "embed_dim", None)
    if not isinstance(width, int):
        problem = f"The width of the image embedding of this {type(model).__name__} cannot be read"
        raise UsageError(f"{problem}; open_clip's models with a linear projection are supported.")
    why_not = f"its image tower, a {type(tower).__name__}, does not end in a linear layer"
    return ImageProjection("visual", visual, width, why_not=why_not)


def _last_linear(tower: nn.Module) -> nn.Linear | None:
    """Return the last linear layer of open_clip's ResNet tower (attention pooling) or timm tower (head), or None."""
    pool, head = getattr(tower, "attnpool", None), getattr(tower, "head", None)
    classifier = getattr(getattr(tower, "trunk", None), "get_classifier", None)
    last: object = None
    if isinstance(pool, nn.Module):
        last = getattr(pool, "c_proj", None)
    elif isinstance(head, nn.Sequential) and len(head):
        last = getattr(head[-1], "fc2", head[-1])
    elif callable(classifier):
        last = classifier()
    return last if isinstance(last, nn.Linear) else None


def embed_images(model: nn.Module, images: Tensor) -> Tensor:
    """Return the unnormalised image embeddings (N, d) of normalised images (N, C, H, W)."""
    if hasattr(model, "encode_image"):
        output: Any = model.encode_image(images)  # type: ignore[operator]
    elif hasattr(model, "get_image_features"):
        output = model.get_image_features(pixel_values=images)  # type: ignore[operator]
    else:
        output = model(pixel_values=images).image_embeds
    return _embedding(output)


def _embedding(output: Any) -> Tensor:
    """Return the embedding in a library's output: a tensor, a tuple that starts with it, or transformers' output."""
    if isinstance(output, Tensor):
        return output
    embedding = getattr(output, "pooler_output", None)
    embedding = output[0] if embedding is None else embedding
    if not isinstance(embedding, Tensor) or embedding.ndim != 2:
        raise UsageError(
            f"The encoder returned a {type(output).__name__} without an embedding (N, d); use another encoder."
        )
    return embedding


def text_encoder(model: nn.Module, tokenizer: Any) -> TextEncoder:
    """Return a text encoder that uses the text tower of a transformers or open_clip model.

    Args:
        model: `CLIPModel`, `SiglipModel` or a model of open_clip, which is not changed.
        tokenizer: transformers' tokenizer (or processor), or the result of `open_clip.get_tokenizer`.

    Raises:
        UsageError: The model has no text tower.
    """
    model = unwrap(model)
    if not hasattr(model, "encode_text") and not hasattr(model, "get_text_features"):
        raise UsageError(
            f"This {type(model).__name__} has no text tower; pass a CLIP model with both towers, or another encode=."
        )
    device = next(model.parameters()).device

    # SigLIP was trained on texts padded to their full length, and its embedding is read at the last position.
    padding = "max_length" if "siglip" in str(getattr(getattr(model, "config", None), "model_type", "")) else True

    def encode(texts: list[str]) -> Tensor:
        with evaluating(model):
            if hasattr(model, "encode_text"):
                return _embedding(model.encode_text(tokenizer(texts).to(device)))  # type: ignore[operator]
            batch = tokenizer(texts, padding=padding, truncation=True, return_tensors="pt")
            inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask") if name in batch}
            return _embedding(model.get_text_features(**inputs))  # type: ignore[operator]

    return in_parts(encode)


def expectations(model: nn.Module) -> dict[str, Any]:
    """Return normalisation, image size and score scale of a dual encoder, as its library records them.

    The keys are options of `ZeroShotClassifier`. A missing key means that option's default.
    """
    model = unwrap(model)
    if isinstance(model, ImageTextEncoder):
        return {"scale": _FIRST_SCALE}
    expected: dict[str, Any] = {"mean": _CLIP_MEAN, "std": _CLIP_STD}
    if "open_clip" in libraries_of(model):
        visual: Any = model.visual
        size = visual.image_size[0] if isinstance(visual.image_size, tuple | list) else visual.image_size
        preprocessing: Any = getattr(visual, "preprocess_cfg", None) or {}
        expected |= {name: tuple(preprocessing[name]) for name in ("mean", "std") if name in preprocessing}
    else:
        config: Any = model.config
        size = getattr(getattr(config, "vision_config", config), "image_size", None)
        if "siglip" in str(config.model_type):
            expected |= {"mean": _SIGLIP_MEAN, "std": _SIGLIP_STD}
    if isinstance(size, int):
        expected["image_size"] = size
    if isinstance(scale := getattr(model, "logit_scale", None), Tensor):
        expected["scale"] = float(scale.detach().exp())
    if isinstance(bias := getattr(model, "logit_bias", None), Tensor) and bias.numel() == 1:
        expected["bias"] = float(bias.detach())
    return expected
