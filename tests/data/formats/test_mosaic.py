import json
import sys

import numpy as np
import pytest
from PIL import Image
from tiny_archives import random_images, write_mosaic

from pour.data.dataset import ImageSplit
from pour.data.formats.mosaic import read_class_names, read_mosaic
from pour.errors import UsageError


def some(n, channels=3):
    return ImageSplit(random_images(n, side=5, channels=channels), np.arange(n, dtype=np.int64) % 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", [1, 50, 51, 249])
def test_images_come_back_to_the_bit_and_in_order(tmp_path, n, channels):
    split = some(n, channels)
    read = read_mosaic(write_mosaic(tmp_path, {"train": split}))["train"]
    np.testing.assert_array_equal(read.images, split.images)
    np.testing.assert_array_equal(read.labels, split.labels)


def test_a_missing_page_is_one_sentence(tmp_path):
    write_mosaic(tmp_path, {"train": some(249)})
    (tmp_path / "train_01.webp").unlink()
    with pytest.raises(UsageError, match="150 train images in 2 mosaics for 249 labels"):
        read_mosaic(tmp_path)
    for page in tmp_path.glob("*.webp"):
        page.unlink()
    with pytest.raises(UsageError, match="no mosaic named train_00"):
        read_mosaic(tmp_path)


def test_labels_of_another_set_are_one_sentence(tmp_path):
    write_mosaic(tmp_path, {"train": some(249)})
    np.save(tmp_path / "train_labels.npy", np.zeros(150, np.uint8))
    with pytest.raises(UsageError, match="for 150 labels"):
        read_mosaic(tmp_path)


@pytest.mark.parametrize("kept", [0, 10, 0.5])
def test_a_truncated_page_is_one_sentence(tmp_path, kept):
    write_mosaic(tmp_path, {"train": some(100)})
    page = tmp_path / "train_00.webp"
    data = page.read_bytes()
    page.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(UsageError, match=r"train_00.webp is not a readable image"):
        read_mosaic(tmp_path)


def test_truncated_labels_are_one_sentence(tmp_path):
    write_mosaic(tmp_path, {"train": some(100)})
    file = tmp_path / "train_labels.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"train_labels.npy is truncated or damaged"):
        read_mosaic(tmp_path)


def test_a_picture_that_is_no_mosaic_is_one_sentence(tmp_path):
    write_mosaic(tmp_path, {"train": some(50)})
    Image.new("RGB", (249, 5)).save(tmp_path / "train_00.webp", lossless=True)
    with pytest.raises(UsageError, match="249 x 5 pixels, which is not 50 square images"):
        read_mosaic(tmp_path)


def test_class_names(tmp_path):
    assert read_class_names(tmp_path) is None
    (tmp_path / "classes.json").write_text(json.dumps(["a", "b"]))
    assert read_class_names(tmp_path) == ("a", "b")
    for wrong in ("[1]", "{}", "[", '"ab"'):
        (tmp_path / "classes.json").write_text(wrong)
        with pytest.raises(UsageError, match=r"classes.json"):
            read_class_names(tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    write_mosaic(tmp_path, {"train": some(50)})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r'pip install "pour-unlearning\[report\]"'):
        read_mosaic(tmp_path)
