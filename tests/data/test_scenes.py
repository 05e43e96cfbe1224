from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from pour.data import SceneAugment, Scenes, load_segmentation
from pour.data.augment import move_scenes
from pour.data.formats.scenes import SegmentationSplit
from pour.data.loader import NO_LABEL
from pour.data.scenes import IGNORED
from pour.errors import UsageError


def some_scenes(count: int = 5, height: int = 8, width: int = 12, classes: int = 4) -> Scenes:
    rng = np.random.default_rng(0)
    masks = rng.integers(0, classes, (count, height, width)).astype(np.uint8)
    masks[:, 0, 0] = IGNORED
    # The red channel repeats the label, so that an image and its mask can be told to belong together.
    images = np.repeat((20 * masks.astype(np.uint16)).clip(0, 255).astype(np.uint8)[..., None], 3, axis=3)
    return Scenes(images, masks, classes)


def still(count: int) -> torch.Tensor:
    """Moves that change nothing."""
    return torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]]).repeat(count, 1)


def test_reading_maps_void_and_keeps_labels(small_world) -> None:
    data = load_segmentation("camvid", small_world)
    scenes = Scenes.of(data.splits["train"])
    assert scenes.images.shape == (12, 20, 28, 3)
    image, mask = data.splits["train"].read(3)
    np.testing.assert_array_equal(scenes.images[3], image)
    np.testing.assert_array_equal(scenes.masks[3], np.where(mask == data.void, IGNORED, mask))
    for limit in (5, 7, 11):
        some = Scenes.of(data.splits["train"], limit=limit)
        places = [next(i for i in range(12) if np.array_equal(scenes.images[i], image)) for image in some.images]
        assert len(set(places)) == limit
        assert max(np.diff([*places, 12])) <= -(-12 // limit), "evenly, to the end of the split"
    assert scenes.counts().sum() == (scenes.masks != IGNORED).sum()


def test_images_of_different_sizes_are_set_into_the_largest(tmp_path) -> None:
    pairs = []
    for i, (height, width) in enumerate(((4, 6), (5, 3))):
        files = tmp_path / f"{i}.png", tmp_path / f"{i}-mask.png"
        Image.fromarray(np.full((height, width, 3), 9, np.uint8)).save(files[0])
        Image.fromarray(np.ones((height, width), np.uint8)).save(files[1])
        pairs.append(files)
    scenes = Scenes.of(SegmentationSplit(tuple(pairs), 2, 255))
    assert scenes.masks.shape == (2, 5, 6)
    assert (scenes.masks[1, :, :3] == 1).all()
    assert (scenes.masks[1, :, 3:] == IGNORED).all()
    assert (scenes.masks == 1).sum() == 24 + 15


def test_the_forget_set_shows_only_the_class() -> None:
    scenes = some_scenes()
    scenes.masks[2][scenes.masks[2] == 1] = 0
    gone = scenes.containing([1]).only([1])
    assert len(gone) == 4
    assert set(np.unique(gone.masks)) == {1, IGNORED}
    kept = scenes.without([1])
    assert 1 not in np.unique(kept.masks)
    np.testing.assert_array_equal(kept.masks[scenes.masks != 1], scenes.masks[scenes.masks != 1])
    with pytest.raises(UsageError, match="No image shows class"):
        some_scenes(classes=2).containing([3])


@pytest.mark.parametrize(
    ("images", "masks", "words"),
    [
        (np.zeros((1, 2, 2, 3)), np.zeros((1, 2, 2), np.uint8), "uint8 images"),
        (np.zeros((1, 2, 2, 3), np.uint8), np.zeros((1, 2, 3), np.uint8), "do not fit"),
        (np.zeros((1, 2, 2, 3), np.uint8), np.full((1, 2, 2), 9, np.uint8), "contains label 9"),
    ],
)
def test_bad_scenes_are_refused(images, masks, words) -> None:
    with pytest.raises(UsageError, match=words):
        Scenes(images, masks, 4)


def test_moves_that_move_nothing_give_the_scene_back() -> None:
    scenes = some_scenes()
    images, masks = torch.tensor(scenes.images), torch.tensor(scenes.masks)
    moved, labels = move_scenes(images, masks, still(5))
    torch.testing.assert_close(moved, images.permute(0, 3, 1, 2) / 255, rtol=0, atol=1e-6)
    assert torch.equal(labels, masks)
    mirror = still(5)
    mirror[:, 3] = 1
    moved, labels = move_scenes(images, masks, mirror)
    torch.testing.assert_close(moved, images.permute(0, 3, 1, 2).flip(3) / 255, rtol=0, atol=1e-6)
    assert torch.equal(labels, masks.flip(2))


def test_image_and_mask_move_together() -> None:
    """A checkerboard of 4x4 blocks doubled in size: each label must stand where its colour does."""
    mask = np.kron(np.arange(6).reshape(2, 3) % 4, np.ones((4, 4), int))[None].astype(np.uint8)
    scenes = Scenes(np.repeat((60 * mask)[..., None], 3, axis=3), mask, 4)
    generator = torch.Generator().manual_seed(0)
    moves = SceneAugment(light=0.0).draw(40, generator)
    images = torch.tensor(scenes.images).expand(40, -1, -1, -1)
    moved, labels = move_scenes(images, torch.tensor(scenes.masks).expand(40, -1, -1), moves)
    colour = moved[:, 0] * 255 / 60
    known = labels != IGNORED
    # Between two blocks the colour is a mixture; everywhere else it is the label's own.
    agree = (colour - labels).abs() < 0.01
    assert agree[known].float().mean() > 0.6
    assert ((colour - labels).abs()[known] <= 3).all()
    assert (colour.round() == labels)[known].float().mean() > 0.85


def test_smaller_scenes_leave_a_margin_that_counts_for_nothing() -> None:
    scenes = some_scenes(1)
    half = still(1)
    half[:, 0] = 0.5
    _, labels = move_scenes(torch.tensor(scenes.images), torch.tensor(scenes.masks), half)
    assert (labels != IGNORED).sum() <= 4 * 6
    assert (labels[:, 4:] == IGNORED).all()
    assert (labels[:, :, 6:] == IGNORED).all()


def test_the_same_seed_gives_the_same_batches() -> None:
    def batches(seed: int) -> list[torch.Tensor]:
        loader = some_scenes().batches(2, "cpu", seed=seed, shuffle=True, augment=True, drop_last=True)
        assert len(loader) == 2
        return [part for epoch in (0, 1) for batch in loader.epoch(epoch) for part in batch]

    first, again, other = batches(1), batches(1), batches(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[4])
    assert first[0].dtype == torch.float32
    assert 0 <= first[0].min() <= first[0].max() <= 1
    assert first[1].dtype == torch.int64


def test_plain_batches_are_the_scenes_in_order() -> None:
    scenes = some_scenes()
    images, labels = (torch.cat(parts) for parts in zip(*scenes.batches(3, "cpu"), strict=True))
    assert torch.equal(images, torch.tensor(scenes.images).permute(0, 3, 1, 2))
    assert (labels[:, 0, 0] == NO_LABEL).all()
    assert torch.equal(labels[:, 1:], torch.tensor(scenes.masks[:, 1:]).long())


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UsageError, match="batch size"):
        some_scenes().batches(0, "cpu")
    with pytest.raises(UsageError, match="Scales"):
        SceneAugment(smallest=2.0, largest=1.0)
    with pytest.raises(UsageError, match="light"):
        SceneAugment(light=1.0)


def test_classes_are_found_whatever_their_case(small_world) -> None:
    data = load_segmentation("camvid", small_world)
    assert data.indices(["car"]) == data.indices("Car") == data.indices([2]) == (2,)
    with pytest.raises(UsageError, match="did you mean 'Car'"):
        data.indices(["cars"])
