"""What a method gets to see: every image of an epoch, and samples of all classes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from small_requests import FORGET, NOTHING, RETAIN, Batch, batches, losses, small_request, tiny_net, unlearn
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pour
from pour.data.dataset import ImageSplit
from pour.errors import UsageError
from pour.methods.finetune import Finetune
from pour.training import Run
from pour.training.loop import as_epochs
from pour.training.tasks.classify import Classify
from pour.unlearning import ForgetRequest, make_method, request_of
from pour.unlearning.access import Images

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pour.data.dataset import ImageDataset
    from pour.data.splits import Splits
    from pour.unlearning.request import Granted

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


@pytest.mark.parametrize("count", [6, 7, 30])
def test_a_sample_of_a_split_is_even_over_the_classes(count: int) -> None:
    """Of classes of 40, 14 and 6 images as many each, or all there are; which ones is drawn with the seed."""
    own = np.repeat([0, 1, 2], [40, 14, 6])
    split = ImageSplit(split_of(60).images, own)
    each = -(-count // 3)
    first = []
    for seed in (0, 1):
        taken = Images(split).sample(count, Run(seed=seed, device="cpu", progress=False), batch_size=8)
        images, labels = (torch.cat(parts) for parts in zip(*taken, strict=True))
        rows = images[:, 0, 0, 0].numpy()
        assert np.bincount(labels).tolist() == [each, each, min(each, 6)]
        assert own[rows].tolist() == labels.tolist()
        assert len(set(rows)) == len(rows), "no image twice"
        assert not torch.equal(labels, labels.sort().values), "mixed"
        first.append(set(rows[own[rows] == 0]))
    assert first[0] != first[1]
    assert set(range(each)) not in first


def test_a_part_is_drawn_at_random_with_the_seed() -> None:
    drawn = []
    for seed in (0, 0, 1):
        part = Images(split_of(60)).part(0.25, Run(seed=seed, device="cpu", progress=False))
        images, labels = next(iter(part.once(RUN)))
        rows = images[:, 0, 0, 0].tolist()
        assert labels.tolist() == [row % 3 for row in rows]
        assert len(set(rows)) == len(rows) == 15
        drawn.append(set(rows))
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(range(15)) not in drawn


def test_validation_images_of_the_datas_own_are_taken(
    digits: ImageDataset, digits_splits: Splits, digits_original: torch.nn.Module
) -> None:
    own = digits_splits.holdout(0.3, seed=5)
    assert own.validation is not None
    assert len(ForgetRequest.of(own).validation) == len(own.validation.retain)  # type: ignore[arg-type]
    assert len(ForgetRequest.of(own).retain) == len(own.retain_train)  # type: ignore[arg-type]
    held = request_of(Classify(), digits, ["3"], make_method("sure"), digits_original)
    tenth = digits_splits.holdout(0.1, seed=0)
    assert len(held.retain) == len(tenth.retain_train) < len(digits_splits.retain_train)  # type: ignore[arg-type]
    assert len(held.validation) == len(tenth.validation.retain)  # type: ignore[arg-type, union-attr]


def test_classes_forgotten_before_are_not_offered_again(
    digits: ImageDataset, digits_splits: Splits, digits_original: torch.nn.Module
) -> None:
    once = pour.forget(digits_original, classes=[5])
    request = request_of(Classify(), digits, ["3"], make_method("sure"), once)
    for images in (request.retain, request.validation):
        assert set(images.labels.tolist()) == {0, 1, 2, 4, 6, 7, 8, 9}  # type: ignore[union-attr]
    assert set(request.forget.labels.tolist()) == {3}  # type: ignore[union-attr]
    fresh = request_of(Classify(), digits, ["3"], make_method("finetune"), digits_original)
    assert len(fresh.retain) == len(digits_splits.retain_train)  # type: ignore[arg-type]
    request = ForgetRequest.of(digits_splits)
    assert request.without(()).retain is digits_splits.retain_train, "nothing changes without earlier requests"


def test_splits_of_a_users_own_request_lose_them_too(
    digits_splits: Splits, digits_original: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []

    def look(self: Finetune, model: torch.nn.Module, request: Granted, run: Run) -> torch.nn.Module:
        seen.append(set(request.retain.labels.tolist()))  # type: ignore[union-attr]
        return model

    monkeypatch.setattr(Finetune, "__call__", look)
    once = pour.forget(digits_original, classes=[5])
    for model in (digits_original, once):
        pour.unlearn(model, ForgetRequest.of(digits_splits), method="finetune", device="cpu", progress=False)
    assert seen[0] - seen[1] == {5}


def test_own_batches_with_a_class_forgotten_before_are_told() -> None:
    once = unlearn(tiny_net(), "masked-head", small_request(classes=[1]))
    with pytest.warns(UserWarning, match="contain class 1, which the model forgot earlier") as said:
        unlearn(once, "finetune", lr=NOTHING, epochs=2)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unlearn(once, "finetune", small_request(retain=batches(2, 6, (0, 3), seed=2)), lr=NOTHING, epochs=1)
        unlearn(once, "delete", lr=NOTHING, epochs=1)


@pytest.mark.parametrize(
    "change",
    [lambda labels: labels[:, None], lambda labels: labels.to(torch.int32), lambda labels: labels.numpy()],
    ids=["column", "int32", "numpy"],
)
@pytest.mark.parametrize("method", ["finetune", "gradient-ascent", "boundary-shrink", "ssd", "unsir"])
def test_labels_of_other_kinds_train_alike(method: str, change: Any) -> None:
    def changed(source: list[Batch]) -> list[Any]:
        return [(images, change(labels)) for images, labels in source]

    odd = small_request(forget=changed(FORGET), retain=changed(RETAIN))
    expected, result = (unlearn(tiny_net(), method, request) for request in (small_request(), odd))
    for name, value in expected.state_dict().items():
        assert torch.equal(value, result.state_dict()[name]), name


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ((torch.rand(2, 1, 6, 6), torch.tensor([0, 4])), "has the label 4, but the model has classes 0 to 3"),
        ((torch.rand(2, 1, 6, 6), torch.tensor([0, -1])), "has the label -1, but the model has classes 0 to 3"),
        ((torch.rand(2, 1, 6, 6), torch.tensor([0.0, 1.0])), "labels of a batch are torch.float32 of shape"),
        ((torch.rand(2, 1, 6, 6), torch.tensor([0, 1]), torch.arange(2)), "has 3 parts; pass pairs"),
        ((torch.rand(2, 1, 6, 6), torch.tensor([0, 1, 3])), "has images of shape"),
    ],
)
@pytest.mark.parametrize("method", ["finetune", "ssd", "unsir"])
def test_other_batches_are_one_sentence(method: str, batch: tuple[torch.Tensor, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        unlearn(tiny_net(), method, small_request(retain=[batch]))


def test_own_batches_keep_their_length_and_order() -> None:
    labels = torch.arange(12) % 3
    own = DataLoader(TensorDataset(torch.arange(12.0), labels), batch_size=5, shuffle=True)
    plain, checked = (as_epochs(source, RUN) for source in (own, Images(own).training(RUN, batch_size=8)))
    assert len(checked) == len(plain) == 3
    for number in (0, 1, 0):
        first, second = list(plain.epoch(number)), list(checked.epoch(number))
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one[0], other[0])
    loader = Images(split_of(20)).training(RUN, batch_size=8)
    assert Images(loader).training(RUN, batch_size=8) is loader, "ours are not looked at"


def test_batches_without_a_length_are_refused_for_training() -> None:
    class Endless:
        def __iter__(self) -> Iterator[Batch]:
            return iter(RETAIN)

    with pytest.raises(UsageError, match="batches with a length"):
        unlearn(tiny_net(), "finetune", small_request(retain=Endless()))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("alone", "expected"), [(True, [8, 8, 1]), (False, [8, 8])])
def test_a_sample_may_leave_a_single_last_image_out(own: bool, alone: bool, expected: list[int]) -> None:
    split = split_of(17)
    source = [(torch.from_numpy(split.images), torch.from_numpy(split.labels))] if own else split
    taken = Images(source).sample(17, RUN, batch_size=8, alone=alone)
    assert [len(labels) for _, labels in taken] == expected


def images_of(*labels: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.rand(len(labels), 1, 6, 6), torch.tensor(labels))]


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("delete", {"forget": images_of(2, 3)}, "The images to forget contain class 3, but the request forgets only 2"),
        ("finetune", {"retain": images_of(0, 2)}, "The images to retain contain class 2, which is to be forgotten"),
        (
            "delete",
            {"forget": [(torch.rand(2, 1, 6, 6), torch.zeros(2, 6, 6, dtype=torch.long))]},
            "one label per image",
        ),
        ("delete", {"forget": [(torch.rand(0, 1, 6, 6), torch.zeros(0, dtype=torch.long))]}, "A batch has no images"),
    ],
)
def test_own_batches_that_contradict_the_request_are_told(method: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        unlearn(tiny_net(), method, small_request(**changes), steps=1)


@pytest.mark.parametrize(("method", "need"), [("boundary-shrink", "forget"), ("unsir", "retain"), ("delete", "forget")])
def test_a_loader_without_batches_is_told(method: str, need: str) -> None:
    with pytest.raises(UsageError, match=r"no batches|no images|batches are empty"):
        unlearn(tiny_net(), method, small_request(**{need: []}), steps=1)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Batch]:
        yield from images_of(0, 1)


class Counting(DataLoader):  # type: ignore[type-arg]
    """Somebody's loader that counts its epochs."""

    epoch = 0


def test_loaders_of_other_kinds() -> None:
    stream = DataLoader(Stream(), batch_size=None)
    with pytest.raises(UsageError, match="batches with a length"):
        unlearn(tiny_net(), "finetune", small_request(retain=stream), steps=1)
    pairs = [(image, label) for images, labels in RETAIN for image, label in zip(images, labels, strict=True)]
    counting = Counting(pairs, batch_size=6)
    assert len(losses(unlearn(tiny_net(), "finetune", small_request(retain=counting), epochs=1))) == 3


def test_a_batch_of_one_image_is_too_small_for_batch_norm() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5))
            self.head = nn.Linear(5, 4)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.body(images))

    with pytest.raises(UsageError, match="BatchNorm cannot train on a batch of a single image"):
        pour.unlearn(
            Flat().eval(),
            small_request(retain=images_of(0)),
            method="finetune",
            head="head",
            steps=1,
            device="cpu",
            progress=False,
        )


def test_options_without_an_effect_on_own_batches_are_told_and_not_recorded() -> None:
    with pytest.warns(UserWarning, match="batch_size has no effect on delete, because your own batches are used"):
        result = unlearn(tiny_net(), "delete", steps=1, batch_size=3)
    options = pour.history(result)[-1].options
    assert options["batch_size"] is None
    assert options["augment"] is None
    split = ImageSplit(np.zeros((6, 6, 6, 1), np.uint8), np.full(6, 2))
    plain = unlearn(tiny_net(), "delete", small_request(forget=split), steps=1, batch_size=3)
    assert pour.history(plain)[-1].options["batch_size"] == 3
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="batch_size has no effect")
        regrouped = unlearn(tiny_net(), "unsir", batch_size=3)
    assert pour.history(regrouped)[-1].options["batch_size"] == 3, "it makes batches of its own"


def test_weights_in_several_precisions_are_told() -> None:
    model = tiny_net()
    model[0].half()
    with pytest.raises(UsageError, match=r"weights in torch\.float16 and torch\.float32; bring it to one precision"):
        unlearn(model, "delete", steps=1)
