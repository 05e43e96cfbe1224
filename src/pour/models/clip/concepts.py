"""Forgetting what a text says: directions from text embeddings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models import card as cards
from pour.models.clip.texts import prompt_embeddings
from pour.models.clip.zero_shot import ZeroShotClassifier
from pour.models.history import history
from pour.models.projecting.forget import forget
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.models.clip.texts import TextEncoder

__all__ = ["SHRINKAGE", "ConceptDirection", "concept_directions", "forget_concepts"]

ConceptDirection = Literal["text", "centered", "specific"]
"""What is removed of a concept's text: all of it (the paper), what the average text lacks, or what the others lack."""
# Much of the identity, or an encoder trained to full collapse keeps the concept: its embeddings of a class lie mostly
# where the texts hardly vary. Some of the covariance spares related concepts.
SHRINKAGE = 0.9
"""Share of the identity in the covariance of "specific"."""


def concept_directions(
    concepts: Tensor, others: Tensor | None = None, *, direction: ConceptDirection = "text"
) -> Tensor:
    r"""The directions to remove from an image embedding so that it no longer shows ``concepts``.

    With the unit text embedding t of a concept, beside those of what is to be kept:

    * "text": :math:`t`, as in the paper. Texts have much in common, so this takes from every image something that
      other concepts are read from. The concept's score is then 0 for every image, which is still the highest one where
      all others are negative: with few texts, and an encoder trained to tell them apart, it may stay the answer.
    * "centered": :math:`t - m`, the concept less the mean m of the others.
    * "specific": :math:`\Sigma^{-1} (t - m)` with :math:`\Sigma = 0.1\,C + 0.9\,\tfrac{\mathrm{tr}\,C}{d} I` and C the
      covariance of the others: the direction v with :math:`(t - m) \cdot v = 1` along which the others vary least,
      Fisher's discriminant of the concept against them with its usual shrinkage. It spares some of what related
      concepts are read from.

    Args:
        concepts: (k, d) or (d,) text embeddings of what is to be forgotten.
        others: (m, d) text embeddings of what is to be kept; needed but for "text".
        direction: Which of the three.

    Returns:
        (k, d) unit rows.

    Example:
        >>> forgotten, kept = torch.tensor([1.0, 0.0, 0.0]), torch.eye(3)[1:]
        >>> concept_directions(forgotten, kept, direction="centered")
        tensor([[ 0.8165, -0.4082, -0.4082]])
    """
    if direction not in get_args(ConceptDirection):
        choices = ", ".join(repr(choice) for choice in get_args(ConceptDirection))
        raise UsageError(f"direction is {direction!r}; choose one of {choices}.")
    wanted = _units(concepts, "concepts")
    if direction == "text":
        return wanted
    if others is None:
        raise UsageError(f"direction={direction!r} needs the texts that are to be kept; pass others=.")
    kept = _units(others, "others").to(wanted)
    if kept.shape[1] != wanted.shape[1]:
        raise UsageError(f"The concepts have width {wanted.shape[1]} and the others {kept.shape[1]}; embed them alike.")
    mean = kept.mean(dim=0)
    found = wanted - mean
    if direction == "specific":
        rows = (kept - mean).double().cpu()
        covariance = rows.T @ rows / len(rows)
        level = covariance.trace() / len(covariance)
        if level > 0:
            covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * level * torch.eye(len(covariance)).double()
            found = torch.linalg.solve(covariance, found.double().cpu().T).T.to(wanted)
    if not bool(found.any(dim=1).all()):
        raise UsageError("A concept's text is the mean of the others', so nothing of it is its own; name it otherwise.")
    return F.normalize(found, dim=1)


def _units(embeddings: Tensor, name: str) -> Tensor:
    rows = embeddings.unsqueeze(0) if embeddings.ndim == 1 else embeddings
    if rows.ndim != 2 or 0 in rows.shape or not rows.is_floating_point():
        raise UsageError(f"{name} must be floating-point embeddings of shape (k, d) or (d,).")
    wide = rows.detach().to(torch.promote_types(rows.dtype, torch.float32))
    return F.normalize(wide, dim=1)


def forget_concepts(
    model: nn.Module,
    concepts: str | Sequence[str],
    *,
    encode: TextEncoder,
    others: Sequence[str] | Tensor | None = None,
    direction: ConceptDirection = "specific",
    templates: Sequence[str] = ("{}",),
) -> nn.Module:
    """Return a copy of a dual encoder, or of a zero-shot classifier, whose image embedding lacks what texts say.

    No image is needed. :func:`pour.fold` then merges the projection into the visual projection.

    Args:
        model: transformers' ``CLIPModel`` or ``SiglipModel``, a model of open_clip or ours, or a classifier of one.
        concepts: What to forget, in words; all at once.
        encode: The text encoder of the same space, see :func:`pour.models.text_encoder`.
        others: What to keep, in words or as embeddings, for the directions that need it; by default the texts of a
            classifier, but for the one nearest to each concept.
        direction: Which part of the texts to remove, see :func:`concept_directions`; "text" is the paper's.
        templates: Put around each concept, and averaged.

    Example:
        >>> from pour.models.clip.image_encoder import ImageTextEncoder
        >>> from pour.models.clip.texts import TextTable
        >>> texts = TextTable(("a cat", "a dog"), torch.eye(4)[:2])
        >>> encoder = ImageTextEncoder(4, width=4, blocks=(1,))
        >>> forgotten = forget_concepts(encoder, "a cat", encode=texts, direction="text")
        >>> forgotten(torch.rand(2, 3, 8, 8))[:, 0].abs().max().item() < 1e-6
        True
    """
    wanted = [concepts] if isinstance(concepts, str) else list(concepts)
    text = prompt_embeddings(encode, wanted, templates)
    kept: Tensor | None = None
    if direction != "text":
        kept = _kept(model, text, others, encode, templates)
    result = forget(model, directions=concept_directions(text, kept, direction=direction))
    # What was asked for in words belongs to the history.
    *before, last = history(result)
    said = {**last.options, "direction": direction, "concepts": wanted, "templates": list(templates)}
    entries = (*before, dataclasses.replace(last, options=said))
    cards.write_card(result, dataclasses.replace(cards.card_of(result), history=entries))
    return result


def _kept(
    model: nn.Module,
    text: Tensor,
    others: Sequence[str] | Tensor | None,
    encode: TextEncoder,
    templates: Sequence[str],
) -> Tensor:
    if isinstance(others, Tensor):
        return others
    if others is not None:
        return prompt_embeddings(encode, list(others), templates)
    classifier = unwrap(model)
    if not isinstance(classifier, ZeroShotClassifier):
        raise UsageError(
            "Which texts are to be kept is not known; pass others=, in words or as embeddings, or remove the whole "
            'text with direction="text".'
        )
    rows = classifier.text
    nearest = (_units(text, "concepts").to(rows) @ rows.T).argmax(dim=1)
    # A class that was forgotten before and folded has a row of zeros.
    left = rows.any(dim=1)
    left[nearest] = False
    return rows[left]
