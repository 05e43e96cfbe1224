from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pour._torchmetrics import Metric
from pour.errors import UsageError
from pour.metrics.segmentation import pixel_confusion, segmentation_scores

VOID = -100


def random_masks(seed: int, classes: int = 5, void: float = 0.1, shape: tuple[int, ...] = (3, 9, 11)):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, shape)
    predicted = np.where(rng.random(shape) < 0.6, truth, rng.integers(0, classes, shape))
    truth = np.where(rng.random(shape) < void, VOID, truth)
    return torch.tensor(predicted), torch.tensor(truth)


@pytest.mark.parametrize("seed", range(3))
def test_iou_of_every_class_agrees_with_torchmetrics(seed: int) -> None:
    assert Metric is not None  # torchvision has been made sound before torchmetrics imports it
    from torchmetrics.classification import MulticlassJaccardIndex

    predicted, truth = random_masks(seed)
    oracle = MulticlassJaccardIndex(num_classes=5, average="none", ignore_index=VOID)(predicted, truth)
    scores = segmentation_scores(pixel_confusion(predicted, truth, 5), [1])
    torch.testing.assert_close(scores["iou"].double(), oracle.double(), rtol=1e-5, atol=1e-6)
    assert float(scores["iou_r"]) == pytest.approx(float(oracle[[0, 2, 3, 4]].double().mean()), abs=1e-6)
    assert float(scores["iou_f"]) == pytest.approx(float(oracle[1]), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_leaving_pixels_out_is_the_same_as_calling_them_void(seed: int) -> None:
    predicted, truth = random_masks(seed)
    scores = segmentation_scores(pixel_confusion(predicted, truth, 5).double(), [1, 3])
    hidden = torch.where(torch.isin(truth, torch.tensor([1, 3])), VOID, truth)
    without = segmentation_scores(pixel_confusion(predicted, hidden, 5).double(), [1, 3])
    assert float(scores["iou_r_rest"]) == pytest.approx(float(without["iou_r"]), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_counts_are_those_of_a_loop(seed: int, classes: int) -> None:
    predicted, truth = random_masks(seed, classes, shape=(1, 4, 5))
    counts = np.zeros((classes, classes), int)
    for p, t in zip(predicted.flatten().tolist(), truth.flatten().tolist(), strict=True):
        if t != VOID:
            counts[t, p] += 1
    np.testing.assert_array_equal(pixel_confusion(predicted, truth, classes).numpy(), counts)


def test_forgotten_pixels_are_false_positives_of_what_they_become() -> None:
    truth = torch.tensor([0] * 10 + [1] * 10 + [2] * 5)
    predicted = torch.tensor([0] * 10 + [1] * 10 + [0] * 5)
    scores = segmentation_scores(pixel_confusion(predicted, truth, 3).double(), [2])
    assert scores["iou"].tolist() == [10 / 15, 1.0, 0.0]
    assert float(scores["iou_r"]) == pytest.approx((10 / 15 + 1) / 2)
    assert scores["iou_r_rest"] == 1.0
    assert scores["iou_f"] == 0


def test_a_class_that_is_nowhere_is_left_out_of_the_mean() -> None:
    counts = torch.tensor([[4, 0, 0], [0, 0, 0], [1, 0, 3]])
    scores = segmentation_scores(counts.double(), [2])
    assert scores["iou"][1].isnan()
    assert scores["iou_r"] == scores["iou"][0] == 4 / 5


def test_counts_of_images_add_up() -> None:
    predicted, truth = random_masks(5)
    counts = sum(pixel_confusion(one, other, 5) for one, other in zip(predicted, truth, strict=True))
    assert torch.equal(torch.as_tensor(counts), pixel_confusion(predicted, truth, 5))


@pytest.mark.parametrize("forgotten", [[], [0, 1, 2], [3], [-1]])
def test_the_forgotten_classes_must_be_some_of_them(forgotten: list[int]) -> None:
    with pytest.raises(UsageError, match="some, not all"):
        segmentation_scores(torch.ones(3, 3), forgotten)


def test_masks_must_fit() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        pixel_confusion(torch.zeros(2, 3), torch.zeros(2, 4), 2)
