"""The sentence of ``pour unlearn``, and the results that ``pour methods`` shows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from command_line import here

import pour
from pour.cli.bottom_line import bottom_line, forget_accuracies
from pour.models.history import HistoryEntry
from pour.training import Run
from pour.unlearning import first_call as stored
from pour.unlearning import get_method, make_method
from pour.unlearning.first_call import FirstCall, first_call

RUN = Run(device="cpu", progress=False)


def record(**changes: object) -> HistoryEntry:
    return HistoryEntry(**{"method": "pour-a", "classes": (3,), "class_names": ("3",), "seconds": 12.3, **changes})


def test_the_whole_sentence() -> None:
    whole = record(
        options={"direction": "decisions"},
        log=({"step": 0, "encoder_share": 0.5}, {"step": 800, "encoder_share": 0.007}),
    )
    assert bottom_line(whole, (0.9931, 0.0)) == (
        "On the forget images of '3' the accuracy fell from 99.3 % to 0.0 %; without the projector the encoder still "
        "recognises 0.7 %; direction decisions; 12 s."
    )


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ((0.5, 0.5), "the accuracy stayed at 50.0 %"),
        ((0.2, 0.5), "rose from 20.0 % to 50.0 %"),
        # Rounding hides neither the last image of a class nor the first one that is lost.
        ((0.99999, 0.00001), "fell from more than 99.9 % to less than 0.1 %"),
        ((1.0, 0.0), "fell from 100.0 % to 0.0 %"),
    ],
)
def test_changes_of_the_accuracy(accuracies: tuple[float, float], words: str) -> None:
    assert words in bottom_line(record(), accuracies)


def test_what_a_record_lacks_is_left_out() -> None:
    assert bottom_line(record(), (1.0, 0.0)).count(";") == 1
    log = ({"step": 0, "encoder_share": 0.0},)
    assert "the encoder recognises 0.0 %" in bottom_line(record(log=log), (1.0, 0.0))
    unmeasured = bottom_line(record(class_names=(), classes=(3, 7), seconds=0.0), None)
    assert unmeasured == "Class 3 and class 7 are forgotten without images, so no accuracy was measured; below 0.1 s."


def test_pixels_and_several_classes() -> None:
    scenes = bottom_line(record(class_names=("car", "pole", "sky"), seconds=200), (0.5, 0.0), pixels=True)
    assert scenes.startswith("On the forget pixels of 'car', 'pole' and 'sky' the accuracy fell")
    assert scenes.endswith("; 3 min.")


def test_accuracies_of_a_model_in_half_precision_and_of_a_broken_one() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).double()
    images = torch.rand(6, 1, 2, 2)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    request = pour.ForgetRequest(classes=[0], forget=[(images, torch.zeros(6, dtype=torch.int64))])
    student = pour.unlearn(model, request, method="masked-head", device="cpu", progress=False)
    assert forget_accuracies(model, student, request, RUN) == (1.0, 0.0)
    assert forget_accuracies(model, student, pour.ForgetRequest(classes=[0]), RUN) is None
    with torch.no_grad():
        model[1].bias.fill_(math.nan)
    assert forget_accuracies(model, student, request, RUN) is None


def test_unlearn_prints_one_sentence_before_its_table(digits_original, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = pour.save(digits_original, tmp_path / "original.safetensors")
    options = ["--method", "pour-p", "--forget", 3, "--data", "digits", "--device", "cpu"]
    done = here("unlearn", file, *options, "--out", tmp_path / "a.safetensors")
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(
        r"On the forget images of '3' the accuracy fell from \d+\.\d % to 0\.0 %; direction \w+; .* s\.", first
    ), done.stdout
    quiet = here("unlearn", file, *options, "--out", tmp_path / "b.safetensors", "--quiet")
    assert quiet.stdout.splitlines() == [str(tmp_path / "b.safetensors")]
    blind = here("unlearn", file, *options[:4], "--out", tmp_path / "c.safetensors")
    assert blind.stdout.startswith("'3' is forgotten without images, so no accuracy was measured; direction")


def test_every_method_of_pour_has_a_stored_first_call() -> None:
    """A default that changes takes the stored result away: run benchmarks/first_call.py --only NAME."""
    content = json.loads(Path(stored.__file__).with_name("first_call.json").read_text())
    own = {info.name for info in pour.list_methods() if get_method(info.name).__module__.startswith("pour.")}
    assert own == {*content["methods"], *content["not_run"]}
    for name, summary in content["methods"].items():
        today = make_method(name).options()
        assert {option: today[option] for option in summary["options"]} == summary["options"], name
        assert summary["networks"] == 6


def test_methods_shows_the_first_calls() -> None:
    printed = " ".join(here("methods").stdout.split())
    assert "six small digit networks" in printed
    assert str(first_call("finetune")) in printed
    assert first_call("retrain") is None
    by_name = {info.name: info.first_call for info in pour.list_methods()}
    best = by_name["pour-a"]
    assert best is not None
    assert best.good == 6


def test_a_method_that_fails_says_so() -> None:
    assert str(FirstCall(networks=6, failed=6)) == "failed on 6 of 6"
    assert str(FirstCall(networks=6, failed=1, acc_f=20.0, change_acc_r=-7.2)) == "20 % / -7.2, failed on 1 of 6"
