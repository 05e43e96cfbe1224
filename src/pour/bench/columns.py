"""What the tables show: the paper's columns and a few beside them, and how each is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BOTH_TEST_SETS", "COLUMNS", "LABELS", "PAPER_COLUMNS", "Column", "label_of"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure of a row."""

    key: str
    """Its name in tables, and in the paper's where it is there."""
    line: str
    """Its name in an audit."""
    label: str
    latex: str
    percent: bool = False
    """Shown times 100."""
    better: Literal["higher", "lower"] = "higher"
    change: bool = False
    """Shown as the difference from the same measure of the original."""

    @property
    def scale(self) -> float:
        """What the audit's value is multiplied with."""
        return 100.0 if self.percent else 1.0


def _percent(key: str, label: str, latex: str, better: Literal["higher", "lower"], line: str | None = None) -> Column:
    return Column(key=key, line=line or key, label=label, latex=latex, percent=True, better=better)


_EXTERNAL = (
    _percent("acc_r_external", "Acc_r, external", "Acc$_r$, ext.", "higher"),
    _percent("acc_f_external", "Acc_f, external", "Acc$_f$, ext.", "lower"),
    Column(key="aus_external", line="aus_external", label="AUS, external", latex="AUS, ext."),
    Column(
        key="cka_f_o_external",
        line="cka_f_o_external",
        label="CKA_f(o), external",
        latex="CKA$_f^{(o)}$, ext.",
        better="lower",
    ),
    Column(key="cka_r_o_external", line="cka_r_o_external", label="CKA_r(o), external", latex="CKA$_r^{(o)}$, ext."),
    Column(key="rus_o_external", line="rus_o_external", label="RUS(o), external", latex="RUS$^{(o)}$, ext."),
    Column(
        key="acc_r_change_external",
        line="acc_r_external",
        label="change of Acc_r, external",
        latex="$\\Delta$Acc$_r$, ext.",
        percent=True,
        change=True,
    ),
)

COLUMNS: dict[str, Column] = {
    column.key: column
    for column in (
        _percent("acc_r", "Acc_r", "Acc$_r$", "higher"),
        _percent("acc_f", "Acc_f", "Acc$_f$", "lower"),
        _percent("acc_tr", "Acc_tr", "Acc$_{tr}$", "higher"),
        _percent("acc_tf", "Acc_tf", "Acc$_{tf}$", "lower"),
        Column(key="aus", line="aus", label="AUS", latex="AUS"),
        _percent("rmia", "rMIA", "rMIA", "lower", "rmia_tpr"),
        Column(key="cka_f_o", line="cka_f_o", label="CKA_f(o)", latex="CKA$_f^{(o)}$", better="lower"),
        Column(key="cka_r_o", line="cka_r_o", label="CKA_r(o)", latex="CKA$_r^{(o)}$"),
        Column(key="rus_o", line="rus_o", label="RUS(o)", latex="RUS$^{(o)}$"),
        Column(key="cka_f_r", line="cka_f_r", label="CKA_f(r)", latex="CKA$_f^{(r)}$"),
        Column(key="cka_r_r", line="cka_r_r", label="CKA_r(r)", latex="CKA$_r^{(r)}$"),
        Column(key="rus_r", line="rus_r", label="RUS(r)", latex="RUS$^{(r)}$"),
        _percent("probe", "probe", "probe", "lower", "probe_linear"),
        _percent("answers_r", "answers(r)", "answers$^{(r)}$", "lower"),
        Column(
            key="acc_r_change",
            line="acc_r",
            label="change of Acc_r",
            latex="$\\Delta$Acc$_r$",
            percent=True,
            change=True,
        ),
        *_EXTERNAL,
    )
}
"""By key; accuracies, rMIA (the attack's true-positive rate, as in the paper), the probe and answers(r), how unlike the
retrained network's the answers to forgotten images are, are in percent."""

PAPER_COLUMNS = tuple(COLUMNS)[:12]
"""What the paper's first table shows, in its order."""

BOTH_TEST_SETS = tuple(f"{key}{suffix}" for suffix in ("", "_external") for key in ("acc_r", "acc_f", "aus", "rus_o"))
"""What the paper's table under domain shift shows: four measures on internal test images, then on external ones."""

LABELS = {
    "original": "Original",
    "retrained": "Retrained",
    "ceiling": "Retrained, second seed",
    "finetune": "Finetune",
    "fcs": "FCS",
    "random-label": "Random Label",
    "gradient-ascent": "Gradient Ascent",
    "boundary-shrink": "Boundary Shrink",
    "boundary-expand": "Boundary Expand",
    "delete": "DELETE",
    "delete-anchored": "DELETE, anchored",
    "pour-p": "POUR-P",
    "pour-p-mask": "POUR-P, masked",
    "pour-p-scores": "POUR-P, by score",
    "pour-p-decisions": "POUR-P, by decision",
    "pour-d": "POUR-D",
    "pour-a": "POUR-A",
    "pour-d-cosine": "POUR-D, no warm-up",
    "projun": "ProjUn",
    "salun": "SalUn",
    "scrub": "SCRUB",
    "sure": "SURE",
    "masked-head": "Masked head (control)",
    "random-direction": "Random direction (control)",
    "esc": "ESC",
    "esc-1": "ESC, rank 1",
    "leace": "LEACE",
    "leace-orth": "LEACE, orthogonal",
    "ssd": "SSD",
    "neggrad-plus": "NegGrad+",
    "bad-teacher": "Bad Teacher",
    "unsir": "UNSIR",
    "duck": "DUCK",
    "l1-sparse": "l1-sparse",
}


def label_of(row: str, method: str | None) -> str:
    """How a table calls a row.

    Example:
        >>> label_of("delete-common", "delete"), label_of("mine", "mine")
        ('DELETE', 'mine')
    """
    return LABELS.get(row) or LABELS.get(method or "") or method or row
