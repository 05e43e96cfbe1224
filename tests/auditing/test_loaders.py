"""Audits of a user's own datasets and loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import pour
from pour.auditing import audit
from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def datasets(digits: pour.ImageDataset) -> dict[str, TensorDataset]:
    """The digits as tensors in [0, 1]."""
    return {
        name: TensorDataset(
            torch.from_numpy(np.ascontiguousarray(split.images.transpose(0, 3, 1, 2))) / 255,
            torch.from_numpy(split.labels),
        )
        for name, split in digits.splits.items()
    }


@pytest.fixture(scope="module")
def models(digits_original: nn.Module, digits_retrained: nn.Module) -> dict[str, Any]:
    unlearned = pour.forget(digits_original, classes=["3"])
    return {"original": digits_original, "unlearned": unlearned, "retrained": digits_retrained}


def loaders(datasets: dict[str, TensorDataset], **options: Any) -> dict[str, DataLoader[Any]]:
    return {name: DataLoader(data, batch_size=64, **options) for name, data in datasets.items()}


@pytest.fixture(scope="module")
def ordered(datasets: dict[str, TensorDataset], models: dict[str, Any]) -> pour.AuditReport:
    return audit(**models, data=loaders(datasets), **QUIET)


def test_a_loader_that_shuffles_gives_the_same_readings(
    datasets: dict[str, TensorDataset], models: dict[str, Any], ordered: pour.AuditReport
) -> None:
    shuffled = audit(**models, data=loaders(datasets, shuffle=True), **QUIET)
    assert shuffled.values() == pytest.approx(ordered.values(), abs=1e-6)
    assert shuffled.data == ordered.data
    assert not shuffled.notes
    # All models saw the same images in the same order.
    assert shuffled.value("cka_f_o", "raw") == pytest.approx(1)
    assert shuffled.value("cka_r_o", "raw") == pytest.approx(1)


def test_readings_of_loaders_are_those_of_the_dataset(
    datasets: dict[str, TensorDataset], models: dict[str, Any], ordered: pour.AuditReport, digits: pour.ImageDataset
) -> None:
    assert ordered.data.forgotten == (3,), "the class is in the history of the unlearned model"
    assert ordered.data.classes == digits.classes
    expected = audit(**models, data=digits, **QUIET)
    from_tensors = audit(**models, data=datasets, **QUIET)
    assert from_tensors.values() == pytest.approx(expected.values(), abs=1e-6)
    assert ordered.data.counts == expected.data.counts
    # The attacks and probes depend on the order of the samples.
    for name in ("acc_r", "acc_f", "acc_tr", "cka_f_o", "cka_r_r", "rus_r", "entropy_f", "norm_leak", "nc1_train"):
        assert ordered.value(name) == pytest.approx(expected.value(name), abs=1e-6), name


def test_left_out_samples_are_reported(datasets: dict[str, TensorDataset], models: dict[str, Any]) -> None:
    report = audit(**models, data=loaders(datasets, drop_last=True), **QUIET)
    assert [note.split(",")[0] for note in report.notes] == [
        "the test loader returned 320 of the 355 samples of its dataset",
        "the train loader returned 1",
    ]
    assert sum(report.data.counts["test"]) == 320


class Noisy(Dataset):  # type: ignore[type-arg]
    """Images with other noise at each reading."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image, label = self.data[i]
        return image + 0.01 * torch.rand(image.shape), label


@pytest.mark.parametrize("shuffle", [False, True])
def test_augmentation_is_reported_and_all_models_see_the_same_inputs(
    datasets: dict[str, TensorDataset], models: dict[str, Any], shuffle: bool
) -> None:
    data = {name: DataLoader(Noisy(part), batch_size=64, shuffle=shuffle) for name, part in datasets.items()}
    report = audit(**models, data=data, **QUIET)
    assert [note.split(",")[0] for note in report.notes] == [
        f"the {name} loader returns other inputs in each pass" for name in ("test", "train")
    ]
    assert report.value("cka_r_o", "raw") == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"limit": 60},
            "limit chooses samples by class, which needs samples with an index, but the test loader has none",
        ),
        ({"relearn": True}, "The relearn attack chooses samples by class"),
        ({"layers": True}, "The comparison of layers chooses samples by class"),
        ({"cache": "features"}, "The cache names its files after the samples, which needs samples with an index"),
    ],
)
def test_what_needs_an_index_says_so(
    datasets: dict[str, TensorDataset], models: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        audit(**models, data=loaders(datasets), **options, **QUIET)


def test_a_loader_without_the_class_is_refused(datasets: dict[str, TensorDataset], models: dict[str, Any]) -> None:
    images, labels = datasets["test"].tensors
    data = loaders({**datasets, "test": TensorDataset(images[labels != 3], labels[labels != 3])})
    with pytest.raises(UsageError, match="test split of own data has no image of the forgotten classes"):
        audit(**models, data=data, **QUIET)


def test_splits_are_missing(datasets: dict[str, TensorDataset], models: dict[str, Any]) -> None:
    for name, other in (("test", "train"), ("train", "test")):
        with pytest.raises(UsageError, match=f"The data have no {name} split, only {other}"):
            audit(**models, data={other: datasets[other]}, **QUIET)
    with pytest.raises(UsageError, match=r"a TensorDataset has none; give data=\{\"train\": ..., \"test\": ...\}"):
        audit(**models, data=datasets["test"], **QUIET)
