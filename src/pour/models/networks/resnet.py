"""The paper's ResNet for small images: 3x3 stem with stride 1, no max-pool, basic blocks, average pool, linear head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pour.errors import UsageError
from pour.models.networks.normalize import Normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CIFAR_MEAN", "CIFAR_STD", "ResNet"]

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm around an identity (or 1x1) shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18 for 32x32 images by default, whose features are averages of the last map.

    It takes images in [0, 1] of shape (N, in_channels, H, W) and returns scores (N, num_classes). The first layer
    normalises. The features are `width * 2**(stages - 1)` numbers. Weights of convolutions are drawn from Kaiming's
    normal distribution over fan-out.

    Args:
        num_classes: Number of scores.
        in_channels: Channels of the images.
        width: Channels of the first stage; each later stage doubles them and halves the map.
        blocks: Basic blocks in each stage; (2, 2, 2, 2) is ResNet-18.
        mean: Channel means of the images. By default the means of CIFAR-10 for three channels, otherwise 0.5.
        std: Channel deviations of the images. By default those of CIFAR-10 for three channels, otherwise 0.25.

    Examples:
        >>> model = ResNet(10, width=8, blocks=(1, 1))
        >>> model(torch.rand(2, 3, 32, 32)).shape, model.head.in_features
        (torch.Size([2, 10]), 16)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        width: int = 64,
        blocks: Sequence[int] = (2, 2, 2, 2),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2 or in_channels < 1 or width < 1 or not blocks or min(blocks) < 1:
            raise UsageError(
                "A ResNet needs at least 2 classes, 1 channel, width 1 and one block per stage, but got "
                f"{num_classes} classes, {in_channels} channels, width {width} and blocks {tuple(blocks)}."
            )
        cifar = (CIFAR_MEAN, CIFAR_STD)
        default_mean, default_std = cifar if in_channels == 3 else ((0.5,) * in_channels, (0.25,) * in_channels)
        self.normalize = Normalize(default_mean if mean is None else mean, default_std if std is None else std)
        self.stem = nn.Sequential(_conv3x3(in_channels, width, 1), nn.BatchNorm2d(width), nn.ReLU())
        layers: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """Compute the input of the head: (N, d) averages of the last feature map."""
        maps = self.blocks(self.stem(self.normalize(images)))
        return torch.mean(maps, dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores (N, num_classes) of images (N, in_channels, H, W) in [0, 1]."""
        scores: Tensor = self.head(self.features(images))
        return scores
