"""A folder as an engineer has it: a network in a file, its plain weights, and digits as arrays."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import pour

if TYPE_CHECKING:
    from pathlib import Path

MEAN, STD = 0.5, 0.25
SOURCE = '''
import torch
from torch import nn


class Net(nn.Module):
    """Two linear layers, so that only images show which of them is the head."""

    def __init__(self, n_classes=10, norm=nn.BatchNorm2d):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.n1 = norm(8)
        self.c2 = nn.Conv2d(8, 32, 3, padding=1)
        self.n2 = norm(32)
        self.hidden = nn.Linear(128, 24)
        self.out = nn.Linear(24, n_classes)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.n1(self.c1(x))), 2)
        x = torch.max_pool2d(torch.relu(self.n2(self.c2(x))), 2)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


def plain(num_classes):
    return Net(num_classes, norm=nn.Identity)


def fixed():
    return Net(10)
'''


def write_network(folder: Path, name: str = "mynet") -> Any:
    """Write the file of the network, and return it as a module."""
    path = folder / f"{name}.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(f"own_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def train(network: nn.Module, images: np.ndarray, labels: np.ndarray, *, epochs: int = 4) -> None:
    """Train on normalised images, as code without pour does."""
    inputs = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - MEAN) / STD
    targets = torch.from_numpy(labels).long()
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    draw = torch.Generator().manual_seed(0)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs), generator=draw).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[rows]), targets[rows]).backward()
            optimizer.step()
    network.eval()


def write_folder(folder: Path) -> None:
    """Write ``mynet.py``, ``digits.npz``, and the weights ``net.pt`` (with BatchNorm) and ``plain.pt`` (without)."""
    digits = pour.load_dataset("digits").splits
    arrays = {}
    for name, split in digits.items():
        arrays |= {f"{name}_x": split.images, f"{name}_y": split.labels}
    np.savez(folder / "digits.npz", **arrays)
    module = write_network(folder)
    for name, build in (("net", module.Net), ("plain", lambda: module.plain(10))):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = build()
            train(network, digits["train"].images, digits["train"].labels)
        torch.save(network.state_dict(), folder / f"{name}.pt")
