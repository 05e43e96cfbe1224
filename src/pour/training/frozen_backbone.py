"""Train only the head of a pretrained network, on features that are computed once."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.data.splits import Splits
from pour.errors import UsageError
from pour.models.card import set_class_names
from pour.models.copy_and_swap import copy_model
from pour.models.head import find_head
from pour.models.networks.registry import build_model
from pour.models.networks.user_network import is_user_network
from pour.models.state import load_into, read_state_dict, write_tensors
from pour.models.tap import extract_features, fast_encoder
from pour.training.loop import TrainingLog, fit
from pour.training.tasks.task import record_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pour.data.classes import ClassRequest
    from pour.data.dataset import ImageDataset
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["FrozenBackbone", "HeadShape"]

HeadShape = Literal["free", "simplex"]
"""free: any weights. simplex: rows at equal angles and of equal norm, no bias, as after Neural Collapse."""

_GPU_BATCH = 1000
_CPU_BATCH = 64
# Root mean square norm of the features during the optimisation, so that a recipe's learning rate and weight decay have
# the same effect for every backbone. Afterwards the weights of the head contain the scale.
_FEATURE_NORM = 4.0


@dataclass(eq=False)
class FrozenBackbone:
    """A network with a fixed encoder. Its heads are trained on its features in seconds.

    The features of the training images without augmentation are computed once. An original and its retrained reference
    share them, and their encoders are equal to the last bit.

    Args:
        dataset: Training images.
        arch: Name of a network of another library, from `pour.list_models`.
        weights: File of weights, or a name of `pour.models.PRETRAINED`. A classifier in it is left out.
        image_size: Size to which the network resizes images on the device; by default its native size.
        head: Shape of the head, see `HeadShape`.
    """

    dataset: ImageDataset
    arch: str
    weights: str | Path
    image_size: int | None = None
    head: HeadShape = "free"
    _features: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.head not in get_args(HeadShape):
            raise UsageError(f"The head must be free or simplex, but is {self.head!r}.")

    def build(self) -> nn.Module:
        """Return the network with a head of zeros, in evaluation mode."""
        return copy_model(self._network)

    def train_head(self, recipe: Recipe, run: Run, *, without: ClassRequest = ()) -> tuple[nn.Module, TrainingLog]:
        """Return a network with a newly trained head; with `without`, the retrained reference.

        The head is multinomial logistic regression in float32. A frozen encoder cannot collapse, so the rows of a free
        head are no simplex, and the projection of one row moves the other rows unevenly. A simplex head has
        W = s T U^T with the simplex's coordinates T (C, C-1) and trained orthonormal columns U (d, C-1). Then POUR-P
        keeps the decisions between retained classes exactly, for all features. POUR does not need a simplex head, so
        results must report it.

        Args:
            recipe: Training; `augment` must be off, because the features are computed once.
            run: Seed, device, progress bar.
            without: Classes whose images are left out, by name or index.
        """
        if recipe.augment:
            raise UsageError(
                f"The recipe {recipe.name!r} augments images, but a frozen backbone sees each of them once; "
                "use the recipe head."
            )
        features, labels = self._training_features(run)
        if without not in ((), []):
            forgotten = torch.tensor(Splits.of(self.dataset, without).forgotten, device=labels.device)
            retained = ~torch.isin(labels, forgotten)
            features, labels = features[retained], labels[retained]
        scale = _FEATURE_NORM / features.square().sum(dim=1).mean().sqrt()
        model = self.build()
        layer = find_head(model).layer
        with run.seeded():
            kind = _SimplexHead if self.head == "simplex" else nn.Linear
            head = kind(features.shape[1], self.dataset.num_classes)
        if isinstance(head, nn.Linear):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        batches = _FeatureBatches(features * scale, labels, batch_size=recipe.batch_size, seed=run.seed)
        exact = dataclasses.replace(run, precision="fp32")
        words = f"training the head of {self.arch}"
        log = fit(head, batches, recipe, exact, description=words)
        with torch.no_grad():
            layer.weight.copy_((head.weight * scale).view_as(layer.weight))
            if layer.bias is not None and isinstance(head, nn.Linear):
                layer.bias.copy_(head.bias)
        return model, log

    def save_head(self, model: nn.Module, path: Path) -> None:
        """Write only the head of a network. The file of weights contains the encoder."""
        write_tensors(find_head(model).layer.state_dict(), path)

    def load_head(self, path: Path) -> nn.Module:
        """Return the network with the head that `save_head` wrote."""
        model = self.build()
        load_into(find_head(model).layer, read_state_dict(path), source=str(path))
        return model

    @cached_property
    def _network(self) -> nn.Module:
        height, _, channels = self.dataset.image_shape
        with warnings.catch_warnings():
            # Pretrained weights usually contain a classifier of other classes.
            warnings.filterwarnings("ignore", message=".* holds no classifier for ")
            network = build_model(
                self.arch,
                self.dataset.num_classes,
                in_channels=channels,
                image_size=height,
                resize="own" if self.image_size is None else self.image_size,
                weights=self.weights,
            )
        set_class_names(network, self.dataset.classes)
        if is_user_network(self.arch):
            record_head(network, self.dataset.splits["train"])
        with torch.no_grad():
            for parameter in find_head(network).layer.parameters():
                parameter.zero_()
        return network.eval()

    def _training_features(self, run: Run) -> tuple[Tensor, Tensor]:
        """Return features of the training images, (n, d) in float32 on the run's device, and their labels."""
        device = run.torch_device
        split = self.dataset.splits["train"]
        if device not in self._features:
            size = _GPU_BATCH if device.type == "cuda" else _CPU_BATCH
            loader = split.batches(size, device)
            network = self.build().to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            with fast_encoder(network, find_head(network).name, enabled=device.type == "cuda"):
                features = extract_features(network, loader, device=device).features
            if features.ndim != 2:
                raise UsageError(
                    f"{self.arch} gives features of {features.ndim - 1} dimensions; a frozen backbone needs one."
                )
            self._features[device] = features.float()
        return self._features[device], torch.as_tensor(split.labels, dtype=torch.int64, device=device)


class _SimplexHead(nn.Module):
    """`s T U^T z`. The rows have equal norms and equal angles, and sum to zero."""

    corners: Tensor

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        if width < classes - 1:
            raise UsageError(f"A simplex of {classes} classes needs {classes - 1} features, but there are {width}.")
        self.columns = nn.Parameter(torch.randn(width, classes - 1) / width**0.5)
        self.log_scale = nn.Parameter(torch.ones(()))
        centred = torch.eye(classes) - 1 / classes
        self.register_buffer("corners", torch.linalg.qr(centred[:, :-1]).Q)

    @property
    def weight(self) -> Tensor:
        """W, (C, d)."""
        # Gram-Schmidt, because a CUDA graph cannot capture the decomposition of a library.
        rows: list[Tensor] = []
        for column in self.columns.unbind(dim=1):
            if rows:
                before = torch.stack(rows)
                column = column - (before @ column) @ before
            rows.append(column / torch.linalg.vector_norm(column))
        matrix: Tensor = self.log_scale.exp() * self.corners @ torch.stack(rows)
        return matrix

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight)


class _FeatureBatches:
    """Shuffled batches of feature vectors on the device. Only seed and epoch decide the order."""

    def __init__(self, features: Tensor, labels: Tensor, *, batch_size: int, seed: int) -> None:
        self._features, self._labels = features, labels
        self.batch_size = min(batch_size, len(features))
        self._seed = seed

    def __len__(self) -> int:
        return len(self._features) // self.batch_size

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the full batches of epoch `number`."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        order = torch.randperm(len(self._features), generator=generator).to(self._features.device)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = order[start : start + self.batch_size]
            yield self._features[rows], self._labels[rows]
