"""The paper's three terms: forgetting, retention and class separation bound the distance to a retrained model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pour.errors import UsageError, check_choice
from pour.geometry._inputs import as_mask
from pour.geometry.discrepancy import comparable, median_bandwidth
from pour.geometry.mixtures import mixture_distance

if TYPE_CHECKING:
    from torch import Generator, Tensor

__all__ = ["BoundForm", "BoundMetric", "DiscrepancyDecomposition", "decompose_discrepancy"]

BoundMetric = Literal["mmd", "energy", "wasserstein-1", "sliced-wasserstein-1"]
BoundForm = Literal["retrained", "unlearned"]


@dataclass(frozen=True)
class DiscrepancyDecomposition:
    """Result of `decompose_discrepancy`: `lower <= total <= upper = separation + forgotten + retained`."""

    metric: BoundMetric
    """Integral probability metric K."""
    form: BoundForm
    """Form of the bound. Its terms are weighted by beta ("retrained") or by alpha ("unlearned")."""
    alpha: float
    """Share of unlearned features whose predicted class is a forgotten one."""
    beta: float
    """The same share of retrained features."""
    total: float
    """K(P, Q), the discrepancy itself."""
    lower: float
    """Lower bound. A negative value excludes nothing, because K is never negative."""
    upper: float
    """Upper bound, the sum of the three terms."""
    separation: float
    """|alpha - beta| K(P_u, P_n), or K(Q_u, Q_n) in the form "unlearned"."""
    forgotten: float
    """The weight times K(P_u, Q_u)."""
    retained: float
    """1 - the weight, times K(P_n, Q_n)."""
    separation_distance: float | None
    """K of the separation without its weight; None if a part is empty."""
    forgotten_distance: float | None
    """K(P_u, Q_u) without its weight; None if a part is empty."""
    retained_distance: float | None
    """K(P_n, Q_n) without its weight; None if a part is empty."""
    bandwidth: float | None
    """Bandwidth of the kernel, for MMD."""

    def to_dict(self) -> dict[str, float | str | None]:
        """Return all values by name."""
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
    generator: Generator | None = None,
) -> DiscrepancyDecomposition:
    r"""Split the discrepancy K(P, Q) of unlearned features P and retrained features Q by predicted class.

    Write u for "predicted as a forgotten class" and n for the others, $P = \alpha P_u + (1-\alpha) P_n$ and
    $Q = \beta Q_u + (1-\beta) Q_n$. For every integral probability metric, with the form "retrained",

    $$
    |\beta K(P_u, Q_u) - (1-\beta) K(P_n, Q_n)| - |\alpha-\beta| K(P_u, P_n) \le K(P, Q)
    \le |\alpha-\beta| K(P_u, P_n) + \beta K(P_u, Q_u) + (1-\beta) K(P_n, Q_n),
    $$

    because $P - Q = (\alpha-\beta)(P_u - P_n) + \beta (P_u - Q_u) + (1-\beta)(P_n - Q_n)$. The form "unlearned"
    exchanges the roles, $P - Q = (\alpha-\beta)(Q_u - Q_n) + \alpha (P_u - Q_u) + (1-\alpha)(P_n - Q_n)$: alpha
    is the weight and K(Q_u, Q_n) the separation. The paper's main text proves the form "unlearned", its appendix the
    form "retrained". The default is "retrained", because a retrained model never predicts u: with beta = 0 the bound
    needs no Q_u. docs/concepts/theory.md compares both forms.

    A term of weight 0 is 0 even if its part is empty. All terms share one kernel, bandwidth and set of slices, without
    which the inequalities would not hold. Wasserstein-2 is no integral probability metric.

    Args:
        unlearned: `(n, d)` features of the unlearned model.
        retrained: `(m, d)` features of the retrained model, in the same frame (see `procrustes`).
        unlearned_forgotten: `(n,)` booleans: the unlearned model's predicted class is a forgotten one.
        retrained_forgotten: `(m,)` booleans, the same for the retrained model.
        metric: K; "energy" is the square root of the energy distance, "wasserstein-1" needs POT.
        form: Form of the bound, see above.
        bandwidth: Bandwidth of MMD's kernel, by default the median heuristic on both samples together.
        num_slices: Number of slices for "sliced-wasserstein-1".
        generator: Source of the slices.

    Raises:
        UsageError: An empty part has a weight above 0, or an argument does not fit.

    Examples:
        >>> import torch
        >>> from pour.geometry import decompose_discrepancy
        >>> _ = torch.manual_seed(0)
        >>> unlearned, retrained = torch.randn(60, 4), torch.randn(50, 4)
        >>> terms = decompose_discrepancy(unlearned, retrained, unlearned[:, 0] > 1, torch.zeros(50, dtype=torch.bool))
        >>> terms.lower <= terms.total <= terms.upper, terms.forgotten
        (True, 0.0)
    """
    if metric not in get_args(BoundMetric):
        metrics = ", ".join(get_args(BoundMetric))
        raise UsageError(f"metric is {metric!r}; the bound holds for integral probability metrics: {metrics}.")
    check_choice("form", form, get_args(BoundForm))
    p, q = comparable(unlearned, retrained)
    in_p = as_mask(unlearned_forgotten, p, "unlearned_forgotten")
    in_q = as_mask(retrained_forgotten, q, "retrained_forgotten")
    parts = [p[in_p], p[~in_p], q[in_q], q[~in_q]]
    alpha, beta = len(parts[0]) / len(p), len(parts[2]) / len(q)
    bandwidth = median_bandwidth(p, q) if metric == "mmd" and bandwidth is None else bandwidth
    K = mixture_distance(metric, parts, bandwidth=bandwidth, num_slices=num_slices, generator=generator)

    P_u, P_n, Q_u, Q_n = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)
    weight, K_separation = (beta, K(P_u, P_n)) if form == "retrained" else (alpha, K(Q_u, Q_n))
    K_u, K_n = K(P_u, Q_u), K(P_n, Q_n)
    separation = _product(abs(alpha - beta), K_separation, alpha, beta, form)
    forgotten = _product(weight, K_u, alpha, beta, form)
    retained = _product(1 - weight, K_n, alpha, beta, form)
    return DiscrepancyDecomposition(
        metric=metric,
        form=form,
        alpha=alpha,
        beta=beta,
        total=K((alpha, 1 - alpha, 0, 0), (0, 0, beta, 1 - beta)) or 0.0,
        lower=abs(forgotten - retained) - separation,
        upper=separation + forgotten + retained,
        separation=separation,
        forgotten=forgotten,
        retained=retained,
        separation_distance=K_separation,
        forgotten_distance=K_u,
        retained_distance=K_n,
        bandwidth=bandwidth if metric == "mmd" else None,
    )


def _product(weight: float, distance: float | None, alpha: float, beta: float, form: BoundForm) -> float:
    """Return `weight * distance`, or 0 if the weight is 0. Raise UsageError if the distance is None and needed."""
    if weight == 0:
        return 0.0
    if distance is None:
        other = "unlearned" if form == "retrained" else "retrained"
        raise UsageError(
            f"The form {form!r} of the bound weights a part without samples (alpha is {alpha:.3g}, beta "
            f"{beta:.3g}); use form={other!r}, or samples of which both models predict retained classes too."
        )
    return weight * distance
