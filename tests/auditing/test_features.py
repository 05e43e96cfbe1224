import copy

import numpy as np
import pytest
import torch
from torch import nn

import pour
from pour.auditing import tapper as tapper_module
from pour.auditing.audited import Audited
from pour.auditing.tapper import Tapper, _projected_weight
from pour.data.dataset import ImageSplit
from pour.data.digest import split_digest
from pour.errors import UsageError
from pour.geometry import neural_collapse, simplex_etf
from pour.models import NormalizedModel, find_head
from pour.training import Run
from pour.training.tasks.classify import Classify

CPU = torch.device("cpu")


def make_splits(count=40, classes=4, channels=3):
    rng = np.random.default_rng(0)
    return {
        name: ImageSplit(rng.integers(0, 256, (n, 6, 6, channels), dtype=np.uint8), np.arange(n) % classes)
        for name, n in (("test", count // 2), ("train", count))
    }


def make_model(seed=0, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, classes)).eval()


def make_tapper(samples=None, precision="fp32", **options):
    audited = Audited(Classify(), "random", tuple("abcd"), (1,), samples or make_splits())
    return Tapper(audited=audited, run=Run(device=CPU, precision=precision, progress=False), **options)


def test_it_keeps_what_the_network_computes():
    model = make_model()
    tapped = make_tapper().tap(model, "unlearned")
    for name, split in make_splits().items():
        images = torch.tensor(split.images).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad():
            expected = model[:-1](images)
        assert torch.allclose(tapped.rows(name), expected, atol=1e-6)
        assert torch.allclose(tapped.splits[name].scores, model[-1](expected), atol=1e-6)
        assert tapped.labels(name).tolist() == split.labels.tolist()
    assert tapped.weight.shape == (4, 80)
    assert not tapped.projected


def test_sides_are_the_labels_sides():
    tapped = make_tapper().tap(make_model(), "original")
    forget, retain = tapped.side("train", "forget"), tapped.side("train", "retain")
    assert len(forget) == 10
    assert len(retain) == 30
    assert torch.equal(forget, tapped.rows("train")[tapped.labels("train") == 1])


def test_a_projected_model_has_two_views():
    model = make_model()
    tapped = make_tapper().tap(pour.forget(model, classes=[1], direction="weights"), "unlearned")
    plain = make_tapper().tap(model, "original")
    assert tapped.projected
    assert torch.allclose(tapped.rows("test", "raw"), plain.rows("test"), atol=1e-6)
    direction = model[-1].weight.detach()[1]
    assert (tapped.rows("test") @ direction).abs().max() < 1e-4
    assert (tapped.rows("test", "raw") @ direction).abs().max() > 1e-2
    assert not tapped.predicts_forgotten("test").any()


def test_the_model_is_left_alone():
    model = make_model().train()
    before = copy.deepcopy(model.state_dict())
    make_tapper().tap(model, "unlearned")
    assert model.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_maps_are_averaged():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Conv2d(3, 5, 3)
            self.head = nn.Conv2d(5, 4, 1)

        def forward(self, images):
            return self.head(self.body(images)).mean(dim=(2, 3))

    torch.manual_seed(0)
    model = Pooled()
    tapped = make_tapper(heads={"unlearned": "head"}).tap(model, "unlearned")
    assert tapped.rows("test").shape == (20, 5)
    scores = tapped.rows("test") @ tapped.weight.T + tapped.bias
    assert torch.allclose(scores, tapped.splits["test"].scores, atol=1e-5)


def test_bf16_features_are_float32_and_close():
    exact = make_tapper().tap(make_model(), "unlearned").rows("test")
    rough = make_tapper(precision="bf16").tap(make_model(), "unlearned").rows("test")
    assert rough.dtype == torch.float32
    assert torch.allclose(rough, exact, atol=0.05)
    assert not torch.equal(rough, exact)


@pytest.fixture
def counted(monkeypatch):
    """How many times a network was run over a split."""
    runs = []
    real = tapper_module.extract_features
    monkeypatch.setattr(tapper_module, "extract_features", lambda *a, **k: runs.append(1) or real(*a, **k))
    return runs


@pytest.mark.parametrize("direction", ["weights", "decisions"])
@pytest.mark.parametrize("logit", ["keep", "mask"])
def test_models_with_one_encoder_run_it_once(counted, direction, logit):
    model = make_model()
    changed = pour.forget(model, classes=[1], direction=direction, forgotten_logit=logit)
    alone = make_tapper().tap(changed, "unlearned")
    counted.clear()
    derived = make_tapper().tap_all({"original": model, "unlearned": changed})["unlearned"]
    assert len(counted) == 2
    for name in ("train", "test"):
        for part in ("features", "raw", "scores", "labels"):
            expected, got = getattr(alone.splits[name], part), getattr(derived.splits[name], part)
            assert torch.equal(got, expected), part
            assert not got.is_inference()
    assert derived.projected


def test_a_folded_model_shares_the_encoder_too(counted):
    model = make_model()
    folded = pour.fold(pour.forget(model, classes=[1], forgotten_logit="keep"))
    alone = make_tapper().tap(folded, "unlearned")
    again = make_tapper().tap_all({"original": model, "unlearned": folded})["unlearned"]
    assert len(counted) == 4
    assert torch.equal(again.splits["test"].scores, alone.splits["test"].scores)
    assert again.splits["test"].raw is again.splits["test"].features


class Talkative(nn.Module):
    """Does something of its own before or after the head, which its modules do not tell."""

    def __init__(self, before=1.0, after=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5 * 16, 4)
        self.before, self.after = before, after

    def forward(self, images):
        return self.head(self.body(images).flatten(1) * self.before) * self.after


@pytest.mark.parametrize("change", [{"before": 2.0}, {"after": 2.0}])
def test_a_network_that_only_looks_the_same_is_run(counted, change):
    alone = make_tapper().tap(Talkative(**change), "unlearned")
    counted.clear()
    tapped = make_tapper().tap_all({"original": Talkative(), "unlearned": Talkative(**change)})["unlearned"]
    assert len(counted) == 4
    assert torch.equal(tapped.splits["train"].scores, alone.splits["train"].scores)
    assert torch.equal(tapped.rows("train"), alone.rows("train"))


def test_the_cache_saves_the_run(tmp_path, counted):
    first = make_tapper(cache=tmp_path).tap(make_model(), "original")
    again = make_tapper(cache=tmp_path).tap(make_model(), "retrained")
    assert len(counted) == 2
    for name in ("train", "test"):
        assert torch.equal(first.rows(name), again.rows(name))
        assert torch.equal(first.splits[name].scores, again.splits[name].scores)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_projected_reference_keeps_both_views(tmp_path):
    model = pour.forget(make_model(), classes=[1])
    first = make_tapper(cache=tmp_path).tap(model, "original")
    again = make_tapper(cache=tmp_path).tap(model, "original")
    assert torch.equal(first.rows("test", "raw"), again.rows("test", "raw"))
    assert not torch.equal(again.rows("test", "raw"), again.rows("test"))


class Shifted(nn.Module):
    """A network whose shift is in no state dict."""

    def __init__(self, shift=0.0, factor=1.0, steps=(0.0,), table=0.0):
        super().__init__()
        self.net, self.factor = make_model(), factor
        self.steps, self.table, self.settings = list(steps), np.full(2, table), {"slope": None, "seen": {1, 2}}
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, images):
        return self.net(images * self.factor + self.shift + sum(self.steps) + self.table.sum())


@pytest.mark.parametrize("change", [{"shift": 0.5}, {"factor": 2.0}, {"steps": (0.1, 0.2)}, {"table": 1.0}])
def test_the_cache_knows_what_is_in_no_state_dict(tmp_path, counted, change):
    make_tapper(cache=tmp_path).tap(Shifted(), "original")
    seen = make_tapper(cache=tmp_path).tap(Shifted(**change), "original")
    assert len(counted) == 4
    assert torch.equal(seen.rows("test"), make_tapper().tap(Shifted(**change), "original").rows("test"))
    make_tapper(cache=tmp_path).tap(Shifted(**change), "original")
    assert len(counted) == 6, "the one without a cache ran, the last did not"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_other_precisions_are_measured_in_float32(dtype):
    model = make_model().to(dtype)
    for network in (model, pour.forget(model, classes=[1])):
        seen = make_tapper().tap(network, "unlearned")
        assert seen.rows("test").dtype == seen.weight.dtype == torch.float32
        twin = make_tapper().tap(copy.deepcopy(network).float(), "unlearned")
        assert torch.allclose(seen.splits["test"].scores, twin.splits["test"].scores, atol=1e-5)
    assert next(model.parameters()).dtype == dtype, "the model is left as it is"


def test_the_head_is_seen_in_the_space_of_its_features():
    """What a projector takes from the features it takes from the head: a perfect POUR-P has NC3 = 0."""
    means = simplex_etf(5, 8).float()
    body = nn.Sequential(nn.Flatten(), nn.Linear(8, 5, bias=False))
    with torch.no_grad():
        body[1].weight.copy_(means)
    images = means[torch.arange(40) % 5].view(40, 1, 2, 4)
    projected = pour.forget(body, classes=[0], forgotten_logit="keep")
    head = find_head(projected)
    features = head.module.projector(images.flatten(1))
    kept = torch.arange(40) % 5 != 0
    found = neural_collapse(features[kept], (torch.arange(40) % 5)[kept], _projected_weight(head))
    assert found.nc3 == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("change", ["weights", "images", "precision", "structure"])
def test_the_cache_knows_what_it_holds(tmp_path, counted, change):
    make_tapper(cache=tmp_path).tap(make_model(), "original")
    model, options = make_model(seed=1 if change == "weights" else 0), {}
    if change == "structure":
        model[1] = nn.Tanh()
    if change == "images":
        splits = make_splits()
        options["samples"] = {name: split.take(np.arange(len(split))[::-1].copy()) for name, split in splits.items()}
    if change == "precision":
        options["precision"] = "bf16"
    make_tapper(cache=tmp_path, **options).tap(model, "original")
    assert len(counted) == 4


def test_the_cache_knows_the_size_that_images_are_brought_to(tmp_path, counted):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4)).eval()
    seen = [
        make_tapper(cache=tmp_path).tap(NormalizedModel(body, [0.5] * 3, [0.25] * 3, resize=size), "original")
        for size in (None, 3)
    ]
    assert len(counted) == 4
    assert not torch.allclose(seen[0].rows("test"), seen[1].rows("test"), atol=1e-3)


def test_the_unlearned_model_is_not_kept(tmp_path):
    make_tapper(cache=tmp_path).tap(make_model(), "unlearned")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_broken_cache_file_is_made_again(tmp_path, counted, damage):
    expected = make_tapper(cache=tmp_path).tap(make_model(), "original").rows("test")
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-7] if damage == "cut" else b"nothing")
    got = make_tapper(cache=tmp_path).tap(make_model(), "original").rows("test")
    assert torch.equal(got, expected)
    assert len(counted) == 4
    make_tapper(cache=tmp_path).tap(make_model(), "original")
    assert len(counted) == 4


def test_the_digest_of_a_split_sees_images_and_labels():
    split = make_splits()["test"]
    same = ImageSplit(split.images.copy(), split.labels.copy())
    assert split_digest(split) == split_digest(same)
    other = split.images.copy()
    other[0, 0, 0, 0] ^= 1
    assert split_digest(ImageSplit(other, split.labels)) != split_digest(split)
    assert split_digest(ImageSplit(split.images, split.labels[::-1].copy())) != split_digest(split)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_model_is_refused(value):
    model = make_model()
    with torch.no_grad():
        model[0].bias[0] = value
    with pytest.raises(UsageError, match=r"unlearned model returns NaN or infinite .* 20 of 20 test images"):
        make_tapper().tap(model, "unlearned")


def test_a_mask_of_minus_infinity_is_no_damage():
    model = make_model()
    with torch.no_grad():
        model[-1].bias[1] = -torch.inf
    assert not make_tapper().tap(model, "unlearned").predicts_forgotten("test").any()


def test_a_head_with_too_few_scores_is_refused():
    with pytest.raises(UsageError, match=r"retrained model has scores for 3 classes, but the largest label is 3"):
        make_tapper().tap(make_model(classes=3), "retrained")


def test_progress_counts_all_images():
    done = []
    make_tapper(advance=lambda count, note: done.append(count)).tap(make_model(), "unlearned")
    assert sum(done) == 60
