import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from pour.data.augment import Augment
from pour.data.loader import DeviceLoader
from pour.errors import DivergenceError, UsageError
from pour.training import loop
from pour.training.loop import classification_loss, fit, set_training_mode
from pour.training.recipes import RECIPES, Recipe, get_recipe
from pour.training.resume import ResumeFile
from pour.training.run import Run, resolve_device
from pour.training.schedule import learning_rate
from pour.training.step import TrainingStep, make_optimizer


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 36, 3)
    )


def make_loader(count=48, **options):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    images = rng.integers(0, 60, (count, 6, 6, 1), dtype=np.uint8)
    images[np.arange(count), labels] += 150
    options = {"batch_size": 8, "device": "cpu", "seed": 1, "shuffle": True, "augment": Augment(padding=0)} | options
    return DeviceLoader(images, labels, **options)


def quiet(**options):
    return Run(device="cpu", progress=False, **options)


def test_it_learns():
    model = make_model()
    log = fit(model, make_loader(), Recipe(epochs=8, lr=0.05), quiet())
    assert len(log.losses) == 8 * 6
    assert np.mean(log.losses[-6:]) < 0.2 * np.mean(log.losses[:6])
    assert log.images == 8 * 48
    assert log.images_per_second > 0
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def test_one_step_is_nesterov_sgd():
    """Against the update written out by hand."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    before = copy.deepcopy(model)
    loader = make_loader(batch_size=48)
    recipe = Recipe(steps=2, lr=0.1, momentum=0.9, weight_decay=0.01, schedule="constant")
    fit(model, loader, recipe, quiet())
    weight, bias = (p.detach().clone().requires_grad_() for p in before.parameters())
    momentum = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for epoch in range(2):
        images, labels = next(loader.epoch(epoch))
        scores = images.flatten(1).float() / 255 @ weight.T + bias
        gradients = torch.autograd.grad(nn.functional.cross_entropy(scores, labels), [weight, bias])
        for i, (p, g) in enumerate(zip((weight, bias), gradients, strict=True)):
            g = g + 0.01 * p.detach()
            momentum[i] = 0.9 * momentum[i] + g
            p.data -= 0.1 * (g + 0.9 * momentum[i])
    assert torch.allclose(model[1].weight, weight, atol=1e-6)
    assert torch.allclose(model[1].bias, bias, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_same_seed_gives_the_same_bytes(optimizer):
    recipe = Recipe(epochs=2, lr=0.01, optimizer=optimizer)
    states = []
    for _ in range(2):
        model = make_model()
        torch.rand(7)
        fit(model, make_loader(), recipe, quiet(seed=5))
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    other = make_model()
    fit(other, make_loader(), recipe, quiet(seed=6))
    assert not torch.equal(other.state_dict()["5.weight"], states[0]["5.weight"])


class KilledError(Exception):
    pass


class DiesAt:
    """A loader that is killed in the middle of an epoch."""

    def __init__(self, loader, epoch):
        self.loader = loader
        self.at = epoch

    def __len__(self):
        return len(self.loader)

    def epoch(self, number):
        for i, batch in enumerate(self.loader.epoch(number)):
            if number == self.at and i == 3:
                raise KilledError
            yield batch


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_a_killed_run_ends_as_if_it_had_not_been_killed(tmp_path, epoch, optimizer):
    recipe = Recipe(epochs=4, lr=0.02, optimizer=optimizer)
    whole = make_model()
    log = fit(whole, make_loader(), recipe, quiet())

    file = ResumeFile(path=tmp_path / "x.resume", fingerprint="one", seconds=0)
    with pytest.raises(KilledError):
        fit(make_model(), DiesAt(make_loader(), epoch), recipe, quiet(), resume=file)
    assert file.path.exists() == (epoch > 0)
    again = make_model()
    resumed = fit(again, make_loader(), recipe, quiet(), resume=file)
    assert all(torch.equal(whole.state_dict()[name], again.state_dict()[name]) for name in whole.state_dict())
    assert resumed.losses == log.losses
    assert not file.path.exists()


@pytest.mark.parametrize("damage", ["other run", "truncated"])
def test_a_foreign_or_damaged_resume_file_is_not_used(tmp_path, damage):
    recipe = Recipe(epochs=2, lr=0.02)
    file = ResumeFile(path=tmp_path / "x.resume", fingerprint="one", seconds=0)
    with pytest.raises(KilledError):
        fit(make_model(), DiesAt(make_loader(), 1), recipe, quiet(), resume=file)
    if damage == "truncated":
        file.path.write_bytes(file.path.read_bytes()[:-50])
    else:
        file = ResumeFile(path=file.path, fingerprint="two", seconds=0)
    whole, again = make_model(), make_model()
    fit(whole, make_loader(), recipe, quiet())
    fit(again, make_loader(), recipe, quiet(), resume=file)
    assert all(torch.equal(whole.state_dict()[name], again.state_dict()[name]) for name in whole.state_dict())


def test_divergence_names_step_and_rate():
    with pytest.raises(DivergenceError, match=r"at step \d+ \(learning rate 1e\+\d+\); use a smaller"):
        fit(make_model(), make_loader(), Recipe(epochs=4, lr=1e12, schedule="constant"), quiet())


class StopsEarly:
    """A loader that has had enough after some batches of its second epoch."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def epoch(self, number):
        return itertools.islice(self.loader.epoch(number), {0: len(self), 1: 2}.get(number, 0))


def read_in_groups(monkeypatch):
    """As on a GPU, where losses are read now and then."""

    class Reader(loop._LossReader):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self._group = 50

    monkeypatch.setattr(loop, "_LossReader", Reader)


def test_a_run_that_stops_early_has_all_its_losses(monkeypatch):
    read_in_groups(monkeypatch)
    log = fit(make_model(), StopsEarly(make_loader()), Recipe(epochs=4, lr=0.02), quiet())
    assert len(log.losses) == 6 + 2


def test_a_run_that_stops_early_is_judged(monkeypatch):
    read_in_groups(monkeypatch)
    with pytest.raises(DivergenceError):
        fit(make_model(), StopsEarly(make_loader()), Recipe(epochs=4, lr=1e12, schedule="constant"), quiet())


def test_rates_of_the_callers_own():
    rates = []

    def objective(model, images, labels):
        rates.append(optimizer.param_groups[0]["lr"])
        return classification_loss(model, images, labels)

    model = make_model()
    optimizer = make_optimizer({1.0: list(model.parameters())}, Recipe(epochs=1, lr=1.0), torch.device("cpu"))
    fit(
        model,
        make_loader(),
        Recipe(epochs=1),
        quiet(),
        objective=objective,
        optimizer=optimizer,
        rate=lambda s: s / 100,
    )
    assert rates == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_restored_buffers_lie_in_memory_as_their_parameters_do(tmp_path, optimizer):
    """Fused kernels refuse, or worse misread, buffers of another layout."""
    recipe = Recipe(steps=2, lr=0.01, optimizer=optimizer)

    def trained(steps):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 3)).to(
            memory_format=torch.channels_last
        )
        made = make_optimizer({1.0: list(model.parameters())}, recipe, torch.device("cpu"))
        for _ in range(steps):
            model(torch.rand(2, 3, 6, 6)).sum().backward()
            made.step()
        return model, made

    file = ResumeFile(path=tmp_path / "x.resume", fingerprint="one")
    saved = trained(2)
    file.save(*saved, {"steps": 2})
    model, restored = trained(0)
    assert file.restore(model, restored) == {"steps": 2}
    assert model[0].weight.stride() != model[0].weight.contiguous().stride()
    for old, new in zip(saved[0].parameters(), model.parameters(), strict=True):
        for name, value in saved[1].state[old].items():
            assert torch.equal(value, restored.state[new][name])
            assert value.ndim == 0 or restored.state[new][name].stride() == new.stride()


def test_nan_in_the_loss_stops_at_that_step():
    calls = []

    def objective(model, images, labels):
        calls.append(1)
        return classification_loss(model, images, labels) * (float("nan") if len(calls) == 4 else 1.0)

    with pytest.raises(DivergenceError, match="nan at step 3 "):
        fit(make_model(), make_loader(), Recipe(epochs=2, lr=0.01), quiet(), objective=objective)
    assert len(calls) == 4


def test_a_data_loader_of_the_user_works_and_is_repeatable():
    images, labels = next(make_loader(count=40, batch_size=40).epoch(0))
    data = torch.utils.data.TensorDataset(images.float() / 255, labels)
    states = []
    for _ in range(2):
        model = make_model()
        fit(model, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True), Recipe(epochs=3, lr=0.01), quiet())
        states.append(model.state_dict()["5.weight"])
    assert torch.equal(*states)


def test_frozen_batch_norm_keeps_its_statistics_but_trains_its_affine_part():
    model = make_model()
    with torch.no_grad():
        model(torch.rand(8, 1, 6, 6))
    before = copy.deepcopy(model.state_dict())
    fit(model, make_loader(), Recipe(epochs=1, lr=0.05), quiet(), batch_norm="frozen")
    after = model.state_dict()
    assert torch.equal(before["1.running_mean"], after["1.running_mean"])
    assert torch.equal(before["1.running_var"], after["1.running_var"])
    assert not torch.equal(before["1.weight"], after["1.weight"])
    set_training_mode(model, "train")
    assert model[1].training


def test_only_parameters_that_require_gradients_move():
    model = make_model()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    fit(model, make_loader(), Recipe(epochs=1, lr=0.05), quiet())
    assert torch.equal(before["0.weight"], model.state_dict()["0.weight"])
    assert not torch.equal(before["5.weight"], model.state_dict()["5.weight"])


def test_gradient_clipping_bounds_the_first_step():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    before = copy.deepcopy(model)
    recipe = Recipe(steps=1, lr=1.0, momentum=0, weight_decay=0, schedule="constant", clip=1e-3)
    fit(model, make_loader(), recipe, quiet())
    moved = sum((a - b).square().sum() for a, b in zip(model.parameters(), before.parameters(), strict=True)).sqrt()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_networks_compute_in_the_precision_and_keep_float32_weights(precision, dtype):
    model, seen = make_model(), set()
    handle = model[0].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    log = fit(model, make_loader(), Recipe(epochs=4, lr=0.05), quiet(precision=precision))
    handle.remove()
    assert seen == {dtype}
    assert model[0].weight.dtype == torch.float32
    assert log.losses[-1] < log.losses[0]


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model = make_model(seed=3)
    torch.manual_seed(3)
    fit(model, make_loader(), Recipe(epochs=1, lr=0.05), quiet())
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(
    ("schedule", "first", "middle", "last"),
    [("one-cycle", 0.05, 0.625, 0.0), ("cosine", 1.0, 0.5, 0.0), ("step", 1.0, 0.1, 0.01), ("constant", 1.0, 1.0, 1.0)],
)
def test_schedules(schedule, first, middle, last):
    rates = [learning_rate(schedule, 1.0, step, 100, warmup=0.2) for step in range(100)]
    assert rates[0] == pytest.approx(first)
    assert rates[50] == pytest.approx(middle, abs=0.02)
    assert rates[99] == pytest.approx(last, abs=1e-2)
    assert max(rates) == pytest.approx(1.0)
    assert min(rates) >= 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either epochs or steps"),
        ({"epochs": 1, "steps": 1}, "either epochs or steps"),
        ({"epochs": 0}, "at least 1"),
        ({"epochs": 1, "lr": float("nan")}, "learning rate"),
        ({"epochs": 1, "momentum": 1.0}, "momentum"),
        ({"epochs": 1, "lr": float("inf")}, "learning rate must be above 0 and finite, but is inf"),
        ({"epochs": 1, "weight_decay": -1}, "weight decay"),
        ({"epochs": 1, "weight_decay": float("nan")}, "weight decay"),
        ({"epochs": 1, "weight_decay": float("inf")}, "weight decay"),
        ({"epochs": 1, "clip": float("nan")}, "clip"),
        ({"epochs": 1, "clip": float("inf")}, "clip"),
        ({"epochs": 1, "batch_size": 0}, "batch size"),
        ({"epochs": 1, "schedule": "nope"}, "one-cycle, cosine, step, constant"),
        ({"epochs": 1, "optimizer": "nope"}, "sgd or adamw"),
        ({"epochs": 1, "clip": 0}, "clip"),
        ({"epochs": 1, "warmup": 2}, "warm-up"),
    ],
)
def test_bad_recipes(options, words):
    with pytest.raises(UsageError, match=words):
        Recipe(**options)


def test_bad_use():
    with pytest.raises(UsageError, match="no parameter"):
        fit(make_model().requires_grad_(False), make_loader(), Recipe(epochs=1), quiet())
    with pytest.raises(UsageError, match="no batches"):
        fit(make_model(), [], Recipe(epochs=1), quiet())
    with pytest.raises(UsageError, match="a stream has none"):
        fit(make_model(), iter([]), Recipe(epochs=1), quiet())
    with pytest.raises(UsageError, match="no recipe 'x'; the recipes are fast, long"):
        get_recipe("x")
    with pytest.raises(UsageError, match="not a device"):
        resolve_device("gpu please")
    with pytest.raises(UsageError, match="not supported"):
        resolve_device("meta")
    with pytest.raises(UsageError, match="fp32 or bf16"):
        Run(precision="fp16", device="cpu")
    with pytest.raises(UsageError, match="seed"):
        Run(seed=-1)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no GPU"):
            resolve_device("cuda")


def test_named_recipes():
    assert RECIPES["fast"].epochs == 60
    assert RECIPES["long"].epochs == 200
    assert RECIPES["fast"].change(epochs=3, lr=None) == Recipe(name="fast", epochs=3)


def test_cudnn_measures_its_algorithms_for_large_batches_alone():
    """A search for the last, smaller batch of an epoch takes longer than all its steps."""
    searched = []

    def objective(model, images):
        searched.append((len(images), torch.backends.cudnn.benchmark))
        return model(images).square().mean()

    model = nn.Linear(2, 2)
    run = quiet()
    optimizer = make_optimizer({1.0: list(model.parameters())}, get_recipe("fast"), run.torch_device)
    step = TrainingStep(run, model, optimizer, objective, clip=None, graph=False)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for size in (4, 4, 3, 4, 5, 4):
            step(torch.ones(size, 2))
        assert torch.backends.cudnn.benchmark
    assert searched == [(4, True), (4, True), (3, False), (4, True), (5, True), (4, False)]
    step(torch.ones(6, 2))
    assert searched[-1] == (6, False), "asked for by nobody"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_losses_are_computed_in_float32(precision):
    """Under bf16 the layers compute in bf16, and the objective gets their scores as float32."""
    inside, scores = [], []

    def objective(model, images, labels):
        output = model(images)
        scores.append(output.dtype)
        return nn.functional.cross_entropy(output, labels)

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda *parts: inside.append(parts[-1].dtype))
    batches = [(torch.rand(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1]))]
    run = Run(device="cpu", precision=precision, progress=False)
    fit(model, batches, get_recipe("fast").change(epochs=1), run, objective=objective)
    assert inside == [torch.float32 if precision == "fp32" else torch.bfloat16]
    assert scores == [torch.float32]
    assert model[1].weight.dtype == torch.float32
    assert not model._forward_hooks


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "1"])
def test_seeds_are_whole_numbers_of_some_size(seed):
    with pytest.raises(UsageError, match="A seed must be a whole number from 0 to"):
        Run(seed=seed)


@pytest.mark.parametrize(
    "changes", [{"epochs": 1.5}, {"epochs": None, "steps": "3"}, {"batch_size": 2.0}, {"lr": "0.1"}, {"epochs": 0}]
)
def test_recipes_are_made_of_numbers(changes):
    with pytest.raises(UsageError, match="must be"):
        Recipe(**({"epochs": 1} | changes))
