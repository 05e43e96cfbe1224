"""Small classifiers of every family, with random weights."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pour._torchvision import torchvision_works
from pour.models import ResNet

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = 7

# Before anything imports it: a build for other hardware would not import by itself.
torchvision_works()


class OddModel(nn.Module):
    """A head three modules deep under an odd name, among other linear layers, returned in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        # Registered before the encoder, so that no rule of position finds it.
        decider = nn.ModuleDict({"q7": nn.ModuleDict({"zed": nn.Linear(12, CLASSES)})})
        self.mystery = nn.ModuleDict({"inner": decider})
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 12), nn.Tanh())
        self.side = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        z = self.encoder(images)
        _ = self.side(z)
        return {"embedding": z, "answer": self.mystery["inner"]["q7"]["zed"](z)}


class ConvHead(nn.Module):
    """A fully convolutional classifier: scores for every position, or averaged to one for an image."""

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1 if pooled else 4))
        self.score = nn.Conv2d(8, CLASSES, 1)
        self.pooled = pooled

    def forward(self, images: Tensor) -> Tensor:
        scores = self.score(self.body(images))
        return scores.flatten(1) if self.pooled else scores


class TokenHead(nn.Module):
    """A head on every token of a sequence: (N, T, d) in, (N, T, C) out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 10, 8, stride=8)
        self.readout = nn.Linear(10, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.patches(images).flatten(2).transpose(1, 2)))


class TiedHead(nn.Module):
    """A network whose head and embedding share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, 9)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 9), nn.Tanh())
        self.decoder = nn.Linear(9, CLASSES)
        self.decoder.weight = self.words.weight

    def forward(self, images: Tensor) -> Tensor:
        z = self.encoder(images)
        return self.decoder(z + 0.01 * self.words(torch.zeros(len(z), dtype=torch.long)))


def mlp(*, bias: bool = True, width: int = 12) -> nn.Sequential:
    layers = OrderedDict(
        flat=nn.Flatten(), hidden=nn.Linear(3 * 32 * 32, width), act=nn.ReLU(), out=nn.Linear(width, CLASSES, bias=bias)
    )
    return nn.Sequential(layers)


def weight_normed() -> nn.Module:
    model = mlp()
    nn.utils.parametrizations.weight_norm(model.out)
    return model


def torchvision_model(name: str) -> nn.Module:
    import torchvision

    options = {"image_size": 32} if name.startswith("vit") else {}
    return torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)


def small_torchvision_model(kind: str) -> nn.Module:
    """The classes of torchvision's larger networks, at a size that suits a test."""
    from torchvision.models import ConvNeXt, SwinTransformer, VisionTransformer
    from torchvision.models.convnext import CNBlockConfig

    if kind == "vit":
        return VisionTransformer(32, 8, 2, 2, 32, 32, num_classes=CLASSES)
    if kind == "swin":
        return SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=CLASSES)
    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=CLASSES)


def timm_model(name: str, **options: object) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)


def hf_model(kind: str) -> nn.Module:
    import transformers

    if kind == "vit":
        config = transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=32,
            patch_size=8,
        )
        config.num_labels = CLASSES
        return transformers.ViTForImageClassification(config)
    if kind == "resnet":
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
        config.num_labels = CLASSES
        return transformers.ResNetForImageClassification(config)
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32)
    config.num_labels = CLASSES
    return transformers.ConvNextForImageClassification(config)


# name -> (builder, find_head options, name of the head)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], dict[str, object], str]] = {
    "own-resnet18": (lambda: ResNet(CLASSES), {}, "head"),
    "torchvision-resnet18": (lambda: torchvision_model("resnet18"), {}, "fc"),
    "torchvision-mobilenet": (lambda: torchvision_model("mobilenet_v3_small"), {}, "classifier.3"),
    "torchvision-convnext": (lambda: small_torchvision_model("convnext"), {}, "classifier.2"),
    "torchvision-vit": (lambda: small_torchvision_model("vit"), {}, "heads.head"),
    "torchvision-swin": (lambda: small_torchvision_model("swin"), {}, "head"),
    "timm-resnet": (lambda: timm_model("resnet18"), {}, "fc"),
    "timm-vit": (lambda: timm_model("vit_tiny_patch16_224", img_size=32, depth=2), {}, "head"),
    "timm-convnext": (lambda: timm_model("convnext_atto"), {}, "head.fc"),
    "timm-efficientnet": (lambda: timm_model("efficientnet_b0"), {}, "classifier"),
    "hf-vit": (lambda: hf_model("vit"), {}, "classifier"),
    "hf-resnet": (lambda: hf_model("resnet"), {}, "classifier.1"),
    "hf-convnext": (lambda: hf_model("convnext"), {}, "classifier"),
    "odd": (OddModel, {"example": torch.zeros(2, 3, 32, 32)}, "mystery.inner.q7.zed"),
    "conv-map": (ConvHead, {"example": torch.ones(2, 3, 32, 32)}, "score"),
    "conv-pooled": (lambda: ConvHead(pooled=True), {"example": torch.ones(2, 3, 32, 32)}, "score"),
    "tokens": (TokenHead, {}, "readout"),
    "no-bias": (lambda: mlp(bias=False), {"head": "out"}, "out"),
    "tied": (TiedHead, {"head": "decoder"}, "decoder"),
    "weight-norm": (weight_normed, {"head": "out"}, "out"),
}
UNFOLDABLE = {"tied", "weight-norm"}
_built: dict[str, nn.Module] = {}


def build_family(name: str) -> nn.Module:
    """A fresh copy of a family's model in evaluation mode, with BatchNorm statistics that are not trivial."""
    if name not in _built:
        torch.manual_seed(len(name))
        model = FAMILIES[name][0]()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.normal_(module.running_mean, std=0.1)
        # Several libraries start the head at zero, which has no directions.
        if name not in UNFOLDABLE:
            layer = model.get_submodule(FAMILIES[name][2])
            for parameter in layer.parameters():
                nn.init.normal_(parameter, std=0.3)
        _built[name] = model.eval()
    return copy.deepcopy(_built[name])
