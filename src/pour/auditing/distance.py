"""How far unlearned features are from retrained ones, in terms, against the distance of two retrained models."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
"""Bring the features of two networks into one frame first, or take them as they are."""
Decision = Literal["met", "not met", "undecided"]
"""Definition 2.1: is the discrepancy to the retrained model below epsilon?"""
METRICS: tuple[BoundMetric, ...] = ("mmd", "energy", "sliced-wasserstein-1")
"""The integral probability metrics that are cheap enough for every audit."""

# The pairs of a test split's images go with the square of their number.
_IMAGES = 2000


@record
@dataclass(frozen=True, kw_only=True)
class Discrepancy:
    """K(P, Q) of unlearned features P and retrained features Q with its terms; see ``decompose_discrepancy``.

    The terms are None where neither form of the bound applies: a model that gives one answer to everything.
    """

    metric: BoundMetric
    view: View
    n: int
    """Test images compared."""
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
    """The same distance for the original model: what doing nothing gives."""
    floor: float | None = None
    """The same distance for a second retrained model."""
    epsilon: float | None = None
    """What the decision compares with: as given, else the floor."""
    decision: Decision = "undecided"
    """Definition 2.1."""


def discrepancies(
    model: Tapped, retrained: Tapped, view: View, *, align: Align = "procrustes", seed: int = 0
) -> dict[BoundMetric, Discrepancy]:
    """Compare a model's test features with the retrained model's, for every metric.

    The alignment is fitted on retained training images, which both models know, and applied to test images of all
    classes. Bandwidth and slices depend on the retrained model alone, so that values for different models compare.

    Args:
        model: the unlearned model, or one that takes its place for the floor.
        retrained: the reference.
        view: which features of ``model``; the reference's are always those that its head sees.
        align: "none" needs features of the same width.
        seed: fixes the choice of images.
    """
    if align not in get_args(Align):
        raise UsageError(f"align is {align!r}; choose one of {', '.join(get_args(Align))}.")
    p, q = model.rows("test", view), retrained.rows("test")
    chosen = torch.as_tensor(stratified_rows(model.labels("test").cpu().numpy(), _IMAGES, seed), device=p.device)
    p, q = p[chosen], q[chosen]
    if align == "procrustes":
        fitted = procrustes(model.side("train", "retain", view), retrained.side("train", "retain"))
        p, q = fitted(p), fitted.target(q)
    in_p, in_q = model.predicts_forgotten("test")[chosen], retrained.predicts_forgotten("test")[chosen]
    bandwidth = median_bandwidth(q)
    return {metric: _decomposed(p, q, in_p, in_q, metric, view, bandwidth) for metric in METRICS}


def decide(
    found: Discrepancy, *, original: float | None, floor: float | None, epsilon: float | None = None
) -> Discrepancy:
    """Put the comparisons beside a discrepancy and decide Definition 2.1; undecided without an epsilon or a floor."""
    limit = floor if epsilon is None else epsilon
    decision: Decision = "undecided" if limit is None else "met" if found.total <= limit else "not met"
    return Discrepancy(
        **{**asdict(found), "original": original, "floor": floor, "epsilon": limit, "decision": decision}
    )


def _decomposed(
    p: Tensor, q: Tensor, in_p: Tensor, in_q: Tensor, metric: BoundMetric, view: View, bandwidth: float
) -> Discrepancy:
    alpha, beta = float(in_p.double().mean()), float(in_q.double().mean())
    form = _applicable_form(alpha, beta)
    if form is None:
        nobody = torch.zeros_like(in_p)
        whole = decompose_discrepancy(p, q, nobody, nobody, metric=metric, bandwidth=bandwidth)
        return Discrepancy(metric=metric, view=view, n=len(p), alpha=alpha, beta=beta, total=whole.total)
    terms = decompose_discrepancy(p, q, in_p, in_q, metric=metric, form=form, bandwidth=bandwidth)
    return Discrepancy(view=view, n=len(p), **terms.to_dict())  # type: ignore[arg-type]


def _applicable_form(alpha: float, beta: float) -> BoundForm | None:
    """The appendix's form unless it gives weight to an empty part; then the main text's, if that does not."""
    if alpha < 1 and (alpha > 0 or beta == 0):
        return "retrained"
    if beta < 1 and (beta > 0 or alpha == 0):
        return "unlearned"
    return "retrained" if alpha == beta else None
