"""Measure `pour.unlearn` without any option on networks of real images.

    python benchmarks/real_networks.py cifar10-small --root DIR          the network of tests/networks: three classes
    python benchmarks/real_networks.py efficientnet-lite0 --root DIR     pretrained, fine-tuned on 4,000 of CIFAR-10
    python benchmarks/real_networks.py dinov2-small --root DIR           likewise, a ViT-S/14

A pretrained network gets a linear head on its frozen features and is then fine-tuned whole, all in the run. Accuracies
are of test images: all 10,000 for the small network, 1,000 for a pretrained one. "Encoder" is the original head on the
new encoder, without the projector. ``--method`` measures another method at its defaults. Results go to
``results/first_call/NETWORK.json``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from first_call import without_projector
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pour
from pour._io import write_text
from pour._provenance import circumstances
from pour.models.head import find_head
from pour.models.networks.pretrained import PRETRAINED
from pour.models.networks.registry import build_model
from pour.models.tap import extract_features

if TYPE_CHECKING:
    from pour.data.dataset import ImageSplit

HERE = Path(__file__).parent.parent
SMALL = HERE / "tests" / "networks" / "original.safetensors"
TRAIN_IMAGES, TEST_IMAGES, BATCH = 4000, 1000, 64
# Image size inside the network, and the rate of fine-tuning.
SIZES = {"efficientnet-lite0": (64, 3e-4), "dinov2-small": (28, 2e-5)}


def tensors(split: ImageSplit, count: int | None) -> tuple[Tensor, Tensor]:
    """Return ``count`` random images of a split in [0, 1], channels first, and their labels."""
    rows = np.random.default_rng(0).permutation(len(split.labels))[:count]
    images = torch.from_numpy(np.ascontiguousarray(split.images[rows])).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(split.labels[rows]).long()


def fine_tuned(name: str, images: Tensor, labels: Tensor) -> nn.Module:
    """Return the pretrained network with a head fitted on its features, then trained whole for two epochs."""
    size, rate = SIZES[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = build_model(PRETRAINED[name].arch, 10, in_channels=3, image_size=32, resize=size, weights=name)
    layer = find_head(model).layer
    batches = list(zip(images.split(100), labels.split(100), strict=True))
    features = extract_features(model, batches).features
    scale = 4 / features.square().sum(dim=1).mean().sqrt()
    head = nn.Linear(features.shape[1], 10)
    train(head, features * scale, labels, epochs=60, batch_size=128, rate=3e-3, weight_decay=0.05, flip=False)
    with torch.no_grad():
        layer.weight.copy_(head.weight * scale)
        layer.bias.copy_(head.bias)
    train(model, images, labels, epochs=2, batch_size=BATCH, rate=rate, weight_decay=0.01, flip=True)
    return model.eval()


def train(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int,
    rate: float,
    weight_decay: float,
    flip: bool,
) -> None:
    """Train with AdamW, a short warm-up and half a cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=weight_decay)
    batches = len(labels) // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches, pct_start=0.05)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch_size)[:batches]:
            batch = inputs[rows]
            if flip:
                batch = torch.where((torch.rand(len(rows)) < 0.5).view(-1, 1, 1, 1), batch.flip(3), batch)
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(batch), labels[rows]).backward()
            optimizer.step()
            schedule.step()


@torch.inference_mode()
def accuracies(model: nn.Module, images: Tensor, labels: Tensor, label: int) -> tuple[float, float]:
    """Return the accuracy in percent on the other classes and on ``label``."""
    right = torch.cat([model(batch).argmax(dim=1) for batch in images.split(250)]) == labels
    is_label = labels == label
    return 100 * right[~is_label].double().mean().item(), 100 * right[is_label].double().mean().item()


def measure(model: nn.Module, method: str, data: dict[str, tuple[Tensor, Tensor]], label: int) -> dict[str, Any]:
    """Forget `label` with every option at its default. Return the accuracies and the time."""
    images, labels = data["train"]
    rows = labels == label
    loader = DataLoader(TensorDataset(images[rows], labels[rows]), batch_size=BATCH, shuffle=True)
    request = pour.ForgetRequest(classes=[label], forget=loader)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        student = pour.unlearn(model, request, method=method, progress=False, device="cpu")
    seconds = time.perf_counter() - started
    record = pour.history(student)[-1]
    found = {
        "class": label,
        "method": method,
        "forget_images": int(rows.sum()),
        "original": accuracies(model, *data["test"], label),
        "released": accuracies(student, *data["test"], label),
        "encoder": accuracies(without_projector(student), *data["test"], label),
        "seconds": seconds,
        "steps": record.steps,
        "chosen": {name: record.options.get(name) for name in ("direction", "anchor", "lr")},
        "log": list(record.log),
        "warnings": [str(warning.message) for warning in raised if issubclass(warning.category, UserWarning)],
    }
    values = ", ".join(
        f"{name} {found[name][0]:.1f} / {found[name][1]:.1f}" for name in ("original", "released", "encoder")
    )
    print(f"class {label}, {method}: {values}, {seconds:.0f} s, {record.steps} steps, {found['chosen']}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["cifar10-small", *SIZES])
    parser.add_argument("--root", required=True, help="folder of the datasets")
    parser.add_argument("--classes", default=None, help="labels, separated by commas; by default 0,8,4 or 1")
    parser.add_argument("--method", default="pour-a")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    dataset = pour.load_dataset("cifar10", args.root)
    small = args.network == "cifar10-small"
    sizes = {"train": None if small else TRAIN_IMAGES, "test": None if small else TEST_IMAGES}
    data = {name: tensors(dataset.splits[name], count) for name, count in sizes.items()}
    started = time.perf_counter()
    model = pour.load(SMALL) if small else fine_tuned(args.network, *data["train"])
    training = time.perf_counter() - started
    classes = args.classes or ("0,8,4" if small else "1")
    rows = [measure(model, args.method, data, int(label)) for label in classes.split(",")]
    suffix = "" if args.method == "pour-a" else f"-{args.method}"
    out = args.out or HERE / "results" / "first_call" / f"{args.network}{suffix}.json"
    facts = {**circumstances(torch.device("cpu"), "fp32"), "command": shlex.join(["python", *sys.argv])}
    facts |= {"threads": torch.get_num_threads(), "training_seconds": training}
    write_text(out, json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
