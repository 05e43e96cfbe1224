"""Zero-shot classifiers: score the image embedding of a dual encoder against the texts of the classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.card import architecture, set_architecture, set_class_names
from pour.models.clip.dual_encoder import embed_images, expectations, find_image_projection
from pour.models.linear_form import RowLayer
from pour.models.networks.normalize import Normalize, resized
from pour.models.projecting.projected_head import is_masked
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TextHead", "ZeroShotClassifier", "zero_shot_classifier"]


class TextHead(RowLayer):
    r"""A head of text embeddings: `scale * cos(z, t_c) + b_c` for each class c.

    It takes embeddings (N, d), not normalised, and returns scores (N, C). Texts and biases are fixed. The bias is the
    same for all classes that are not masked. The scale is a parameter, which is trained with the image encoder.

    Args:
        text: (C, d), one row per class; each is normalised.
        scale: Factor of the cosines.
        bias: Number that is added to every score.

    Examples:
        >>> TextHead(torch.eye(2), scale=10.0)(torch.tensor([[3.0, 4.0]])).detach().round()
        tensor([[6., 8.]])
    """

    def __init__(self, text: Tensor, *, scale: float, bias: float = 0.0) -> None:
        if text.ndim != 2 or len(text) < 2:
            raise UsageError(f"The text embeddings have shape {tuple(text.shape)}; give (classes, width), 2 at least.")
        norms = torch.linalg.vector_norm(text.detach().float(), dim=1)
        if not bool(torch.isfinite(norms).all()) or bool((norms == 0).any()):
            raise UsageError("A text embedding is zero or not finite; each class needs a direction.")
        if not 0 < scale < math.inf:
            raise UsageError(f"The scale of the scores must be above 0 and finite, but is {scale}.")
        super().__init__(text.shape[1], text.shape[0], device=text.device)
        with torch.no_grad():
            self.weight.copy_(F.normalize(text.detach().float(), dim=1))
            self.bias.fill_(bias)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale), device=text.device))

    def forward(self, input: Tensor) -> Tensor:
        """Compute the scores of embeddings."""
        return F.linear(F.normalize(input, dim=-1), self.weight) * self.log_scale.exp() + self.bias


class ZeroShotClassifier(nn.Module):
    """A dual encoder as a classifier of images (N, C, H, W) in [0, 1] with one score per text.

    All functions for classifiers accept it: its head is the matrix of texts, and its features are the image embeddings
    before they are normalised. `model` is the encoder itself. If a classifier forgot classes, folding it merges the
    projection into the encoder.

    Args:
        model: The dual encoder, or its image tower.
        text: (C, d) embeddings of the classes' texts, see `pour.models.prompt_embeddings`.
        mean: Channel means that the encoder expects; None if it normalises by itself.
        std: Channel deviations.
        image_size: The only size that the encoder takes, or None.
        scale: Factor of the cosines.
        bias: Number that is added to every score.

    Examples:
        >>> "image_size=64" in repr(ZeroShotClassifier(nn.Identity(), torch.eye(2), image_size=64))
        True
    """

    def __init__(
        self,
        model: nn.Module,
        text: Tensor,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        image_size: int | None = None,
        scale: float = 100.0,
        bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.normalize = nn.Identity() if mean is None or std is None else Normalize(mean, std)
        self.model = model
        self.head: nn.Module = TextHead(text, scale=scale, bias=bias)
        self.image_size = image_size

    @property
    def text(self) -> Tensor:
        """(C, d) unit embeddings of the classes' texts."""
        weight: Tensor = self.head.weight  # type: ignore[assignment]
        return weight.detach()

    def embed(self, images: Tensor) -> Tensor:
        """Compute the image embeddings (N, d), not normalised, which are the input of the head."""
        images = resized(self.normalize(images), self.image_size)
        precision = next(self.model.parameters()).dtype
        if precision == images.dtype:
            return embed_images(self.model, images)
        # The encoder is in half precision, but the texts are not.
        return embed_images(self.model, images.to(precision)).to(images.dtype)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores (N, C)."""
        scores: Tensor = self.head(self.embed(images))
        return scores

    def extra_repr(self) -> str:
        """Return the input size for `print(model)`, which also names the network in a cache of features."""
        return f"image_size={self.image_size}"

    def set_text(self, text: Tensor, *, class_names: Sequence[str] | None = None) -> None:
        """Replace the texts. Scale and bias do not change, and no class is masked any more."""
        head = self.head
        if not isinstance(head, TextHead):
            raise UsageError("The classifier has a projector in front of its texts; fold it before changing them.")
        if text.shape[-1] != head.in_features:
            raise UsageError(
                f"The texts have width {text.shape[-1]}, but the encoder returns {head.in_features}; embed the texts "
                "with the same model."
            )
        scale = float(head.log_scale.detach().exp())
        open_bias = head.bias.detach()[~is_masked(head.bias)]
        bias = float(open_bias[0]) if len(open_bias) else 0.0
        self.head = TextHead(text.to(head.weight.device), scale=scale, bias=bias).train(self.training)
        set_class_names(self, class_names)
        recorded = architecture(self)
        if recorded is not None:
            set_architecture(self, recorded.name, {**recorded.options, "num_classes": len(text)})


def zero_shot_classifier(
    model: nn.Module, text: Tensor, *, class_names: Sequence[str] | None = None
) -> ZeroShotClassifier:
    """Return a classifier that uses a dual encoder, with the normalisation, image size and scale of its library.

    Args:
        model: transformers' `CLIPModel` or `SiglipModel`, a model of open_clip, or an `ImageTextEncoder`. It is
            not copied.
        text: (C, d) embeddings of the classes' prompts.
        class_names: Names of the classes, in the order of the rows.

    Examples:
        >>> from pour.models.clip.image_encoder import ImageTextEncoder
        >>> encoder = ImageTextEncoder(4, width=4, blocks=(1,))
        >>> zero_shot_classifier(encoder, torch.eye(4)[:3])(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 3])
    """
    encoder = unwrap(model)
    place = find_image_projection(encoder)
    if place is None:
        problem = f"A {type(encoder).__name__} is no dual encoder that pour knows"
        raise UsageError(
            f"{problem}; pass a CLIP or SigLIP model of transformers or open_clip, or an ImageTextEncoder."
        )
    if text.ndim != 2 or text.shape[1] != place.num_features:
        problem = f"The texts have shape {tuple(text.shape)}, but the image embedding has width {place.num_features}"
        raise UsageError(f"{problem}; embed them with the same model.")
    device = next(encoder.parameters()).device
    classifier = ZeroShotClassifier(encoder, text.to(device), **expectations(encoder))
    classifier.normalize.to(device)
    set_class_names(classifier, class_names)
    return classifier.train(encoder.training)
