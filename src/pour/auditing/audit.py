"""Audit an unlearned model: run all models once, measure, and compare with the retrained models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from pour.auditing.audited import audited_data
from pour.auditing.auditor import Auditor
from pour.auditing.distance import Align
from pour.auditing.processes import audit_device, is_first_process, join_processes, one_of_several
from pour.auditing.relearning import Relearning
from pour.data.samples import is_indexed
from pour.errors import UsageError
from pour.inspection.preflight import check_audit
from pour.models.check_data import check_data
from pour.models.head import find_head
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.training.run import Precision, Run

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from pour.auditing.audited import Audited
    from pour.auditing.features import Role
    from pour.auditing.report import AuditReport
    from pour.data.classes import ClassRequest
    from pour.data.splits import Splits
    from pour.models.head import Example
    from pour.training.tasks.task import Dataset, Task

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
    pictures: bool = False,
    align: Align = "procrustes",
    epsilon: float | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_unlearned: bool = False,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
    force: bool = False,
    reference: bool = False,
    trusted: bool = False,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> AuditReport:
    """Measure how much of the forgotten classes `unlearned` still contains, and how much of the others it lost.

    The data are read once: each batch is the input of every model, so that all comparisons use the same samples. Each
    line of the report compares the unlearned model with the retrained models. Without a retrained model every verdict
    is "no reference". No model is changed. Under `torchrun` every process reads its share of the samples.

    Args:
        original: Model before forgetting.
        unlearned: Model to audit.
        retrained: Model trained without the forgotten classes, or two such models with different seeds. The second
            model shows how much two retrained models differ.
        data: Splits, a dataset, or samples by split: `{"train": ..., "test": ...}`.
        classes: Forgotten classes by name or index; by default those in the history of `unlearned`.
        task: Task of the models, or its name; by default the task of the data.
        limit: Largest number of forgotten and of retained training samples. All test samples are used.
        relearn: Also run the relearn attack, with these options or the default ones.
        layers: Also compare the models layer by layer.
        pictures: Also compute the pictures of `pour.write_report`, such as a map of the features and Grad-CAM. The
            report's file contains them.
        align: Alignment of the features of two networks before their distance is computed: `procrustes` or `none`.
        epsilon: Limit of the distances in Definition 2.1; by default the distance of two retrained models.
        cache: Folder in which the features of the reference models are stored for later audits.
        cache_unlearned: Also store the features of the unlearned model.
        head: Dotted name of the models' head, or names of several heads whose scores are averaged. Needed only if
            pour cannot find the head.
        example: Small batch of inputs on which the heads are found; by default samples of the data.
        force: Warn instead of raising an error if models, data and classes contradict each other. The notes of the
            report contain the warning.
        reference: Accept that the unlearned model is also the original or a retrained model, as in the row of a
            reference.
        trusted: Skip the check of models and data, for callers that computed the models themselves.
        seed: Fixes the choice of samples and folds.
        device: Device of the computation; by default the GPU, if present.
        precision: Precision of the networks, fp32 (the default) or bf16. Metrics are computed in float64.
        progress: Show a progress bar.

    Raises:
        UsageError: The models, the data and the classes do not fit together, or a model returns NaN.

    Examples:
        >>> import pour, torch
        >>> from pour.auditing import audit
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> forgotten = pour.forget(model, classes=[3])
        >>> report = audit(original=model, unlearned=forgotten, data=pour.load_dataset("digits"), classes=["3"],
        ...                device="cpu", progress=False, trusted=True)
        >>> report.value("acc_f"), report.line("acc_f").verdict
        (0.0, 'no reference')
    """
    if align not in get_args(Align):
        raise UsageError(f"align must be one of {', '.join(get_args(Align))}, but is {align!r}.")
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise UsageError(f"epsilon must be a finite number of at least 0, but is {epsilon}.")
    run = Run(seed=seed, device=audit_device(device), precision=precision or "fp32", progress=False)
    models = _models_by_role(original, unlearned, retrained)
    audited = audited_data(data, classes, task, original, unlearned)
    for name, samples in audited.samples.items():
        # Samples without an index have unknown labels before the first reading.
        if is_indexed(samples) and getattr(samples, "knows_labels", True):
            audited.check_sides(name, audited.side_counts(samples))
    few = audited.first("train" if audited.task.one_label else "test")[0][:FEW_IMAGES]
    for model in models.values():
        check_data(model, channels=few.shape[1], names=audited.classes)
    heads = {role: _checked_head(model, role, audited, few, head, example) for role, model in models.items()}
    for step, requested in (("The relearn attack", relearn), ("The comparison of layers", layers)):
        if requested:
            audited.splits(step)
    if cache is not None:
        audited.indexed("The cache names its files after the samples")
    notes: tuple[str, ...] = ()
    if not trusted:
        notes = check_audit(
            models,
            audited.samples,
            task=audited.task,
            classes=audited.forgotten,
            names=audited.classes,
            run=run,
            force=force,
            reference=reference,
        )
    join_processes()
    if one_of_several():
        audited.indexed("Each of several processes reads its share of the samples")
    auditor = Auditor(
        models=models,
        heads=heads,
        audited=audited.limited(limit, seed),
        run=run,
        limit=limit,
        relearning=Relearning() if relearn is True else relearn or None,
        layers=layers,
        pictures=pictures,
        align=align,
        epsilon=epsilon,
        cache=None if cache is None else Path(cache),
        cache_unlearned=cache_unlearned,
        notes=list(notes),
    )
    return auditor.report(progress=progress and is_first_process())


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
        raise UsageError(f"retrained has {len(references)} models; pass one, or two of different seeds.")
    return models | dict(zip(roles, references, strict=False))


def _checked_head(
    model: nn.Module,
    role: Role,
    audited: Audited,
    inputs: Tensor,
    head: str | Sequence[str] | None,
    example: Example | None,
) -> str:
    """Return the names of a model's heads, found on the example or on inputs of the data."""
    try:
        if example is None:
            verified = head_on_images(model, inputs, head=head)
        else:
            verified = find_head(model, head=head, example=example)
        audited.task.check_head(verified, len(audited.classes))
    except UsageError as error:
        raise UsageError(f"{error} This is the {role} model.") from error
    return verified.names
