"""Tiny datasets in the official formats."""

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from pour.data.dataset import ImageSplit
from pour.data.formats.cifar import CifarFormat


class Python2Pickler(pickle._Pickler):  # type: ignore[misc,name-defined]
    """Writes strings the way Python 2 did, as the official archives have them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, text):
        data = text.encode("latin1") if isinstance(text, str) else text
        head = b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data))
        self.write(head + data)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text


def python2_pickle(value: object) -> bytes:
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def tar_gz(path: Path, members: dict[str, bytes]) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(raw.getvalue(), 1))
    return path


def random_images(n: int, side: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, channels), np.uint8)


def write_mosaic(folder: Path, splits: dict[str, ImageSplit], per_page: int = 100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in splits.items():
        np.save(folder / f"{name}_labels.npy", split.labels.astype(np.uint8))
        for page, start in enumerate(range(0, len(split), per_page)):
            images = split.images[start : start + per_page]
            _, side, _, channels = images.shape
            rows = -(-len(images) // 50)
            canvas = np.zeros((rows * side, 50 * side, channels), np.uint8)
            for i, image in enumerate(images):
                y, x = side * (i // 50), side * (i % 50)
                canvas[y : y + side, x : x + side] = image
            picture = Image.fromarray(canvas[:, :, 0] if channels == 1 else canvas)
            picture.save(folder / f"{name}_{page:02}.{'png' if channels == 1 else 'webp'}", lossless=True)
    return folder


class SmallCifar:
    """CIFAR in miniature: the official files with few images, and what they ought to contain."""

    def __init__(self, official: CifarFormat) -> None:
        classes = len(official.info.classes)
        per_file = 2 * classes // len(official.train_files) or 1
        self.format = replace(official, train_size=per_file * len(official.train_files), test_size=classes, digests={})
        self.train = ImageSplit(
            random_images(self.format.train_size), np.arange(self.format.train_size, dtype=np.int64) % classes
        )
        self.test = ImageSplit(random_images(classes, seed=1), np.arange(classes, dtype=np.int64))
        self.files: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for i, name in enumerate(official.train_files):
            rows = slice(i * per_file, (i + 1) * per_file)
            self.files[name] = (self.train.images[rows], self.train.labels[rows])
        self.files[official.test_files[0]] = (self.test.images, self.test.labels)

    def python(self, pickled: Callable[[object], bytes] = python2_pickle) -> dict[str, bytes]:
        return {name: pickled(self.batch(name)) for name in self.files}

    def batch(self, name: str) -> dict[bytes, object]:
        images, labels = self.files[name]
        return {
            b"batch_label": f"a batch called {name}".encode(),
            self.format.label_key.encode(): labels.tolist(),
            b"data": np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1),
            b"filenames": [b"x_s_%06d.png" % i for i in range(len(images))],
        }

    def binary(self) -> dict[str, bytes]:
        files = {}
        for name, (images, labels) in self.files.items():
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            # CIFAR-100 has the coarse label first; any number will do.
            marks = [labels] if self.format.label_bytes == 1 else [labels // 5, labels]
            files[f"{name}.bin"] = np.column_stack([*marks, planes]).astype(np.uint8).tobytes()
        return files
