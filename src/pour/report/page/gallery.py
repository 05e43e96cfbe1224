"""The figures that belong on a page: drawn from models, their test images and their audits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from pour.auditing.features import pooled
from pour.metrics.predictions import confusion_matrix
from pour.models.copy_and_swap import in_float32
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import history
from pour.models.tap import Features, extract_features
from pour.report.figures import (
    angle_data,
    answers_data,
    centered_class_means,
    confusion_data,
    draw_angles,
    draw_answers,
    draw_confusion,
    draw_embedding,
    draw_layers,
    draw_losses,
    draw_relearning,
    draw_tradeoff,
    embedding_data,
    loss_data,
    tradeoff_data,
)
from pour.report.page.feature_map import Embedding
from pour.report.page.sections import FigureSection
from pour.training.tasks.classify import evaluation_loader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.data.loader import EpochLoader
    from pour.data.splits import Splits
    from pour.models.head import Head
    from pour.report.figures import ConfusionData, Theme
    from pour.training.run import Run

__all__ = ["Gallery", "hang"]

_FEWEST_FOR_A_TRADE_OFF = 2


@dataclass(frozen=True)
class Gallery:
    """What :func:`~pour.report.page.audit_page.write_report` takes beside the audit."""

    figures: tuple[FigureSection, ...]
    embedding: Embedding


def hang(
    models: Mapping[str, nn.Module],
    reports: Mapping[str, AuditReport],
    splits: Splits,
    run: Run,
    *,
    images: int = 1000,
    head: str | None = None,
) -> Gallery:
    """Draw the figures of one page.

    Args:
        models: by name; ``original`` must be there, ``retrained`` is the reference, the others are unlearned.
        reports: the audits of the unlearned models, by the same names; the first is the page's own.
        splits: what was forgotten, and the test images to draw.
        run: device, seed.
        images: at most this many in the map of features.
        head: name of the models' head, where it is not found by itself.
    """
    test = splits.test.whole
    few = torch.as_tensor(test.images[:FEW_IMAGES]).permute(0, 3, 1, 2)
    heads = {name: head_on_images(model, few, head=head) for name, model in models.items()}
    seen = {name: _features(model, evaluation_loader(test, run), run, heads[name]) for name, model in models.items()}
    first = next(iter(reports))
    shown = {name: seen[name] for name in dict.fromkeys(["original", first, *models])}
    placed = embedding_data(
        {name: features.features for name, features in shown.items()},
        shown["original"].labels,
        classes=splits.classes,
        forgotten=splits.forgotten,
        limit=images,
        seed=run.seed,
    )
    answers = {name: features.scores.argmax(dim=1).cpu().numpy() for name, features in shown.items()}
    figures = [
        FigureSection.of(
            "Features of test images, one map for all models",
            lambda theme: draw_embedding(placed, theme=theme),
            caption="Each model's features are centred, scaled and rotated into the original's frame first.",
        ),
        *_confusions(shown, splits),
        FigureSection.of("Angles", partial(_angles, heads["original"], seen["original"])),
        *_from_reports(reports),
        *_losses(models),
    ]
    return Gallery(tuple(figures), Embedding.of(placed, answers, test.images))


def _features(model: nn.Module, batches: EpochLoader, run: Run, head: Head) -> Features:
    """One row to an image, as the audit sees it."""
    network = in_float32(model)
    seen = extract_features(network, batches, device=run.torch_device, head=head)
    return replace(seen, features=pooled(seen.features, head))


def _angles(head: Head, seen: Features, theme: Theme) -> Figure:
    rows = {"head": head.weight.float().cpu(), "class means": centered_class_means(seen.features, seen.labels)}
    return draw_angles(angle_data(rows), theme=theme)


def _confusions(seen: Mapping[str, Features], splits: Splits) -> list[FigureSection]:
    sections = []
    counts = {
        name: confusion_matrix(part.scores, part.labels, num_classes=splits.num_classes) for name, part in seen.items()
    }
    for name in counts:
        if name == "original":
            continue
        pair = {"original": counts["original"], name: counts[name]}
        data = confusion_data(pair, classes=splits.classes, forgotten=splits.forgotten)
        sections.append(
            FigureSection.of(
                f"Answers by true class: original and {name}",
                partial(_confusion, data),
                group="Answers by true class",
                choice=name,
            )
        )
    return sections


def _confusion(data: ConfusionData, theme: Theme) -> Figure:
    return draw_confusion(data, theme=theme)


def _from_reports(reports: Mapping[str, AuditReport]) -> list[FigureSection]:
    first = next(iter(reports.values()))
    answers = answers_data(first)
    sections = [
        FigureSection.of("What is answered on forgotten images", lambda theme: draw_answers(answers, theme=theme))
    ]
    if len(reports) >= _FEWEST_FOR_A_TRADE_OFF:
        plane = tradeoff_data(reports)
        sections.append(
            FigureSection.of("Retention against forgetting", lambda theme: draw_tradeoff(plane, theme=theme))
        )
    if first.relearning:
        sections.append(FigureSection.of("Relearning", lambda theme: draw_relearning(first.relearning, theme=theme)))
    if first.layers:
        sections.append(FigureSection.of("CKA between layers", lambda theme: draw_layers(first.layers, theme=theme)))
    return sections


def _losses(models: Mapping[str, nn.Module]) -> list[FigureSection]:
    # Of the last method that trained; folding and projecting come after it and have none.
    losses = {name: [record.losses for record in history(model) if record.losses] for name, model in models.items()}
    curves = {name: loss_data({name: found[-1]}) for name, found in losses.items() if found}
    if not curves:
        return []
    return [FigureSection.of("Losses while unlearning", lambda theme: draw_losses(curves, theme=theme))]
