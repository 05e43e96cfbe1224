"""How long a full audit of a CIFAR-sized ResNet-18 takes: cold, and with the references' features cached.

    python benchmarks/audit.py --device cuda                              made-up images of CIFAR-10's size and number
    python benchmarks/audit.py --data cifar10 --root DIR --device cuda    the real ones
    python benchmarks/audit.py --device cpu --limit 2000 --train 2000 --epochs 1 --method delete     on a CPU

The networks are trained for a moment first, because attacks and probes take longer on features without structure; or
give files of trained ones (--original, --retrained). A method that leaves the encoder alone, such as the default one,
spares a CPU the run of the unlearned model.
"""

import argparse
import cProfile
import json
import pstats
import shlex
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import pour
from pour._io import write_text
from pour._memory import keep_freed_memory
from pour._provenance import circumstances
from pour.auditing import AuditReport, audit
from pour.data import ImageDataset, ImageSplit
from pour.data.splits import Splits
from pour.training import Run, get_recipe
from pour.training.tasks.classify import Classify


def made_up(train: int, test: int, seed: int = 0) -> ImageDataset:
    """Ten classes of blurred patterns in noise, of CIFAR-10's size."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(10, 8, 8, 3)).repeat(4, axis=1).repeat(4, axis=2)

    def split(count: int) -> ImageSplit:
        labels = np.arange(count) % 10
        images = np.empty((count, 32, 32, 3), np.uint8)
        for rows in np.array_split(np.arange(count), max(1, count // 2000)):
            noise = rng.normal(size=(len(rows), 32, 32, 3)).astype(np.float32)
            pixels = 128 + 20 * patterns[labels[rows]] * rng.uniform(0.3, 1.5, (len(rows), 1, 1, 1)) + 60 * noise
            images[rows] = pixels.clip(0, 255)
        return ImageSplit(images, labels)

    return ImageDataset("made-up", tuple("abcdefghij"), {"train": split(train), "test": split(test)})


def references(options: argparse.Namespace, data: ImageDataset, forgotten: str) -> list[torch.nn.Module]:
    """The original and the retrained model: from their files, or trained for a moment."""
    if options.original and options.retrained:
        return [pour.load(path) for path in (options.original, options.retrained)]
    recipe = get_recipe("fast").change(epochs=options.epochs)
    runs = (Run(seed=seed, device=options.device, progress=False) for seed in (0, 1))
    return [
        Classify().train(data, recipe, run, arch="resnet18", without=without)[0]
        for run, without in zip(runs, ((), (forgotten,)), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="a dataset's name; by default made-up images")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--train", type=int, default=50_000, help="made-up training images")
    parser.add_argument("--test", type=int, default=10_000, help="made-up test images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--original", type=Path, help="a model file, with --retrained, instead of training")
    parser.add_argument("--retrained", type=Path)
    parser.add_argument("--method", default="masked-head", help="how the audited model forgets")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    keep_freed_memory()

    data = pour.load_dataset(options.data, options.root) if options.data else made_up(options.train, options.test)
    forgotten = data.classes[0]
    original, retrained = references(options, data, forgotten)
    splits = Splits.of(data, [forgotten])
    request = pour.ForgetRequest.of(splits)
    unlearned = pour.unlearn(original, request, method=options.method, device=options.device, progress=False)

    def timed(cache: str | None, everything: bool = False) -> tuple[float, AuditReport]:
        started = time.perf_counter()
        report = audit(
            original=original,
            unlearned=unlearned,
            retrained=retrained,
            data=splits,
            device=options.device,
            limit=options.limit,
            cache=cache,
            cache_unlearned=everything,
            progress=False,
        )
        return time.perf_counter() - started, report

    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        # The first run of a process also loads kernels; both are shown.
        seconds["first"], report = timed(None)
        if options.device != "cpu":
            seconds["second"], _ = timed(None)
        seconds["cold, writing the cache"], _ = timed(folder)
        seconds["references cached"], again = timed(folder)
        timed(folder, everything=True)
        seconds["all cached"], _ = timed(folder, everything=True)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(timed, folder)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    drift = max(abs(value - again.values()[name]) for name, value in report.values().items())
    facts = {
        **circumstances(torch.device(options.device), "fp32"),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["python", *sys.argv]),
        "data": data.name,
        "limit": options.limit,
        "models": "files" if options.original else f"trained for {options.epochs} epochs",
        "images": {name: len(split) for name, split in data.splits.items()},
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "largest difference between runs": drift,
    }
    print(json.dumps(facts, indent=1))
    print(report)
    if options.json:
        write_text(options.json, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
