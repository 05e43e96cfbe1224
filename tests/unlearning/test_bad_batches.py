"""Batches that a model or a method cannot use: one sentence with the fact and the remedy, before any work."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

import pour

IMAGES = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 4
NAN, INF = IMAGES.clone(), IMAGES.clone()
NAN[3, 0, 0, 0], INF[3, 0, 0, 0] = torch.nan, torch.inf
BROKEN = r"^Image 3 of a batch has NaN or infinite values; leave it out, or correct the transform that made it\.$"

BAD = {
    "NaN": (NAN, BROKEN),
    "infinite": (INF, BROKEN),
    "channels last": (
        IMAGES.permute(0, 2, 3, 1),
        r"^The model cannot run on images of shape \(\d+, 8, 8, 3\): the channels are last; pass "
        r"images\.permute\(0, 3, 1, 2\)\.$",
    ),
    "no channels": (IMAGES[:, 0], r"the images have no channels, and the model takes 3; pass images\.unsqueeze\(1\)"),
    "two channels": (IMAGES[:, :2], r"the images have 2 channels, and the model takes 3; pass images with 3 channels"),
    "meta": (IMAGES.to("meta"), r"^The images of a batch are on the device meta and have no values;"),
    "whole numbers": ((IMAGES * 255).long(), r"^Images are torch\.int64; pass uint8 from 0 to 255 or floats"),
    "none": (IMAGES[:0], r"^A batch has no images; leave empty batches out\.$"),
}


def network(channels=3):
    torch.manual_seed(0)
    return pour.build_model("resnet-digits", 4, in_channels=channels, image_size=8)


def unlearn(images, labels=None, *, method="pour-d", model=None):
    labels = torch.full((len(images),), 1) if labels is None else labels
    options = {"steps": 1, "epochs": None} if method == "pour-d" else {}
    return pour.unlearn(
        model or network(), classes=[1], forget=[(images, labels)], method=method, progress=False, **options
    )


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("method", ["pour-d", "pour-a"])
def test_unlearn_refuses_a_bad_batch(name, method):
    images, sentence = BAD[name]
    with pytest.raises(pour.UsageError, match=sentence):
        unlearn(images, method=method)


@pytest.mark.parametrize("name", BAD)
def test_forget_refuses_a_bad_batch(name):
    images, sentence = BAD[name]
    with pytest.raises(pour.UsageError, match=sentence):
        pour.forget(network(), classes=[1], direction="means", data=[(images, LABELS[: len(images)])])


@pytest.mark.parametrize("name", ["NaN", "infinite"])
def test_an_audit_refuses_images_that_are_not_finite(name):
    original = network()
    data = TensorDataset(BAD[name][0], LABELS)
    splits = {"train": TensorDataset(IMAGES, LABELS), "test": data}
    unlearned = pour.forget(original, classes=[1])
    with pytest.raises(pour.UsageError, match=BROKEN):
        pour.audit(original=original, unlearned=unlearned, data=splits, classes=[1], progress=False)


def test_colour_images_for_a_grey_model():
    with pytest.raises(pour.UsageError, match=r"the model takes grey images; pass images\.mean\(dim=1, keepdim=True\)"):
        unlearn(IMAGES, model=network(channels=1))


def test_grey_images_for_a_colour_model():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8), torch.nn.Flatten(), torch.nn.Linear(4, 4))
    with pytest.raises(pour.UsageError, match=r"are grey, and the model takes 3 channels; pass images\.expand"):
        unlearn(IMAGES[:, :1], model=model)


@pytest.mark.parametrize("example", [IMAGES.permute(0, 2, 3, 1), IMAGES.double(), IMAGES.to("meta"), IMAGES[:0]])
def test_an_example_that_the_model_does_not_take(example):
    with pytest.raises(pour.UsageError, match=r"example=.*(pass|move)") as error:
        pour.forget(network(), classes=[1], example=example)
    assert "size of tensor" not in str(error.value)
    assert "scalar type" not in str(error.value)


@pytest.mark.parametrize("label", [7, -1])
def test_a_label_outside_of_the_classes(label):
    sentence = f"^A batch has the label {label}, but the model has classes 0 to 3; correct the labels"
    bad = torch.where(LABELS == 2, label, LABELS)
    with pytest.raises(pour.UsageError, match=sentence):
        unlearn(IMAGES, torch.full((16,), label))
    with pytest.raises(pour.UsageError, match=f"has the label {label}"):
        pour.forget(network(), classes=[1], direction="means", data=[(IMAGES, bad)])


def test_labels_that_are_no_indices():
    sentence = r"^The labels of a batch are torch\.float32 of shape \(16,\); pass class indices, a whole number"
    data, original = [(IMAGES, LABELS.float())], network()
    with pytest.raises(pour.UsageError, match=sentence):
        unlearn(*data[0])
    with pytest.raises(pour.UsageError, match=sentence):
        pour.forget(original, classes=[1], direction="means", data=data)
    unlearned = pour.forget(original, classes=[1])
    splits = {"train": data, "test": data}
    with pytest.raises(pour.UsageError, match=sentence):
        pour.audit(original=original, unlearned=unlearned, data=splits, classes=[1], progress=False)


def test_double_precision_is_read_as_float32():
    original = network()
    data = TensorDataset(IMAGES.double(), LABELS)
    single = TensorDataset(IMAGES.double().float(), LABELS)
    unlearned = pour.forget(original, classes=[1])
    reports = [
        pour.audit(
            original=original,
            unlearned=unlearned,
            data={"train": part, "test": part},
            classes=[1],
            progress=False,
            force=True,
        )
        for part in (data, single)
    ]
    assert reports[0].value("acc_f") == reports[1].value("acc_f")


@pytest.mark.parametrize("names", [("plane", "car", "bird"), ("Hund", "Auto", "Haus")])
def test_only_a_close_name_is_suggested(names):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    pour.models.set_class_names(model, names)
    with pytest.raises(
        pour.UsageError, match=rf"^There is no class called 'cat'; the classes are {', '.join(names)}\.$"
    ):
        pour.forget(model, classes=["cat"])
    with pytest.raises(pour.UsageError, match=f"did you mean '{names[0]}'"):
        pour.forget(model, classes=[f"{names[0]}s"])
