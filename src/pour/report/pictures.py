"""Pictures of an experiment by the name of its task: a gallery for the page, and small files for a grid."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pour.errors import UsageError
from pour.models.history import history
from pour.report.figures.layers import draw_layers
from pour.report.figures.losses import draw_losses, loss_data
from pour.report.figures.relearning import draw_relearning
from pour.report.page.sections import FigureSection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import nn

    from pour.auditing.features import Seen
    from pour.auditing.report import AuditReport
    from pour.report.page.feature_map import Embedding
    from pour.training.run import Run

__all__ = ["Gallery", "Subject", "draw_gallery", "register_pictures", "save_pictures"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Models, audits and samples of a gallery."""

    models: Mapping[str, nn.Module]
    """Models by name: ``original``, ``retrained`` if there is such a model, and unlearned models."""
    reports: Mapping[str, AuditReport]
    """Audits of the unlearned models by the same names. The first is the audit of the page."""
    samples: Any
    """Test samples of the task."""
    run: Run
    head: str | None = None
    """Name of the models' head, if pour cannot find it."""

    @property
    def seen(self) -> dict[str, Seen]:
        """Features and scores of the models on the test samples, by name, as the audits have kept them."""
        name, first = next(iter(self.reports.items()))
        if not first.seen:
            raise UsageError(f"The report {name!r} was read from a file, which has no features; audit the model again.")
        roles = {"original": first, name: first, **self.reports, "retrained": first}
        return {
            name: report.seen["unlearned" if name in self.reports else name]
            for name, report in roles.items()
            if name in self.models
        }


@dataclass(frozen=True)
class Gallery:
    """Pictures for :func:`~pour.report.page.audit_page.write_report`."""

    figures: tuple[FigureSection, ...] = ()
    embedding: Embedding | None = None


# Modules that register the pictures of the tasks of this package.
_BUILT_IN = {
    "classify": "pour.report.page.gallery",
    "match": "pour.report.page.gallery",
    "segment": "pour.report.page.overlays",
}
_PICTURES: dict[str, tuple[Callable[[Subject], Gallery], Callable[[Subject, Path], object] | None]] = {}


def register_pictures(
    task: str, gallery: Callable[[Subject], Gallery], save: Callable[[Subject, Path], object] | None = None
) -> None:
    """Set the pictures of a task. A task without pictures has only the figures that any report can have.

    Args:
        task: Name of the task.
        gallery: Function that draws the gallery of a page.
        save: Function that writes a small picture to a file, for the rows of a grid.
    """
    _PICTURES[task] = (gallery, save)


def draw_gallery(task: str, subject: Subject) -> Gallery:
    """Return the pictures of a page for the task with the name ``task``."""
    draw, _ = _pictures(task)
    gallery = draw(subject) if draw else Gallery()
    return Gallery((*gallery.figures, *_common_figures(subject)), gallery.embedding)


def save_pictures(task: str, subject: Subject, path: Path) -> None:
    """Write a small picture of the original and the first unlearned model to ``path`` (.png), if the task has one."""
    _, save = _pictures(task)
    if save:
        save(subject, path)


def _pictures(task: str) -> tuple[Callable[[Subject], Gallery] | None, Callable[[Subject, Path], object] | None]:
    if task in _BUILT_IN:
        importlib.import_module(_BUILT_IN[task])
    return _PICTURES.get(task, (None, None))


def _common_figures(subject: Subject) -> list[FigureSection]:
    """Return the figures that need only the first report and the histories of the models."""
    first = next(iter(subject.reports.values()))
    # A model that was folded or projected after its training has later entries without losses.
    losses = {
        name: [entry.losses for entry in history(model) if entry.losses] for name, model in subject.models.items()
    }
    figures = (
        ("Relearning", draw_relearning, first.relearning),
        ("CKA between layers", draw_layers, first.layers),
        ("Losses while unlearning", draw_losses, loss_data({name: runs[-1] for name, runs in losses.items() if runs})),
    )
    return [FigureSection.of(title, draw, data) for title, draw, data in figures if data]
