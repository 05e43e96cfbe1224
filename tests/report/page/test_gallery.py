from dataclasses import replace

import pytest
import torch
from figure_examples import audit_report, relearning
from torch import nn

import pour
from pour.auditing import pictures as computed
from pour.auditing.pictures import Pictures, Subject, compute_pictures
from pour.errors import UsageError
from pour.report import FigureSection, pictures
from pour.report.pictures import draw_pictures
from pour.training import Run


class Convolutional(nn.Module):
    """Ends in a 1x1 convolution before the mean over places."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.ReLU())
        self.head = nn.Conv2d(6, 10, 1)

    def forward(self, images):
        return self.head(self.body(images)).mean((2, 3))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.mark.parametrize(
    ("build", "head", "told"),
    [(Convolutional, "head", {"head": "head"}), (Convolutional, "head", {}), (dense, "3", {})],
)
def test_maps_are_drawn_as_they_are_audited(digits_splits, build, head, told):
    torch.manual_seed(0)
    model = build().bfloat16()
    forgotten = pour.forget(model, classes=[3], head=head)
    options = {"data": digits_splits, "device": "cpu", "progress": False, "pictures": True, "force": True, **told}
    titles = titles_of(pour.audit(original=model, unlearned=forgotten, **options))
    assert "Angles" in titles
    assert "Answers by true class: original and unlearned" in titles
    # These models have no feature map before their features.
    assert "Grad-CAM: original and unlearned" not in titles
    assert next(model.parameters()).dtype == torch.bfloat16


def titles_of(report):
    return [section.title for section in draw_pictures({"unlearned": report})]


def test_losses_of_a_method_stay_when_its_model_was_folded_later(digits_original, digits_splits):
    student = pour.unlearn(
        digits_original, pour.ForgetRequest.of(digits_splits), method="delete", steps=3, device="cpu", progress=False
    )
    folded = pour.fold(pour.forget(student, classes=["5"]))
    assert "Losses while unlearning" in titles_of(with_history(folded))
    assert titles_of(with_history(pour.forget(digits_original, classes=["5"]))) == []


def with_history(model):
    report = audit_report()
    unlearned = replace(report.models["unlearned"], history=tuple(pour.history(model)))
    return replace(report, models={"unlearned": unlearned})


def test_a_network_with_feature_maps_has_grad_cam(digits_original, digits_splits):
    student = pour.forget(digits_original, classes=["5"])
    options = {"data": digits_splits, "device": "cpu", "progress": False}
    report = pour.audit(original=digits_original, unlearned=student, pictures=True, force=True, **options)
    assert "Grad-CAM: original and unlearned" in titles_of(report)
    read = type(report).from_json(report.to_json())
    models, run = {"original": digits_original, "unlearned": student}, Run(device="cpu", progress=False)
    subject = Subject(models=models, reports={"unlearned": read}, samples=digits_splits.test.whole, run=run)
    with pytest.raises(UsageError, match="audit the model again"):
        compute_pictures("classify", subject)


def test_a_task_of_another_package_has_its_pictures_or_the_common_ones(monkeypatch, digits_original, digits_splits):
    monkeypatch.setattr(pictures, "_DRAWERS", {})
    monkeypatch.setattr(computed, "_COMPUTATIONS", {})
    report = replace(audit_report(), relearning=relearning())
    subject = Subject(
        models={"s": digits_original},
        reports={"s": report},
        samples=digits_splits.test.whole,
        run=Run(device="cpu"),
    )
    assert compute_pictures("tags", subject) == Pictures(task="tags")
    assert titles_of(replace(report, pictures=Pictures(task="tags"))) == ["Relearning"]

    def draw(pictured):
        return [FigureSection(title=pictured.pictures.data["title"], alt="tags", light="<svg></svg>")]

    pictures.register_pictures("tags", lambda subject: {"title": f"Tags of {subject.name}"}, draw)
    kept = compute_pictures("tags", subject)
    assert titles_of(replace(report, pictures=kept)) == ["Tags of s", "Relearning"]
