from __future__ import annotations

import numpy as np
import pytest
import torch
from small_requests import FORGET, NOTHING, RETAIN, cross_entropy, kl, losses, small_request, tiny_net, unlearn

from pour.errors import UsageError
from pour.unlearning import make_method
from pour.unlearning.toolkit.teachers import divergence


def test_alternates_and_stops_the_ascent() -> None:
    # The model does not move, so its distance to the teacher is zero and only retained batches cost anything.
    model = tiny_net()
    result = unlearn(
        model, "scrub", epochs=4, ascent_epochs=2, gamma=0.5, lr=NOTHING, weight_decay=0.0, batch_norm="frozen"
    )
    back = [0.5 * cross_entropy(model, batch) for batch in RETAIN]
    np.testing.assert_allclose(losses(result), ([0, 0, *back] * 2) + back * 2, atol=1e-6)


def test_the_ascent_leaves_the_teacher_and_the_descent_returns() -> None:
    model = tiny_net()

    def distance(student: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        return float(kl(model(batch[0]), student(batch[0]), 4.0).mean())

    # From exactly the teacher the distance has no slope; the retained pass of the first epoch gives it one.
    options = {"epochs": 6, "gamma": 1.0, "alpha": 0.0, "lr": 0.05, "weight_decay": 0.0, "batch_norm": "frozen"}
    away = unlearn(model, "scrub", ascent_epochs=6, **options)
    stayed = unlearn(model, "scrub", ascent_epochs=0, **options)
    assert distance(away, FORGET[0]) > 2 * distance(stayed, FORGET[0])
    tied = unlearn(model, "scrub", ascent_epochs=0, **(options | {"alpha": 10.0, "lr": 0.02}))
    free = unlearn(model, "scrub", ascent_epochs=0, **(options | {"lr": 0.02}))
    assert distance(tied, RETAIN[0]) < 0.5 * distance(free, RETAIN[0])


def test_the_distance_goes_from_the_original_to_the_student() -> None:
    model, request = tiny_net(), small_request(forget=FORGET[:1], retain=RETAIN[:1])
    options = {"lr": 5.0, "momentum": 0.0, "weight_decay": 0.0, "temperature": 2.0, "batch_norm": "frozen"}
    # Of ascent, descent, ascent: at the second ascent the student is where the first two steps brought it.
    student = unlearn(model, "scrub", request, epochs=1, ascent_epochs=1, **options)
    ascent = losses(unlearn(model, "scrub", request, epochs=2, ascent_epochs=2, **options))[2]
    teacher, answer = (net(FORGET[0][0]) for net in (model, student))
    assert ascent == pytest.approx(-4 * kl(teacher, answer, 2.0).mean(), rel=1e-3)
    assert ascent != pytest.approx(-4 * kl(answer, teacher, 2.0).mean(), rel=1e-2)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_distance_is_the_tempered_divergence(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (5 * torch.randn(7, 4, generator=generator) for _ in range(2))
    expected = temperature**2 * kl(teacher, student, temperature).mean()
    assert divergence(teacher, student, temperature=temperature).item() == pytest.approx(expected, rel=1e-5)


def test_the_forget_batch_decides_how_many_ascents_there_are(digits_original: torch.nn.Module, digits_splits) -> None:  # type: ignore[no-untyped-def]
    request = small_request(forget=digits_splits.forget_train, retain=digits_splits.retain_train)
    request.classes = [3]
    options = {"epochs": 1, "ascent_epochs": 1, "batch_size": 600, "augment": False}
    few = unlearn(digits_original, "scrub", request, forget_batch_size=100, **options)
    many = unlearn(digits_original, "scrub", request, forget_batch_size=20, **options)
    gone, kept = len(digits_splits.forget_train), -(-len(digits_splits.retain_train) // 600)
    assert (len(losses(few)), len(losses(many))) == (-(-gone // 100) + kept, -(-gone // 20) + kept)


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="pass epochs, not steps"):
        make_method("scrub", steps=10)
    with pytest.raises(UsageError, match=r"ascent_epochs must be 0 to epochs \(3\), but is 4"):
        make_method("scrub", ascent_epochs=4)
    with pytest.raises(UsageError, match="temperature must be above 0"):
        make_method("scrub", temperature=0.0)
