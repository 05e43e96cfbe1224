"""Run the demo: train a small network on digits, forget one of them with six methods, audit, and write the page."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
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
from pour.report.page.audit_page import ReportedRun, write_report
from pour.report.pictures import Subject, draw_gallery
from pour.training.recipes import get_recipe
from pour.training.run import Run
from pour.training.tasks.classify import Classify
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from torch import Tensor


__all__ = ["run_demo"]


# The published lengths and rates are for CIFAR; digits need other ones. The first method leads the report.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    # POUR-A could also read the retained images of the request. The option makes it use copies of forget images.
    "POUR-A": ("pour-a", {"anchor": "views"}),
    "POUR-D": ("pour-d", {"augment": False, "batch_size": 32, "lr": 5e-5}),
    "POUR-P": ("pour-p", {"direction": "weights"}),
    "control: row deleted": ("masked-head", {}),
    "DELETE": ("delete", {"augment": False, "batch_size": 32, "epochs": None, "steps": 40, "lr": 3e-5}),
    "finetune": ("finetune", {"batch_size": 64, "epochs": 8}),
}


def run_demo(out: Path, *, forget: str, seed: int, progress: bool, console: Console) -> Path:
    """Train, retrain, forget and audit. Write models, audits and the page to ``out`` and return the page's path."""
    started = time.perf_counter()
    dataset = load_dataset("digits")
    splits = Splits.of(dataset, [forget])
    run = Run(seed=seed, device="cpu", progress=progress)
    recipe = get_recipe("digits")
    name = splits.forgotten_names[0]
    console.print(f"Training a small ResNet on {len(splits.train.whole)} handwritten digits ...")
    task = Classify()
    original, log = task.train(dataset, recipe, run, arch="resnet-digits")
    collapse = task.describe(original, dataset, run)["neural_collapse"]
    console.print(
        f"Done in {log.seconds:.1f} s. Neural Collapse: NC1 {collapse['nc1']:.3f}, angles between class means "
        f"{collapse['nc2_angle_mean']:.1f}° ± {collapse['nc2_angle_std']:.1f}° (a simplex: "
        f"{collapse['nc2_ideal_angle']:.1f}° ± 0°; random rows: ± {collapse['random_angle_std']:.1f}°)."
    )
    console.print(f"Training it again without {name}, twice: the references of every method ...")
    references = [
        task.train(dataset, recipe, replace(run, seed=seed + number), arch="resnet-digits", without=[name])[0]
        for number in (1, 2)
    ]
    console.print(f"Forgetting {name} and auditing the results ...")
    request = ForgetRequest.of(splits)
    students = {
        title: carry_out(original, request, make_method(method, **options), run)
        for title, (method, options) in _METHODS.items()
    }
    audit_student = partial(
        audit, original=original, retrained=references, data=splits, seed=seed, device="cpu", progress=progress
    )
    with tempfile.TemporaryDirectory() as cache:
        reports = {title: audit_student(unlearned=student, cache=cache) for title, student in students.items()}
    models = {"original": original, **students, "retrained": references[0]}
    subject = Subject(models=models, reports=reports, samples=splits.test.whole, run=run)
    console.print(_table(subject, find_head(original).weight, splits))
    page = _write(out, subject, f"pour demo --forget {name} --seed {seed}")
    console.print(
        f"POUR-P and POUR-A put a projection in front of the head, which removes {name} from what the head sees. The "
        "control has about the same accuracies and leaves the features as they were. Only methods that train the "
        "encoder change it: POUR-A trains it on images of the class and their copies alone, until its features need "
        "no projection. The report shows what is left of the class."
    )
    leading = next(iter(_METHODS))
    console.print(f"The audit of {leading}:")
    console.print(summary_text(reports[leading]), highlight=False)
    console.print(f"Finished in {time.perf_counter() - started:.0f} s.")
    console.print(str(page), soft_wrap=True, highlight=False)
    return page


def _write(out: Path, subject: Subject, command: str) -> Path:
    """Write the models, their audits and the page, and return the page's path."""
    files = {title: method for title, (method, _) in _METHODS.items()}
    saved = [
        save(model, out / f"{files.get(title, title)}.safetensors", overwrite=True)
        for title, model in subject.models.items()
    ]
    for title, report in subject.reports.items():
        report.save(out / f"{files[title]}.json")
    runs = [
        ReportedRun(name=title, report=report, history=history(subject.models[title]))
        for title, report in subject.reports.items()
    ]
    gallery = draw_gallery("classify", subject)
    return write_report(
        runs[0].report,
        out / "report.html",
        name=runs[0].name,
        history=runs[0].history,
        runs=runs[1:],
        figures=gallery.figures,
        embedding=gallery.embedding,
        command=command,
        files=saved,
    )


def _table(subject: Subject, weight: Tensor, splits: Splits) -> Table:
    """Return the accuracies, the length of features along the forgotten row of the head, and RUS, on test images."""
    direction = torch.nn.functional.normalize(weight[list(splits.forgotten)], dim=1)
    name = ", ".join(splits.forgotten_names)
    table = Table(title=f"digit {name} forgotten, test images", title_justify="left")
    table.add_column("")
    for column in ("rest ↑", f"{name} ↓", "direction ↓", "RUS(r) ↑"):
        table.add_column(column, justify="right", no_wrap=True)
    for title in subject.models:
        part = subject.seen[title]
        is_forgotten = torch.isin(part.labels, torch.tensor(splits.forgotten))
        is_right = (part.scores.argmax(dim=1) == part.labels).double()
        length = (part.features[is_forgotten] @ direction.T).square().sum(dim=1).mean().sqrt().item()
        table.add_row(
            title,
            f"{is_right[~is_forgotten].mean():.1%}",
            f"{is_right[is_forgotten].mean():.1%}",
            # Another network has another basis, in which the original's direction has no meaning.
            "" if title == "retrained" else f"{length:.2f}",
            f"{subject.reports[title].value('rus_r'):.2f}" if title in subject.reports else "",
        )
    return table
