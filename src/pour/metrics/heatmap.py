"""CKA between every layer of one model and every layer of another."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import as_rows, same_rows, to_float64
from pour.metrics.cka import check_options, gram, gram_cka, gram_hsic, linear_cka

__all__ = ["cka_heatmap"]

Layers = Mapping[str, Tensor] | Sequence[Tensor]


def cka_heatmap(layers_a: Layers, layers_b: Layers, *, center: bool = True, debiased: bool = False) -> Tensor:
    """Return the matrix of linear CKA between the layers of two models on the same samples.

    If there are few samples compared with the layers' widths, as usual, the n x n products of each layer are computed
    once for its whole row or column. Otherwise the products of features are computed for each pair of layers.

    Args:
        layers_a: Features of each layer of one model, each (n, ...), in order or by name.
        layers_b: Features of each layer of the other model, on the same samples in the same order.
        center: Centre the columns, see `linear_cka`.
        debiased: Use the unbiased estimator, see `linear_cka`.

    Returns:
        A float64 matrix, (number of layers of a, number of layers of b).

    Examples:
        >>> first, second = torch.eye(5), torch.eye(5).cumsum(0)
        >>> cka_heatmap({"stem": first, "block": second}, [first]).shape
        torch.Size([2, 1])
    """
    check_options(center, debiased)
    a, b = _rows(layers_a, "layers_a"), _rows(layers_b, "layers_b")
    for name, layer in (*a.items(), *b.items()):
        same_rows(next(iter(a.values())), layer, (next(iter(a)), name))
    n = len(next(iter(a.values())))
    widths_a, widths_b = [x.shape[1] for x in a.values()], [y.shape[1] for y in b.values()]
    across_samples = n * (sum(widths_a) + sum(widths_b) + len(a) * len(b))
    across_features = sum(p * p + q * q + p * q for p in widths_a for q in widths_b)
    if across_features < across_samples:
        pairs = [linear_cka(x, y, center=center, debiased=debiased) for x in a.values() for y in b.values()]
        return torch.stack(pairs).view(len(a), len(b))

    with torch.no_grad():
        grams = [_gram(x, center) for x in a.values()]
        selves = [gram_hsic(k, k, debiased) for k in grams]
        columns = []
        for y in b.values():
            other = _gram(y, center)
            hsic = gram_hsic(other, other, debiased)
            columns.append([gram_cka(k, other, s, hsic, debiased) for k, s in zip(grams, selves, strict=True)])
    return torch.stack([torch.stack(column) for column in columns], dim=1)


def _gram(layer: Tensor, center: bool) -> Tensor:
    return gram(layer, to_float64(layer[:1]) if center else None)


def _rows(layers: Layers, name: str) -> dict[str, Tensor]:
    named = layers if isinstance(layers, Mapping) else {str(i): layer for i, layer in enumerate(layers)}
    if not named:
        raise UsageError(f"{name} is empty: pass the features of at least one layer.")
    return {f"{name}[{key}]": as_rows(layer, f"{name}[{key}]") for key, layer in named.items()}
