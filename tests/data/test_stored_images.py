"""Images of a folder are read when they are needed, and give the same results as images in memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import pour
from pour.data import ImageSplit, stored_images
from pour.data.dataset import join_splits
from pour.data.digest import split_digest
from pour.data.loader import DeviceLoader, FileLoader
from pour.errors import UsageError

CLASSES = ("ant", "bee", "cat")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (tmp_path / name).mkdir()
        for i in range(60):
            pixels = rng.integers(0, 100, (8, 8, 3), np.uint8)
            pixels[:, :, label] += 100
            Image.fromarray(pixels).save(tmp_path / name / f"{i:02}.png")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """The files that are decoded while a test runs."""
    files = []
    read = stored_images.read_pixels
    monkeypatch.setattr(
        stored_images, "read_pixels", lambda file, **options: files.append(file) or read(file, **options)
    )
    return files


def in_memory(data):
    splits = {name: ImageSplit(split.images, split.labels) for name, split in data.splits.items()}
    return pour.ImageDataset(name=data.name, classes=data.classes, splits=splits, info=data.info)


def test_nothing_is_decoded_before_it_is_needed(folder, decoded):
    data = pour.load_dataset(folder)
    splits = pour.Splits.of(data, forget=["bee"])
    assert data.image_shape == (8, 8, 3)
    assert (len(splits.forget_train), len(splits.retain_test)) == (48, 24)
    assert not decoded
    few = splits.forget_train.take(np.array([3, 1]))
    np.testing.assert_array_equal(few.images, splits.forget_train.images[[3, 1]])
    assert len(decoded) == 2 + 48


def test_batches_are_those_of_images_in_memory(folder):
    files, arrays = pour.load_dataset(folder).splits["train"], in_memory(pour.load_dataset(folder)).splits["train"]
    for options in ({}, {"drop_last": True}, {"augment": True, "seed": 3}, {"shuffle": True, "seed": 1}):
        read, expected = (split.batches(32, "cpu", **options) for split in (files, arrays))
        assert isinstance(read, DeviceLoader if "shuffle" in options else FileLoader)
        for (images, labels), (others, other_labels) in zip(read.epoch(2), expected.epoch(2), strict=True):
            assert torch.equal(images, others)
            assert torch.equal(labels, other_labels)
        # Shuffling has read the images into memory.
    assert split_digest(files) == split_digest(arrays)


def test_shuffling_reads_files_again_only_if_they_do_not_fit(folder, decoded, monkeypatch):
    data = pour.load_dataset(folder)
    count = len(data.splits["train"])
    first, second = (data.splits["train"].batches(32, "cpu", shuffle=True) for _ in range(2))
    assert torch.equal(torch.cat([images for images, _ in first]), torch.cat([images for images, _ in second]))
    assert len(decoded) == count
    monkeypatch.setattr(stored_images, "KEPT_BYTES", count * 8 * 8 * 3 - 1)
    again = pour.load_dataset(folder).splits["train"].batches(32, "cpu", shuffle=True)
    for (images, labels), (others, other_labels) in zip(again.epoch(0), first.epoch(0), strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)
    assert len(decoded) == 2 * count


def test_a_reading_that_stops_decodes_no_further_batches(folder, decoded):
    batches = pour.load_dataset(folder).splits["train"].batches(8, "cpu").epoch(0)
    next(batches)
    batches.close()
    assert len(decoded) <= 4 * 8


def test_joined_files_are_not_read(folder, decoded):
    splits = pour.load_dataset(folder).splits
    joined = join_splits([splits["test"], splits["train"]])
    same = join_splits([splits["train"].without([1]), splits["train"].without([0, 2])])
    assert not decoded
    assert (len(joined), joined.labels.tolist()[:12]) == (180, [0] * 12)
    assert same.source is splits["train"].source
    expected = np.concatenate([splits["test"].images, splits["train"].images])
    np.testing.assert_array_equal(joined.images, expected)


def test_unlearning_and_audits_give_the_same_on_files_and_arrays(folder):
    torch.manual_seed(0)
    pooled = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()]
    model = torch.nn.Sequential(*pooled, torch.nn.Linear(32, 3))
    with torch.no_grad():
        # Each score is the brightness of the channel of its class.
        torch.nn.init.dirac_(model[0].weight)
        model[4].weight.copy_(torch.eye(3, 8).repeat_interleave(4, dim=1))
    weights, reports = [], []
    for data in (pour.load_dataset(folder), in_memory(pour.load_dataset(folder))):
        request = pour.ForgetRequest.of(pour.Splits.of(data, forget=["cat"]))
        student = pour.unlearn(model, request, method="random-label", epochs=1, device="cpu", progress=False)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in student.parameters()]))
        data = pour.load_dataset(folder) if not reports else data
        reports.append(
            pour.audit(original=model, unlearned=student, data=data, device="cpu", progress=False, force=True)
        )
    assert torch.equal(*weights)
    assert reports[0].values() == reports[1].values()
    assert reports[0].value("acc_tr") > 0.9


def test_a_file_that_breaks_later_is_one_sentence(folder):
    data = pour.load_dataset(folder)
    file = data.splits["train"].source.files[40]
    pixels = bytearray(file.read_bytes())
    pixels[60:90] = bytes(30)
    file.write_bytes(pixels)
    with pytest.raises(UsageError, match=rf"{file.name} is not a readable image"):
        list(data.splits["train"].batches(16, "cpu"))
    file.unlink()
    with pytest.raises(UsageError, match=rf"{file.name} does not exist"):
        list(data.splits["train"].batches(16, "cpu"))


MEASURED = """
import resource, sys, torch, pour
import pour.auditing
model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 3))
unlearned = pour.forget(model, classes=[0])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = pour.load_dataset("folder:" + sys.argv[1])
pour.audit(original=model, unlearned=unlearned, data=data, device="cpu", progress=False, force=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_the_memory_of_an_audit_does_not_hold_the_images(tmp_path):
    rng = np.random.default_rng(0)
    size, peaks = 256, []
    for count in (150, 600):
        folder = tmp_path / str(count)
        for label, name in enumerate(CLASSES):
            (folder / name).mkdir(parents=True)
            pixels = np.zeros((size, size, 3), np.uint8)
            for i in range(count):
                pixels[: size // 8, : size // 8] = rng.integers(0, 255, (size // 8, size // 8, 3))
                pixels[:, :, label] |= 128
                Image.fromarray(pixels).save(folder / name / f"{i:04}.jpg")
        command = [sys.executable, "-c", MEASURED, str(folder)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        peaks.append(int(printed.split()[-1]))
    # The images of the larger folder take 265 MB more.
    assert peaks[1] - peaks[0] < 60_000, peaks
