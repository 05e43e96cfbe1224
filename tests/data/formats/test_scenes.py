import json

import numpy as np
import pytest
from PIL import Image
from tiny_archives import random_images

from pour.data import load_segmentation
from pour.data.formats.scenes import CAMVID, VOC2012, SegmentationDataset, SegmentationSplit, read_camvid, read_voc
from pour.errors import UsageError


def mask(shape, labels, seed=0):
    return np.random.default_rng(seed).choice(np.array(labels, np.uint8), shape)


@pytest.fixture
def camvid(tmp_path):
    root = tmp_path / "camvid"
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        (root / split).mkdir(parents=True)
        (root / f"{split}annot").mkdir()
        for i in range(count):
            Image.fromarray(random_images(1, 6, seed=i)[0]).save(root / split / f"{i:04}.webp", lossless=True)
            Image.fromarray(mask((6, 6), range(12), i)).save(root / f"{split}annot" / f"{i:04}.png")
    return root


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    for i in range(3):
        Image.fromarray(random_images(1, 8, seed=i)[0]).save(root / "JPEGImages" / f"2007_{i}.jpg")
        picture = Image.fromarray(mask((8, 8), [*range(21), 255], i)).convert("P")
        picture.putpalette(list(np.random.default_rng(0).integers(0, 256, 768)))
        picture.save(root / "SegmentationClass" / f"2007_{i}.png")
    (root / "ImageSets/Segmentation/train.txt").write_text("2007_0\n2007_1\n")
    (root / "ImageSets/Segmentation/val.txt").write_text("2007_2\n")
    return root


def test_camvid_pairs_images_with_masks(tmp_path, camvid):
    data = load_segmentation("camvid", tmp_path)
    assert (data.classes, data.void, data.num_classes) == (CAMVID.classes, 11, 11)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 3, "val": 1, "test": 2}
    image, labels = data.splits["train"].read(2)
    np.testing.assert_array_equal(image, random_images(1, 6, seed=2)[0])
    np.testing.assert_array_equal(labels, mask((6, 6), range(12), 2))
    assert (image.dtype, labels.dtype) == (np.uint8, np.int64)


def test_camvid_takes_names_and_void_from_its_list(camvid):
    (camvid / "classes.json").write_text(json.dumps([*CAMVID.classes, "Void"]))
    assert read_camvid(camvid).void == 11
    (camvid / "classes.json").write_text(json.dumps([*CAMVID.classes, "Lorry"]))
    assert (read_camvid(camvid).void, read_camvid(camvid).num_classes) == (255, 12)
    (camvid / "classes.json").write_text(json.dumps(["Void", *CAMVID.classes]))
    with pytest.raises(UsageError, match="must be the last entry"):
        read_camvid(camvid)


def test_voc_reads_palette_numbers_and_uses_val_for_testing(tmp_path, voc):
    data = load_segmentation("voc2012", tmp_path)
    assert (data.classes, data.void, data.num_classes) == (VOC2012.classes, 255, 21)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2, "test": 1}
    image, labels = data.splits["test"].read(0)
    assert image.shape == (8, 8, 3)
    np.testing.assert_array_equal(labels, mask((8, 8), [*range(21), 255], 2))


def test_wrong_pairs_are_one_sentence(camvid):
    data = read_camvid(camvid)
    annotation = camvid / "trainannot" / "0000.png"
    Image.fromarray(np.full((6, 6), 12, np.uint8)).save(annotation)
    with pytest.raises(UsageError, match=r"0000.png contains label 12, but labels are 0 to 10, void 11"):
        data.splits["train"].read(0)
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(annotation)
    with pytest.raises(UsageError, match="must agree"):
        data.splits["train"].read(0)
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(annotation)
    with pytest.raises(UsageError, match="one number"):
        data.splits["train"].read(0)
    annotation.write_bytes(annotation.read_bytes()[:40])
    with pytest.raises(UsageError, match="not a readable image"):
        data.splits["train"].read(0)
    annotation.unlink()
    with pytest.raises(UsageError, match=r"0000.webp has no mask named 0000"):
        read_camvid(camvid)


def test_incomplete_voc_is_one_sentence(voc):
    (voc / "JPEGImages" / "2007_1.jpg").unlink()
    with pytest.raises(UsageError, match=r"2007_1.jpg is listed in .*train.txt but is missing"):
        read_voc(voc)
    (voc / "ImageSets/Segmentation/train.txt").unlink()
    with pytest.raises(UsageError, match=r"There is no file .*train.txt"):
        read_voc(voc)


def test_a_dataset_needs_train_and_test_and_a_void_of_its_own(tmp_path):
    split = SegmentationSplit(((tmp_path, tmp_path),), 2, 255)
    with pytest.raises(UsageError, match="no test images"):
        SegmentationDataset("d", ("a", "b"), 255, {"train": split})
    with pytest.raises(UsageError, match="void label 1 of d is also the label of 'b'"):
        SegmentationDataset("d", ("a", "b"), 1, {"train": split, "test": split})
