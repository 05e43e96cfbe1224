"""The paper's theory as properties, in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import null_space
from scipy.stats import multivariate_normal

from pour.geometry import Projector, procrustes_distance, simplex_etf

many = settings(deadline=None, max_examples=60)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def normal(seed, *shape):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def simplex(seed, classes, width):
    return simplex_etf(classes, width, dtype=torch.float64, generator=generator(seed))


def simplex_gram(classes):
    gram = np.full((classes, classes), -1 / (classes - 1))
    np.fill_diagonal(gram, 1)
    return gram


def without(rows, index):
    return torch.cat([rows[:index], rows[index + 1 :]])


def linear_cka(x, y):
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    return float((x.T @ y).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


@st.composite
def frames(draw, max_classes=12):
    """A randomly turned simplex, and the seed for whatever else a test draws."""
    classes, extra, seed = draw(st.integers(3, max_classes)), draw(st.integers(0, 6)), draw(st.integers(0, 2**32))
    return simplex(seed, classes, classes - 1 + extra), seed


@st.composite
def requests(draw, max_classes=12):
    """A simplex with 1 <= k <= C - 2 vertices to forget, in any order."""
    vertices, seed = draw(frames(max_classes))
    order = draw(st.permutations(range(len(vertices))))
    k = draw(st.integers(1, len(vertices) - 2))
    return vertices, order[:k], sorted(order[k:]), seed


@many
@given(frame=frames(), pick=st.integers(0, 100))
def test_closure_has_the_norms_and_inner_products_of_the_proof(frame, pick):
    vertices, _ = frame
    count = len(vertices)
    forgotten = pick % count
    left = Projector.from_directions(vertices[forgotten])(without(vertices, forgotten))
    gram = (left @ left.T).numpy()
    np.testing.assert_allclose(np.diag(gram), count * (count - 2) / (count - 1) ** 2, atol=1e-12)
    off_diagonal = gram[~np.eye(count - 1, dtype=bool)]
    np.testing.assert_allclose(off_diagonal, -count / (count - 1) ** 2, atol=1e-12)
    np.testing.assert_allclose(left.sum(dim=0).numpy(), 0, atol=1e-12)


@many
@given(request_=requests())
def test_closure_for_several_classes_at_once(request_):
    vertices, forgotten, retained, _ = request_
    count, k = len(vertices), len(forgotten)
    projector = Projector.from_directions(vertices[list(forgotten)])
    assert projector.rank == k
    left = projector(vertices[retained])
    norm = count * (count - k - 1) / ((count - 1) * (count - k))
    np.testing.assert_allclose((left @ left.T).numpy(), norm * simplex_gram(count - k), atol=1e-11)
    np.testing.assert_allclose(left.sum(dim=0).numpy(), 0, atol=1e-11)
    assert projector(vertices[list(forgotten)]).abs().max() < 1e-12


@many
@given(request_=requests(), shuffled=st.randoms(use_true_random=False))
def test_closure_in_any_order(request_, shuffled):
    vertices, forgotten, _, _ = request_
    at_once = Projector.from_directions(vertices[list(forgotten)])
    order = list(forgotten)
    shuffled.shuffle(order)
    one_by_one = Projector.from_directions(vertices[order[0]])
    features = Projector.from_directions(vertices[order[0]])(vertices)
    for vertex in order[1:]:
        one_by_one = one_by_one.then(Projector.from_directions(vertices[vertex]))
        # As a later request meets it: the direction is read off features that are projected already.
        features = Projector.from_directions(features[vertex])(features)
    assert torch.allclose(one_by_one.P, at_once.P, atol=1e-11)
    assert torch.allclose(features, at_once(vertices), atol=1e-11)


@many
@given(frame=frames(), pick=st.integers(0, 100))
def test_forgetting_all_but_one_class_leaves_nothing_of_it(frame, pick):
    vertices, _ = frame
    retained = pick % len(vertices)
    others = without(vertices, retained)
    if vertices.shape[1] > len(vertices) - 1:
        assert Projector.from_directions(others)(vertices[retained]).abs().max() < 1e-12


def test_closure_is_special_to_the_simplex():
    """Random equal-norm centred rows are not equiangular after projection: the tests above can fail."""
    rows = normal(0, 6, 8)
    left = Projector.from_directions(rows[0])(rows[1:])
    cosines = torch.nn.functional.normalize(left) @ torch.nn.functional.normalize(left).T
    assert (cosines - torch.from_numpy(simplex_gram(5))).abs().max() > 0.1


@many
@given(request_=requests(), extra=st.integers(0, 5), scale=st.floats(0.01, 100))
def test_what_is_left_is_a_fresh_smaller_simplex(request_, extra, scale):
    vertices, forgotten, retained, seed = request_
    left = Projector.from_directions(vertices[list(forgotten)])(vertices[retained])
    fresh = scale * simplex(seed + 1, len(retained), len(retained) - 1 + extra)
    assert linear_cka(left, fresh) == pytest.approx(1, abs=1e-10)
    assert float(procrustes_distance(left, fresh)) == pytest.approx(0, abs=1e-7)


@many
@given(request_=requests())
def test_all_retained_scores_of_a_sample_shift_equally(request_):
    vertices, forgotten, retained, seed = request_
    features = normal(seed + 1, 50, vertices.shape[1])
    projector = Projector.from_directions(vertices[list(forgotten)])
    shift = projector(features) @ vertices[retained].T - features @ vertices[retained].T
    assert (shift - shift[:, :1]).abs().max() < 1e-11
    if len(forgotten) == 1:
        own = features @ vertices[forgotten[0]] / (len(vertices) - 1)
        assert torch.allclose(shift[:, 0], own, atol=1e-11)


@settings(deadline=None, max_examples=30)
@given(request_=requests(max_classes=7), sigma=st.floats(0.05, 2))
def test_nearest_mean_is_the_bayes_rule_before_and_after_with_the_same_decisions(request_, sigma):
    vertices, forgotten, retained, seed = request_
    width = vertices.shape[1]
    labels = torch.randint(len(vertices), (100,), generator=generator(seed))
    features = vertices[labels] + sigma * normal(seed + 1, 100, width)

    def nearest(rows, means):
        return torch.cdist(rows, means).argmin(dim=1).numpy()

    def bayes(rows, means, variance):
        densities = [multivariate_normal.logpdf(rows, mean, variance * np.eye(len(mean))) for mean in means.numpy()]
        return np.stack(densities).argmax(axis=0)

    assert (nearest(features, vertices) == bayes(features.numpy(), vertices, sigma**2)).all()

    projector = Projector.from_directions(vertices[list(forgotten)])
    projected, means = projector(features), projector(vertices[retained])
    # N(P v_i, sigma^2 P) has a density only inside the complement, so the oracle works in coordinates of it.
    inside = torch.from_numpy(null_space(vertices[list(forgotten)].numpy()))
    after = nearest(projected, means)
    assert (after == bayes((projected @ inside).numpy(), means @ inside, sigma**2)).all()
    assert (after == nearest(projected, torch.nn.functional.normalize(means))).all()
    assert (after == (projected @ means.T).argmax(dim=1).numpy()).all()
    assert (after == nearest(features, vertices[retained])).all()


@settings(deadline=None, max_examples=20)
@given(frame=frames(max_classes=7))
def test_with_any_shared_covariance_the_bayes_rule_is_linear_and_without_bias(frame):
    """Means that are a simplex in the Mahalanobis geometry: h(x) = argmax mu_c' Sigma^-1 x."""
    vertices, seed = frame
    root = normal(seed + 1, vertices.shape[1], vertices.shape[1]).numpy() + 2 * np.eye(vertices.shape[1])
    covariance = root @ root.T
    means = vertices.numpy() @ root.T
    rows = normal(seed + 2, 100, vertices.shape[1]).numpy() @ root.T
    densities = np.stack([multivariate_normal.logpdf(rows, mean, covariance) for mean in means])
    scores = means @ np.linalg.solve(covariance, rows.T)
    chosen = densities.argmax(axis=0)
    assert (scores.argmax(axis=0) == chosen).mean() == 1
    np.testing.assert_allclose(scores.sum(axis=0), 0, atol=1e-6 * np.abs(scores).max())


@settings(deadline=None, max_examples=30)
@given(frame=frames(), pick=st.integers(0, 100), scale=st.floats(0.5, 20))
def test_in_the_low_noise_limit_logits_vanish_and_predictions_are_uniform(frame, pick, scale):
    vertices, seed = frame
    forgotten = pick % len(vertices)
    projector = Projector.from_directions(vertices[forgotten])
    head = scale * torch.nn.functional.normalize(projector(without(vertices, forgotten)))
    noise = normal(seed + 1, 200, vertices.shape[1])
    assert projector(vertices[forgotten]).abs().max() < 1e-12
    uniform = 1 / (len(vertices) - 1)
    for sigma in (1e-2, 1e-4, 1e-6):
        logits = projector(vertices[forgotten] + sigma * noise) @ head.T
        # |w . P z| <= kappa sigma |noise|: the limit needs kappa * sigma -> 0.
        bound = scale * sigma * float(noise.norm(dim=1).max())
        assert logits.abs().max() <= bound + 1e-12
        assert (logits.softmax(dim=1) - uniform).abs().max() <= math.expm1(2 * bound)


def test_a_growing_head_alone_does_not_make_predictions_uniform():
    """With kappa sigma held fixed the logits keep their size, so the limit in the theorem is kappa sigma -> 0."""
    vertices = simplex(0, 5, 8)
    projector = Projector.from_directions(vertices[0])
    noise = normal(1, 500, 8)
    for sigma in (1e-2, 1e-4, 1e-6):
        head = torch.nn.functional.normalize(projector(vertices[1:])) / sigma
        predictions = (projector(vertices[0] + sigma * noise) @ head.T).softmax(dim=1)
        assert (predictions - 0.25).abs().mean() > 0.1


@many
@given(request_=requests(max_classes=8), sigma=st.floats(0.1, 10))
def test_the_forgotten_class_is_left_with_covariance_sigma_squared_p(request_, sigma):
    vertices, forgotten, _, _ = request_
    P = Projector.from_directions(vertices[list(forgotten)]).P
    assert torch.allclose(P @ (sigma**2 * torch.eye(len(P)).double()) @ P.T, sigma**2 * P, atol=1e-9)


@many
@given(classes=st.integers(2, 12), extra=st.integers(0, 6), seed=st.integers(0, 2**32))
def test_no_configuration_has_a_larger_smallest_angle_or_margin(classes, extra, seed):
    width = classes - 1 + extra
    rival = torch.nn.functional.normalize(normal(seed, classes, width))
    best = simplex(seed + 1, classes, width)

    def largest_product(rows):
        return float((rows @ rows.T - 3 * torch.eye(classes).double()).max())

    def margin(rows):
        """Least angle by which a mean must turn to reach a boundary <x, v_c - v_c'> = 0 of the nearest-mean rule."""
        first, second = torch.triu_indices(classes, classes, offset=1)
        normals = torch.nn.functional.normalize(rows[first] - rows[second])
        return float(torch.arcsin((rows[first] * normals).sum(dim=1).clamp(-1, 1)).min())

    assert largest_product(best) == pytest.approx(-1 / (classes - 1))
    assert largest_product(rival) >= -1 / (classes - 1) - 1e-12
    assert margin(best) >= margin(rival) - 1e-9
    assert margin(best) == pytest.approx(math.acos(-1 / (classes - 1)) / 2)


@many
@given(frame=frames(), size=st.floats(1e-4, 1))
def test_leaving_the_simplex_in_any_direction_shrinks_the_smallest_angle(frame, size):
    vertices, seed = frame
    moved = torch.nn.functional.normalize(vertices + size * normal(seed + 1, *vertices.shape))
    gram = moved @ moved.T - 3 * torch.eye(len(moved)).double()
    off_simplex = (moved @ moved.T - torch.from_numpy(simplex_gram(len(moved)))).abs().max()
    # Uniqueness with a rate: products that sum to at least -C and are not all equal have a larger largest one.
    assert float(gram.max()) >= -1 / (len(moved) - 1) + float(off_simplex) / len(moved) ** 2 - 1e-12


def test_the_welch_inequality_as_printed_is_false():
    """The appendix bounds the smallest inner product from above; nearly equal vectors break that."""
    near = torch.nn.functional.normalize(torch.ones(4, 3).double() + 0.01 * normal(0, 4, 3))
    assert (near @ near.T).min() > -1 / 3
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert (opposite @ opposite.T).min() < -1 / 2
