from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_requests import FORGET, NOTHING, RETAIN, kl, losses, small_request, tiny_net, unlearn

import pour
from pour.errors import UsageError
from pour.methods.bad_teacher import BadTeacher
from pour.models import build_model
from pour.training.run import Run
from pour.unlearning import ForgetRequest, make_method

if TYPE_CHECKING:
    from torch import nn

    from pour.data.splits import Splits


def test_the_target_on_forget_images_is_the_fresh_networks() -> None:
    # The student does not move, so retained images, whose teacher it equals, cost nothing.
    model = tiny_net()
    request = small_request()
    result = unlearn(model, "bad-teacher", request, lr=NOTHING, steps=2)
    with Run(seed=0, device="cpu").seeded():
        assert request.build is not None
        fresh = request.build().eval()
    expected = [
        kl(fresh(gone), model(gone)).sum() / (len(gone) + len(kept))
        for (gone, _), (kept, _) in zip(FORGET, RETAIN, strict=False)
    ]
    np.testing.assert_allclose(losses(result), expected, rtol=1e-4)


def test_the_student_goes_to_the_fresh_network_on_forget_images_alone() -> None:
    model = tiny_net()
    request = small_request()
    result = unlearn(model, "bad-teacher", request, lr=0.01, steps=60)
    with Run(seed=0, device="cpu").seeded():
        assert request.build is not None
        fresh = request.build().eval()
    gone, kept = FORGET[0][0], RETAIN[0][0]
    assert kl(fresh(gone), result(gone)).mean() < kl(fresh(gone), model(gone)).mean()
    assert kl(model(kept), result(kept)).mean() < kl(fresh(kept), result(kept)).mean()


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_an_epoch_is_the_forget_images_and_a_share_of_the_retained(
    digits_original: nn.Module, digits_splits: Splits, share: float
) -> None:
    request = small_request(
        forget=digits_splits.forget_train,
        retain=digits_splits.retain_train,
        build=lambda: pour.models.build_model("resnet-digits", 10, in_channels=1, image_size=8),
    )
    request.classes = [3]
    result = unlearn(digits_original, "bad-teacher", request, retain_share=share, batch_size=100, augment=False)
    assert len(losses(result)) == math.ceil((147 + round(share * 1295)) / 100)


def test_the_share_of_the_retained_images_is_drawn_once(
    digits_original: nn.Module, digits_splits: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[bytes] = set()
    train = BadTeacher.train

    def spy(self: BadTeacher, model: nn.Module, batches: Any, *arguments: Any, **options: Any) -> Any:
        for epoch in range(3):
            for _, _, kept, _ in batches.epoch(epoch):
                seen.update(image.numpy().tobytes() for image in kept)
        return train(self, model, batches, *arguments, **options)

    monkeypatch.setattr(BadTeacher, "train", spy)
    request = ForgetRequest.of(
        digits_splits, build=lambda: build_model("resnet-digits", 10, in_channels=1, image_size=8)
    )
    unlearn(digits_original, "bad-teacher", request, retain_share=0.3, augment=False)
    # Few digits are the same as another.
    assert 0.95 * 388 < len(seen) <= 388


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="retain_share must be above 0 and at most 1, but is 2"):
        make_method("bad-teacher", retain_share=2.0)
