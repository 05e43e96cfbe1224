from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import (
    CLASSES,
    FORGET,
    NOTHING,
    RETAIN,
    batches,
    cross_entropy,
    kl,
    losses,
    small_request,
    tiny_net,
    unlearn,
)

import pour
import pour.methods.fcs as fcs
from pour.errors import UsageError
from pour.training import Run
from pour.unlearning import make_method
from pour.unlearning.toolkit.teachers import unmasked


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16), retained=st.integers(2, 9), temperature=st.floats(0.5, 3))
def test_contrast_is_lowest_when_all_retained_images_are_equally_similar(
    seed: int, retained: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    forget, retain = torch.randn(5, CLASSES, generator=generator), torch.randn(retained, CLASSES, generator=generator)
    floor = math.log(retained)
    assert fcs.contrast(forget, retain, temperature=temperature).item() >= floor - 1e-5
    # Equally similar: the retained scores differ only where the forget scores are blind.
    blind = retain.clone()
    blind[:, :-1] = 1.0
    forget[:, -1] = 0.0
    assert fcs.contrast(forget, blind, temperature=temperature).item() == pytest.approx(floor, abs=1e-5)


def test_contrast_is_the_mean_over_all_pairs() -> None:
    generator = torch.Generator().manual_seed(1)
    forget, retain = torch.randn(5, 4, generator=generator), torch.randn(7, 4, generator=generator)
    similarity = forget.double().numpy() @ retain.double().numpy().T / 1.15
    log_share = similarity - np.log(np.exp(similarity).sum(axis=1, keepdims=True))
    assert fcs.contrast(forget, retain, temperature=1.15).item() == pytest.approx(-log_share.mean(), rel=1e-5)


def test_flattens_once_and_then_goes_round_by_round() -> None:
    model = tiny_net()
    still = {"lr": NOTHING, "flatten_lr": NOTHING, "contrast_lr": NOTHING, "batch_norm": "frozen"}
    result = unlearn(model, "fcs", epochs=2, temperature=1.15, **still)
    flat = [kl(torch.zeros(4, CLASSES), model(images)).mean() for images, _ in FORGET]
    against = [
        fcs.contrast(model(gone), model(kept), temperature=1.15).item()
        for (gone, _), (kept, _) in zip(FORGET, RETAIN, strict=False)
    ]
    keep = [cross_entropy(model, batch) for batch in RETAIN]
    np.testing.assert_allclose(losses(result), flat + 2 * (against + keep), rtol=1e-4)


def test_three_optimisers_keep_their_own_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.optim.Optimizer] = []
    used: list[Any] = []
    make, train = fcs.Fcs.optimizer_for, fcs.Fcs.train

    def spy(*arguments: Any, **options: Any) -> torch.optim.Optimizer:
        made.append(make(*arguments, **options))
        return made[-1]

    def watch(self: Any, *arguments: Any, **options: Any) -> Any:
        used.append(options.get("optimizer"))
        return train(self, *arguments, **options)

    monkeypatch.setattr(fcs.Fcs, "optimizer_for", spy)
    monkeypatch.setattr(fcs.Fcs, "train", watch)
    unlearn(tiny_net(), "fcs", epochs=2, weight_decay=0.01)
    against, towards = made
    assert used == [None, against, towards, against, towards]
    assert [optimizer.param_groups[0]["weight_decay"] for optimizer in made] == [0.0, 0.01]
    assert all("momentum_buffer" in state for optimizer in made for state in optimizer.state.values())


def test_a_contrastive_step_holds_the_retained_scores_still() -> None:
    model, lr = tiny_net(), 0.1
    still = {"lr": NOTHING, "flatten_lr": NOTHING, "weight_decay": 0.0, "momentum": 0.0, "batch_norm": "frozen"}
    request = small_request(forget=FORGET[:1], retain=RETAIN[:1])
    result = unlearn(model, "fcs", request, epochs=1, contrast_lr=lr, temperature=1.15, **still)
    others = torch.tensor(model(RETAIN[0][0]).tolist())
    similarity = model(FORGET[0][0]) @ others.T / 1.15
    loss = (similarity.exp().sum(dim=1, keepdim=True).log() - similarity).mean()
    for name, parameter in model.named_parameters():
        expected = parameter - lr * torch.autograd.grad(loss, parameter, retain_graph=True)[0]
        torch.testing.assert_close(result.get_parameter(name), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lr", [0.1, 0.2])
def test_the_first_pass_uses_its_own_rate(lr: float) -> None:
    model = tiny_net()
    still = {"lr": NOTHING, "contrast_lr": NOTHING, "weight_decay": 0.0, "batch_norm": "frozen"}
    result = unlearn(model, "fcs", small_request(forget=FORGET[:1]), epochs=1, flatten_lr=lr, **still)
    # KL(uniform || p) is the mean of -log p over the classes, up to a constant.
    loss = -torch.log_softmax(model(FORGET[0][0]), dim=1).mean()
    for name, parameter in model.named_parameters():
        expected = parameter - lr * torch.autograd.grad(loss, parameter, retain_graph=True)[0]
        torch.testing.assert_close(result.get_parameter(name), expected, rtol=1e-4, atol=1e-6)


def test_the_contrastive_rate_falls_along_a_cosine() -> None:
    assert fcs.cosine(3e-4, 0.0) == pytest.approx(3e-4)
    assert fcs.cosine(3e-4, 0.5) == pytest.approx((3e-4 + 1e-6) / 2)
    assert fcs.cosine(3e-4, 1.0) == pytest.approx(1e-6)


def test_the_contrastive_rate_falls_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    train = fcs.Fcs.train

    def watch(self: Any, model: Any, batches: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("rate") is not None:
            rates.extend(options["rate"](step) for step in range(len(batches)))
        return train(self, model, batches, *arguments, **options)

    monkeypatch.setattr(fcs.Fcs, "train", watch)
    unlearn(tiny_net(), "fcs", epochs=3, contrast_lr=3e-4)
    assert rates == pytest.approx([fcs.cosine(3e-4, step / 6) for step in range(6)])


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="pass epochs, not steps"):
        make_method("fcs", steps=10)
    with pytest.raises(UsageError, match="temperature must be above 0, but is -1"):
        make_method("fcs", temperature=-1.0)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("method", ["fcs", "bad-teacher"])
def test_a_masked_class_does_not_drown_the_others(method: str, folded: bool) -> None:
    model = pour.forget(tiny_net(), classes=[1])
    model = pour.fold(model) if folded else model
    request = small_request(retain=batches(3, 6, (0, 3), seed=2))
    assert np.abs(losses(unlearn(model, method, request, lr=NOTHING))).max() < 100


def test_unmasked_scores_stay_the_same_tensor() -> None:
    scores, run = torch.randn(3, CLASSES), Run(device="cpu", progress=False)
    assert unmasked(tiny_net(), run)(scores) is scores
    kept = pour.forget(tiny_net(), classes=[1], forgotten_logit="keep")
    assert unmasked(kept, run)(scores) is scores
    masked = pour.forget(tiny_net(), classes=[1])
    for model in (masked, pour.fold(masked)):
        assert torch.equal(unmasked(model, run)(scores), scores[:, [0, 2, 3]])
