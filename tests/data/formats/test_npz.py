import numpy as np
import pytest
from tiny_archives import random_images, write_mosaic

from pour.data import load_dataset
from pour.data.dataset import ImageSplit
from pour.data.formats.medmnist import MEDMNIST, find_medmnist, read_medmnist
from pour.data.formats.npz import read_npz_dataset
from pour.errors import UsageError


def plain(n_train=6, n_test=3, **more):
    return {
        "train_x": random_images(n_train, 4),
        "train_y": np.arange(n_train) % 3,
        "test_x": random_images(n_test, 4, seed=1),
        "test_y": np.arange(n_test) % 3,
    } | more


def medical(name, grey=False):
    classes = len(MEDMNIST[name].classes)
    arrays = {}
    for seed, split in enumerate(("train", "val", "test")):
        images = random_images(classes * (seed + 1), 28, 1 if grey else 3, seed)
        arrays[f"{split}_images"] = images[..., 0] if grey else images
        arrays[f"{split}_labels"] = (np.arange(len(images)) % classes).astype(np.uint8)[:, None]
    return arrays


def test_the_four_arrays_are_a_dataset(tmp_path):
    arrays = plain(external_x=random_images(2, 4), external_y=np.array([0, 2]))
    np.savez(tmp_path / "mine.npz", **arrays)
    data = load_dataset(str(tmp_path / "mine.npz"))
    assert (data.name, data.classes, list(data.splits)) == ("mine", ("0", "1", "2"), ["train", "test", "external"])
    np.testing.assert_array_equal(data.splits["train"].images, arrays["train_x"])
    np.testing.assert_array_equal(data.splits["external"].labels, [0, 2])


@pytest.mark.parametrize("stored", [np.array(["é", "b", "c"]), np.array(["é".encode(), b"b", b"c"])])
def test_class_names_can_be_stored_along(tmp_path, stored):
    np.savez(tmp_path / "mine.npz", **plain(), classes=stored)
    assert read_npz_dataset(tmp_path / "mine.npz").classes == ("é", "b", "c")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"train_x": random_images(3, 4)}, "train_x but not train_y"),
        ({"a": np.zeros(3)}, "must contain train_x, train_y, test_x and test_y .*it contains a"),
        ({}, "it contains nothing"),
        (plain(train_y=np.arange(5)), "train split.*6 images but 5 labels"),
        (plain(train_y=np.zeros((6, 14), np.int64)), "several per image"),
        (plain(train_y=np.array(3)), "train labels .* have shape"),
        (plain(test_x=random_images(3, 4).astype(np.float32)), "test split.*uint8"),
        (plain(test_x=random_images(3, 4).transpose(0, 3, 1, 2)), "transpose"),
        (plain(classes=np.array(["a", "b"])), "label 2, but labels must be 0 to 1"),
        (plain(classes=np.array(["a", "b", "c", "d"])), "no training images of 'd'"),
        (plain(classes=np.array([1, 2, 3])), "list of strings"),
        (plain(train_y=np.array([0, 1, -1, 0, 1, 2])), "label -1"),
    ],
)
def test_wrong_arrays_are_one_sentence(tmp_path, arrays, words):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(UsageError, match=words):
        load_dataset(str(tmp_path / "mine.npz"))


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "mine.npz", **plain(classes=np.array(["a", print], object)))
    with pytest.raises(UsageError, match="refused because it contains pickled objects"):
        load_dataset(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize("kept", [0, 1, 200, 0.5, -1])
def test_a_truncated_file_is_one_sentence(tmp_path, kept):
    file = tmp_path / "mine.npz"
    np.savez(file, **plain())
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(UsageError, match=r"truncated or damaged|pickled objects"):
        load_dataset(str(file))


@pytest.mark.parametrize("compressed", [False, True])
def test_an_altered_file_is_one_sentence(tmp_path, compressed):
    file = tmp_path / "mine.npz"
    (np.savez_compressed if compressed else np.savez)(file, **plain())
    data = bytearray(file.read_bytes())
    data[250] ^= 1
    file.write_bytes(data)
    with pytest.raises(UsageError, match="truncated or damaged"):
        load_dataset(str(file))


def test_a_name_that_only_begins_like_a_known_one_is_the_users_own(tmp_path):
    np.savez(tmp_path / "cifar10_mine.npz", **plain())
    assert load_dataset(str(tmp_path / "cifar10_mine.npz")).classes == ("0", "1", "2")


def test_one_array_is_not_a_dataset(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(UsageError, match=r"one.npz"):
        load_dataset(str(tmp_path / "one.npz"))
    with pytest.raises(UsageError, match="There is no file"):
        load_dataset(str(tmp_path / "none.npz"))


@pytest.mark.parametrize("name", MEDMNIST)
def test_every_medmnist_set_is_read_with_its_names(tmp_path, name):
    grey = name not in ("pathmnist", "dermamnist", "retinamnist", "bloodmnist")
    arrays = medical(name, grey)
    np.savez(tmp_path / f"{name}.npz", **arrays)
    assert find_medmnist(tmp_path, name) == tmp_path / f"{name}.npz"
    data = load_dataset(name, tmp_path)
    assert data.image_shape == (28, 28, 1 if grey else 3)
    assert data.classes == MEDMNIST[name].classes
    assert not any("," in label for label in data.classes)
    test, extra = ("val", "test") if name == "pathmnist" else ("test", "val")
    kept = "external" if name == "pathmnist" else "val"
    assert list(data.splits) == ["train", "test", kept]
    for ours, theirs in (("test", test), (kept, extra)):
        np.testing.assert_array_equal(
            data.splits[ours].images.reshape(-1, 28 * 28), arrays[f"{theirs}_images"].reshape(-1, 28 * 28)
        )
        np.testing.assert_array_equal(data.splits[ours].labels, arrays[f"{theirs}_labels"][:, 0])


def test_a_larger_version_and_a_folder_of_mosaics_keep_the_meaning_of_the_splits(tmp_path):
    arrays = medical("pathmnist")
    np.savez(tmp_path / "pathmnist_64.npz", **arrays)
    large = load_dataset(str(tmp_path / "pathmnist_64.npz"))
    splits = {
        split: ImageSplit(arrays[f"{split}_images"], arrays[f"{split}_labels"][:, 0])
        for split in ("train", "val", "test")
    }
    folder = write_mosaic(tmp_path / "pathmnist", splits)
    assert find_medmnist(tmp_path, "pathmnist") == folder
    packed = read_medmnist(folder, "pathmnist")
    for split in ("train", "test", "external"):
        np.testing.assert_array_equal(packed.splits[split].images, large.splits[split].images)


def test_pathmnist_without_its_internal_test_is_refused(tmp_path):
    arrays = {key: value for key, value in medical("pathmnist").items() if not key.startswith("val")}
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    with pytest.raises(UsageError, match="no val images"):
        load_dataset("pathmnist", tmp_path)


def test_chestmnist_is_refused_with_the_reason(tmp_path):
    np.savez(tmp_path / "chestmnist.npz", **plain())
    for name in ("chestmnist", str(tmp_path / "chestmnist.npz")):
        with pytest.raises(UsageError, match="several labels each"):
            load_dataset(name, tmp_path)
