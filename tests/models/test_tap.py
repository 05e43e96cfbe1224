"""Tapping features, and always letting go."""

from __future__ import annotations

import pytest
import torch
from model_families import CLASSES, ConvHead, OddModel, TokenHead, mlp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pour.errors import PourError, UsageError
from pour.models import extract_features, find_head, forget, tap_features, to_unit
from pour.models.tap import fast_encoder


def no_hooks(model: nn.Module) -> bool:
    return not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_raw_and_projected_features_with_gradients(small: nn.Module, images: Tensor) -> None:
    forgotten = forget(small, [0], direction="weights")
    with tap_features(forgotten) as tap:
        forgotten(images)
    expected = small.features(images)
    torch.testing.assert_close(tap.raw, expected)
    torch.testing.assert_close(tap.features, forgotten.head.projector(expected))
    assert tap.features.requires_grad
    assert (tap.features.detach() @ small.head.weight.detach()[0]).abs().max() < 1e-5
    assert no_hooks(forgotten)
    with tap_features(small) as tap:
        small(images)
    assert tap.raw is tap.features


def test_hooks_are_released_on_errors(small: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), tap_features(small):
        raise RuntimeError("on purpose")
    assert no_hooks(small)
    small.train()
    with pytest.raises(RuntimeError):
        extract_features(small, [(torch.rand(2, 5, 32, 32), torch.zeros(2, dtype=torch.long))])
    assert no_hooks(small)
    assert all(module.training for module in small.modules())


def test_reading_before_running_is_an_error(small: nn.Module) -> None:
    with tap_features(small) as tap, pytest.raises(PourError, match="has not run"):
        _ = tap.features


def test_extraction_equals_the_model_and_restores_modes(small: nn.Module) -> None:
    pixels = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(10) % CLASSES
    small.train()
    small.stem.eval()
    modes = [module.training for module in small.modules()]
    before = {key: value.clone() for key, value in small.state_dict().items()}
    seen = extract_features(small, DataLoader(TensorDataset(pixels, labels), batch_size=4))
    assert [module.training for module in small.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in small.state_dict().items())
    small.eval()
    with torch.no_grad():
        torch.testing.assert_close(seen.scores, small(pixels.float() / 255))
        torch.testing.assert_close(seen.features, small.features(pixels.float() / 255))
    assert seen.raw is seen.features
    assert torch.equal(seen.labels, labels)
    assert len(seen) == 10
    # A probe may train on the result: no inference tensors.
    nn.Linear(seen.features.shape[1], 2)(seen.features).sum().backward()


def test_device_and_floats(small: nn.Module) -> None:
    batches = [(torch.rand(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)) for _ in range(3)]
    assert len(extract_features(small, batches, device="cpu")) == 12
    assert len(extract_features(small, iter(batches))) == 12


def test_tokens_maps_and_projected_models_keep_their_shapes(images: Tensor) -> None:
    batch = [(images, torch.zeros(3, dtype=torch.long))]
    assert extract_features(TokenHead(), batch).features.shape == (3, 16, 10)
    seen = extract_features(forget(ConvHead(), [1], head="score"), batch)
    assert seen.features.shape == seen.raw.shape == (3, 8, 4, 4)
    assert seen.features is not seen.raw


def test_a_head_found_elsewhere_names_the_place(images: Tensor) -> None:
    model = mlp()
    head = find_head(model, head="out")
    forgotten = forget(model, [0], head="out")
    assert extract_features(forgotten, [(images, torch.zeros(3, dtype=torch.long))], head=head).features.shape == (
        3,
        12,
    )


def test_scores_are_told_from_embeddings(images: Tensor) -> None:
    model = OddModel()
    seen = extract_features(model, [(images, torch.zeros(3, dtype=torch.long))], head="mystery.inner.q7.zed")
    assert torch.equal(seen.scores, model(images)["answer"])


def test_compiled_models_are_tapped(small: nn.Module, images: Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(small, backend="eager")
    compiled(images)
    assert extract_features(compiled, [(images, torch.zeros(3, dtype=torch.long))]).features.shape == (3, 8)


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        ([], "batches are empty"),
        ([torch.zeros(2, 3, 32, 32)], "pairs of images and labels"),
        ([(torch.zeros(2, 3, 32, 32), torch.zeros(3, dtype=torch.long))], "has images of shape"),
        ([("a", torch.zeros(1))], "must be a tensor"),
        ([(torch.zeros(2, 3, 32, 32, dtype=torch.int64), torch.zeros(2, dtype=torch.long))], "pass uint8"),
    ],
)
def test_bad_batches(batches, sentence: str, small: nn.Module) -> None:
    with pytest.raises(UsageError, match=sentence):
        extract_features(small, batches)


def test_to_unit() -> None:
    floats = torch.rand(3)
    assert to_unit(floats) is floats
    assert torch.equal(to_unit(torch.tensor([51], dtype=torch.uint8)), torch.tensor([0.2]))


def test_a_fast_encoder_leaves_the_head_exact() -> None:
    seen: dict[str, str] = {}
    model = mlp()
    name, layer = "out", model.get_submodule("out")
    for where, module in (("encoder", model.get_submodule("hidden")), ("head", layer)):
        module.register_forward_hook(
            lambda *_, where=where: seen.update({where: torch.get_float32_matmul_precision()}), prepend=True
        )
    images = torch.rand(2, 3, 32, 32)
    before = torch.get_float32_matmul_precision()
    with fast_encoder(model, name):
        model(images)
    assert seen == {"encoder": "high", "head": before}
    with pytest.raises(ZeroDivisionError), fast_encoder(model, name):
        _ = 1 / 0
    assert torch.get_float32_matmul_precision() == before
    with fast_encoder(model, name, enabled=False):
        assert torch.get_float32_matmul_precision() == before
    assert len(layer._forward_pre_hooks) == 0
