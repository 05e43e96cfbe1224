from __future__ import annotations

from typing import get_args

import pytest

from pour.errors import UsageError
from pour.metrics import Metric, list_metrics, metric_of, register_metric
from pour.metrics.catalogue import Better, Meaning, find_metric, metrics_among, title_of


@pytest.mark.parametrize("metric", list_metrics(), ids=lambda metric: metric.name)
def test_every_entry_is_complete(metric: Metric) -> None:
    assert metric.title
    assert metric.family
    assert metric.meaning.endswith(".")
    assert metric.formula
    assert metric.label
    assert metric.latex
    assert metric.better in get_args(Better)
    assert (metric.above is None) == (metric.below is None)
    assert {metric.above, metric.below} <= {None, *get_args(Meaning)}


@pytest.mark.parametrize("name", [metric.name for metric in list_metrics()])
@pytest.mark.parametrize("suffix", ["", "_train", "_external"])
def test_a_suffix_and_raw_features_lead_to_the_same_metric(name: str, suffix: str) -> None:
    for measured in (name + suffix, f"raw.{name}{suffix}"):
        assert find_metric(measured) == (metric_of(name), suffix)


def test_the_title_names_the_images_and_raw_features() -> None:
    assert title_of("class_iou_r_potted plant") == "IoU, retained class, potted plant"
    assert title_of("raw.cka_f_o_train") == "CKA_f(o), forgotten, with the original, train, raw"
    assert title_of("beauty") == "beauty"


def test_metrics_are_listed_once_in_the_order_of_the_catalogue() -> None:
    assert [metric.name for metric in metrics_among(["nc1_train", "acc_r", "nc1", "unheard of"])] == ["acc_r", "nc1"]


def test_an_unknown_name_is_an_error_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="no metric called 'beauty'; pour metrics lists all"):
        metric_of("beauty")


def test_a_name_belongs_to_one_metric() -> None:
    with pytest.raises(UsageError, match="already a metric 'rus_o'"):
        register_metric(Metric(name="rus_o", title="other", family="x", meaning="Other.", formula="x", better="higher"))
    assert register_metric(metric_of("rus_o")) is metric_of("rus_o")
    with pytest.raises(UsageError, match=r"pour\.metrics\.Metric"):
        register_metric("rus_o")  # type: ignore[arg-type]
