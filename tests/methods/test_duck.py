from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_requests import FORGET, NOTHING, RETAIN, batches, losses, small_request, tiny_net, unlearn
from torch import Tensor, nn

from pour.errors import UsageError
from pour.methods.duck import Duck, nearest
from pour.models.head import find_head
from pour.training.run import Run
from pour.unlearning import make_method


def features(model: nn.Module, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model.eval()[:-1](images).double().numpy())  # type: ignore[index]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1))


def wrong_centroids(model: nn.Module) -> np.ndarray:
    seen = np.concatenate([features(model, images) for images, _ in RETAIN])
    labels = np.concatenate([labels.numpy() for _, labels in RETAIN])
    return np.stack([seen[labels == label].mean(axis=0) for label in (0, 1, 3)])


def test_the_target_is_the_nearest_wrong_centroid() -> None:
    model = tiny_net()
    centroids = wrong_centroids(model)
    chosen = nearest(torch.tensor(features(model, FORGET[0][0])).float(), torch.tensor(centroids, dtype=torch.float32))
    expected = centroids[cosines(features(model, FORGET[0][0]), centroids).argmax(axis=1)]
    np.testing.assert_allclose(chosen.numpy(), expected, rtol=1e-6)


def test_the_loss_is_the_distance_and_the_tempered_cross_entropy() -> None:
    model = tiny_net()
    result = unlearn(
        model,
        "duck",
        epochs=1,
        lr=NOTHING,
        repair_epochs=0,
        stop_accuracy=0.0,
        retain_batches=3,
        lambda_1=0.7,
        lambda_2=1.4,
        temperature=2.0,
    )
    centroids = wrong_centroids(model)
    pull = [1 - cosines(features(model, images), centroids).max(axis=1).mean() for images, _ in FORGET]
    with torch.no_grad():
        keep = [float(F.cross_entropy(model(images) / 2.0, labels)) for images, labels in RETAIN]
    expected = [0.7 * distance + 1.4 * kept for distance in pull for kept in keep]
    np.testing.assert_allclose(losses(result), expected, rtol=1e-4)


def test_forget_features_go_to_their_first_target() -> None:
    model = tiny_net()
    result = unlearn(
        model, "duck", epochs=5, lr=0.01, repair_epochs=0, stop_accuracy=0.0, retain_batches=3, lambda_2=0.1
    )
    before, after = (features(net, FORGET[0][0]) for net in (model, result))
    centroids = wrong_centroids(model)
    target = cosines(before, centroids).argmax(axis=1)
    rows = np.arange(len(target))
    assert cosines(after, centroids)[rows, target].mean() > cosines(before, centroids)[rows, target].mean()


def test_stops_when_forgotten_and_repairs() -> None:
    result = unlearn(tiny_net(), "duck", stop_accuracy=1.0, repair_epochs=2)
    assert len(losses(result)) == 2 * len(RETAIN)


def test_the_target_stays_while_the_student_moves() -> None:
    model, request = tiny_net(), small_request(forget=FORGET[:1])
    options = {"epochs": 1, "lr": 0.3, "repair_epochs": 0, "stop_accuracy": 0.0}
    student = unlearn(model, "duck", request, retain_batches=1, **options)
    second = losses(unlearn(model, "duck", request, retain_batches=2, **options))[1]
    rows, centroids = np.arange(len(FORGET[0][0])), wrong_centroids(model)
    first, moved = (cosines(features(net, FORGET[0][0]), centroids) for net in (model, student))
    assert (first.argmax(axis=1) != moved.argmax(axis=1)).any()
    pull = 1 - moved[rows, first.argmax(axis=1)].mean()
    keep = F.cross_entropy(student(RETAIN[1][0]) / 2.0, RETAIN[1][1]).item()
    assert second == pytest.approx(pull + 1.4 * keep, rel=1e-4)


def test_the_repair_pulls_a_tenth_as_hard() -> None:
    model = tiny_net()
    result = unlearn(model, "duck", stop_accuracy=1.0, repair_epochs=1, repair_lr=NOTHING, lambda_1=5.0)
    centroids = wrong_centroids(model)
    pull = [1 - cosines(features(model, images), centroids).max(axis=1).mean() for images, _ in FORGET]
    with torch.no_grad():
        keep = [float(F.cross_entropy(model(images) / 2.0, labels)) for images, labels in RETAIN]
    expected = [0.5 * pull[step % 2] + 1.4 * keep[step] for step in range(3)]
    np.testing.assert_allclose(losses(result), expected, rtol=1e-4)


def test_the_repair_has_its_own_rate_and_momentum() -> None:
    model = tiny_net()
    result = unlearn(
        model,
        "duck",
        small_request(forget=FORGET[:1], retain=RETAIN[:1]),
        optimizer="sgd",
        lr=0.1,
        repair_lr=0.02,
        epochs=1,
        retain_batches=1,
        repair_epochs=2,
        stop_accuracy=0.0,
        lambda_1=0.0,
    )
    by_hand, speed = copy.deepcopy(model), [torch.zeros_like(parameter) for parameter in model.parameters()]
    # One step of the forgetting; the repair begins without momentum and falls along half a cosine.
    for rate, kept in ((0.1, 0.0), (0.02, 0.0), (0.01, 0.9)):
        loss = 1.4 * F.cross_entropy(by_hand(RETAIN[0][0]) / 2.0, RETAIN[0][1])
        slopes = torch.autograd.grad(loss, list(by_hand.parameters()))
        speed = [kept * old + slope for old, slope in zip(speed, slopes, strict=True)]
        with torch.no_grad():
            for parameter, step in zip(by_hand.parameters(), speed, strict=True):
                parameter -= rate * step
    for name, parameter in by_hand.named_parameters():
        torch.testing.assert_close(result.get_parameter(name), parameter, rtol=1e-4, atol=1e-6)


def test_centroids_are_of_fifty_batches() -> None:
    model, method, run = tiny_net(), Duck(batch_size=1), Run(device="cpu", progress=False)
    retain = batches(20, 6, (0, 1, 3), seed=5)
    request = small_request(retain=retain).grant(("retain",), name="duck")
    found = method._centroids(model, find_head(model), request, run)
    seen = np.concatenate([features(model, images) for images, _ in retain])
    labels = np.concatenate([labels.numpy() for _, labels in retain])
    # Of 40 images of each of three classes the first 17, which make 50.
    expected = [seen[labels == label][:17].mean(axis=0) for label in (0, 1, 3)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="pass epochs, not steps"):
        make_method("duck", steps=10)
    with pytest.raises(UsageError, match="retain_batches must be at least 1"):
        make_method("duck", retain_batches=0)
    with pytest.raises(UsageError, match="repair_lr must be above 0"):
        make_method("duck", repair_lr=0.0)
    with pytest.raises(UsageError, match=r"stop_accuracy must be at least 0 and at most 1, but is 5.0"):
        make_method("duck", stop_accuracy=5.0)
    with pytest.raises(UsageError, match=r"lambda_2 must be at least 0, but is -1.0"):
        make_method("duck", lambda_2=-1.0)
    with pytest.raises(UsageError, match="a schedule would restart each time; leave it constant"):
        make_method("duck", schedule="cosine")
