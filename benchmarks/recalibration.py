"""Measure whether a forgotten class returns if BatchNorm's statistics are computed again on retained images.

Methods that read forget images alone freeze the statistics and fit the network to them. Recalibration is common before
a network is quantised, averaged or used for other images. It replaces the statistics, and needs no gradient, no label
and no image of the class. Each row is a network before and after recalibration, on test images.

    python benchmarks/recalibration.py ORIGINAL --retrained FILE --data cifar10 --forget airplane --json FILE
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import pour
from pour._io import write_text
from pour._provenance import circumstances
from pour.data.splits import Splits
from pour.metrics import split_accuracy
from pour.models.copy_and_swap import copy_model
from pour.models.tap import extract_features, to_unit
from pour.training import Run
from pour.training.tasks.classify import Classify
from pour.unlearning import request_of
from pour.unlearning.unlearn import make_method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("--retrained", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--forget", default="3")
    parser.add_argument("--methods", default="masked-head,pour-p,pour-d,delete")
    parser.add_argument(
        "--images", type=int, default=5000, help="number of retained training images for the statistics"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    dataset = pour.load_dataset(args.data)
    splits = Splits.of(dataset, [args.forget])
    run = Run(seed=args.seed, device=args.device, progress=False)
    original = pour.load(args.original)
    networks = {"original": original}
    if args.retrained is not None:
        networks["retrained"] = pour.load(args.retrained)
    for name in args.methods.split(","):
        # The paper's form of POUR-P.
        method = make_method(name, **({"direction": "weights"} if name == "pour-p" else {}))
        request = request_of(Classify(), dataset, [args.forget], method, original, seed=args.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            networks[name] = pour.unlearn(
                original, request, method=method, seed=args.seed, device=args.device, progress=False
            )
    rows: list[dict[str, Any]] = []
    print(f"{'network':<14}{'Acc_r':>8}{'Acc_f':>8}   recalibrated {'Acc_r':>8}{'Acc_f':>8}")
    for name, network in networks.items():
        before, after = (
            accuracies(model, splits, run) for model in (network, recalibrated(network, splits, args, run))
        )
        rows.append({"network": name, "before": before, "after": after})
        print(
            f"{name:<14}{before['acc_r']:>8.2%}{before['acc_f']:>8.2%}{'':>16}"
            f"{after['acc_r']:>8.2%}{after['acc_f']:>8.2%}",
            flush=True,
        )
    if args.json is not None:
        facts = circumstances(run.torch_device, run.precision)
        facts["command"] = shlex.join(["python", "benchmarks/recalibration.py", *sys.argv[1:]])
        described = {"data": args.data, "forget": args.forget, "images": args.images, "seed": args.seed, **facts}
        write_text(args.json, json.dumps({**described, "rows": rows}, indent=1) + "\n")


@torch.no_grad()
def recalibrated(network: nn.Module, splits: Splits, args: argparse.Namespace, run: Run) -> nn.Module:
    """Return a copy with the statistics of a random sample of retained training images."""
    result = copy_model(network).to(run.torch_device).eval()
    layers = [module for module in result.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        layer.reset_running_stats()
        # The plain mean over all batches.
        layer.momentum = None
        layer.train()
    order = torch.randperm(len(splits.retain_train), generator=torch.Generator().manual_seed(args.seed))
    sample = splits.retain_train.take(order[: args.images].numpy())
    for images, _ in Classify().batches(sample, run):
        result(to_unit(images.to(run.torch_device)))
    return result.eval()


def accuracies(network: nn.Module, splits: Splits, run: Run) -> dict[str, float]:
    """Return the accuracies on test images of the retained and of the forgotten classes."""
    output = extract_features(network, Classify().batches(splits.test.whole, run), device=run.torch_device)
    shares = split_accuracy(output.scores, output.labels, classes=list(splits.forgotten))
    return {"acc_r": float(shares["retain"]), "acc_f": float(shares["forget"])}


if __name__ == "__main__":
    main()
