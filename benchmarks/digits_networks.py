"""Ordinary small networks on digits, as a user would train them, to try a method at its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BODIES", "BedData", "PatchTransformer", "accuracies", "bed_data", "bed_network", "plain_classifier"]

_TRAIN_IMAGES = 1200
_CLASSES = 10
_SIDE = 8
_EPOCHS = 30


class PatchTransformer(nn.Module):
    """Two pre-norm transformer layers over 16 patches of 2x2 pixels; the mean token is the feature vector."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, width) of images (n, 1, 8, 8)."""
        tokens = self.embed(images).flatten(2).transpose(1, 2) + self.position
        features: Tensor = self.layers(tokens).mean(dim=1)
        return features


def _convolutions(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        norm(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        norm(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def _dense(hidden: int, width: int) -> nn.Sequential:
    pixels = _SIDE * _SIDE
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU())


BODIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "bn-cnn": (lambda: _convolutions(nn.BatchNorm2d), 64),
    "gn-cnn": (lambda: _convolutions(lambda width: nn.GroupNorm(8, width)), 64),
    "plain-cnn": (lambda: _convolutions(lambda width: nn.Identity()), 64),
    "mlp": (lambda: _dense(128, 64), 64),
    "wide-mlp": (lambda: _dense(512, 256), 256),
    "vit": (PatchTransformer, 48),
}
"""Each body by name: a function that builds it, and the width of its features."""


class _Classifier(nn.Module):
    """A body and a linear head, as a user writes them."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.fc = nn.Linear(width, _CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.body(images))
        return scores


def plain_classifier(body: str) -> nn.Module:
    """Return an untrained classifier with the body of that name."""
    build, width = BODIES[body]
    return _Classifier(build(), width)


@dataclass(frozen=True)
class BedData:
    """Digits as float tensors in [0, 1]: 1,200 training images, the other 597 for testing."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def forget_loader(self, label: int) -> DataLoader[tuple[Tensor, ...]]:
        """Return a shuffling loader of the training images of ``label``, in batches of 64."""
        return self._loader(self.train_labels == label)

    def retain_loader(self, label: int) -> DataLoader[tuple[Tensor, ...]]:
        """Return a shuffling loader of the training images of all other classes, in batches of 64."""
        return self._loader(self.train_labels != label)

    def _loader(self, rows: Tensor) -> DataLoader[tuple[Tensor, ...]]:
        images = TensorDataset(self.train_images[rows], self.train_labels[rows])
        return DataLoader(images, batch_size=64, shuffle=True)


def bed_data() -> BedData:
    """Return scikit-learn's digits, divided once by a fixed permutation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:_TRAIN_IMAGES], order[_TRAIN_IMAGES:]
    return BedData(images[train], labels[train], images[test], labels[test])


def bed_network(body: str, data: BedData, *, seed: int) -> nn.Module:
    """Train the classifier of that name: 30 epochs of AdamW at 3e-3, weight decay 0.05, batches of 64.

    Args:
        body: a name of :data:`BODIES`.
        data: the digits.
        seed: fixes the initial weights and the order of the images.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = plain_classifier(body)
        images, labels = data.train_images, data.train_labels
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
        model.train()
        for _ in range(_EPOCHS):
            for rows in torch.split(torch.randperm(len(labels)), 64):
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(F.cross_entropy(model(images[rows]), labels[rows]))
                optimizer.step()
    return model.eval()


@torch.inference_mode()
def accuracies(model: nn.Module, data: BedData, label: int) -> tuple[float, float]:
    """Return the accuracy in percent on the test images of the other classes, and on those of ``label``."""
    right = (model(data.test_images).argmax(dim=1) == data.test_labels).double()
    is_forgotten = data.test_labels == label
    return 100 * right[~is_forgotten].mean().item(), 100 * right[is_forgotten].mean().item()
