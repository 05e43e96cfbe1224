from __future__ import annotations

import pytest
import torch
from small_requests import CLASSES, FORGOTTEN, tiny_net, unlearn
from torch import nn

import pour
from pour.errors import UsageError
from pour.unlearning import ForgetRequest

KEPT = [label for label in range(CLASSES) if label != FORGOTTEN]


def images() -> torch.Tensor:
    return torch.rand(50, 1, 6, 6, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("classes", [[FORGOTTEN], [0, FORGOTTEN]])
def test_a_masked_class_is_never_predicted_and_the_other_scores_stay(classes: list[int]) -> None:
    model = tiny_net()
    # A class that would win everywhere.
    model[-1].bias.data[FORGOTTEN] += 100.0  # type: ignore[union-attr, index, operator]
    assert set(model(images()).argmax(dim=1).tolist()) == {FORGOTTEN}
    result = unlearn(model, "masked-head", ForgetRequest(classes=classes))
    kept = [label for label in range(CLASSES) if label not in classes]
    assert torch.equal(result(images())[:, kept], model(images())[:, kept])
    assert set(result(images()).argmax(dim=1).tolist()) <= set(kept)


def test_only_the_rows_of_the_class_change() -> None:
    model = tiny_net()
    result = unlearn(model, "masked-head", ForgetRequest(classes=[FORGOTTEN]))
    before, after = model.state_dict(), result.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["5.weight", "5.bias"]
    assert torch.equal(before["5.weight"][KEPT], after["5.weight"][KEPT])
    assert torch.equal(before["5.bias"][KEPT], after["5.bias"][KEPT])
    assert not after["5.weight"][FORGOTTEN].any()


def test_the_mask_is_finite_in_half_precision() -> None:
    half = tiny_net().half()
    result = unlearn(half, "masked-head", ForgetRequest(classes=[FORGOTTEN]))
    assert result(images().half()).isfinite().all()
    assert FORGOTTEN not in result(images().half()).argmax(dim=1).tolist()


def test_a_head_without_bias_is_told() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False))
    with pytest.raises(UsageError, match="'1' has no bias for the mask; masked-head needs one"):
        unlearn(model, "masked-head", ForgetRequest(classes=[FORGOTTEN]))


def test_on_a_simplex_its_predictions_are_those_of_pour_p() -> None:
    """So POUR-P must change more than accuracies, and the tables show both."""
    head = nn.Linear(CLASSES, CLASSES)
    head.weight.data = torch.eye(CLASSES) - 1 / CLASSES
    head.bias.data.zero_()
    model = nn.Sequential(nn.Flatten(), head)
    features = torch.randn(200, CLASSES, generator=torch.Generator().manual_seed(1))
    masked, projected = (
        unlearn(model, method, ForgetRequest(classes=[FORGOTTEN]))(features).argmax(dim=1)
        for method in ("masked-head", "pour-p")
    )
    assert torch.equal(masked, projected)
    assert pour.history(unlearn(model, "masked-head", ForgetRequest(classes=[FORGOTTEN])))[-1].steps == 0
