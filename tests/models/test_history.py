"""The history of a model, and its digests."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import hf_model
from torch import nn

import pour
from pour._records import decode, encode
from pour.errors import UsageError
from pour.models import (
    HistoryEntry,
    add_entry,
    architecture,
    class_names,
    copy_card,
    digest,
    fold,
    forget,
    set_architecture,
    set_class_names,
)
from pour.models.history import history


def test_each_step_is_recorded_and_the_digests_form_a_chain(small: nn.Module) -> None:
    set_class_names(small, list("abcdefg"))
    first = forget(small, [0], direction="weights")
    second = forget(first, ["d"], direction="weights")
    plain = fold(second)
    assert history(small) == []
    steps = history(plain)
    assert [step.method for step in steps] == ["pour-p", "pour-p", "fold"]
    assert [step.classes for step in steps] == [(0,), (3,), ()]
    assert [step.class_names for step in steps] == [("a",), ("d",), ()]
    assert steps[1].options == {"direction": "weights", "forgotten_logit": "mask", "head": "head", "rank": 2}
    models = [small, first, second, plain]
    for step, before, after in zip(steps, models, models[1:], strict=False):
        assert step.digest_before == digest(before.state_dict())
        assert step.digest_after == digest(after.state_dict())
        assert step.seconds > 0
        assert step.version == pour.__version__
    assert len(history(first)) == 1


def test_it_survives_deepcopy_and_copies_are_independent(small: nn.Module) -> None:
    set_architecture(small, "resnet18", {"num_classes": 7, "blocks": (1, 1)})
    first = forget(small, [0])
    twin = copy.deepcopy(first)
    add_entry(twin, HistoryEntry(method="other", losses=(1.0, 0.5), steps=2))
    assert [len(history(model)) for model in (small, first, twin)] == [0, 1, 2]
    assert architecture(twin) == architecture(small)
    assert architecture(twin).options["blocks"] == [1, 1]
    target = nn.Linear(2, 2)
    copy_card(twin, target)
    add_entry(target, HistoryEntry(method="more"))
    assert [len(history(model)) for model in (twin, target)] == [2, 3]
    assert "_pour_card" not in " ".join(first.state_dict())


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 99)),
    st.lists(st.floats(allow_nan=False)),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())),
)
def test_entries_survive_json(classes: list[int], losses: list[float], options: dict[str, object]) -> None:
    made = HistoryEntry(method="m", classes=tuple(classes), losses=tuple(losses), options=options, steps=3, seconds=0.5)
    assert decode(HistoryEntry, encode(made), "history.json") == made


def test_odd_options_become_text_and_unknown_keys_are_refused() -> None:
    made = HistoryEntry(method="m", options={"lr": 0.1, "dtype": torch.float32, "sizes": (1, 2), "most": float("inf")})
    data = json.loads(encode(made))
    assert data["options"] == {"lr": 0.1, "dtype": "torch.float32", "sizes": [1, 2], "most": "inf"}
    with pytest.raises(UsageError, match="unknown key from_the_future"):
        decode(HistoryEntry, json.dumps({**data, "from_the_future": 1}), "history.json")
    with pytest.raises(UsageError, match="lacks the key method"):
        decode(HistoryEntry, '{"classes": []}', "history.json")


def test_class_names() -> None:
    model = nn.Linear(3, 2)
    assert class_names(model) is None
    set_class_names(model, ["cat", "dog"])
    assert class_names(copy.deepcopy(model)) == ("cat", "dog")
    with pytest.raises(UsageError, match="list of strings"):
        set_class_names(model, "ab")
    network = hf_model("resnet")
    assert class_names(network) is None
    network.config.id2label = dict(enumerate("tuvwxyz"))
    assert class_names(network) == tuple("tuvwxyz")
    assert history(forget(network, ["v"]))[0].classes == (2,)


def test_digest_sees_names_shapes_dtypes_and_bytes() -> None:
    base = {"a": torch.arange(4.0), "b": torch.tensor(3)}
    assert digest(base) == digest({"b": torch.tensor(3), "a": torch.arange(4.0)})
    channels_last = {"w": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)}
    assert digest(channels_last) == digest({"w": channels_last["w"].contiguous()})
    others = [
        {"c": base["a"], "b": base["b"]},
        {"a": base["a"].view(2, 2), "b": base["b"]},
        {"a": base["a"].view(torch.int32), "b": base["b"]},
        {"a": base["a"].clone().index_fill(0, torch.tensor([1]), 7), "b": base["b"]},
        {"a": base["a"].bfloat16(), "b": base["b"]},
    ]
    assert len({digest(other) for other in [base, *others]}) == len(others) + 1


def test_reading_leaves_no_mark_on_a_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    before = dict(vars(model))
    forget(model, [0])
    assert history(model) == []
    assert class_names(model) is None
    assert vars(model) == before


@pytest.mark.parametrize("odd", ["model.safetensors", None, torch.zeros(2)])
def test_what_is_no_model_is_told(odd: object) -> None:
    with pytest.raises(UsageError, match=f"not a {type(odd).__name__}; open the file of a model with pour.load"):
        forget(odd, [0])  # type: ignore[arg-type]


def test_a_number_of_an_odd_stride_has_a_digest() -> None:
    odd = torch.arange(7.0).view(1, 7)[:, 0]
    assert odd.stride() != (1,)
    assert digest({"x": odd}) == digest({"x": torch.zeros(1)})
