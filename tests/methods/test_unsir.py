from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_requests import CLASSES, NOTHING, RETAIN, batches, losses, small_request, tiny_net, unlearn
from torch import nn

import pour.methods.unsir as unsir
from pour.data.dataset import ImageSplit
from pour.errors import UsageError
from pour.training.run import Run
from pour.unlearning import make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor


class Forbidden:
    """Forget images that nobody may look at."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        raise AssertionError("a forget image was read")

    def __len__(self) -> int:
        raise AssertionError("the forget images were counted")


def test_no_forget_image_is_read() -> None:
    unlearn(tiny_net(), "unsir", small_request(forget=Forbidden()), batch_size=8)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[Tensor, Tensor]]:
    """What noise a tiny network is shown for two classes, by the weight of the penalty on its size."""

    def learnt(shrinkage: float) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(unsir, "_NOISE_SHRINKAGE", shrinkage)
        method, run = make_method("unsir", batch_size=6), Run(device="cpu", progress=False)
        assert isinstance(method, unsir.Unsir)
        with run.seeded():
            return method._noise(tiny_net(), (2, 1), small_request().grant(("retain",), name="unsir"), run)

    return learnt


def test_the_noise_is_what_the_network_is_surest_not_to_be_the_class(
    noise: Callable[[float], tuple[Tensor, Tensor]],
) -> None:
    images, labels = noise(1e-4)
    assert images.shape == (6, 1, 6, 6)
    assert labels.tolist() == [2, 1, 2, 1, 2, 1]
    model = tiny_net()
    start = 0.5 + 0.25 * torch.randn(200, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        learnt = F.cross_entropy(model(images), labels)
        random = F.cross_entropy(model(start), labels[:2].repeat(100))
    assert learnt > random + 0.1


def test_the_penalty_keeps_the_noise_near_mid_grey(noise: Callable[[float], tuple[Tensor, Tensor]]) -> None:
    sizes = [(noise(shrinkage)[0] - 0.5).square().mean() for shrinkage in (1e-4, 0.1)]
    assert sizes[1] < 0.5 * sizes[0]


def test_the_penalty_is_a_tenth_of_the_squares_sum() -> None:
    model = tiny_net()
    with torch.no_grad():
        for parameter in model[-1].parameters():  # type: ignore[index, union-attr]
            parameter.zero_()
    # Every class is as likely, and the noise begins with 36 pixels of variance one.
    first = losses(unlearn(model, "unsir"))[0]
    assert first == pytest.approx(0.1 * 36 - np.log(CLASSES), abs=0.1)


def test_noise_and_retained_images_meet_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    make = unsir._noise_batches

    def watched(images: Tensor, labels: Tensor, size: int, *rest: Any) -> Any:
        sizes.append(size)
        return make(images, labels, size, *rest)

    monkeypatch.setattr(unsir, "_noise_batches", watched)
    options: dict[str, Any] = {"batch_size": 8, "noise_batches": 3, "per_class": 4, "lr": NOTHING, "repair_lr": NOTHING}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        once = unlearn(tiny_net(), "unsir", **options)
        unlearn(once, "unsir", small_request(classes=[1], retain=batches(3, 6, (0, 3), seed=2)), **options)
    # 24 of noise to 4 of each of three classes; at the second request to 4 of each of two.
    assert sizes == [round(8 * 24 / 36), round(8 * 24 / 32)]


def test_impairs_and_then_repairs() -> None:
    epochs = 2
    result = unlearn(tiny_net(), "unsir", epochs=epochs, batch_size=8)
    assert len(losses(result)) == 40 + epochs * len(RETAIN) + epochs * len(RETAIN)


def test_noise_drives_the_class_out() -> None:
    # Twice from the same start: the class's own label is what makes the noise harm that class.
    model = tiny_net()
    result = unlearn(model, "unsir", epochs=10, batch_size=8, lr=0.01, repair_lr=0.01)
    images = torch.cat([images for images, _ in RETAIN])
    assert (result(images).argmax(dim=1) != 2).all()


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="per_class must be at least 1, but is 0"):
        make_method("unsir", per_class=0)
    with pytest.raises(UsageError, match="repair_lr must be above 0"):
        make_method("unsir", repair_lr=0.0)


@pytest.mark.parametrize("own", [False, True])
def test_a_last_batch_of_one_image_does_not_reach_batch_norm(own: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)).eval()
    labels = np.array([0, 1, 3] * 6)[:17]
    images = np.random.default_rng(0).integers(0, 256, (17, 6, 6, 1), np.uint8)
    loaded = [(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))]
    request = small_request(retain=loaded if own else ImageSplit(images, labels))
    result = unlearn(model, "unsir", request, batch_size=8, head="4")
    assert all(value.isfinite().all() for value in result.state_dict().values())
