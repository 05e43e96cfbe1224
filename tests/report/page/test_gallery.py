import pytest
import torch
from torch import nn

import pour
from pour.report.page.gallery import _losses, hang
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
    gallery = hang(models, {"unlearned": report}, digits_splits, run, images=50, **told)
    assert any(section.title == "Angles" for section in gallery.figures)
    assert next(model.parameters()).dtype == torch.bfloat16


def test_losses_of_a_method_stay_when_its_model_was_folded_later(digits_original, digits_splits):
    student = pour.unlearn(
        digits_original, pour.ForgetRequest.of(digits_splits), method="delete", steps=3, device="cpu", progress=False
    )
    assert [section.title for section in _losses({"s": pour.fold(pour.forget(student, classes=["5"]))})] == [
        "Losses while unlearning"
    ]
    assert _losses({"s": pour.forget(digits_original, classes=["5"])}) == []
