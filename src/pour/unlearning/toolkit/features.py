"""Features of images as rows (n, d), for heads on vectors, token sequences and maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pour.models.modes import evaluating
from pour.models.tap import checked_batches, tap_features, to_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from pour.models.head import Head
    from pour.training.run import Run

__all__ = ["feature_rows", "pool_features"]


def feature_rows(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features of each batch as rows (n, d) in float32, and one label per row; a map has a row per position.

    Args:
        model: Classifier; it is moved to the device of the run.
        head: Head of the model.
        batches: Images and labels.
        run: Device.
    """
    model.to(run.torch_device)
    with evaluating(model), tap_features(model, head) as tap:
        for images, labels in checked_batches(batches):
            with torch.no_grad():
                model(to_unit(images.to(run.torch_device)))
            features = tap.features.movedim(head.dim, -1).float()
            positions = features.flatten(1, -2).shape[1] if features.ndim > 2 else 1
            yield features.reshape(-1, head.num_features), labels.to(features.device).repeat_interleave(positions)


def pool_features(features: Tensor, dim: int) -> Tensor:
    """Return features (n, d), averaged over the positions of token sequences and maps.

    Args:
        features: Features whose dimension ``dim`` has the size d.
        dim: -1 for vectors and tokens, 1 for maps.

    Example:
        >>> pool_features(torch.zeros(2, 64, 4, 4), 1).shape, pool_features(torch.zeros(2, 64), -1).shape
        (torch.Size([2, 64]), torch.Size([2, 64]))
    """
    return features if features.ndim == 2 else features.movedim(dim, -1).flatten(1, -2).mean(dim=1)
