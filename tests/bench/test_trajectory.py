from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import pour
from pour._records import decode, encode
from pour.bench import Trajectory, follow
from pour.errors import UsageError
from pour.models.tap import extract_features
from pour.training import Run
from pour.training.tasks.classify import Classify
from pour.unlearning import ForgetRequest

if TYPE_CHECKING:
    from torch import nn

    from pour.data.splits import Splits

RUN = Run(device="cpu", progress=False)
METHODS = {
    "pour-d": {"steps": 12, "batch_size": 64, "augment": False},
    "gradient-ascent": {"steps": 12, "batch_size": 64, "lr": 1e-3, "stop_accuracy": None, "augment": False},
    "delete": {"steps": 12, "batch_size": 64, "lr": 1e-3, "augment": False},
}


def series(trace: Trajectory, name: str) -> list[Any]:
    return [look.terms["mmd"][name] for look in trace.looks]


@pytest.mark.parametrize("method", METHODS)
def test_the_terms_at_every_look(
    digits_original: nn.Module, digits_retrained: nn.Module, digits_splits: Splits, method: str
) -> None:
    options = METHODS[method]
    trace = follow(
        digits_original,
        digits_retrained,
        digits_splits,
        method,
        every=5,
        run=RUN,
        limit=400,
        **options,
    )
    assert [look.step for look in trace.looks] == [0, 5, 10, 12]
    for look in trace.looks:
        assert set(look.terms) == {"mmd", "energy", "sliced-wasserstein-1"}
        for terms in look.terms.values():
            assert terms["lower"] - 1e-9 <= terms["total"] <= terms["upper"] + 1e-9
            assert terms["upper"] == pytest.approx(terms["separation"] + terms["forgotten"] + terms["retained"])
    assert series(trace, "alpha")[0] > series(trace, "alpha")[-1]  # type: ignore[operator]
    assert trace.looks[0].acc_f == 1

    same = pour.unlearn(
        digits_original, ForgetRequest.of(digits_splits), method=method, device="cpu", progress=False, **options
    )
    seen = extract_features(same, Classify().batches(digits_splits.test.whole, Run(device="cpu")))
    answers, labels = seen.scores.argmax(dim=1).numpy(), seen.labels.numpy()
    gone = np.isin(labels, digits_splits.forgotten)
    last = trace.looks[-1]
    assert last.acc_f == pytest.approx((answers == labels)[gone].mean()), "looking changes nothing"
    assert last.acc_r == pytest.approx((answers == labels)[~gone].mean())
    assert series(trace, "alpha")[-1] == pytest.approx(np.isin(answers, digits_splits.forgotten).mean())

    assert decode(Trajectory, encode(trace), "trace.json") == trace
    assert (trace.method, trace.forgotten, trace.every) == (method, (3,), 5)


def test_a_method_that_diverges_is_followed_up_to_there(
    digits_original: nn.Module, digits_retrained: nn.Module, digits_splits: Splits
) -> None:
    options = {**METHODS["gradient-ascent"], "steps": 40, "lr": 0.1}
    trace = follow(
        digits_original,
        digits_retrained,
        digits_splits,
        "gradient-ascent",
        every=1,
        run=RUN,
        limit=200,
        **options,
    )
    assert trace.failed is not None
    assert "use a smaller learning rate" in trace.failed or "NaN or infinite" in trace.failed
    assert trace.looks[0].step == 0
    assert trace.looks[-1].step < 40
    assert decode(Trajectory, encode(trace), "trace.json") == trace


def test_looking_leaves_the_model_and_its_modes(digits_original: nn.Module, digits_splits: Splits) -> None:
    weights = [parameter.clone() for parameter in digits_original.parameters()]
    follow(
        digits_original,
        digits_original,
        digits_splits,
        "delete",
        every=1,
        run=RUN,
        limit=100,
        steps=2,
    )
    assert not digits_original.training
    assert all(torch.equal(a, b) for a, b in zip(weights, digits_original.parameters(), strict=True))


def test_wrong_use_is_told(digits_original: nn.Module, digits_splits: Splits) -> None:
    with pytest.raises(UsageError, match="pour-p takes no optimisation steps; give an iterative method"):
        follow(digits_original, digits_original, digits_splits, "pour-p", every=1, run=RUN)
    with pytest.raises(UsageError, match="steps between looks must be at least 1, but are 0"):
        follow(digits_original, digits_original, digits_splits, "delete", every=0, run=RUN)


@pytest.mark.parametrize("method", ["boundary-expand", "sure"])
def test_a_network_that_is_trained_inside_another_is_looked_at_in_the_end(
    method, digits_original, digits_retrained, digits_splits
):
    splits = digits_splits.holdout(0.1, seed=0)
    found = follow(digits_original, digits_retrained, splits, method, every=2, steps=3, run=RUN)
    assert [look.step for look in found.looks] == [0, 3]
    assert found.looks[1].acc_r != found.looks[0].acc_r or found.looks[1].terms != found.looks[0].terms
