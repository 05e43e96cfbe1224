"""What a method gets to see: every image of an epoch, and samples of all classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from pour.data.dataset import ImageSplit
from pour.methods import make_method, request_of
from pour.methods.request import Images
from pour.training import Run

if TYPE_CHECKING:
    from pour.data.splits import Splits

RUN = Run(seed=0, device="cpu", progress=False)


def split_of(count: int) -> ImageSplit:
    """Images that can be told apart by their first pixel."""
    images = np.zeros((count, 4, 4, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(count)
    return ImageSplit(images, np.arange(count) % 3)


@pytest.mark.parametrize(("count", "batches"), [(20, [8, 8, 4]), (16, [8, 8]), (17, [8, 8]), (5, [5]), (1, [1])])
def test_an_epoch_holds_every_image_but_a_single_last_one(count: int, batches: list[int]) -> None:
    loader = Images(split_of(count)).training(RUN, batch_size=8, augment=False)
    seen = list(loader.epoch(0))
    assert [len(labels) for _, labels in seen] == batches
    assert len(loader) == len(batches)
    found = torch.cat([images[:, 0, 0, 0] for images, _ in seen]).tolist()
    assert len(set(found)) == sum(batches)


def sorted_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Forty images of each of three classes, class by class, as a loader of folders gives them."""
    labels = torch.tensor([0, 1, 3]).repeat_interleave(40)
    images = torch.arange(120.0).view(120, 1, 1, 1).expand(-1, 1, 2, 2)
    return list(zip(images.split(30), labels.split(30), strict=True))


@pytest.mark.parametrize("count", [7, 30, 90, 500])
def test_a_sample_of_the_users_batches_has_all_classes(count: int) -> None:
    taken = list(Images(sorted_batches()).sample(count, RUN, batch_size=25))
    images, labels = (torch.cat(parts) for parts in zip(*taken, strict=True))
    each = min(40, -(-count // 3))
    assert np.bincount(labels, minlength=4).tolist() == [each, each, 0, each]
    own = torch.tensor([0, 1, 3])[(images[:, 0, 0, 0] // 40).long()]
    assert torch.equal(own, labels)
    assert len(images.unique()) == len(labels), "no image twice"
    assert not torch.equal(labels, labels.sort().values), "mixed"
    assert max(len(part) for _, part in taken) <= 25
    again = list(Images(sorted_batches()).sample(count, RUN, batch_size=25))
    assert all(torch.equal(one[0], other[0]) for one, other in zip(taken, again, strict=True))


def test_validation_images_of_the_datas_own_are_taken(digits_splits: Splits, digits_original: torch.nn.Module) -> None:
    method = make_method("sure")
    own = digits_splits.holdout(0.3, seed=5)
    assert own.validation is not None
    assert len(request_of(own, method, digits_original).validation) == len(own.validation.retain)  # type: ignore[arg-type]
    assert len(request_of(own, method, digits_original).retain) == len(own.retain_train)  # type: ignore[arg-type]
    held = request_of(digits_splits, method, digits_original)
    assert len(held.retain) < len(digits_splits.retain_train)  # type: ignore[arg-type]
