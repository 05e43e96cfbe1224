"""Torch datasets and loaders are read as the images of pour are."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from pour.data import ImageSplit, Splits
from pour.data.samples import DatasetSamples, as_samples, first_batch, is_indexed
from pour.data.scenes import Scenes
from pour.errors import UsageError


class Pictures(Dataset):
    """PIL images whose brightness is their index."""

    classes = ("ant", "bee", "cat")

    def __init__(self, count=9):
        self.reads = 0
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.reads += 1
        return Image.new("RGB", (4, 6), (i, i, i)), i % 3


def test_pictures_become_bytes_and_tensors_stay():
    samples = DatasetSamples(Pictures())
    images, labels = next(iter(samples.batches(4, "cpu")))
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (4, 3, 6, 4))
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert labels.tolist() == [0, 1, 2, 0]
    assert samples.images.shape == (9, 6, 4, 3)
    floats = torch.randn(5, 3, 2, 2)
    given, _ = next(iter(DatasetSamples(TensorDataset(floats, torch.arange(5))).batches(5, "cpu")))
    assert torch.equal(given, floats)
    with pytest.raises(UsageError, match=r"has torch.float32 inputs"):
        _ = DatasetSamples(TensorDataset(floats, torch.arange(5))).images


def test_a_shuffled_epoch_has_every_sample_once_and_depends_on_the_seed_alone():
    samples = DatasetSamples(Pictures())
    orders = [
        torch.cat([images[:, 0, 0, 0] for images, _ in samples.batches(4, "cpu", seed=seed, shuffle=True)]).tolist()
        for seed in (0, 0, 1)
    ]
    assert sorted(orders[0]) == list(range(9))
    assert orders[0] == orders[1] != orders[2]
    assert len(list(samples.batches(4, "cpu", drop_last=True))) == 2


def test_rows_are_chosen_without_reading():
    data = Pictures()
    samples = DatasetSamples(data)
    chosen = samples.take(np.array([5, 1]))
    assert data.reads == 0
    assert chosen.labels.tolist() == [2, 1]
    assert samples.without([0]).labels.tolist() == [1, 2] * 3


def test_splits_of_torch_datasets():
    data = Pictures()
    splits = Splits.of({"train": data, "test": Pictures(6), "external": Pictures(3)}, forget=["cat"])
    assert splits.classes == ("ant", "bee", "cat")
    assert (len(splits.forget_train), len(splits.retain_test), len(splits.extra["external"].forget)) == (3, 4, 1)
    assert splits.forget_train.labels.tolist() == [2, 2, 2]
    held = splits.holdout(0.3, seed=0)
    assert len(held.validation.whole) == 3
    assert len(held.train.whole) == 6
    named = Splits.of({"train": data, "test": data}, forget=["c"], classes=["a", "b", "c"])
    assert named.forgotten_names == ("c",)


def test_splits_need_an_index():
    data = Pictures()
    with pytest.raises(UsageError, match="test split is a DataLoader, whose samples have no index"):
        Splits.of({"train": data, "test": DataLoader(data)}, forget=[0])
    with pytest.raises(UsageError, match="have no test split"):
        Splits.of({"train": data}, forget=[0])


def test_which_data_have_an_index():
    split = ImageSplit(np.zeros((2, 4, 4, 1), np.uint8), np.array([0, 1]))
    scenes = Scenes(np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 4, 4), np.uint8), 2)
    assert all(as_samples(samples) is samples for samples in (split, scenes))
    assert isinstance(as_samples(Pictures()), DatasetSamples)
    loader = DataLoader(Pictures())
    assert as_samples(loader) is loader
    assert not is_indexed(loader)
    with pytest.raises(UsageError, match="can be read only once"):
        as_samples(iter([]))
    with pytest.raises(UsageError, match="not a int"):
        as_samples(3)


def test_looking_at_the_first_batch_changes_no_later_reading():
    data = TensorDataset(torch.arange(20.0)[:, None], torch.zeros(20, dtype=torch.int64))
    generator = torch.Generator()
    loader = DataLoader(data, batch_size=5, sampler=RandomSampler(data, generator=generator))

    def read(look: bool) -> list[float]:
        generator.manual_seed(0)
        torch.manual_seed(0)
        if look:
            first_batch(loader, 2)
        return torch.cat([inputs for inputs, _ in loader]).flatten().tolist()

    assert read(look=True) == read(look=False)
    assert len(first_batch(loader, 2)[0]) == 2


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (("text", 0), "must be a tensor, an image or a uint8 array, not a str"),
        ((torch.zeros(3, 2, 2), 0.5), "labels of a dataset must be whole numbers"),
        (torch.zeros(3), "A sample of a dataset has the type Tensor; pass pairs of images and labels"),
    ],
)
def test_odd_samples_are_refused(item, words):
    class Odd(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, i):
            return item

    with pytest.raises(UsageError, match=words):
        next(iter(DatasetSamples(Odd()).batches(1, "cpu")))
