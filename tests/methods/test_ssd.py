from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from small_requests import FORGET, FORGOTTEN, RETAIN, small_request, tiny_net, unlearn
from torch import Tensor, nn

import pour
from pour.data.dataset import ImageSplit
from pour.errors import UsageError
from pour.methods.ssd import dampen, importance
from pour.training.run import Run
from pour.unlearning import ForgetRequest, Images, make_method

if TYPE_CHECKING:
    from pour.data.splits import Splits


def test_selection_and_dampening_by_hand() -> None:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    forget = {"weight": torch.tensor([[20.0, 10.0, 50.0, 0.0]])}
    overall = {"weight": torch.tensor([[1.0, 1.0, 4.0, 0.0]])}
    share = dampen(model, forget, overall, selection=10.0, dampening=1.0)
    # 20 > 10: times 1/20. 10 = 10: not above. 50 > 40: times 4/50. 0 > 0: no.
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[1 / 20, 2.0, 3 * 4 / 50, 4.0]]))
    assert share == 0.5


def test_dampening_never_makes_a_weight_larger() -> None:
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.detach().clone()
    dampen(model, {"weight": torch.tensor([[2.0]])}, {"weight": torch.tensor([[1.0]])}, selection=1.0, dampening=100.0)
    assert torch.equal(model.weight.detach(), before)


def test_importance_is_the_mean_of_squared_batch_gradients() -> None:
    """For softmax regression the gradient of a batch is mean((p - onehot) x^T)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    got = importance(model, RETAIN)
    squares = []
    for images, labels in RETAIN:
        x = images.flatten(1).double().numpy()
        error = model(images).softmax(dim=1).detach().double().numpy() - np.eye(4)[labels.numpy()]
        squares.append((error.T @ x / len(x)) ** 2)
    np.testing.assert_allclose(got["1.weight"].numpy(), np.mean(squares, axis=0), rtol=1e-4, atol=1e-10)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_importance_depends_on_the_batch_size() -> None:
    """It is no Fisher information image by image; the docstring warns, and this is why."""
    model = tiny_net()
    whole = importance(model, [(torch.cat([x for x, _ in RETAIN]), torch.cat([y for _, y in RETAIN]))])
    single = importance(model, [(x[i : i + 1], y[i : i + 1]) for x, y in RETAIN for i in range(len(x))])
    assert float(single["5.weight"].sum()) > 2 * float(whole["5.weight"].sum())


def test_forget_images_count_among_all_data() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval()

    def importance_by_hand(*parts: tuple[Tensor, Tensor]) -> np.ndarray:
        """Of one batch."""
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        error = model(images).softmax(dim=1).detach().double().numpy() - np.eye(4)[labels.numpy()]
        return np.asarray((error.T @ images.flatten(1).double().numpy() / len(labels)) ** 2)

    result = unlearn(model, "ssd", small_request(forget=FORGET[:1], retain=RETAIN[:1]), selection=1.0)
    gone, everything = importance_by_hand(FORGET[0]), importance_by_hand(FORGET[0], RETAIN[0])
    expected = model[1].weight.detach().double().numpy() * np.minimum(everything / gone, 1)
    np.testing.assert_allclose(result[1].weight.detach().numpy(), expected, rtol=1e-3, atol=1e-7)  # type: ignore[index, union-attr]


def test_batch_norm_statistics_stay_and_its_weights_may_shrink() -> None:
    model = tiny_net()
    result = unlearn(model, "ssd", small_request(), selection=0.1)
    assert torch.equal(result[1].running_mean, model[1].running_mean)
    assert torch.equal(result[1].num_batches_tracked, model[1].num_batches_tracked)
    changed = [name for name, p in result.named_parameters() if not torch.equal(p, model.get_parameter(name))]
    assert "1.weight" in changed
    for name in changed:
        assert (result.get_parameter(name).abs() <= model.get_parameter(name).abs() + 1e-7).all()


def test_all_images_are_mixed_before_they_are_batched() -> None:
    run = Run(device="cpu", progress=False)
    forget = ImageSplit(np.zeros((30, 6, 6, 1), np.uint8), np.full(30, 2))
    retain = ImageSplit(np.full((70, 6, 6, 1), 200, np.uint8), np.arange(70) % 2)
    mixed = list(Images(forget).joined(Images(retain), run).once(run, batch_size=25))
    labels = torch.cat([labels for _, labels in mixed])
    assert sorted(labels.tolist()) == sorted([*forget.labels, *retain.labels])
    for images, labels in mixed:
        assert 0 < int((labels == 2).sum()) < 25
        assert torch.equal(images.flatten(1).amax(dim=1) == 0, labels == 2)


@pytest.mark.parametrize("turned", [False, True])
def test_own_batches_are_mixed_image_by_image(turned: bool) -> None:
    run = Run(device="cpu", progress=False)
    sides = (Images(FORGET), Images(RETAIN))
    joined = sides[turned].joined(sides[not turned], run)
    for _ in range(2):
        found = list(joined.once(run))
        assert [int((labels == FORGOTTEN).sum()) for _, labels in found] == [3, 2, 3]
        assert [len(labels) for _, labels in found] == [9, 8, 9]
        images = torch.cat([images for images, _ in found]).flatten(1)
        expected = torch.cat([images for images, _ in (*FORGET, *RETAIN)]).flatten(1)
        assert torch.equal(images.sum(1).sort().values, expected.sum(1).sort().values)


def test_own_batches_forget_as_a_split_does(digits_original: nn.Module, digits_splits: Splits) -> None:
    def batches(split: ImageSplit) -> list[tuple[Tensor, Tensor]]:
        images = torch.as_tensor(split.images).permute(0, 3, 1, 2)
        parts = images.split(32), torch.as_tensor(split.labels).split(32)
        return list(zip(*parts, strict=True))

    retained = digits_splits.retain_train
    mixed = retained.take(np.random.default_rng(0).permutation(len(retained)))
    request = ForgetRequest(classes=["3"], forget=batches(digits_splits.forget_train), retain=batches(mixed))
    result = unlearn(digits_original, "ssd", request, selection=50.0)
    test = digits_splits.forget_test
    scores = result(torch.as_tensor(test.images).permute(0, 3, 1, 2) / 255)
    assert (scores.argmax(dim=1).numpy() == test.labels).mean() < 0.1
    assert pour.history(result)[-1].log[0]["share_of_weights_dampened"] > 0.01


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="selection must be above 0, but is -1"):
        make_method("ssd", selection=-1)
    with pytest.raises(UsageError, match="ssd needs images of the retained classes"):
        unlearn(tiny_net(), "ssd", ForgetRequest(classes=[2], forget=FORGET))
