import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from pour.errors import UsageError
from pour.geometry import Projector


class LargestTensor(TorchDispatchMode):
    """Remember the most elements that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def numpy_projection(directions, features):
    """P z from a pseudo-inverse, independently of any basis."""
    rows = directions.double().numpy()
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return features.double().numpy() @ (np.eye(rows.shape[1]) - np.linalg.pinv(rows, rcond=1e-10) @ rows)


@settings(deadline=None, max_examples=60)
@given(k=st.integers(1, 6), extra=st.integers(1, 10), scale=st.floats(-150, 150), seed=st.integers(0, 2**32))
def test_it_removes_the_span_of_directions_of_any_scale(k, extra, scale, seed):
    directions, features = normal(k, k + extra, seed=seed), normal(7, k + extra, seed=seed + 1)
    projector = Projector.from_directions(directions * 10.0**scale)
    projected = projector(features)
    assert projector.rank == k
    np.testing.assert_allclose(projected.numpy(), numpy_projection(directions, features), atol=1e-9)
    np.testing.assert_allclose((features @ projector.P).numpy(), projected.numpy(), atol=1e-12)
    np.testing.assert_allclose(projector(projected).numpy(), projected.numpy(), atol=1e-12)
    assert (projected @ directions.T).abs().max() < 1e-9


@settings(deadline=None, max_examples=40)
@given(rank=st.integers(1, 4), repeats=st.integers(0, 20), seed=st.integers(0, 2**32))
def test_dependent_directions_count_once(rank, repeats, seed):
    basis = normal(rank, 9, seed=seed)
    directions = torch.cat([basis, normal(repeats, rank, seed=seed + 1) @ basis])
    projector = Projector.from_directions(directions[torch.randperm(len(directions))])
    assert projector.rank == rank
    assert torch.allclose(projector.P, Projector.from_directions(basis).P, atol=1e-8)


@pytest.mark.parametrize(("noise", "rank"), [(1e-9, 1), (1e-3, 2)])
def test_the_stated_tolerance_decides_the_rank(noise, rank):
    direction = normal(1, 16, dtype=torch.float32)
    nearly = torch.cat([direction, direction + noise * normal(1, 16, seed=1, dtype=torch.float32)])
    assert Projector.from_directions(nearly).rank == rank
    assert Projector.from_directions(nearly, rtol=0.5).rank == 1


def test_the_default_tolerance_never_exceeds_a_hundredth():
    nearly = torch.zeros(2, 50_000)
    nearly[0, 0] = nearly[1, 0] = 1
    nearly[1, 1] = 0.05
    assert Projector.from_directions(nearly.bfloat16()).rank == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 3, 12), (0, 12)])
def test_features_keep_their_dtype_and_shape(dtype, shape):
    directions = normal(3, 12)
    projector = Projector.from_directions(directions)
    features = normal(*shape, seed=2, dtype=dtype)
    projected = projector(features)
    assert projected.dtype == dtype
    assert projected.shape == shape
    expected = features.double() - features.double() @ projector.basis.T @ projector.basis
    assert torch.allclose(projected.double(), expected, atol=30 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_basis_has_the_dtype_of_the_directions(dtype):
    projector = Projector.from_directions(normal(3, 12, dtype=dtype))
    assert projector.basis.dtype == projector.P.dtype == dtype
    gram = projector.basis.double() @ projector.basis.double().T
    assert torch.allclose(gram, torch.eye(3).double(), atol=4 * torch.finfo(dtype).eps)


def test_feature_maps_are_projected_along_their_dimension():
    projector = Projector.from_directions(normal(2, 5))
    maps = normal(3, 5, 4, 6)
    expected = projector(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert torch.allclose(projector(maps, dim=1), expected)
    assert torch.allclose(projector(maps, dim=-3), expected)
    assert projector(maps, dim=1).shape == maps.shape


def test_it_is_differentiable():
    projector = Projector.from_directions(normal(2, 5))
    features = normal(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(projector, features)
    projector(features).square().sum().backward()
    assert torch.allclose(features.grad, 2 * projector(features.detach()))


def test_it_never_forms_the_square_matrix():
    width = 200_000
    with LargestTensor() as largest:
        projector = Projector.from_directions(normal(3, width, dtype=torch.float32))
        features = normal(4, width, dtype=torch.float32)
        folded, projected = projector.fold(features), projector(features)
        both = projector.then(Projector.from_directions(normal(2, width, seed=5, dtype=torch.float32)))
    assert largest.elements < 10 * width
    assert both.rank == 5
    assert (projected @ projector.basis.T).abs().max() < 1e-3
    assert torch.allclose(folded, projected, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(first=st.integers(1, 3), second=st.integers(1, 3), shared=st.integers(0, 2), seed=st.integers(0, 2**32))
def test_a_later_projector_joins_the_spans(first, second, shared, seed):
    a, b = normal(first, 12, seed=seed), normal(second, 12, seed=seed + 1)
    b = torch.cat([b, a[:shared]])
    one, other = Projector.from_directions(a), Projector.from_directions(b)
    both = one.then(other)
    assert both.rank == first + second
    assert torch.allclose(both.P, Projector.from_directions(torch.cat([a, b])).P, atol=1e-8)
    assert torch.allclose(both.P, other.then(one).P, atol=1e-8)
    # A direction found after the first projection composes: applying one after the other is the same projector.
    after = Projector.from_directions(one(b[:second]))
    features = normal(4, 12, seed=seed + 2)
    assert torch.allclose(one.then(after)(features), after(one(features)), atol=1e-8)


def test_folding_moves_the_projection_into_the_head():
    projector = Projector.from_directions(normal(2, 6))
    weight, features = normal(4, 6, seed=1), normal(3, 6, seed=2)
    assert torch.allclose(features @ projector.fold(weight).T, projector(features) @ weight.T)
    half = projector.fold(weight.bfloat16())
    assert half.dtype == torch.bfloat16
    # Rounded once, from float32, so equal to the rounded exact value up to one step.
    exact = projector.fold(weight.bfloat16().double())
    assert torch.allclose(half.double(), exact, rtol=2**-8, atol=1e-6)


def test_its_basis_travels_in_the_state_dict_and_survives_copies():
    projector = Projector.from_directions(normal(2, 6))
    assert list(projector.state_dict()) == ["basis"]
    assert list(projector.parameters()) == []
    twin = Projector(projector.basis)
    twin.load_state_dict(copy.deepcopy(projector).state_dict())
    assert torch.equal(twin.basis, projector.basis)
    assert repr(projector) == "Projector(num_features=6, rank=2)"
    assert (projector.num_features, projector.rank) == (6, 2)


def test_the_basis_it_is_given_is_copied_and_checked():
    rows = torch.eye(4)[:2].clone()
    projector = Projector(rows)
    rows.zero_()
    assert torch.equal(projector.basis, torch.eye(4)[:2])
    with pytest.raises(UsageError, match="not orthonormal"):
        Projector(torch.tensor([[1.0, 0.1, 0.0], [0.0, 1.0, 0.0]]))
    with pytest.raises(UsageError, match="nothing would be left"):
        Projector(torch.eye(3))


class OnMaps(torch.nn.Module):
    def __init__(self, projector):
        super().__init__()
        self.projector = projector

    def forward(self, maps):
        return self.projector(maps, dim=1)


def test_it_exports_with_a_free_batch_size():
    module = OnMaps(Projector.from_directions(normal(2, 5, dtype=torch.float32)))
    maps = normal(3, 5, 4, 6, dtype=torch.float32)
    exported = torch.export.export(module, (maps,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    other = normal(7, 5, 4, 6, seed=1, dtype=torch.float32)
    assert torch.allclose(exported.module()(other), module(other), atol=1e-6)


def test_it_compiles_without_graph_breaks():
    projector = Projector.from_directions(normal(2, 5, dtype=torch.float32))
    compiled = torch.compile(projector, backend="aot_eager", fullgraph=True)
    features = normal(3, 5, dtype=torch.float32)
    assert torch.allclose(compiled(features), projector(features), atol=1e-6)


def test_under_autocast_features_keep_their_precision():
    projector = Projector.from_directions(normal(2, 5, dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert projector(normal(3, 5, dtype=torch.float32)).dtype == torch.float32


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (torch.zeros(4), "zero in row 0"),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "zero in row 1"),
        (torch.tensor([1.0, float("nan")]), "NaN"),
        (torch.tensor([1.0, float("inf")]), "infinite"),
        (torch.tensor([1, 2]), "torch.int64"),
        (torch.eye(3), "span all 3 dimensions"),
        (torch.ones(3, 2, 2), "expected \\(k, d\\)"),
        (torch.ones(0, 2), "at least one row"),
        (torch.ones(1), "span all 1 dimensions"),
    ],
)
def test_bad_directions_are_refused(directions, message):
    with pytest.raises(UsageError, match=message):
        Projector.from_directions(directions)


def test_wrong_features_are_refused_with_both_widths():
    projector = Projector.from_directions(torch.ones(4))
    with pytest.raises(UsageError, match=r"width 5 .* made for 4"):
        projector(torch.ones(2, 5))
    with pytest.raises(UsageError, match=r"torch\.int64"):
        projector(torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(UsageError, match="no dimension 2"):
        projector(torch.ones(2, 4), dim=2)
    with pytest.raises(UsageError, match="width 4 cannot be followed by one of width 3"):
        projector.then(Projector.from_directions(torch.ones(3)))
    with pytest.raises(UsageError, match="expected \\(classes, 4\\)"):
        projector.fold(torch.ones(4))
    with pytest.raises(UsageError, match="rtol"):
        Projector.from_directions(torch.ones(4), rtol=2.0)
