"""Datasets of torchvision are data of pour."""

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Subset

import pour
from pour._torchvision import torchvision_works
from pour.data.samples import DatasetSamples

if not torchvision_works():
    pytest.skip("needs torchvision", allow_module_level=True)
from torchvision.datasets import CIFAR10, ImageFolder


@pytest.fixture
def folder(tmp_path):
    for name, count in (("ant", 10), ("bee", 5), ("cat", 5)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.new("RGB", (6, 6), (i, 0, 0)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_a_torchvision_folder_is_divided_as_pour_divides_a_folder(folder):
    data = ImageFolder(str(folder))
    data.loader = lambda path: pytest.fail("The labels are in the list of files.")
    splits = pour.Splits.of(data, forget=["bee"])
    assert splits.classes == ("ant", "bee", "cat")
    assert (len(splits.retain_train), len(splits.retain_test), len(splits.forget_test)) == (12, 3, 1)
    data.loader = ImageFolder(str(folder)).loader
    ours = pour.load_dataset(f"folder:{folder}")
    for name, part in (("train", splits.train), ("test", splits.test)):
        np.testing.assert_array_equal(part.whole.images, ours.splits[name].images)
        assert part.whole.labels.tolist() == ours.splits[name].labels.tolist()


def test_labels_in_a_list_are_believed_only_where_nothing_can_change_them(folder):
    class Others(ImageFolder):
        def __getitem__(self, i):
            image, label = super().__getitem__(i)
            return image, 2 - label

    plain, swapped = ImageFolder(str(folder)), ImageFolder(str(folder), target_transform=lambda label: 2 - label)
    assert DatasetSamples(plain).knows_labels
    assert DatasetSamples(Subset(plain, [14, 0])).labels.tolist() == [1, 0]
    for data in (swapped, Others(str(folder))):
        samples = DatasetSamples(data)
        assert not samples.knows_labels
        assert samples.labels.tolist() == [2] * 10 + [1] * 5 + [0] * 5
    assert CIFAR10.__getitem__.__module__.startswith("torchvision.datasets.")
