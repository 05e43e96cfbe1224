"""Pictures of an audit by the name of its task: computed with the audit, drawn on a page or as a small file."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from pour.auditing.pictures import Subject, load_built_in, register_computation
from pour.errors import UsageError
from pour.report.figures.layers import draw_layers
from pour.report.figures.losses import draw_losses, loss_data
from pour.report.figures.relearning import draw_relearning
from pour.report.figures.tradeoff import PlaneOf, draw_tradeoff, tradeoff_data
from pour.report.page.sections import FigureSection
from pour.training.tasks.task import get_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pour.auditing.report import AuditReport

__all__ = ["Subject", "draw_pictures", "register_pictures", "save_picture"]

Draw: TypeAlias = "Callable[[AuditReport], list[FigureSection]]"
Save: TypeAlias = "Callable[[AuditReport, Path], object]"
_DRAWERS: dict[str, tuple[Draw, Save | None]] = {}


def register_pictures(
    task: str, compute: Callable[[Subject], dict[str, Any]], draw: Draw, save: Save | None = None
) -> None:
    """Set the pictures of a task. A task without pictures has only the figures that any report can have.

    Args:
        task: Name of the task.
        compute: Function that runs the models and returns the data of the pictures by name, as JSON values.
            `pour.auditing.pictures.pack` makes a JSON value of an array. The audit keeps them in
            `report.pictures.data`.
        draw: Function that draws the data of a report for its page. It runs no model.
        save: Function that writes a small picture of a report to a file, for the rows of a grid.
    """
    register_computation(task, compute)
    _DRAWERS[task] = (draw, save)


def draw_pictures(reports: Mapping[str, AuditReport]) -> list[FigureSection]:
    """Return the figures of a page from the reports of its runs alone. The first report is the one of the page."""
    report = next(iter(reports.values()))
    draw, _ = _drawer(report)
    with _damage_reported():
        figures = [] if draw is None else draw(report)
    return [*figures, *_tradeoffs(reports), *_common_figures(reports)]


def save_picture(report: AuditReport, path: Path) -> None:
    """Write a small picture of a report with pictures to `path` (.png), if its task has one."""
    _, save = _drawer(report)
    if save is not None:
        with _damage_reported():
            save(report, path)


def _drawer(report: AuditReport) -> tuple[Draw | None, Save | None]:
    if report.pictures is None:
        return None, None
    task = report.pictures.task
    load_built_in(task)
    with contextlib.suppress(UsageError):
        # The package of a task registers its pictures too.
        get_task(task)
    return _DRAWERS.get(task, (None, None))


@contextlib.contextmanager
def _damage_reported() -> Iterator[None]:
    """Raise UsageError for data of pictures that cannot be drawn, such as those of a changed file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"The report's pictures are damaged ({type(error).__name__}: {error}); audit the models again."
        ) from error


def _tradeoffs(reports: Mapping[str, AuditReport]) -> list[FigureSection]:
    """Return the trade-offs of several methods, by accuracy and by representation."""
    group = "Retention against forgetting"
    planes = [tradeoff_data(reports, of=of) for of in get_args(PlaneOf)] if len(reports) > 1 else []
    return [
        FigureSection.of(f"{group}, by {plane.of}", draw_tradeoff, plane, group=group, choice=plane.of)
        for plane in planes
    ]


def _common_figures(reports: Mapping[str, AuditReport]) -> list[FigureSection]:
    """Return the figures that any report can have."""
    first = next(iter(reports.values()))
    audited = {name: report.models["unlearned"] for name, report in reports.items()}
    models = {**first.models, **audited} if len(reports) > 1 else first.models
    # A model that was folded or projected after its training has later entries without losses.
    losses = {
        name: [entry.losses for entry in model.history if entry.losses]
        for name, model in models.items()
        if name != "retrained_second" and not (len(reports) > 1 and name == "unlearned")
    }
    figures = (
        ("Relearning", draw_relearning, first.relearning),
        ("CKA between layers", draw_layers, first.layers),
        ("Losses while unlearning", draw_losses, loss_data({name: runs[-1] for name, runs in losses.items() if runs})),
    )
    return [FigureSection.of(title, draw, data) for title, draw, data in figures if data]
