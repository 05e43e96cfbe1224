"""Finding the head, and saying clearly why it cannot be found."""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from model_families import CLASSES, FAMILIES, ConvHead, build_family, mlp, timm_model, torchvision_model
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models import extract_features, find_head, forget, scores_of

EXAMPLE = torch.rand(2, 3, 32, 32)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.kind = nn.Linear(3072, 5)
        self.place = nn.Linear(3072, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(images)
        return self.kind(z), self.place(z)


class Scaled(nn.Module):
    """Changes the head's output, so that only the width tells."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images) * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_found_where_it_is(family: str) -> None:
    model = build_family(family)
    _, options, name = FAMILIES[family]
    head = find_head(model, **options)
    assert head.name == name
    assert head.module is model.get_submodule(name)
    assert (head.num_classes, head.num_features) == tuple(head.weight.shape)
    assert head.num_classes == CLASSES
    assert head.dim == (1 if family.startswith("conv") else -1)
    assert not head.weight.requires_grad
    projected = forget(model, [0], **options)
    again = find_head(projected)
    assert (again.name, again.num_features) == (name, head.num_features)
    assert torch.equal(again.weight, head.weight)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_wrappers_are_looked_through(wrap, small: nn.Module) -> None:
    wrapped = wrap(small)
    assert find_head(wrapped).name == "head"
    assert find_head(wrapped, head=next(n for n, m in wrapped.named_modules() if m is small.head)).name == "head"
    assert type(forget(wrapped, [0])) is type(small)


def test_a_child_called_module_is_no_wrapper() -> None:
    averaged = torch.optim.swa_utils.AveragedModel(mlp())
    name = find_head(averaged, head="module.out").name
    assert name == "module.out"
    assert find_head(averaged, example=EXAMPLE).name == name
    batches = [(EXAMPLE, torch.zeros(2, dtype=torch.int64))]
    assert extract_features(averaged, batches, head=name).scores.shape == (2, CLASSES)


class Gated(nn.Module):
    """Its only ``nn.Linear`` is a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.gate = nn.Linear(8, 8)
        self.out = nn.Conv2d(8, 5, 1)

    def forward(self, images: Tensor) -> Tensor:
        z = self.conv(images)
        return self.out(z * self.gate(z.mean((2, 3)))[:, :, None, None]).mean((2, 3))


class Skipped(nn.Module):
    """Its only 1x1 convolution is a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Conv2d(3, 8, 1)
        self.out = nn.Conv2d(8, 5, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.skip(images))


def test_a_gate_or_a_shortcut_is_not_taken_for_the_head() -> None:
    with pytest.raises(UsageError, match=r"gate \(8 x 8\), out \(5 x 8\); name the head with head="):
        find_head(Gated())
    with pytest.raises(UsageError, match=r"one linear layer, skip \(8 x 3\), but others with weights come after it"):
        find_head(Skipped())
    assert find_head(Gated(), head="out").num_classes == 5
    assert find_head(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 1), nn.Flatten())).name == "1"


@pytest.mark.parametrize("example", [EXAMPLE, (EXAMPLE,), {"input": EXAMPLE}])
def test_example_may_be_tensor_arguments_or_keywords(example) -> None:
    model = mlp().train()
    model.act = nn.Dropout(0.5)
    state = torch.get_rng_state()
    assert find_head(model, example=example).name == "out"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_tracing_releases_hooks_and_modes_when_the_model_fails() -> None:
    model = mlp().train()
    with pytest.raises(UsageError, match=r"cannot run on example="):
        find_head(model, example=torch.rand(2, 5))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_head_chosen_by_width_alone_comes_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"chosen by its width"):
        assert find_head(Scaled(), example=EXAMPLE).name == "net.out"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_head(Scaled(), head="net.out").name == "net.out"


def test_a_relu_after_the_last_convolution_is_not_taken_for_a_head() -> None:
    model = torchvision_model("squeezenet1_1")
    with pytest.raises(UsageError, match=r"head="):
        find_head(model)


def test_two_heads_are_listed() -> None:
    with pytest.raises(UsageError, match=r"kind \(5 x 3072\), place \(4 x 3072\).*head='place'"):
        find_head(TwoHeads(), example=EXAMPLE)
    assert find_head(TwoHeads(), head="kind").num_classes == 5
    distilled = timm_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1)
    with pytest.raises(UsageError, match=r"head \(7 x 192\), head_dist \(7 x 192\)"):
        find_head(distilled, example=EXAMPLE)


def test_no_head_and_unclear_head() -> None:
    with pytest.raises(UsageError, match=r"no linear layer or 1x1 convolution"):
        find_head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    with pytest.raises(UsageError, match=r"name the head with head=, or pass example="):
        find_head(mlp())
    with pytest.raises(UsageError, match=r"single score"):
        find_head(nn.Linear(4, 1))
    with pytest.raises(UsageError, match=r"no weights yet"):
        find_head(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))
    with pytest.raises(UsageError, match=r"as many scores"):
        find_head(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 3)), example=EXAMPLE)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("ot", "no layer called 'ot'.*out"), ("act", "is a ReLU"), ("", "linear layers in it are")],
)
def test_wrong_names(name: str, sentence: str) -> None:
    if not name:
        with pytest.raises(UsageError, match=r"linear layers in it are net.hidden, net.out"):
            find_head(Scaled(), head="net")
        return
    with pytest.raises(UsageError, match=sentence):
        find_head(mlp(), head=name)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 1, "padding": 1},
        {"kernel_size": 1, "groups": 2},
    ],
)
def test_other_convolutions_are_no_heads(options: dict[str, int]) -> None:
    model = ConvHead()
    model.score = nn.Conv2d(8, 8, **options)
    with pytest.raises(UsageError, match=r"not nn.Linear or a 1x1 nn.Conv2d"):
        find_head(model, head="score")


def test_scores_inside_every_kind_of_output() -> None:
    scores = torch.ones(2, 3)

    @dataclass
    class Output:
        loss: None
        logits: Tensor

    pair = namedtuple("pair", ["aux", "logits"])
    for output in (scores, (scores, None), [scores], {"x": 1, "logits": scores}, {"aux": 0 * scores, "out": scores}):
        assert scores_of(output) is scores
    assert scores_of(Output(None, scores)) is scores
    assert scores_of(pair(0 * scores, scores)) is scores
    with pytest.raises(UsageError, match=r"without a score tensor"):
        scores_of({"loss": 1.0})
