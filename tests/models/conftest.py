"""Fixtures of the models room."""

from __future__ import annotations

import pytest
import torch
from model_families import CLASSES
from torch import Tensor, nn

from pour.models import ResNet


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def small() -> nn.Module:
    """A small ResNet in evaluation mode."""
    torch.manual_seed(0)
    return ResNet(CLASSES, width=4, blocks=(1, 1)).eval()
