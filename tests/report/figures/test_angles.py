from __future__ import annotations

import numpy as np
import pytest
import torch

from pour.errors import UsageError
from pour.geometry import simplex_etf
from pour.report.figures import angle_data, centered_class_means, draw_angles


def numpy_angles(rows: np.ndarray) -> np.ndarray:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.degrees(np.arccos(np.clip((unit @ unit.T)[np.triu_indices(len(rows), 1)], -1, 1)))


def test_a_simplex_has_its_angle_and_no_spread_while_random_rows_have_one() -> None:
    (data,) = angle_data({"head": simplex_etf(10, 64)})
    assert data.statistics is not None
    np.testing.assert_allclose(data.angles, np.degrees(np.arccos(-1 / 9)), atol=1e-4)
    assert data.statistics.std < 1e-4
    assert data.control.mean() == pytest.approx(data.statistics.ideal, abs=0.2)
    # The cosine of two Gaussian rows of width d varies by about 1 / sqrt(d).
    assert data.control_std == pytest.approx(np.degrees(1 / np.sqrt(64)), rel=0.1)


def test_angles_and_class_means_against_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    features = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    means = np.stack([features[labels == label].numpy().mean(axis=0) for label in range(6)])
    np.testing.assert_allclose(centered_class_means(features, labels).numpy(), means - means.mean(axis=0), atol=1e-12)
    (data,) = angle_data({"means": centered_class_means(features, labels)})
    np.testing.assert_allclose(data.angles, numpy_angles(means - means.mean(axis=0)), atol=1e-9)
    assert data.statistics is not None
    assert data.statistics.mean == pytest.approx(data.angles.mean())


def test_the_figure_holds_every_pair_the_mean_and_the_ideal_angle() -> None:
    rows = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    data = angle_data({"head": rows, "means": simplex_etf(10, 16)})
    figure = draw_angles(data)
    assert len(figure.axes) == 2
    for axes, entry in zip(figure.axes, data, strict=True):
        assert entry.statistics is not None
        mean, ideal = (float(np.asarray(line.get_xdata())[0]) for line in axes.lines)
        assert mean == pytest.approx(entry.statistics.mean)
        assert ideal == pytest.approx(np.degrees(np.arccos(-1 / 9)))
        bars = [patch for patch in axes.patches if hasattr(patch, "get_width")]
        # A density adds up to one, so no pair lies outside the panel.
        assert sum(bar.get_width() * bar.get_height() for bar in bars) == pytest.approx(1)


def test_the_same_seed_draws_the_same_control() -> None:
    rows = simplex_etf(5, 8)
    first, second, other = (angle_data({"head": rows}, seed=seed)[0].control for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_rows_without_a_direction_are_left_out() -> None:
    rows = torch.cat([simplex_etf(4, 8), torch.zeros(1, 8)])
    (data,) = angle_data({"head": rows})
    assert len(data.angles) == 6
    np.testing.assert_allclose(data.angles, np.degrees(np.arccos(-1 / 3)), atol=1e-4)


def test_one_row_gives_a_panel_that_says_why_it_is_empty() -> None:
    figure = draw_angles(angle_data({"head": torch.ones(1, 4)}))
    assert "fewer than two rows" in figure.axes[0].texts[0].get_text()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: angle_data({}), "no rows"),
        (lambda: angle_data({"head": torch.ones(3)}), r"expected \(C, d\)"),
        (lambda: centered_class_means(torch.ones(3, 2), torch.tensor([0, 1, 0, 1])), "one per row of features"),
    ],
)
def test_wrong_use_is_told(call: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()  # type: ignore[operator]
