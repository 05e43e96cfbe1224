"""Draw the docs' example of Grad-CAM: PathMNIST with adipose forgotten (python scripts/examples.py --root DIR)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import pour
from pour._io import write_text
from pour._provenance import circumstances
from pour.data.splits import Splits
from pour.report.figures import draw_gradcam, gradcam_data, save_figure
from pour.training import Recipe, Run
from pour.training.tasks.classify import Classify

FORGOTTEN = "adipose"
SHOWN = ("adipose", "debris", "lymphocytes", "mucus")


def main() -> None:
    """Train a small ResNet, forget, draw a figure, and write its measurements next to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    dataset = pour.load_dataset("pathmnist", arguments.root)
    run = Run(seed=0)
    recipe = Recipe(name="example", epochs=arguments.epochs, batch_size=128, lr=0.1)
    original, _ = Classify().train(dataset, recipe, run, arch="resnet-digits")
    forgotten = pour.forget(original, classes=[FORGOTTEN], direction="weights", forgotten_logit="keep")
    facts = {
        "data": "PathMNIST (Yang et al., MedMNIST v2), CC BY 4.0",
        "forgotten": FORGOTTEN,
        "recipe": {"arch": "resnet-digits", "epochs": arguments.epochs, "batch_size": 128, "lr": 0.1, "seed": 0},
        "original": Classify().describe(original, dataset, run)["accuracy"],
        "pour-p": accuracies(forgotten, Splits.of(dataset, [FORGOTTEN]), run),
        **circumstances(run.torch_device, run.precision),
    }
    facts["command"] = f"python scripts/examples.py --epochs {arguments.epochs}"
    # Images that the original gets right, one of each class, the surest: a map of a mistake shows nothing.
    images, labels = chosen(original, dataset.splits["test"], dataset.classes, run)
    device = next(original.parameters()).device
    index = list(dataset.classes).index(FORGOTTEN)
    data = gradcam_data(
        original, forgotten, images.to(device), labels.to(device), classes=dataset.classes, forgotten=[index]
    )
    save_figure(draw_gradcam(data), arguments.out / "gradcam-pathmnist.png")
    write_text(arguments.out / "gradcam-pathmnist.json", json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


def accuracies(model: torch.nn.Module, splits: Splits, run: Run) -> dict[str, float]:
    """Accuracy on forgotten and retained images of both test sets."""
    parts = {"test": splits.test, **splits.extra}
    found = {}
    for name, part in parts.items():
        for side, split in (("forgotten", part.forget), ("retained", part.retain)):
            seen = pour.models.extract_features(model, Classify().batches(split, run))
            found[f"{name} {side}"] = (seen.scores.argmax(dim=1) == seen.labels).double().mean().item()
    return found


def chosen(
    model: torch.nn.Module, split: object, classes: tuple[str, ...], run: Run
) -> tuple[torch.Tensor, torch.Tensor]:
    """The most confidently right image of each class shown."""
    seen = pour.models.extract_features(model, Classify().batches(split, run))
    sure = seen.scores.softmax(dim=1)
    rows = []
    for name in SHOWN:
        label = classes.index(name)
        mine = seen.labels == label
        rows.append(int((sure[:, label] * mine).argmax()))
    images = torch.as_tensor(np.stack([split.images[row] for row in rows])).permute(0, 3, 1, 2)
    return images, seen.labels[rows].cpu()


if __name__ == "__main__":
    main()
