"""The option ``anchor="views"`` of the methods that train on forget images alone."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from method_cases import ITERATIVE
from small_requests import FORGET, FORGOTTEN, NOTHING, batches, kl, losses, small_request, tiny_net, unlearn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pour
import pour.unlearning.forget_only as forget_only
import pour.unlearning.toolkit.anchors as anchors
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.projecting.direction import head_removal
from pour.models.state import digest
from pour.models.tap import extract_features
from pour.training.loop import EpochsOf
from pour.training.run import Run
from pour.training.tasks.classify import Classify
from pour.unlearning import ForgetRequest, get_method, make_method
from pour.unlearning.forget_only import ForgetOnlyMethod, masked_divergence
from pour.unlearning.toolkit.anchors import transformed_copies, with_copies

if TYPE_CHECKING:
    from pour.data.dataset import ImageDataset, ImageSplit

CLASS = 3
SMALL: dict[str, Any] = {"batch_size": 32, "augment": False, "optimizer": "adamw"}
# Rates and lengths at which each method forgets on 147 small images.
OPTIONS: dict[str, dict[str, Any]] = {
    "boundary-expand": {"steps": 80, "lr": 1e-3},
    "boundary-shrink": {"steps": 60, "lr": 3e-4, "epsilon": 0.3},
    "delete": {"steps": 60, "lr": 3e-4},
    "gradient-ascent": {"steps": 60, "lr": 3e-4, "loss_cap": 6.0},
    "pour-d": {"steps": 120, "lr": 1e-3},
    "random-label": {"steps": 60, "lr": 3e-4, "different": True},
}
RUN = Run(device="cpu", progress=False)


def forget(model: nn.Module, dataset: ImageDataset, name: str, **options: Any) -> nn.Module:
    splits = Splits.of(dataset, [CLASS])
    request = ForgetRequest(classes=[CLASS], forget=splits.forget_train, mirrors=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pour.unlearn(
            model, request, method=name, device="cpu", progress=False, **(SMALL | OPTIONS[name] | options)
        )


def accuracy(model: nn.Module, split: ImageSplit) -> float:
    seen = extract_features(model, Classify().batches(split, RUN))
    assert seen.scores.isfinite().all()
    return (seen.scores.argmax(dim=1) == seen.labels).double().mean().item()


def test_every_method_that_trains_on_forget_images_alone_has_the_option() -> None:
    iterative = [name for name in ITERATIVE if get_method(name).needs == ("forget",)]
    assert set(iterative) - {"pour-a"} == OPTIONS.keys(), "POUR-A has anchors of its own"
    for name in OPTIONS:
        method = make_method(name)
        assert isinstance(method, ForgetOnlyMethod)
        assert (method.anchor, method.anchor_weight) == ("none", 1.0)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_anchored_method_forgets_and_keeps_the_other_classes(
    digits: ImageDataset, digits_original: nn.Module, name: str
) -> None:
    splits = Splits.of(digits, [CLASS])
    plain = forget(digits_original, digits, name)
    result = forget(digits_original, digits, name, anchor="views")
    assert accuracy(result, splits.forget_test) < 0.1
    before = accuracy(digits_original, splits.retain_test)
    kept, kept_plain = accuracy(result, splits.retain_test), accuracy(plain, splits.retain_test)
    assert kept >= kept_plain, f"{kept:.3f} with anchors, {kept_plain:.3f} without"
    assert kept >= before - 0.05, f"{kept:.3f} of {before:.3f}"
    options = pour.history(result)[-1].options
    assert (options["anchor"], options["anchor_weight"]) == ("views", 1.0)
    again = forget(digits_original, digits, name, anchor="views")
    assert digest(again.state_dict()) == digest(result.state_dict()) != digest(plain.state_dict())


@pytest.mark.parametrize("name", OPTIONS)
def test_without_anchors_nothing_is_copied_or_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("copies were made")

    monkeypatch.setattr(anchors, "transformed_copies", refuse)
    monkeypatch.setattr(forget_only, "with_copies", refuse)
    options: dict[str, Any] = {"epochs": 2, "lr": 1e-3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        first = unlearn(tiny_net(), name, **options)
        other = unlearn(tiny_net(), name, **options, anchor="none", anchor_weight=7.0)
    assert digest(first.state_dict()) == digest(other.state_dict())


def copies_of(run: Run) -> list[tuple[Tensor, Tensor, Tensor]]:
    return list(with_copies(EpochsOf(FORGET, run.seed), run).epoch(0))  # type: ignore[arg-type]


def test_the_loss_of_delete_has_the_divergence_on_the_copies() -> None:
    model = tiny_net()
    result = unlearn(model, "delete", lr=NOTHING, epochs=1, anchor="views", anchor_weight=3.0)
    for loss, (images, _, copies) in zip(losses(result), copies_of(Run(device="cpu")), strict=True):
        assert len(copies) == 2 * len(images)
        expected = 0.0
        for weight, inputs in ((1.0, images), (3.0, copies)):
            scores = model(inputs)
            masked = scores.detach().clone()
            masked[:, FORGOTTEN] = -40.0
            expected += weight * kl(masked, scores).mean()
        assert loss == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_pour_d_has_the_distance_on_the_copies() -> None:
    model = tiny_net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = unlearn(model, "pour-d", lr=NOTHING, steps=2, epochs=None, anchor="views", anchor_weight=0.5)
    removal = head_removal(find_head(model), (FORGOTTEN,), "weights")
    for loss, (images, _, copies) in zip(losses(result), copies_of(Run(device="cpu")), strict=True):
        expected = 0.0
        for weight, inputs in ((1.0, images), (0.5, copies)):
            features = model[:-1](inputs)  # type: ignore[index]
            expected += weight * (features - removal(features)).square().sum(dim=1).mean().item()
        assert loss == pytest.approx(expected, rel=1e-4)


def test_no_forgotten_class_is_a_target_on_copies() -> None:
    teacher = nn.Linear(3, 5)
    copies = torch.rand(6, 3)
    scores = teacher(copies).detach()
    scores[:, [1, 4]] = -40.0
    distance = masked_divergence(teacher, {1, 4})
    expected = kl(scores, teacher(copies)).mean()
    assert distance(teacher, copies).item() == pytest.approx(expected, rel=1e-4)
    wide = nn.Linear(3, 6)
    with torch.no_grad():
        wide.weight[:5], wide.bias[:5] = teacher.weight, teacher.bias
    assert distance(wide, copies).item() == pytest.approx(expected, rel=1e-4), "a spare class does not count"
    # A map of scores has one distribution per pixel.
    teacher_map, student_map = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)
    maps = torch.rand(2, 3, 4, 6)
    target, answers = (network(maps).detach().movedim(1, -1).reshape(-1, 5) for network in (teacher_map, student_map))
    target[:, [1]] = -40.0
    found = masked_divergence(teacher_map, [1])(student_map, maps).item()
    assert found == pytest.approx(kl(target, answers).mean(), rel=1e-4)


def test_a_class_of_an_earlier_request_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[set[int]] = []

    def noted(teacher: nn.Module, classes: set[int]) -> Any:
        masked.append(set(classes))
        return masked_divergence(teacher, classes)

    monkeypatch.setattr("pour.unlearning.forget_only.masked_divergence", noted)
    first = small_request(classes=[1], forget=batches(2, 4, (1,), seed=1))
    model = unlearn(tiny_net(), "delete", first, lr=NOTHING, epochs=1)
    for name in OPTIONS.keys() - {"pour-d"}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            unlearn(model, name, lr=NOTHING, epochs=1, anchor="views")
    assert masked == [{1, FORGOTTEN}] * 5


@pytest.mark.parametrize("name", OPTIONS)
def test_a_loader_with_a_short_last_batch(name: str) -> None:
    images = torch.rand(9, 1, 6, 6)
    loader = DataLoader(TensorDataset(images, torch.full((9,), FORGOTTEN)), batch_size=4, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        extra = {"stop_accuracy": None} if name == "gradient-ascent" else {}
        result = unlearn(tiny_net(), name, small_request(forget=loader), lr=1e-4, epochs=2, anchor="views", **extra)
    assert all(tensor.isfinite().all() for tensor in result.state_dict().values())
    assert len(losses(result)) == 6


def test_copies_are_the_same_at_every_call_and_differ_between_epochs() -> None:
    run = Run(seed=1, device="cpu")
    loader = with_copies(EpochsOf([(torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8), torch.zeros(4))], 0), run)
    assert len(loader) == 1
    (images, _, first), (_, _, second), (_, _, other) = (next(loader.epoch(number)) for number in (0, 0, 1))
    assert images.is_floating_point()
    assert images.max() <= 1
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.shape == transformed_copies(images, 8, torch.Generator()).shape


@pytest.mark.parametrize("name", OPTIONS)
def test_inputs_that_are_not_images_are_refused(name: str) -> None:
    model = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 4))
    rows = [(torch.rand(4, 10), torch.full((4,), FORGOTTEN))] * 2
    request = ForgetRequest(classes=[FORGOTTEN], forget=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(UsageError, match=rf"{name} got inputs of shape \(10,\) and type .*; leave anchor= out"):
            unlearn(model, name, request, lr=1e-4, epochs=1, anchor="views")
        unlearn(model, name, request, lr=1e-4, epochs=1)


def test_wrong_options_are_told() -> None:
    with pytest.raises(UsageError, match="anchor must be none or views, but is 'copies'"):
        make_method("delete", anchor="copies")
    with pytest.raises(UsageError, match="anchor_weight must be above 0, but is 0"):
        make_method("pour-d", anchor_weight=0)


def test_stored_options_leave_out_newer_options_at_their_old_value() -> None:
    plain, views = make_method("delete"), make_method("delete", anchor="views", anchor_weight=2.0)
    assert plain.options().keys() - plain.stored_options().keys() == {"anchor", "anchor_weight"}
    assert plain.stored_options().items() <= plain.options().items()
    assert views.stored_options() == views.options()
    assert make_method("pour-p").stored_options() == make_method("pour-p").options()
