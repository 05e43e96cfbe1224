import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from pour.errors import UsageError
from pour.metrics import knn_probe, linear_probe
from pour.metrics.probes import _vote


def splits(spread=2.0, d=8, classes=5, per_class=60, seed=0):
    g = torch.Generator().manual_seed(seed)
    means = spread * torch.randn(classes, d, generator=g)
    labels = torch.arange(classes * per_class) % classes
    train, test = (means[labels] + torch.randn(len(labels), d, generator=g) for _ in range(2))
    return train, labels, test, labels.flip(0), means


def data(**options):
    train, labels, test, _, means = splits(**options)
    return (train, labels, test, labels), means


@pytest.mark.parametrize(("spread", "C"), [(0.3, 1.0), (1.0, 1.0), (1.0, 1e-3)])
def test_linear_probe_agrees_with_scikit_learn(spread, C):
    (train, labels, test, _), _ = data(spread=spread)
    probe = linear_probe(train, labels, test, labels, classes=[2], C=C)
    x, y = train.double().numpy(), labels.numpy()
    scaler = StandardScaler().fit(x)
    means = np.stack([x[y == c].mean(0) for c in range(5)])
    distance = np.linalg.norm(means - means[2], axis=1)
    distance[2] = np.inf
    assert probe.nearest_class == distance.argmin()
    for estimate, rows in (
        (probe.against_all, np.ones(len(y), dtype=bool)),
        (probe.against_nearest, (y == 2) | (y == probe.nearest_class)),
    ):
        model = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000, C=C)
        model.fit(scaler.transform(x[rows]), y[rows] == 2)
        called = model.predict(scaler.transform(test.double().numpy()[rows]))
        assert estimate.value == pytest.approx(balanced_accuracy_score(y[rows] == 2, called))
        assert estimate.low < estimate.value < estimate.high


def test_neighbour_votes_agree_with_scikit_learn():
    (train, labels, test, _), _ = data(spread=0.6)
    train, test = train.double() + 50, test.double() + 50
    side = labels == 1
    model = KNeighborsClassifier(7).fit(train.numpy(), side.numpy())
    called = _vote(train, side, test, 7)
    assert np.array_equal(called.numpy(), model.predict(test.numpy()))


def test_knn_probe_on_equal_sides_is_plain_k_nearest_neighbours():
    (train, labels, test, _), _ = data(spread=0.6, classes=2)
    probe = knn_probe(train, labels, test, labels, classes=[0])
    model = KNeighborsClassifier(5).fit(train.double().numpy(), labels.numpy() == 0)
    expected = balanced_accuracy_score(labels.numpy() == 0, model.predict(test.double().numpy()))
    assert probe.against_all.value == pytest.approx(expected)
    assert probe.against_nearest == probe.against_all
    assert probe.nearest_class == 1


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_separated_classes_are_found_and_mixed_ones_are_not(probe):
    (train, labels, test, _), means = data(spread=20.0)
    found = probe(train, labels, test, labels, classes=[0])
    assert found.against_all.value == found.against_nearest.value == 1
    assert found.nearest_class == 1 + int(torch.linalg.norm(means[1:] - means[0], dim=1).argmin())
    (train, labels, test, _), _ = data(spread=0.0, per_class=200)
    mixed = probe(train, labels, test, labels, classes=[0])
    assert mixed.against_all.covers(0.5)
    assert mixed.against_nearest.covers(0.5)


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_several_forgotten_classes_are_one_side(probe):
    (train, labels, test, _), _ = data(spread=20.0)
    result = probe(train, labels, test, labels, classes=[0, 4, 4])
    assert result.nearest_class in (1, 2, 3)
    assert result.against_nearest.value == 1


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_constant_features_are_chance(probe):
    labels = torch.arange(60) % 3
    result = probe(torch.full((60, 4), 0.1), labels, torch.full((60, 4), 0.1), labels, classes=[0])
    assert result.against_all.value == result.against_nearest.value == 0.5


def test_a_rare_forgotten_class_is_still_found_by_neighbours():
    g = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.zeros(20, dtype=torch.long), torch.ones(2000, dtype=torch.long)])
    train, test = (torch.randn(2020, 4, generator=g) + 1.5 * (labels == 0).unsqueeze(1) for _ in range(2))
    plain = KNeighborsClassifier(5).fit(train.numpy(), labels.numpy() == 0).predict(test.numpy())
    balanced = knn_probe(train, labels, test, labels, classes=[0])
    assert balanced.against_all.value > balanced_accuracy_score(labels.numpy() == 0, plain) + 0.1


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_wrong_use_says_what_is_wrong(probe):
    (train, labels, test, _), _ = data()
    with pytest.raises(UsageError, match="training split contains 0 images of the forgotten classes"):
        probe(train, labels, test, labels, classes=[7])
    with pytest.raises(UsageError, match=r"test split contains 300 images.* and 0 of others"):
        probe(train, labels, test, torch.zeros_like(labels), classes=[0])
    nearest = probe(train, labels, test, labels, classes=[0]).nearest_class
    with pytest.raises(UsageError, match=f"no image of class {nearest}"):
        probe(train, labels, test, torch.where(labels == nearest, 9, labels), classes=[0])
    with pytest.raises(UsageError, match="train_features contains NaN"):
        probe(train / 0, labels, test, labels, classes=[0])
    with pytest.raises(UsageError, match="same model"):
        probe(train, labels, test[:, :3], labels, classes=[0])


def test_neighbours_need_an_odd_number_and_enough_images():
    (train, labels, test, _), _ = data()
    with pytest.raises(UsageError, match="odd number"):
        knn_probe(train, labels, test, labels, classes=[0], k=4)
    with pytest.raises(UsageError, match="at least 5 training images, got 4"):
        knn_probe(train[:10], labels[:10], test, labels, classes=[0])
