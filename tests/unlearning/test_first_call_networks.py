"""The first call on ordinary networks: no head and no rate, forget images in a DataLoader, half the default steps.

`benchmarks/first_call.py` makes the same calls at every default.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
from digits_networks import BODIES, BedData, accuracies, bed_data, bed_network

import pour
from pour.models.copy_and_swap import swap_module
from pour.models.head import find_head

if TYPE_CHECKING:
    from torch import nn

FORGOTTEN = 8


@pytest.fixture(scope="module")
def digits_of_bed() -> BedData:
    return bed_data()


def encoder_alone(released: nn.Module) -> nn.Module:
    """The released encoder with the original head, the projector taken out."""
    model = copy.deepcopy(released)
    head = find_head(model)
    return swap_module(model, head.module, head.layer)


@pytest.mark.parametrize("body", BODIES)
def test_the_first_call_forgets_and_keeps_the_rest(digits_of_bed: BedData, body: str) -> None:
    model = bed_network(body, digits_of_bed, seed=5)
    request = pour.ForgetRequest(classes=[FORGOTTEN], forget=digits_of_bed.forget_loader(FORGOTTEN))
    released = pour.unlearn(model, request, progress=False, steps=400)

    retained_before, forgotten_before = accuracies(model, digits_of_bed, FORGOTTEN)
    retained, forgotten = accuracies(released, digits_of_bed, FORGOTTEN)
    assert forgotten_before > 80
    assert forgotten == 0
    assert retained >= retained_before - 2.5
    assert accuracies(encoder_alone(released), digits_of_bed, FORGOTTEN)[1] <= 10

    record = pour.history(released)[-1]
    assert record.method == "pour-a"
    assert record.options["direction"] in ("weights", "decisions", "scores")
    assert record.options["anchor"] == "views"
    log = {name: value for entry in record.log for name, value in entry.items()}
    assert log["encoder_share"] <= 0.03
    assert log["projection_leaves"] <= 0.002
    assert log["anchor_error"] <= 0.1

    folded = pour.fold(released)
    assert type(folded) is type(model)
    assert folded.state_dict().keys() == model.state_dict().keys()
    assert accuracies(folded, digits_of_bed, FORGOTTEN) == pytest.approx((retained, forgotten), abs=0.2)
