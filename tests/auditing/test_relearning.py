import copy

import numpy as np
import pytest
import torch
from torch import nn

import pour
from pour.auditing import Relearning, audit, relearn, relearning
from pour.auditing.relearning import _few_images, _without_protection
from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.training import Run

SMALL = Relearning(images_per_class=10, steps=(0, 5, 20))


@pytest.fixture
def run():
    return Run(device="cpu", progress=False)


@pytest.fixture(scope="module")
def curves(digits_original, digits_retrained, digits_splits):
    run = Run(device="cpu", progress=False)
    return {
        role: relearn(model, digits_splits, run, role=role, options=SMALL)
        for role, model in (("original", digits_original), ("retrained", digits_retrained))
    }


def test_what_was_known_returns_faster(curves):
    assert curves["original"].steps == (0, 5, 20)
    assert curves["original"].forget[0].value == 0
    assert curves["original"].forget[-1].value > 0.9
    assert curves["original"].mean_forget.value > curves["retrained"].mean_forget.value + 0.2
    assert min(point.value for point in curves["original"].retain) > 0.9


def test_hiding_behind_the_head_does_not_help(curves, digits_original, digits_splits, run):
    projected = pour.forget(digits_original, classes=["3"])
    masked = pour.unlearn(
        digits_original, pour.ForgetRequest(classes=["3"]), method="masked-head", device="cpu", progress=False
    )
    for model in (projected, masked, pour.fold(projected)):
        found = relearn(model, digits_splits, run, options=SMALL)
        assert found.forget[-1].value >= curves["original"].forget[-1].value - 0.1


def test_the_curve_is_of_test_images(run):
    """Half of the retained test images show another class than they are called, and no training image does."""
    pixels = (255 * np.eye(4, dtype=np.uint8)).reshape(4, 2, 2, 1)
    train = ImageSplit(np.repeat(pixels, 2, axis=0), np.repeat(np.arange(4), 2))
    test = ImageSplit(pixels[[0, 1, 3, 0, 1, 3, 2]], np.array([0, 1, 3, 1, 3, 0, 2]))
    splits = Splits.of(ImageDataset("own", ("a", "b", "c", "d"), {"train": train, "test": test}), ["c"])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(4))
    curve = relearn(model, splits, run, options=Relearning(steps=(0, 1), lr=1e-6))
    assert [(point.value, point.n) for point in curve.retain] == [(0.5, 6)] * 2
    assert curve.forget[0].n == 1


def test_the_model_is_left_alone(digits_original, digits_splits, run):
    before = copy.deepcopy(digits_original.state_dict())
    relearn(digits_original, digits_splits, run, options=Relearning(steps=(1,)))
    assert all(torch.equal(value, before[name]) for name, value in digits_original.state_dict().items())


def test_the_same_seed_gives_the_same_curve(digits_original, digits_splits, run):
    options = Relearning(images_per_class=2, steps=(0, 3))
    assert relearn(digits_original, digits_splits, run, options=options) == relearn(
        digits_original, digits_splits, run, options=options
    )


def test_a_frozen_model_is_attacked_all_the_same(digits_original, digits_splits, run):
    frozen = copy.deepcopy(digits_original).requires_grad_(False)
    found = relearn(frozen, digits_splits, run, options=Relearning(steps=(0, 20)))
    assert found.forget[-1].value > 0.5


def test_the_attacker_starts_from_neutral_rows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
    opened = _without_protection(pour.forget(model, classes=[2]), (2,), None)
    weight = opened[-1].weight
    assert torch.allclose(weight[2], model[-1].weight[[0, 1, 3, 4]].mean(dim=0))
    scores = opened(torch.randn(50, 1, 2, 2))
    assert not (scores.argmax(dim=1) == 2).any()


@pytest.mark.parametrize("folded", [True, False])
def test_a_class_forgotten_before_does_not_shield_the_next(curves, digits_original, digits_splits, run, folded):
    """A folded mask is a bias so low that a mean with it in would never be reached again."""
    before = pour.forget(digits_original, classes=["5"])
    model = pour.forget(pour.fold(before) if folded else before, classes=["3"])
    found = relearn(model, digits_splits, run, options=SMALL)
    assert found.forget[-1].value >= curves["original"].forget[-1].value - 0.1


@pytest.mark.parametrize("kind", ["computed", "shared"])
def test_rows_that_are_computed_or_shared_are_set_all_the_same(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    if kind == "computed":
        nn.utils.parametrizations.weight_norm(model[2])
    else:
        model[2].weight = model[1].weight
    encoder, rows = model[1].weight.detach().clone(), model[2].weight.detach().clone()
    opened = _without_protection(model, (2,), "2")
    assert torch.allclose(opened[2].weight[2], rows[[0, 1, 3]].mean(dim=0), atol=1e-6)
    assert torch.allclose(opened[2].weight[[0, 1, 3]], rows[[0, 1, 3]], atol=1e-6)
    assert torch.equal(opened[1].weight, encoder)


def test_the_attacker_has_a_few_images_of_every_class(digits_splits):
    few = _few_images(digits_splits, 4, seed=0)
    assert torch.bincount(torch.tensor(few.labels)).tolist() == [4] * 10


def test_the_audit_reads_the_curve_against_the_retrained_model(digits_original, digits_retrained, digits_splits):
    report = audit(
        original=digits_original,
        unlearned=pour.forget(digits_original, classes=["3"]),
        retrained=digits_retrained,
        data=digits_splits,
        relearn=SMALL,
        device="cpu",
        progress=False,
    )
    assert [curve.role for curve in report.relearning] == ["original", "unlearned", "retrained"]
    assert report.line("relearn_f").verdict == "leaks more"
    assert "steps of relearning from 10 images" in " ".join(str(report).split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images_per_class": 0}, "at least one image per class"),
        ({"steps": ()}, "must increase from 0"),
        ({"steps": (0,)}, "must increase from 0"),
        ({"steps": (5, 2)}, "must increase from 0"),
        ({"steps": (-1, 2)}, "must increase from 0"),
        ({"lr": 0.0}, "positive learning rate"),
        ({"batch_size": 0}, "positive learning rate and batch size"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UsageError, match=message):
        Relearning(**options)


def test_the_stretches_are_one_training(digits_original, digits_splits, run, monkeypatch):
    """Frozen statistics, batches that go on, and one optimiser with its momentum."""
    calls, seeds = [], []
    fit = relearning.fit
    before = {name: value.clone() for name, value in digits_original.named_buffers() if "running" in name}

    def spy(model, batches, *arguments, **options):
        calls.append((model, options["optimizer"]))
        seeds.append(batches._seed)
        log = fit(model, batches, *arguments, **options)
        for name, value in model.named_buffers():
            assert "running" not in name or torch.equal(value, before[name])
        assert all("momentum_buffer" in state for state in options["optimizer"].state.values())
        return log

    monkeypatch.setattr(relearning, "fit", spy)
    relearn(digits_original, digits_splits, run, role="original", options=SMALL)
    assert len(calls) == 2
    assert calls[0][0] is calls[1][0]
    assert calls[0][1] is calls[1][1]
    assert len(set(seeds)) == 2
