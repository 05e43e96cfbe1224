"""On a GPU whole steps are captured in graphs: what trains there must end as it does one kernel at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from method_cases import ITERATIVE, case_of
from small_requests import FORGET, small_request, tiny_net
from torch import nn

import pour
from pour.methods.salun import saliency_mask
from pour.training import Recipe, Run, fit
from pour.training.resume import ResumeFile
from pour.unlearning import get_method
from pour.unlearning.forget_only import ForgetOnlyMethod
from pour.unlearning.toolkit.anchors import transformed_copies

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.splits import Splits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ANCHORED = [name for name in ITERATIVE if issubclass(get_method(name), ForgetOnlyMethod)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ITERATIVE)
def test_trains_in_captured_steps(digits_original: nn.Module, digits_splits: Splits, name: str, precision: Any) -> None:
    splits = digits_splits.holdout(0.1, seed=0)
    request = pour.ForgetRequest.of(
        splits, build=lambda: pour.models.build_model("resnet-digits", 10, in_channels=1, image_size=8)
    )
    result = pour.unlearn(
        digits_original,
        request,
        method=name,
        device="cuda",
        precision=precision,
        progress=False,
        **case_of(name).options,
    )
    assert all(tensor.isfinite().all() for tensor in result.state_dict().values())
    assert pour.history(result)[-1].steps > 4
    assert next(result.parameters()).device == next(digits_original.parameters()).device


@pytest.mark.parametrize("name", ANCHORED)
def test_copies_are_new_in_every_captured_step(
    digits_original: nn.Module, digits_splits: Splits, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are made by the loader; in the loss a graph would repeat them."""
    made: list[torch.Tensor] = []

    def noted(*arguments: Any) -> torch.Tensor:
        made.append(transformed_copies(*arguments))
        return made[-1]

    monkeypatch.setattr("pour.unlearning.toolkit.anchors.transformed_copies", noted)
    options = case_of(name).options | {"anchor": "views", "steps": 12, "epochs": None}
    request = pour.ForgetRequest.of(digits_splits)
    result = pour.unlearn(digits_original, request, method=name, device="cuda", progress=False, **options)
    assert all(tensor.isfinite().all() for tensor in result.state_dict().values())
    assert len(made) >= pour.history(result)[-1].steps > 4
    assert not torch.equal(made[-1], made[-2])


def test_masked_weights_stay_in_captured_steps() -> None:
    model = tiny_net()
    mask = saliency_mask(model, list(model.parameters()), FORGET, 0.3)
    result = pour.unlearn(
        model,
        small_request(),
        method="salun",
        device="cuda",
        precision="fp32",
        progress=False,
        share=0.3,
        epochs=6,
        lr=0.05,
        weight_decay=0.2,
    )
    moved = [(new != old) for new, old in zip(result.parameters(), model.parameters(), strict=True)]
    free = torch.cat([part.flatten() for part in mask])
    # The mask is taken on the GPU here, where equal gradients may be told apart otherwise.
    assert torch.cat([part.flatten() for part in moved]).sum() <= free.sum()
    assert (torch.cat([part.flatten() for part in moved]) & ~free).float().mean() < 0.02


def test_batches_of_one_shape_and_two_dtypes_are_not_mixed_up() -> None:
    """Bytes and floats mean different things; a graph that was recorded for one must not run on the other."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (12, 8, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 4, (12, 8), generator=generator)
    batches = [(images if i % 2 else images / 255, labels[i]) for i, images in enumerate(raw)]
    found = []
    for graph in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
        run = Run(seed=0, device="cuda", precision="fp32", progress=False)
        found.append(fit(model, batches, Recipe(lr=0.01, epochs=2), run, graph=graph, compile=False).losses)
    assert found[1] == pytest.approx(found[0], abs=1e-4)


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_killed_run_goes_on(tmp_path: Path, optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(16, 3, 8, 8, generator=generator), torch.arange(16) % 4) for _ in range(8)]
    recipe = Recipe(lr=0.01, epochs=4, optimizer=optimizer)
    run = Run(seed=0, device="cuda", precision="fp32", progress=False)

    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))

    def die(_: nn.Module, step: int) -> None:
        if step == 19:
            raise _KilledError

    whole = fit(network(), batches, recipe, run, compile=False)
    file = ResumeFile(path=tmp_path / "x.resume", fingerprint="one", seconds=0)
    with pytest.raises(_KilledError):
        fit(network(), batches, recipe, replace(run, on_step=die), compile=False, resume=file)
    assert file.path.exists()
    again = fit(network(), batches, recipe, run, compile=False, resume=file)
    assert again.losses == pytest.approx(whole.losses, abs=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_batches_of_two_sizes_train_as_they_do_one_kernel_at_a_time(optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [8, 24] * 10 + [5]
    batches = [
        (torch.randn(size, 3, 8, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator))
        for size in sizes
    ]
    recipe = Recipe(lr=0.01, epochs=2, optimizer=optimizer, schedule="constant", augment=False)
    ends = []
    for graph in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
        run = Run(seed=0, device="cuda", precision="fp32", progress=False)
        log = fit(model, batches, recipe, run, graph=graph, compile=False)
        ends.append((log.losses, [parameter.detach().cpu() for parameter in model.parameters()]))
    (slow, expected), (fast, got) = ends
    assert fast == pytest.approx(slow, abs=1e-4)
    assert slow[0] > 1.2 * slow[-1]
    for one, other in zip(expected, got, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
