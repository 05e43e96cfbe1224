from __future__ import annotations

import numpy as np
import pytest
from small_requests import NOTHING, RETAIN, batches, cross_entropy, losses, small_request, tiny_net, unlearn

import pour
from pour.errors import UsageError
from pour.unlearning import make_method

ALPHA = 0.01


def penalties(**options: object) -> np.ndarray:
    """The weight of the penalty at every step, from the losses of a model that does not move."""
    model = tiny_net()
    result = unlearn(
        model,
        "l1-sparse",
        small_request(retain=RETAIN[:1] * 2),
        alpha=ALPHA,
        lr=NOTHING,
        weight_decay=0.0,
        batch_norm="frozen",
        **options,
    )
    size = sum(parameter.detach().double().abs().sum().item() for parameter in model.parameters())
    return np.asarray((losses(result) - cross_entropy(model, RETAIN[0])) / size)


def test_the_penalty_fades_to_zero() -> None:
    expected = ALPHA * (1 - np.arange(10) / 10)
    np.testing.assert_allclose(penalties(epochs=5), expected, atol=1e-6)


def test_the_last_epochs_are_plain() -> None:
    np.testing.assert_allclose(
        penalties(epochs=5, plain_epochs=3), ALPHA * np.maximum(0, 1 - np.arange(10) / 4), atol=1e-6
    )


def test_the_penalty_shrinks_weights() -> None:
    sizes = [
        sum(p.detach().abs().sum().item() for p in unlearn(tiny_net(), "l1-sparse", alpha=alpha, steps=20).parameters())
        for alpha in (0.0, 0.1)
    ]
    assert sizes[1] < 0.8 * sizes[0]


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="alpha must be at least 0, but is -1"):
        make_method("l1-sparse", alpha=-1.0)


def test_the_mark_of_a_masked_class_is_no_weight() -> None:
    model = pour.fold(pour.forget(tiny_net(), classes=[0]))
    request = small_request(retain=batches(2, 6, (1, 3), seed=2))
    result = unlearn(model, "l1-sparse", request, lr=NOTHING, steps=1)
    assert losses(result)[0] < 100
    with pytest.raises(UsageError, match="must leave some of the 10 epochs to the penalty"):
        make_method("l1-sparse", plain_epochs=10)
