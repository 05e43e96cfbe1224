"""Heads on a frozen backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import pour
from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.medmnist import MEDMNIST
from pour.errors import UsageError
from pour.models import build_model, find_head
from pour.models.networks.libraries import installed
from pour.models.tap import extract_features
from pour.training import FrozenBackbone, Run, get_recipe
from pour.training.tasks.classify import Classify

if TYPE_CHECKING:
    from pathlib import Path

    from pour.training.frozen_backbone import HeadShape

ARCH = "timm:test_efficientnet"
CLASSES = 5


def colours(count: int, seed: int) -> ImageSplit:
    """Noisy images of one colour to a class: even a random network tells them apart."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    palette = np.random.default_rng(0).integers(40, 216, (CLASSES, 3))
    images = palette[labels][:, None, None, :] + generator.normal(0, 20, (count, 12, 12, 3))
    return ImageSplit(images.clip(0, 255).astype(np.uint8), labels.astype(np.int64))


@pytest.fixture(scope="module")
def dataset() -> ImageDataset:
    splits = {"train": colours(400, 1), "test": colours(150, 2), "external": colours(150, 3)}
    names = tuple(f"colour {number}" for number in range(CLASSES))
    return ImageDataset(name="colours", classes=names, splits=splits, info=MEDMNIST["pathmnist"])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone with a classifier of another number of classes."""
    if not installed("timm"):
        pytest.skip("timm is missing")
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "backbone.safetensors"
    return pour.save(build_model(ARCH, 7, image_size=12, resize=32), path)


def run(seed: int = 0) -> Run:
    return Run(seed=seed, device="cpu", progress=False)


def encoder(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    name = find_head(model).name
    return {key: value for key, value in model.state_dict().items() if not key.startswith(f"{name}.")}


@pytest.mark.parametrize("head", ["free", "simplex"])
def test_only_the_head_is_trained_and_it_learns(dataset: ImageDataset, weights: Path, head: HeadShape) -> None:
    backbone = FrozenBackbone(dataset, ARCH, weights, 32, head)
    before = {key: value.clone() for key, value in encoder(backbone.build()).items()}
    model, log = backbone.train_head(get_recipe("head").change(batch_size=64), run())
    assert all(torch.equal(value, before[key]) for key, value in encoder(model).items())
    seen = extract_features(model, Classify().batches(dataset.splits["test"], run()), device="cpu")
    assert (seen.scores.argmax(1) == seen.labels).double().mean() > 0.5
    assert log.losses[-1] < log.losses[0]
    assert pour.models.class_names(model) == dataset.classes


def test_simplex_head_is_one_and_projection_keeps_every_retained_decision(dataset: ImageDataset, weights: Path) -> None:
    model, _ = FrozenBackbone(dataset, ARCH, weights, 32, "simplex").train_head(get_recipe("head"), run())
    head = find_head(model)
    gram = (head.weight.double() @ head.weight.double().T).numpy()
    expected = gram.trace() / (CLASSES - 1) * (np.eye(CLASSES) - 1 / CLASSES)
    np.testing.assert_allclose(gram, expected, atol=1e-5 * gram.max())
    assert head.bias is None or not head.bias.any()
    for gone in range(CLASSES):
        forgotten = pour.forget(model, classes=[gone], forgotten_logit="keep")
        loader = Classify().batches(dataset.splits["external"], run())
        before = extract_features(model, loader, device="cpu").scores
        after = extract_features(forgotten, loader, device="cpu").scores
        kept = [index for index in range(CLASSES) if index != gone]
        shift = (after - before)[:, kept]
        torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), atol=1e-4, rtol=1e-3)
        assert (after.argmax(1) != gone).all()


def test_retraining_changes_the_head_alone(dataset: ImageDataset, weights: Path) -> None:
    backbone = FrozenBackbone(dataset, ARCH, weights, 32)
    original, _ = backbone.train_head(get_recipe("head"), run())
    retrained, _ = backbone.train_head(get_recipe("head"), run(), without=["colour 2"])
    assert all(torch.equal(a, b) for a, b in zip(encoder(original).values(), encoder(retrained).values(), strict=True))
    assert not torch.equal(find_head(original).weight, find_head(retrained).weight)
    seen = extract_features(retrained, Classify().batches(dataset.splits["train"], run()), device="cpu")
    assert (seen.scores.argmax(1) != 2).all()


def test_same_seed_same_head_and_a_saved_head_comes_back(dataset: ImageDataset, weights: Path, tmp_path: Path) -> None:
    first, _ = FrozenBackbone(dataset, ARCH, weights, 32).train_head(get_recipe("head"), run(3))
    backbone = FrozenBackbone(dataset, ARCH, weights, 32)
    second, _ = backbone.train_head(get_recipe("head"), run(3))
    assert torch.equal(find_head(first).weight, find_head(second).weight)
    backbone.save_head(second, tmp_path / "head.safetensors")
    assert (tmp_path / "head.safetensors").stat().st_size < weights.stat().st_size / 2
    back = backbone.load_head(tmp_path / "head.safetensors")
    assert all(torch.equal(value, second.state_dict()[key]) for key, value in back.state_dict().items())


def test_a_saved_model_loads_anywhere(dataset: ImageDataset, weights: Path, tmp_path: Path) -> None:
    model, _ = FrozenBackbone(dataset, ARCH, weights, 32).train_head(get_recipe("head"), run())
    loaded = pour.load(pour.save(model, tmp_path / "m.safetensors")).eval()
    images = torch.rand(4, 3, 12, 12)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))
    assert loaded.resize == 32


def test_features_are_computed_once(dataset: ImageDataset, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pour.training.frozen_backbone as module

    calls = []
    real = module.extract_features
    monkeypatch.setattr(module, "extract_features", lambda *a, **k: calls.append(1) or real(*a, **k))
    backbone = FrozenBackbone(dataset, ARCH, weights, 32)
    for seed in range(3):
        backbone.train_head(get_recipe("head"), run(seed))
    assert len(calls) == 1


def test_wrong_use_is_said(dataset: ImageDataset, weights: Path) -> None:
    with pytest.raises(UsageError, match="free or simplex"):
        FrozenBackbone(dataset, ARCH, weights, 32, "round")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="augments images"):
        FrozenBackbone(dataset, ARCH, weights, 32).train_head(get_recipe("fast"), run())
    with pytest.raises(UsageError, match="takes images as they are"):
        FrozenBackbone(dataset, "resnet18", weights, 32).build()
    with pytest.raises(UsageError, match="no file"):
        FrozenBackbone(dataset, ARCH, "nowhere.safetensors", 32).build()
