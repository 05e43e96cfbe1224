"""Forget concepts named in words: directions from text embeddings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.errors import UsageError, check_choice
from pour.models.clip.texts import prompt_embeddings
from pour.models.clip.zero_shot import ZeroShotClassifier
from pour.models.projecting.forget import find_place
from pour.models.projecting.live_classes import precise
from pour.models.projecting.project import project_with_entry, projector_along
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.models.clip.texts import TextEncoder

__all__ = ["SHRINKAGE", "TextPart", "concept_directions", "forget_concepts"]

TextPart = Literal["text", "centered", "specific"]
"""Part of a concept's text embedding to remove: all of it (the paper), or its difference from the texts to keep."""
# The share of the identity is large because the image embeddings of a fully collapsed class are far from the texts'
# directions of variation. The share of the covariance reduces the loss on related concepts.
SHRINKAGE = 0.9
"""Share of the identity in the covariance of "specific"."""


def concept_directions(concepts: Tensor, others: Tensor | None = None, *, part: TextPart = "text") -> Tensor:
    r"""Return the directions to remove from an image embedding so that it no longer shows `concepts`.

    With the unit text embedding t of a concept:

    * "text": $t$, as in the paper. Texts have much in common, so this also removes information about other
      concepts. The concept's score is then 0 for every image. With few texts, this can still be the highest score.
    * "centered": $t - m$, with m the mean of the texts to keep.
    * "specific": $\Sigma^{-1} (t - m)$ with $\Sigma = 0.1\,C + 0.9\,\tfrac{\mathrm{tr}\,C}{d} I$ and C the
      covariance of the texts to keep. Among all v with $(t - m) \cdot v = 1$, these texts vary least along this
      direction. It is Fisher's discriminant of the concept against the texts to keep, with its usual shrinkage. It
      removes less information about related concepts.

    Args:
        concepts: (k, d) or (d,) text embeddings of the concepts to forget.
        others: (m, d) text embeddings to keep; "text" does not need them.
        part: Part of the text to remove.

    Returns:
        (k, d) unit rows.

    Examples:
        >>> forgotten, kept = torch.tensor([1.0, 0.0, 0.0]), torch.eye(3)[1:]
        >>> concept_directions(forgotten, kept, part="centered")
        tensor([[ 0.8165, -0.4082, -0.4082]])
    """
    check_choice("part", part, get_args(TextPart))
    text = _unit_rows(concepts, "concepts")
    if part == "text":
        return text
    if others is None:
        raise UsageError(f"part={part!r} needs the texts to keep; pass others=.")
    retained = _unit_rows(others, "others").to(text)
    if retained.shape[1] != text.shape[1]:
        widths = f"The concepts have width {text.shape[1]} and the others {retained.shape[1]}"
        raise UsageError(f"{widths}; embed both with the same encoder.")
    mean = retained.mean(dim=0)
    directions = text - mean
    if part == "specific":
        rows = (retained - mean).double().cpu()
        covariance = rows.T @ rows / len(rows)
        variance = covariance.trace() / len(covariance)
        if variance > 0:
            covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * variance * torch.eye(len(covariance)).double()
            directions = torch.linalg.solve(covariance, directions.double().cpu().T).T.to(text)
    if not bool(directions.any(dim=1).all()):
        raise UsageError("A concept's embedding is the mean of the texts to keep; describe the concept in other words.")
    return F.normalize(directions, dim=1)


def _unit_rows(embeddings: Tensor, name: str) -> Tensor:
    rows = embeddings.unsqueeze(0) if embeddings.ndim == 1 else embeddings
    if rows.ndim != 2 or 0 in rows.shape or not rows.is_floating_point():
        raise UsageError(f"{name} must be floating-point embeddings of shape (k, d) or (d,).")
    return F.normalize(precise(rows), dim=1)


def forget_concepts(
    model: nn.Module,
    concepts: str | Sequence[str],
    *,
    encode: TextEncoder,
    others: Sequence[str] | Tensor | None = None,
    part: TextPart = "specific",
    templates: Sequence[str] = ("{}",),
) -> nn.Module:
    """Return a copy of a dual encoder, or of a zero-shot classifier, whose image embedding lacks concepts.

    No image is needed. `pour.fold` then merges the projection into the visual projection.

    Args:
        model: transformers' `CLIPModel` or `SiglipModel`, a model of open_clip, an `ImageTextEncoder`, or a
            zero-shot classifier.
        concepts: Concepts to forget, in words; all at once.
        encode: Text encoder of the same space, see `pour.models.text_encoder`.
        others: Concepts to keep, in words or as embeddings; "text" does not need them. By default the texts of a
            classifier, except the one nearest to each concept.
        part: Part of the texts to remove, see `concept_directions`. The paper removes the whole "text".
        templates: Sentences with `{}` for the concept, whose embeddings are averaged.

    Examples:
        >>> from pour.models.clip.image_encoder import ImageTextEncoder
        >>> from pour.models.clip.texts import TextTable
        >>> texts = TextTable(("a cat", "a dog"), torch.eye(4)[:2])
        >>> encoder = ImageTextEncoder(4, width=4, blocks=(1,))
        >>> forgotten = forget_concepts(encoder, "a cat", encode=texts, part="text")
        >>> forgotten(torch.rand(2, 3, 8, 8))[:, 0].abs().max().item() < 1e-6
        True
    """
    start = time.perf_counter()
    model = unwrap(model)
    words = [concepts] if isinstance(concepts, str) else list(concepts)
    text = prompt_embeddings(encode, words, templates)
    if part == "text":
        others = None
    elif others is None:
        others = _texts_to_keep(model, text)
    elif not isinstance(others, Tensor):
        others = prompt_embeddings(encode, list(others), templates)
    rows = concept_directions(text, others, part=part)
    place, *_ = find_place(model)
    settings = {"part": part, "concepts": words, "templates": list(templates)}
    return project_with_entry(model, [projector_along(rows, place)], [place], settings, start=start)


def _texts_to_keep(model: nn.Module, text: Tensor) -> Tensor:
    """Return the texts of a classifier except the text nearest to each concept."""
    if not isinstance(model, ZeroShotClassifier):
        raise UsageError(
            "There are no texts to keep; pass others=, in words or as embeddings, or remove the whole text with "
            'part="text".'
        )
    rows = model.text
    nearest = (_unit_rows(text, "concepts").to(rows) @ rows.T).argmax(dim=1)
    # A class that an earlier request forgot has a row of zeros after folding.
    is_kept = rows.any(dim=1)
    is_kept[nearest] = False
    return rows[is_kept]
