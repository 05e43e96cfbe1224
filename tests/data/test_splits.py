import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.data import ImageDataset, ImageSplit, Splits
from pour.errors import UsageError


def rows(split):
    return split.images.reshape(len(split), -1).tolist()


@pytest.mark.parametrize("forget", [[1, 3], ["bee", "dog"], ("bee", 3)])
def test_forget_and_retain_are_a_partition_by_class(small, forget):
    splits = Splits.of(small, forget)
    assert splits.forgotten == (1, 3)
    assert splits.forgotten_names == ("bee", "dog")
    assert (splits.name, splits.classes, splits.num_classes) == ("small", small.classes, 4)
    for name, forgotten, retained in (
        ("train", splits.forget_train, splits.retain_train),
        ("test", splits.forget_test, splits.retain_test),
        ("external", splits.extra["external"].forget, splits.extra["external"].retain),
    ):
        whole = small.splits[name]
        gone = [label in (1, 3) for label in whole.labels]
        np.testing.assert_array_equal(forgotten.images, whole.images[gone])
        np.testing.assert_array_equal(forgotten.labels, whole.labels[gone])
        np.testing.assert_array_equal(retained.images, whole.images[np.logical_not(gone)])
        np.testing.assert_array_equal(retained.labels, whole.labels[np.logical_not(gone)])


def test_an_extra_set_may_lack_the_class(small):
    part = Splits.of(small, "bee").extra["external"]
    assert (len(part.forget), len(part.retain)) == (0, 15)


def test_no_image_is_copied(small):
    splits = Splits.of(small, [0]).holdout(0.2, seed=0)
    for split in (splits.forget_train, splits.retain_train, splits.validation.retain):
        assert split.source is small.splits["train"].images


@pytest.mark.parametrize(
    ("forget", "words"),
    [
        ([], "empty"),
        (["cow"], "cow"),
        ([4], "out of range"),
        ([0, 1, 2], "leave one class"),
        ([0, "ant"], "more than once"),
    ],
)
def test_impossible_requests_are_one_sentence(small, forget, words):
    with pytest.raises(UsageError, match=words):
        Splits.of(small, forget)


def test_draws_depend_on_the_seed_alone(small):
    splits = Splits.of(small, [3])
    assert rows(splits.holdout(0.3, seed=1).retain_train) == rows(splits.holdout(0.3, seed=1).retain_train)
    assert rows(splits.holdout(0.3, seed=1).retain_train) != rows(splits.holdout(0.3, seed=2).retain_train)


def test_holdout_divides_training_and_leaves_testing_alone(small):
    splits = Splits.of(small, [2])
    held = splits.holdout(0.2, seed=0)
    assert splits.validation is None
    assert np.bincount(held.validation.whole.labels).tolist() == [8, 6, 4, 2]
    assert (len(held.validation.forget), len(held.forget_train)) == (4, 16)
    both = rows(held.train.whole) + rows(held.validation.whole)
    assert sorted(both) == sorted(rows(splits.train.whole))
    assert held.test is splits.test


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_a_share_outside_of_0_to_1_is_refused(small, fraction):
    with pytest.raises(UsageError, match="between 0 and 1"):
        Splits.of(small, [2]).holdout(fraction, seed=0)


def test_holding_out_needs_two_images_of_each_class():
    split = ImageSplit(np.zeros((7, 4, 4, 1), np.uint8), np.array([0, 0, 0, 1, 1, 1, 2]))
    data = ImageDataset("d", ("a", "b", "c"), {"train": split, "test": split})
    with pytest.raises(UsageError, match="'c' has 1 training image"):
        Splits.of(data, "a").holdout(0.5, seed=0)


@given(
    counts=st.lists(st.integers(1, 30), min_size=3, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 3),
)
@settings(deadline=None, max_examples=100)
def test_held_out_images_are_exact_stratified_and_without_repeats(counts, fraction, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    images = np.zeros((len(labels), 1, 2, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(labels))
    split = ImageSplit(images, labels)
    data = ImageDataset("d", tuple("abcdef"[: len(counts)]), {"train": split, "test": split})
    splits = Splits.of(data, [0])
    if min(counts) >= 2:
        held = splits.holdout(fraction, seed)
        both = [*held.train.whole.images[:, 0, 0, 0].tolist(), *held.validation.whole.images[:, 0, 0, 0].tolist()]
        assert sorted(both) == list(range(len(labels)))
        per_class = np.bincount(held.validation.whole.labels, minlength=len(counts))
        assert (per_class >= 1).all()
        assert (per_class < counts).all()
        assert (np.abs(per_class - np.array(counts) * fraction) <= 1).all()
