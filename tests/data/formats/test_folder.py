import os

import numpy as np
import pytest
from PIL import Image
from tiny_archives import random_images

from pour.data import load_dataset
from pour.data.formats.folder import read_folder
from pour.data.formats.image_files import read_pixels
from pour.errors import UsageError


def fill(folder, n, seed=0, side=6, channels=3):
    folder.mkdir(parents=True, exist_ok=True)
    images = random_images(n, side, channels, seed)
    for i, image in enumerate(images):
        Image.fromarray(image[:, :, 0] if channels == 1 else image).save(folder / f"{i:03}.png")
    return images


def test_given_train_and_test_folders_are_kept(tmp_path):
    cats, dogs = fill(tmp_path / "train" / "cat", 3), fill(tmp_path / "train" / "dog", 2, 1)
    seen = fill(tmp_path / "test" / "dog", 2, 2)
    fill(tmp_path / "clinic" / "cat", 1, 3)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    data = load_dataset(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog")
    assert list(data.splits) == ["train", "test", "clinic"]
    np.testing.assert_array_equal(data.splits["train"].images, np.concatenate([cats, dogs]))
    assert data.splits["train"].labels.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_array_equal(data.splits["test"].images, seen)
    assert data.splits["test"].labels.tolist() == [1, 1]


def test_a_fifth_of_each_class_is_set_apart_by_name_alone(tmp_path):
    fill(tmp_path / "a", 20)
    fill(tmp_path / "b", 11, 1)
    fill(tmp_path / "c", 3, 2)
    first, second = read_folder(tmp_path), read_folder(tmp_path)
    assert np.bincount(first.splits["train"].labels).tolist() == [16, 9, 3]
    assert np.bincount(first.splits["test"].labels).tolist() == [4, 2]
    np.testing.assert_array_equal(first.splits["test"].images, second.splits["test"].images)
    together = np.concatenate([split.images for split in first.splits.values()]).reshape(34, -1)
    assert len(np.unique(together, axis=0)) == 34
    fill(tmp_path / "d", 5, 3)
    more = read_folder(tmp_path)
    np.testing.assert_array_equal(more.splits["test"].images[:6], first.splits["test"].images)


def test_grey_images_have_one_channel_and_mixed_ones_three(tmp_path):
    fill(tmp_path / "a", 5, channels=1)
    fill(tmp_path / "b", 5, channels=1)
    assert read_folder(tmp_path).image_shape == (6, 6, 1)
    fill(tmp_path / "c", 5, channels=3)
    assert read_folder(tmp_path).image_shape == (6, 6, 3)


def test_images_of_other_sizes_are_refused_or_scaled(tmp_path):
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5, side=9)
    with pytest.raises(UsageError, match=r"000.png is 6 x 6 pixels but .* is 9 x 9.*@SIZE"):
        load_dataset(f"folder:{tmp_path}")
    data = load_dataset(f"folder:{tmp_path}@8")
    assert data.image_shape == (8, 8, 3)
    with pytest.raises(UsageError, match="at least 1 pixel"):
        load_dataset(f"folder:{tmp_path}@0")


def test_scaling_keeps_the_centre(tmp_path):
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(wide).save(tmp_path / name / f"{i}.png")
    assert (read_folder(tmp_path, size=(4, 4)).splits["train"].images == 200).all()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda root: None, "no folders"),
        (lambda root: fill(root / "a", 5), "at least two"),
        (lambda root: (fill(root / "a", 5), (root / "b").mkdir()), "b has no images"),
        (lambda root: (fill(root / "a", 4), fill(root / "b", 4)), "fewer than 5 images"),
        (lambda root: (fill(root / "train" / "a", 1), fill(root / "train" / "b", 1)), "no folder test"),
        (
            lambda root: [fill(root / s / c, 1) for s in ("train", "test") for c in ("ab" if s == "train" else "ax")],
            "class 'x' that .*train does not have",
        ),
        (
            lambda root: [fill(root / "train" / "a", 1), (root / "train" / "b").mkdir(), (root / "test").mkdir()],
            "b has no images",
        ),
        (
            lambda root: [fill(root / "train" / "a", 1), fill(root / "train" / "b", 1), (root / "test").mkdir()],
            "test has no images",
        ),
    ],
)
def test_wrong_folders_are_one_sentence(tmp_path, build, words):
    build(tmp_path)
    with pytest.raises(UsageError, match=words):
        read_folder(tmp_path)


def test_a_missing_folder_and_a_damaged_image_are_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        load_dataset(f"folder:{tmp_path / 'none'}")
    fill(tmp_path / "a", 5, side=40)
    fill(tmp_path / "b", 5, side=40)
    file = tmp_path / "a" / "002.png"
    file.write_bytes(file.read_bytes()[:2000])
    for size in (None, (8, 8)):
        with pytest.raises(UsageError, match=r"002.png is not a readable image"):
            read_folder(tmp_path, size=size)


@pytest.mark.parametrize(("suffix", "order"), [("png", "<u2"), ("tif", "<u2"), ("tif", ">u2")])
@pytest.mark.parametrize("size", [None, (6, 6)])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, suffix, order, size):
    values = np.linspace(0, 65535, 36).reshape(6, 6).astype(order)
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(values).save(tmp_path / name / f"{i}.{suffix}")
    images = read_folder(tmp_path, size=size).splits["train"].images
    assert images.shape[1:] == (6, 6, 1)
    np.testing.assert_array_equal(images[0, :, :, 0], np.rint(values / 257))
    # Beside an image in colour they are grey images in colour.
    fill(tmp_path / "c", 5)
    coloured = read_folder(tmp_path, size=size).splits["train"].images[0]
    np.testing.assert_array_equal(coloured, np.repeat(images[0], 3, axis=2))


def test_a_16_bit_pgm_is_scaled(tmp_path):
    values = np.linspace(0, 65535, 36).reshape(6, 6).astype(">u2")
    (tmp_path / "a.pgm").write_bytes(b"P5 6 6 65535\n" + values.tobytes())
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.pgm", grey=True)[:, :, 0], np.rint(values / 257))


@pytest.mark.parametrize(("kind", "words"), [(np.int32, "32-bit integers"), (np.float32, "floats")])
@pytest.mark.parametrize("size", [None, (6, 6)])
def test_pixels_of_unknown_range_are_refused(tmp_path, kind, words, size):
    for name in "ab":
        fill(tmp_path / name, 5)
    Image.fromarray(np.arange(36, dtype=kind).reshape(6, 6)).save(tmp_path / "a" / "x.tif")
    with pytest.raises(UsageError, match=rf"x.tif contains {words}, whose range is not known"):
        read_folder(tmp_path, size=size)


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        fill(tmp_path / name, 5)
    assert read_folder(tmp_path).classes == ("bus", "train")


def test_names_that_no_text_can_hold_are_readable(tmp_path):
    odd = os.fsdecode(b"caf\xe9")
    fill(tmp_path / odd, 5)
    fill(tmp_path / "bus", 5)
    dataset = read_folder(tmp_path)
    assert dataset.classes == ("bus", "caf\N{REPLACEMENT CHARACTER}")
    assert len(dataset.splits["train"]) == 8


def test_val_is_the_test_split_where_there_is_no_other(tmp_path):
    for split in ("train", "val"):
        for name in "ab":
            fill(tmp_path / split / name, 3)
    data = read_folder(tmp_path)
    assert {name: len(split.labels) for name, split in data.splits.items()} == {"train": 6, "test": 6}
    for name in "ab":
        fill(tmp_path / "test" / name, 2)
    assert {name: len(split.labels) for name, split in read_folder(tmp_path).splits.items()} == {
        "train": 6,
        "test": 4,
        "val": 6,
    }


def test_all_bad_files_are_named_in_one_error(tmp_path):
    fill(tmp_path / "a", 20, side=40)
    fill(tmp_path / "b", 20, side=40)
    (tmp_path / "a" / "003.png").write_bytes(b"no image")
    cut = tmp_path / "b" / "004.png"
    cut.write_bytes(cut.read_bytes()[:2000])
    Image.fromarray(np.zeros((40, 40), np.float32)).save(tmp_path / "b" / "x.tif")
    photo = tmp_path / "a" / "photo.jpg"
    Image.fromarray(random_images(1, 40, 3, 0)[0]).save(photo)
    whole = photo.read_bytes()
    photo.write_bytes(whole[: len(whole) // 2])
    for size in (None, (8, 8)):
        with pytest.raises(UsageError, match=r"4 of 42 images in .* cannot be read; repair or remove them") as error:
            read_folder(tmp_path, size=size)
        lines = str(error.value).splitlines()
        names = [line.split(" ")[2].rsplit("/", 1)[1] for line in lines[1:]]
        assert names == ["003.png", "photo.jpg", "004.png", "x.tif"]
    for i in range(16):
        (tmp_path / "a" / f"{i:03}.png").write_bytes(b"")
    with pytest.raises(UsageError, match=r"(?s)19 of 42 images.*  and 9 more$"):
        read_folder(tmp_path)
    # Programs append bytes to files that are complete.
    for name in "ab":
        for file in (tmp_path / name).iterdir():
            file.write_bytes(whole + b"\0\0appended")
        for file in (tmp_path / name).glob("*.tif"):
            file.unlink()
    assert len(read_folder(tmp_path).splits["train"].images) == 33


def test_other_sizes_are_counted(tmp_path):
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5, side=9)
    words = r"\(5 of 10 images have another size than the first\).* PATH@SIZE or PATH@HEIGHTxWIDTH to scale"
    with pytest.raises(UsageError, match=words):
        read_folder(tmp_path)


def test_images_in_folders_of_a_class_belong_to_the_class(tmp_path):
    direct, inner = fill(tmp_path / "a", 5), fill(tmp_path / "a" / "camera 2" / "may", 5, seed=1)
    fill(tmp_path / "a" / ".thumbnails", 5)
    fill(tmp_path / "b", 5)
    data = read_folder(tmp_path)
    assert data.classes == ("a", "b")
    given = np.concatenate([data.splits[split].images[data.splits[split].labels == 0] for split in ("train", "test")])
    expected = np.concatenate([direct, inner])
    assert sorted(image.tobytes() for image in given) == sorted(image.tobytes() for image in expected)


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "validation")])
def test_splits_with_other_names_are_no_classes(tmp_path, names):
    for split in names:
        for name in "ab":
            fill(tmp_path / split / name, 5)
    with pytest.raises(UsageError, match="seems to be a split and no class; call the folders of the splits train and"):
        read_folder(tmp_path)


def test_images_are_scaled_to_a_height_and_a_width(tmp_path):
    tall = np.zeros((12, 4, 3), np.uint8)
    tall[4:8] = 200
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(tall).save(tmp_path / name / f"{i}.png")
    data = load_dataset(f"{tmp_path}@2x4")
    assert data.image_shape == (2, 4, 3)
    assert (data.splits["train"].images == 200).all()


def test_a_folder_needs_no_prefix(tmp_path, monkeypatch):
    for name in "ab":
        fill(tmp_path / "photos" / name, 5)
    monkeypatch.chdir(tmp_path)
    for place in ("photos", "./photos", tmp_path / "photos", "folder:photos"):
        assert load_dataset(place).image_shape == (6, 6, 3)
    assert load_dataset("photos@4").image_shape == (4, 4, 3)
    # A dataset with a name comes first.
    fill(tmp_path / "digits" / "a", 5)
    assert load_dataset("digits").num_classes == 10
    with pytest.raises(UsageError, match=r"There is no folder \./fotos; pass the path of a folder"):
        load_dataset("./fotos")
