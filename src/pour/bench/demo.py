"""The demo: scikit-learn's digits, a small network trained to collapse, and one digit forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from rich.table import Table

from pour.data.registry import load_dataset
from pour.data.splits import Splits
from pour.methods.request import ForgetRequest
from pour.methods.unlearning import unlearn
from pour.metrics import linear_cka
from pour.models.checkpoint import save
from pour.models.head import find_head
from pour.models.tap import Features, extract_features
from pour.training.classifier import describe_classifier, evaluation_loader, train_classifier
from pour.training.recipes import get_recipe
from pour.training.run import Run

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from torch import nn

__all__ = ["run_demo"]


def run_demo(out: Path, *, forget: str, seed: int, progress: bool, console: Console) -> None:
    """Train, forget with POUR-P and with the control, compare, and write the models to ``out``."""
    dataset = load_dataset("digits")
    splits = Splits.of(dataset, [forget])
    run = Run(seed=seed, device="cpu", progress=progress)
    console.print(f"Training a small ResNet on {len(dataset.splits['train'])} handwritten digits ...")
    original, log = train_classifier(dataset, get_recipe("digits"), run, arch="resnet-digits")
    collapse = describe_classifier(original, dataset, run)["neural_collapse"]
    console.print(
        f"Done in {log.seconds:.1f} s. Neural Collapse: NC1 {collapse['nc1']:.3f}, angles between class means "
        f"{collapse['nc2_angle_mean']:.1f}° ± {collapse['nc2_angle_std']:.1f}° (a simplex: "
        f"{collapse['nc2_ideal_angle']:.1f}° ± 0°; random rows: ± {collapse['random_angle_std']:.1f}°), "
        f"head against means {collapse['nc3']:.2f}."
    )
    request = ForgetRequest.of(splits)
    models: dict[str, nn.Module] = {
        "original": original,
        "POUR-P": unlearn(original, request, method="pour-p", seed=seed, device="cpu", progress=progress),
        "control: row deleted": unlearn(
            original, request, method="masked-head", seed=seed, device="cpu", progress=progress
        ),
    }
    save(original, out / "original.safetensors", overwrite=True)
    save(models["POUR-P"], out / "forgotten.safetensors", overwrite=True)
    console.print(_table(models, splits, run))
    console.print(
        "Both end with the class unpredicted. Only POUR-P changes what the head sees: the class's direction is gone "
        "from its features. The encoder before it is untouched by both; pour-d trains it (pour unlearn --help)."
    )
    console.print(f"{out / 'forgotten.safetensors'}", soft_wrap=True)


def _table(models: dict[str, nn.Module], splits: Splits, run: Run) -> Table:
    direction = find_head(models["original"]).weight[list(splits.forgotten)]
    direction = torch.nn.functional.normalize(direction, dim=1)
    forgotten_name = ", ".join(splits.forgotten_names)
    table = Table(
        "",
        "accuracy on the rest",
        f"accuracy on {forgotten_name}",
        f"signal along {forgotten_name}'s direction",
        f"CKA on {forgotten_name} with the original",
        title=f"digit {forgotten_name} forgotten, test images",
    )
    seen = {name: _test_features(model, splits, run) for name, model in models.items()}
    for name, (retain, forget) in seen.items():
        signal = (forget.features @ direction.T).square().sum(dim=1).mean().sqrt().item()
        table.add_row(
            name,
            f"{_accuracy(retain):.2%}",
            f"{_accuracy(forget):.2%}",
            f"{signal:.3f}",
            f"{float(linear_cka(forget.features, seen['original'][1].features)):.3f}",
        )
    return table


def _test_features(model: nn.Module, splits: Splits, run: Run) -> tuple[Features, Features]:
    parts = (splits.retain_test, splits.forget_test)
    retain, forget = (extract_features(model, evaluation_loader(part, run)) for part in parts)
    return retain, forget


def _accuracy(seen: Features) -> float:
    return (seen.scores.argmax(dim=1) == seen.labels).double().mean().item()
