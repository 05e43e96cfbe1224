"""Fixtures of all tests: small networks trained on digits, a folder of scenes, and a demo. One thread per worker."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest
import torch
from command_line import process

import pour
from pour import _plug_ins
from pour._io import write_text
from pour._memory import keep_freed_memory
from pour.data.splits import Splits

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from pour.data.dataset import ImageDataset

FORGOTTEN_DIGIT = "3"
DIGITS_NETWORKS = Path(__file__).parent / "networks" / "digits"
_PATIENCE = 300.0

# Methods, metrics, datasets and tasks of other packages must not change the tests.
_plug_ins._LOADED.update(get_args(_plug_ins.Kind))

# Each worker has one core, and so have the processes that its tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
keep_freed_memory()


# The longest ones, each about a minute: at the end of the list one worker would wait for the other.
_FIRST = {"test_the_readmes_commands_run_as_written", "test_demo"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first."""
    items.sort(key=lambda item: item.name not in _FIRST)


@pytest.fixture(scope="session")
def digits() -> ImageDataset:
    return pour.load_dataset("digits")


@pytest.fixture(scope="session")
def digits_splits(digits: ImageDataset) -> Splits:
    """The digits with "3" to forget."""
    return Splits.of(digits, [FORGOTTEN_DIGIT])


@pytest.fixture(scope="session")
def digits_original() -> nn.Module:
    """A small ResNet that knows all ten digits; a test that changes it works on a copy.

    The networks are files, because the same training gives other weights on another kind of CPU, and an assertion about
    one network may fail for another. ``networks/networks.json`` contains the commands.
    """
    return pour.load(DIGITS_NETWORKS / "original.safetensors")


@pytest.fixture(scope="session")
def digits_retrained() -> nn.Module:
    """The same network trained without "3"."""
    return pour.load(DIGITS_NETWORKS / "retrained.safetensors")


@pytest.fixture(scope="session")
def digits_retrained_second() -> nn.Module:
    """Another seed of the network trained without "3"."""
    return pour.load(DIGITS_NETWORKS / "retrained-second.safetensors")


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with small street scenes in CamVid's layout; a pixel's colour identifies its class, up to noise."""
    from PIL import Image

    root = tmp_path_factory.mktemp("world")
    folder = root / "camvid"
    rng = np.random.default_rng(0)
    colours = np.array([[120, 160, 230], [90, 90, 90], [200, 40, 40], [40, 170, 60], [0, 0, 0]])
    for split, count in (("train", 12), ("val", 2), ("test", 6)):
        (folder / split).mkdir(parents=True)
        (folder / f"{split}annot").mkdir()
        for i in range(count):
            mask = np.zeros((20, 28), np.uint8)
            mask[10:] = 1
            left, top = int(rng.integers(1, 16)), int(rng.integers(9, 13))
            if i % 4:
                mask[top : top + 6, left : left + 9] = 2
            mask[2:16, int(rng.integers(20, 26))] = 3
            mask[0, :4] = 4
            image = (colours[mask] + rng.normal(0, 12, (20, 28, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(image).save(folder / split / f"{i:03}.png")
            Image.fromarray(mask).save(folder / f"{split}annot" / f"{i:03}.png")
    (folder / "classes.json").write_text('["Sky", "Road", "Car", "Pole", "Unlabelled"]')
    return root


@dataclass(frozen=True)
class Demo:
    """Output of ``pour demo``."""

    folder: Path
    printed: str


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A real process's ``pour demo``, for all tests that look at what it left."""
    shared = _shared_folder(tmp_path_factory, "pour-demo")
    folder, printed = shared / "demo", shared / "printed.txt"

    def run() -> None:
        done = process("demo", "--out", folder)
        assert done.returncode == 0, done.stderr
        write_text(printed, done.stdout)

    _made_once(printed, run)
    return Demo(folder, printed.read_text())


def _shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all workers share (and later runs too), named after the code that its files come from."""
    total = hashlib.sha256(torch.__version__.encode())
    for file in sorted(Path(pour.__file__).parent.glob("**/*.py")):
        total.update(file.read_bytes())
    folder = factory.getbasetemp().parent / f"{name}-{total.hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    return folder


def _made_once(file: Path, make: Callable[[], None]) -> None:
    """Have one process make ``file`` while the others wait for it."""
    lock = file.with_suffix(".lock")
    while not file.exists():
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            _remove_stale(lock)
            time.sleep(0.1)
            continue
        try:
            if not file.exists():
                make()
        finally:
            lock.unlink(missing_ok=True)


def _remove_stale(lock: Path) -> None:
    # The process that held it was killed.
    try:
        if time.time() - lock.stat().st_mtime > _PATIENCE:
            lock.unlink(missing_ok=True)
    except FileNotFoundError:
        return
