"""Fine-tuning of a network with masked classes under a loss that reads all scores."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pour

FORGOTTEN = 2


def forgotten_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    return pour.forget(model, classes=[FORGOTTEN], head="3").train()


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 4, generator=generator), torch.tensor([0, 1, 3, 4] * 4)


def weighted():
    weight = torch.ones(5)
    weight[FORGOTTEN] = 0
    return nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)


def test_label_smoothing_over_masked_classes_is_warned_of():
    model, (images, labels) = forgotten_network(), batch()
    with pytest.warns(UserWarning, match=r"reads the scores of forgotten classes \(2\).*CrossEntropyLoss\(weight=w\)"):
        F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), weighted()], ids=["plain", "weighted"])
def test_other_losses_are_not_warned_of(loss):
    model, (images, labels) = forgotten_network(), batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(model(images), labels).backward()
        copy.deepcopy(model)


@pytest.mark.parametrize("fold", [False, True])
def test_the_documented_loss_trains_a_masked_network(fold):
    model, (images, labels) = forgotten_network(), batch()
    if fold:
        model = pour.fold(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        value = weighted()(model(images), labels)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[0] < 10
    assert losses[-1] < losses[0]
    assert FORGOTTEN not in model.eval()(images).argmax(dim=1)


def test_gradients_of_single_images_are_computed():
    model, (images, labels) = forgotten_network(), batch()

    def loss(parameters, image, label):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (image[None],)), label[None])

    of_images = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(dict(model.named_parameters()), images, labels)
    assert of_images["1.weight"].shape == (16, 16, 12)
