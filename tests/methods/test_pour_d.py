"""What makes POUR-D POUR-D."""

import warnings

import pytest
import torch
from small_requests import NOTHING, tiny_net, unlearn

import pour
import pour.models.copy_and_swap
from pour.errors import UsageError
from pour.methods.pour_d import PourD
from pour.models.head import find_head
from pour.models.history import HistoryEntry, add_entry
from pour.models.tap import extract_features
from pour.training.run import Run
from pour.training.tasks.classify import Classify
from pour.unlearning import ForgetRequest


def distilled(model, splits, **options):
    run = Run(seed=0, device="cpu", progress=False)
    method = PourD(**({"augment": False, "batch_size": 32, "steps": 100, "lr": 3e-5} | options))
    student = pour.models.copy_and_swap.copy_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method(student, ForgetRequest.of(splits).grant(PourD.needs, name="pour-d"), run)
    return student, run


def test_features_of_forget_images_move_to_the_projected_originals(digits_original, digits_splits):
    student, run = distilled(digits_original, digits_splits)
    loader = Classify().batches(digits_splits.forget_train, run)
    before, after = (extract_features(model, loader).features.double() for model in (digits_original, student))
    weight = find_head(digits_original).weight[list(digits_splits.forgotten)].double()
    target = before - before @ weight.T @ weight / weight.square().sum()
    start, end = ((features - target).square().sum(dim=1).mean().item() for features in (before, after))
    assert run.history[0]["initial_loss"] == pytest.approx(start, rel=1e-4)
    assert end < 0.05 * start


def test_head_and_batch_norm_statistics_stay_while_the_encoder_moves(digits_original, digits_splits):
    student, _ = distilled(digits_original, digits_splits, steps=5)
    old, new = digits_original.state_dict(), student.state_dict()
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    assert moved
    assert not any(name.startswith("head.") or "running" in name or "num_batches" in name for name in moved)
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_the_rate_follows_the_initial_loss(digits_original, digits_splits):
    _, run = distilled(digits_original, digits_splits, steps=1, lr=None)
    assert run.history[0]["lr"] == pytest.approx(2.4e-3 / run.history[0]["initial_loss"])


def test_a_run_that_did_not_forget_warns(digits_original, digits_splits):
    with pytest.warns(UserWarning, match="still classifies"):
        pour.unlearn(
            digits_original,
            ForgetRequest.of(digits_splits),
            method="pour-d",
            steps=1,
            lr=1e-9,
            device="cpu",
            progress=False,
        )


def test_a_projection_that_leaves_the_class_is_named_as_the_cause():
    """Two classes with nearly the same row: taking away the one leaves its images scored as it by its bias."""
    head = torch.nn.Linear(4, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0.0, 1, 0, 0], [0.0, 0, 1, 0]]))
        head.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.Flatten(), head).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    images = torch.rand(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    request = ForgetRequest(classes=[0], forget=[(images, torch.zeros(8, dtype=torch.int64))])
    with pytest.warns(UserWarning, match=r'the projection that it learns leaves 100\.0%.*direction="decisions"'):
        pour.unlearn(model, request, method="pour-d", steps=2, lr=1e-4, device="cpu", progress=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"direction": "x"}, "weights, centered-weights, scores, decisions, means or given"),
        ({"direction": "given"}, "belong together"),
        ({"layer_decay": 0.0}, "layer_decay"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(UsageError, match=words):
        PourD(**options)


def test_the_rate_has_a_bound_where_little_is_left_to_remove(digits_original, digits_splits):
    """The loss before the first step is small on a network that has forgotten, and a rate over it was without end."""
    request = pour.ForgetRequest.of(digits_splits)
    options = {"augment": False, "batch_size": 32, "device": "cpu", "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        once = pour.unlearn(digits_original, request, method="pour-d", **options)
        twice = pour.unlearn(once, request, method="pour-d", **options)
    first, second = (pour.history(model)[-1].log[0] for model in (once, twice))
    assert first["lr"] == pytest.approx(2.4e-3 / first["initial_loss"])
    assert 2.4e-3 / second["initial_loss"] > 1e-3
    assert second["lr"] == pytest.approx(1e-3)


def test_layer_decay_slows_the_layers_from_the_last_trained_to_the_first(monkeypatch):
    """Of a convolution, a BatchNorm and the head, which stays."""
    factors, train = {}, PourD.train

    def watch(self, model, *arguments, lr_factor, **options):
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        factors.update({name: lr_factor(name) for name in trained})
        return train(self, model, *arguments, lr_factor=lr_factor, **options)

    monkeypatch.setattr(PourD, "train", watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        unlearn(tiny_net(), "pour-d", steps=1, lr=NOTHING, layer_decay=0.5)
    assert factors == {"0.weight": 0.5, "0.bias": 0.5, "1.weight": 1.0, "1.bias": 1.0}


@pytest.mark.parametrize("lr", [1e-7, 1e-6])
def test_a_loss_that_did_not_move_is_not_called_risen(digits_original, digits_splits, lr):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pour.unlearn(
            digits_original,
            pour.ForgetRequest.of(digits_splits),
            lr=lr,
            steps=15,
            seed=1,
            batch_size=16,
            augment=False,
            device="cpu",
            progress=False,
        )
    assert not [str(found.message) for found in told if "rose" in str(found.message)]


def test_a_second_request_projects_the_classes_of_the_first_out_too(digits_original, digits):
    """The target of the second distillation has no part along either row."""
    second = pour.Splits.of(digits, [5])
    model = pour.models.copy_and_swap.copy_model(digits_original)
    add_entry(model, HistoryEntry(method="pour-d", classes=(3,)))
    _, run = distilled(model, second, steps=1)
    features = extract_features(digits_original, Classify().batches(second.forget_train, run)).features.double()
    rows = find_head(digits_original).weight[[3, 5]].double()
    basis = torch.linalg.qr(rows.T).Q.T
    removed = (features @ basis.T).square().sum(dim=1).mean().item()
    assert run.history[0]["initial_loss"] == pytest.approx(removed, rel=1e-4)


def test_an_earlier_class_whose_row_is_zero_is_left_out(digits_original, digits):
    second = pour.Splits.of(digits, [5])
    plain = pour.fold(pour.forget(digits_original, [3]))
    _, run = distilled(plain, second, steps=1)
    features = extract_features(plain, Classify().batches(second.forget_train, run)).features.double()
    row = find_head(plain).weight[5].double()
    removed = ((features @ row).square() / row.square().sum()).mean().item()
    assert run.history[0]["initial_loss"] == pytest.approx(removed, rel=1e-4)
