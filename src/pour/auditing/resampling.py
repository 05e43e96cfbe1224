"""Compute intervals of a task's scores by resampling the samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pour.auditing.measurement import Reading

if TYPE_CHECKING:
    from pour.auditing.audited import Audited
    from pour.auditing.features import Seen

__all__ = ["score_readings"]

_RESAMPLES = 400
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


def score_readings(audited: Audited, output: Seen, seed: int = 0) -> dict[str, Reading]:
    """Return the scores of the task with 95 % intervals over samples.

    Args:
        audited: Task and classes.
        output: Output of a model.
        seed: Fixes the resampling.
    """
    task, forgotten, names = audited.task, audited.forgotten, audited.classes
    counts, labels = output.counts.double().cpu(), output.confusion.sum(dim=1)
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
