"""Measure the cost of POUR-P without Neural Collapse: a frozen backbone and a trained head, each class and direction.

The class's own score is kept, so that only the projection forgets. The masked head is the control.

    python benchmarks/directions.py                                                     digits, on a CPU
    python benchmarks/directions.py --data pathmnist --weights efficientnet-lite0 --image-size 112 --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

import pour
from pour._io import write_text
from pour._provenance import circumstances
from pour.models.head import find_head
from pour.models.networks.pretrained import PRETRAINED
from pour.models.projecting.direction import RowDirection
from pour.models.tap import extract_features
from pour.training import FrozenBackbone, Run, get_recipe
from pour.training.tasks.classify import Classify


def accuracies(scores: Tensor, labels: Tensor, label: int) -> tuple[float, float]:
    """Return the accuracies on retained and on forgotten images in percent."""
    right = scores.argmax(dim=1) == labels
    return tuple(100 * right[where].double().mean().item() for where in (labels != label, labels == label))


def heads(args: argparse.Namespace, dataset: pour.ImageDataset) -> tuple[nn.Module, dict[int, nn.Linear]]:
    """Return a network and one head per seed for its encoder."""
    if args.weights is None:
        # There is no pretrained network for 8 x 8 images, so a network is trained for two epochs.
        run = Run(device=args.device, progress=False)
        model, _ = Classify().train(dataset, get_recipe("digits").change(epochs=2), run, arch="resnet-digits")
        return model, {0: find_head(model).layer}
    backbone = FrozenBackbone(dataset, PRETRAINED[args.weights].arch, args.weights, args.image_size)
    found = {}
    for seed in map(int, args.seeds.split(",")):
        model, _ = backbone.train_head(get_recipe("head"), Run(seed=seed, device=args.device, progress=False))
        found[seed] = find_head(model).layer
    return model, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--weights", help="a name from pour weights")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    dataset = pour.load_dataset(args.data)
    model, found = heads(args, dataset)
    run = Run(device=args.device, progress=False)
    tests = {name: split for name, split in dataset.splits.items() if name != "train"}
    seen = {
        name: extract_features(model, Classify().batches(split, run), device=run.torch_device)
        for name, split in tests.items()
    }
    rows = []
    for seed, layer in found.items():
        layer = layer.cpu()
        for name, split in seen.items():
            features, labels = split.features.cpu().float(), split.labels.cpu()
            with torch.inference_mode():
                for label, class_name in enumerate(dataset.classes):
                    before = accuracies(layer(features), labels, label)
                    for direction in (*get_args(RowDirection), "masked head"):
                        if direction == "masked head":
                            scores = layer(features).index_fill(1, torch.tensor(label), float("-inf"))
                        else:
                            scores = pour.forget(layer, [label], direction=direction, forgotten_logit="keep")(features)
                        after = accuracies(scores, labels, label)
                        facts = {"seed": seed, "split": name, "class": class_name, "direction": direction}
                        rows.append({**facts, "acc_r_before": before[0], "acc_r": after[0], "acc_f": after[1]})
    for name in seen:
        for direction in (*get_args(RowDirection), "masked head"):
            chosen = [row for row in rows if row["split"] == name and row["direction"] == direction]
            changes = [row["acc_r"] - row["acc_r_before"] for row in chosen]
            print(
                f"{name:10s} {direction:17s} change of Acc_r: mean {sum(changes) / len(changes):+.2f}, "
                f"worst {min(changes):+.2f}; "
                f"largest Acc_f {max(row['acc_f'] for row in chosen):.1f}"
            )
    if args.json:
        facts = {"data": args.data, "weights": args.weights, "image_size": args.image_size}
        surroundings = {**circumstances(run.torch_device, "fp32"), "command": shlex.join(["python", *sys.argv])}
        write_text(args.json, json.dumps({**facts, **surroundings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
