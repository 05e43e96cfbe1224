"""The figures that draw bars: answers and changes of accuracy."""

from __future__ import annotations

import numpy as np
import pytest
from figure_examples import audit_report, changes
from matplotlib.colors import to_hex

from pour.errors import UsageError
from pour.metrics import wilson
from pour.report.figures import answers_data, changes_data, draw_answers, draw_changes


def test_answers_are_shares_and_the_bars_are_as_high() -> None:
    report = audit_report(answers={"original": (1, 8, 1, 0), "unlearned": (4, 0, 5, 1), "retrained": (0, 0, 5, 5)})
    data = answers_data(report)
    assert data.images == 10
    assert data.hidden == 0
    np.testing.assert_allclose(data.shares["unlearned"], [0.4, 0, 0.5, 0.1])
    figure = draw_answers(data)
    (axes,) = figure.axes
    for container, role in zip(axes.containers, ("original", "unlearned", "retrained"), strict=True):
        np.testing.assert_allclose([bar.get_height() for bar in container], data.shares[role])
    assert float(np.asarray(axes.lines[0].get_ydata())[0]) == pytest.approx(1 / 3)
    assert to_hex(axes.get_xticklabels()[1].get_color()) == "#8b0000"
    assert "unlearned mostly dog (50 %)" in str(figure.get_label())


def test_without_a_retrained_model_its_bars_are_absent() -> None:
    figure = draw_answers(answers_data(audit_report()))
    assert len(figure.axes[0].containers) == 2


def test_of_a_thousand_classes_the_favourites_and_the_forgotten_are_shown() -> None:
    counts = np.zeros(1000, int)
    counts[[500, 17, 900]] = [30, 20, 10]
    counts[100:140] = 1
    report = audit_report(
        [f"class {i}" for i in range(1000)], forgotten=(3,), answers={"unlearned": tuple(counts.tolist())}
    )
    data = answers_data(report)
    assert len(data.labels) == 16
    assert {3, 17, 500, 900} <= set(data.labels)
    assert list(data.labels) == sorted(data.labels)
    assert data.shares["unlearned"].sum() + data.others["unlearned"] == pytest.approx(1)
    assert data.others["unlearned"] == pytest.approx(28 / 100)
    texts = [label.get_text() for label in draw_answers(data).axes[0].get_xticklabels()]
    assert texts[-1] == "984 others"


def test_a_report_without_answers_is_told() -> None:
    with pytest.raises(UsageError, match="contains no answers"):
        answers_data(audit_report(answers={}))


def test_changes_are_differences_of_accuracy_with_newcombes_interval() -> None:
    images, before, after = [30, 25, 20, 15], [20, 25, 3, 0], [1, 24, 10, 4]
    (request,) = changes_data(images, before, {"cat": after}, classes=list("abcd"), forgotten={"cat": [1]}).requests
    np.testing.assert_allclose(request.change, (np.array(after) - before) / images, atol=1e-6)
    for label, n in enumerate(images):
        first, second = wilson(before[label], n), wilson(after[label], n)
        low = request.change[label] - np.hypot(second.value - second.low, first.high - first.value)
        assert request.low[label] == pytest.approx(low)
        assert request.low[label] < request.change[label] < request.high[label]


def test_bars_are_in_points_and_the_named_class_is_dark_red() -> None:
    figure = draw_changes(changes())
    (axes,) = figure.axes
    bars = axes.patches
    np.testing.assert_allclose([bar.get_height() for bar in bars], [0, -90, 0, 0], atol=1e-9)
    assert [to_hex(bar.get_facecolor()) == "#8b0000" for bar in bars] == [False, True, False, False]
    assert "-90.0 points on its own classes, +0.0 on the others" in str(figure.get_label())


def test_several_requests_have_a_line_each() -> None:
    after = {"a": [0, 10, 10], "b": [10, 0, 10]}
    data = changes_data([10] * 3, [10] * 3, after, classes=list("abc"), forgotten={"a": [0], "b": [1]})
    figure = draw_changes(data)
    assert [axes.get_ylabel() for axes in figure.axes] == ["a", "b"]
    for i, axes in enumerate(figure.axes):
        assert [to_hex(bar.get_facecolor()) == "#8b0000" for bar in axes.patches] == [j == i for j in range(3)]


def test_of_a_thousand_classes_the_largest_changes_are_shown() -> None:
    images, after = [10] * 1000, [10] * 1000
    for label, lost in ((700, 9), (5, 5), (6, 4)):
        after[label] -= lost
    names = [f"class {i}" for i in range(1000)]
    data = changes_data(images, images, {"x": after}, classes=names, forgotten={"x": [5]})
    figure = draw_changes(data)
    texts = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert texts[:3] == ["class 700", "class 5", "class 6"]
    assert "The 24 largest changes of 1,000 classes" in figure.get_supxlabel()


def test_a_class_without_images_has_no_change() -> None:
    data = changes_data([0, 4], [0, 4], {"x": [0, 4]}, classes=["a", "b"], forgotten={"x": [0]})
    (request,) = data.requests
    assert np.isnan(request.change[0])
    assert request.change[1] == 0
    assert draw_changes(data).axes


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"after": {}}, "no request"),
        ({"before": [1, 1, 1]}, "before are of 3 classes, but there are 2 names"),
        ({"forgotten": {}}, "does not say which classes"),
    ],
)
def test_wrong_changes_are_told(changed: dict[str, object], said: str) -> None:
    given: dict[str, object] = {
        "images": [1, 1],
        "before": [1, 1],
        "after": {"x": [1, 1]},
        "classes": ["a", "b"],
        "forgotten": {"x": [0]},
    }
    with pytest.raises(UsageError, match=said):
        changes_data(**{**given, **changed})  # type: ignore[arg-type]
