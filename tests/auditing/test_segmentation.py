from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import pour
from pour.auditing import AuditReport, Reading, Tapped, Tapper, audit
from pour.auditing.audited import Audited
from pour.auditing.features import Seen
from pour.auditing.resampling import score_readings
from pour.auditing.similarity import cka_standard_error
from pour.data import Scenes, load_segmentation
from pour.errors import UsageError
from pour.metrics.cka import linear_cka
from pour.metrics.segmentation import pixel_confusion, segmentation_scores
from pour.models import find_head, tap_features
from pour.models.networks.segmentation import SegmentationModel
from pour.training import Run
from pour.training.tasks.segment import Segment

CAR = 2
NAMES = ("Sky", "Road", "Car", "Pole")
QUIET = {"device": "cpu", "progress": False}
EVERYTHING = 10**9


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
    return audit(
        original=model,
        unlearned=forgotten,
        retrained=network(1),
        data=data,
        classes=["car"],
        task=Segment(pixels=200),
        **QUIET,
    )


def tapped(model: nn.Module, scenes: Scenes, pixels: int, seed: int = 0) -> Tapped:
    audited = Audited(Segment(pixels=pixels), "scenes", NAMES, (CAR,), {"test": scenes})
    tapper = Tapper(audited=audited, run=Run(seed=seed, device="cpu", progress=False))
    return tapper.tap(model, "unlearned")


def test_the_report_survives_a_trip_through_a_file(report, tmp_path) -> None:
    assert AuditReport.load(report.save(tmp_path / "r.json")) == report
    text = str(report)
    for words in ("IoU_r", "IoU_f", "IoU, retained class, Road", "RUS(o)", "intervals are over samples"):
        assert words in text


def test_the_page_shows_the_iou(report, tmp_path) -> None:
    page = pour.write_report(report, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "IoU_r, rest" in page
    assert "Forgetting <em>“Car”" in page


def test_intervals_of_cka_are_over_scenes_and_not_over_pixels(test) -> None:
    """Every pixel of a scene twice is no more evidence."""
    seen = [tapped(network(seed), test, EVERYTHING) for seed in (0, 1)]
    rows, groups = [model.side("test", "retain") for model in seen], seen[0].groups("test", "retain")
    once = cka_standard_error(*rows, groups)
    twice = cka_standard_error(*(part.repeat_interleave(2, dim=0) for part in rows), groups.repeat_interleave(2))
    assert twice == pytest.approx(once)
    assert once > 1.5 * cka_standard_error(*rows)
    assert cka_standard_error(*rows, torch.zeros_like(groups)) is None


def test_the_same_audit_of_scenes_by_split_and_with_the_cache(report, data, test, tmp_path) -> None:
    model = network(0)
    options = {"original": model, "unlearned": pour.forget(model, classes=[CAR]), "retrained": network(1)}
    for samples in ({"test": test}, pour.Splits.of({"train": test, "test": test}, ["Car"], classes=data.classes)):
        names = {} if isinstance(samples, pour.Splits) else {"classes": [CAR]}
        for _ in range(2):
            found = audit(
                **options,
                data=samples,
                **names,
                task=Segment(pixels=200),
                cache=tmp_path,
                cache_unlearned=True,
                **QUIET,
            )
            expected = {name: value for name, value in report.values().items() if not name.startswith("class_")}
            assert {name: found.value(name) for name in expected if "raw" not in name} == pytest.approx(
                {name: value for name, value in expected.items() if "raw" not in name}
            )


def test_values_are_those_of_the_metrics(report, data, test) -> None:
    forgotten = pour.forget(network(0), classes=[CAR])
    with torch.no_grad():
        answers = forgotten(torch.tensor(test.images).permute(0, 3, 1, 2) / 255).argmax(dim=1)
    counts = pixel_confusion(answers, torch.tensor(test.masks).long(), 4)
    expected = segmentation_scores(counts.double(), [CAR])
    assert report.value("iou_r") == pytest.approx(float(expected["iou_r"]), abs=1e-9)
    assert report.value("iou_r_rest") == pytest.approx(float(expected["iou_r_rest"]), abs=1e-9)
    assert report.value("iou_f") == 0
    assert report.value("class_iou_r_Road") == pytest.approx(float(expected["iou"][1]), abs=1e-9)
    assert report.answers["unlearned"] == tuple(counts[CAR].tolist())
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
    seen = tapped(model, test, EVERYTHING)
    with torch.no_grad(), tap_features(model) as tap:
        model(torch.tensor(test.images).permute(0, 3, 1, 2) / 255)
    frame = model.frame(20, 28)
    rows = (torch.arange(20) + 0.5).mul(tap.features.shape[2] / frame[0]).long()
    columns = (torch.arange(28) + 0.5).mul(tap.features.shape[3] / frame[1]).long()
    full = tap.features[:, :, rows][:, :, :, columns].movedim(1, -1)
    masks = torch.tensor(test.masks)
    torch.testing.assert_close(seen.side("test", "forget"), full[masks == CAR])
    torch.testing.assert_close(seen.side("test", "retain"), full[(masks != CAR) & (masks < 4)])
    assert int(seen.splits["test"].confusion.sum()) == int((masks < 4).sum())


def test_the_draw_is_unbiased_and_every_class_has_its_share(test) -> None:
    def draw(seed: int) -> torch.Tensor:
        return Segment(pixels=300).draw(test, (CAR,), seed)

    masks, drawn = torch.tensor(test.masks), draw(1)
    kept = drawn != 255
    assert (drawn[kept] == masks[kept]).all()
    labels = drawn[kept & (drawn != CAR)]
    counts = np.bincount(masks[(masks != CAR) & (masks < 4)].numpy(), minlength=4)
    shares = 300 * counts / counts.sum()
    assert np.abs(np.bincount(labels.numpy(), minlength=4) - shares).max() < 1
    assert int((drawn == CAR).sum()) == min(300, int((masks == CAR).sum()))
    assert len(labels) == 300
    assert torch.equal(drawn, draw(1))
    assert not torch.equal(drawn, draw(2))


def test_debiased_cka_of_drawn_pixels_is_that_of_all_on_average(test) -> None:
    models = network(4), network(5)
    full = [tapped(model, test, EVERYTHING).side("test", "retain") for model in models]
    target = float(linear_cka(*full))
    few = []
    for seed in range(12):
        rows = [tapped(model, test, 120, seed).side("test", "retain") for model in models]
        few.append(float(linear_cka(*rows, debiased=True)))
    error = np.std(few, ddof=1) / math.sqrt(len(few))
    assert abs(np.mean(few) - target) < 4 * error + 0.01


def readings(confusions: torch.Tensor) -> dict[str, Reading]:
    none = torch.empty(0)
    output = Seen(
        features=none,
        raw=none,
        labels=none,
        samples=none,
        scores=none,
        counts=confusions,
        confusion=confusions.sum(dim=0),
    )
    return score_readings(Audited(Segment(), "scenes", ("a", "b", "c"), (2,), {}), output)


def test_intervals_shrink_with_more_images() -> None:
    rng = np.random.default_rng(0)
    confusions = torch.tensor(rng.integers(1, 50, (12, 3, 3))) + 200 * torch.eye(3).long()
    few = readings(confusions)["iou_r"]
    many = readings(confusions.repeat(9, 1, 1))["iou_r"]
    assert few.value == pytest.approx(many.value)
    assert 2 < (few.high - few.low) / (many.high - many.low) < 4.5


def test_bf16_runs_and_is_close(data) -> None:
    model = network(0)
    forgotten = pour.forget(model, classes=[CAR])
    options = {"original": model, "unlearned": forgotten, "data": data, "classes": [CAR], "task": Segment(pixels=100)}
    plain, rounded = (audit(**options, precision=precision, **QUIET) for precision in ("fp32", "bf16"))
    assert rounded.value("iou_r") == pytest.approx(plain.value("iou_r"), abs=0.05)
    assert rounded.value("cka_f_o") == pytest.approx(plain.value("cka_f_o"), abs=0.05)
    assert rounded.value("cka_f_o") != plain.value("cka_f_o"), "the network ran in another precision"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unlearned": network(0, classes=5)}, "has 5 classes, the data 4"),
        ({"unlearned": nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 28, 4))}, "needs a head that is a 1x1"),
        ({"task": Segment(pixels=1)}, "at least 2"),
        ({"relearn": True}, "relearn attack needs one label per sample, which the task segment does not have"),
        ({"layers": True}, "comparison of layers needs one label per sample"),
        ({"limit": 5}, "limit needs one label per sample"),
        ({"precision": "fp64"}, "fp32 or bf16"),
        ({"classes": ["boat"]}, "no class called 'boat'"),
    ],
)
def test_what_does_not_fit_is_refused(data, changes, words) -> None:
    options = {"original": network(0), "unlearned": network(1), "data": data, "classes": ["car"]} | changes
    with pytest.raises(UsageError, match=words):
        audit(**options, **QUIET)


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
    report = audit(original=model, unlearned=unlearned, data=data, task=Segment(pixels=50), **QUIET)
    assert report.value("cka_f_o") > 0.5
    wrong = nn.Sequential(model, nn.ReLU())
    with pytest.raises(UsageError, match=r"although 0\.model\.3 .*, 0\.model\.5 .* have as many outputs"):
        pour.unlearn(wrong, request, method="pour-p", device="cpu", progress=False)


def test_images_without_the_class_say_nothing_of_its_iou() -> None:
    shown = torch.tensor([[30, 0, 0], [0, 30, 0], [2, 0, 18]])
    empty = torch.tensor([[40, 0, 0], [0, 40, 0], [0, 0, 0]])
    found = readings(torch.stack([shown, *[empty] * 9]))
    assert found["iou_f"].value == pytest.approx(0.9)
    assert (found["iou_f"].low, found["iou_f"].high) == pytest.approx((0.9, 0.9))
    assert found["class_iou_f_c"] == found["iou_f"]
    gone = readings(torch.stack([empty] * 4))
    assert (gone["iou_f"].value, gone["iou_f"].low) == (0, None)
    assert "class_iou_f_c" not in gone
