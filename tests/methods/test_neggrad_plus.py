from __future__ import annotations

import numpy as np
import pytest
from small_requests import FORGET, NOTHING, RETAIN, cross_entropy, losses, tiny_net, unlearn

from pour.errors import UsageError
from pour.unlearning import make_method


@pytest.mark.parametrize("alpha", [0.95, 0.3])
def test_the_loss_weighs_retained_against_forget_images(alpha: float) -> None:
    model = tiny_net()
    result = unlearn(model, "neggrad-plus", alpha=alpha, lr=NOTHING, epochs=2, batch_norm="frozen")
    keep = [cross_entropy(model, batch) for batch in RETAIN]
    gone = [cross_entropy(model, FORGET[step % 2]) for step in range(3)]
    one_epoch = alpha * np.array(keep) - (1 - alpha) * np.array(gone)
    np.testing.assert_allclose(losses(result), np.tile(one_epoch, 2), rtol=1e-5)


def test_ascends_on_forget_and_descends_on_retained_images() -> None:
    model = tiny_net()
    result = unlearn(model, "neggrad-plus", alpha=0.8, lr=0.02, epochs=5, batch_norm="frozen")
    assert cross_entropy(result, FORGET[0]) > cross_entropy(model, FORGET[0])
    assert cross_entropy(result, RETAIN[0]) < cross_entropy(model, RETAIN[0])


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match=r"alpha must be at least 0 and at most 1, but is 1\.5"):
        make_method("neggrad-plus", alpha=1.5)
