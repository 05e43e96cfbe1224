import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.errors import UsageError
from pour.geometry import (
    Projector,
    angle_statistics,
    neural_collapse,
    pairwise_angles,
    random_centered_rows,
    simplex_etf,
)


def draw(seed, classes=5, width=7, rows=80, noise=0.7, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (rows - classes,), generator=generator)])
    means, weight = torch.randn(2, classes, width, generator=generator, dtype=torch.float64)
    bias = torch.randn(classes, generator=generator, dtype=torch.float64)
    features = means[labels] + noise * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return features.to(dtype), labels, (means + 0.3 * weight).to(dtype), bias.to(dtype)


def numpy_collapse(features, labels, weight, bias):
    """NC1 to NC4 from their definitions, with full d x d matrices."""
    z, y, w, b = (
        tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
        for tensor in (features, labels, weight, bias)
    )
    classes = np.unique(y)
    means = np.stack([z[y == c].mean(axis=0) for c in classes])
    centered = means - means.mean(axis=0)
    deviations = z - means[np.searchsorted(classes, y)]
    within = deviations.T @ deviations / len(z)
    between = centered.T @ centered / len(classes)
    norms = np.linalg.norm(centered, axis=1)
    unit = centered / norms[:, None]
    angles = np.degrees(np.arccos(np.clip(unit @ unit.T, -1, 1)))[np.triu_indices(len(classes), 1)]
    head = w[classes]
    rows = head / np.linalg.norm(head, axis=1, keepdims=True)
    weight_angles = np.degrees(np.arccos(np.clip(rows @ rows.T, -1, 1)))[np.triu_indices(len(classes), 1)]
    nearest = ((z[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    ideal = np.degrees(np.arccos(-1 / (len(classes) - 1)))
    return {
        "num_classes": len(classes),
        "num_samples": len(z),
        "nc1": np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / len(classes),
        "nc2_norm_spread": norms.std() / norms.mean(),
        "nc2_angle_mean": angles.mean(),
        "nc2_angle_std": angles.std(),
        "nc2_ideal_angle": ideal,
        "nc2_angle_deviation": np.abs(angles - ideal).mean(),
        "nc3": np.linalg.norm(head / np.linalg.norm(head) - centered / np.linalg.norm(centered)),
        "nc4": ((z @ head.T + b[classes]).argmax(axis=1) == nearest).mean(),
        "weight_angle_mean": weight_angles.mean(),
        "weight_angle_std": weight_angles.std(),
    }


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), classes=st.integers(2, 8), width=st.integers(2, 12))
def test_one_shot_agrees_with_the_definitions(seed, classes, width):
    features, labels, weight, bias = draw(seed, classes, width)
    found = neural_collapse(features, labels, weight, bias).to_dict()
    expected = numpy_collapse(features, labels, weight, bias)
    assert set(found) == {*expected, "random_angle_std"}
    for name, value in expected.items():
        # An arccos close to 180 degrees is good to the root of eps, 1e-6 degrees.
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-5), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_features_are_measured_in_float64(dtype):
    features, labels, weight, bias = draw(3, rows=400, dtype=dtype)
    found = neural_collapse(features, labels, weight, bias).to_dict()
    wide = neural_collapse(features.double(), labels, weight.double(), bias.double()).to_dict()
    assert found == pytest.approx(wide, rel=1e-12)


def test_a_simplex_is_fully_collapsed_and_noise_grows_nc1_with_its_variance():
    means = simplex_etf(6, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6).repeat(500)
    exact = neural_collapse(4 * means[labels] + 7, labels, weight=0.5 * means)
    assert exact.nc1 == pytest.approx(0, abs=1e-20)
    assert exact.nc2_norm_spread == pytest.approx(0, abs=1e-12)
    assert exact.nc2_angle_std == pytest.approx(0, abs=1e-9)
    assert exact.nc2_angle_mean == pytest.approx(math.degrees(math.acos(-1 / 5)))
    assert exact.nc2_angle_deviation == pytest.approx(0, abs=1e-9)
    assert exact.weight_angle_std == pytest.approx(0, abs=1e-9)
    assert exact.nc3 == pytest.approx(0, abs=1e-12)
    assert exact.random_angle_std > 1
    noise = torch.randn(len(labels), 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Isotropic noise: S_W = s^2 I, and S_B has C - 1 eigenvalues 1 / (C - 1), so NC1 = s^2 (C - 1)^2 / C.
    for scale in (0.01, 0.1):
        noisy = neural_collapse(means[labels] + scale * noise, labels)
        assert noisy.nc1 == pytest.approx(scale**2 * 25 / 6, rel=0.06)
    assert noisy.nc3 is noisy.nc4 is noisy.weight_angle_mean is None


def test_a_class_without_samples_takes_no_part():
    features, labels, weight, bias = draw(0)
    kept = labels != 2
    found = neural_collapse(features[kept], labels[kept], weight, bias)
    rows = torch.tensor([0, 1, 3, 4])
    renumbered = torch.searchsorted(rows, labels[kept])
    assert found == neural_collapse(features[kept], renumbered, weight[rows], bias[rows])


def test_means_that_coincide_have_no_between_class_variation():
    features = torch.ones(6, 3) + torch.tensor([0.1, -0.1]).repeat(3).unsqueeze(1)
    found = neural_collapse(features, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert math.isinf(found.nc1)
    assert math.isnan(found.nc2_angle_mean)


def test_angles_of_a_projected_simplex_are_those_of_the_smaller_one():
    means = simplex_etf(6, 9, generator=torch.Generator().manual_seed(0))
    left = Projector.from_directions(means[2]).fold(means)
    assert pairwise_angles(left).isnan().sum() == 5
    statistics = angle_statistics(left)
    assert statistics.ideal == pytest.approx(math.degrees(math.acos(-1 / 4)))
    assert statistics.mean == pytest.approx(statistics.ideal, abs=1e-4)
    assert statistics.std == pytest.approx(0, abs=1e-4)


@settings(deadline=None, max_examples=30)
@given(classes=st.integers(2, 12), width=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_the_mean_cosine_proves_nothing(classes, width, seed):
    """Centred rows scaled to a unit total have the mean inner product of a simplex, whatever they are."""
    rows = random_centered_rows(classes, width, torch.Generator().manual_seed(seed))
    assert torch.allclose(rows.sum(dim=0), torch.zeros(width).double(), atol=1e-12)
    gram = rows @ rows.T / rows.square().sum() * classes
    off_diagonal = (gram.sum() - gram.trace()) / (classes * (classes - 1))
    assert float(off_diagonal) == pytest.approx(-1 / (classes - 1))


def test_the_control_is_drawn_from_its_generator():
    first, second = (random_centered_rows(4, 8, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_bad_input_is_refused():
    features, labels, weight, bias = draw(0)
    with pytest.raises(UsageError, match="one per row"):
        neural_collapse(features, labels[:-1])
    with pytest.raises(UsageError, match="at least two classes"):
        neural_collapse(features, torch.zeros_like(labels))
    with pytest.raises(UsageError, match="count classes from 0"):
        neural_collapse(features, labels - 1)
    with pytest.raises(UsageError, match="class 4, but weight has 3 rows"):
        neural_collapse(features, labels, weight[:3])
    with pytest.raises(UsageError, match="weight has width 6, the features have 7"):
        neural_collapse(features, labels, weight[:, :6])
    with pytest.raises(UsageError, match="bias has shape"):
        neural_collapse(features, labels, weight, bias[:2])
    with pytest.raises(UsageError, match="without weight"):
        neural_collapse(features, labels, bias=bias)
    with pytest.raises(UsageError, match="NaN"):
        neural_collapse(features / 0, labels)
    with pytest.raises(UsageError, match="a single row"):
        pairwise_angles(torch.ones(1, 3))
    with pytest.raises(UsageError, match="at least 2 rows"):
        random_centered_rows(1, 3)


def test_what_rounding_leaves_of_a_removed_direction_is_none():
    """In float32 a projection leaves a little of what it removes; where the means fill the space that would be NC1."""
    features, labels, _, _ = draw(0, classes=12, width=6, rows=400, dtype=torch.float32)
    projector = Projector.from_directions(torch.randn(6, generator=torch.Generator().manual_seed(1)))
    left = projector(features)
    # The same features in five coordinates, exactly.
    _, _, axes = torch.linalg.svd(projector.basis.double())
    expected = neural_collapse(left.double() @ axes[1:].T, labels).nc1
    assert neural_collapse(left, labels).nc1 == pytest.approx(expected, rel=1e-4)


def test_half_precision_features_keep_their_axes():
    features, labels, _, _ = draw(0, classes=5, width=512, rows=200, dtype=torch.float64)
    expected = neural_collapse(features, labels).nc1
    for dtype in (torch.float16, torch.bfloat16):
        assert neural_collapse(features.to(dtype), labels).nc1 == pytest.approx(expected, rel=0.05)
