"""A projector behind the layer that computes an image embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from pour.geometry.eraser import Eraser
    from pour.geometry.projector import Projector

__all__ = ["ProjectedEmbedding"]


class ProjectedEmbedding(nn.Module):
    """`P f(x)`: the layer, then the projector, so that the embedding has no component along forgotten directions.

    It replaces the visual projection of a dual encoder, before the embedding is normalised, or the whole image tower if
    the projection is a bare matrix. It has all attributes of the layer.

    Args:
        layer: Layer whose output is the embedding (N, d), or a tuple that starts with it.
        projector: Projector for d features.

    Examples:
        >>> import torch
        >>> from pour.geometry.projector import Projector
        >>> layer = ProjectedEmbedding(nn.Linear(3, 2), Projector.from_directions(torch.tensor([1.0, 0.0])))
        >>> layer(torch.ones(1, 3))[0, 0].item()
        0.0
    """

    def __init__(self, layer: nn.Module, projector: Projector | Eraser) -> None:
        super().__init__()
        self.layer = layer
        self.projector: Projector | Eraser = projector

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer with its embedding projected."""
        output = self.layer(*args, **kwargs)
        if isinstance(output, Tensor):
            return self.projector(output)
        return (self.projector(output[0]), *output[1:])

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the layer, such as the image size of an open_clip tower."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("layer", "projector"):
                raise
            return getattr(super().__getattr__("layer"), name)
