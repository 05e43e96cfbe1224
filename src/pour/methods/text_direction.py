"""Text direction: project the text embeddings of the forgotten classes out of a dual encoder's image embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from pour.errors import UsageError
from pour.models.card import names_of_scores
from pour.models.clip.concepts import concept_directions
from pour.models.clip.texts import prompt_embeddings
from pour.models.projecting.project import projector_along
from pour.unlearning.contract import option
from pour.unlearning.forget_only import forgotten_classes
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.projecting import ProjectingMethod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from pour.geometry.projector import Projector
    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["TextDirection"]


@register
@dataclass(kw_only=True)
class TextDirection(ProjectingMethod):
    """Project text embeddings of the forgotten classes out of the image embeddings; closed form, no images.

    The image embedding z becomes P z with P = I - Q^T Q, Q an orthonormal basis of one direction per class. Let t be
    the unit embedding of the class's text, and m and C the mean and the covariance of the retained classes' text
    embeddings. The direction is t (text, as in the paper), t - m (centered) or (0.1 C + 0.9 tr(C)/d I)^-1 (t - m)
    (specific). The text encoder of the request embeds the texts. Without an encoder, the rows of the head are the
    embeddings.
    """

    name: ClassVar[str] = "text-direction"
    paper: ClassVar[str] = "POUR (Le et al., CVPR 2026)"
    needs: ClassVar[tuple[Need, ...]] = ()
    accepts: ClassVar[tuple[Need, ...]] = ("encode",)
    cost: ClassVar[str] = "below a second"
    pixelwise: ClassVar[bool] = True

    part: Literal["specific", "text", "centered", "random"] = option(
        "specific", "Part of the text to remove: specific, text (the paper) or centered; random is a control."
    )
    prompt: str = option("a photo of a {}.", "Sentence to embed, in which {} is replaced by the name of a class.")

    def removal(self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run) -> Projector:
        """Return the projector onto the complement of the text directions."""
        if self.part == "random":
            generator = torch.Generator().manual_seed(1_000_003 * run.seed + sum(classes))
            directions = torch.randn(len(classes), head.num_features, generator=generator)
        else:
            forgotten = forgotten_classes(model, request)
            retained = [label for label in range(head.num_classes) if label not in forgotten]
            concepts = self._embeddings(model, head, classes, request)
            others = None if self.part == "text" else self._embeddings(model, head, retained, request)
            directions = concept_directions(concepts, others, part=self.part)
        return projector_along(directions, head)

    def _embeddings(self, model: nn.Module, head: Head, classes: Sequence[int], request: Granted) -> Tensor:
        """Return the embeddings (n, d) of the texts of `classes`."""
        if not request.has("encode"):
            return head.weight[list(classes)]
        names = names_of_scores(model, head.num_classes)
        if names is None:
            raise UsageError("The model has no class names to make texts of; set them (pour.models.set_class_names).")
        return prompt_embeddings(request.encode, [names[label] for label in classes], (self.prompt,))
