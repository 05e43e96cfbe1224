import pytest
import torch

from pour.errors import UsageError
from pour.metrics import cka_heatmap, linear_cka


def layers(n, widths, seed):
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(n, 8, generator=g)
    return {
        f"layer{i}": base @ torch.randn(8, w, generator=g) + torch.randn(n, w, generator=g) + i
        for i, w in enumerate(widths)
    }


@pytest.mark.parametrize("variant", [{}, {"center": False}, {"debiased": True}])
@pytest.mark.parametrize(("n", "widths"), [(25, (40, 64, 33)), (400, (5, 9, 3))])
def test_entries_are_the_layers_cka(n, widths, variant):
    a, b = layers(n, widths, 0), layers(n, widths[:2], 1)
    matrix = cka_heatmap(a, b, **variant)
    assert matrix.shape == (3, 2)
    for i, x in enumerate(a.values()):
        for j, y in enumerate(b.values()):
            assert matrix[i, j].item() == pytest.approx(linear_cka(x, y, **variant).item(), abs=1e-11)


def test_sequences_feature_maps_and_constant_layers():
    maps = [torch.randn(10, 3, 4, 4), torch.ones(10, 6)]
    matrix = cka_heatmap(maps, maps)
    assert torch.allclose(matrix, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))


def test_wrong_use_names_the_layer():
    good = torch.randn(10, 4)
    with pytest.raises(UsageError, match=r"layers_b\[deep\] has 9"):
        cka_heatmap({"stem": good}, {"deep": good[:9]})
    with pytest.raises(UsageError, match="layers_a is empty"):
        cka_heatmap([], [good])
    with pytest.raises(UsageError, match="NaN"):
        cka_heatmap([good * float("nan")], [good])
    with pytest.raises(UsageError, match="centred by construction"):
        cka_heatmap([good], [good], center=False, debiased=True)
