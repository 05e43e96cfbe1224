"""How far unlearned features are from retrained ones, in three terms with a lower and an upper bound."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry.discrepancy import (
    comparable,
    mean_over_pairs,
    median_bandwidth,
    random_slices,
    rbf_kernel,
    sliced_wasserstein,
    spread_between,
    wasserstein,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BoundForm", "BoundMetric", "DiscrepancyDecomposition", "decompose_discrepancy"]

BoundMetric = Literal["mmd", "energy", "wasserstein-1", "sliced-wasserstein-1"]
BoundForm = Literal["retrained", "unlearned"]

# Distance of two mixtures of the four parts (P_u, P_n, Q_u, Q_n), each given by its shares of them.
_Shares = tuple[float, float, float, float]
_P_U, _P_N, _Q_U, _Q_N = (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True)
class DiscrepancyDecomposition:
    """What :func:`decompose_discrepancy` found: ``lower <= total <= upper = separation + forgotten + retained``."""

    metric: BoundMetric
    """The integral probability metric K."""
    form: BoundForm
    """Whose share weighs the terms: "retrained" beta, "unlearned" alpha."""
    alpha: float
    """Share of unlearned features whose predicted class is a forgotten one."""
    beta: float
    """The same share of retrained features."""
    total: float
    """K(P, Q), the discrepancy itself."""
    lower: float
    """The lower bound; it may be negative, and then says nothing."""
    upper: float
    """The upper bound, the sum of the three terms."""
    separation: float
    """|alpha - beta| K(P_u, P_n), or K(Q_u, Q_n) in the form "unlearned"."""
    forgotten: float
    """The weight times K(P_u, Q_u)."""
    retained: float
    """One less the weight, times K(P_n, Q_n)."""
    separation_distance: float | None
    """K of the separation without its weight; None where a part is empty."""
    forgotten_distance: float | None
    """K(P_u, Q_u) without its weight; None where a part is empty."""
    retained_distance: float | None
    """K(P_n, Q_n) without its weight; None where a part is empty."""
    bandwidth: float | None
    """The kernel's bandwidth, for MMD."""

    def to_dict(self) -> dict[str, float | str | None]:
        """Give all values by name."""
        return asdict(self)


def decompose_discrepancy(
    unlearned: Tensor,
    retrained: Tensor,
    unlearned_forgotten: Tensor,
    retrained_forgotten: Tensor,
    *,
    metric: BoundMetric = "mmd",
    form: BoundForm = "retrained",
    bandwidth: float | None = None,
    num_slices: int = 256,
    generator: torch.Generator | None = None,
) -> DiscrepancyDecomposition:
    r"""Split the discrepancy K(P, Q) of unlearned features P and retrained features Q by predicted class.

    Write u for "predicted as a forgotten class" and n for the others, :math:`P = \alpha P_u + (1-\alpha) P_n` and
    :math:`Q = \beta Q_u + (1-\beta) Q_n`. For every integral probability metric, with the form "retrained",

    .. math::
        |\beta K(P_u, Q_u) - (1-\beta) K(P_n, Q_n)| - |\alpha-\beta| K(P_u, P_n) \le K(P, Q)
        \le |\alpha-\beta| K(P_u, P_n) + \beta K(P_u, Q_u) + (1-\beta) K(P_n, Q_n),

    because :math:`P - Q = (\alpha-\beta)(P_u - P_n) + \beta (P_u - Q_u) + (1-\beta)(P_n - Q_n)`. The form "unlearned"
    exchanges the roles, :math:`P - Q = (\alpha-\beta)(Q_u - Q_n) + \alpha (P_u - Q_u) + (1-\alpha)(P_n - Q_n)`: alpha
    is the weight and K(Q_u, Q_n) the separation.

    The paper has both: "unlearned" is the proposition of the main text, "retrained" the appendix's. Each is true as it
    stands, and mixing one's weights with the other's separation is not. The main text goes on to use its form at
    beta = 0, where K(P_u, Q_u) and K(Q_u, Q_n) have no meaning: a retrained model never predicts u. The appendix's form
    does not need Q_u there, which is why it is the default. The appendix's remark that the separation is that of the
    *original* model is a slip: its proof uses P, the unlearned one.

    A term of weight 0 is 0 even where its part is empty; an empty part that has weight is an error. All terms share one
    kernel, bandwidth and set of slices, without which the inequalities would not hold. Wasserstein-2 is no integral
    probability metric and is not offered here.

    Args:
        unlearned: ``(n, d)`` features of the unlearned model.
        retrained: ``(m, d)`` features of the retrained model, in the same frame (see :func:`procrustes`).
        unlearned_forgotten: ``(n,)`` booleans: the unlearned model's predicted class is a forgotten one.
        retrained_forgotten: ``(m,)`` booleans, the same for the retrained model.
        metric: K; "energy" is the square root of the energy distance, "wasserstein-1" needs POT.
        form: see above.
        bandwidth: of MMD's kernel, by default the median heuristic on both samples together.
        num_slices: for "sliced-wasserstein-1".
        generator: source of the slices.

    Example:
        >>> import torch
        >>> from pour.geometry import decompose_discrepancy
        >>> _ = torch.manual_seed(0)
        >>> unlearned, retrained = torch.randn(60, 4), torch.randn(50, 4)
        >>> terms = decompose_discrepancy(unlearned, retrained, unlearned[:, 0] > 1, torch.zeros(50, dtype=torch.bool))
        >>> terms.lower <= terms.total <= terms.upper, terms.forgotten
        (True, 0.0)
    """
    if metric not in get_args(BoundMetric):
        raise UsageError(
            f"metric is {metric!r}; the bound holds for integral probability metrics: "
            f"{', '.join(get_args(BoundMetric))}."
        )
    if form not in get_args(BoundForm):
        raise UsageError(f"form is {form!r}; expected one of {', '.join(get_args(BoundForm))}.")
    p, q = comparable(unlearned, retrained)
    in_p = _checked_mask(unlearned_forgotten, p, "unlearned_forgotten")
    in_q = _checked_mask(retrained_forgotten, q, "retrained_forgotten")
    parts = [p[in_p], p[~in_p], q[in_q], q[~in_q]]
    alpha, beta = len(parts[0]) / len(p), len(parts[2]) / len(q)
    if metric == "mmd" and bandwidth is None:
        bandwidth = median_bandwidth(p, q)
    between = _distance_between_mixtures(metric, parts, bandwidth, num_slices, generator)

    def distance(a: _Shares, b: _Shares) -> float | None:
        """K of two mixtures, or None where one has weight on an empty part."""
        empty = any((i or j) and not len(part) for i, j, part in zip(a, b, parts, strict=True))
        return None if empty else between(a, b)

    weight = beta if form == "retrained" else alpha
    gap = distance(_P_U, _P_N) if form == "retrained" else distance(_Q_U, _Q_N)
    between_u, between_n = distance(_P_U, _Q_U), distance(_P_N, _Q_N)
    separation = _term(abs(alpha - beta), gap, alpha, beta, form)
    forgotten = _term(weight, between_u, alpha, beta, form)
    retained = _term(1 - weight, between_n, alpha, beta, form)
    return DiscrepancyDecomposition(
        metric=metric,
        form=form,
        alpha=alpha,
        beta=beta,
        total=between((alpha, 1 - alpha, 0.0, 0.0), (0.0, 0.0, beta, 1 - beta)),
        lower=abs(forgotten - retained) - separation,
        upper=separation + forgotten + retained,
        separation=separation,
        forgotten=forgotten,
        retained=retained,
        separation_distance=gap,
        forgotten_distance=between_u,
        retained_distance=between_n,
        bandwidth=bandwidth if metric == "mmd" else None,
    )


def _distance_between_mixtures(
    metric: BoundMetric,
    parts: list[Tensor],
    bandwidth: float | None,
    num_slices: int,
    generator: torch.Generator | None,
) -> Callable[[_Shares, _Shares], float]:
    """Give K as a function of two mixtures' shares; what all terms share is made once, here."""
    if metric in ("mmd", "energy"):
        kernel = rbf_kernel(bandwidth) if bandwidth is not None and metric == "mmd" else torch.sqrt
        means = mean_over_pairs(parts, kernel)
        means = means if metric == "mmd" else -means
        return lambda a, b: float(spread_between(means, [i - j for i, j in zip(a, b, strict=True)]))

    def samples(shares: _Shares) -> Tensor:
        # The only mixtures asked for are single parts and whole samples, so equal weights are the right ones.
        return torch.cat([part for share, part in zip(shares, parts, strict=True) if share])

    if metric == "wasserstein-1":
        return lambda a, b: float(wasserstein(samples(a), samples(b)))
    slices = random_slices(num_slices, parts[0].shape[1], generator)
    return lambda a, b: float(sliced_wasserstein(samples(a), samples(b), slices=slices))


def _term(weight: float, distance: float | None, alpha: float, beta: float, form: BoundForm) -> float:
    if weight == 0:
        return 0.0
    if distance is None:
        other = "unlearned" if form == "retrained" else "retrained"
        raise UsageError(
            f"The form {form!r} of the bound gives weight to a part without samples (alpha is {alpha:.3g}, beta "
            f"{beta:.3g}); use form={other!r}, or samples of which both models predict retained classes too."
        )
    return weight * distance


def _checked_mask(mask: Tensor, rows: Tensor, name: str) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != rows.shape[:1]:
        raise UsageError(
            f"{name} is {mask.dtype} of shape {tuple(mask.shape)}; expected booleans of shape ({len(rows)},): "
            "whether the predicted class is a forgotten one."
        )
    return mask.to(rows.device)
