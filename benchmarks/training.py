"""Measure the speed of the training loop, in comparison with the loops of other packages on the same network.

All loops run in one process and on one device:

* pour: images on the device, crops and flips there, bf16, compiled, whole steps as CUDA graphs;
* fp32 eager: a torchvision-style DataLoader with worker processes (PIL image, crop, flip, tensor) and a plain float32
  training step that reads its loss, everything else as PyTorch sets it;
* fp32 eager, deterministic: the same with ``cudnn.deterministic``, as SalUn's and l1-sparse's published code runs it;
* compiled bf16 on that DataLoader: our step, the rivals' input.

    python benchmarks/training.py                                   a small case for the CPU
    python benchmarks/training.py --images 50000 --batch-size 512   the CIFAR case, for a GPU
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pour._torchvision import torchvision_works
from pour.data.augment import Augment
from pour.data.loader import DeviceLoader
from pour.models import build_model
from pour.models.networks.resnet import CIFAR_MEAN, CIFAR_STD
from pour.training import Recipe, Run, fit

torchvision_works()


class DecodedImages(Dataset):
    """Dataset that transforms one PIL image at a time with torchvision, as torchvision's CIFAR-10 does."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        from torchvision import transforms

        self.images, self.labels = images, labels
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(images.shape[1], padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


def plain_fp32(loader: DataLoader, device: torch.device, epochs: int, *, deterministic: bool) -> float:
    """Return the images per second of the plain loop, after its first epoch."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=deterministic):
        return _plain_fp32(loader, device, epochs)


def _plain_fp32(loader: DataLoader, device: torch.device, epochs: int) -> float:
    torch.manual_seed(0)
    model = build_model("resnet18", 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    criterion = nn.CrossEntropyLoss()
    model.train()
    rates = []
    for _ in range(epochs):
        seen, shown, started = 0, 0.0, time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            seen += len(labels)
            shown += loss.item()
        rates.append(seen / (time.perf_counter() - started))
    return float(np.median(rates[1:]))


def our_loop(batches: object, device: torch.device, batch_size: int, epochs: int) -> tuple[float, float]:
    """Return the images per second after the first epoch, and the seconds of the first epoch (with compilation)."""
    run = Run(device=device, progress=False)
    torch.manual_seed(0)
    model = build_model("resnet18", 10)
    log = fit(model, batches, Recipe(epochs=epochs, batch_size=batch_size, lr=0.1), run, compile=device.type == "cuda")
    per_epoch = log.images / len(log.epoch_seconds)
    return per_epoch / float(np.median(log.epoch_seconds[1:])), log.epoch_seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (args.images, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, args.images)

    def data_loader() -> DataLoader:
        return DataLoader(
            DecodedImages(images, labels),
            batch_size=args.batch_size,
            shuffle=True,
            num_workers=args.workers,
            pin_memory=device.type == "cuda",
            drop_last=True,
        )

    resident = DeviceLoader(
        images,
        labels,
        batch_size=args.batch_size,
        device=device,
        shuffle=True,
        augment=Augment.for_images(32),
        drop_last=True,
    )
    ours, first = our_loop(resident, device, args.batch_size, max(3, args.epochs * (5 if device.type == "cuda" else 1)))
    fp32 = plain_fp32(data_loader(), device, args.epochs, deterministic=False)
    fixed = plain_fp32(data_loader(), device, args.epochs, deterministic=True)
    fed, _ = our_loop(data_loader(), device, args.batch_size, args.epochs)
    result = {
        "model": "resnet18, 10 classes, 32x32",
        "images": args.images,
        "batch_size": args.batch_size,
        "workers": args.workers,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
        "normalisation": {"mean": CIFAR_MEAN, "std": CIFAR_STD},
        "images_per_second": {
            "ours": ours,
            "fp32 eager, DataLoader": fp32,
            "fp32 eager, deterministic, DataLoader": fixed,
            "compiled bf16, DataLoader": fed,
        },
        "ratio": {
            "over fp32 eager": ours / fp32,
            "over fp32 eager, deterministic": ours / fixed,
            "over compiled bf16 on a DataLoader": ours / fed,
        },
        "seconds_of_first_epoch": first,
    }
    for name, value in result["images_per_second"].items():
        print(f"{name:40s} {value:10.0f} images/s")
    for name, value in result["ratio"].items():
        print(f"ratio {name:34s} {value:6.2f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
