"""A head is verified on an input, or proved by the code of the model, or refused with the way out."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from model_families import CLASSES, hf_model, torchvision_model
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

import pour
from pour.errors import UsageError
from pour.models import find_head, forget, scores_of
from pour.models.prove_head import structure_proves

IMAGES = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
WAY_OUT = r"pass example=|module of its own|gives 32 scores, but the model another number|not nn.Linear or a 1x1"


class Embedded(nn.Module):
    """An embedding, the only plain linear layer, before scores that are computed in one of several ways."""

    def __init__(self, kind: str, width: int = 32) -> None:
        super().__init__()
        self.kind = kind
        self.emb = nn.Linear(48, width)
        self.rows = nn.Parameter(torch.randn(CLASSES, width))
        self.conv = nn.Conv1d(width, CLASSES, 1)
        self.bilinear = nn.Bilinear(width, width, CLASSES)

    def forward(self, images: Tensor) -> Any:
        z = self.emb(images.flatten(1))
        if self.kind == "cosine":
            return linear(normalize(z), normalize(self.rows))
        if self.kind == "arcface":
            angle = linear(normalize(z), normalize(self.rows)).clamp(-0.999, 0.999).acos()
            return 30 * (angle + 0.1).cos()
        if self.kind == "prototypes":
            return -torch.cdist(z, self.rows)
        if self.kind == "conv1d":
            return self.conv(z.unsqueeze(2)).squeeze(2)
        if self.kind == "bilinear":
            return self.bilinear(z, z)
        if self.kind == "pair":
            return z, linear(normalize(z), normalize(self.rows))
        return linear(z, self.rows).relu()


KINDS = ["cosine", "arcface", "prototypes", "conv1d", "bilinear", "relu"]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("width", [32, CLASSES])
@pytest.mark.parametrize("kind", [*KINDS, "pair"])
def test_an_embedding_is_not_taken_for_the_head(kind: str, width: int, on_input: bool, named: bool) -> None:
    """Before, the embedding was projected without a word, and classes that do not exist were accepted."""
    options: dict[str, Any] = {"example": IMAGES} if on_input else {}
    if named:
        options["head"] = "emb"
    for classes in ([1], [20]):
        with pytest.raises(UsageError):
            pour.forget(Embedded(kind, width), classes=classes, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_gives_the_way_out(kind: str) -> None:
    for options in ({}, {"example": IMAGES}, {"head": "emb"}, {"head": "emb", "example": IMAGES}):
        with pytest.raises(UsageError, match=WAY_OUT):
            find_head(Embedded(kind), **options)


class Steps(nn.Module):
    """A head with code behind it."""

    def __init__(self, step: Any, *, conv: bool = False, parameter: float = 2.0) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 1) if conv else nn.Linear(48, 8)
        self.head = nn.Conv2d(8, CLASSES, 1) if conv else nn.Linear(8, CLASSES)
        self.number = nn.Parameter(torch.tensor(parameter))
        self.shift = nn.Parameter(torch.randn(CLASSES))
        self.conv, self.step = conv, step

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        if images.shape[1] == 1:
            images = images.repeat(1, 3, 1, 1)
        z = self.body(images if self.conv else images.reshape(len(images), -1))
        return self.step(self, self.head(z.relu()))


KEPT: list[Any] = [
    (lambda net, s: s, False),
    (lambda net, s: s.view(s.size(0), -1).float().contiguous(), False),
    (lambda net, s: s.softmax(dim=1), False),
    (lambda net, s: 10 * s / 3 + 1, False),
    (lambda net, s: s * net.number.exp(), False),
    (lambda net, s: {"logits": s, "other": s.softmax(1)}, False),
    (lambda net, s: s.mean(dim=(2, 3)), True),
    (lambda net, s: s.mean((-2, -1)).log_softmax(1), True),
    (lambda net, s: nn.functional.interpolate(s, scale_factor=2)[..., 1:3, 1:3], True),
]
CHANGED: list[Any] = [
    (lambda net, s: s.relu(), False),
    (lambda net, s: s + net.shift, False),
    (lambda net, s: -s, False),
    (lambda net, s: s * (net.number - 3), False),
    (lambda net, s: s * s, False),
    (lambda net, s: s.flip(1), False),
    (lambda net, s: s.mean(dim=1), True),
    (lambda net, s: s[:, 1:], False),
    (lambda net, s: torch.cat([s, s], dim=1), False),
    (lambda net, s: (s.add_(net.shift), s)[1], False),
]


@pytest.mark.parametrize(("step", "conv"), KEPT)
def test_code_that_keeps_the_order_of_the_scores_is_proved(step: Any, conv: bool) -> None:
    model = Steps(step, conv=conv)
    before = set(vars(model))
    assert find_head(model).name == "head"
    assert find_head(model).found_by == "the last layer, proved by the code of the model"
    assert find_head(model, example=IMAGES).found_by == "verified on an input"
    assert set(vars(model)) == before


@pytest.mark.parametrize(("step", "conv"), CHANGED)
@pytest.mark.parametrize("on_input", [False, True])
def test_code_that_changes_the_order_of_the_scores_is_refused(step: Any, conv: bool, on_input: bool) -> None:
    model = Steps(step, conv=conv)
    assert not structure_proves(model, "head", named=True)
    for options in ({}, {"head": "head"}):
        with pytest.raises(UsageError):
            find_head(model, **options, **({"example": IMAGES} if on_input else {}))


def test_a_class_of_a_library_is_trusted_but_not_a_subclass_with_code_of_its_own() -> None:
    kind = type(torchvision_model("resnet18"))
    plain = type("Plain", (kind,), {"__init__": lambda self: kind.__init__(self, *_resnet18())})()
    assert find_head(plain).found_by == "the place that torchvision names"
    changed = type("Changed", (type(plain),), {"forward": lambda self, x: -kind.forward(self, x)})()
    with pytest.raises(UsageError, match=r"does not prove"):
        find_head(changed)
    plain.forward = lambda images: -kind.forward(plain, images)
    with pytest.raises(UsageError, match=r"does not prove"):
        find_head(plain)
    wrapped = nn.Sequential(nn.Identity(), hf_model("vit"))
    assert find_head(wrapped).name == "1.classifier"


def _resnet18() -> tuple[Any, list[int]]:
    from torchvision.models.resnet import BasicBlock

    return BasicBlock, [1, 1, 1, 1]


@pytest.mark.parametrize("direction", ["weights", "scores"])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 40000.0), (torch.float32, 4e15)])
def test_scores_below_the_mask_are_refused(dtype: torch.dtype, scale: float, direction: Any) -> None:
    """Before, the masked class had the highest score of all."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False)).to(dtype)
    nn.init.eye_(model[1].weight)
    example = (-scale * torch.tensor([[1.0, 1.05, 1.1, 1.15]])).to(dtype)
    assert forget(model, [1], direction=direction, forgotten_logit="keep", example=example) is not None
    with pytest.raises(UsageError, match=r"mask .* would have no effect"):
        forget(model, [1], direction="scores", example=example)


def test_scores_that_meet_an_activation_are_refused() -> None:
    """Before, the mask of a head before a ReLU became 0, the lowest score of all."""
    squeezenet = torchvision_model("squeezenet1_1").eval()
    images = torch.rand(2, 3, 64, 64)
    for options in ({}, {"head": "classifier.1"}):
        with pytest.raises(UsageError, match=r"classifier.2 \(ReLU\).*put nn.Identity in the place"):
            forget(squeezenet, [1], example=images, **options)
        with pytest.raises(UsageError, match=r"pass example="):
            forget(squeezenet, [1], **options)
    squeezenet.classifier[2] = nn.Identity()
    with torch.no_grad():
        scores = forget(squeezenet, [1], example=images)(images)
    assert (scores.argmax(dim=1) != 1).all()
    with pytest.raises(UsageError, match=r"mask .* would have no effect"):
        forget(nn.Sequential(nn.Linear(48, 4), nn.SiLU()), [1], head="0", example=torch.rand(2, 48))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_biases_that_are_no_numbers_are_refused(value: float) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].bias[2] = value
    with pytest.raises(UsageError, match=rf"'1' has the bias {value} for class 2"):
        forget(model, [0])


def test_segmentation_networks_with_a_wide_last_convolution_are_told_what_to_do() -> None:
    library = pytest.importorskip("segmentation_models_pytorch")
    model = library.PSPNet(encoder_weights=None, classes=5).eval()
    images = torch.rand(2, 3, 64, 64)
    for options in ({}, {"example": images}, {"head": "decoder.conv.0"}, {"head": "decoder.conv.0", "example": images}):
        with pytest.raises(UsageError, match=r"segmentation_head.0, is a 3x3 convolution: put nn.Conv2d\(512, 5, 1\)"):
            forget(model, [300], **options)
    model.segmentation_head[0] = nn.Conv2d(512, 5, 1)
    assert find_head(model).name == find_head(model, example=images).name == "segmentation_head.0"


def test_the_head_of_a_dense_prediction_transformer_is_found() -> None:
    """Before, a TypeError: its segmentation head is no sequence."""
    library = pytest.importorskip("segmentation_models_pytorch")
    model = library.DPT("tu-vit_tiny_patch16_224.augreg_in21k", encoder_weights=None, classes=5)
    assert find_head(model).name == "segmentation_head.head.4"


def test_weights_without_values_and_quantised_layers_are_explained() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(UsageError, match=r"meta device.*(load the checkpoint|load its weights first)"):
        forget(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).to("meta"), [1])
    with pytest.warns(DeprecationWarning, match="quantization"):
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    for options in ({}, {"head": "1"}):
        with pytest.raises(UsageError, match=r"quantised.*forget with the (floating-point )?model"):
            forget(quantised, [1], **options)


class Loss(nn.Module):
    """Takes the batches of transformers, and returns the loss if they have labels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.fc(pixel_values.flatten(1))
        return {"loss": None if labels is None else nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_batches_of_transformers_are_examples(kind: Any) -> None:
    batch = kind({"pixel_values": IMAGES, "labels": torch.tensor([0, 1, 2])})
    forgotten = forget(Loss(), [1], example=batch)
    assert (scores_of(forgotten(**batch))[:, 1] == -1e15).all()
    with pytest.raises(UsageError, match="it contains images and labels, so pass the images alone"):
        find_head(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), example=(IMAGES, torch.tensor([0, 1, 2])))


def test_a_single_score_is_explained() -> None:
    with pytest.raises(UsageError, match=r"'2' returns a single score.*nn.Linear with two rows"):
        forget(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), [0])
