from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest
import torch

from pour.geometry.collapse import NeuralCollapse, neural_collapse
from pour.metrics.catalogue import find_metric, list_metrics, metric_of, metrics_among, title_of
from pour.report.page.mathml import mathml
from pour.report.page.rendering import formula

_DEFINED = {metric.name: metric for metric in list_metrics()}
_MEASURES = [metric.name for metric in list_metrics() if metric.above is not None]


def test_every_metric_of_an_audit_has_a_definition() -> None:
    assert set(_MEASURES) <= set(_DEFINED)


def test_every_collapse_measure_that_a_report_states_has_a_definition() -> None:
    counts = {"num_classes", "num_samples"}
    assert {field.name for field in dataclasses.fields(NeuralCollapse)} - counts <= set(_DEFINED)
    labels = torch.arange(30) % 3
    measured = neural_collapse(torch.randn(30, 5), labels, torch.randn(3, 5)).to_dict()
    assert {name for name in measured if find_metric(name) is None} == counts


def test_nothing_is_defined_that_does_not_exist() -> None:
    known = set(_MEASURES) | {field.name for field in dataclasses.fields(NeuralCollapse)}
    assert set(_DEFINED) <= known


@pytest.mark.parametrize("name", _DEFINED)
def test_sentences_end_and_formulas_are_well_formed(name: str) -> None:
    definition = _DEFINED[name]
    assert definition.meaning.endswith(".")
    root = ElementTree.fromstring(str(mathml(definition.formula)))
    assert root.tag == "math"
    assert len("".join(root.itertext())) > 5


@pytest.mark.parametrize("name", _MEASURES)
@pytest.mark.parametrize("suffix", ["", "_train", "_external"])
def test_a_suffix_leads_to_the_same_definition(name: str, suffix: str) -> None:
    assert find_metric(name + suffix) == (metric_of(name), suffix)
    assert find_metric(f"raw.{name}{suffix}") == (metric_of(name), suffix)
    assert title_of(name + suffix) == ", ".join(filter(None, (metric_of(name).title, suffix[1:])))


def test_only_what_is_used_is_listed_once() -> None:
    assert metrics_among(["nc1_train", "acc_r", "nc1", "unheard of"]) == [metric_of("acc_r"), metric_of("nc1")]


def test_mathml_structure() -> None:
    assert str(mathml(r"\frac{a}{2}")) == (
        '<math display="block"><mfrac><mrow><mi>a</mi></mrow><mrow><mn>2</mn></mrow></mfrac></math>'
    )
    assert "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>" in mathml("x_i^2")
    assert mathml("x^2_i") == mathml("x_i^2")
    assert "<mo>\u2212</mo>" in mathml("a - b")
    assert "<mo>&lt;</mo>" in mathml("a < b")
    assert "<munder><mo>∑</mo>" in mathml(r"\sum_{i} x_i")


@pytest.mark.parametrize("broken", ["{a", "a}", "x_", r"\frac{a}", r"\alpha"])
def test_a_broken_formula_is_refused(broken: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        mathml(broken)


def test_a_formula_of_another_package_that_pour_cannot_read_is_shown_as_it_is() -> None:
    assert formula(r"\alpha < 1") == r"\alpha < 1"
    assert formula("a < 1") == mathml("a < 1")
