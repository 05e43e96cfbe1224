"""Compiled encoders: the same training, hooks that still see the features, code that is compiled once."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import pour
from pour.errors import UsageError
from pour.models.networks.registry import build_model
from pour.models.tap import tap_features
from pour.training.compiling import compiled_encoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pour.data.splits import Splits


needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)


def test_a_network_in_one_piece_runs_as_it_is() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with compiled_encoder(model) as found:
        assert not found
    assert list(vars(model)) == list(vars(nn.Sequential()))


@needs_compiler
def test_the_network_is_as_before_whatever_happens() -> None:
    model = build_model("resnet-digits", 10, in_channels=1, image_size=8)
    outside = nn.ModuleDict({"inside": model})
    with contextlib.suppress(ZeroDivisionError), compiled_encoder(outside) as found:
        assert found
        assert "features" in vars(model)
        _ = 1 / 0
    assert "features" not in vars(model)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    model = build_model("resnet-digits", 10, in_channels=1, image_size=8)
    with pytest.raises(UsageError, match="needs a C\\+\\+ compiler, which is missing"), compiled_encoder(model):
        pass
    assert "features" not in vars(model)


@needs_compiler
def test_only_sizes_that_come_again_and_again_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def fake(plain: Callable[[torch.Tensor], torch.Tensor], **_: object) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(images: torch.Tensor) -> torch.Tensor:
            compiled.append(len(images))
            return plain(images)

        return run

    monkeypatch.setattr(torch, "compile", fake)
    model = build_model("resnet-digits", 10, in_channels=1, image_size=8).eval()
    with compiled_encoder(model):
        for size in (4, 4, 4, 2, 4, 4, 3, 5, 3, 5, 3):
            model(torch.zeros(size, 1, 8, 8))
    # The last batch of an epoch (2) is run as it is; two sizes that take turns are compiled both.
    assert compiled == [4, 4, 4, 4, 3, 5, 3]


@needs_compiler
@pytest.mark.slow
def test_it_trains_the_same_and_compiles_once(digits_original: nn.Module, digits_splits: Splits) -> None:
    request = pour.ForgetRequest.of(digits_splits)

    def student(seed: int, compile: bool) -> nn.Module:
        options = {"steps": 3, "lr": 1e-4, "batch_size": 16}
        return pour.unlearn(
            digits_original,
            request,
            method="pour-d",
            seed=seed,
            device="cpu",
            progress=False,
            compile=compile,
            **options,
        )

    before = counters["stats"]["unique_graphs"]
    plain, first = student(0, compile=False), student(0, compile=True)
    graphs = counters["stats"]["unique_graphs"]
    second = student(1, compile=True)
    assert graphs > before
    assert counters["stats"]["unique_graphs"] == graphs
    moved = [(new - old).abs().max() for new, old in zip(plain.parameters(), digits_original.parameters(), strict=True)]
    assert max(moved) > 1e-4
    for one, other in zip(plain.state_dict().values(), first.state_dict().values(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with tap_features(first) as tap:
        first(torch.rand(2, 1, 8, 8))
    assert tap.features.shape[0] == 2
