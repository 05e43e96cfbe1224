import hashlib
import importlib.util
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tiny_archives import random_images

import pour.data.registry as registry
from pour.data import data_root, list_datasets, load_dataset, load_segmentation
from pour.data.formats.archives import unpack_tar
from pour.data.formats.digits import read_digits
from pour.data.info import RemoteFile
from pour.errors import PourError, UsageError


def test_the_root_is_the_argument_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POUR_DATA", str(tmp_path))
    assert data_root("/elsewhere") != tmp_path
    assert data_root() == tmp_path
    monkeypatch.delenv("POUR_DATA")
    assert data_root().parts[-2:] == (".cache", "pour")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="is a file"):
        data_root(file)


def test_the_list_says_what_is_there(tmp_path, cifar10):
    np.savez(tmp_path / "bloodmnist.npz", a=np.zeros(1))
    (tmp_path / "camvid" / "trainannot").mkdir(parents=True)
    found = {status.info.name: status for status in list_datasets(tmp_path)}
    assert len(found) == 16
    assert {name for name, status in found.items() if status.present} == {"digits", "bloodmnist", "camvid"}
    assert found["bloodmnist"].path == tmp_path / "bloodmnist.npz"
    assert found["digits"].path is None
    assert found["cifar10"].path is None
    assert found["camvid"].info.task == found["voc2012"].info.task == "segmentation"
    for status in found.values():
        info = status.info
        assert info.licence
        assert info.citation
        assert info.homepage.startswith("http")
        assert info.needs
        for file in info.files:
            algorithm, _, digest = file.checksum.partition(":")
            assert len(digest) == {"sha256": 64, "md5": 32}[algorithm]
            int(digest, 16)


@pytest.mark.parametrize("name", ["cifar100", "pathmnist", "voc2012"])
def test_an_absent_dataset_names_folder_and_address(tmp_path, name):
    load = load_segmentation if name == "voc2012" else load_dataset
    with pytest.raises(UsageError, match=rf"{name} is not under .*download=True.*https://.*{name[-3:]}"):
        load(name, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_what_must_be_fetched_by_hand_says_so(tmp_path):
    for download in (False, True):
        with pytest.raises(UsageError, match=r"camvid is not under .*fetch it from https://github.com"):
            load_segmentation("camvid", tmp_path, download=download)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar", "did you mean 'cifar10"),
        ("CIFAR10", "did you mean 'cifar10'"),
        ("imagenet", "known are digits, cifar10"),
        ("camvid", r"load_segmentation\('camvid'\)"),
    ],
)
def test_unknown_names_are_one_sentence(tmp_path, name, words):
    with pytest.raises(UsageError, match=words):
        load_dataset(name, tmp_path)


def test_a_classification_set_is_no_segmentation_set(tmp_path):
    with pytest.raises(UsageError, match=r"load_dataset\('digits'\)"):
        load_segmentation("digits", tmp_path)
    with pytest.raises(UsageError, match="known are camvid, voc2012"):
        load_segmentation("ade20k", tmp_path)


def test_digits_are_read_without_their_file_as_well(monkeypatch):
    """From scikit-learn itself, should it keep them elsewhere one day."""
    data = read_digits()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    again = read_digits()
    for name, split in data.splits.items():
        assert np.array_equal(split.images, again.splits[name].images)
        assert np.array_equal(split.labels, again.splits[name].labels)


def test_digits_are_the_real_ones_split_evenly():
    from sklearn.datasets import load_digits

    data, stored = read_digits(), load_digits()
    train, test = data.splits["train"], data.splits["test"]
    assert len(train) + len(test) == 1797
    counts = np.bincount(stored.target)
    np.testing.assert_array_equal(np.bincount(test.labels), counts // 5)
    np.testing.assert_array_equal(np.bincount(train.labels), counts - counts // 5)
    # Back to counts of 0 to 16, every original image is there exactly once.
    ours = np.rint(np.concatenate([train.images, test.images])[..., 0] / 255 * 16).reshape(1797, 64)
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], stored.data[np.lexsort(stored.data.T)])
    assert train.images.max() == 255


def voc_tar(path, *, cut=None):
    jpeg, png = io.BytesIO(), io.BytesIO()
    Image.fromarray(random_images(1, 8)[0]).save(jpeg, "jpeg")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(png, "png")
    base = "VOCdevkit/VOC2012"
    members = {
        f"{base}/JPEGImages/a.jpg": jpeg.getvalue(),
        f"{base}/SegmentationClass/a.png": png.getvalue(),
        f"{base}/ImageSets/Segmentation/train.txt": b"a\n",
        f"{base}/ImageSets/Segmentation/val.txt": b"a\n",
        f"{base}/Annotations/a.xml": b"<xml/>",
        f"../{base}/JPEGImages/escaped.jpg": b"",
    }
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo(f"{base}/JPEGImages/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    if cut:
        path.write_bytes(path.read_bytes()[:cut])
    return path


def test_voc_is_unpacked_where_it_was_downloaded(tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    archive = voc_tar(tmp_path / "voc.tar")
    digest = "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
    info = replace(registry.VOC2012, files=(RemoteFile(url="http://x/voc.tar", filename="voc.tar", checksum=digest),))
    monkeypatch.setattr(registry, "VOC2012", info)
    monkeypatch.setitem(registry._DATASETS, "voc2012", replace(registry._DATASETS["voc2012"], info=info))
    data = load_segmentation("voc2012", tmp_path, download=True)
    assert data.splits["test"].read(0)[0].shape == (8, 8, 3)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()}
    assert names == {"voc.tar", "a.jpg", "a.png", "train.txt", "val.txt"}


def test_unpacking_leaves_everything_or_nothing(tmp_path, monkeypatch):
    def keep(member):
        return True

    for cut in (100, 800, 2000, 2048, 4096):
        with pytest.raises(UsageError, match="truncated or damaged"):
            unpack_tar(voc_tar(tmp_path / "voc.tar", cut=cut), tmp_path / "voc", keep)
        assert [path.name for path in tmp_path.iterdir()] == ["voc.tar"]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pour.data.formats.archives.shutil.copyfileobj", full)
    with pytest.raises(PourError, match="No space left on device; free space or choose another folder"):
        unpack_tar(voc_tar(tmp_path / "voc.tar"), tmp_path / "voc", keep)
    assert [path.name for path in tmp_path.iterdir()] == ["voc.tar"]
