import numpy as np
import pytest
import torch

from pour.errors import UsageError
from pour.metrics import split_accuracy


def test_counts_by_hand_from_scores_and_predictions():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(300, 5, generator=g)
    labels = torch.randint(0, 5, (300,), generator=g)
    predicted = scores.argmax(1)
    expected = {"retain": [0, 0], "forget": [0, 0]}
    for p, y in zip(predicted.tolist(), labels.tolist(), strict=True):
        side = expected["forget" if y in (1, 3) else "retain"]
        side[0] += p == y
        side[1] += 1
    for result in (
        split_accuracy(scores, labels, classes=[1, 3]),
        split_accuracy(predicted, labels, classes=[1, 3]),
        split_accuracy(scores, labels, classes=(3, 1)),
    ):
        assert {k: v.item() for k, v in result.items()} == {k: right / n for k, (right, n) in expected.items()}


def test_side_without_images_is_absent():
    labels = torch.tensor([1, 2])
    assert split_accuracy(labels, labels, classes=0) == {"retain": 1.0}
    assert split_accuracy(labels, labels, classes=[1, 2]) == {"forget": 1.0}


def test_masked_scores_are_allowed_and_nan_is_not():
    scores = torch.tensor([[float("-inf"), 1.0], [float("-inf"), 2.0]])
    assert split_accuracy(scores, torch.tensor([0, 1]), classes=0) == {"retain": 1.0, "forget": 0.0}
    with pytest.raises(UsageError, match="NaN"):
        split_accuracy(scores * 0, torch.tensor([0, 1]), classes=0)


def test_wrong_use_says_what_is_wrong():
    labels = torch.tensor([0, 1])
    with pytest.raises(UsageError, match="shape"):
        split_accuracy(torch.rand(2), labels, classes=0)
    with pytest.raises(UsageError, match="2 entries for 3 samples"):
        split_accuracy(torch.rand(3, 2), labels, classes=0)
    with pytest.raises(UsageError, match="integer class indices"):
        split_accuracy(torch.rand(2, 2), labels.float(), classes=0)
    with pytest.raises(UsageError, match="classes are indices, not '12'"):
        split_accuracy(torch.rand(2, 2), labels, classes="12")
    with pytest.raises(UsageError, match="classes are indices"):
        split_accuracy(torch.rand(2, 2), labels, classes=[0.5])
    with pytest.raises(UsageError, match="classes is empty"):
        split_accuracy(labels, labels, classes=[])
    with pytest.raises(UsageError, match="indices from 0 up, got -1"):
        split_accuracy(labels, labels, classes=[-1])


@pytest.mark.parametrize("classes", [1, [1], (1,), np.int64(1), np.array([1]), torch.tensor([1]), torch.tensor(1)])
def test_classes_may_come_as_any_kind_of_index(classes):
    found = split_accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), classes=classes)
    assert found["forget"] == 1
    assert found["retain"] == 0.5


def test_small_integer_labels_reach_classes_beyond_them():
    found = split_accuracy(torch.tensor([0, 1]), torch.tensor([0, 1], dtype=torch.uint8), classes=[1, 300])
    assert found["forget"] == 1
