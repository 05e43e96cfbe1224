"""Intervals of a task's scores from resampled samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from pour.auditing.measurement import Reading

if TYPE_CHECKING:
    from torch import Tensor

    from pour.training.tasks.task import Task

__all__ = ["score_readings"]

_RESAMPLES = 400
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


def score_readings(
    task: Task[Any, Any],
    counts: Tensor,
    confusion: Tensor,
    forgotten: tuple[int, ...],
    names: tuple[str, ...],
    *,
    seed: int = 0,
) -> dict[str, Reading]:
    """Return the scores of a task with 95 % intervals over samples.

    Args:
        task: Task whose scores are computed.
        counts: The task's counts of each sample, (n, ...).
        confusion: Number of labels by true and by predicted class, (C, C).
        forgotten: Forgotten classes.
        names: Names of all classes.
        seed: Fixes the resampling.
    """
    counts = counts.double().cpu()
    labels = confusion.sum(dim=1)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(counts), (_RESAMPLES, len(counts)), generator=generator)
    times = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    resampled = (times @ counts.flatten(1)).view(_RESAMPLES, *counts.shape[1:])
    spread = task.scores(resampled, forgotten, names)
    readings = {}
    for name, score in task.scores(counts.sum(dim=0, keepdim=True), forgotten, names).items():
        value, n = float(score.values), int(labels[list(score.classes)].sum())
        if math.isfinite(value):
            others = spread[name].values
            low, high = torch.quantile(others[others.isfinite()], _ENDS).tolist()
            readings[name] = Reading(value=value, low=min(low, value), high=max(high, value), n=n)
        elif score.undefined is not None:
            readings[name] = Reading(value=score.undefined, n=n)
    return readings
