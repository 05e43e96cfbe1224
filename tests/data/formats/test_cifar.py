import gzip
import hashlib
import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from tiny_archives import python2_pickle, random_images, tar_gz, write_mosaic

from pour.data.dataset import ImageSplit
from pour.data.formats.cifar import CIFAR10, CIFAR100, find_cifar, read_cifar
from pour.errors import UsageError


def folder_of(path, members):
    path.mkdir()
    for name, data in members.items():
        (path / name).write_bytes(data)
    return path


def python_archive(root, cifar):
    inside = {f"batches/{name}": data for name, data in cifar.python().items()}
    return tar_gz(root / cifar.format.places[3], {"batches/readme.html": b"<html>", **inside})


def binary_archive(root, cifar):
    return tar_gz(root / cifar.format.places[5], {f"batches/{name}": data for name, data in cifar.binary().items()})


def npz_file(root, cifar):
    arrays = {"train_x": cifar.train.images, "train_y": cifar.train.labels.astype(np.uint8)}
    np.savez(root / cifar.format.places[0], **arrays, test_x=cifar.test.images, test_y=cifar.test.labels)


WRITERS = {
    "python archive": python_archive,
    "python folder": lambda root, cifar: folder_of(root / cifar.format.places[2], cifar.python()),
    "python 3 folder": lambda root, cifar: folder_of(
        root / cifar.format.places[2], cifar.python(lambda batch: pickle.dumps(batch, 2))
    ),
    "binary archive": binary_archive,
    "binary folder": lambda root, cifar: folder_of(root / cifar.format.places[4], cifar.binary()),
    "npz": npz_file,
    "mosaic": lambda root, cifar: write_mosaic(
        root / cifar.format.info.name, {"train": cifar.train, "test": cifar.test}
    ),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_every_form_gives_the_same_images(tmp_path, cifar, writer):
    writer(tmp_path, cifar)
    found = find_cifar(tmp_path, cifar.format)
    assert found is not None
    data = read_cifar(found, cifar.format)
    assert data.classes == cifar.format.info.classes
    assert data.info.name == data.name
    for name, expected in (("train", cifar.train), ("test", cifar.test)):
        np.testing.assert_array_equal(data.splits[name].images, expected.images)
        np.testing.assert_array_equal(data.splits[name].labels, expected.labels)
        assert data.splits[name].images.flags.writeable, "torch warns about read-only arrays"


def test_the_folder_itself_can_be_the_root(tmp_path, cifar):
    folder = folder_of(tmp_path / "anything", cifar.python())
    assert find_cifar(folder, cifar.format) == folder
    assert find_cifar(tmp_path, cifar.format) is None


def test_class_names_are_the_official_ones():
    assert len(CIFAR100.info.classes) == len(set(CIFAR100.info.classes)) == 100
    assert list(CIFAR100.info.classes) == sorted(CIFAR100.info.classes)
    assert CIFAR10.info.classes[::9] == ("airplane", "truck")
    assert (CIFAR10.train_size, CIFAR100.test_size) == (50_000, 10_000)


@pytest.mark.parametrize("kept", [0, 1, 100, 0.3, 0.7, 0.99, -1])
def test_a_truncated_archive_is_one_sentence(tmp_path, cifar10, kept):
    archive = python_archive(tmp_path, cifar10)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(UsageError, match=f"{archive.name} is truncated or damaged .*fetch it again"):
        read_cifar(archive, cifar10.format)


@pytest.mark.parametrize("at", [2, 0.2, 0.5, 0.8, -5])
def test_an_altered_archive_is_one_sentence(tmp_path, cifar10, at):
    # Stored uncompressed, so that only gzip's own checksum can notice a changed pixel.
    archive = python_archive(tmp_path, cifar10)
    data = bytearray(gzip.compress(gzip.decompress(archive.read_bytes()), 0))
    at = int(at * len(data)) if isinstance(at, float) else at
    data[at] ^= 0x55
    archive.write_bytes(data)
    with pytest.raises(UsageError, match=r"truncated or damaged|is not a CIFAR batch|lacks|refused|damaged"):
        read_cifar(archive, cifar10.format)


def test_an_archive_under_the_official_name_must_be_the_official_one(tmp_path, cifar10):
    archive = python_archive(tmp_path, cifar10)
    official = replace(cifar10.format, digests=CIFAR10.digests)
    with pytest.raises(UsageError, match="truncated or altered: its sha256 is"):
        read_cifar(archive, official)
    digest = "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
    assert read_cifar(archive, replace(official, digests={archive.name: digest})).num_classes == 10


def test_foreign_objects_in_an_archive_are_named(tmp_path, cifar10):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'mark'}",)

    files = cifar10.python() | {"data_batch_3": pickle.dumps({b"data": Trap()}, 2)}
    archive = tar_gz(tmp_path / "cifar-10-python.tar.gz", {f"x/{name}": data for name, data in files.items()})
    with pytest.raises(UsageError, match=r"data_batch_3 in .* is refused because it asks for (posix|nt)\.system"):
        read_cifar(archive, cifar10.format)
    assert not (tmp_path / "mark").exists()


def test_names_that_lead_out_of_an_archive_have_no_effect(tmp_path, cifar10):
    root = tmp_path / "root"
    root.mkdir()
    files = {f"../../{name}": data for name, data in cifar10.python().items()}
    data = read_cifar(tar_gz(root / "cifar-10-python.tar.gz", files), cifar10.format)
    assert len(data.splits["train"]) == len(cifar10.train)
    assert [path.name for path in tmp_path.rglob("*")] == ["root", "cifar-10-python.tar.gz"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "lacks data_batch_2; it is incomplete"),
        ({b"labels": [10, 1, 2, 3]}, "label 10, but labels must be 0 to 9"),
        ({b"labels": [0, 1, 2]}, "4 images but 3 labels"),
        ({b"labels": ["0", 1, 2, 3]}, "list of integers"),
        ({b"data": np.zeros((4, 3071), np.uint8)}, "n x 3072"),
        ({b"data": np.zeros((4, 3072), np.int64)}, "uint8"),
        ({b"data": [1, 2]}, "uint8"),
        ({b"labels": [0, 1, 2, 3, 4], b"data": np.zeros((5, 3072), np.uint8)}, "21 train images, but CIFAR-10 has 20"),
    ],
)
def test_a_wrong_batch_is_one_sentence(tmp_path, cifar10, change, words):
    folder = folder_of(tmp_path / "cifar-10-batches-py", cifar10.python())
    if change:
        (folder / "data_batch_2").write_bytes(python2_pickle(cifar10.batch("data_batch_2") | change))
    else:
        (folder / "data_batch_2").unlink()
    with pytest.raises(UsageError, match=words):
        read_cifar(folder, cifar10.format)


def test_a_class_without_images_is_named(tmp_path, cifar10):
    folder = folder_of(tmp_path / "cifar-10-batches-bin", cifar10.binary())
    for file in folder.glob("data_batch*"):
        rows = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 3073).copy()
        rows[rows[:, 0] == 3, 0] = 4
        file.write_bytes(rows.tobytes())
    with pytest.raises(UsageError, match="cifar10 has no training images of 'cat'"):
        read_cifar(folder, cifar10.format)


def test_a_truncated_binary_file_is_one_sentence(tmp_path, cifar10):
    folder = folder_of(tmp_path / "cifar-10-batches-bin", cifar10.binary())
    file = folder / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match="not a whole number of images of 3073 bytes"):
        read_cifar(folder, cifar10.format)


def test_a_huge_member_is_refused_before_it_is_read(tmp_path, cifar10, monkeypatch):
    monkeypatch.setattr("pour.data.formats.archives._LARGEST_MEMBER", 1000)
    with pytest.raises(UsageError, match=r"claims .* bytes"):
        read_cifar(python_archive(tmp_path, cifar10), cifar10.format)


@pytest.mark.parametrize(
    ("side", "channels", "classes"), [(28, 3, None), (32, 1, None), (32, 3, [f"tissue {i}" for i in range(11)])]
)
@pytest.mark.parametrize("form", ["mosaic", "npz"])
def test_images_of_another_set_are_refused(tmp_path, side, channels, classes, form):
    labels = np.arange(22) % len(classes or CIFAR10.info.classes)
    splits = {name: ImageSplit(random_images(22, side, channels), labels) for name in ("train", "test")}
    if form == "mosaic":
        folder = write_mosaic(tmp_path / "other", splits)
        (folder / "classes.json").write_text(json.dumps(classes or list(CIFAR10.info.classes)))
    else:
        folder = tmp_path / "other.npz"
        arrays = {
            f"{name}_{end}": part for name, s in splits.items() for end, part in (("x", s.images), ("y", s.labels))
        }
        np.savez(folder, **arrays, classes=np.array(classes or CIFAR10.info.classes))
    with pytest.raises(
        UsageError, match=rf"other.* does not contain cifar10: its images are {side} x {side} x {channels}"
    ):
        read_cifar(folder, CIFAR10)
