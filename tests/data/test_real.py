"""The real datasets, where they are."""

import functools
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pour.data import Splits, list_datasets, load_dataset, load_segmentation
from pour.data.formats.mosaic import is_mosaic

pytestmark = pytest.mark.data

ROOT = Path(os.environ.get("POUR_DATA", "/nowhere"))
PRESENT = {status.info.name: status.path for status in list_datasets(ROOT) if status.present}


@functools.cache
def opened(name):
    return load_dataset(name, ROOT)


def needs(name):
    return pytest.mark.skipif(name not in PRESENT, reason=f"{name} is not under POUR_DATA")


@pytest.mark.parametrize(
    ("name", "classes"), [pytest.param(name, n, marks=needs(name)) for name, n in (("cifar10", 10), ("cifar100", 100))]
)
def test_cifar_has_its_sizes(name, classes):
    data = opened(name)
    assert data.image_shape == (32, 32, 3)
    assert data.num_classes == classes
    assert np.bincount(data.splits["train"].labels).tolist() == [50_000 // classes] * classes
    assert np.bincount(data.splits["test"].labels).tolist() == [10_000 // classes] * classes
    splits = Splits.of(data, forget=[data.classes[0]])
    assert len(splits.forget_train) == 50_000 // classes
    assert len(splits.retain_test) == 10_000 - 10_000 // classes


@needs("cifar10")
def test_cifar10_looks_like_cifar10():
    data = opened("cifar10")
    mean = data.splits["train"].images.mean(axis=(0, 1, 2), dtype=np.float64) / 255
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=1e-4)
    np.testing.assert_array_equal(data.splits["train"].labels[:5], [6, 9, 9, 4, 1])
    np.testing.assert_array_equal(data.splits["test"].labels[:5], [3, 8, 8, 0, 6])


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs(n)) for n in ("cifar10", "cifar100", "pathmnist")])
def test_mosaics_are_cut_where_they_should_be(name):
    folder = PRESENT[name]
    if not is_mosaic(folder):
        pytest.skip(f"{name} is not stored as mosaics here")
    data = opened(name)
    split = data.splits["train"]
    side, per_page = data.image_shape[0], None
    start = 0
    for page in sorted(folder.glob("train_*.webp"))[:3]:
        pixels = np.asarray(Image.open(page).convert("RGB"))
        per_page = (pixels.shape[0] // side) * 50
        for i in (0, 1, 49, 50, 777, per_page - 1):
            y, x = side * (i // 50), side * (i % 50)
            np.testing.assert_array_equal(split.images[start + i], pixels[y : y + side, x : x + side])
        start += per_page


@needs("pathmnist")
def test_pathmnist_has_an_external_test_set():
    data = opened("pathmnist")
    assert data.image_shape == (28, 28, 3)
    assert data.classes[0] == "adipose"
    assert len(data.splits["external"]) == 7180
    assert np.bincount(data.splits["external"].labels)[0] == 1338


@needs("camvid")
def test_camvid_has_its_sizes_and_labels():
    data = load_segmentation("camvid", ROOT)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 367, "val": 101, "test": 233}
    assert (data.void, data.num_classes) == (11, 11)
    seen = np.zeros(12, int)
    for i in range(0, 367, 40):
        image, mask = data.splits["train"].read(i)
        assert image.shape[:2] == mask.shape
        seen += np.bincount(mask.ravel(), minlength=12)
    assert (seen > 0).sum() >= 10
