import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.errors import UsageError
from pour.metrics import LinearCKA, linear_cka


def oracle(x, y, *, center=True, debiased=False):
    """CKA straight from n x n matrices in numpy float64, each estimator by its definition."""
    x, y = (np.asarray(z, dtype=np.float64).reshape(len(z), -1) for z in (x, y))
    k, l = x @ x.T, y @ y.T  # noqa: E741
    n = len(k)
    if debiased:
        np.fill_diagonal(k, 0)
        np.fill_diagonal(l, 0)
        one = np.ones(n)

        def hsic(a, b):
            middle = (one @ a @ one) * (one @ b @ one) / ((n - 1) * (n - 2))
            return np.trace(a @ b) + middle - 2 / (n - 2) * (one @ a @ b @ one)
    else:
        h = np.eye(n) - 1 / n if center else np.eye(n)
        k, l = h @ k @ h, h @ l @ h  # noqa: E741

        def hsic(a, b):
            return (a * b).sum()

    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))


VARIANTS = [{"center": True}, {"center": False}, {"debiased": True}]


def related(n, dx, dy, *, mean=0.0, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dx, generator=g, dtype=torch.float64)
    y = x @ torch.randn(dx, dy, generator=g, dtype=torch.float64) / dx**0.5
    y = y + torch.randn(n, dy, generator=g, dtype=torch.float64)
    return (x + mean).to(dtype), (y - 2 * mean).to(dtype)


def stream(x, y, sizes, **options):
    metric = LinearCKA(**options)
    for a, b in zip(x.split(sizes), y.split(sizes), strict=True):
        metric.update(a, b)
    return metric.compute()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(200, 7, 7), (200, 3, 11), (30, 64, 50), (12, 5, 90), (4, 2, 2), (1100, 6, 4)])
def test_function_matches_the_gram_definition(shape, variant):
    x, y = related(*shape, mean=1.5)
    assert linear_cka(x, y, **variant).item() == pytest.approx(oracle(x, y, **variant), abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_accumulated_in_float64(dtype, variant):
    x, y = related(300, 8, 6, mean=2.0, dtype=dtype)
    expected = oracle(x.double(), y.double(), **variant)
    value = linear_cka(x, y, **variant)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(expected, abs=1e-12)
    assert stream(x, y, 77, **variant).item() == pytest.approx(expected, abs=1e-11)


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(5, 60),
    dx=st.integers(1, 12),
    dy=st.integers(1, 12),
    sizes=st.integers(1, 60),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 99),
)
def test_streaming_equals_the_gram_definition_for_any_split(n, dx, dy, sizes, variant, seed):
    x, y = related(n, dx, dy, mean=0.7, seed=seed)
    assert stream(x, y, sizes, **variant).item() == pytest.approx(oracle(x, y, **variant), abs=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_means_cost_few_digits(variant):
    x, y = related(400, 16, 9, mean=100.0)
    reference, _ = related(400, 16, 9)
    centred = (
        oracle(x - x.mean(0), y - y.mean(0), **variant) if variant.get("center", True) else oracle(x, y, center=False)
    )
    assert linear_cka(x, y, **variant).item() == pytest.approx(centred, abs=1e-11)
    # 1e-16 R^2 for the centred value and 1e-16 R^4 for the debiased one, R = 100 to 200 here.
    assert stream(x, y, 64, **variant).item() == pytest.approx(centred, abs=1e-6)
    assert stream(x, y, 64).item() == pytest.approx(linear_cka(x, y).item(), abs=1e-10)
    assert linear_cka(x, reference + 1e6).item() == pytest.approx(1.0, abs=1e-9)


def test_agrees_with_ckatorch():
    core = pytest.importorskip("ckatorch.core")
    x, y = related(150, 20, 12, mean=1.0)
    assert linear_cka(x, y).item() == pytest.approx(core.cka_base(x, y).item(), abs=1e-10)
    assert linear_cka(x, y, debiased=True).item() == pytest.approx(core.cka_base(x, y, unbiased=True).item(), abs=1e-10)
    assert linear_cka(x, y, debiased=True).item() == pytest.approx(core.cka_batch(x[None], y[None]).item(), abs=1e-10)


def test_uncentred_value_of_unrelated_features_with_a_large_mean_is_near_one():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.rand(1000, 64, generator=g) * 0.1 + 1 for _ in range(2))
    assert linear_cka(x, y, center=False) > 0.99
    assert linear_cka(x, y) < 0.2


@pytest.mark.parametrize(("n", "biased"), [(1000, 0.34), (500, 0.51), (100, 0.84)])
def test_debiased_value_removes_the_finite_sample_bias(n, biased):
    g = torch.Generator().manual_seed(1)
    x, y = (torch.randn(n, 512, generator=g) for _ in range(2))
    assert linear_cka(x, y).item() == pytest.approx(biased, abs=0.015)
    assert abs(linear_cka(x, y, debiased=True).item()) < 0.02


def test_three_variants_share_one_update_in_a_collection():
    # Imported after pour, which mends torchvision's import where its wheel does not match torch.
    from torchmetrics import MetricCollection

    x, y = related(90, 5, 4, mean=3.0)
    both = MetricCollection(
        {"plain": LinearCKA(), "printed": LinearCKA(center=False), "debiased": LinearCKA(debiased=True)}
    )
    for a, b in zip(x.split(40), y.split(40), strict=True):
        both.update(a, b)
    assert len(both.compute_groups) == 1
    values = both.compute()
    assert values["plain"].item() == pytest.approx(oracle(x, y), abs=1e-10)
    assert values["printed"].item() == pytest.approx(oracle(x, y, center=False), abs=1e-10)
    assert values["debiased"].item() == pytest.approx(oracle(x, y, debiased=True), abs=1e-10)


def test_state_does_not_grow_and_resets():
    x, y = related(3000, 6, 4)
    metric = LinearCKA(6, 4)
    size = sum(getattr(metric, name).numel() for name in metric._defaults)
    metric.update(x, y)
    assert sum(getattr(metric, name).numel() for name in metric._defaults) == size == 36 + 16 + 24 + 18 + 12 + 9
    metric.reset()
    metric.update(x[:50], y[:50])
    assert metric.compute().item() == pytest.approx(oracle(x[:50], y[:50]), abs=1e-10)


@pytest.mark.parametrize("sizes", [(), (6, 4)])
def test_forward_returns_the_batch_value_and_accumulates(sizes):
    x, y = related(60, 6, 4)
    metric = LinearCKA(*sizes)
    assert metric(x[:20], y[:20]).item() == pytest.approx(oracle(x[:20], y[:20]), abs=1e-10)
    assert metric(x[20:], y[20:]).item() == pytest.approx(oracle(x[20:], y[20:]), abs=1e-10)
    assert metric.compute().item() == pytest.approx(oracle(x, y), abs=1e-10)


def test_inputs_that_need_gradients_leave_no_graph():
    x, y = related(30, 6, 4)
    metric = LinearCKA()
    metric.update(x.requires_grad_(), y)
    assert not metric.compute().requires_grad
    assert not linear_cka(x, y).requires_grad


def test_feature_maps_are_flattened():
    x, y = related(20, 12, 8)
    assert torch.equal(linear_cka(x.view(20, 3, 2, 2), y), linear_cka(x, y))


matrices = st.tuples(st.integers(6, 40), st.integers(1, 10), st.integers(0, 10_000))


@settings(deadline=None, max_examples=25)
@given(shape=matrices, scale=st.floats(1e-3, 1e3))
def test_scaling_leaves_cka_at_one(shape, scale):
    n, d, seed = shape
    x, _ = related(n, d, d, mean=0.5, seed=seed)
    for variant in VARIANTS:
        assert linear_cka(x, scale * x, **variant).item() == pytest.approx(1, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(shape=matrices)
def test_rotation_and_equal_gram_matrices_leave_cka_at_one(shape):
    n, d, seed = shape
    x, _ = related(n, d, d, mean=0.5, seed=seed)
    g = torch.Generator().manual_seed(seed + 1)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
    embedding = torch.linalg.qr(torch.randn(d + 3, d, generator=g, dtype=torch.float64)).Q.T
    for variant in VARIANTS:
        assert linear_cka(x, x @ rotation, **variant).item() == pytest.approx(1, abs=1e-9)
        # More columns, the same products between samples.
        assert linear_cka(x, x @ embedding, **variant).item() == pytest.approx(1, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(shape=matrices, epsilon=st.floats(1e-4, 0.3))
def test_mild_anisotropic_distortion_moves_cka_little(shape, epsilon):
    n, d, seed = shape
    x, _ = related(n, d, d, seed=seed)
    g = torch.Generator().manual_seed(seed + 2)
    stretch = 1 + epsilon * torch.rand(d, generator=g, dtype=torch.float64)
    # X D^2 X^T = X X^T + X E X^T with 0 <= E <= e I, so the angle's sine is at most e and 1 - CKA at most e^2.
    e = (1 + epsilon) ** 2 - 1
    assert 1 - linear_cka(x, x * stretch, center=False).item() <= e**2 + 1e-12
    assert 1 - linear_cka(x, x * stretch).item() <= e**2 + 1e-12


@settings(deadline=None, max_examples=25)
@given(shape=matrices)
def test_l2_convergence_implies_cka_convergence(shape):
    n, d, seed = shape
    target, noise = related(n, d, d, seed=seed)
    target, noise = target - target.mean(0), noise - noise.mean(0)
    gram = target @ target.T
    last = 1.0
    for size in (1e-1, 1e-2, 1e-3, 1e-4):
        z = target + size * noise
        off = (torch.linalg.norm(z @ z.T - gram) / torch.linalg.norm(gram)).item()
        gap = 1 - linear_cka(z, target).item()
        assert gap <= off**2 + 1e-12
        last = gap
    assert last < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("level", [0.0, 0.1, 12345.678])
@pytest.mark.parametrize("n", [5, 100])
def test_constant_features_have_cka_zero(variant, level, n):
    if not variant.get("center", True) and level:
        pytest.skip("without centring a constant is a direction like any other")
    x, y = related(n, 4, 4)
    constant = torch.full((n, 4), level, dtype=torch.float64)
    for a, b in ((x, constant), (constant, y), (constant, constant)):
        assert linear_cka(a, b, **variant).item() == 0
        assert stream(a, b, 33, **variant).item() == 0


def test_one_sample_has_cka_zero_and_debiased_needs_four():
    x, y = related(3, 4, 4)
    assert linear_cka(x[:1], y[:1]).item() == 0
    for call in (lambda: linear_cka(x, y, debiased=True), lambda: stream(x, y, 2, debiased=True)):
        with pytest.raises(UsageError, match="at least 4 samples, got 3"):
            call()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("n", [3, 50])
def test_broken_features_are_refused(bad, n):
    x, y = related(n, 4, 4)
    x[-1, 2] = bad
    for a, b in ((x, y), (y, x)):
        with pytest.raises(UsageError, match="NaN, infinite"):
            linear_cka(a, b)
        with pytest.raises(UsageError, match="NaN, infinite"):
            stream(a, b, 10)
        with pytest.raises(UsageError, match="NaN, infinite"):
            linear_cka(a, b, center=False)


def test_wrong_use_says_what_is_wrong():
    x, y = related(10, 4, 3)
    with pytest.raises(UsageError, match="x has 9 rows and y has 10"):
        linear_cka(x[:9], y)
    with pytest.raises(UsageError, match=r"x must have shape \(n, d\)"):
        linear_cka(x[:, 0], y)
    with pytest.raises(UsageError, match="at least one row"):
        linear_cka(x[:0], y[:0])
    with pytest.raises(UsageError, match="floating-point"):
        linear_cka(x.long(), y)
    with pytest.raises(UsageError, match="must be a tensor"):
        linear_cka(x.numpy(), y)
    with pytest.raises(UsageError, match="centred by construction"):
        linear_cka(x, y, center=False, debiased=True)
    with pytest.raises(UsageError, match="centred by construction"):
        LinearCKA(center=False, debiased=True)
    with pytest.raises(UsageError, match="pass both, or neither"):
        LinearCKA(num_features_y=3)
    with pytest.raises(UsageError, match="LinearCKA is on cpu, the features on meta"):
        LinearCKA().update(x.to("meta"), y.to("meta"))
    metric = LinearCKA()
    metric.update(x, y)
    with pytest.raises(UsageError, match="x has 3 features, expected 4"):
        metric.update(y, y)
    with pytest.raises(UsageError, match="y has 4 features, expected 3"):
        metric.update(x, x)
    with pytest.warns(UserWarning, match="before the ``update``"), pytest.raises(UsageError, match="no samples"):
        LinearCKA().compute()
