"""The three statements at the end of an audit."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

import pour
from pour.auditing import AuditedData, AuditedModel, AuditReport, Line, Reading, audit
from pour.auditing.summary import summarise
from pour.data import load_segmentation
from pour.models.head import find_head
from pour.models.networks.segmentation import SegmentationModel
from pour.training.tasks.segment import Segment

NAMES = ("cat", "dog", "emu", "fox", "gnu")
QUIET = {"device": "cpu", "progress": False}
NO_RETRAINED = "No retrained model was passed, so it is not known how much of"


def reading(value, spread=None, n=1000):
    if value is None or isinstance(value, Reading):
        return value
    if spread is None:
        return Reading(value=value, n=n)
    return Reading(value=value, low=max(0.0, value - spread), high=min(1.0, value + spread), n=n)


def line(name, unlearned, original=None, retrained=None, section="scores", spread=0.01):
    return Line(
        name=name,
        section=section,
        unlearned=reading(unlearned, spread),
        original=reading(original, spread),
        retrained=reading(retrained, spread),
    )


def report(
    *lines, forgotten=(0,), roles=("original", "unlearned", "retrained"), answers=None, classes=NAMES, unit="image"
):
    return AuditReport(
        data=AuditedData(name="pets", classes=classes, forgotten=forgotten, counts={"test": (1000, 4000)}, unit=unit),
        models={role: AuditedModel(digest=role, architecture=None, methods=(), projected=False) for role in roles},
        settings={},
        lines=lines,
        answers=answers or {},
    )


def probe(unlearned, original=0.996, retrained=0.952, section="features", name="probe_linear"):
    return line(name, unlearned, original, retrained, section)


def alone(*lines, **fields):
    return report(*lines, roles=("original", "unlearned"), **fields)


class TestAnswers:
    def said(self, *args, **fields):
        return report(line("acc_f", *args), **fields).summary[0]

    def test_a_leak_is_still_there(self):
        assert self.said(0.021, 0.894, 0.0) == (
            "The model still answers 'cat' on 2.1 % of 1,000 test images of 'cat' (original 89.4 %, retrained 0.0 %)."
        )

    def test_nothing_left(self):
        assert self.said(0.0, 0.894, 0.0).startswith("The model answers 'cat' on 0 of 1,000 test images of 'cat' (")

    def test_within_the_interval_is_no_leak(self):
        said = self.said(0.004, 0.894, 0.0)
        assert "still" not in said
        assert "on 0.4 % of 1,000 test images of 'cat', within the retrained model's 95 % interval (" in said

    def test_a_value_below_the_interval_is_neither_a_leak_nor_within(self):
        said = self.said(0.004, 0.894, 0.05)
        assert said == (
            "The model answers 'cat' on 0.4 % of 1,000 test images of 'cat' (original 89.4 %, retrained 5.0 %)."
        )

    def test_without_a_retrained_model_and_without_an_original(self):
        assert "still" in alone(line("acc_f", 0.004, 0.894)).summary[0]
        assert alone(line("acc_f", 0.5)).summary[0].endswith("on 50.0 % of 1,000 test images of 'cat'.")

    def test_a_retrained_model_that_knows_the_class_excuses_no_leak(self):
        said = report(line("acc_f", 0.9, 0.9, 0.9), line("acc_tf", 1.0, 1.0, 1.0)).summary[0]
        assert said.startswith("The model still answers 'cat' on 90.0 %")
        assert "interval" not in said

    def test_one_image(self):
        one = Line(name="acc_f", section="scores", unlearned=Reading(value=1.0, n=1))
        assert "100.0 % of 1 test image of 'cat'." in alone(one).summary[0]
        none = replace(one, unlearned=Reading(value=0.0))
        assert "0.0 % of the test images of 'cat'." in alone(none).summary[0]

    @pytest.mark.parametrize(
        ("value", "words"),
        [(0.0001, "less than 0.1 %"), (0.0005, "0.1 %"), (0.9999, "more than 99.9 %"), (1.0, "100.0 %")],
    )
    def test_rounding_makes_nothing_of_something_nowhere(self, value, words):
        assert f"on {words} of 1,000" in self.said(value, 0.9)

    def test_zero_has_no_sign(self):
        text = " ".join(report(line("acc_f", -0.0, -0.0, -0.0), line("acc_r", -0.0, -0.0, -0.0)).summary)
        assert "-0" not in text

    def test_several_classes(self):
        # 20 of 1,000 answers are right, and 30 name the other forgotten class.
        answers = {"unlearned": (25, 25, 950, 0, 0)}
        assert self.said(0.02, 0.9, 0.0, forgotten=(0, 1), answers=answers).startswith(
            "The model still answers the right class on 2.0 % of 1,000 test images of 'cat' and 'dog', "
            "and another forgotten class on 3.0 % (original"
        )
        swapped = self.said(0.0, 0.9, 0.0, forgotten=(0, 1), answers={"unlearned": (500, 500, 0, 0, 0)})
        assert "still answers the right class on 0 of 1,000 test images" in swapped
        assert "another forgotten class on 100.0 %" in swapped
        assert "another" not in self.said(0.02, 0.9, 0.0, forgotten=(0, 1), answers={"unlearned": (20, 0, 980, 0, 0)})
        assert "'cat', 'dog' and 'emu'" in self.said(0.02, 0.9, forgotten=(0, 1, 2))
        assert "of the 4 forgotten classes (" in self.said(0.02, 0.9, forgotten=(0, 1, 2, 3))

    def test_an_original_that_never_knew_the_class_forgets_nothing(self):
        assert "no better than chance on 'cat', so there was nothing to forget" in self.said(0.0, 0.005, 0.0)
        assert "chance" not in self.said(0.0, 0.3, 0.0)


class TestFeatures:
    def said(self, *lines, **fields):
        return report(*lines, **fields).summary[1]

    def test_a_leak_is_outside_the_interval(self):
        assert self.said(probe(0.991)) == (
            "A linear probe finds 'cat' in its features with 99.1 % balanced accuracy "
            "(original 99.6 %, retrained 94.2 to 96.2 %): more than in a model that never saw it."
        )

    def test_within_the_interval_is_no_more(self):
        assert self.said(probe(0.96)).endswith(": no more than in a model that never saw it.")

    def test_a_destroyed_model_is_damaged(self):
        said = self.said(probe(0.6))
        assert said.endswith(": less than in a model that never saw it, so the features are damaged.")

    def test_an_encoder_before_a_projector_still_shows_the_class(self):
        said = self.said(probe(0.955), probe(0.996, section="raw"))
        assert "'cat' in the projected features with 95.5 %" in said
        assert ": no more than in a model that never saw it. In the encoder's raw features, " in said
        assert said.endswith(
            "raw features, which a projector does not change, the probe reaches 99.6 %: "
            "more than in a model that never saw it."
        )
        assert said.count("more than in a model") == 2

    def test_without_a_retrained_model_the_missing_part_is_named(self):
        said = alone(probe(0.991, retrained=None), probe(0.996, retrained=None, section="raw")).summary[1]
        assert "with 99.1 % balanced accuracy (original 99.6 %). In the encoder's raw features" in said
        assert "the probe reaches 99.6 %. No retrained" in said
        assert said.endswith(
            f"{NO_RETRAINED} 'cat' a model that never saw it would show; pass a model trained without the class."
        )
        assert "leak" not in said
        assert NO_RETRAINED in alone().summary[1]
        several = alone(probe(0.991, retrained=None), forgotten=(0, 1)).summary[1]
        assert "'cat' and 'dog' a model that never saw them would show; pass" in several
        assert several.endswith("trained without the classes.")

    def test_a_measure_that_cannot_tell_gives_way_to_one_that_can(self):
        # The retrained models' interval contains the original, so this probe would acquit every model.
        blind = probe(0.955, original=0.96)
        assert "no difference" in self.said(blind)
        assert self.said(blind, probe(0.97, 0.99, 0.9, name="probe_knn")).startswith("A 5-NN probe finds 'cat'")
        said = self.said(blind, line("cka_f_o", 0.98, None, 0.6, "features"))
        assert said == (
            "On images of 'cat', its features have a CKA of 0.98 with the original's (retrained 0.59 to 0.61): "
            "more than in a model that never saw it."
        )
        same = line("cka_f_o", 0.98, None, 0.995, "features")
        assert self.said(blind, same).startswith("A linear probe")

    def test_the_unlearned_model_has_no_say_in_the_choice_of_the_measure(self):
        lines = [(probe(value), probe(value, name="probe_knn")) for value in (0.5, 0.955, 1.0)]
        assert {self.said(*pair).split(" finds")[0] for pair in lines} == {"A linear probe"}

    def test_a_comparison_that_is_absent_is_named(self):
        # As with a frozen backbone: a retrained model without readings of its features.
        said = self.said(probe(0.99, retrained=None))
        assert "This measure of the retrained model is absent" in said
        assert "more than in" not in said
        bare = replace(probe(0.99), retrained=Reading(value=0.5))
        assert "has no interval" in self.said(bare)
        assert "more than in" not in self.said(bare)
        known = self.said(probe(0.99), line("acc_tf", 1.0, 1.0, 1.0))
        assert "The retrained model recognises training images of 'cat'" in known
        assert "more than in" not in known


class TestRetainedClasses:
    def said(self, *args, roles=("original", "unlearned", "retrained"), **fields):
        return report(line("acc_r", *args, **fields), roles=roles).summary[2]

    def test_a_loss_in_points_with_both_intervals(self):
        assert self.said(0.912, 0.918, 0.93) == (
            "The retained classes lost 0.6 points of accuracy, from 91.8 % to 91.2 %, "
            "which is within the original's 95 % interval and below the retrained model's (92.0 to 94.0 %)."
        )

    def test_two_retrained_models(self):
        roles = ("original", "unlearned", "retrained", "retrained_second")
        assert self.said(0.912, 0.918, 0.91, roles=roles).endswith("and within the retrained models' (90.0 to 92.0 %).")

    def test_a_wreck(self):
        said = self.said(0.11, 0.918, 0.93)
        assert "lost 80.8 points of accuracy, from 91.8 % to 11.0 %, which is below the original's" in said

    def test_a_gain_and_no_change(self):
        assert "gained 0.5 points of accuracy, from 91.8 % to 92.3 %" in self.said(0.923, 0.918)
        assert "kept their accuracy of 91.8 %, which is within" in self.said(0.91801, 0.918)

    def test_the_points_are_the_difference_of_what_is_shown(self):
        assert "lost 0.6 points of accuracy, from 91.8 % to 91.2 %" in self.said(0.91155, 0.91844)

    def test_without_intervals_or_references(self):
        assert self.said(0.912, 0.918, spread=None).endswith("from 91.8 % to 91.2 %.")
        assert "have 91.2 % accuracy" in self.said(0.912)


def test_a_report_without_lines_has_three_statements():
    for empty in (report(), alone(), report(forgotten=(0, 1))):
        assert len(empty.summary) == 3
        assert all(statement.endswith(".") for statement in empty.summary)
        assert "did not measure" in empty.summary[0]


def test_json_contains_the_statements_and_does_not_need_them():
    made = report(line("acc_f", 0.021, 0.894, 0.0), probe(0.99), line("acc_r", 0.912, 0.918, 0.93))
    data = json.loads(made.to_json())
    assert data["summary"] == list(made.summary) == list(summarise(made))
    old = {key: value for key, value in data.items() if key != "summary"}
    edited = data | {"summary": ["All is well."]}
    for stored in (data, old, edited):
        assert AuditReport.from_json(json.dumps(stored)) == made
        assert AuditReport.from_json(json.dumps(stored)).summary == made.summary


def test_print_ends_with_the_statements(monkeypatch):
    made = report(line("acc_f", 0.021, 0.894, 0.0), probe(0.99), line("acc_r", 0.912, 0.918, 0.93))
    made = replace(made, notes=("something is absent",))
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        console = Console(width=columns, color_system=None)
        with console.capture() as captured:
            console.print(made)
        for text in (str(made), captured.get()):
            end = text.partition("note: something is absent")[2]
            assert " ".join(end.split()) == " ".join(made.summary)
            assert max(map(len, end.splitlines())) <= columns


def test_a_name_with_markup_is_printed_as_it_is():
    made = report(line("acc_f", 0.0, 0.9, 0.0), classes=("[/b] {x}", *NAMES[1:]))
    assert "'[/b] {x}' on 0 of 1,000" in str(made)


@pytest.fixture(scope="module")
def projected(digits_original):
    return pour.forget(digits_original, classes=["3"])


def test_an_audit_of_a_projected_model(digits_original, digits_retrained, projected, digits_splits):
    found = audit(
        original=digits_original, unlearned=projected, retrained=digits_retrained, data=digits_splits, **QUIET
    )
    answers, features, retained = found.summary
    assert answers.startswith("The model answers '3' on 0 of 36 test images of '3' (original ")
    assert "retrained 0.0 %" in answers
    assert "in the projected features" in features
    assert "In the encoder's raw features, which a projector does not change" in features
    raw = next(entry for entry in found.lines if (entry.name, entry.section) == ("probe_linear", "raw"))
    assert f"{100 * raw.unlearned.value:.1f} %" in features
    assert raw.unlearned.value == raw.original.value
    assert re.match(r"The retained classes (kept|lost|gained) ", retained)


def test_an_audit_of_a_destroyed_model(digits_original, digits_retrained, digits_splits):
    destroyed = pour.forget(digits_original, classes=["3"])
    with torch.no_grad():
        find_head(destroyed).module.head.bias.fill_(0)
        for parameter in destroyed.parameters():
            parameter.mul_(0) if parameter.dim() > 1 else None
    found = audit(
        original=digits_original, unlearned=destroyed, retrained=digits_retrained, data=digits_splits, **QUIET
    )
    assert "so the features are damaged" in found.summary[1]
    assert re.match(r"The retained classes lost [5-9]\d\.\d points", found.summary[2])
    assert "which is below the original's 95 % interval and below the retrained model's" in found.summary[2]


def test_an_audit_of_scenes(small_world):
    def network(seed):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        return SegmentationModel(body, [0.5] * 3, [0.25] * 3, multiple=8).eval()

    data = load_segmentation("camvid", small_world)
    models = {"original": network(0), "unlearned": pour.forget(network(0), classes=[2])}
    common = {"data": data, "classes": ["car"], "task": Segment(pixels=200), **QUIET}
    found = audit(**models, retrained=network(1), **common)
    answers, features, retained = found.summary
    pixels = sum(found.answers["unlearned"])
    assert answers.startswith(f"The model answers 'Car' on 0 of {pixels:,} test pixels of 'Car' (original ")
    share = found.answers["original"][2] / pixels
    assert share == 0 or f"original {100 * share:.1f} %" in answers
    assert features.startswith("On pixels of 'Car', the projected features have a CKA of ")
    assert "In the encoder's raw features, which a projector does not change, the CKA is 1.00: more than" in features
    rest = found.line("iou_r_rest")
    assert "points of mean IoU" in retained or "kept their mean IoU" in retained
    assert "outside the pixels of 'Car'" in retained
    assert f"{100 * rest.unlearned.value:.1f} %" in retained
    without = audit(**models, **common)
    assert NO_RETRAINED in without.summary[1]
    assert AuditReport.from_json(found.to_json()).summary == found.summary


def test_scenes_with_several_classes():
    scenes = report(
        line("iou_r", 0.5, 0.6),
        line("iou_r_rest", 0.58, 0.6),
        line("iou_f", 0.1, 0.8, 0.0),
        forgotten=(0, 1),
        unit="pixel",
        answers={"unlearned": (50, 50, 900, 0, 0), "original": (450, 450, 100, 0, 0), "retrained": (0, 0, 1000, 0, 0)},
    )
    assert scenes.summary[0] == (
        "The model still answers a forgotten class on 10.0 % of 1,000 test pixels of 'cat' and 'dog' "
        "(original 90.0 %, retrained 0.0 %)."
    )
    unknown = replace(scenes, answers={**scenes.answers, "original": (0, 10, 990, 0, 0)})
    assert unknown.summary[0].endswith(
        "(original 1.0 %, retrained 0.0 %). The original is no better than chance "
        "on 'cat' and 'dog', so there was nothing to forget."
    )
    assert scenes.summary[2].startswith(
        "The retained classes lost 2.0 points of mean IoU outside the pixels of 'cat' and 'dog', from 60.0 % to 58.0 %"
    )
