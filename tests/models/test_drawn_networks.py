"""Whatever network is drawn, ``pour.forget`` is exact or refuses: it is never silently wrong."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from drawn_networks import (
    ARCHITECTURES,
    Architecture,
    architectures,
    heads_of,
    inputs_of,
    network,
    other_layers,
)
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from network_family import FORGOTTEN, WAYS, are_masked, run

from pour.errors import UsageError
from pour.models import forget

REMEDY = re.compile(r"head=|example=|[Gg]ive |name |forgotten_logit=|direction=|[Mm]ove |put |replace ")


PROBABILITIES = ("softmax", "sigmoid")


class SilentlyWrongError(AssertionError):
    """``pour.forget`` returned a network whose scores are not those of the oracle."""


def outcome(drawn: Architecture, way: str, layer: int) -> str:
    """Forget in a network. Return "exact" or "refused". Raise SilentlyWrongError otherwise."""
    model, inputs = network(drawn), inputs_of(drawn)
    options: dict[str, Any] = {"example": inputs} if "example" in way else {}
    names = heads_of(model) if way.startswith("named") else other_layers(model) if way.startswith("wrong") else []
    if way.startswith("wrong"):
        names = [names[layer % len(names)]] if names else []
    if names:
        options["head"] = names[0] if len(names) == 1 else names
    try:
        forgotten = forget(model, FORGOTTEN, direction="weights", forgotten_logit="keep", **options)
    except UsageError as error:
        return f"refused{without_remedy(error)}"
    results = model.scores_in(run(forgotten, inputs))
    expected = model.after_forgetting(inputs)
    for got, wanted in zip(results, expected, strict=True):
        if not bool((got.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max()):
            raise SilentlyWrongError(f"{drawn} by {way} {options.get('head', '')}")
    try:
        masked = forget(model, FORGOTTEN, **options)
    except UsageError as error:
        return f"exact, mask refused{without_remedy(error)}"
    kept = forget(model, FORGOTTEN, forgotten_logit="keep", **options)
    with_kept_scores = model.scores_in(run(kept, inputs))
    if not are_masked(
        model.scores_in(run(masked, inputs)), with_kept_scores, is_probability=drawn.after in PROBABILITIES
    ):
        raise SilentlyWrongError(f"The mask of {drawn} by {way}")
    return "exact"


def without_remedy(error: UsageError) -> str:
    """Empty if the sentence names a remedy, otherwise the sentence."""
    return "" if REMEDY.search(str(error)) else f" without a remedy: {error}"


def search(draws: int, architectures: st.SearchStrategy[Architecture] = ARCHITECTURES) -> Counter[str]:
    """Draw different networks until one is silently wrong, always the same ones. Return how many had each outcome."""
    outcomes = Counter[str]()
    seen = set[tuple[Architecture, str, int]]()

    @settings(
        max_examples=draws,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=architectures, way=st.sampled_from(WAYS), layer=st.integers(0, 7))
    def never_silently_wrong(drawn: Architecture, way: str, layer: int) -> None:
        case = (drawn, way, layer if way.startswith("wrong") else 0)
        assume(case not in seen)
        outcomes[outcome(*case)] += 1
        seen.add(case)

    never_silently_wrong()
    return outcomes


def assert_sound(outcomes: Counter[str]) -> None:
    assert set(outcomes) <= {"exact", "refused", "exact, mask refused"}
    assert outcomes["exact"] > sum(outcomes.values()) / 4


def test_a_hundred_networks() -> None:
    assert_sound(search(100))


@pytest.mark.slow
def test_two_thousand_networks() -> None:
    assert_sound(search(2000))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"head": "cosine parameter", "embedding": "linear"}, id="cosine behind an embedding"),
        pytest.param({"heads": "averaged"}, id="average of two heads"),
    ],
)
def test_unchecked_heads_would_be_found_out(kind: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pour.models.head.structure_proves", lambda *args, **options: True)
    monkeypatch.setattr("pour.models.head.gives_scores", lambda *args, **options: True)
    with pytest.raises(SilentlyWrongError):
        search(100, architectures(**kind))
