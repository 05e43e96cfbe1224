"""pour.inspect: what a model is, what data say about it, and which method suits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from own_network import MEAN, STD, write_folder, write_network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pour
from pour.geometry import simplex_etf
from pour.models.projecting.direction import MOST_STRETCH
from pour.unlearning.first_call import first_call

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def digits():
    return pour.load_dataset("digits")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network of a user with BatchNorm, and one without, for normalised images."""
    folder = tmp_path_factory.mktemp("inspect")
    write_folder(folder)
    module = write_network(folder)
    networks = {}
    for name, network in (("net", module.Net()), ("plain", module.plain(10))):
        network.load_state_dict(torch.load(folder / f"{name}.pt"))
        networks[name] = pour.models.NormalizedModel(network.eval(), [MEAN], [STD])
    return networks


def own(model, dataset, classes):
    """Accuracy by hand: on all test images, on those of the classes, on the others."""
    split = dataset.splits["test"]
    images = torch.from_numpy(split.images).permute(0, 3, 1, 2) / 255
    labels = torch.from_numpy(split.labels)
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).double()
    shown = torch.isin(labels, torch.tensor(classes))
    return [float(right[rows].mean()) for rows in (torch.ones_like(shown), shown, ~shown)]


@pytest.mark.parametrize(("name", "layers"), [("net", {"BatchNorm": 2}), ("plain", {})])
def test_a_network_of_ones_own_on_data(trained, digits, name, layers):
    model = trained[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = pour.inspect(model, digits, ["3"], device="cpu")
    assert (found.head.name, found.head.kind, found.head.num_features, found.head.num_classes) == (
        "model.out",
        "Linear",
        24,
        10,
    )
    assert "verified on an input" in found.head.found_by
    assert found.normalisation == layers
    assert (found.mean, found.std) == ((MEAN,), (STD,))
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert [rate.value for rate in found.accuracy] == pytest.approx(own(model, digits, [3]))
    assert all(rate.low < rate.value <= rate.high for rate in found.accuracy)
    assert found.doubts == ()
    assert "no contradiction between model, data and classes was found" in " ".join(str(found).split())
    # The model does not change.
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_images_and_labels_that_do_not_fit_are_doubts(trained, digits):
    (doubt,) = pour.inspect(trained["net"].model, digits, ["3"], device="cpu").doubts
    assert doubt.startswith("The model recognises ")
    assert "the network expects normalised images" in doubt
    moved = {name: pour.data.ImageSplit(each.images, (each.labels + 1) % 10) for name, each in digits.splits.items()}
    found = pour.inspect(trained["net"], moved, [3], device="cpu")
    assert len(found.doubts) == 1
    assert "the classes are in another order" in found.doubts[0]
    assert "Doubt " in str(found)
    assert pour.inspect(trained["net"]).doubts is None


def test_collapse_is_that_of_the_training_features(trained, digits):
    model = trained["net"]
    found = pour.inspect(model, digits, device="cpu")
    features = pour.models.extract_features(model, digits.splits["train"].batches(500, "cpu"), head="model.out")
    head = model.model.out
    expected = pour.neural_collapse(features.features, features.labels, head.weight, head.bias)
    values = [expected.nc1, expected.nc2_norm_spread, expected.nc2_angle_std, expected.nc3, expected.nc4]
    assert [line.value for line in found.collapse] == pytest.approx(values, rel=1e-4)
    assert found.simplex == "no"
    by_name = {line.name: line for line in found.collapse}
    # Random features do not depend on the class: within over between is about n / C - 1 over C - 1 degrees of freedom.
    assert by_name["NC1"].random > 20
    assert by_name["NC3"].random == pytest.approx(2**0.5, abs=0.15)
    assert by_name["NC4"].random == pytest.approx(0.1, abs=0.05)
    assert pour.inspect(model, digits, device="cpu") == found


def test_a_simplex_is_recognised():
    means = simplex_etf(5, 12).float()
    labels = torch.arange(5).repeat(20)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(3 * means)
    noise = 0.01 * torch.randn(100, 12, generator=torch.Generator().manual_seed(0))
    data = TensorDataset((means[labels] + noise).reshape(100, 1, 3, 4), labels)
    found = pour.inspect(model, data, [2], device="cpu")
    assert found.simplex == "nearly"
    assert "The class means form a simplex: nearly." in str(found)
    # On a simplex all directions agree, so that POUR-D, which learns the direction weights, can suit.
    assert {trial.direction: round(trial.left, 2) for trial in found.trials} == {
        "weights": 0.0,
        "decisions": 0.0,
        "scores": 0.0,
    }
    assert any(note.startswith("pour-d can suit this network") for note in found.notes)


def test_the_projection_is_measured_as_pour_forget_makes_it(trained, digits):
    model = trained["plain"]
    found = pour.inspect(model, digits, ["3"], device="cpu")
    original = own(model, digits, [3])
    for trial in found.trials:
        forgotten = pour.forget(model, classes=[3], direction=trial.direction, head="model.out", forgotten_logit="keep")
        expected = own(forgotten, digits, [3])
        assert trial.left == pytest.approx(expected[1], abs=1e-6)
        assert trial.change == pytest.approx(expected[2] - original[2], abs=1e-6)
    assert len(found.trials) == 3


@pytest.mark.parametrize("kind", ["loader", "dataset", "mapping", "splits", "split"])
def test_data_of_every_kind(trained, digits, kind):
    images = torch.from_numpy(digits.splits["test"].images).permute(0, 3, 1, 2) / 255
    samples = TensorDataset(images, torch.from_numpy(digits.splits["test"].labels).long())
    data = {
        "loader": DataLoader(samples, batch_size=64),
        "dataset": samples,
        "mapping": {"train": DataLoader(samples, batch_size=50), "test": samples},
        "splits": pour.Splits.of(digits, ["3"]),
        "split": digits.splits["test"],
    }[kind]
    found = pour.inspect(trained["net"], data, ["3"] if kind == "splits" else [3], limit=200, device="cpu")
    assert found.head.name == "model.out"
    assert found.accuracy[0].count == 200
    assert len(found.accuracy) == 3
    assert len(found.collapse) == 5


class Prototypes(nn.Module):
    """A network whose scores are distances to prototypes, so that no layer is the head."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(64, 32)
        self.prototypes = nn.Parameter(torch.randn(4, 32))

    def forward(self, images):
        return -torch.cdist(self.emb(images.flatten(1)), self.prototypes)


@pytest.mark.parametrize("data", [None, TensorDataset(torch.rand(8, 1, 8, 8), torch.arange(8) % 4)])
def test_an_unclear_head_is_described_and_no_error(data):
    found = pour.inspect(Prototypes(), data, device="cpu")
    assert found.heads == ()
    assert found.advice == ()
    assert [layer.name for layer in found.candidates] == ["emb"]
    text = " ".join(str(found).split())
    assert "Head unclear. " in text
    assert "emb (Linear, 64 features, 32 classes)" in text
    assert "name the layer (head=; in the shell --head)" in text
    assert ("--data" in text) == (data is None)


class Distilled(nn.Module):
    """Two heads whose scores are averaged."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 12)
        self.head, self.head_dist = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, images):
        z = self.body(images.flatten(1))
        return (self.head(z) + self.head_dist(torch.relu(z))) / 2


def test_several_heads():
    torch.manual_seed(0)
    model = Distilled()
    images = torch.rand(60, 1, 8, 8)
    answers = model(images).argmax(dim=1).detach()
    found = pour.inspect(model, TensorDataset(images, answers), [int(answers[0])], head=["head", "head_dist"])
    assert [head.name for head in found.heads] == ["head", "head_dist"]
    assert found.accuracy[0].value == 1
    forgotten = int(answers[0])
    for trial in found.trials:
        result = pour.forget(
            model,
            classes=[forgotten],
            direction=trial.direction,
            head=["head", "head_dist"],
            example=images[:4],
            forgotten_logit="keep",
        )
        left = (result(images).argmax(dim=1) == forgotten)[answers == forgotten].float().mean()
        assert trial.left == pytest.approx(float(left), abs=1e-6)
    assert found.trials


def test_heads_that_are_used_in_training_alone_are_shown():
    from pour._torchvision import torchvision_works

    if not torchvision_works():
        pytest.skip("torchvision is not installed")
    from torchvision.models import GoogLeNet

    found = pour.inspect(GoogLeNet(num_classes=3, init_weights=False))
    assert [(head.name, "training alone" in head.found_by) for head in found.heads] == [
        ("fc", False),
        ("aux1.fc2", True),
        ("aux2.fc2", True),
    ]


def test_a_named_head_is_taken():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert pour.inspect(model, head="1").head.found_by.startswith("named")
    assert "no layer called 'fc'" in pour.inspect(model, head="fc").unclear


def test_history_and_the_projector_are_reported(trained, digits):
    pour.models.set_class_names(trained["net"], digits.classes)
    forgotten = pour.forget(trained["net"], classes=["3"], head="model.out")
    found = pour.inspect(forgotten, digits, ["5"], device="cpu")
    assert found.forgotten == ("pour-p: '3'",)
    assert found.head.removed == 1
    assert any("Earlier requests removed '3'" in note for note in found.notes)
    pour.models.set_class_names(trained["net"], None)


def test_the_direction_follows_the_head():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    first = pour.inspect(model, classes=[0]).advice[0]
    assert (first.method, first.direction) == ("pour-p", "decisions")
    assert f"limit {MOST_STRETCH:g}" in first.expect
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    first = pour.inspect(narrow, classes=[0]).advice[0]
    assert (first.method, first.direction) == ("pour-p", "scores")
    assert "4 features are too few for 10 classes" in first.expect


def test_the_advice_states_what_was_measured():
    """Numbers of the sentences, against the results that they come from."""
    fresh = json.loads((ROOT / "results" / "first_call" / "fresh.json").read_text())
    page = (ROOT / "docs" / "results" / "first-call.md").read_text()
    assert "| pour-a | +0.2 (-0.4) | 0.0 (0.0) | 0.1 (24 of 24) |" in page
    assert fresh
    advice = pour.inspect(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).advice
    assert [entry.method for entry in advice] == ["pour-p", "pour-a", "pour-a"]
    left = "24 small networks 0.0 % of the class was left, and the other classes lost at most 0.4 points"
    assert left in advice[1].expect
    for entry in advice:
        result = first_call(entry.method)
        assert (result.good, result.networks) == (6, 6)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_text_fits_and_is_whole(trained, digits, width):
    found = pour.inspect(trained["net"], digits, ["3"], limit=200, device="cpu")
    text = found.to_text(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = text.split()
    assert " ".join(found.to_text(90).split()) == " ".join(words)


def test_print_shows_the_text(capsys):
    found = pour.inspect(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    print(found)
    assert capsys.readouterr().out == f"{found.to_text()}\n"
    record = json.loads(found.to_json())
    assert record["heads"][0]["num_features"] == 64


def test_names_cannot_control_the_terminal():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    pour.models.set_class_names(model, ["a", "b\x1b]52;c;AAAA\x07", "c"])
    assert "\x1b" not in str(pour.inspect(model))


def test_half_precision_and_scenes():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).half()
    draw = torch.Generator().manual_seed(0)
    scenes = [(torch.rand(3, 3, 8, 8, generator=draw), torch.randint(0, 4, (3, 8, 8), generator=draw))]
    found = pour.inspect(model, scenes, [1], device="cpu")
    assert found.dtypes == ("float16",)
    assert [rate.count for rate in found.accuracy] == [3, 3, 3]
    assert found.trials == ()
    assert "(scenes that show it)" in found.advice[1].situation


def test_data_of_another_network_are_a_doubt():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = pour.inspect(model, TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8)), device="cpu")
    assert found.head is None
    assert "cannot run on images of shape (8, 3, 8, 8)" in found.unclear
