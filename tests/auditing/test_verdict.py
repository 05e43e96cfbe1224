from typing import get_args

import pytest

from pour.auditing.distance import METRICS
from pour.auditing.measurement import Reading
from pour.auditing.verdict import Verdict, judge
from pour.errors import UsageError
from pour.metrics.catalogue import list_metrics

JUDGED = [metric.name for metric in list_metrics() if metric.above is not None]

LOW = Reading(value=0.30, low=0.28, high=0.32)
HIGH = Reading(value=0.80, low=0.78, high=0.82)


def at(value):
    return Reading(value=value)


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("suffix", ["", "_train"])
def test_every_metric_has_a_verdict_on_both_sides(name, suffix):
    for value, reference in ((0.1, LOW), (0.3, LOW), (0.9, LOW)):
        assert judge(name + suffix, at(value), reference) in get_args(Verdict)
    assert judge(name + suffix, at(0.3), LOW) == "within its interval"
    assert judge(name + suffix, at(0.9), LOW) != "within its interval"
    assert judge(name + suffix, at(0.3), None) == "no reference"


@pytest.mark.parametrize(
    ("name", "value", "original", "verdict"),
    [
        ("acc_f", 0.5, None, "leaks more"),
        ("acc_f", 0.1, None, "better"),
        ("probe_linear", 0.5, None, "leaks more"),
        ("probe_linear", 0.1, None, "destroyed"),
        ("cka_f_o", 0.5, None, "leaks more"),
        ("cka_f_o", 0.1, None, "destroyed"),
        ("cka_r_o", 0.1, None, "destroyed"),
        ("cka_r_o", 0.5, None, "better"),
        ("acc_r", 0.2, 0.2, "as the original"),
        ("acc_r", 0.2, 0.25, "destroyed"),
        ("acc_r", 0.5, 0.2, "better"),
        ("nc1", 0.5, 0.5, "as the original"),
        ("nc1", 0.5, 0.4, "destroyed"),
        ("entropy_f", 0.5, 0.6, "leaks more"),
        ("entropy_f", 0.5, 0.1, "destroyed"),
        ("entropy_f", 0.1, 0.05, "leaks more"),
        ("entropy_f", 0.1, 0.6, "destroyed"),
        ("entropy_f", 0.1, 0.29, "destroyed"),
        ("entropy_f", 0.5, 0.31, "destroyed"),
        ("rmia_balanced_accuracy", 0.5, None, "within its interval"),
        ("rmia_auc", 0.49, None, "within its interval"),
        ("rmia_balanced_accuracy", 0.6, None, "leaks more"),
    ],
)
def test_which_side_means_what(name, value, original, verdict):
    assert judge(name, at(value), LOW, None if original is None else at(original)) == verdict


@pytest.mark.parametrize(
    ("name", "value", "others", "verdict"),
    [
        ("aus", 0.5, {"acc_f": "leaks more"}, "leaks more"),
        ("aus", 0.5, {"acc_f": "within its interval", "acc_r": "destroyed"}, "destroyed"),
        ("aus", 0.5, {"acc_r": "as the original"}, "as the original"),
        ("aus", 0.5, {"acc_r": "within its interval"}, "destroyed"),
        ("rus_o", 0.9, {"cka_f_o": "destroyed"}, "destroyed"),
        ("rus_o", 0.9, {"cka_f_o": "within its interval"}, "better"),
        ("rus_o", 0.5, {"cka_f_o": "leaks more"}, "leaks more"),
        ("rus_o_train", 0.5, {"cka_f_o": "leaks more"}, "destroyed"),
        ("rus_o_train", 0.5, {"cka_f_o_train": "leaks more"}, "leaks more"),
        ("cka_f_r", 0.5, {"cka_f_o": "leaks more"}, "leaks more"),
        ("cka_f_r", 0.5, {"cka_f_o": "destroyed"}, "destroyed"),
        ("rus_r", 0.5, {"cka_f_r": "within its interval", "cka_r_r": "as the original"}, "as the original"),
        ("rus_r", 0.5, {"cka_f_r": "leaks more", "cka_f_o": "leaks more"}, "leaks more"),
        ("discrepancy_mmd", 0.9, {"cka_f_o": "leaks more"}, "leaks more"),
        ("discrepancy_mmd", 0.9, {"acc_f": "leaks more"}, "leaks more"),
        ("discrepancy_mmd", 0.9, {}, "destroyed"),
        ("rus_o", 0.5, {"iou_f": "leaks more", "cka_f_o": "within its interval"}, "leaks more"),
        ("answers_r", 0.9, {"acc_f": "leaks more"}, "leaks more"),
        ("answers_r", 0.9, {"acc_f": "within its interval", "cka_f_o": "leaks more"}, "destroyed"),
        ("answers_r_external", 0.9, {"acc_f": "leaks more", "acc_f_external": "better"}, "destroyed"),
        ("answers_r_train", 0.9, {"acc_f": "leaks more"}, "leaks more"),
        ("answers_r_train", 0.9, {"acc_f": "within its interval", "acc_tf": "leaks more"}, "leaks more"),
        ("cka_f_r_train", 0.5, {"acc_f": "leaks more", "acc_tf": "within its interval"}, "destroyed"),
        ("answers_r", 0.1, {"acc_f": "leaks more"}, "better"),
        ("rmia_tpr", 0.9, {"rmia_balanced_accuracy": "leaks more"}, "leaks more"),
        ("rmia_tpr", 0.9, {"rmia_balanced_accuracy": "within its interval"}, "better"),
        ("rmia_fpr", 0.1, {"rmia_balanced_accuracy": "within its interval"}, "better"),
        ("rmia_fpr", 0.1, {"rmia_balanced_accuracy": "leaks more"}, "leaks more"),
    ],
)
def test_a_difference_takes_its_direction_from_the_similarity(name, value, others, verdict):
    assert judge(name, at(value), HIGH, verdict_on=others.get) == verdict


def test_nothing_is_read_against_a_value_without_an_interval():
    assert judge("nc1", at(0.5), at(0.4)) == "no reference"
    assert judge("discrepancy_mmd", at(0.5), Reading(value=0.4, low=0.0)) == "destroyed"


def test_an_unknown_metric_is_an_error():
    with pytest.raises(UsageError, match="no metric called 'beauty'"):
        judge("beauty", at(0.5), LOW)


def test_a_rule_exists_exactly_for_the_metrics_that_depend_on_others():
    dependent = {metric.name for metric in list_metrics() if "depends" in (metric.above, metric.below)}
    rules = {"rmia_tpr", "rmia_fpr", "rus_o", "rus_r", "aus", "answers_r", "cka_f_r"}
    rules |= {f"discrepancy_{metric}" for metric in METRICS}
    assert dependent == rules
