"""Distance from unlearned to retrained features with its terms, compared with the distance of two retrained models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import torch

from pour._records import record
from pour.auditing.features import View
from pour.data.draws import stratified_rows
from pour.errors import UsageError
from pour.geometry.bound import BoundForm, BoundMetric, decompose_discrepancy
from pour.geometry.discrepancy import median_bandwidth
from pour.geometry.procrustes import procrustes

if TYPE_CHECKING:
    from torch import Tensor

    from pour.auditing.features import Tapped

__all__ = ["METRICS", "Align", "Decision", "Discrepancy", "decide", "discrepancies"]

Align = Literal["procrustes", "none"]
"""Whether the features of two networks are aligned before their distance is computed."""
Decision = Literal["met", "not met", "undecided"]
"""Whether the discrepancy to the retrained model is below epsilon (Definition 2.1)."""
METRICS: tuple[BoundMetric, ...] = ("mmd", "energy", "sliced-wasserstein-1")
"""Integral probability metrics that are fast enough for every audit."""

# Largest number of images. The number of pairs of images grows with its square.
_IMAGES = 2000


@record()
class Discrepancy:
    """K(P, Q) of unlearned features P and retrained features Q with its terms; see `decompose_discrepancy`.

    The terms are None if neither form of the bound applies, as for a model that returns one answer for all images.
    """

    metric: BoundMetric
    view: View
    n: int
    """Number of compared test images."""
    alpha: float
    """Share of images on which the unlearned model answers with a forgotten class."""
    beta: float
    """The same share for the retrained model."""
    total: float
    lower: float | None = None
    upper: float | None = None
    form: BoundForm | None = None
    separation: float | None = None
    forgotten: float | None = None
    retained: float | None = None
    separation_distance: float | None = None
    forgotten_distance: float | None = None
    retained_distance: float | None = None
    bandwidth: float | None = None
    original: float | None = None
    """The same distance for the original model, without any forgetting."""
    floor: float | None = None
    """The same distance for a second retrained model."""
    epsilon: float | None = None
    """Limit of the decision; by default the floor."""
    decision: Decision = "undecided"
    """Result of Definition 2.1."""


def discrepancies(
    model: Tapped, retrained: Tapped, view: View, *, align: Align = "procrustes", seed: int = 0
) -> dict[BoundMetric, Discrepancy]:
    """Return the distances from a model's test features to the retrained model's, by metric.

    The alignment is fitted on retained training images, which are training images of both models. It is applied to test
    images of all classes. Bandwidth and slices depend only on the retrained model, so that values of different models
    are comparable.

    Args:
        model: Unlearned model, or another model to compare with the retrained one.
        retrained: Retrained model; its features are always the features that its head sees.
        view: Features of `model`.
        align: "none" needs features of the same width.
        seed: Fixes the choice of images.
    """
    if align not in get_args(Align):
        raise UsageError(f"align is {align!r}; choose one of {', '.join(get_args(Align))}.")
    p, q = model.rows("test", view), retrained.rows("test")
    rows = torch.as_tensor(stratified_rows(model.labels("test").cpu().numpy(), _IMAGES, seed), device=p.device)
    p, q = p[rows], q[rows]
    if align == "procrustes":
        frame = procrustes(model.side("train", "retain", view), retrained.side("train", "retain"))
        p, q = frame(p), frame.target(q)
    in_p, in_q = model.predicts_forgotten("test")[rows], retrained.predicts_forgotten("test")[rows]
    bandwidth = median_bandwidth(q)
    return {metric: _decomposed(p, q, in_p, in_q, metric, view, bandwidth) for metric in METRICS}


def decide(
    discrepancy: Discrepancy, *, original: float | None, floor: float | None, epsilon: float | None = None
) -> Discrepancy:
    """Return a discrepancy with its comparisons and the decision of Definition 2.1.

    It is undecided without an epsilon and a floor.
    """
    limit = floor if epsilon is None else epsilon
    decision: Decision = "undecided" if limit is None else "met" if discrepancy.total <= limit else "not met"
    return replace(discrepancy, original=original, floor=floor, epsilon=limit, decision=decision)


def _decomposed(
    p: Tensor, q: Tensor, in_p: Tensor, in_q: Tensor, metric: BoundMetric, view: View, bandwidth: float
) -> Discrepancy:
    alpha, beta = float(in_p.double().mean()), float(in_q.double().mean())
    form = _applicable_form(alpha, beta)
    if form is None:
        empty = torch.zeros_like(in_p)
        whole = decompose_discrepancy(p, q, empty, empty, metric=metric, bandwidth=bandwidth)
        return Discrepancy(metric=metric, view=view, n=len(p), alpha=alpha, beta=beta, total=whole.total)
    terms = decompose_discrepancy(p, q, in_p, in_q, metric=metric, form=form, bandwidth=bandwidth)
    return Discrepancy(view=view, n=len(p), **terms.to_dict())  # type: ignore[arg-type]


def _applicable_form(alpha: float, beta: float) -> BoundForm | None:
    """Return the form of the appendix, or the form of the main text if the first gives weight to an empty part."""
    if alpha < 1 and (alpha > 0 or beta == 0):
        return "retrained"
    if beta < 1 and (beta > 0 or alpha == 0):
        return "unlearned"
    return "retrained" if alpha == beta else None
