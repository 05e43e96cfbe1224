from dataclasses import replace

import pytest
import torch
from figure_examples import audit_report, relearning
from torch import nn

import pour
from pour.errors import UsageError
from pour.report import FigureSection, pictures
from pour.report.pictures import Subject, _common_figures, draw_gallery
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
    run = Run(device="cpu", progress=False)
    report = pour.audit(original=model, unlearned=forgotten, data=digits_splits, device="cpu", progress=False, **told)
    models = {"original": model, "unlearned": forgotten}
    subject = Subject(models=models, reports={"unlearned": report}, samples=digits_splits.test.whole, run=run, **told)
    titles = [section.title for section in draw_gallery("classify", subject).figures]
    assert "Angles" in titles
    assert "Answers by true class: original and unlearned" in titles
    # These models have no feature map before their features.
    assert "Grad-CAM: original and unlearned" not in titles
    assert next(model.parameters()).dtype == torch.bfloat16


def test_losses_of_a_method_stay_when_its_model_was_folded_later(digits_original, digits_splits):
    student = pour.unlearn(
        digits_original, pour.ForgetRequest.of(digits_splits), method="delete", steps=3, device="cpu", progress=False
    )
    folded = pour.fold(pour.forget(student, classes=["5"]))
    assert "Losses while unlearning" in common_titles(folded, digits_splits)
    assert common_titles(pour.forget(digits_original, classes=["5"]), digits_splits) == []


def common_titles(model, splits):
    report = audit_report()
    subject = Subject(models={"s": model}, reports={"s": report}, samples=splits.test.whole, run=Run(device="cpu"))
    return [section.title for section in _common_figures(subject)]


def test_a_network_with_feature_maps_has_grad_cam(digits_original, digits_splits):
    student = pour.forget(digits_original, classes=["5"])
    report = pour.audit(original=digits_original, unlearned=student, data=digits_splits, device="cpu", progress=False)
    models = {"original": digits_original, "unlearned": student}
    run = Run(device="cpu", progress=False)
    subject = Subject(models=models, reports={"unlearned": report}, samples=digits_splits.test.whole, run=run)
    drawn = draw_gallery("classify", subject)
    assert "Grad-CAM: original and unlearned" in [section.title for section in drawn.figures]
    read = type(report).from_json(report.to_json())
    with pytest.raises(UsageError, match="audit the model again"):
        draw_gallery("classify", replace(subject, reports={"unlearned": read}))


def test_a_task_of_another_package_has_its_pictures_or_the_common_ones(monkeypatch, digits_original, digits_splits):
    monkeypatch.setattr(pictures, "_PICTURES", {})
    section = FigureSection(title="Tags", alt="tags", light="<svg></svg>")
    subject = Subject(
        models={"s": digits_original},
        reports={"s": replace(audit_report(), relearning=relearning())},
        samples=digits_splits.test.whole,
        run=Run(device="cpu"),
    )
    assert [section.title for section in draw_gallery("tags", subject).figures] == ["Relearning"]
    pictures.register_pictures("tags", lambda subject: pictures.Gallery((section,)))
    assert [section.title for section in draw_gallery("tags", subject).figures] == ["Tags", "Relearning"]
