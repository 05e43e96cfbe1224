from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import pour
from pour.auditing import AuditReport, audit_segmentation
from pour.auditing.scenes import draw_pixels, tap_scenes
from pour.auditing.segmentation import score_readings
from pour.data import Scenes, load_segmentation
from pour.errors import UsageError
from pour.metrics.cka import linear_cka
from pour.metrics.segmentation import pixel_confusion, segmentation_scores
from pour.models import find_head, tap_features
from pour.models.networks.segmentation import SegmentationModel
from pour.training import Run

CAR = 2
RUN = Run(seed=0, device="cpu", progress=False)


@pytest.fixture(scope="module")
def data(small_world):
    return load_segmentation("camvid", small_world)


@pytest.fixture(scope="module")
def test(data) -> Scenes:
    return Scenes.of(data.splits["test"])


def network(seed: int, classes: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 1))
    return SegmentationModel(body, [0.5] * 3, [0.25] * 3, multiple=8).eval()


@pytest.fixture(scope="module")
def report(data) -> AuditReport:
    model = network(0)
    forgotten = pour.forget(model, classes=[CAR])
    return audit_segmentation(
        original=model,
        unlearned=forgotten,
        retrained=network(1),
        data=data,
        classes=["car"],
        pixels=200,
        device="cpu",
        progress=False,
    )


def test_the_report_survives_a_trip_through_a_file(report, tmp_path) -> None:
    assert AuditReport.load(report.save(tmp_path / "r.json")) == report
    text = str(report)
    for words in ("IoU_r", "IoU_f", "IoU, retained class, Road", "RUS(o)", "neighbours"):
        assert words in text


def test_the_page_shows_the_iou(report, tmp_path) -> None:
    page = pour.write_report(report, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "IoU_r, rest" in page
    assert "Forgetting <em>“Car”" in page


def test_values_are_those_of_the_metrics(report, data, test) -> None:
    forgotten = pour.forget(network(0), classes=[CAR])
    with torch.no_grad():
        answers = forgotten(torch.tensor(test.images).permute(0, 3, 1, 2) / 255).argmax(dim=1)
    expected = segmentation_scores(pixel_confusion(answers, torch.tensor(test.masks).long(), 4), [CAR])
    assert report.value("iou_r") == pytest.approx(expected.iou_r, abs=1e-9)
    assert report.value("iou_r_rest") == pytest.approx(expected.iou_r_rest, abs=1e-9)
    assert report.value("iou_f") == 0
    assert report.value("class_iou_r_Road") == pytest.approx(expected.iou[1], abs=1e-9)
    assert report.answers["unlearned"] == expected.becomes
    line = report.line("iou_r")
    assert line.unlearned.low <= line.unlearned.value <= line.unlearned.high
    assert report.line("iou_f").verdict != "no reference"
    assert report.data.counts["test"] == (4, 2)


def test_similarity_of_raw_features_behind_a_projector_is_one(report) -> None:
    assert report.value("cka_f_o", "raw") == pytest.approx(1)
    assert report.value("rus_o", "raw") == pytest.approx(0, abs=1e-6)
    assert report.value("cka_f_o") < 1
    assert {"cka_f_r", "cka_r_r", "rus_r"} <= set(report.values())


def test_pixels_are_read_where_they_are(test) -> None:
    """Against features brought to full size by repeating each cell."""
    model = network(3)
    sample = draw_pixels(test, (CAR,), 10**9, seed=0)
    seen = tap_scenes(model, test, sample, RUN)
    with torch.no_grad(), tap_features(model) as tap:
        model(torch.tensor(test.images).permute(0, 3, 1, 2) / 255)
    frame = model.frame(20, 28)
    rows = (torch.arange(20) + 0.5).mul(tap.features.shape[2] / frame[0]).long()
    columns = (torch.arange(28) + 0.5).mul(tap.features.shape[3] / frame[1]).long()
    full = tap.features[:, :, rows][:, :, :, columns].movedim(1, -1)
    masks = torch.tensor(test.masks)
    torch.testing.assert_close(seen.rows["forget", "features"], full[masks == CAR])
    torch.testing.assert_close(seen.rows["retain", "features"], full[(masks != CAR) & (masks < 4)])
    assert int(seen.confusions.sum()) == int((masks < 4).sum())


def test_the_draw_is_unbiased_and_every_class_has_its_share(test) -> None:
    sample = draw_pixels(test, (CAR,), 300, seed=1)
    masks = torch.tensor(test.masks)
    labels = masks[tuple(sample["retain"].places.T)]
    counts = np.bincount(masks[(masks != CAR) & (masks < 4)].numpy(), minlength=4)
    shares = 300 * counts / counts.sum()
    assert np.abs(np.bincount(labels.numpy(), minlength=4) - shares).max() < 1
    assert (masks[tuple(sample["forget"].places.T)] == CAR).all()
    assert len(torch.unique(sample["retain"].places, dim=0)) == 300
    again, other = draw_pixels(test, (CAR,), 300, seed=1), draw_pixels(test, (CAR,), 300, seed=2)
    assert torch.equal(sample["retain"].places, again["retain"].places)
    assert not torch.equal(sample["retain"].places, other["retain"].places)


def test_debiased_cka_of_drawn_pixels_is_that_of_all_on_average(test) -> None:
    models = network(4), network(5)
    everything = draw_pixels(test, (CAR,), 10**9, seed=0)
    full = [tap_scenes(model, test, everything, RUN).rows["retain", "features"] for model in models]
    target = float(linear_cka(*full))
    few = []
    for seed in range(12):
        sample = draw_pixels(test, (CAR,), 120, seed=seed)
        rows = [tap_scenes(model, test, sample, RUN).rows["retain", "features"] for model in models]
        few.append(float(linear_cka(*rows, debiased=True)))
    error = np.std(few, ddof=1) / math.sqrt(len(few))
    assert abs(np.mean(few) - target) < 4 * error + 0.01


def test_intervals_shrink_with_more_images() -> None:
    rng = np.random.default_rng(0)
    confusions = torch.tensor(rng.integers(1, 50, (12, 3, 3))) + 200 * torch.eye(3).long()
    few = score_readings(confusions, (2,), ("a", "b", "c"))["iou_r"]
    many = score_readings(confusions.repeat(9, 1, 1), (2,), ("a", "b", "c"))["iou_r"]
    assert few.value == pytest.approx(many.value)
    assert 2 < (few.high - few.low) / (many.high - many.low) < 4.5


def test_bf16_runs_and_is_close(data) -> None:
    model = network(0)
    forgotten = pour.forget(model, classes=[CAR])
    options = {"original": model, "unlearned": forgotten, "data": data, "classes": [CAR], "pixels": 100}
    plain, rounded = (
        audit_segmentation(**options, device="cpu", precision=precision, progress=False)
        for precision in ("fp32", "bf16")
    )
    assert rounded.value("iou_r") == pytest.approx(plain.value("iou_r"), abs=0.05)
    assert rounded.value("cka_f_o") == pytest.approx(plain.value("cka_f_o"), abs=0.05)
    assert rounded.value("cka_f_o") != plain.value("cka_f_o"), "the network ran in another precision"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unlearned": network(0, classes=5)}, "has 5 classes, the data 4"),
        ({"unlearned": nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 28, 4))}, "needs a head that is a 1x1"),
        ({"pixels": 1}, "at least 2"),
        ({"precision": "fp64"}, "fp32 or bf16"),
        ({"classes": ["boat"]}, "no class called 'boat'"),
    ],
)
def test_what_does_not_fit_is_refused(data, changes, words) -> None:
    options = {"original": network(0), "unlearned": network(0), "data": data, "classes": ["car"]} | changes
    with pytest.raises(UsageError, match=words):
        audit_segmentation(**options, device="cpu", progress=False)


def test_a_head_among_other_1x1_convolutions_is_found_on_the_scenes(data) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 1), nn.AvgPool2d(4), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Tanh())
    model = SegmentationModel(nn.Sequential(*body, nn.Conv2d(4, 4, 1)), [0.5] * 3, [0.25] * 3, multiple=8).eval()
    scenes = Scenes.of(data.splits["train"])
    request = pour.ForgetRequest.of_scenes(scenes, [CAR])
    for method, options in (("pour-p", {}), ("pour-d", {"steps": 1})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            unlearned = pour.unlearn(model, request, method=method, device="cpu", progress=False, **options)
        assert find_head(unlearned).name == "model.5"
    report = audit_segmentation(
        original=model, unlearned=unlearned, data=data, classes=["car"], pixels=50, device="cpu", progress=False
    )
    assert report.value("cka_f_o") > 0.5
    wrong = nn.Sequential(model, nn.ReLU())
    with pytest.raises(UsageError, match=r"although 0\.model\.3 .*, 0\.model\.5 .* have as many outputs"):
        pour.unlearn(wrong, request, method="pour-p", device="cpu", progress=False)


def test_images_without_the_class_say_nothing_of_its_iou() -> None:
    shown = torch.tensor([[30, 0, 0], [0, 30, 0], [2, 0, 18]])
    empty = torch.tensor([[40, 0, 0], [0, 40, 0], [0, 0, 0]])
    found = score_readings(torch.stack([shown, *[empty] * 9]), (2,), ("a", "b", "c"))
    assert found["iou_f"].value == pytest.approx(0.9)
    assert (found["iou_f"].low, found["iou_f"].high) == pytest.approx((0.9, 0.9))
    assert found["class_iou_f_c"] == found["iou_f"]
    gone = score_readings(torch.stack([empty] * 4), (2,), ("a", "b", "c"))
    assert (gone["iou_f"].value, gone["iou_f"].low) == (0, None)
    assert "class_iou_f_c" not in gone
