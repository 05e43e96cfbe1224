"""The one call on networks and data of a user's own."""

from __future__ import annotations

import copy
import random
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from small_requests import FORGET, FORGOTTEN, RETAIN, VALIDATION, small_request, tiny_net
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pour
from pour._records import decode, encode
from pour.data.loader import DeviceLoader
from pour.errors import UsageError
from pour.methods.masked_head import MaskedHead
from pour.models import build_model, digest, find_head, set_class_names
from pour.models.history import HistoryEntry
from pour.training import Recipe
from pour.training.tasks.classify import Classify
from pour.unlearning import ForgetRequest, make_method, register, request_of
from pour.unlearning.access import Images
from pour.unlearning.toolkit.teachers import without_dropout

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.dataset import ImageDataset
    from pour.data.splits import Splits


class Unproved(nn.Sequential):
    """Layers whose code depends on the values of its input, so that it proves nothing."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images / max(1.0, float(images.max())))


def network() -> nn.Module:
    """Two linear layers, either of which could be the head."""
    torch.manual_seed(0)
    return Unproved(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 4)).eval()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pour-p", {}),
        ("pour-d", {"steps": 2}),
        ("delete", {"steps": 2}),
        ("leace", {}),
        ("masked-head", {}),
        ("boundary-expand", {"steps": 2}),
        ("bad-teacher", {"epochs": 1}),
        ("retrain", {"epochs": 1}),
    ],
)
@pytest.mark.parametrize("told", [{"head": "3"}, {"example": torch.zeros(1, 1, 6, 6)}])
def test_a_head_that_is_not_found_by_itself(
    tmp_path: Path, method: str, options: dict[str, Any], told: dict[str, Any]
) -> None:
    model, request = network(), small_request(build=network, recipe="digits")
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = pour.unlearn(model, request, method=method, device="cpu", progress=False, **told, **options)
    assert find_head(result).name == "3"
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    with pytest.raises(UsageError, match="does not prove which layer gives its scores"):
        find_head(model)
    pour.save(result, tmp_path / "m.safetensors")
    again = pour.load(tmp_path / "m.safetensors", network())
    assert find_head(again).name == "3"
    images = torch.rand(5, 1, 6, 6)
    assert torch.equal(again(images), result(images))
    assert pour.history(again)[-1].method == method


class Attentive(nn.Module):
    """A small vision transformer with several linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(9, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.fc = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        images = images / max(1.0, float(images.max()))
        patches = images.unfold(2, 3, 3).unfold(3, 3, 3).reshape(len(images), 4, 9)
        return self.fc(self.block(self.patches(patches)).mean(dim=1))


class Cosine(nn.Module):
    """An embedding whose scores come from a parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb = nn.Linear(36, width)
        self.weight = nn.Parameter(torch.randn(4, width))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.normalize(self.emb(images.flatten(1))), self.weight)


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("pour-p", {}),
    ("masked-head", {}),
    ("random-direction", {}),
    ("pour-d", {"steps": 2}),
    ("delete", {"steps": 2}),
    ("leace", {}),
    ("unsir", {}),
    ("finetune", {"epochs": 1}),
]


def loader(**options: Any) -> DataLoader[Any]:
    """Images of class 2 in random order."""
    images = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(images, torch.full((12,), 2)), batch_size=4, shuffle=True, **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize(("build", "name"), [(network, "3"), (Attentive, "fc")])
def test_the_head_is_found_on_the_images_of_the_request(
    tmp_path: Path, method: str, options: dict[str, Any], build: Any, name: str
) -> None:
    torch.manual_seed(0)
    model = build()
    request = small_request(forget=loader())
    result = pour.unlearn(model, request, method=method, device="cpu", progress=False, **options)
    assert find_head(result).name == name
    with pytest.raises(UsageError, match="does not prove which layer gives its scores"):
        find_head(model)
    pour.save(result, tmp_path / "m.safetensors")
    assert find_head(pour.load(tmp_path / "m.safetensors", build())).name == name
    named = pour.unlearn(model, request, method=method, device="cpu", progress=False, head=name, **options)
    assert digest(named.state_dict()) == digest(result.state_dict())
    uint8 = small_request(forget=[(torch.randint(0, 256, (2, 1, 6, 6), dtype=torch.uint8), torch.tensor([2, 2]))])
    assert find_head(pour.unlearn(model, uint8, method="pour-p", device="cpu")).name == name
    half = pour.unlearn(build().half(), request, method=method, device="cpu", progress=False, **options)
    assert find_head(half).name == name
    assert next(half.parameters()).dtype == torch.float16


@pytest.mark.parametrize("method", ["pour-p", "masked-head", "pour-d", "delete"])
def test_a_layer_that_is_not_the_head_is_refused(method: str) -> None:
    for width, words in ((8, "its linear layers are emb"), (4, r"although emb \(4 x 36\) has as many outputs")):
        with pytest.raises(UsageError, match=words):
            pour.unlearn(Cosine(width), small_request(), method=method, device="cpu", progress=False)
    with pytest.raises(UsageError, match="'1' gives 6 scores, but the model another number"):
        pour.unlearn(network(), small_request(), method=method, device="cpu", progress=False, head="1")
    with pytest.raises(UsageError, match="no layer called 'seven'"):
        pour.unlearn(network(), small_request(), method=method, device="cpu", head="seven")
    changed = nn.Sequential(*network(), nn.ReLU())
    with pytest.raises(UsageError, match=r"not the output of its head '3'; behind it run 4 \(ReLU\)"):
        pour.unlearn(changed, small_request(), method=method, device="cpu", progress=False, head="3")


@pytest.mark.parametrize("own", [False, True])
def test_reading_the_first_images_draws_nothing_random(own: bool) -> None:
    generator = torch.Generator().manual_seed(1) if own else None
    batches = loader(generator=generator)
    before = torch.get_rng_state(), random.getstate(), generator and generator.get_state()
    assert Images(batches).few(3).shape == (3, 1, 6, 6)
    after = torch.get_rng_state(), random.getstate(), generator and generator.get_state()
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert generator is None or torch.equal(before[2], after[2])  # type: ignore[arg-type]
    epochs = DeviceLoader(np.zeros((9, 6, 6, 1), np.uint8), np.arange(9), batch_size=3, device="cpu", shuffle=True)
    Images(epochs).few(3)
    assert epochs._next_epoch == 0


@pytest.mark.parametrize("method", ["pour-p", "delete"])
def test_images_that_cannot_be_read_are_told(method: str) -> None:
    batches = [(torch.rand(3, 1, 6, 6), torch.full((3,), 2))]
    for forget, words in (
        (list(loader().dataset), r"single samples, not batches"),
        (iter(batches), "can be read only once"),
        ([], "contains no batches"),
        ([{"image": torch.rand(3)}], "fields image, none of which is known for labels"),
        ([(torch.rand(3, 2, 6, 6), torch.full((3,), 2))], r"cannot run on images of shape \(3, 2, 6, 6\) \(mat1"),
    ):
        with pytest.raises(UsageError, match=words):
            pour.unlearn(network(), ForgetRequest(classes=[2], forget=forget), method=method, device="cpu")
    # Without images of its own a method does what it can.
    result = pour.unlearn(tiny_net(), ForgetRequest(classes=[2], forget=iter(batches)), method="pour-p", device="cpu")
    assert find_head(result).name == "5"


def test_without_images_it_says_what_to_pass() -> None:
    with pytest.raises(UsageError, match=r"1 \(6 x 36\), 3 \(4 x 6\); pass example="):
        pour.unlearn(network(), ForgetRequest(classes=[2]), method="pour-p", device="cpu")


def test_an_audit_traces_the_head(digits_splits: Splits) -> None:
    """On an example; on the audit's own images in the tests of audits."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    report = pour.audit(
        original=model,
        unlearned=pour.forget(model, classes=[3], head="3"),
        data=digits_splits,
        example=torch.zeros(1, 1, 8, 8),
        device="cpu",
        progress=False,
        trusted=True,
    )
    assert report.value("acc_f") == 0


@pytest.mark.parametrize(
    ("channels", "classes", "sentence"),
    [
        (3, 10, "takes images of 3 channels, and these have 1"),
        (1, 7, "scores for 7 classes, and the data have 10"),
    ],
)
def test_data_of_another_kind_are_refused(
    digits: ImageDataset, digits_splits: Splits, channels: int, classes: int, sentence: str
) -> None:
    model = build_model("resnet-digits", classes, in_channels=channels, image_size=8)
    named = request_of(Classify(), digits, ["3"], make_method("pour-d"), model)
    for request in (ForgetRequest.of(digits_splits), named):
        with pytest.raises(UsageError, match=sentence):
            pour.unlearn(model, request, device="cpu", progress=False)
    with pytest.raises(UsageError, match=sentence):
        pour.audit(original=model, unlearned=model, data=digits_splits, device="cpu", progress=False)


def test_classes_in_another_order_are_refused(digits_splits: Splits, digits_original: nn.Module) -> None:
    letters = tuple("abcdefghij")
    splits = replace(digits_splits, classes=letters)
    model = copy.deepcopy(digits_original)

    def asked(data: Splits) -> nn.Module:
        return pour.unlearn(model, ForgetRequest.of(data), method="pour-p", device="cpu", progress=False)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked(splits)
        set_class_names(model, letters)
        asked(splits)
        # Names that are mere numbers say nothing.
        asked(digits_splits)
    set_class_names(model, letters[::-1])
    with pytest.raises(
        UsageError, match="Class 0 is 'j' in the model and 'a' in the data: the same classes in another"
    ):
        asked(splits)
    set_class_names(model, [letter.upper() for letter in letters])
    with pytest.warns(UserWarning, match="Class 0 is 'A' in the model and 'a' in the data; make sure"):
        asked(splits)


@pytest.mark.parametrize("method", ["finetune", "salun", "ssd", "sure", "fcs"])
def test_a_model_that_may_not_be_trained_is_told(method: str) -> None:
    with pytest.raises(UsageError, match="no parameter that may be trained"):
        pour.unlearn(
            network().requires_grad_(False), small_request(), method=method, device="cpu", progress=False, head="3"
        )


def test_a_learning_rate_of_none_is_only_for_a_method_that_finds_its_own() -> None:
    with pytest.raises(UsageError, match=r"finetune needs a learning rate; leave lr out for the default, 0.01\."):
        make_method("finetune", lr=None)
    assert make_method("pour-d", lr=None).options()["lr"] is None
    assert make_method("retrain", lr=None).options()["lr"] is None


@pytest.mark.parametrize("method", ["pour-p", "masked-head", "pour-d", "delete", "esc"])
def test_names_of_an_earlier_head_are_left_out(method: str) -> None:
    model = network()
    set_class_names(model, [f"name{index}" for index in range(7)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = pour.unlearn(model, small_request(), method=method, device="cpu", progress=False, head="3")
    record = pour.history(result)[-1]
    assert (record.classes, record.class_names) == ((2,), ())


def test_a_method_is_what_the_registry_takes() -> None:
    with pytest.raises(UsageError, match=r"A method is a subclass of pour.unlearning.Method, not <module"):
        register(warnings)  # type: ignore[type-var]

    @dataclass(kw_only=True)
    class Delete(MaskedHead):
        name: ClassVar[str] = "delete"

    with pytest.raises(UsageError, match=r"already a method 'delete', in pour.methods.delete"):
        register(Delete)

    @dataclass(kw_only=True)
    class Odd(MaskedHead):
        name: ClassVar[str] = "odd"
        needs: ClassVar[tuple[Any, ...]] = ("forgets",)

    with pytest.raises(UsageError, match="needs 'forgets', which no request has"):
        register(Odd)


def test_a_method_gets_indices_and_gives_back_a_model() -> None:
    seen: list[object] = []

    class Watching(MaskedHead):
        def __call__(self, model: nn.Module, request: Any, run: Any) -> nn.Module:
            seen.append(request.classes)
            return None  # type: ignore[return-value]

    model = tiny_net()
    set_class_names(model, ["a", "b", "c", "d"])
    with pytest.raises(UsageError, match="masked-head returned a NoneType; its __call__ must return the model"):
        pour.unlearn(model, ForgetRequest(classes=["c"]), method=Watching(), device="cpu", progress=False)
    assert seen == [(2,)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True),
        lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True),
    ],
)
def test_nothing_is_dropped_inside_attention_and_recurrence(make):
    torch.manual_seed(0)
    layer, tokens = make().train(), torch.randn(2, 5, 8)

    def differs():
        one, other = (output[0] if isinstance(output := layer(tokens), tuple) else output for _ in range(2))
        return not torch.equal(one, other)

    with without_dropout(layer):
        assert not differs()
    assert differs()


def test_the_history_says_what_a_method_found(digits_original, digits_splits):
    request = pour.ForgetRequest.of(digits_splits)
    result = pour.unlearn(digits_original, request, method="delete", steps=3, device="cpu", progress=False)
    log = pour.history(result)[-1].log
    assert log[0]["step"] == 0
    assert log[0]["target_entropy"] > 0
    assert log[-1] == {"step": 3, "forget_accuracy": log[-1]["forget_accuracy"]}
    assert decode(HistoryEntry, encode(pour.history(result)[-1]), "history.json") == pour.history(result)[-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", ["pour-d", "delete"])
def test_batches_in_the_models_own_precision_are_taken(method: str, dtype: torch.dtype) -> None:
    batches = [(images.to(dtype), labels) for images, labels in small_request().forget]  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = pour.unlearn(
            tiny_net().to(dtype), ForgetRequest(classes=[2], forget=batches), method=method, steps=2, device="cpu"
        )
    assert {parameter.dtype for parameter in result.parameters()} == {dtype}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_weights_keep_their_layout(layout: torch.memory_format) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, 4))
    model = model.to(memory_format=layout).eval()  # type: ignore[call-overload]
    result = pour.unlearn(model, small_request(), method="delete", steps=2, device="cpu", progress=False)
    strides = [[parameter.stride() for parameter in network.parameters()] for network in (model, result)]
    assert strides[0] == strides[1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_unlearning_trains_in_the_middle_of_an_evaluation(mode: Any) -> None:
    model = tiny_net()
    with mode():
        result = pour.unlearn(model, small_request(), method="delete", steps=2, device="cpu", progress=False)
    assert any(not torch.equal(a, b) for a, b in zip(result.parameters(), model.parameters(), strict=True))
    result(torch.rand(2, 1, 6, 6)).sum().backward()


def test_all_but_one_class_are_never_forgotten_one_after_the_other() -> None:
    model = tiny_net()
    for label in (0, 1):
        model = pour.fold(pour.forget(model, [label]))
    with pytest.raises(UsageError, match="after the 2 forgotten earlier would leave one class"):
        pour.forget(model, [2])
    with pytest.raises(UsageError, match="after the 2 forgotten earlier would leave one class"):
        pour.unlearn(model, small_request(), method="delete", device="cpu", progress=False)


def test_something_else_than_a_request_is_told(digits_splits: Splits) -> None:
    with pytest.raises(UsageError, match=r"not a Splits; make one of splits with pour.ForgetRequest.of"):
        pour.unlearn(tiny_net(), digits_splits, device="cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "parts", "options"),
    [
        ("pour-p", {}, {}),
        ("pour-d", {"forget": FORGET}, {"steps": 3, "lr": 1e-3}),
        ("pour-a", {"forget": FORGET, "retain": RETAIN}, {"steps": 3, "lr": 1e-3}),
        ("finetune", {"retain": RETAIN}, {"epochs": 1}),
        ("sure", {"forget": FORGET, "retain": RETAIN, "validation": VALIDATION}, {"epochs": 1}),
        ("retrain", {"retain": RETAIN, "build": tiny_net, "recipe": "digits"}, {"epochs": 1}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_request_is_made_from_classes_and_data(method: str, parts: dict[str, Any], options: dict[str, Any]) -> None:
    model = tiny_net()
    set_class_names(model, ["cat", "dog", "fox", "owl"])
    common: dict[str, Any] = {"method": method, "device": "cpu", "progress": False, **options}
    expected = pour.unlearn(model, ForgetRequest(classes=[FORGOTTEN], **parts), **common)
    result = pour.unlearn(model, classes=["fox"], **parts, **common)
    assert digest(result.state_dict()) == digest(expected.state_dict())
    assert pour.history(result)[-1].class_names == ("fox",)


def test_a_request_and_its_parts_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="pass either request= or forget=, not both"):
        pour.unlearn(tiny_net(), small_request(), forget=FORGET, device="cpu")
    with pytest.raises(UsageError, match="pass classes= and the data, or request="):
        pour.unlearn(tiny_net(), forget=FORGET, device="cpu")
    with pytest.raises(UsageError, match="no recipe 'slow'; the recipes are fast"):
        pour.unlearn(tiny_net(), classes=[FORGOTTEN], recipe="slow", device="cpu")


def test_the_recipe_of_retraining_is_that_of_the_original() -> None:
    result = pour.unlearn(
        tiny_net(),
        classes=[FORGOTTEN],
        retain=RETAIN,
        build=tiny_net,
        recipe=Recipe(name="mine", steps=2, lr=1e-3),
        method="retrain",
        device="cpu",
        progress=False,
    )
    assert pour.history(result)[-1].options["recipe"] == "mine"
    assert pour.history(result)[-1].steps == 2
