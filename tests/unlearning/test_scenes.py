"""Forgetting a class of a segmentation network, from scenes that show it."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import pour
from pour._torchvision import torchvision_works
from pour.data import Scenes, load_segmentation
from pour.errors import UsageError
from pour.geometry.fitter import ProjectorFitter
from pour.metrics.segmentation import segmentation_scores
from pour.models import find_head, set_class_names, tap_features
from pour.models.copy_and_swap import copy_model
from pour.training import Recipe, Run, fit
from pour.training.tasks.segment import Segment, class_weights, pixel_loss
from pour.unlearning import ForgetRequest, make_method
from pour.unlearning.toolkit.features import class_rows, forgotten_rows, row_distances, row_mean
from pour.unlearning.toolkit.teachers import without_dropout

pytestmark = pytest.mark.filterwarnings("ignore:pour-d still")
CAR = 2
FEW_STEPS = {"steps": 80, "batch_size": 4, "optimizer": "adamw", "lr": 0.01}


@pytest.fixture(scope="module")
def data(small_world):
    return load_segmentation("camvid", small_world)


@pytest.fixture(scope="module")
def train(data) -> Scenes:
    return Scenes.of(data.splits["train"])


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(seed=0, device="cpu", progress=False)


@pytest.fixture(scope="module")
def original(data, train, run) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 4, 1),
    )
    set_class_names(model, data.classes)
    recipe = Recipe(epochs=25, batch_size=4, optimizer="adamw", lr=0.01)
    loader = Segment().batches(train, run)
    fit(model, loader, recipe, run, objective=pixel_loss(class_weights(train)))
    return model


def scores(model: nn.Module, data, run: Run):
    test = Scenes.of(data.splits["test"])
    return segmentation_scores(Segment().answers(model, test, run).double(), [CAR])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pour-p", {}),
        ("pour-p", {"direction": "weights"}),
        ("pour-p", {"forgotten_logit": "keep", "direction": "centered-weights"}),
        ("masked-head", {}),
        ("pour-d", {**FEW_STEPS, "direction": "centered-weights"}),
        ("pour-d", {**FEW_STEPS, "direction": "centered-weights", "other_pixels": "keep"}),
        ("pour-d", {**FEW_STEPS, "direction": "means"}),
        ("gradient-ascent", {"epochs": 10, "batch_size": 4, "lr": 0.01}),
    ],
)
def test_a_class_is_forgotten_and_the_model_is_left_alone(original, data, train, run, method, options) -> None:
    before = copy.deepcopy(original.state_dict())
    assert scores(original, data, run)["iou_f"] > 0.8
    forgotten = pour.unlearn(
        original, ForgetRequest.of_scenes(train, [CAR]), method=method, device="cpu", progress=False, **options
    )
    after = scores(forgotten, data, run)
    assert after["iou_f"] < 0.3
    assert all(torch.equal(before[name], tensor) for name, tensor in original.state_dict().items())
    assert pour.history(forgotten)[-1].class_names == ("Car",)
    if method != "gradient-ascent":
        assert after["iou_r_rest"] > scores(original, data, run)["iou_r_rest"] - 0.25
    if method in ("masked-head", "pour-p") and options.get("forgotten_logit") is None:
        assert after["iou_f"] == 0


def test_pour_d_moves_the_encoder_and_not_the_head(original, train) -> None:
    forgotten = pour.unlearn(
        original,
        ForgetRequest.of_scenes(train, [CAR]),
        method="pour-d",
        device="cpu",
        progress=False,
        steps=30,
        batch_size=4,
        optimizer="adamw",
        lr=0.01,
    )
    losses = pour.history(forgotten)[-1].losses
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert torch.equal(forgotten[-1].weight, original[-1].weight)
    assert not torch.equal(forgotten[0].weight, original[0].weight)
    assert forgotten[3].p == 0.2
    assert all(parameter.requires_grad for parameter in forgotten.parameters())


def test_keeping_other_pixels_keeps_them_better_than_ignoring_them(original, train, run) -> None:
    images = torch.tensor(train.images).permute(0, 3, 1, 2) / 255
    moved = {}
    for other in ("keep", "ignore"):
        student = pour.unlearn(
            original,
            ForgetRequest.of_scenes(train, [CAR]),
            method="pour-d",
            device="cpu",
            progress=False,
            steps=40,
            batch_size=4,
            optimizer="adamw",
            lr=0.01,
            other_pixels=other,
        )
        features = []
        for model in (original, student):
            with torch.no_grad(), tap_features(model) as tap:
                model(images)
            features.append(tap.features)
        masks = torch.tensor(train.masks)
        distances = row_distances(features[1], features[0], masks)
        elsewhere = 1 - forgotten_rows(original, masks, (CAR,), distances.shape)
        moved[other] = float(row_mean(distances, elsewhere))
    assert moved["keep"] < 0.7 * moved["ignore"]


def test_the_forget_set_hides_what_other_pixels_are(train) -> None:
    request = ForgetRequest.of_scenes(train, [CAR])
    assert request.pixelwise
    assert len(request.forget) == 9
    assert set(np.unique(request.forget.masks)) == {CAR, 255}


def test_methods_that_take_labels_of_images_say_so(original, train) -> None:
    with pytest.raises(UsageError, match=r"one label per image, not per pixel; on scenes use one of .*pour-d"):
        pour.unlearn(original, ForgetRequest.of_scenes(train, [CAR]), method="delete", device="cpu")


def test_cells_that_touch_a_thin_thing_are_found() -> None:
    labels = torch.full((1, 16, 16), -100)
    labels[0, :, 5] = 3
    cells = forgotten_rows(nn.Conv2d(3, 2, 1), labels, (3,), (1, 4, 4))
    assert cells[0].tolist() == [[0, 1, 0, 0]] * 4


def test_the_means_are_those_of_the_forgotten_cells(original, train, run) -> None:
    head = find_head(original)
    scenes = train.containing([CAR]).only([CAR])
    fitter = ProjectorFitter(classes=[CAR])
    for rows, labels in class_rows(original, head, Segment().batches(scenes, run), (CAR,), run):
        fitter.update(rows, labels)
    images = torch.tensor(scenes.images).permute(0, 3, 1, 2) / 255
    with torch.no_grad(), tap_features(original) as tap:
        original(images)
    mean = tap.features.movedim(1, -1)[torch.tensor(scenes.masks) == CAR].double().mean(dim=0)
    expected = pour.Projector.from_directions(mean.unsqueeze(0))
    torch.testing.assert_close(
        fitter.projector(torch.eye(24)).double(), expected(torch.eye(24).double()), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("other_pixels", ["project", "keep", "ignore"])
def test_the_rate_comes_from_the_loss_before_the_first_step(original, train, other_pixels: str) -> None:
    """With all images in one batch as they are, the first step's loss is the one that the rate was made from."""
    request, run = ForgetRequest.of_scenes(train, [CAR]), Run(seed=0, device="cpu", progress=False)
    batch = len(request.forget)
    assert batch <= 16, "one batch of the survey too"
    method = make_method("pour-d", steps=1, batch_size=batch, augment=False, other_pixels=other_pixels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        method(copy_model(original), request.grant(method.needs, name="pour-d"), run)
    said = {name: value for entry in run.history for name, value in entry.items()}
    assert said["initial_loss"] == pytest.approx(said["loss"], rel=1e-4)
    assert said["lr"] == pytest.approx(2.4e-3 / said["initial_loss"])


def test_dropout_is_off_only_inside() -> None:
    model = nn.Sequential(nn.Dropout(0.3), nn.Dropout2d(0.4))
    with without_dropout(model):
        assert [layer.p for layer in model] == [0, 0]
    assert [layer.p for layer in model] == [0.3, 0.4]


def test_branches_are_not_dropped_inside() -> None:
    class StochasticDepth(nn.Module):
        """As torchvision's."""

        p = 0.2

    class SwinDropPath(nn.Module):
        """As of transformers and timm."""

        drop_prob: float | None = 0.1

    model = nn.Sequential(StochasticDepth(), SwinDropPath(), SwinDropPath())
    model[2].drop_prob = None
    with without_dropout(model):
        assert (model[0].p, model[1].drop_prob, model[2].drop_prob) == (0, 0, None)
    assert (model[0].p, model[1].drop_prob, model[2].drop_prob) == (0.2, 0.1, None)


def test_branches_of_timm_are_not_dropped_inside() -> None:
    torchvision_works()
    layers = pytest.importorskip("timm.layers")
    model = nn.Sequential(layers.DropPath(0.5)).train()
    x = torch.rand(64, 3)
    with without_dropout(model):
        assert torch.equal(model(x), x)
    assert not torch.equal(model(x), x)


def test_options_are_checked() -> None:
    from pour.unlearning import make_method

    with pytest.raises(UsageError, match="other_pixels must be"):
        make_method("pour-d", other_pixels="none")
    with pytest.raises(UsageError, match="direction must be auto, weights, centered-weights, scores or decisions"):
        make_method("pour-p", direction="means")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["pour-d", "gradient-ascent"])
def test_copies_of_scenes_hold_the_other_classes(data, train, original, method):
    request = ForgetRequest.of_scenes(train, [CAR])
    options = FEW_STEPS | {"steps": 20, "device": "cpu", "progress": False, "seed": 0}
    plain, anchored, again = (
        pour.unlearn(original, request, method=method, **options, anchor=anchor)
        for anchor in ("none", "views", "views")
    )
    states = [model.state_dict() for model in (plain, anchored, again)]
    assert all(tensor.isfinite().all() for tensor in states[1].values())
    assert any(not torch.equal(tensor, states[0][name]) for name, tensor in states[1].items())
    assert all(torch.equal(tensor, states[2][name]) for name, tensor in states[1].items())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_request_made_from_scenes_hides_what_other_pixels_are(original, train) -> None:
    options = FEW_STEPS | {"steps": 5, "method": "gradient-ascent", "device": "cpu", "progress": False}
    expected = pour.unlearn(original, ForgetRequest.of_scenes(train, [CAR]), **options)
    result = pour.unlearn(original, classes=["Car"], forget=train, **options)
    assert all(torch.equal(tensor, result.state_dict()[name]) for name, tensor in expected.state_dict().items())
