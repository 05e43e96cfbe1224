"""The figures that draw lines and points: relearning, losses and the trade-off plane."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from figure_examples import audit_report, reading, relearning
from matplotlib.text import Annotation

from pour.auditing import Reading
from pour.errors import UsageError
from pour.report.figures import (
    TradeoffData,
    TradeoffPoint,
    draw_losses,
    draw_relearning,
    draw_tradeoff,
    loss_data,
    tradeoff_data,
)


def test_relearn_curves_are_the_readings_with_their_bands() -> None:
    curves = relearning()
    figure = draw_relearning(curves)
    forget, retain = figure.axes
    for axes, side in ((forget, "forget"), (retain, "retain")):
        assert len(axes.lines) == len(axes.collections) == 2
        for line, band, curve in zip(axes.lines, axes.collections, curves, strict=True):
            readings = getattr(curve, side)
            np.testing.assert_allclose(line.get_xdata(), curve.steps)
            np.testing.assert_allclose(line.get_ydata(), [point.value for point in readings])
            corners = band.get_paths()[0].vertices
            assert corners[:, 1].min() == pytest.approx(min(point.bounds[0] for point in readings))
            assert corners[:, 1].max() == pytest.approx(max(point.bounds[1] for point in readings))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["original", "unlearned"]
    assert "10 training images of each class" in figure.get_supxlabel()


def test_no_curves_are_told() -> None:
    with pytest.raises(UsageError, match="no relearn curve"):
        draw_relearning([])


def test_short_losses_are_kept_step_by_step() -> None:
    (curve,) = loss_data({"train": [4.0, 2.0, 1.0]})
    np.testing.assert_array_equal(curve.steps, [1, 2, 3])
    np.testing.assert_array_equal(curve.mean, [4, 2, 1])
    np.testing.assert_array_equal(curve.low, curve.high)
    line = draw_losses([curve]).axes[0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), [4, 2, 1])


def test_long_losses_become_stretches_that_keep_mean_and_extremes() -> None:
    losses = np.random.default_rng(0).random(100_003)
    (curve,) = loss_data({"train": losses.tolist()})
    assert len(curve.mean) == 200
    assert curve.total == 100_003
    sizes = np.array([len(part) for part in np.array_split(losses, 200)])
    assert np.average(curve.mean, weights=sizes) == pytest.approx(losses.mean())
    assert (curve.low.min(), curve.high.max()) == (losses.min(), losses.max())
    assert curve.steps[0] == (1 + sizes[0]) / 2
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()


def test_a_diverged_run_stops_where_it_did() -> None:
    (curve,) = loss_data({"ascent": [1.0, 2.0, float("inf"), 5.0]})
    assert curve.diverged_at == 3
    np.testing.assert_array_equal(curve.mean, [1, 2])
    figure = draw_losses([curve])
    assert "ascent diverged at step 3" in figure.get_supxlabel()


def test_a_run_that_never_was_finite_can_be_drawn() -> None:
    assert draw_losses(loss_data({"a": [float("nan")]})).axes


def test_closed_forms_take_no_steps() -> None:
    assert loss_data({"pour-p": []}) == ()
    with pytest.raises(UsageError, match="closed forms take no steps"):
        draw_losses(loss_data({"pour-p": []}))


@pytest.mark.parametrize(("losses", "scale"), [([100.0, 1.0], "log"), ([2.0, 1.0], "linear"), ([-50.0, 1.0], "linear")])
def test_only_positive_losses_over_decades_are_drawn_on_a_log_scale(losses: list[float], scale: str) -> None:
    assert draw_losses(loss_data({"a": losses})).axes[0].get_yscale() == scale


def test_points_are_one_less_the_forgotten_accuracy_against_the_retained() -> None:
    reports = {"POUR": audit_report(acc_f=0.1, acc_r=0.9), "SCRUB": audit_report(acc_f=0.3, method="scrub")}
    data = tradeoff_data(reports)
    by_name = {point.name: point for point in data.points}
    assert list(by_name) == ["original", "retrained", "POUR", "SCRUB"]
    pour = by_name["POUR"]
    assert (pour.forgetting.value, pour.retention.value) == pytest.approx((0.9, 0.9))
    assert pour.forgetting.bounds == pytest.approx((0.88, 0.92))
    assert by_name["original"].forgetting.value == pytest.approx(0.05)
    assert by_name["retrained"].retention.value == pytest.approx(0.94)
    assert (pour.needs, by_name["SCRUB"].needs) == ("none", "retain")


def test_the_original_is_like_itself_in_the_plane_of_representations() -> None:
    data = tradeoff_data({"x": audit_report()}, of="representation")
    values = {point.name: (point.forgetting.value, point.retention.value) for point in data.points}
    assert values["original"] == (0, 1)
    assert values["x"] == pytest.approx((0.6, 0.9))
    assert values["retrained"] == pytest.approx((0.7, 0.95))


def test_without_a_retrained_model_its_point_is_absent() -> None:
    data = tradeoff_data({"x": audit_report(retrained=False)})
    assert [point.role for point in data.points] == ["original", "method"]
    assert draw_tradeoff(data).axes


def test_points_and_intervals_are_drawn_where_they_are() -> None:
    data = tradeoff_data({"x": audit_report()})
    (axes,) = draw_tradeoff(data).axes
    assert len(axes.containers) == len(data.points)
    for container, point in zip(axes.containers, data.points, strict=True):
        mark, _, (across, up) = container.lines
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (point.forgetting.value, point.retention.value)
        np.testing.assert_allclose(across.get_segments()[0][:, 0], point.forgetting.bounds)
        np.testing.assert_allclose(up.get_segments()[0][:, 1], point.retention.bounds)
    low, high = axes.get_xlim()
    assert all(low < bound < high for point in data.points for bound in point.forgetting.bounds)


def test_names_cover_neither_each_other_nor_points() -> None:
    generator = np.random.default_rng(0)
    places = 0.9 + 0.1 * generator.random((14, 2))
    points = tuple(
        TradeoffPoint(name=f"method {i}", forgetting=Reading(value=x), retention=Reading(value=y))
        for i, (x, y) in enumerate(places)
    )
    figure = draw_tradeoff(TradeoffData(points=points, of="accuracy"))
    (axes,) = figure.axes
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    boxes = [label.get_window_extent() for label in labels]
    assert [label.get_text() for label in labels] == [point.name for point in points]
    for first, second in itertools.combinations(boxes, 2):
        assert not first.overlaps(second)
    for x, y in axes.transData.transform(places):
        assert not any(box.contains(x, y) for box in boxes)


@pytest.mark.parametrize(
    ("reports", "options", "said"),
    [
        ({}, {}, "no report"),
        ({"a": audit_report(), "b": audit_report(("x", "y"))}, {}, "'b' has other images or classes"),
        ({"a": audit_report()}, {"of": "speed"}, "choose one of 'accuracy'"),
    ],
)
def test_wrong_planes_are_told(reports: dict[str, object], options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tradeoff_data(reports, **options)  # type: ignore[arg-type]


def test_a_plane_without_points_is_told() -> None:
    with pytest.raises(UsageError, match="no point"):
        draw_tradeoff(TradeoffData(points=(), of="accuracy"))


def test_a_single_point_can_be_drawn() -> None:
    point = TradeoffPoint(name="x", forgetting=reading(0.5), retention=reading(0.5))
    assert draw_tradeoff(TradeoffData(points=(point,), of="accuracy")).axes
