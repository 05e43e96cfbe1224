"""Audit an unlearned model: run all models once, measure, and compare with the retrained models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from torch import nn

from pour.auditing.distance import Align
from pour.auditing.inspect import Auditor
from pour.auditing.processes import audit_device, is_first_process, join_processes
from pour.auditing.relearning import Relearning
from pour.auditing.segmentation import audit_segmentation
from pour.data.classes import resolve_classes
from pour.data.dataset import ImageDataset
from pour.data.draws import stratified_rows
from pour.data.formats.scenes import SegmentationDataset
from pour.data.samples import first_batch
from pour.data.splits import Part, Splits
from pour.errors import UsageError
from pour.models.check_data import check_data
from pour.models.head import find_head
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import forgotten_before
from pour.training.run import Precision
from pour.training.tasks.task import Task, find_task, get_task

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import torch

    from pour.auditing.features import Role
    from pour.auditing.report import AuditReport
    from pour.data.classes import ClassRequest
    from pour.models.head import Example
    from pour.training.tasks.task import Dataset

__all__ = ["audit"]


def audit(
    *,
    original: nn.Module,
    unlearned: nn.Module,
    retrained: nn.Module | Sequence[nn.Module] | None = None,
    data: Splits | Dataset | Mapping[str, Any],
    classes: ClassRequest | None = None,
    task: Task[Any, Any] | str | None = None,
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
    """Measure how much of the forgotten classes ``unlearned`` still contains, and what it lost of the others.

    One pass over the data feeds each batch to every model, so that all comparisons are of the same samples. Each line
    of the report compares the unlearned model with the retrained models. Without a retrained model there are no
    verdicts. No model is changed. Under ``torchrun`` every process reads its share of the samples.

    Args:
        original: Model before forgetting.
        unlearned: Model to audit.
        retrained: Model trained without the forgotten classes, or two of them with different seeds. The second one
            shows how much two retrained models differ.
        data: Splits, a dataset, or samples by split: ``{"train": ..., "test": ...}``.
        classes: Forgotten classes by name or index; by default those in the history of ``unlearned``.
        task: Task of the models, or its name; by default the task of the data.
        limit: Largest number of training samples on each side, forgotten and retained. All test samples are used.
        relearn: Also run the relearn attack, with these options or the default ones.
        layers: Also compare the models layer by layer.
        align: How the distances make the features of different networks comparable.
        epsilon: Limit of the distances in Definition 2.1; by default the distance of two retrained models.
        cache: Folder that keeps the features of the reference models for the next audit.
        cache_unlearned: Also keep the unlearned model's features there.
        head: Dotted name of the models' head, if it cannot be found.
        example: Small batch of inputs on which the heads are found; by default samples of the data.
        seed: Fixes the choice of samples and folds.
        device: Device of the computation; by default the GPU if there is one.
        precision: Precision of the networks, fp32 (the default) or bf16. Metrics are computed in float64.
        progress: Show a progress bar.

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
    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"The precision must be fp32 or bf16, but is {precision!r}.")
    if seed < 0:
        raise UsageError(f"A seed must not be negative, but is {seed}.")
    if align not in get_args(Align):
        raise UsageError(f"align must be one of {', '.join(get_args(Align))}, but is {align!r}.")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise UsageError(f"epsilon is a distance, so a finite number from 0 on, but is {epsilon}.")
    models = _models_by_role(original, unlearned, retrained)
    if classes is None and not isinstance(data, Splits):
        classes = sorted(forgotten_before(unlearned))
        if not classes:
            raise UsageError("The unlearned model's history names no forgotten classes; pass classes.")
    chosen = _task(task, data)
    if isinstance(data, SegmentationDataset):
        return audit_segmentation(
            **models,  # type: ignore[arg-type]
            data=data,
            classes=classes,  # type: ignore[arg-type]
            scenes=chosen.split(data, "test"),
            pixels=chosen.pixels,  # type: ignore[attr-defined]
            limit=chosen.limit,  # type: ignore[attr-defined]
            seed=seed,
            device=device,
            precision=precision,
            progress=progress,
        )
    splits = _resolve_data(data, classes)
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


def _models_by_role(
    original: nn.Module, unlearned: nn.Module, retrained: nn.Module | Sequence[nn.Module] | None
) -> dict[Role, nn.Module]:
    models: dict[Role, nn.Module] = {"original": original, "unlearned": unlearned}
    for role, model in models.items():
        if model is None:
            raise UsageError(f"An audit needs the {role} model; pass {role}=.")
    references = () if retrained is None else (retrained,) if isinstance(retrained, nn.Module) else tuple(retrained)
    roles: tuple[Role, ...] = ("retrained", "retrained_second")
    if len(references) > len(roles):
        raise UsageError(f"retrained has {len(references)} models; give one, or two of different seeds.")
    return models | dict(zip(roles, references, strict=False))


def _task(task: Task[Any, Any] | str | None, data: object) -> Task[Any, Any]:
    if isinstance(task, Task):
        return task
    return get_task(task or find_task(getattr(data, "name", "")))


def _resolve_data(data: Splits | Dataset | Mapping[str, Any], classes: ClassRequest | None) -> Splits:
    if isinstance(data, ImageDataset | Mapping):
        splits = Splits.of(data, classes)  # type: ignore[arg-type]
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
        raise UsageError(f"data must be a dataset, pour.Splits or samples by split, not a {type(data).__name__}.")
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
