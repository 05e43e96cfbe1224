"""The audit: run the models once, measure everything, read it against a retrained model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from pour.auditing.distance import Align
from pour.auditing.inspect import Auditor
from pour.auditing.processes import audit_device, is_first_process, join_processes
from pour.auditing.relearning import Relearning
from pour.data.classes import resolve_classes
from pour.data.dataset import ImageDataset
from pour.data.draws import stratified_rows
from pour.data.samples import first_batch
from pour.data.splits import Part, Splits
from pour.errors import UsageError
from pour.models.check_data import check_data
from pour.models.head import find_head
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.training.run import Precision

if TYPE_CHECKING:
    import os

    import torch
    from torch import nn

    from pour.auditing.features import Role
    from pour.auditing.report import AuditReport
    from pour.data.classes import ClassRequest
    from pour.models.head import Example

__all__ = ["audit"]


def audit(
    *,
    original: nn.Module,
    unlearned: nn.Module,
    retrained: nn.Module | None = None,
    data: Splits | ImageDataset,
    classes: ClassRequest | None = None,
    retrained_second: nn.Module | None = None,
    limit: int | None = None,
    relearn: Relearning | bool = False,
    layers: bool = False,
    align: Align = "procrustes",
    epsilon: float | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_unlearned: bool = False,
    head: str | None = None,
    example: Example | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> AuditReport:
    """Measure what ``unlearned`` still knows of the forgotten classes, and what else it lost.

    Every model runs once over every split; all metrics read the features kept from that. Each line of the report is
    read against the same metric of the retrained model. Without one there are no verdicts, and what compares with it
    is absent. No model is changed. Under ``torchrun`` every process runs its share of the images.

    Args:
        original: the model before forgetting.
        unlearned: the model to audit.
        retrained: a model trained without the forgotten classes, the reference.
        data: the splits, or a dataset and ``classes``.
        classes: the forgotten classes by name or index; may be left out where ``data`` is :class:`~pour.Splits`.
        retrained_second: another seed of the reference: the ceiling of similarities to it, and the floor of distances.
        limit: at most this many training images on each side, every class in its share; test images are all used.
        relearn: also run the relearn attack, with these options or the default ones.
        layers: also compare the models layer by layer.
        align: how features of different networks are made comparable for the distances.
        epsilon: what Definition 2.1 asks the distances to be below; by default the distance of two retrained models.
        cache: a folder that keeps the features of the reference models for the next audit.
        cache_unlearned: keep the unlearned model's features there too, for another audit of the same model.
        head: name of the models' head, where it is not found by itself.
        example: a small batch of inputs on which to find and verify the heads; by default images of the data.
        seed: fixes the choice of images and folds.
        device: where to compute, by default the GPU where there is one.
        precision: fp32 (the default) or bf16 for running the networks; metrics are always in float64.
        progress: show a progress bar.

    Raises:
        UsageError: The models, the data and the classes do not fit together, or a model gives NaN.

    Example:
        >>> import pour, torch
        >>> from pour.auditing import audit
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> forgotten = pour.forget(model, classes=[3])
        >>> report = audit(original=model, unlearned=forgotten, data=pour.load_dataset("digits"), classes=["3"],
        ...                device="cpu", progress=False)
        >>> report.value("acc_f"), report.line("acc_f").verdict
        (0.0, 'no reference')
    """
    splits = _resolve_data(data, classes)
    if retrained is None and retrained_second is not None:
        raise UsageError("retrained_second was given without retrained; pass the first one as retrained.")
    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"The precision must be fp32 or bf16, but is {precision!r}.")
    if seed < 0:
        raise UsageError(f"A seed must not be negative, but is {seed}.")
    if align not in get_args(Align):
        raise UsageError(f"align must be one of {', '.join(get_args(Align))}, but is {align!r}.")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise UsageError(f"epsilon is a distance, so a finite number from 0 on, but is {epsilon}.")
    given: dict[Role, nn.Module | None] = {
        "original": original,
        "unlearned": unlearned,
        "retrained": retrained,
        "retrained_second": retrained_second,
    }
    for role in ("original", "unlearned"):
        if given[role] is None:
            raise UsageError(f"An audit needs the {role} model; pass {role}=.")
    models = {role: model for role, model in given.items() if model is not None}
    few, _ = first_batch(splits.train.whole, FEW_IMAGES)
    for model in models.values():
        check_data(model, channels=few.shape[1], names=splits.classes)
    heads = {role: _head(model, role, few, head, example) for role, model in models.items()}
    labels, counts = np.unique(splits.train.whole.labels, return_counts=True)
    join_processes()
    auditor = Auditor(
        models=models,
        splits=_limited(splits, limit, seed),
        class_counts=dict(zip(labels.tolist(), counts.tolist(), strict=True)),
        device=audit_device(device),
        precision=precision or "fp32",
        align=align,
        epsilon=epsilon,
        heads=heads,
        seed=seed,
        cache=None if cache is None else Path(cache),
        cache_unlearned=cache_unlearned,
    )
    return auditor.report(
        limit=limit,
        attack=Relearning() if relearn is True else relearn or None,
        layers=layers,
        progress=progress and is_first_process(),
    )


def _head(model: nn.Module, role: Role, images: torch.Tensor, head: str | None, example: Example | None) -> str:
    """Return the name of a model's head, verified on the example or on images of the data."""
    try:
        if example is not None:
            return find_head(model, head=head, example=example).name
        return head_on_images(model, images, head=head).name
    except UsageError as error:
        raise UsageError(f"{error} This is the {role} model.") from error


def _resolve_data(data: Splits | ImageDataset, classes: ClassRequest | None) -> Splits:
    if isinstance(data, ImageDataset):
        if classes is None:
            raise UsageError(
                "A dataset needs the forgotten classes beside it; pass classes, or give pour.Splits as data."
            )
        splits = Splits.of(data, classes)
    elif isinstance(data, Splits):
        splits = data
        if classes is not None:
            wanted = resolve_classes(classes, num_classes=splits.num_classes, class_names=splits.classes)
            if set(wanted) != set(splits.forgotten):
                raise UsageError(
                    f"classes names {sorted(wanted)}, but the splits were made for {sorted(splits.forgotten)}; "
                    "make the splits for the same classes, or leave classes out."
                )
    else:
        raise UsageError(f"data must be pour.Splits or a dataset of pour.load_dataset, not a {type(data).__name__}.")
    for name, part in (("training", splits.train), ("test", splits.test)):
        for side, split in (("forgotten", part.forget), ("retained", part.retain)):
            if not len(split):
                raise UsageError(f"The {name} split of {splits.name} has no image of the {side} classes to audit on.")
    return splits


def _limited(splits: Splits, limit: int | None, seed: int) -> Splits:
    """At most ``limit`` training images on each side, every class in its share."""
    if limit is None:
        return splits
    most = max(len(splits.forgotten), splits.num_classes - len(splits.forgotten))
    if limit < most:
        raise UsageError(
            f"A limit of {limit} training images per side leaves none for some of {most} classes; raise it."
        )
    labels = splits.train.whole.labels
    gone = np.isin(labels, splits.forgotten)
    sides = [np.flatnonzero(side) for side in (gone, ~gone)]
    rows = np.sort(np.concatenate([side[stratified_rows(labels[side], limit, seed)] for side in sides]))
    return replace(splits, train=Part.of(splits.train.whole.take(rows), splits.forgotten))
