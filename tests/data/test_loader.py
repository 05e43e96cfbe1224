import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.data.augment import Augment, gather_images
from pour.data.loader import DeviceLoader
from pour.errors import UsageError


def make(count=23, side=8, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    return images, np.arange(count) % 4


def batches(loader, epoch=0):
    return [(x.clone(), y.clone()) for x, y in loader.epoch(epoch)]


@given(
    side=st.integers(3, 9),
    padding=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=30)
def test_crop_and_flip_equal_reflect_padding_and_slicing(side, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (5, side, side, 2), generator=generator, dtype=torch.uint8)
    moves = Augment(padding=padding, flip=True).draw(5, generator)
    ours = gather_images(images, torch.arange(5), moves)
    padded = F.pad(images.permute(0, 3, 1, 2).float(), [padding] * 4, mode="reflect") if padding else None
    for i, (down, right, mirror) in enumerate(moves.tolist()):
        whole = padded[i] if padded is not None else images[i].permute(2, 0, 1).float()
        crop = whole[:, padding + down : padding + down + side, padding + right : padding + right + side]
        expected = crop.flip(-1) if mirror else crop
        assert torch.equal(ours[i].permute(2, 0, 1).float(), expected)


def test_an_epoch_shows_every_image_once_in_a_new_order():
    images, labels = make()
    loader = DeviceLoader(images, labels, batch_size=5, device="cpu", shuffle=True, seed=3)
    first, second = batches(loader, 0), batches(loader, 1)
    assert [len(y) for _, y in first] == [5, 5, 5, 5, 3]
    seen = torch.cat([x for x, _ in first]).permute(0, 2, 3, 1).numpy()
    assert sorted(map(bytes, seen)) == sorted(map(bytes, images))
    assert not torch.equal(torch.cat([y for _, y in first]), torch.cat([y for _, y in second]))


def test_labels_stay_with_their_images():
    images, labels = make()
    images[:, 0, 0, 0] = labels
    for x, y in DeviceLoader(images, labels, batch_size=4, device="cpu", shuffle=True):
        assert torch.equal(x[:, 0, 0, 0].long(), y)


def test_streamed_and_resident_give_the_same_batches(monkeypatch):
    images, labels = make(count=50)
    options = {"batch_size": 8, "device": "cpu", "seed": 7, "shuffle": True, "augment": Augment(padding=1)}
    whole = batches(DeviceLoader(images, labels, resident=True, **options), 4)
    monkeypatch.setattr("pour.data.loader._CHUNK_BYTES", 8 * images[0].size * 2)
    streamed = batches(DeviceLoader(images, labels, resident=False, **options), 4)
    assert len(whole) == len(streamed) == 7
    for (x, y), (v, w) in zip(whole, streamed, strict=True):
        assert torch.equal(x, v)
        assert torch.equal(y, w)


def test_seed_and_epoch_fix_the_batches():
    images, labels = make()
    options = {"batch_size": 4, "device": "cpu", "shuffle": True, "augment": Augment(padding=1)}
    one = DeviceLoader(images, labels, seed=1, **options)
    again = DeviceLoader(images, labels, seed=1, **options)
    other = DeviceLoader(images, labels, seed=2, **options)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(batches(one, 9), batches(again, 9), strict=True))
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(batches(one, 9), batches(other, 9), strict=True))
    assert [y.tolist() for _, y in one] == [y.tolist() for _, y in again.epoch(0)]
    assert [y.tolist() for _, y in one] == [y.tolist() for _, y in again.epoch(1)]


def test_batches_are_channels_last_bytes():
    images, labels = make()
    x, y = next(iter(DeviceLoader(images, labels, batch_size=4, device="cpu")))
    assert x.dtype == torch.uint8
    assert y.dtype == torch.int64
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[:4])


def test_a_batch_is_never_larger_than_the_split():
    images, labels = make(count=10)
    loader = DeviceLoader(images, labels, batch_size=512, device="cpu", drop_last=True)
    assert loader.batch_size == 10
    assert [len(y) for _, y in loader] == [10]


def test_drop_last():
    images, labels = make(count=10)
    loader = DeviceLoader(images, labels, batch_size=4, device="cpu", drop_last=True)
    assert len(loader) == 2
    assert [len(y) for _, y in loader] == [4, 4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch size"),
        ({"images": np.zeros((3, 8, 8, 1), np.float32)}, "uint8"),
        ({"images": np.zeros((3, 8, 8), np.uint8)}, "uint8 of shape"),
        ({"images": np.zeros((4, 8, 8, 1), np.uint8)}, "4 images for 3 labels"),
        ({"images": np.zeros((0, 8, 8, 1), np.uint8), "labels": np.zeros(0, int)}, "at least one"),
    ],
)
def test_bad_input(change, words):
    options = {
        "images": np.zeros((3, 8, 8, 1), np.uint8),
        "labels": np.zeros(3, int),
        "batch_size": 2,
        "device": "cpu",
    }
    options |= change
    with pytest.raises(UsageError, match=words):
        DeviceLoader(options.pop("images"), options.pop("labels"), **options)


def test_negative_padding():
    with pytest.raises(UsageError, match="padding"):
        Augment(padding=-1)
