"""Models by name, their normalisation, and weights from files."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from model_families import torchvision_model
from torch import nn

from pour.errors import UsageError
from pour.models import (
    Normalize,
    NormalizedModel,
    ResNet,
    architecture,
    build_model,
    find_head,
    fold,
    forget,
    list_models,
    load,
    save,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_normalize_is_its_formula_and_repeats_grey() -> None:
    images = torch.rand(2, 3, 4, 5)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    expected = (images.double().numpy() - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(Normalize(mean, std)(images).numpy(), expected, rtol=1e-5, atol=1e-6)
    grey = images[:, :1]
    assert torch.equal(Normalize(mean, std)(grey), Normalize(mean, std)(grey.expand(-1, 3, -1, -1)))
    assert "mean=[0.5]" in repr(Normalize([0.5], [1.0]))


@pytest.mark.parametrize(("mean", "std"), [([], []), ([0.5], [0.5, 0.5]), ([0.5], [0.0]), ([float("nan")], [1.0])])
def test_normalize_refuses_nonsense(mean: list[float], std: list[float]) -> None:
    with pytest.raises(UsageError):
        Normalize(mean, std)


def test_resnet18_is_the_papers() -> None:
    model = build_model("resnet18", 10)
    assert isinstance(model, ResNet)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    # 1 stem, 8 blocks of two, 3 shortcuts; with the head 18 weighted layers on the longest path.
    assert len(convolutions) == 1 + 16 + 3
    assert (convolutions[0].kernel_size, convolutions[0].stride) == ((3, 3), (1, 1))
    assert not any(isinstance(module, nn.MaxPool2d) for module in model.modules())
    assert model.head.in_features == 512
    # The well-known size of the CIFAR variant.
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    torch.manual_seed(0)
    spread = nn.Conv2d(64, 64, 3).weight.numel()
    weight = ResNet(10).blocks[1].conv1.weight
    assert weight.numel() == spread
    assert abs(weight.std().item() - (2 / (64 * 9)) ** 0.5) < 0.002


@pytest.mark.parametrize("size", [8, 28, 32])
def test_resnets_take_other_images(size: int) -> None:
    model = build_model("resnet-digits", 10, in_channels=1, image_size=size).eval()
    images = torch.rand(2, 1, size, size)
    assert model(images).shape == (2, 10)
    nhwc = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(nhwc(images.to(memory_format=torch.channels_last)), model(images))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(model(images)).all()


def test_own_networks_compile_and_export(small: nn.Module) -> None:
    torch._dynamo.reset()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(small, backend="aot_eager", fullgraph=True)(images), small(images))
        torch.testing.assert_close(torch.export.export(small, (images,)).module()(images), small(images))


@pytest.mark.parametrize(
    ("arch", "options", "shape"),
    [
        ("timm:resnet10t", {}, (2, 3, 32, 32)),
        ("timm:vit_tiny_patch16_224", {"image_size": 28}, (1, 3, 28, 28)),
        ("timm:convnext_atto", {"in_channels": 1}, (2, 1, 32, 32)),
        ("torchvision:shufflenet_v2_x0_5", {"in_channels": 1, "image_size": 28}, (2, 1, 28, 28)),
        ("torchvision:mobilenet_v3_small", {}, (2, 3, 32, 32)),
    ],
)
def test_other_libraries_behind_our_convention(arch: str, options: dict, shape: tuple, tmp_path: Path) -> None:
    model = build_model(arch, 5, **options).eval()
    assert isinstance(model, NormalizedModel)
    images = torch.rand(shape)
    with torch.no_grad():
        assert model(images).shape == (shape[0], 5)
        head = find_head(model)
        nn.init.normal_(head.module.weight)
        forgotten = forget(model, [1])
        loaded = load(save(forgotten, tmp_path / "m.safetensors"))
        assert torch.equal(loaded(images), forgotten(images))
        assert list(fold(forgotten).state_dict()) == list(model.state_dict())
    assert head.name.startswith("model.")
    assert architecture(loaded) == architecture(model)


def test_transformers_from_a_folder_and_from_a_family(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    config.save_pretrained(tmp_path / "vit")
    model = build_model(f"hf:{tmp_path / 'vit'}", 5, image_size=28).eval()
    images = torch.rand(2, 3, 28, 28)
    assert model(images).shape == (2, 5)
    path = save(forget(model, [0]), tmp_path / "m.safetensors")
    # The file holds the configuration: the folder is no longer needed.
    (tmp_path / "vit" / "config.json").unlink()
    with torch.no_grad():
        assert torch.equal(load(path)(images), forget(model, [0])(images))
    with pytest.raises(UsageError, match="has no configuration"):
        build_model(f"hf:{tmp_path / 'vit'}", 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch", ["hf:resnet", "hf:convnext", "vit_small", "torchvision:vit_b_16", "torchvision:swin_t"]
)
def test_full_size_networks(arch: str) -> None:
    model = build_model(arch, 5).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 3, 32, 32)).shape == (1, 5)
    assert find_head(model).num_classes == 5


def test_weights_from_files(tmp_path: Path) -> None:
    source = torchvision_model("shufflenet_v2_x0_5").eval()
    torch.save(source.state_dict(), tmp_path / "w.pth")
    images = torch.rand(2, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build_model("torchvision:shufflenet_v2_x0_5", 7, weights=tmp_path / "w.pth").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), source(model.normalize(images)))
    with pytest.warns(UserWarning, match="no classifier for 4 classes; the head 'fc' starts from random"):
        other = build_model("torchvision:shufflenet_v2_x0_5", 4, weights=tmp_path / "w.pth")
    assert torch.equal(other.model.conv5[0].weight, source.conv5[0].weight)
    assert other.model.fc.out_features == 4
    with pytest.raises(UsageError, match="for another architecture"):
        build_model("torchvision:resnet18", 7, weights=tmp_path / "w.pth")
    with pytest.raises(UsageError, match="There is no file"):
        build_model("resnet18", 7, weights=tmp_path / "none.pth")
    ours = build_model("resnet-digits", 10, in_channels=1)
    save(ours, tmp_path / "ours.safetensors")
    again = build_model("resnet-digits", 10, in_channels=1, mean=[0.1], weights=tmp_path / "ours.safetensors")
    assert torch.equal(again.head.weight, ours.head.weight)


@pytest.mark.parametrize(
    ("arch", "options", "sentence"),
    [
        ("resnet81", {}, "no architecture 'resnet81'; did you mean 'resnet18'"),
        (
            "qqq",
            {},
            "known are resnet18, resnet-small, resnet-digits, clip-resnet18, clip-resnet-small, clip-resnet-digits, ",
        ),
        ("timm:resnet10tt", {}, "did you mean 'resnet10t'\\? A network of your own is named FILE.py:NAME"),
        ("torchvision:resnt18", {}, "did you mean 'resnet18'"),
        ("torchvision:resnet18", {"in_channels": 2}, "3 channels"),
        ("resnet18", {"mean": [0.5, 0.5]}, "2 means for 3 channels"),
        ("resnet18", {"num_classes": 1}, "at least 2 classes"),
    ],
)
def test_wrong_names_and_options(arch: str, options: dict, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build_model(arch, **{"num_classes": 10, **options})


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from pour.models.networks import libraries as foreign

    monkeypatch.setattr(foreign, "installed", lambda library: False)
    with pytest.raises(UsageError, match=r'pip install "pour-unlearning\[vision\]"'):
        build_model("timm:resnet18", 10)
    with pytest.raises(UsageError, match=r'pip install "pour-unlearning\[hf\]"'):
        build_model("hf:vit", 10)


def test_the_list_can_be_built() -> None:
    infos = list_models()
    resnets = {"resnet18", "resnet-small", "resnet-digits"}
    ours = {*resnets, *(f"clip-{name}" for name in resnets), "vit_small"}
    others = {"timm:NAME", "torchvision:NAME", "hf:NAME", "smp:NAME:ENCODER"}
    assert ours | others == {info.name for info in infos}
    assert all(info.summary and (info.available or info.extra) for info in infos)
