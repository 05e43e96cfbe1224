"""Class requests: names, indices, and every wrong one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.errors import UsageError
from pour.models import resolve_classes

NAMES = ["airplane", "automobile", "bird", "cat", "deer"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ([0, 3], (0, 3)),
        (["cat", "bird"], (3, 2)),
        (["Cat", "BIRD"], (3, 2)),
        (["cat", 0], (3, 0)),
        ("deer", (4,)),
        (2, (2,)),
        (["1"], (1,)),
        (np.array([1, 2]), (1, 2)),
        (torch.tensor([2]), (2,)),
        ([np.int64(4)], (4,)),
        ((x for x in [0, 1]), (0, 1)),
        ({3}, (3,)),
    ],
)
def test_names_and_indices(request_, expected: tuple[int, ...]) -> None:
    assert resolve_classes(request_, num_classes=5, class_names=NAMES) == expected


def test_a_name_made_of_digits_is_a_name() -> None:
    names = ["5", "6", "7", "8"]
    assert resolve_classes(["7"], num_classes=4, class_names=names) == (2,)
    assert resolve_classes(["3"], num_classes=4, class_names=names) == (3,)


def test_names_that_differ_in_their_case_are_told_apart() -> None:
    names = ["a", "A", "b", "c"]
    assert resolve_classes(["A"], num_classes=4, class_names=names) == (1,)
    with pytest.raises(UsageError, match="no class called 'B'"):
        resolve_classes(["B"], num_classes=4, class_names=names)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (["arplane"], "no class called 'arplane'; did you mean 'airplane'"),
        (["Catt"], "did you mean 'cat'"),
        (["zzzz"], "the classes are airplane, automobile"),
        ([5], "Class 5 is out of range; the model has classes 0 to 4"),
        (["17"], "Class 17 is out of range"),
        ([-1], "Class -1 is out of range"),
        ([True], "True is not a class"),
        ([1.0], "1.0 is not a class"),
        ([None], "None is not a class"),
        ([], "empty"),
        ([1, 1], "Class 1 .'automobile'. is listed more than once"),
        (["cat", 3], "listed more than once"),
        ([0, 1, 2, 3, 4], "leave no class"),
        ([0, 1, 2, 3], "leave one class; keep at least two"),
    ],
)
def test_wrong_requests(request_, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        resolve_classes(request_, num_classes=5, class_names=NAMES)


def test_names_must_be_known_and_unique() -> None:
    with pytest.raises(UsageError, match="does not know its class names"):
        resolve_classes(["cat"], num_classes=5)
    with pytest.raises(UsageError, match="belongs to 2 classes"):
        resolve_classes(["a"], num_classes=3, class_names=["a", "a", "b"])
    with pytest.raises(UsageError, match="2 class names for 3 classes"):
        resolve_classes([0], num_classes=3, class_names=["a", "b"])


def test_earlier_requests_count() -> None:
    assert resolve_classes([1], num_classes=4, already=[0]) == (1,)
    with pytest.raises(UsageError, match="after the 2 forgotten earlier would leave one class"):
        resolve_classes([1], num_classes=4, already=[0, 2])


@settings(deadline=None, max_examples=60)
@given(st.integers(3, 30), st.data())
def test_any_set_that_leaves_two_is_returned_as_given(num_classes: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=num_classes - 2, unique=True))
    assert resolve_classes(indices, num_classes=num_classes) == tuple(indices)
