"""RUS and AUS: forgetting and retention in one number, from representations and from accuracies."""

from math import isfinite
from typing import Literal, get_args

from pour.errors import UsageError, check_choice

__all__ = ["aus", "rus"]

Reference = Literal["original", "retrained"]


def rus(cka_forget: float, cka_retain: float, *, reference: Reference) -> float:
    """Return the Representation Unlearning Score, the harmonic mean of forgetting and retention.

    RUS = 2 phi CKA_r / (phi + CKA_r), with phi = 1 - CKA_f against the original model and phi = CKA_f against the
    retrained model. Inputs are clipped to [0, 1], because the debiased CKA can be outside. The mean of two zeros is 0.

    Against the original model the score also rewards destroyed features of the forgotten class. Compare it with the
    score of a retrained model.

    Args:
        cka_forget: CKA of the unlearned and the reference model on the forgotten class.
        cka_retain: CKA of the same two models on the retained classes.
        reference: Model of the comparison.

    Examples:
        >>> round(rus(0.23, 0.95, reference="original"), 2)
        0.85
        >>> round(rus(0.31, 0.94, reference="retrained"), 2)
        0.47
    """
    check_choice("reference", reference, get_args(Reference))
    cka_f, cka_r = _clipped("cka_forget", cka_forget), _clipped("cka_retain", cka_retain)
    phi = 1 - cka_f if reference == "original" else cka_f
    return 2 * phi * cka_r / (phi + cka_r) if phi + cka_r > 0 else 0.0


def aus(acc_r_original: float, acc_r: float, acc_f: float) -> float:
    """Return the Adaptive Unlearning Score, AUS = (1 - (acc_r_original - acc_r)) / (1 + acc_f).

    All accuracies are fractions on the test split. The score is 1 if the accuracy on the retained classes did not
    change and the accuracy on the forgotten class is 0. A gain on the retained classes can raise the score above 1.

    Args:
        acc_r_original: Accuracy of the original model on the retained classes.
        acc_r: Accuracy of the unlearned model on the retained classes.
        acc_f: Accuracy of the unlearned model on the forgotten class.

    Examples:
        >>> round(aus(0.9447, 0.8873, 0.0243), 2)
        0.92
    """
    for name, value in (("acc_r_original", acc_r_original), ("acc_r", acc_r), ("acc_f", acc_f)):
        if not 0 <= float(value) <= 1:
            raise UsageError(f"{name} must be a fraction in [0, 1], got {float(value)}: divide percents by 100.")
    return (1 - (float(acc_r_original) - float(acc_r))) / (1 + float(acc_f))


def _clipped(name: str, value: float) -> float:
    if not isfinite(value):
        raise UsageError(f"{name} must be a finite number, got {float(value)}.")
    return min(1.0, max(0.0, float(value)))
