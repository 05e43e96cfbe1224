"""Tiny datasets."""

import numpy as np
import pytest
from tiny_archives import SmallCifar, random_images

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.cifar import CIFAR10, CIFAR100


@pytest.fixture(params=[CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest) -> SmallCifar:
    return SmallCifar(request.param)


@pytest.fixture
def cifar10() -> SmallCifar:
    return SmallCifar(CIFAR10)


@pytest.fixture
def small() -> ImageDataset:
    """Four classes of unequal size, with an external test set."""
    counts = {"train": (40, 30, 20, 10), "test": (8, 6, 4, 2), "external": (5, 0, 5, 5)}
    splits = {}
    for seed, (name, per_class) in enumerate(counts.items()):
        labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), per_class))
        splits[name] = ImageSplit(random_images(len(labels), side=6, seed=seed), labels)
    return ImageDataset("small", ("ant", "bee", "cat", "dog"), splits)
