from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import pour
from pour._torchvision import torchvision_works
from pour.data import Scenes, load_segmentation
from pour.errors import UsageError
from pour.metrics.segmentation import pixel_confusion
from pour.models import find_head
from pour.training import Recipe, Run
from pour.training.tasks.segment import Segment, class_weights, pixel_loss

torchvision_works()
smp = pytest.importorskip("segmentation_models_pytorch")

ARCH = "smp:linknet:tu-mobilenetv3_small_050"
RECIPE = Recipe(epochs=15, batch_size=6, optimizer="adamw", lr=5e-3)
CAR = 2


@pytest.fixture(scope="module")
def data(small_world):
    return load_segmentation("camvid", small_world)


def run(**options) -> Run:
    return Run(seed=0, device="cpu", progress=False, **options)


@pytest.fixture(scope="module")
def trained(data):
    return Segment().train(data, RECIPE, run(), arch=ARCH)


def test_training_learns_and_knows_its_classes(data, trained) -> None:
    model, log = trained
    assert np.mean(log.losses[-4:]) < 0.6 * np.mean(log.losses[:4])
    described = Segment().describe(model, data, run())["segmentation"]
    assert described["train"]["accuracy"] > 0.7
    assert set(described["test"]["iou"]) == set(data.classes)
    assert pour.models.class_names(model) == data.classes


def test_the_same_seed_gives_the_same_network(data, trained) -> None:
    again, _ = Segment().train(data, RECIPE, run(), arch=ARCH)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained[0].parameters(), strict=True))


def test_a_class_that_is_left_out_is_not_learnt(data) -> None:
    model, _ = Segment().train(data, RECIPE, run(), arch=ARCH, without=["car"])
    assert find_head(model).num_classes == 4
    confusion = Segment().answers(model, Scenes.of(data.splits["test"]), run())
    assert int(confusion[:, CAR].sum()) <= 0.02 * int(confusion.sum())


def test_bf16_trains_too(data) -> None:
    recipe = RECIPE.change(epochs=2)
    model, log = Segment(enlarge=2).train(data, recipe, run(precision="bf16"), arch=ARCH)
    _, plain = Segment(enlarge=2).train(data, recipe, run(), arch=ARCH)
    assert log.losses[0] != plain.losses[0]
    assert log.losses[0] == pytest.approx(plain.losses[0], rel=0.05)
    assert np.isfinite(log.losses).all()
    assert next(model.parameters()).dtype == torch.float32


def test_a_killed_run_goes_on(data, tmp_path) -> None:
    class StoppedError(Exception):
        pass

    def stop(model, step):
        if step == 5:
            raise StoppedError

    recipe = RECIPE.change(epochs=4)
    file = tmp_path / "x.resume"
    with pytest.raises(StoppedError):
        Segment().train(data, recipe, run(on_step=stop), arch=ARCH, resume=file, resume_seconds=0.0)
    resumed, _ = Segment().train(data, recipe, run(), arch=ARCH, resume=file, resume_seconds=0.0)
    whole, _ = Segment().train(data, recipe, run(), arch=ARCH)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))
    assert not file.exists()


def test_void_has_no_part_in_the_loss() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 4, 3, 5)
    labels = torch.randint(0, 4, (2, 3, 5))
    labels[0, 0] = -100
    weights = torch.tensor([1.0, 2.0, 3.0, 0.5])
    loss = pixel_loss(weights)(lambda images: scores, torch.zeros(2, 3, 3, 5), labels)
    logs = scores.double().log_softmax(dim=1)
    total = norm = 0.0
    for n, i, j in np.ndindex(2, 3, 5):
        label = int(labels[n, i, j])
        if label >= 0:
            total -= float(weights[label] * logs[n, label, i, j])
            norm += float(weights[label])
    assert float(loss) == pytest.approx(total / norm, rel=1e-5)


def test_class_weights_are_one_on_average_over_pixels(data) -> None:
    scenes = Scenes.of(data.splits["train"])
    weights, counts = class_weights(scenes).double(), torch.tensor(scenes.counts()).double()
    assert float((weights * counts).sum() / counts.sum()) == pytest.approx(1)
    assert float(weights[3] / weights[0]) == pytest.approx(float((counts[0] / counts[3]).sqrt()), rel=1e-5)
    assert float(class_weights(scenes.without([CAR]))[CAR]) == 0


def test_evaluation_is_the_confusion_of_the_answers(data, trained) -> None:
    scenes = Scenes.of(data.splits["test"])
    found = Segment().answers(trained[0], scenes, run())
    with torch.no_grad():
        answers = trained[0](torch.tensor(scenes.images).permute(0, 3, 1, 2) / 255).argmax(dim=1)
    assert torch.equal(found, pixel_confusion(answers, torch.tensor(scenes.masks).long(), 4))


def test_classifiers_are_refused(data) -> None:
    with pytest.raises(UsageError, match="no segmentation network"):
        Segment().train(data, RECIPE, run(), arch="resnet18")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif("POUR_DATA" not in os.environ, reason="POUR_DATA is not set")
def test_a_short_training_on_camvid_segments_the_road() -> None:
    camvid = load_segmentation("camvid", os.environ["POUR_DATA"])
    recipe = Recipe(epochs=4, batch_size=4, optimizer="adamw", lr=2e-3)
    model, _ = Segment(limit=40).train(camvid, recipe, run(), arch=ARCH)
    described = Segment(limit=20).describe(model, camvid, run())["segmentation"]
    assert described["test"]["iou"]["Road"] > 0.3
    forgotten = pour.forget(model, classes=["Road"])
    after = Segment(limit=20).describe(forgotten, camvid, run())["segmentation"]
    assert after["test"]["iou"]["Road"] == 0
