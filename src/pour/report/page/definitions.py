"""Every metric of an audit in a sentence and a formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pour.metrics.catalogue import title_of
from pour.report.page.mathml import mathml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

__all__ = ["DEFINITIONS", "SYMBOLS", "Definition", "base_name", "definitions_of", "title_of"]

Better = Literal["higher", "lower", "as retrained"]


@dataclass(frozen=True)
class Definition:
    """What a metric is."""

    sentence: str
    latex: str
    """The formula in the notation of :func:`~pour.report.page.mathml.mathml`."""
    better: Better
    """Which way is better where there is no retrained model to compare with."""

    @property
    def formula(self) -> Markup:
        """The formula as MathML."""
        return mathml(self.latex)


SYMBOLS = (
    "D is a set of images, with index r for the retained and f for the forgotten classes: test images unless a t or "
    "the word train says otherwise. z(x) are features, Z those of a set, centred, a row to an image; w are the head's "
    "rows, μ the class means, m the same centred; o is the original model, r the retrained one, u the unlearned one. "
    "P and Q are unlearned and retrained features, k a Gaussian kernel; H is the harmonic mean, C the number of "
    "classes, p(x) the answer over the retained classes. 1[...] is 1 where the statement holds, else 0; P[...] is a "
    "share of images; a bar and E are means over all pairs. Intervals are of 95 % over the draw of the images."
)

_SHARE = r"\frac{1}{| D_%s |} \sum_{(x,y) ∈ D_%s} 1 [ f(x) = y ]"
_CKA = r"CKA_%s(%s) = \frac{‖ Z_u^T Z_%s ‖_F^2}{‖ Z_u^T Z_u ‖_F ‖ Z_%s^T Z_%s ‖_F}"
_CLASS_IOU = r"IoU_c = \frac{n_{c c}}{\sum_j n_{c j} + \sum_i n_{i c} - n_{c c}}"
_IOU = r"IoU_%s = \frac{1}{| %s |} \sum_{c ∈ %s} \frac{n_{c c}}{\sum_j n_{c j} + \sum_i n_{i c} - n_{c c}}"
_PROBE = r"\frac{1}{2} ( P [ c = f | x ∈ D_f ] + P [ c = r | x ∈ %s ] )"

DEFINITIONS: dict[str, Definition] = {
    "acc_r": Definition(
        "Share of right answers on test images of the retained classes.", "Acc_r = " + _SHARE % ("r", "r"), "higher"
    ),
    "acc_f": Definition(
        "Share of right answers on test images of the forgotten classes; 0 says only that the head never names them.",
        "Acc_f = " + _SHARE % ("f", "f"),
        "lower",
    ),
    "acc_tr": Definition(
        "Share of right answers on training images of the retained classes.",
        "Acc_{t r} = " + _SHARE % ("{t r}", "{t r}"),
        "higher",
    ),
    "acc_tf": Definition(
        "Share of right answers on training images of the forgotten classes.",
        "Acc_{t f} = " + _SHARE % ("{t f}", "{t f}"),
        "lower",
    ),
    "aus": Definition(
        "Adaptive Unlearning Score: retained accuracy kept, over forgotten accuracy left; 1 is perfect.",
        r"AUS = \frac{1 - ( Acc_r^o - Acc_r^u )}{1 + Acc_f^u}",
        "higher",
    ),
    "iou_r": Definition(
        "Segmentation: mean over the retained classes of intersection over union, n_ij the pixels of class i that are "
        "given to class j. The forgotten classes' pixels are false positives of whatever they become.",
        _IOU % ("r", "r", "r"),
        "higher",
    ),
    "iou_r_rest": Definition(
        "The same with the forgotten classes' pixels left out: what the other pixels lost.",
        _IOU % ("r", "r", "r") + r",~i ∉ f",
        "higher",
    ),
    "iou_f": Definition(
        "Segmentation: mean over the forgotten classes of intersection over union.", _IOU % ("f", "f", "f"), "lower"
    ),
    "class_iou_r": Definition("IoU of a single retained class.", _CLASS_IOU, "higher"),
    "class_iou_f": Definition("IoU of a single forgotten class.", _CLASS_IOU, "lower"),
    "cka_f_o": Definition(
        "Similarity of the forgotten images' features to those of the original model: high means nothing was erased.",
        _CKA % ("f", "o", "o", "o", "o"),
        "lower",
    ),
    "cka_r_o": Definition(
        "Similarity of the retained images' features to those of the original model: how much of the rest is intact.",
        _CKA % ("r", "o", "o", "o", "o"),
        "higher",
    ),
    "rus_o": Definition(
        "Representation Unlearning Score against the original: forgotten features moved away, retained ones stayed. "
        "It also rewards plain destruction of the forgotten class, so read it beside RUS(r).",
        "RUS(o) = H( 1 - CKA_f(o) , CKA_r(o) )",
        "higher",
    ),
    "cka_f_r": Definition(
        "Similarity of the forgotten images' features to those of a model that never saw the class.",
        _CKA % ("f", "r", "r", "r", "r"),
        "higher",
    ),
    "cka_r_r": Definition(
        "Similarity of the retained images' features to those of the retrained model.",
        _CKA % ("r", "r", "r", "r", "r"),
        "higher",
    ),
    "rus_r": Definition(
        "Representation Unlearning Score against the retrained model: alike on forgotten and on retained images.",
        "RUS(r) = H( CKA_f(r) ,~ CKA_r(r) )",
        "higher",
    ),
    "rmia_tpr": Definition(
        "Membership attack on features: share of held-out training images of the forgotten class that a linear "
        "attacker calls training images.",
        'TPR = P [ a( z(x) ) = "member" | x ∈ D_{t f} ]',
        "lower",
    ),
    "rmia_fpr": Definition(
        "The same attacker's false alarms: share of test images of the forgotten class that it calls training images.",
        'FPR = P [ a( z(x) ) = "member" | x ∈ D_f ]',
        "as retrained",
    ),
    "rmia_balanced_accuracy": Definition(
        "How often the membership attacker is right, both kinds of image counted equally; 0.5 is guessing.",
        r"\frac{1}{2} ( TPR + 1 - FPR )",
        "lower",
    ),
    "rmia_auc": Definition(
        "Chance that the membership attacker ranks a training image above a test image; 0.5 is guessing.",
        "AUC = P [ s( a ) > s( b ) ] ,~ a ∈ D_{t f} ,~ b ∈ D_f",
        "lower",
    ),
    "probe_linear": Definition(
        "Balanced accuracy of a fresh linear classifier that looks for the forgotten classes among all others; 0.5 is "
        "chance, and a retrained model's features usually give far more.",
        _PROBE % "D_r",
        "as retrained",
    ),
    "probe_linear_nearest": Definition(
        "The linear probe against images of the nearest retained class only, the harder question.",
        _PROBE % "D_{nearest}",
        "as retrained",
    ),
    "probe_knn": Definition(
        "Balanced accuracy of a vote of the five nearest training features: forgotten classes against all others.",
        _PROBE % "D_r",
        "as retrained",
    ),
    "probe_knn_nearest": Definition(
        "The five-neighbour probe against images of the nearest retained class only.",
        _PROBE % "D_{nearest}",
        "as retrained",
    ),
    "relearn_f": Definition(
        "Mean accuracy on the forgotten classes while a copy is fine-tuned on a few images: how fast they come back.",
        r'\frac{1}{| T |} \sum_{t ∈ T} Acc_f( θ_t ) ,~ T = "numbers of steps"',
        "lower",
    ),
    "entropy_f": Definition(
        "Mean entropy, in nats, of the answers to forgotten images over the K retained classes; log K is undecided.",
        r"\frac{1}{| D_f |} \sum_{x ∈ D_f} \sum_k - p_k(x) log~p_k(x)",
        "as retrained",
    ),
    "kl_uniform_f": Definition(
        "How far the answers to forgotten images are from an even spread over the K retained classes.",
        r'\frac{1}{| D_f |} \sum_{x ∈ D_f} KL( p(x) ‖ 1 / K ) = log~K - "entropy"',
        "as retrained",
    ),
    "answers_r": Definition(
        "Share of forgotten images to be answered otherwise for each class to be named as often as by the retrained.",
        r"\frac{1}{2} \sum_c | P [ u(x) = c ] - P [ r(x) = c ] | ,~ x ∈ D_f",
        "lower",
    ),
    "norm_leak": Definition(
        "How well the length of the features alone tells forgotten from retained images; 0.5 means not at all.",
        "max( A ,~ 1 - A ) ,~ A = P [ ‖ z(x_f) ‖ > ‖ z(x_r) ‖ ]",
        "lower",
    ),
    "nc1": Definition(
        "Neural Collapse 1: variation within classes over variation between them; 0 when collapsed.",
        r"NC1 = \frac{1}{C} tr( S_W S_B^+ )",
        "lower",
    ),
    "nc2_norm_spread": Definition(
        "Neural Collapse 2: how unequal the lengths of the centred class means are; 0 when collapsed.",
        r"\frac{std_c~‖ m_c ‖}{mean_c~‖ m_c ‖}",
        "lower",
    ),
    "nc2_angle_std": Definition(
        "Neural Collapse 2: how unequal the angles between centred class means are, in degrees; 0 when collapsed.",
        "std_{i < j}~∠( m_i , m_j )",
        "lower",
    ),
    "nc3": Definition(
        "Neural Collapse 3: distance of the head from the class means, both scaled to norm 1; 0 when they are dual.",
        r"‖ \frac{W}{‖ W ‖_F} - \frac{M}{‖ M ‖_F} ‖_F",
        "lower",
    ),
    "nc4": Definition(
        "Neural Collapse 4: share of images on which the head and the nearest class mean agree; 1 when collapsed.",
        r"P [ argmax_c~w_c · z + b_c = argmin_c~‖ z - μ_c ‖ ]",
        "higher",
    ),
    "discrepancy_mmd": Definition(
        "Maximum mean discrepancy of unlearned and retrained features, aligned first; the floor is that of two seeds.",
        r"MMD = \sqrt{\bar{k}(P,P) + \bar{k}(Q,Q) - 2 \bar{k}(P,Q)}",
        "lower",
    ),
    "discrepancy_energy": Definition(
        "Energy distance of unlearned and retrained features, aligned first, as a metric (the square root).",
        r"\sqrt{2 E ‖ p - q ‖ - E ‖ p_1 - p_2 ‖ - E ‖ q_1 - q_2 ‖}",
        "lower",
    ),
    "discrepancy_sliced-wasserstein-1": Definition(
        "Mean Wasserstein-1 distance of unlearned and retrained features along random directions, aligned first.",
        "E_{| v | = 1} W_1( v · P ,~ v · Q )",
        "lower",
    ),
    "nc2_angle_mean": Definition(
        "Mean angle between centred class means, in degrees. Near the ideal for almost any means: no evidence alone.",
        "mean_{i < j}~∠( m_i , m_j )",
        "as retrained",
    ),
    "nc2_ideal_angle": Definition(
        "The angle between the vertices of a simplex of C classes, in degrees.",
        r"arccos( - \frac{1}{C - 1} )",
        "as retrained",
    ),
    "nc2_angle_deviation": Definition(
        "Mean distance of the angles between centred class means from the ideal angle, in degrees; 0 when collapsed.",
        r"mean_{i < j}~| ∠( m_i , m_j ) - arccos( - \frac{1}{C - 1} ) |",
        "lower",
    ),
    "random_angle_std": Definition(
        "The control: spread of the angles between random centred rows of the same number and width, in degrees.",
        r'std_{i < j}~∠( g_i - \bar{g} ,~ g_j - \bar{g} ) ,~ g "normal"',
        "as retrained",
    ),
    "weight_angle_mean": Definition(
        "Mean angle between the head's rows, in degrees.", "mean_{i < j}~∠( w_i , w_j )", "as retrained"
    ),
    "weight_angle_std": Definition(
        "Spread of the angles between the head's rows, in degrees.", "std_{i < j}~∠( w_i , w_j )", "lower"
    ),
}
"""By name; a suffix such as ``_train`` says on which images the same thing was measured."""


def base_name(name: str) -> str | None:
    """The name under which a metric is defined, without a suffix; None for one that is not.

    Example:
        >>> base_name("cka_f_o_train"), base_name("raw.nc1"), base_name("beauty")
        ('cka_f_o', 'nc1', None)
    """
    base = name.removeprefix("raw.")
    while base and base not in DEFINITIONS:
        base = base.rpartition("_")[0]
    return base or None


def definitions_of(names: Iterable[str]) -> dict[str, Definition]:
    """The definitions that are needed to read metrics of these names, each once, in the order of the table."""
    wanted = {base_name(name) for name in names}
    return {name: definition for name, definition in DEFINITIONS.items() if name in wanted}
