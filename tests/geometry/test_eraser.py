from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import fractional_matrix_power
from sklearn.linear_model import LinearRegression

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.leace import LeaceFitter
from pour.geometry.projector import Projector

SEEDS = st.integers(0, 10_000)


def _eraser(seed: int, rank: int, width: int = 6) -> Eraser:
    rng = np.random.default_rng(seed)
    return Eraser(*(torch.tensor(rng.normal(size=size)) for size in ((rank, width), (rank, width), (rank,))))


def _data(seed: int, concepts: int = 1, count: int = 200, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated features with a large mean, and indicators that they tell about."""
    rng = np.random.default_rng(seed)
    label = rng.integers(concepts + 2, size=count)
    x = (
        rng.normal(size=(count, width)) @ rng.normal(size=(width, width))
        + 2 * rng.normal(size=(concepts + 2, width))[label]
    )
    return torch.tensor(x + 50), torch.tensor(np.eye(concepts + 2)[label][:, :concepts])


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 3), st.integers(1, 3))
def test_erasers_follow_each_other(seed: int, first: int, second: int) -> None:
    x = torch.tensor(np.random.default_rng(seed).normal(size=(7, 6)))
    one, two = _eraser(seed, first), _eraser(seed + 1, second)
    together = one.then(two)
    assert together.rank == first + second
    torch.testing.assert_close(together(x), two(one(x)), rtol=1e-8, atol=1e-8)
    projector = Projector.from_directions(torch.tensor(np.random.default_rng(seed).normal(size=(2, 6))))
    torch.testing.assert_close(one.then(projector)(x), projector(one(x)), rtol=1e-8, atol=1e-8)


def test_under_autocast_nothing_is_left_of_what_was_read() -> None:
    eraser = Eraser.onto(torch.randn(2, 64), torch.randn(2))
    features = 10 * torch.randn(50, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        left = eraser(features)
    torch.testing.assert_close(left, eraser(features))
    assert left.dtype == torch.float32


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_folding_gives_the_same_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight = torch.tensor(rng.normal(size=(7, 6))), torch.tensor(rng.normal(size=(4, 6)))
    eraser = _eraser(seed, 2)
    torch.testing.assert_close(x @ eraser.fold(weight).T + eraser.offset(weight), eraser(x) @ weight.T)


def test_an_eraser_of_a_projector_is_that_projector() -> None:
    projector = Projector.from_directions(torch.randn(2, 6, dtype=torch.float64))
    x = torch.randn(3, 6, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(Eraser.of(projector)(x, dim=1), projector(x, dim=1))


def explained(x: np.ndarray, z: np.ndarray) -> float:
    """Return the largest share of the variance of a column of z that a linear function of x explains."""
    x, z = x - x.mean(0), z - z.mean(0)
    # Directions that the eraser removed contain rounding errors alone; LinearRegression before 1.7 fits them.
    fitted = x @ np.linalg.lstsq(x, z, rcond=1e-10)[0]
    return float((1 - ((z - fitted) ** 2).sum(0) / (z**2).sum(0)).max())


def test_the_explained_share_is_that_of_a_regression() -> None:
    x, z = (part.numpy() for part in _data(0))
    assert explained(x, z) == pytest.approx(LinearRegression().fit(x, z).score(x, z), rel=1e-9)


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 3), st.booleans(), st.booleans())
def test_nothing_linear_is_left(seed: int, concepts: int, orthogonal: bool, shrinkage: bool) -> None:
    x, z = _data(seed, concepts)
    eraser = LeaceFitter(6, concepts).update(x, z).eraser(orthogonal=orthogonal, shrinkage=shrinkage)
    erased = eraser(x).numpy()
    covariance = (erased - erased.mean(0)).T @ (z.numpy() - z.numpy().mean(0)) / len(x)
    assert np.abs(covariance).max() < 1e-7
    assert explained(erased, z.numpy()) < 1e-8
    np.testing.assert_allclose(erased.mean(0), x.numpy().mean(0), rtol=1e-9)


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_it_is_the_published_formula(seed: int) -> None:
    x, z = _data(seed)
    a, y = x.numpy(), z.numpy()
    sigma = np.cov(a.T, bias=True)
    cross = (a - a.mean(0)).T @ (y - y.mean(0)) / len(a)
    root, inverse = (np.real(fractional_matrix_power(sigma, power)) for power in (0.5, -0.5))
    white = inverse @ cross
    pi = white @ np.linalg.pinv(white)
    expected = a - (a - a.mean(0)) @ (root @ pi @ inverse).T
    got = LeaceFitter(6, 1).update(x, z).eraser(shrinkage=False)(x).numpy()
    if np.trace(np.cov(expected.T, bias=True)) <= np.trace(sigma):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    else:
        # Held back until the total variance is what it was.
        assert np.trace(np.cov(got.T, bias=True)) == pytest.approx(np.trace(sigma), rel=1e-6)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 3))
def test_batches_give_what_all_rows_give(seed: int, concepts: int) -> None:
    x, z = _data(seed, concepts)
    whole, parts = LeaceFitter(6, concepts).update(x, z), LeaceFitter(6, concepts)
    for start in range(0, len(x), 33):
        parts.update(x[start : start + 33], z[start : start + 33])
    assert parts.count == whole.count == len(x)
    torch.testing.assert_close(parts.eraser()(x), whole.eraser()(x), rtol=1e-7, atol=1e-7)


def test_the_orthogonal_form_removes_the_difference_of_means() -> None:
    x, z = _data(0)
    eraser = LeaceFitter(6, 1).update(x, z).eraser(orthogonal=True)
    inside = z[:, 0].bool()
    difference = x[inside].mean(0) - x[~inside].mean(0)
    cosine = torch.nn.functional.cosine_similarity(eraser.readings[0], difference, dim=0)
    assert float(cosine.abs()) == pytest.approx(1.0, abs=1e-9)
    torch.testing.assert_close(eraser.replies, eraser.readings)


def test_total_variance_never_grows() -> None:
    """Nearly collinear features, where the oblique map alone would blow some images up."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(500, 1))
    x = np.concatenate([base, base + 0.01 * rng.normal(size=(500, 1)), rng.normal(size=(500, 1))], axis=1)
    z = (x[:, 0] - x[:, 1] + 0.02 * rng.normal(size=500) > 0).astype(float)
    erased = LeaceFitter(3, 1).update(torch.tensor(x), torch.tensor(z)).eraser(shrinkage=False)(torch.tensor(x)).numpy()
    assert np.trace(np.cov(erased.T)) <= np.trace(np.cov(x.T)) * (1 + 1e-9)
    assert np.abs((erased - erased.mean(0)).T @ (z - z.mean())).max() < 1e-6


@pytest.mark.parametrize(("more", "rank"), [(1, 1), (4, 2)])
def test_a_trace_below_a_hundredth_is_noise(more: int, rank: int) -> None:
    """Uncorrelated features of variance one: the first tells the first concept, the second tells a little."""
    x = np.repeat([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]], 100, axis=0)
    # Of the rows on either side 50, and a few more: a covariance of 2 more / 400.
    faint = np.concatenate([np.arange(100) < 50 + (more if side > 0 else 0) for side in (-1, 1, -1, 1)])
    z = np.stack([x[:, 0] > 0, faint], axis=1).astype(float)
    eraser = LeaceFitter(2, 2).update(torch.tensor(x), torch.tensor(z)).eraser(shrinkage=False)
    assert eraser.rank == rank
    erased = eraser(torch.tensor(x)).numpy()
    np.testing.assert_allclose(erased, x * [0, 1] if rank == 1 else 0 * x, atol=1e-2)


def test_shrinkage_steadies_few_rows_and_vanishes_with_many() -> None:
    """The rule itself: the optimal linear combination of S and the identity (Bodnar et al., 2014)."""
    from pour.geometry.leace import _shrunk

    rng = np.random.default_rng(0)
    truth = np.diag(np.linspace(1, 3, 20))

    def error(count: int) -> tuple[float, float]:
        s = np.cov(rng.multivariate_normal(np.zeros(20), truth, size=count).T, bias=True)
        shrunk = _shrunk(torch.tensor(s), count).numpy()
        return float(np.square(shrunk - truth).sum()), float(np.square(s - truth).sum())

    few = np.mean([error(15) for _ in range(20)], axis=0)
    assert few[0] < 0.5 * few[1]
    many = np.mean([error(20_000) for _ in range(3)], axis=0)
    assert many[0] == pytest.approx(many[1], rel=0.3)


def test_bad_input_is_told() -> None:
    with pytest.raises(UsageError, match=r"Replies and readings must both be \(k, d\), but are \(1, 3\) and \(1, 4\)"):
        Eraser(torch.ones(1, 3), torch.ones(1, 4), torch.ones(1))
    with pytest.raises(UsageError, match="one value for each of 2 readings"):
        Eraser(torch.ones(2, 3), torch.ones(2, 3), torch.ones(1))
    with pytest.raises(UsageError, match="The replies of an eraser must be finite"):
        Eraser(torch.full((1, 3), torch.nan), torch.ones(1, 3), torch.ones(1))
    with pytest.raises(UsageError, match="features have width 4 in dimension -1, the eraser was made for 6"):
        _eraser(0, 1)(torch.ones(2, 4))
    with pytest.raises(UsageError, match="width 6 cannot be followed by one of width 3"):
        _eraser(0, 1).then(_eraser(0, 1, width=3))
    with pytest.raises(UsageError, match="LEACE needs at least 2 features and 1 concept, not 1 and 1"):
        LeaceFitter(1, 1)
    with pytest.raises(UsageError, match="do not fit a fitter for 6 features and 1 concepts"):
        LeaceFitter(6, 1).update(torch.ones(2, 5), torch.ones(2))
    with pytest.raises(UsageError, match="at least two images"):
        LeaceFitter(6, 1).update(torch.ones(1, 6), torch.ones(1)).eraser()
    with pytest.raises(UsageError, match="contain NaN or infinite"):
        LeaceFitter(6, 1).update(torch.full((3, 6), torch.inf), torch.ones(3)).eraser()
    x, z = _data(0)
    with pytest.raises(UsageError, match="nothing to erase"):
        LeaceFitter(6, 1).update(x, torch.ones_like(z)).eraser()


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 2), st.integers(1, 2))
def test_erased_features_do_not_move_along_constant_directions(seed: int, first: int, second: int) -> None:
    """Of a single eraser onto readings, and of two that follow each other."""
    rng = np.random.default_rng(seed)
    parts = [
        Eraser.onto(torch.tensor(rng.normal(size=(rank, 6))), torch.tensor(rng.normal(size=rank)))
        for rank in (first, second)
    ]
    x = torch.tensor(rng.normal(size=(40, 6)))
    for eraser, rank in ((parts[0], first), (parts[0].then(parts[1]), second)):
        removed = eraser.onto_varying_directions()
        assert removed is not None
        assert removed.rank >= rank
        along = eraser(x) @ removed.basis.T
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-6)
    assert _eraser(seed, first).onto_varying_directions() is None, "it moves features, but takes no direction away"


def test_an_eraser_that_is_a_projector_has_its_directions() -> None:
    projector = Projector.from_directions(torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double())
    removed = Eraser.of(projector).onto_varying_directions()
    assert removed is not None
    torch.testing.assert_close(removed.P, projector.P)
