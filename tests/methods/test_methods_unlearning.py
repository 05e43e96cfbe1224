"""The one call on networks and data of a user's own."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from small_requests import small_request
from torch import nn

import pour
from pour.errors import UsageError
from pour.methods import make_method, request_of
from pour.methods.teachers import without_dropout
from pour.models import build_model, find_head, set_class_names
from pour.models import history as cards

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.splits import Splits


def network() -> nn.Module:
    """Two linear layers, either of which could be the head."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 4)).eval()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pour-p", {}),
        ("pour-d", {"steps": 2}),
        ("delete", {"steps": 2}),
        ("leace", {}),
        ("masked-head", {}),
        ("boundary-expand", {"steps": 2}),
        ("bad-teacher", {"epochs": 1}),
        ("retrain", {"recipe": "digits", "epochs": 1}),
    ],
)
@pytest.mark.parametrize("told", [{"head": "3"}, {"example": torch.zeros(1, 1, 6, 6)}])
def test_a_head_that_is_not_found_by_itself(
    tmp_path: Path, method: str, options: dict[str, Any], told: dict[str, Any]
) -> None:
    model, request = network(), small_request(build=network)
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = pour.unlearn(model, request, method=method, device="cpu", progress=False, **told, **options)
    assert find_head(result).name == "3"
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    with pytest.raises(UsageError, match="any could be its head"):
        find_head(model)
    pour.save(result, tmp_path / "m.safetensors")
    again = pour.load(tmp_path / "m.safetensors", network())
    assert find_head(again).name == "3"
    images = torch.rand(5, 1, 6, 6)
    assert torch.equal(again(images), result(images))
    assert pour.history(again)[-1].method == method


def test_without_being_told_it_says_what_to_pass() -> None:
    with pytest.raises(UsageError, match="name the head with head=, or pass example="):
        pour.unlearn(network(), small_request(), method="pour-d", device="cpu")
    with pytest.raises(UsageError, match="no layer called 'seven'"):
        pour.unlearn(network(), small_request(), method="pour-d", device="cpu", head="seven")


def test_an_audit_traces_the_head(digits_splits: Splits) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    report = pour.audit(
        original=model,
        unlearned=pour.forget(model, classes=[3], head="3"),
        data=digits_splits,
        example=torch.zeros(1, 1, 8, 8),
        device="cpu",
        progress=False,
    )
    assert report.value("acc_f") == 0


@pytest.mark.parametrize(
    ("channels", "classes", "sentence"),
    [
        (3, 10, "takes images of 3 channels, and these have 1"),
        (1, 7, "scores for 7 classes, and the data have 10"),
    ],
)
def test_data_of_another_kind_are_refused(digits_splits: Splits, channels: int, classes: int, sentence: str) -> None:
    model = build_model("resnet-digits", classes, in_channels=channels, image_size=8)
    with pytest.raises(UsageError, match=sentence):
        request_of(digits_splits, make_method("pour-d"), model)
    with pytest.raises(UsageError, match=sentence):
        pour.audit(original=model, unlearned=model, data=digits_splits, device="cpu", progress=False)


def test_classes_in_another_order_are_refused(digits_splits: Splits) -> None:
    letters = tuple("abcdefghij")
    splits = replace(digits_splits, classes=letters)
    model = build_model("resnet-digits", 10, in_channels=1, image_size=8)
    method = make_method("pour-d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        request_of(splits, method, model)
        set_class_names(model, letters)
        request_of(splits, method, model)
        # Names that are mere numbers say nothing.
        request_of(digits_splits, method, model)
    set_class_names(model, letters[::-1])
    with pytest.raises(
        UsageError, match="Class 0 is 'j' to the model and 'a' in the data: the same classes in another"
    ):
        request_of(splits, method, model)
    set_class_names(model, [letter.upper() for letter in letters])
    with pytest.warns(UserWarning, match="Class 0 is 'A' to the model and 'a' in the data; make sure"):
        request_of(splits, method, model)


@pytest.mark.parametrize("method", ["finetune", "salun", "ssd", "sure", "fcs"])
def test_a_model_that_may_not_be_trained_is_told(method: str) -> None:
    with pytest.raises(UsageError, match="no parameter that may be trained"):
        pour.unlearn(
            network().requires_grad_(False), small_request(), method=method, device="cpu", progress=False, head="3"
        )


def test_a_learning_rate_of_none_is_only_for_a_method_that_finds_its_own() -> None:
    with pytest.raises(UsageError, match=r"finetune needs a learning rate; leave lr out for its own, 0.01\."):
        make_method("finetune", lr=None)
    assert make_method("pour-d", lr=None).options()["lr"] is None
    assert make_method("retrain", lr=None).options()["lr"] is None


@pytest.mark.parametrize("method", ["pour-p", "masked-head", "pour-d", "delete", "esc"])
def test_names_of_an_earlier_head_are_left_out(method: str) -> None:
    model = network()
    set_class_names(model, [f"name{index}" for index in range(7)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = pour.unlearn(model, small_request(), method=method, device="cpu", progress=False, head="3")
    record = pour.history(result)[-1]
    assert (record.classes, record.class_names) == ((2,), ())


def test_a_method_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """As an installed package declares it; the same name is a method of every command."""
    (tmp_path / "theirs.py").write_text(
        textwrap.dedent('''
            from dataclasses import dataclass
            from typing import ClassVar

            from pour.methods import MaskedHead, register


            @register
            @dataclass(kw_only=True)
            class Theirs(MaskedHead):
                """Delete the row, as theirs."""

                name: ClassVar[str] = "theirs"
        ''')
    )
    facts = tmp_path / "theirs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[pour.methods]\ntheirs = theirs:Theirs\n")
    code = "import pour; print(*(m.summary for m in pour.list_methods() if m.name == 'theirs'))"
    code += "; print(pour.methods.get_method('theirs'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines() == ["Delete the row, as theirs.", "<class 'theirs.Theirs'>"], done.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True),
        lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True),
    ],
)
def test_nothing_is_dropped_inside_attention_and_recurrence(make):
    torch.manual_seed(0)
    layer, tokens = make().train(), torch.randn(2, 5, 8)

    def differs():
        one, other = (output[0] if isinstance(output := layer(tokens), tuple) else output for _ in range(2))
        return not torch.equal(one, other)

    with without_dropout(layer):
        assert not differs()
    assert differs()


def test_the_history_says_what_a_method_found(digits_original, digits_splits):
    request = pour.ForgetRequest.of(digits_splits)
    result = pour.unlearn(digits_original, request, method="delete", steps=3, device="cpu", progress=False)
    log = pour.history(result)[-1].log
    assert log[0]["step"] == 0
    assert log[0]["target_entropy"] > 0
    assert log[-1] == {"step": 3, "forget_accuracy": log[-1]["forget_accuracy"]}
    again = cards.Record.from_dict(json.loads(json.dumps(pour.history(result)[-1].to_dict())))
    assert again == pour.history(result)[-1]
