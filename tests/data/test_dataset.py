import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.data.dataset import ImageDataset, ImageSplit
from pour.errors import UsageError


def images(n: int = 4, shape: tuple[int, ...] = (6, 6, 3)) -> np.ndarray:
    return np.arange(n * int(np.prod(shape)), dtype=np.uint64).astype(np.uint8).reshape(n, *shape)


def split(labels: list[int], shape: tuple[int, ...] = (6, 6, 3)) -> ImageSplit:
    return ImageSplit(images(len(labels), shape), np.array(labels, np.int64))


@pytest.mark.parametrize(
    ("pixels", "labels", "words"),
    [
        (images().astype(np.float32), np.zeros(4, np.int64), "uint8.*float32"),
        (images()[0], np.zeros(6, np.int64), r"shape \(n, height, width, channels\)"),
        (images(4, (3, 6, 6)), np.zeros(4, np.int64), r"transpose\(0, 2, 3, 1\)"),
        (images(4, (6, 6, 4)), np.zeros(4, np.int64), "1 or 3 channels"),
        (images(), np.zeros(5, np.int64), "4 images but 5 labels"),
        (images(), np.zeros((4, 1), np.int64), "one-dimensional"),
        (images(), np.zeros(4), "integers, not a float64"),
        (images(), [0, 0, 0, 0], "not a list"),
        ([1, 2], np.zeros(2, np.int64), "not a list"),
    ],
)
def test_a_split_refuses_what_is_not_images_with_labels(pixels, labels, words):
    with pytest.raises(UsageError, match=words):
        ImageSplit(pixels, labels)


def test_small_integer_labels_become_int64():
    made = ImageSplit(images(), np.array([0, 1, 2, 255], np.uint8))
    assert made.labels.dtype == np.int64
    assert made.labels.tolist() == [0, 1, 2, 255]


@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_taking_twice_is_indexing_twice(data):
    n = data.draw(st.integers(1, 20))
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int64)
    whole = ImageSplit(images(n), labels)
    first = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)), np.int64)
    second = np.array(data.draw(st.lists(st.integers(0, len(first) - 1), max_size=20)), np.int64)
    chosen = whole.take(first).take(second)
    assert chosen.source is whole.source
    np.testing.assert_array_equal(chosen.images, whole.images[first][second])
    np.testing.assert_array_equal(chosen.labels, labels[first][second])
    assert len(chosen) == len(second)


def test_a_split_travels_to_another_process():
    chosen = split([0, 1, 2, 1]).take(np.array([2, 0]))
    copy = pickle.loads(pickle.dumps(chosen))
    np.testing.assert_array_equal(copy.images, chosen.images)
    np.testing.assert_array_equal(copy.labels, chosen.labels)


def test_a_dataset_knows_its_shape_and_puts_train_and_test_first():
    data = ImageDataset("d", ["a", "b"], {"external": split([0]), "test": split([0]), "train": split([0, 1])})
    assert (data.num_classes, data.image_shape, data.classes) == (2, (6, 6, 3), ("a", "b"))
    assert list(data.splits) == ["train", "test", "external"]


@pytest.mark.parametrize(
    ("classes", "splits", "words"),
    [
        (("a", "b"), {"train": split([0, 1])}, "no test split"),
        (("a", "b"), {"test": split([0, 1])}, "no train split"),
        (("a", "b"), {"train": split([0, 1]), "test": split([0], (8, 6, 3))}, "test images.*same"),
        (("a", "b"), {"train": split([0, 1, 2]), "test": split([0])}, "Image 2 of the train split.*label 2.*0 to 1"),
        (("a", "b"), {"train": split([0, 1]), "test": split([0, -1])}, "Image 1 of the test split.*label -1"),
        (("a", "b", "c"), {"train": split([0, 2]), "test": split([1])}, "no training images of 'b'"),
        (tuple("abcdefghij"), {"train": split([0]), "test": split([0])}, "'b', 'c', 'd', 'e', 'f' and 4 more"),
        (("a",), {"train": split([0]), "test": split([0])}, "at least two"),
        (("a", "a"), {"train": split([0, 1]), "test": split([0])}, "two classes named 'a'"),
        (("a", ""), {"train": split([0, 1]), "test": split([0])}, "non-empty"),
    ],
)
def test_a_dataset_refuses_what_does_not_fit_together(classes, splits, words):
    with pytest.raises(UsageError, match=words):
        ImageDataset("d", classes, splits)


def test_rows_may_be_told_by_booleans_and_nothing_else():
    split = ImageSplit(np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8, 1), np.array([3, 1, 3, 0, 3]))
    for part in (split, split.take(np.array([4, 3, 2, 1, 0]))):
        threes = part.take(part.labels == 3)
        assert threes.labels.tolist() == [3, 3, 3]
        assert np.array_equal(threes.images, part.images[part.labels == 3])
    for odd in (np.array([True, False]), np.array([0.0, 1.0])):
        with pytest.raises(UsageError, match="a boolean for each of the 5 images"):
            split.take(odd)
