"""What every registered method must do, whoever wrote it, on scikit-learn's digits.

A new method is included by being registered; it needs one line in ``CASES``.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from method_cases import CASES, ITERATIVE, NAMES, case_of
from torch import Tensor, nn

import pour
from pour._records import encode
from pour.data.splits import Splits
from pour.errors import DivergenceError, UsageError
from pour.models.state import digest
from pour.models.tap import extract_features
from pour.training.recipes import get_recipe
from pour.training.run import Run
from pour.training.tasks.classify import Classify
from pour.unlearning import AccessError, ForgetRequest, get_method

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.dataset import ImageDataset, ImageSplit

CHANCE = 0.1
FORGOTTEN, ALSO, LATER = 3, 8, 5


class Poisoned:
    """Data that must not be read: any look at it fails."""

    def __iter__(self) -> Any:
        raise AssertionError("undeclared data was read")

    def __len__(self) -> int:
        raise AssertionError("undeclared data was measured")

    def __call__(self) -> nn.Module:
        raise AssertionError("an undeclared fresh model was built")


class Bench:
    """Runs methods on one original model and keeps the results."""

    def __init__(self, dataset: ImageDataset, original: nn.Module) -> None:
        self.dataset = dataset
        self.original = original
        self.before = copy.deepcopy(original)
        self.cache: dict[str, nn.Module] = {}

    def request(self, name: str, classes: tuple[int, ...]) -> ForgetRequest:
        """What ``name`` declared, and poison in place of everything else."""
        splits = Splits.of(self.dataset, list(classes)).holdout(0.1, seed=0)
        assert splits.validation is not None
        offered: dict[str, Any] = {
            "forget": splits.forget_train,
            "retain": splits.retain_train,
            "validation": splits.validation.retain,
            "build": lambda: pour.models.build_model("resnet-digits", 10, in_channels=1, image_size=8),
        }
        needs, accepts = get_method(name).needs, get_method(name).accepts
        allowed = {
            need: value if need in needs else None if need in accepts else Poisoned() for need, value in offered.items()
        }
        return ForgetRequest(classes=list(classes), recipe=get_recipe("digits"), mirrors=False, **allowed)

    def run(
        self,
        name: str,
        model: nn.Module | None = None,
        *,
        classes: tuple[int, ...] = (FORGOTTEN,),
        precision: Any = "fp32",
        **options: Any,
    ) -> nn.Module:
        """A new run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return pour.unlearn(
                self.original if model is None else model,
                self.request(name, classes),
                method=name,
                seed=0,
                device="cpu",
                precision=precision,
                progress=False,
                **(case_of(name).options | options),
            )

    def result(self, name: str) -> nn.Module:
        """The method's model with one class forgotten, made once."""
        if name not in self.cache:
            self.cache[name] = self.run(name)
        return self.cache[name]

    def scores(self, model: nn.Module, split: ImageSplit) -> tuple[Tensor, Tensor]:
        """Class scores and labels."""
        seen = extract_features(model, Classify().batches(split, Run(device="cpu", progress=False)))
        return seen.scores, seen.labels

    def accuracy(self, model: nn.Module, split: ImageSplit) -> float:
        """Share of images that the model names rightly."""
        scores, labels = self.scores(model, split)
        assert scores.isfinite().all()
        return float((scores.argmax(dim=1) == labels).double().mean())


def brief(name: str) -> dict[str, Any]:
    shorter = case_of(name).brief
    if shorter is None:
        return {"steps": 2, "epochs": None} if name in ITERATIVE else {}
    return shorter


@pytest.fixture(scope="module")
def bench(digits: ImageDataset, digits_original: nn.Module) -> Bench:
    return Bench(digits, digits_original)


def test_every_method_has_a_case() -> None:
    assert sorted(CASES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_forgets_the_class_and_keeps_the_rest(bench: Bench, name: str) -> None:
    splits = Splits.of(bench.dataset, [FORGOTTEN])
    result, case = bench.result(name), case_of(name)
    forget = bench.accuracy(result, splits.forget_test)
    drop = bench.accuracy(bench.original, splits.retain_test) - bench.accuracy(result, splits.retain_test)
    assert drop <= case.drop + 1e-9, f"retained accuracy fell by {drop:.3f}, forget accuracy is {forget:.3f}"
    if case.forgets:
        assert forget < CHANCE, f"forget accuracy is {forget:.3f}"
    else:
        assert case.reason


@pytest.mark.parametrize("name", NAMES)
def test_leaves_the_model_it_was_given_alone(bench: Bench, name: str) -> None:
    result = bench.result(name)
    expected = bench.before.state_dict()
    assert bench.original.state_dict().keys() == expected.keys()
    for key, tensor in bench.original.state_dict().items():
        assert torch.equal(tensor, expected[key]), key
    for module, twin in zip(bench.original.modules(), bench.before.modules(), strict=True):
        assert type(module) is type(twin)
        assert module.training == twin.training
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for parameter, twin in zip(bench.original.parameters(), bench.before.parameters(), strict=True):
        assert parameter.requires_grad == twin.requires_grad
        assert parameter.grad is None
    assert pour.history(bench.original) == pour.history(bench.before)
    shared = {tensor.data_ptr() for tensor in bench.original.state_dict().values()}
    assert not shared & {tensor.data_ptr() for tensor in result.state_dict().values() if tensor.numel()}


@pytest.mark.parametrize("name", NAMES)
def test_gives_back_a_model_that_is_ready_to_use(bench: Bench, name: str) -> None:
    result = bench.result(name)
    assert not any(module.training for module in result.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in result.modules())
    assert all(parameter.requires_grad for parameter in result.parameters())
    assert all(parameter.grad is None for parameter in result.parameters())
    assert bench.scores(result, bench.dataset.splits["test"])[0].shape[1] == bench.dataset.num_classes


@pytest.mark.parametrize("name", NAMES)
def test_says_what_was_done(bench: Bench, name: str) -> None:
    record = pour.history(bench.result(name))[-1]
    assert record.method == name
    assert record.classes == (FORGOTTEN,)
    assert record.class_names == (str(FORGOTTEN),)
    assert record.digest_before == digest(bench.original.state_dict())
    assert record.digest_after == digest(bench.result(name).state_dict())
    assert record.digest_before != record.digest_after
    assert record.steps == len(record.losses)
    assert all(math.isfinite(loss) for loss in record.losses)
    if name in ITERATIVE:
        assert record.steps > 0
    stored = json.loads(encode(record))["options"]
    assert {option.name for option in dataclasses.fields(get_method(name))} <= stored.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bytes(bench: Bench, name: str) -> None:
    again = bench.run(name)
    assert digest(again.state_dict()) == digest(bench.result(name).state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_needs_what_it_declares(bench: Bench, name: str) -> None:
    needs = get_method(name).needs
    for need in needs:
        request = dataclasses.replace(bench.request(name, (FORGOTTEN,)), **{need: None})
        with pytest.raises(UsageError, match=rf"^{name} needs .*pass {need}="):
            pour.unlearn(bench.original, request, method=name, device="cpu", progress=False, **case_of(name).options)
    granted = bench.request(name, (FORGOTTEN,)).grant(needs, name=name)
    for undeclared in {"forget", "retain", "validation", "build"} - set(needs):
        with pytest.raises(AccessError, match=f"{name} read .* without declaring"):
            getattr(granted, undeclared)


@pytest.mark.parametrize("name", NAMES)
def test_forgets_several_classes(bench: Bench, name: str) -> None:
    classes = (FORGOTTEN, ALSO)
    splits = Splits.of(bench.dataset, list(classes))
    case = case_of(name)
    result = bench.run(name, classes=classes, **(case.several if case.forgets else brief(name)))
    assert pour.history(result)[-1].classes == classes
    forget = bench.accuracy(result, splits.forget_test)
    if case.forgets:
        assert forget < 2 * CHANCE, f"forget accuracy is {forget:.3f}"


@pytest.mark.parametrize("name", NAMES)
def test_saves_loads_and_continues(bench: Bench, name: str, tmp_path: Path) -> None:
    path = pour.save(bench.result(name), tmp_path / "forgotten.safetensors")
    loaded = pour.load(path)
    test = bench.dataset.splits["test"]
    torch.testing.assert_close(bench.scores(loaded, test)[0], bench.scores(bench.result(name), test)[0])
    # Wall-clock times are not kept in files.
    expected = [dataclasses.replace(record, seconds=0.0) for record in pour.history(bench.result(name))]
    assert json.loads(encode(pour.history(loaded))) == json.loads(encode(expected))
    later = bench.run(name, loaded, classes=(LATER,), **brief(name))
    assert [record.classes for record in pour.history(later)] == [(FORGOTTEN,), (LATER,)]
    assert bench.scores(later, test)[0].isfinite().all()
    again = pour.load(pour.save(later, tmp_path / "later.safetensors"))
    torch.testing.assert_close(bench.scores(again, test)[0], bench.scores(later, test)[0])


@pytest.mark.parametrize("name", NAMES)
def test_works_in_bf16(bench: Bench, name: str) -> None:
    result = bench.run(name, precision="bf16", **brief(name))
    if name in ITERATIVE:
        # Rounded otherwise, so it ends elsewhere.
        plain = bench.run(name, precision="fp32", **brief(name)).state_dict()
        assert any(not torch.equal(tensor, plain[key]) for key, tensor in result.state_dict().items())
    dtypes = {tensor.dtype for tensor in result.state_dict().values() if tensor.is_floating_point()}
    assert dtypes == {torch.float32}
    assert bench.scores(result, bench.dataset.splits["test"])[0].isfinite().all()


@pytest.mark.parametrize("name", ITERATIVE)
def test_a_diverging_rate_is_told(bench: Bench, name: str) -> None:
    with pytest.raises(DivergenceError, match="use a smaller learning rate"):
        bench.run(name, **(brief(name) | {"lr": 1e30} | ({"steps": 12} if "steps" in brief(name) else {})))


@pytest.mark.parametrize("name", ITERATIVE)
def test_a_last_step_that_destroys_the_network_is_told(bench: Bench, name: str) -> None:
    """Its loss was measured before it."""
    one = {"steps": 1} if "steps" in brief(name) else {}
    with pytest.raises(DivergenceError, match="use a smaller learning rate"):
        bench.run(name, **(brief(name) | one | {"lr": 1e30}))


@pytest.mark.parametrize("name", NAMES)
def test_takes_a_network_in_half_precision_and_gives_one_back(bench: Bench, name: str) -> None:
    half = copy.deepcopy(bench.original).to(torch.bfloat16)
    result = bench.run(name, half, **brief(name))
    # A projector, which is a buffer, keeps its precision.
    assert {parameter.dtype for parameter in result.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    images = torch.as_tensor(bench.dataset.splits["test"].images[:50]).permute(0, 3, 1, 2) / 255
    assert result(images.to(torch.bfloat16)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_images_of_the_wrong_classes_are_told(bench: Bench, name: str) -> None:
    request = bench.request(name, (FORGOTTEN,))
    needs, train = get_method(name).needs, bench.dataset.splits["train"]
    odd = {"forget": "but the request forgets only", "retain": "which is to be forgotten"}
    for need, words in odd.items():
        if need in needs:
            with pytest.raises(UsageError, match=f"The images to {need} contain class .*{words}"):
                pour.unlearn(
                    bench.original,
                    dataclasses.replace(request, **{need: train}),
                    method=name,
                    device="cpu",
                    progress=False,
                    **(case_of(name).options | brief(name)),
                )


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_none_are_told(bench: Bench, name: str) -> None:
    floats = [
        option.name
        for option in dataclasses.fields(get_method(name))
        if isinstance(option.default, float) and option.name != "layer_decay"
    ]
    for option in floats:
        for odd in (float("nan"), float("inf")):
            with pytest.raises(UsageError):
                pour.unlearn(
                    bench.original,
                    bench.request(name, (FORGOTTEN,)),
                    method=name,
                    device="cpu",
                    progress=False,
                    **{option: odd},
                )


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_told(bench: Bench, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} has no option 'temprature'"):
        pour.unlearn(bench.original, bench.request(name, (FORGOTTEN,)), method=name, temprature=1.0, device="cpu")
