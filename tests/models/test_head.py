"""Finding the head, and saying clearly why it cannot be found."""

from __future__ import annotations

import re
import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from model_families import CLASSES, FAMILIES, ConvHead, TokenHead, build_family, mlp, timm_model, torchvision_model
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
    """Returns the head's output at another temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images) * 2


class Functional(nn.Module):
    """Computes its scores from a weight: a parameter of its own (as ArcFace does), or that of a layer it never calls.

    Args:
        width: Features of the embedding.
        layer: Use the weight of a layer.
        cosine: Normalise features and weight.
        after: What is done to the scores.
    """

    def __init__(
        self, width: int = 16, *, layer: bool = False, cosine: bool = False, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.emb = nn.Linear(3072, width)
        self.out = nn.Linear(width, CLASSES) if layer else nn.Module()
        if not layer:
            self.out.weight, self.out.bias = nn.Parameter(torch.randn(CLASSES, width)), None
        self.cosine = cosine
        self.after = after or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        z, weight = self.emb(images.flatten(1)).tanh(), self.out.weight
        if self.cosine:
            z, weight = nn.functional.normalize(z), nn.functional.normalize(weight)
        return self.after(nn.functional.linear(z, weight, self.out.bias))


class Transformer(nn.Module):
    """Patches, two layers, the mean of tokens or of their scores."""

    def __init__(self, *, pool_scores: bool = False, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * 64, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.5, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.fc = nn.Linear(width, CLASSES)
        self.pool_scores = pool_scores

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        tokens = self.blocks(self.patches(patches))
        return self.fc(tokens).mean(dim=1) if self.pool_scores else self.fc(tokens.mean(dim=1))


class Enlarged(nn.Module):
    """A map of scores, enlarged and cropped as segmentation networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, stride=4), nn.ReLU(), nn.Conv2d(6, CLASSES, 1), nn.ReLU())
        self.score = nn.Conv2d(CLASSES, CLASSES, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.score(self.body(images))
        wide = nn.functional.interpolate(maps, size=(36, 36), mode="bilinear", align_corners=False)
        return {"out": wide[..., 2:34, 2:34]}


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
    assert find_head(Gated()).name == "out"
    with pytest.raises(UsageError, match=r"does not prove which layer.*are skip \(8 x 3\); pass example="):
        find_head(Skipped())
    with pytest.raises(UsageError, match=r"does not prove that its scores are the output of 'gate'; pass example="):
        find_head(Gated(), head="gate")
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


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_verified_on_an_example(family: str) -> None:
    model, (_, options, name) = build_family(family), FAMILIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_head(model, **(options | {"example": EXAMPLE[:1]})).name == name
        projected = forget(model, [0], **options)
        assert find_head(projected, example=EXAMPLE).name == name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (mlp(), "out"),
        (mlp(width=CLASSES), "out"),
        (mlp().half(), "out"),
        (mlp().bfloat16(), "out"),
        (Scaled(), "net.out"),
        (nn.Sequential(mlp(), nn.Softmax(dim=1)), "0.out"),
        (nn.Sequential(mlp(), nn.LogSoftmax(dim=1)), "0.out"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 2), nn.Tanh(), nn.Linear(2, 2)), "3"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000), nn.Linear(1000, 1000), nn.Softmax(dim=1)), "2"),
        (Transformer(), "fc"),
        (Transformer(width=CLASSES * 2), "fc"),
        (Transformer(pool_scores=True), "fc"),
        (TokenHead(), "readout"),
        (ConvHead(), "score"),
        (Enlarged(), "score"),
        (Functional(layer=True), "out"),
        (Functional(CLASSES, layer=True, after=nn.Softmax(dim=1)), "out"),
    ],
)
def test_the_layer_that_gives_the_scores_is_found(model: nn.Module, name: str) -> None:
    example = EXAMPLE.to(next(model.parameters()).dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for few in (example, example[:1]):
            assert find_head(model, example=few).name == name
        assert find_head(model, head=name, example=example).name == name


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Functional(), "its linear layers are emb (16 x 3072)"),
        (Functional(cosine=True), "its linear layers are emb (16 x 3072)"),
        (Functional(CLASSES), "although emb (7 x 3072) has as many outputs"),
        (Functional(layer=True, cosine=True), "although out (7 x 16) has as many outputs"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, CLASSES), nn.ReLU()), "although 1 (7 x 3072)"),
        (torchvision_model("squeezenet1_1"), "although classifier.1 (7 x 512)"),
    ],
)
def test_a_layer_that_does_not_give_the_scores_is_refused(model: nn.Module, layers: str) -> None:
    with pytest.raises(UsageError, match=re.escape(layers)):
        find_head(model, example=torch.rand(2, 3, 64, 64) if "classifier" in layers else EXAMPLE)


def test_a_wrong_place_of_a_library_is_corrected() -> None:
    model = build_family("timm-vit")
    kind = type(model)
    model.__class__ = type("Wrong", (kind,), {"get_classifier": lambda self: self.blocks[0].mlp.fc2})
    assert find_head(model).name == find_head(model, example=EXAMPLE).name == "head"


def test_a_name_is_checked_on_an_example() -> None:
    with pytest.raises(UsageError, match=r"head 'hidden' gives 12 scores, but the model another number"):
        find_head(mlp(), head="hidden", example=EXAMPLE)
    with pytest.raises(UsageError, match=r"not the output of 'hidden', but of 'out'; name it with head='out'"):
        find_head(mlp(width=CLASSES), head="hidden", example=EXAMPLE)
    changed = nn.Sequential(mlp(), nn.ReLU())
    with pytest.raises(UsageError, match=r"does not prove that its scores are the output of '0.out'"):
        forget(changed, [0], head="0.out")
    projected = nn.Sequential(forget(mlp(), [0]), nn.ReLU())
    for model, options in ((changed, {"head": "0.out"}), (projected, {})):
        with pytest.raises(UsageError, match=r"not the output of its head '0.out'; behind it run 1 \(ReLU\)"):
            find_head(model, example=EXAMPLE, **options)


def test_a_relu_after_the_last_convolution_is_not_taken_for_a_head() -> None:
    model = torchvision_model("squeezenet1_1")
    with pytest.raises(UsageError, match=r"does not prove which layer"):
        find_head(model)


def test_two_heads_are_listed() -> None:
    with pytest.raises(UsageError, match=r"kind \(5 x 3072\), place \(4 x 3072\).*head='place'"):
        find_head(TwoHeads(), example=EXAMPLE)
    assert find_head(TwoHeads(), head="kind").num_classes == 5
    distilled = timm_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1)
    assert find_head(distilled, example=EXAMPLE).names == "head,head_dist"


def test_no_head_and_unclear_head() -> None:
    with pytest.raises(UsageError, match=r"no linear layer or 1x1 convolution"):
        find_head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    assert find_head(mlp()).name == "out"
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
