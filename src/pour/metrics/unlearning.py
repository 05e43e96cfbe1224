"""The two scores that put forgetting and retention in one number: RUS (of representations) and AUS (of accuracies)."""

from math import isfinite
from typing import Literal

from pour.errors import UsageError

__all__ = ["aus", "rus"]

Reference = Literal["original", "retrained"]


def rus(cka_forget: float, cka_retain: float, *, reference: Reference) -> float:
    """Return the Representation Unlearning Score, the harmonic mean of forgetting and retention.

    RUS = 2 phi CKA_r / (phi + CKA_r), with phi = 1 - CKA_f against the original model and phi = CKA_f against the
    retrained one. Inputs are clipped to [0, 1] (the debiased CKA can leave it); the mean of two zeros is 0.

    Against the original model the score rewards any destruction of the forgotten class's features: read it beside
    the retrained model's own value.

    Args:
        cka_forget: CKA of the unlearned and the reference model on the forgotten class.
        cka_retain: CKA of the same two models on the retained classes.
        reference: which model the two were compared with.

    Example:
        >>> round(rus(0.23, 0.95, reference="original"), 2)
        0.85
        >>> round(rus(0.31, 0.94, reference="retrained"), 2)
        0.47
    """
    if reference not in ("original", "retrained"):
        raise UsageError(f"reference must be 'original' or 'retrained', got {reference!r}.")
    forget, retain = (_unit("cka_forget", cka_forget), _unit("cka_retain", cka_retain))
    phi = 1 - forget if reference == "original" else forget
    return 2 * phi * retain / (phi + retain) if phi + retain > 0 else 0.0


def aus(acc_r_original: float, acc_r: float, acc_f: float) -> float:
    """Return the Adaptive Unlearning Score, AUS = (1 - (acc_r_original - acc_r)) / (1 + acc_f).

    All accuracies are fractions on the test split. 1 means that nothing was lost on the retained classes and nothing
    kept of the forgotten one; a model that gains on the retained classes exceeds 1.

    Args:
        acc_r_original: the original model's accuracy on the retained classes.
        acc_r: the unlearned model's accuracy on the retained classes.
        acc_f: the unlearned model's accuracy on the forgotten class.

    Example:
        >>> round(aus(0.9447, 0.8873, 0.0243), 2)
        0.92
    """
    for name, value in (("acc_r_original", acc_r_original), ("acc_r", acc_r), ("acc_f", acc_f)):
        if not 0 <= float(value) <= 1:
            raise UsageError(f"{name} must be a fraction in [0, 1], got {float(value)}: divide percents by 100.")
    return (1 - (float(acc_r_original) - float(acc_r))) / (1 + float(acc_f))


def _unit(name: str, value: float) -> float:
    value = float(value)
    if not isfinite(value):
        raise UsageError(f"{name} must be a finite number, got {value}.")
    return min(1.0, max(0.0, value))
