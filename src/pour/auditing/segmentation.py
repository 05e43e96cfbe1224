"""The audit of a segmentation network: IoU of every class, and the features of pixels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

import torch

from pour._progress import ProgressBar
from pour.auditing.measurement import Reading
from pour.auditing.report import AuditedData, AuditedModel, AuditReport
from pour.auditing.report_lines import LineBook
from pour.auditing.scenes import draw_pixels, tap_scenes
from pour.auditing.similarity import cka_reading, rus_reading
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.metrics.segmentation import segmentation_scores
from pour.models.card import architecture
from pour.models.history import history
from pour.models.state import digest
from pour.models.unwrap import unwrap
from pour.training.run import Precision, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from pour.auditing.features import Role, Side, View
    from pour.auditing.scenes import PixelSample, TappedScenes
    from pour.data.classes import ClassRequest
    from pour.data.formats.scenes import SegmentationDataset
    from pour.metrics.unlearning import Reference

__all__ = ["audit_segmentation", "score_readings"]

_RESAMPLES = 400
_BASES: tuple[Reference, ...] = ("original", "retrained")


def audit_segmentation(
    *,
    original: nn.Module,
    unlearned: nn.Module,
    retrained: nn.Module | None = None,
    data: SegmentationDataset,
    classes: ClassRequest,
    scenes: Scenes | None = None,
    pixels: int = 10_000,
    sample: Mapping[Side, PixelSample] | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> AuditReport:
    """Measure what a segmentation network still knows of the forgotten classes, and what else it lost.

    Every model runs once over the test scenes. ``iou_r`` counts the forgotten classes' pixels as false positives of
    whatever they become, ``iou_r_rest`` leaves them out; their intervals come from resampling images. CKA and RUS are
    of features at pixels drawn without bias, the same pixels for all models.

    Args:
        original: the model before forgetting.
        unlearned: the model to audit.
        retrained: a model trained without the forgotten classes, the reference of every verdict.
        data: the dataset; its ``test`` split is measured.
        classes: the forgotten classes, by name or index.
        scenes: the test scenes, where they have been read already.
        pixels: how many pixels to draw on each side.
        sample: the pixels themselves, where :func:`~pour.auditing.scenes.draw_pixels` has drawn them already.
        limit: measure only so many images.
        seed: fixes the draw of pixels and the resampling.
        device: where to compute, by default the GPU where there is one.
        precision: fp32 (the default) or bf16 for running the networks.
        progress: show a progress bar.

    Raises:
        UsageError: A model is no segmentation network or has other classes than the data.
    """
    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"The precision must be fp32 or bf16, but is {precision!r}.")
    if pixels < 2:
        raise UsageError(f"pixels is {pixels}; similarity needs at least 2 on each side.")
    forgotten = data.indices(classes)
    run = Run(seed=seed, device=device, precision=precision or "fp32", progress=progress)
    test = scenes if scenes is not None else Scenes.of(data.splits["test"], limit=limit)
    sample = sample if sample is not None else draw_pixels(test, forgotten, pixels, seed)
    models: dict[Role, nn.Module] = {"original": original, "unlearned": unlearned}
    if retrained is not None:
        models["retrained"] = retrained
    tapped: dict[Role, TappedScenes] = {}
    with ProgressBar(len(models), "audit", enabled=progress) as bar:
        for role, model in models.items():
            tapped[role] = tap_scenes(model, test, sample, run)
            bar.update(len(tapped), note=f"the {role} model has run")
    book = LineBook()
    scores = {role: segmentation_scores(seen.confusions.sum(dim=0), forgotten) for role, seen in tapped.items()}
    for role, seen in tapped.items():
        book.add("scores", role, score_readings(seen.confusions, forgotten, data.classes, seed=seed))
    _similarities(tapped, book)
    shown = len(test.containing(forgotten))
    drawn = " and ".join(f"{len(found.places):,} {side}" for side, found in sample.items())
    return AuditReport(
        data=AuditedData(
            name=data.name,
            classes=data.classes,
            forgotten=tuple(sorted(forgotten)),
            counts={"test": (shown, len(test) - shown)},
        ),
        models={role: _described(model, tapped[role]) for role, model in models.items()},
        settings={"seed": seed, "limit": limit, "precision": run.precision, "device": run.torch_device.type},
        lines=book.lines(),
        answers={role: found.becomes for role, found in scores.items()},
        notes=(
            "counts of images are those that show a forgotten class and those that do not; CKA and RUS are of "
            f"{drawn} pixels, drawn with the same chance each. Their intervals take pixels as independent, which "
            "neighbours in one image are not.",
        ),
    )


def score_readings(
    confusions: Tensor, forgotten: tuple[int, ...], classes: tuple[str, ...], *, seed: int = 0
) -> dict[str, Reading]:
    """IoU_r, IoU_f and the IoU of every class, with 95 % intervals from resampling images.

    Args:
        confusions: by image, (n, C, C).
        forgotten: the forgotten classes.
        classes: their names.
        seed: fixes the resampling.
    """
    counts = confusions.double().cpu()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(counts), (_RESAMPLES, len(counts)), generator=generator)
    times = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    resampled = (times @ counts.flatten(1)).view(_RESAMPLES, *counts.shape[1:])
    spread = _values(resampled, forgotten, classes)
    truth = counts.sum(dim=(0, 2))
    gone = truth[list(forgotten)].sum()
    pixels = {"iou_r": truth.sum(), "iou_r_rest": truth.sum() - gone, "iou_f": gone}
    readings = {}
    for name, found in _values(counts.sum(dim=0, keepdim=True), forgotten, classes).items():
        value, others = float(found), spread[name][spread[name].isfinite()]
        if not math.isfinite(value):
            # A class that is neither shown nor given has no IoU; all of them together are then gone.
            if name == "iou_f":
                readings[name] = Reading(value=0.0, n=int(pixels[name]))
            continue
        low, high = torch.quantile(others, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        n = pixels[name] if name in pixels else truth[classes.index(name.partition("_iou_")[2][2:])]
        readings[name] = Reading(value=value, low=min(low, value), high=max(high, value), n=int(n))
    return readings


def _values(counts: Tensor, forgotten: tuple[int, ...], classes: tuple[str, ...]) -> dict[str, Tensor]:
    """The same as :func:`segmentation_scores` for many confusions (m, C, C) at once; NaN where a class is absent."""
    gone = list(forgotten)
    kept = [label for label in range(len(classes)) if label not in gone]
    rest = counts.clone()
    rest[:, gone] = 0
    iou, iou_rest = (
        part.diagonal(dim1=1, dim2=2) / (part.sum(1) + part.sum(2) - part.diagonal(dim1=1, dim2=2))
        for part in (counts, rest)
    )
    values = {
        "iou_r": iou[:, kept].nanmean(dim=1),
        "iou_r_rest": iou_rest[:, kept].nanmean(dim=1),
        "iou_f": iou[:, gone].nanmean(dim=1),
    }
    for label, name in enumerate(classes):
        values[f"class_iou_{'f' if label in gone else 'r'}_{name}"] = iou[:, label]
    return values


def _similarities(tapped: Mapping[Role, TappedScenes], book: LineBook) -> None:
    """CKA and RUS of every model against the original (o) and the retrained model (r)."""
    views: tuple[View, ...] = ("features", "raw") if tapped["unlearned"].projected else ("features",)
    for view in views:
        for base in _BASES:
            for role, seen in tapped.items() if base in tapped else ():
                if role == base:
                    continue
                forget = cka_reading(seen.view("forget", view), tapped[base].view("forget", view))
                retain = cka_reading(seen.view("retain", view), tapped[base].view("retain", view))
                letter = base[0]
                readings = (forget, retain, rus_reading(forget, retain, base))
                names = (f"cka_f_{letter}", f"cka_r_{letter}", f"rus_{letter}")
                book.add(view, role, dict(zip(names, readings, strict=True)))


def _described(model: nn.Module, seen: TappedScenes) -> AuditedModel:
    known = architecture(model)
    return AuditedModel(
        digest=digest(unwrap(model).state_dict()),
        architecture=None if known is None else known.name,
        methods=tuple(record.method for record in history(model)),
        projected=seen.projected,
    )
