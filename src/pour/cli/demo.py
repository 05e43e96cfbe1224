"""pour demo: train a small network on digits, forget one of them with six methods, audit, and write the page."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pour
from pour._terminal import TerminalTable, open_console
from pour.cli.flags import Quiet, Seed

if TYPE_CHECKING:
    from rich.console import Console

    from pour.auditing.pictures import Subject

__all__ = ["demo"]

# Epochs and learning rates differ from the published values, which are for CIFAR. The report begins with the first
# method.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    # POUR-A could also read the retained images of the request. The option makes it use copies of forget images.
    "POUR-A": ("pour-a", {"anchor": "views"}),
    "POUR-D": ("pour-d", {"augment": False, "batch_size": 32, "lr": 5e-5}),
    "POUR-P": ("pour-p", {"direction": "weights"}),
    "control: row deleted": ("masked-head", {}),
    "DELETE": ("delete", {"augment": False, "batch_size": 32, "epochs": None, "steps": 40, "lr": 3e-5}),
    "finetune": ("finetune", {"batch_size": 64, "epochs": 8}),
}
_LEADING = next(iter(_METHODS))


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the models and the report.")] = Path("runs/demo"),
    forget: Annotated[str, typer.Option(help="Digit to forget.")] = "3",
    seed: Seed = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train, forget and audit on digits in under a minute, and write a report."""
    from pour.auditing.pictures import Subject
    from pour.auditing.terminal import summary_text
    from pour.training import Run

    console, started = open_console(quiet=quiet), time.perf_counter()
    splits = pour.Splits.of(pour.load_dataset("digits"), [forget])
    name = splits.forgotten_names[0]
    original, *references = _train(name, seed, len(splits.train.whole), console)
    console.print(f"Forgetting {name} and auditing the results ...")
    fixed: dict[str, Any] = {"seed": seed, "device": "cpu", "progress": not quiet}
    request = pour.ForgetRequest.of(splits)
    students = {
        title: pour.unlearn(original, request, method=method, **options, **fixed)
        for title, (method, options) in _METHODS.items()
    }
    with tempfile.TemporaryDirectory() as cache:
        audit = partial(pour.audit, original=original, retrained=references, data=splits, cache=cache, **fixed)
        reports = {title: audit(unlearned=student) for title, student in students.items()}
    models = {"original": original, **students, "retrained": references[0]}
    subject = Subject(models=models, reports=reports, samples=splits.test.whole, run=Run(**fixed))
    console.print(_table(subject, splits))
    page = _write(out, subject, f"pour demo --forget {name} --seed {seed}")
    console.print(
        f"POUR-P and POUR-A put a projector before the head. It removes {name} from the input features of the head. "
        "The control has about the same accuracies, but its features do not change. Only methods that train the "
        "encoder change it. POUR-A trains it on images of the class and changed copies of them. The report shows how "
        "much of the class is left."
    )
    console.print(f"The audit of {_LEADING}:")
    console.print(summary_text(reports[_LEADING]), highlight=False)
    console.print(f"Finished in {time.perf_counter() - started:.0f} s.")
    console.print(str(page), soft_wrap=True, highlight=False, markup=False)
    if show:
        typer.launch(page.resolve().as_uri())


def _train(name: str, seed: int, images: int, console: Console) -> list[Any]:
    """Return the original, and two models that were trained without the digit `name`."""
    from pour.training import Run, get_recipe, get_task

    task, dataset, recipe = get_task("classify"), pour.load_dataset("digits"), get_recipe("digits")

    def train(number: int, **settings: Any) -> Any:
        run = Run(seed=seed + number, device="cpu", progress=not console.quiet)
        return task.train(dataset, recipe, run, arch="resnet-digits", **settings)

    console.print(f"Training a small ResNet on {images} handwritten digits ...")
    original, log = train(0)
    collapse = task.describe(original, dataset, Run(device="cpu", progress=False))["neural_collapse"]
    console.print(
        f"Done in {log.seconds:.1f} s. Neural Collapse: NC1 {collapse['nc1']:.3f}, angles between class means "
        f"{collapse['nc2_angle_mean']:.1f}° ± {collapse['nc2_angle_std']:.1f}° (a simplex: "
        f"{collapse['nc2_ideal_angle']:.1f}° ± 0°; random rows: ± {collapse['random_angle_std']:.1f}°)."
    )
    console.print(f"Training it again without {name}, twice: the references of every method ...")
    return [original, *(train(number, without=[name])[0] for number in (1, 2))]


def _write(out: Path, subject: Subject, command: str) -> Path:
    """Write the models, their audits and the page, and return the page's path."""
    from pour.auditing.pictures import compute_pictures
    from pour.report import ReportedRun

    files = {title: method for title, (method, _) in _METHODS.items()}
    saved = [
        pour.save(model, out / f"{files.get(title, title)}.safetensors", overwrite=True)
        for title, model in subject.models.items()
    ]
    runs = []
    for title, report in subject.reports.items():
        report.save(out / f"{files[title]}.json")
        runs.append(ReportedRun(name=title, report=report))
    # One map of features shows the models of all methods.
    leading = replace(runs[0].report, pictures=compute_pictures("classify", subject))
    leading.save(out / f"{files[_LEADING]}.json")
    return pour.write_report(
        leading, out / "report.html", name=runs[0].name, runs=runs[1:], command=command, files=saved
    )


def _table(subject: Subject, splits: pour.Splits) -> TerminalTable:
    """Return the accuracies, the length of features along the forgotten row of the head, and RUS, on test images."""
    import torch

    weight = pour.models.find_head(subject.models["original"]).weight
    direction = torch.nn.functional.normalize(weight[list(splits.forgotten)], dim=1)
    name = ", ".join(splits.forgotten_names)
    columns = ["rest ↑", f"{name} ↓", "direction ↓", "RUS(r) ↑"]
    table = TerminalTable(["", *columns], f"digit {name} forgotten, test images", right=columns)
    for title in subject.models:
        part = subject.seen[title]
        is_forgotten = torch.isin(part.labels, torch.tensor(splits.forgotten))
        is_right = (part.scores.argmax(dim=1) == part.labels).double()
        length = (part.features[is_forgotten] @ direction.T).square().sum(dim=1).mean().sqrt().item()
        table.add_row(
            title,
            f"{is_right[~is_forgotten].mean():.1%}",
            f"{is_right[is_forgotten].mean():.1%}",
            # The features of another network have another basis, so the original's direction has no meaning for them.
            "" if title == "retrained" else f"{length:.2f}",
            f"{subject.reports[title].value('rus_r'):.2f}" if title in subject.reports else "",
        )
    return table
