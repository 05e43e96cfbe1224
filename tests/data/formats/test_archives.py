import gzip
import random

import numpy as np
import pytest
from tiny_archives import random_images, tar_gz

from pour.data import load_dataset
from pour.data.formats.archives import read_array, read_members
from pour.data.formats.cifar import read_cifar
from pour.errors import UsageError


def write(kind, root, cifar10):
    arrays = {"train_x": random_images(6, 4), "train_y": np.arange(6) % 3}
    if kind == "npy":
        np.save(root / "it.npy", np.arange(50))
        return root / "it.npy", read_array
    if kind.startswith("npz"):
        save = np.savez_compressed if "compressed" in kind else np.savez
        save(root / "it.npz", **arrays, test_x=arrays["train_x"], test_y=arrays["train_y"])
        return root / "it.npz", lambda path: load_dataset(str(path))
    archive = tar_gz(root / "it.tar.gz", cifar10.python())
    if kind == "tar":
        (root / "it.tar").write_bytes(gzip.decompress(archive.read_bytes()))
        archive = root / "it.tar"
    return archive, lambda path: read_cifar(path, cifar10.format)


@pytest.mark.parametrize("kind", ["npy", "npz", "npz compressed", "tar", "tar.gz"])
def test_altered_files_raise_nothing_but_our_sentence(tmp_path, cifar10, kind):
    file, read = write(kind, tmp_path, cifar10)
    whole, chance, refused = file.read_bytes(), random.Random(0), 0
    for _ in range(150 if kind.startswith("np") else 40):
        altered = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 4])):
            # Headers are near the start; the rest of an uncompressed tar is pixels, where any byte is as good.
            altered[chance.randrange(min(len(altered), 4096 if kind == "tar" else 1 << 30))] = chance.randrange(256)
        file.write_bytes(altered[: chance.randrange(len(altered))] if chance.random() < 0.1 else altered)
        try:
            read(file)
        except UsageError:
            refused += 1
    assert refused >= 3


def test_one_array_and_several_are_told_apart(tmp_path):
    np.savez(tmp_path / "several.npz", a=np.zeros(1))
    with pytest.raises(UsageError, match="contains several arrays"):
        read_array(tmp_path / "several.npz")
    np.save(tmp_path / "objects.npy", np.array([print], object))
    with pytest.raises(UsageError, match=r"objects\.npy"):
        read_array(tmp_path / "objects.npy")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.tar does not exist"):
        read_members(tmp_path / "none.tar", ["a"])
    with pytest.raises(UsageError, match="lacks a, b"):
        read_members(tmp_path, ["a", "b"])
