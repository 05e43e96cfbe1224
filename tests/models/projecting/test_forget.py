"""Requests: directions, means, sequences of requests, and what becomes of the forgotten score."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import CLASSES, ConvHead, TokenHead, mlp
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models import (
    ProjectedHead,
    ResNet,
    extract_features,
    find_head,
    fold,
    forget,
    load,
    masked_score,
    save,
    set_class_names,
)
from pour.models.history import history


def numpy_projection(directions: np.ndarray) -> np.ndarray:
    return np.eye(directions.shape[1]) - np.linalg.pinv(directions) @ directions


def projection(model: nn.Module) -> np.ndarray:
    module = find_head(model).module
    assert isinstance(module, ProjectedHead)
    return module.projector.P.double().numpy()


def labelled(n: int = 40) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.arange(n) % CLASSES
    return [(images[i : i + 16], labels[i : i + 16]) for i in range(0, n, 16)]


@settings(deadline=None, max_examples=25)
@given(st.integers(3, 8), st.integers(8, 20), st.integers(0, 10_000), st.sampled_from([torch.float32, torch.float64]))
def test_linear_heads_of_any_shape(num_classes: int, width: int, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(width, num_classes, dtype=dtype)
    with torch.no_grad():
        model.weight.normal_(generator=generator)
    count = int(torch.randint(1, num_classes - 1, (), generator=generator))
    chosen = torch.randperm(num_classes, generator=generator)[:count].tolist()
    z = torch.randn(4, width, generator=generator, dtype=dtype)
    forgotten = forget(model, chosen, direction="weights", forgotten_logit="keep")
    W, b = model.weight.detach().double().numpy(), model.bias.detach().double().numpy()
    expected = z.double().numpy() @ numpy_projection(W[chosen]) @ W.T + b
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for result in (forgotten, fold(forgotten)):
        assert type(result) is (ProjectedHead if result is forgotten else nn.Linear)
        got = result(z).detach().double().numpy()
        assert np.abs(got - expected).max() <= tolerance * max(1, np.abs(expected).max())
        # The forgotten classes' scores no longer depend on the image.
        np.testing.assert_allclose(got[:, chosen], np.tile(b[chosen], (4, 1)), atol=tolerance * 10)


def test_sequential_requests_equal_one_request(small: nn.Module, images: Tensor, tmp_path) -> None:
    both = forget(small, [0, 3], direction="weights")
    W = small.head.weight.detach().double().numpy()
    np.testing.assert_allclose(projection(both), numpy_projection(W[[0, 3]]), atol=1e-6)
    first = forget(small, [0], direction="weights")
    saved = load(save(first, tmp_path / "first.safetensors"), small)
    for start in (first, saved):
        then = forget(start, [3], direction="weights")
        np.testing.assert_allclose(projection(then), projection(both), atol=1e-6)
        assert find_head(then).module.forgotten == (0, 3)
        torch.testing.assert_close(then(images), both(images), rtol=1e-5, atol=1e-5)
        assert len([m for m in then.modules() if isinstance(m, ProjectedHead)]) == 1
    assert find_head(first).module.forgotten == (0,)
    assert find_head(first).module.projector.rank == 1


def test_sequential_requests_on_folded_models(small: nn.Module, images: Tensor, tmp_path) -> None:
    both = fold(forget(small, [0, 3], direction="weights"))
    folded = fold(forget(small, [0], direction="weights"))
    saved = load(save(folded, tmp_path / "folded.safetensors"), small)
    for start in (folded, saved):
        then = fold(forget(start, [3], direction="weights"))
        torch.testing.assert_close(then(images), both(images), rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"row for class 0 is zero"):
        forget(folded, [0, 3])
    with pytest.raises(UsageError, match=r"row for class 0 is zero"):
        forget(fold(forget(small, [0], direction="weights", forgotten_logit="keep")), [0])


def test_order_does_not_matter(small: nn.Module) -> None:
    def forget_rows(model: nn.Module, classes: list[int]) -> nn.Module:
        return forget(model, classes, direction="weights")

    expected = projection(forget_rows(small, [1, 4, 5]))
    one_by_one = forget_rows(forget_rows(forget_rows(small, [5]), [1]), [4])
    np.testing.assert_allclose(projection(one_by_one), expected, atol=1e-6)
    np.testing.assert_allclose(projection(forget_rows(forget_rows(small, [5, 1]), [4])), expected, atol=1e-6)


@pytest.mark.parametrize("direction", ["auto", "weights", "centered-weights"])
@pytest.mark.parametrize("folded", [False, True])
def test_a_repeated_request_is_refused_whether_folded_or_not(small: nn.Module, direction: Any, folded: bool) -> None:
    forgotten = forget(small, [1], direction=direction)
    forgotten = fold(forgotten) if folded else forgotten
    for again in ([1], [4, 1]):
        with pytest.raises(UsageError, match=r"[Cc]lass 1 is .*leave it out of the request"):
            forget(forgotten, again, direction=direction)
    assert len(history(forget(forgotten, [4], direction=direction))) == 2 + folded


def test_too_many_in_sequence_is_refused(small: nn.Module) -> None:
    most = forget(small, [0, 1, 2, 3], direction="weights")
    with pytest.raises(UsageError, match=r"would leave one class"):
        forget(most, [4, 5])
    assert find_head(forget(most, [4], direction="weights")).module.projector.rank == 5


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", ["vector", "tokens", "map"])
def test_directions_from_class_means(kind: str, centered: bool, small: nn.Module) -> None:
    model, head, data = small.train(), None, labelled()
    if kind == "tokens":
        model = TokenHead().train()
    elif kind == "map":
        model, head = ConvHead().train(), "score"
    seen = extract_features(model, data, head=head)
    means = []
    for label in range(CLASSES):
        rows = seen.raw[seen.labels == label].double().numpy()
        rows = np.moveaxis(rows, 1, -1) if kind == "map" else rows
        means.append(rows.reshape(-1, rows.shape[-1]).mean(axis=0))
    directions = np.stack(means)
    if centered:
        directions = directions - directions.mean(axis=0)
    random_state = torch.get_rng_state()
    result = forget(model, [2, 5], direction="centered-means" if centered else "means", data=data, head=head)
    assert torch.equal(torch.get_rng_state(), random_state)
    np.testing.assert_allclose(projection(result), numpy_projection(directions[[2, 5]]), atol=2e-4)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    mode = "centered-means" if centered else "means"
    steps = forget(forget(model, [2], direction=mode, data=data, head=head), [5], direction=mode, data=data)
    np.testing.assert_allclose(projection(steps), projection(result), atol=2e-4)


def test_given_directions_mask_nothing(small: nn.Module, images: Tensor) -> None:
    directions = torch.randn(2, small.head.in_features)
    model = forget(small, directions=directions)
    np.testing.assert_allclose(projection(model), numpy_projection(directions.double().numpy()), atol=1e-6)
    assert find_head(model).module.forgotten == ()
    assert model(images).abs().max() < 1e4
    one = forget(small, directions=directions[0], classes=[2])
    assert find_head(one).module.projector.rank == 1
    assert (one(images)[:, 2] == masked_score(torch.float32)).all()
    assert (model(images) - fold(model)(images)).abs().max() < 1e-5
    later = forget(model, [1], forgotten_logit="zero")
    assert find_head(later).module.projector.rank == 3
    assert (later(images)[:, 1] == 0).all()
    assert find_head(forget(later, directions=directions)).module.forgotten_logit == "zero"


def test_masked_scores_are_finite_in_every_dtype() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        model = nn.Linear(8, 4, dtype=dtype)
        forgotten = forget(model, [1])
        z = torch.randn(5, 8, dtype=dtype)
        for result in (forgotten, fold(forgotten)):
            scores = result(z)
            assert scores.dtype == dtype
            assert torch.isfinite(scores).all()
            assert not (scores.argmax(dim=1) == 1).any()
            assert (scores.float().softmax(dim=1)[:, 1] == 0).all()
            loss = nn.functional.cross_entropy(scores.float(), torch.ones(5, dtype=torch.long))
            assert torch.isfinite(loss)


def test_half_precision_models_stay_close_to_the_exact_answer() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 10).to(torch.bfloat16)
    z = torch.randn(20, 64).to(torch.bfloat16)
    W = model.weight.detach().double().numpy()
    expected = z.double().numpy() @ numpy_projection(W[[3]]) @ W.T + model.bias.detach().double().numpy()
    forgotten = forget(model, [3], direction="weights", forgotten_logit="keep")
    for result in (forgotten, fold(forgotten)):
        assert np.abs(result(z).detach().double().numpy() - expected).max() < 0.03 * np.abs(expected).max()


def test_autocast_and_device_moves(small: nn.Module, images: Tensor) -> None:
    forgotten = forget(small, [1])
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        scores = forgotten(images)
    assert torch.isfinite(scores).all()
    assert not (scores.argmax(dim=1) == 1).any()
    assert find_head(forgotten.to("meta")).module.forgotten_mask.is_meta


def test_gradients_reach_the_encoder_but_not_the_removed_direction() -> None:
    model = nn.Linear(6, 4)
    forgotten = forget(model, [0], direction="weights", forgotten_logit="keep")
    z = torch.randn(3, 6, requires_grad=True)
    forgotten(z).square().sum().backward()
    assert z.grad is not None
    assert z.grad.abs().sum() > 0
    assert (z.grad @ model.weight[0].detach()).abs().max() < 1e-5


def test_class_names_are_understood(small: nn.Module) -> None:
    set_class_names(small, list("abcdefg"))
    assert find_head(forget(small, ["c", 0])).module.forgotten == (0, 2)
    assert history(forget(small, ["c"]))[0].class_names == ("c",)
    with pytest.raises(UsageError, match=r"no class called 'z'"):
        forget(small, ["z"])


def test_a_layer_registered_twice_is_projected_in_both_places() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 4)
            self.second = self.first

        def forward(self, z: Tensor) -> Tensor:
            return self.second(z) + self.first(z)

    model = Twice()
    z = torch.randn(2, 5)
    forgotten = forget(model, [0], forgotten_logit="keep")
    assert forgotten.first is forgotten.second
    torch.testing.assert_close(forgotten(z), 2 * forgotten.first(z))
    plain = fold(forgotten)
    assert plain.first is plain.second
    torch.testing.assert_close(plain(z), forgotten(z))


def test_heads_with_a_forward_of_their_own() -> None:
    class Cosine(nn.Linear):
        def forward(self, z: Tensor) -> Tensor:
            return 8 * nn.functional.linear(nn.functional.normalize(z), nn.functional.normalize(self.weight))

    class Same(nn.Linear):
        def forward(self, z: Tensor) -> Tensor:
            return z @ self.weight.T + self.bias

    z = torch.randn(5, 6)
    cosine = forget(nn.Sequential(Cosine(6, 4)), [0], direction="weights", forgotten_logit="keep")
    assert cosine(z)[:, 0].abs().max() < 1e-5
    with pytest.raises(UsageError, match=r"is a Cosine that computes more than W z \+ b"):
        fold(cosine)
    same = forget(nn.Sequential(Same(6, 4)), [0])
    torch.testing.assert_close(fold(same)(z), same(z))


def test_names_of_another_head_are_ignored(small: nn.Module) -> None:
    set_class_names(small, ["a", "b"])
    assert find_head(forget(small, [5])).module.forgotten == (5,)


def test_old_weight_norm_is_copied_but_not_folded() -> None:
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(5, 4))
    model = nn.Sequential(nn.Tanh(), layer)
    z = torch.randn(2, 5)
    before = model(z)
    forgotten = forget(model, [0])
    assert forgotten(z)[:, 0].max() < -1e14
    assert torch.equal(model(z), before)
    # The weight that it would change is computed again in each call.
    with pytest.raises(UsageError, match=r"computes its weight.*remove_weight_norm"):
        fold(forgotten)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "pass classes= or directions="),
        ({"classes": []}, "empty"),
        ({"classes": [99]}, "out of range"),
        ({"classes": list(range(CLASSES))}, "leave no class"),
        ({"classes": [0], "direction": "mean"}, "direction is 'mean'; choose one of 'auto', 'weights'"),
        ({"classes": [0], "forgotten_logit": "drop"}, "forgotten_logit is 'drop'"),
        ({"classes": [0], "direction": "means"}, "needs images; pass data="),
        ({"classes": [0], "data": []}, 'add direction="means"'),
        ({"classes": [0], "direction": "means", "data": []}, "no image of class 0"),
        ({"classes": [6], "direction": "means", "data": labelled(6)}, "no image of class 6"),
        ({"classes": [0], "direction": "means", "data": [torch.zeros(2, 3, 32, 32)]}, "pairs of images and labels"),
        ({"directions": torch.ones(2, 5)}, "width 5, but the head 'head' takes 8 features"),
        ({"directions": torch.ones(1, 2, 8)}, r"shape \(k, d\)"),
        ({"directions": torch.zeros(8)}, "zero"),
        ({"directions": torch.full((8,), torch.nan)}, "NaN"),
        ({"directions": torch.eye(8)}, "nothing would be left"),
        ({"directions": torch.ones(8), "data": []}, "have no effect"),
    ],
)
def test_bad_input_is_one_clear_sentence(options: dict[str, object], sentence: str, small: nn.Module) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        forget(small, **options)
    assert "\n" not in str(caught.value)


def test_bad_models_are_refused(small: nn.Module) -> None:
    broken = copy.deepcopy(small)
    broken.head.weight.data[2, 3] = torch.nan
    with pytest.raises(UsageError, match=r"NaN or infinite weights .row 2"):
        forget(broken, [0])
    huge = nn.Linear(64, 3)
    huge.weight.data.fill_(torch.finfo(torch.float32).max)
    huge.weight.data[1].normal_()
    assert isinstance(forget(huge, [1], direction="weights"), ProjectedHead)
    with pytest.raises(UsageError, match=r"no projector to fold"):
        fold(small)
    with pytest.raises(UsageError, match=r"pass the same now"):
        forget(forget(small, [0], forgotten_logit="keep"), [1])
    with pytest.raises(UsageError, match=r"no bias for the mask"):
        fold(forget(mlp(bias=False), [0], head="out"))
    with pytest.raises(UsageError, match=r"must be nn.Linear"):
        ProjectedHead(nn.ReLU(), find_head(forget(small, [0])).module.projector)


def test_a_forgotten_class_is_gone_from_a_trained_network() -> None:
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)[:900]
    labels = torch.tensor(digits)[:900]
    torch.manual_seed(0)
    model = ResNet(10, in_channels=1, width=16, blocks=(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=150)
    for _ in range(10):
        for batch in torch.randperm(900).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    seen = extract_features(forget(model, [3], direction="weights"), [(images, labels)])
    kept = seen.labels != 3
    assert (seen.scores.argmax(dim=1)[kept] == seen.labels[kept]).float().mean() > 0.97
    assert not (seen.scores.argmax(dim=1) == 3).any()
    # The encoder is untouched; only what the head sees has lost the direction.
    row = model.head.weight.detach()[3]
    assert (seen.features @ row).abs().max() < 1e-4 * (seen.raw @ row).abs().max()
    assert torch.equal(seen.raw, extract_features(model, [(images, labels)]).features)


@pytest.mark.parametrize("direction", ["centered-weights", "scores", "decisions"])
def test_a_class_masked_before_has_no_part_in_the_mean_of_scores(direction: str) -> None:
    """A second request on a folded model forgets as it does on a head that never had the first class."""
    torch.manual_seed(0)
    head, images = nn.Linear(16, 5), torch.randn(1000, 16)
    model = nn.Sequential(nn.Flatten(), head)
    second = forget(fold(forget(model, classes=[0])), classes=[1], direction=direction)  # type: ignore[arg-type]
    # The head of the folded model, without the masked row.
    folded = find_head(fold(forget(model, classes=[0])))
    smaller = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    with torch.no_grad():
        smaller[1].weight.copy_(folded.weight[1:])
        assert folded.bias is not None
        smaller[1].bias.copy_(folded.bias[1:])
        expected = forget(smaller, classes=[0], direction=direction)(images)  # type: ignore[arg-type]
        found = second(images)
    torch.testing.assert_close(found[:, 2:], expected[:, 1:], rtol=1e-4, atol=1e-4)
    assert (found.argmax(dim=1) >= 2).all()


class Functional(nn.Module):
    """Computes its scores from the weight of its head, which it never calls."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.fc.weight, self.fc.bias)


@pytest.mark.parametrize("logit", ["mask", "keep", "zero"])
@pytest.mark.parametrize("direction", ["weights", "scores", "decisions"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_head_whose_weight_is_used_without_calling_it(logit: Any, direction: Any, bias: bool) -> None:
    torch.manual_seed(0)
    model, features = Functional(bias=bias), torch.randn(50, 8)
    projected = forget(model, [1], direction=direction, forgotten_logit=logit)
    with torch.no_grad():
        torch.testing.assert_close(projected(features), projected.get_submodule("fc")(features))
        assert not torch.allclose(projected(features), model(features))


def test_a_head_whose_weight_is_used_without_calling_it_is_verified() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        once = forget(Functional(), [1], example=torch.randn(5, 8))
        twice = forget(once, [2], example=torch.randn(5, 8))
    assert find_head(twice).module.forgotten == (1, 2)


@pytest.mark.parametrize("once", [False, True])
def test_the_head_is_found_on_the_data_of_means(once: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    batches = [(torch.rand(5, 1, 2, 2), torch.arange(5) % 2) for _ in range(3)]
    expected = find_head(forget(model, [0], direction="means", data=batches, head="3")).module.projector.basis
    data = iter(batches) if once else batches
    found = find_head(forget(model, [0], direction="means", data=data))
    assert found.name == "3"
    assert torch.equal(found.module.projector.basis, expected)
    with pytest.raises(UsageError, match=r"not the output of '1'|'1' gives 6 scores"):
        forget(model, [0], direction="means", data=batches, head="1")
    with pytest.raises(UsageError, match=r"cannot run on images of shape \(5, 2, 2, 2\)"):
        forget(model, [0], direction="means", data=[(torch.rand(5, 2, 2, 2), torch.zeros(5).long())])


def test_centred_means_need_more_than_the_forgotten_class() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    data = [(torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64))]
    with pytest.raises(UsageError, match=r'needs images of all classes.*take direction="means"'):
        forget(model, [0], direction="centered-means", data=data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_means_of_a_model_in_another_precision_than_its_images(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).to(dtype)
    data = [(torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64))]
    assert forget(model, [0], direction="means", data=data)[-1].projector.rank == 1


def test_what_cannot_be_forgotten_is_told() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(UsageError, match="is a TorchScript module"):
        forget(torch.jit.script(model), [0])
    with pytest.raises(UsageError, match="dotted name of a layer, such as 'fc', not a Linear"):
        forget(model, [0], head=model[1])  # type: ignore[arg-type]
    model.lock = threading.Lock()
    with pytest.raises(UsageError, match="its attribute lock cannot; set it to None"):
        forget(model, [0])
    del model.lock
    model[1].kept = [model[1].weight * 2]
    with pytest.raises(UsageError, match=r"its attribute 1\.kept cannot; set it to None or detach it"):
        forget(model, [0])
