"""The demo: scikit-learn's digits, a small network trained to collapse, one digit forgotten six ways, the page."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from pour.auditing.audit import audit
from pour.auditing.terminal import summary_text
from pour.data.registry import load_dataset
from pour.data.splits import Splits
from pour.models.checkpoint import save
from pour.models.head import find_head
from pour.models.history import history
from pour.models.tap import extract_features
from pour.report.page.audit_page import ReportedRun, write_report
from pour.report.pictures import Subject, draw_gallery
from pour.training.recipes import get_recipe
from pour.training.run import Run
from pour.training.tasks.classify import describe_classifier, evaluation_loader, train_classifier
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import unlearn

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from torch import nn

    from pour.auditing.report import AuditReport

__all__ = ["run_demo"]


@dataclass(frozen=True)
class _Shown:
    """A method of the demo with what the digits need: the published lengths and rates are for CIFAR."""

    name: str
    method: str
    options: dict[str, Any]


_METHODS = (
    # The demo's request has retained images; the copies show that POUR-A does without them.
    _Shown("POUR-A", "pour-a", {"anchor": "views"}),
    _Shown("POUR-D", "pour-d", {"augment": False, "batch_size": 32, "lr": 5e-5}),
    _Shown("POUR-P", "pour-p", {"direction": "weights"}),
    _Shown("control: row deleted", "masked-head", {}),
    _Shown("DELETE", "delete", {"augment": False, "batch_size": 32, "epochs": None, "steps": 40, "lr": 3e-5}),
    _Shown("finetune", "finetune", {"batch_size": 64, "epochs": 8}),
)


def run_demo(out: Path, *, forget: str, seed: int, progress: bool, console: Console) -> Path:
    """Train, retrain, forget, audit, and write models and page to ``out``; returns the page's path."""
    started = time.perf_counter()
    dataset = load_dataset("digits")
    splits = Splits.of(dataset, [forget])
    run = Run(seed=seed, device="cpu", progress=progress)
    recipe = get_recipe("digits")
    name = splits.forgotten_names[0]
    console.print(f"Training a small ResNet on {len(splits.train.whole)} handwritten digits ...")
    original, log = train_classifier(dataset, recipe, run, arch="resnet-digits")
    collapse = describe_classifier(original, dataset, run)["neural_collapse"]
    console.print(
        f"Done in {log.seconds:.1f} s. Neural Collapse: NC1 {collapse['nc1']:.3f}, angles between class means "
        f"{collapse['nc2_angle_mean']:.1f}° ± {collapse['nc2_angle_std']:.1f}° (a simplex: "
        f"{collapse['nc2_ideal_angle']:.1f}° ± 0°; random rows: ± {collapse['random_angle_std']:.1f}°)."
    )
    console.print(f"Training it again without {name}, twice: the references that every method is read against ...")
    references = [
        train_classifier(dataset, recipe, _seeded(run, seed + 1 + i), arch="resnet-digits", without=[name])[0]
        for i in range(2)
    ]
    console.print(f"Forgetting {name} and auditing what is left ...")
    request = ForgetRequest.of(splits)
    students = {
        shown.name: unlearn(
            original, request, method=shown.method, seed=seed, device="cpu", progress=progress, **shown.options
        )
        for shown in _METHODS
    }
    reports = _audit_all(original, references, students, splits, seed, progress=progress)
    console.print(_table(original, references[0], students, reports, splits, run))
    page = _write(out, original, references, students, reports, splits, run)
    console.print(
        f"POUR-P and POUR-A put a projection in front of the head, which removes {name} from what the head sees. The "
        "control has about the same accuracies and leaves the features as they were. Only methods that train the "
        "encoder change it: POUR-A trains it on images of the class and their copies alone, until its features need "
        "no projection. The report shows what is left of the class."
    )
    leading = _METHODS[0].name
    console.print(f"The audit of {leading}:")
    console.print(summary_text(reports[leading]), highlight=False)
    console.print(f"Finished in {time.perf_counter() - started:.0f} s.")
    console.print(str(page), soft_wrap=True, highlight=False)
    return page


def _seeded(run: Run, seed: int) -> Run:
    return Run(seed=seed, device=run.device, precision=run.precision, progress=run.progress)


def _audit_all(
    original: nn.Module,
    references: list[nn.Module],
    students: dict[str, nn.Module],
    splits: Splits,
    seed: int,
    *,
    progress: bool,
) -> dict[str, AuditReport]:
    with tempfile.TemporaryDirectory() as cache:
        return {
            name: audit(
                original=original,
                unlearned=student,
                retrained=references,
                data=splits,
                cache=cache,
                seed=seed,
                device="cpu",
                progress=progress,
            )
            for name, student in students.items()
        }


def _write(
    out: Path,
    original: nn.Module,
    references: list[nn.Module],
    students: dict[str, nn.Module],
    reports: dict[str, AuditReport],
    splits: Splits,
    run: Run,
) -> Path:
    files = [save(original, out / "original.safetensors", overwrite=True)]
    files.append(save(references[0], out / "retrained.safetensors", overwrite=True))
    for shown in _METHODS:
        files.append(save(students[shown.name], out / f"{shown.method}.safetensors", overwrite=True))
        reports[shown.name].save(out / f"{shown.method}.json")
    models = {"original": original, **students, "retrained": references[0]}
    subject = Subject(models=models, reports=reports, samples=splits.test.whole, run=run)
    gallery = draw_gallery("classify", subject)
    first, *others = students
    return write_report(
        reports[first],
        out / "report.html",
        name=first,
        history=history(students[first]),
        runs=[ReportedRun(name=name, report=reports[name], history=history(students[name])) for name in others],
        figures=gallery.figures,
        embedding=gallery.embedding,
        command=f"pour demo --forget {splits.forgotten_names[0]} --seed {run.seed}",
        files=files,
    )


def _table(
    original: nn.Module,
    retrained: nn.Module,
    students: dict[str, nn.Module],
    reports: dict[str, AuditReport],
    splits: Splits,
    run: Run,
) -> Table:
    """Accuracy, what is left of the direction, and RUS against the retrained model, on test images."""
    head = find_head(original)
    direction = torch.nn.functional.normalize(head.weight[list(splits.forgotten)], dim=1)
    name = ", ".join(splits.forgotten_names)
    table = Table(title=f"digit {name} forgotten, test images", title_justify="left")
    table.add_column("")
    for column in ("rest ↑", f"{name} ↓", "direction ↓", "RUS(r) ↑"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, model in {"original": original, **students, "retrained": retrained}.items():
        seen = extract_features(model, evaluation_loader(splits.test.whole, run))
        gone = torch.isin(seen.labels, torch.tensor(splits.forgotten))
        right = (seen.scores.argmax(dim=1) == seen.labels).double()
        signal = (seen.features[gone] @ direction.T).square().sum(dim=1).mean().sqrt().item()
        score = f"{reports[row].value('rus_r'):.2f}" if row in reports else ""
        # Another network has another basis, in which the original's direction means nothing.
        left = "" if row == "retrained" else f"{signal:.2f}"
        table.add_row(row, f"{right[~gone].mean():.1%}", f"{right[gone].mean():.1%}", left, score)
    return table
