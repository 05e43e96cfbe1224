"""A batch is a pair of images and labels, in a tuple or in fields with the usual names."""

import dataclasses
from collections import UserDict, namedtuple

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import pour
from pour.data.samples import DatasetSamples, as_batches, as_samples, checked_batch, first_batch, is_indexed
from pour.errors import UsageError

IMAGES, LABELS = torch.rand(4, 3, 6, 6), torch.tensor([0, 1, 2, 0])


@dataclasses.dataclass
class Data:
    image: torch.Tensor
    target: torch.Tensor


Named = namedtuple("Named", ["x", "y"])
Odd = namedtuple("Odd", ["left", "right"])


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGES, LABELS),
        [IMAGES, LABELS.tolist()],
        {"pixel_values": IMAGES, "labels": LABELS},
        UserDict(image=[object()], pixel_values=IMAGES, label=LABELS, path=["a", "b"]),
        Data(IMAGES, LABELS),
        Named(IMAGES, LABELS),
        Odd(IMAGES, LABELS),
        ({"pixel_values": IMAGES}, LABELS),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_what_a_batch_may_be(batch):
    images, labels = checked_batch(batch)
    assert images is IMAGES
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (IMAGES, "A batch has the type Tensor; pass pairs of images and labels, or dictionaries with pixel_values"),
        ((IMAGES, LABELS, LABELS), "A batch has 3 parts; pass pairs"),
        ({"picture": IMAGES, "labels": LABELS}, r"fields picture, labels, none of which is known for images"),
        ({"pixel_values": IMAGES}, r"fields pixel_values, none of which is known for labels \(labels, label"),
        ({"pixel_values": IMAGES, "labels": LABELS, "pixel_mask": LABELS}, "has pixel_mask, and the model gets the im"),
        (([Image.new("RGB", (2, 2))], [0]), "must be a tensor, not a list; stack them in the loader's collate"),
        ((IMAGES, ["cat"] * 4), r"labels of a batch are no numbers \(list\); pass the index of each class"),
        ((IMAGES[0], 2), "yield single samples, not batches; wrap them in torch.utils.data.DataLoader"),
        ((IMAGES, LABELS[:2]), r"images of shape \(4, 3, 6, 6\) and labels of shape \(2,\); pass one label"),
    ],
)
def test_other_batches_are_one_sentence(batch, words):
    with pytest.raises(UsageError, match=words):
        checked_batch(batch)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (IMAGES, "a Tensor alone is neither a dataset nor a loader; pass torch.utils.data.TensorDataset"),
        ((IMAGES, LABELS), r"a pair of tensors; pass torch.utils.data.TensorDataset\(images, labels\)"),
        ({"pixel_values": IMAGES, "labels": LABELS}, "one batch, not a loader of batches; put it into a list"),
        ("images", "a str alone is neither a dataset nor a loader"),
        (type("Short", (Dataset,), {"__getitem__": lambda self, i: (IMAGES[0], 0)})(), "dataset Short has no length"),
    ],
)
def test_what_is_no_data(data, words):
    with pytest.raises(UsageError, match=words):
        as_samples(data)


class Rows(Dataset):
    """Samples with fields, as a dataset of Hugging Face gives them, and the number of readings."""

    def __init__(self, count=12):
        self.count, self.reads = count, 0
        label = type("ClassLabel", (), {"names": ["ant", "bee", "cat"]})()
        self.features = {"image": object(), "label": label}

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.reads += 1
        return {"image": Image.new("RGB", (6, 4), (i, i, i)), "label": i % 3}


class Stream(IterableDataset):
    """Samples without an index, although with a length."""

    def __len__(self):
        return 4

    def __iter__(self):
        return iter(zip(IMAGES, LABELS, strict=True))


def test_a_dataset_of_dictionaries_has_an_index_and_class_names():
    data = Rows()
    splits = pour.Splits.of({"train": data, "test": Rows(3)}, forget=["bee"])
    assert splits.classes == ("ant", "bee", "cat")
    images, labels = next(iter(splits.forget_train.batches(8, "cpu")))
    assert images[:, 0, 0, 0].tolist() == [1, 4, 7, 10]
    assert set(labels.tolist()) == {1}


def test_labels_that_batches_had_are_not_read_again():
    data = Rows()
    samples = DatasetSamples(data)
    assert not samples.knows_labels
    list(samples.batches(5, "cpu"))
    assert samples.knows_labels
    assert samples.labels.tolist() == [0, 1, 2] * 4
    assert data.reads == 12


def test_streams_are_read_as_batches_alone():
    assert not is_indexed(as_samples(Stream()))
    images, _ = first_batch(as_samples(DataLoader(Stream(), batch_size=3)), 2)
    assert torch.equal(images, IMAGES[:2])
    with pytest.raises(UsageError, match="single samples, not batches"):
        first_batch(as_samples(Stream()), 2)


def test_any_data_can_be_read_in_batches():
    data = TensorDataset(IMAGES, LABELS)
    for given in (data, DataLoader(data, batch_size=3), iter([(IMAGES, LABELS)]), [{"image": IMAGES, "y": LABELS}]):
        parts = list(as_batches(given, 3))
        assert torch.equal(torch.cat([images for images, _ in parts]), IMAGES)
        assert torch.cat([labels for _, labels in parts]).tolist() == LABELS.tolist()


def test_one_dataset_is_divided_by_position_and_a_loader_is_not():
    data = TensorDataset(torch.rand(30, 3, 2, 2), torch.arange(30) % 3)
    splits = pour.Splits.of(data, forget=[1])
    assert (len(splits.forget_train), len(splits.forget_test)) == (8, 2)
    assert pour.Splits.of(data, forget=[1]).test.whole.rows.tolist() == splits.test.whole.rows.tolist()
    with pytest.raises(UsageError, match="A DataLoader cannot be divided into training and test samples; pass datase"):
        pour.Splits.of(DataLoader(data), forget=[1])
    with pytest.raises(UsageError, match="fewer than 5 samples"):
        pour.Splits.of(Subset(data, range(4)), forget=[1])
