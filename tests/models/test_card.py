"""What a model's card keeps when the network is wrapped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pour
from pour.models import NormalizedModel, class_names, set_class_names

NAMES = ("cat", "dog", "fox", "hen")


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))


def normalized(inside: nn.Module) -> nn.Module:
    return NormalizedModel(inside, [0.5] * 3, [0.2] * 3)


WRAPPERS = {
    "normalized": normalized,
    "parallel": nn.DataParallel,
    "compiled": torch.compile,
    "parallel normalized": lambda inside: nn.DataParallel(normalized(inside)),
    "normalized compiled": lambda inside: normalized(torch.compile(inside, backend="eager")),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("named_before", [True, False])
def test_class_names_survive_wrapping(wrapper: str, named_before: bool) -> None:
    inside = network()
    if named_before:
        set_class_names(inside, NAMES)
    wrapped = WRAPPERS[wrapper](inside)
    if not named_before:
        set_class_names(inside, NAMES)
    assert class_names(wrapped) == NAMES
    forgotten = pour.forget(wrapped, classes="fox", example=torch.rand(2, 3, 2, 2))
    assert pour.history(forgotten)[0].class_names == ("fox",)
    assert class_names(forgotten) == NAMES


def test_names_of_the_wrapper_come_first() -> None:
    inside = network()
    set_class_names(inside, NAMES)
    wrapped = normalized(inside)
    set_class_names(wrapped, NAMES[::-1])
    assert class_names(wrapped) == NAMES[::-1]


def test_the_history_and_the_head_survive_normalisation() -> None:
    forgotten = pour.fold(pour.forget(network(), classes=[1], head="1"))
    wrapped = normalized(forgotten)
    assert pour.history(wrapped) == pour.history(forgotten)
    again = pour.forget(wrapped, classes=[2])
    assert [entry.classes for entry in pour.history(again)] == [(1,), (), (2,)]
    assert pour.history(wrapped) == pour.history(forgotten)
