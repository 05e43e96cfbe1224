"""Warnings have a class of their own and point at the line of the user's code."""

from __future__ import annotations

import linecache
import re
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from small_requests import FORGOTTEN, small_request, tiny_net

import pour
from pour import errors
from pour.data import ImageDataset, ImageSplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SRC = Path(pour.__file__).parent
FIXED = {"device": "cpu", "progress": False}


def data() -> ImageDataset:
    images = (torch.rand(16, 6, 6, 1, generator=torch.Generator().manual_seed(0)) * 255).byte().numpy()
    split = ImageSplit(images, torch.arange(16).remainder(4).numpy())
    return ImageDataset(name="own", classes=("a", "b", "c", "d"), splits={"train": split, "test": split})


def unlearn_with_batches() -> None:
    pour.unlearn(tiny_net(), small_request(), method="delete", steps=1, batch_size=3, **FIXED)  # the user's line


def retain_what_was_forgotten() -> None:
    once = pour.forget(tiny_net(), classes=[1])
    pour.unlearn(once, small_request(), method="finetune", steps=1, lr=1e-20, **FIXED)  # the user's line


def unlearn_with_other_names() -> None:
    model = tiny_net()
    pour.models.set_class_names(model, ("A", "b", "c", "d"))
    splits = pour.Splits.of(data(), [FORGOTTEN])
    pour.unlearn(model, pour.ForgetRequest.of(splits), method="pour-p", **FIXED)  # the user's line


def audit_with_other_names() -> None:
    model = tiny_net()
    pour.models.set_class_names(model, ("A", "b", "c", "d"))
    pour.audit(  # the user's line
        original=model, unlearned=pour.forget(model, classes=[2]), data=data(), **FIXED
    )


def load_other_classes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "five.safetensors"
        save_file(pour.build_model("resnet-digits", 5, in_channels=1, image_size=8).state_dict(), path)
        pour.build_model("resnet-digits", 4, in_channels=1, image_size=8, weights=path)  # the user's line


def in_decorator() -> None:
    def decorated(function: Callable[[], None]) -> Callable[[], None]:
        @wraps(function)
        def call() -> None:
            with torch.enable_grad():
                function()

        return call

    decorated(torch.no_grad()(unlearn_with_batches))()


def in_generator() -> None:
    options = FIXED | {"method": "delete", "steps": 1, "batch_size": 3}

    def models() -> Iterator[object]:
        yield pour.unlearn(tiny_net(), small_request(), **options)  # the user's line

    assert len(list(models())) == 1


def in_the_users_thread() -> None:
    thread = threading.Thread(target=unlearn_with_batches)
    thread.start()
    thread.join()


CASES = [
    unlearn_with_batches,
    retain_what_was_forgotten,
    unlearn_with_other_names,
    audit_with_other_names,
    load_other_classes,
    in_decorator,
    in_generator,
    in_the_users_thread,
]


@pytest.mark.parametrize("use", CASES, ids=lambda use: use.__name__)
def test_a_warning_points_at_the_users_line(use: Callable[[], None]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    ours = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    assert ours
    for warning in ours:
        line = linecache.getline(warning.filename, warning.lineno)
        assert "# the user's line" in line, f"{warning.filename}:{warning.lineno}: {line}"


def test_warnings_have_a_class_of_their_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=pour.PourWarning)
        unlearn_with_batches()
    assert issubclass(pour.PourWarning, UserWarning)
    # ``warn`` finds the user's line. Another way to warn would point at a line of pour.
    calls = [path for path in SRC.rglob("*.py") if re.search(r"warnings\.warn\b", path.read_text())]
    assert calls == []


def test_a_warning_of_a_thread_of_the_library_points_at_the_call() -> None:
    with pytest.warns(pour.PourWarning, match="Look") as caught, ThreadPoolExecutor(1) as pool:
        pool.submit(errors.warn, "Look.").result()  # the user's line
    assert "# the user's line" in linecache.getline(caught[0].filename, caught[0].lineno)


def test_a_line_is_warned_of_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            errors.warn("Twice.")
    assert [str(warning.message) for warning in caught] == ["Twice."]
