"""Recognise by its outputs a module of any code that computes `W z + b` or `W z / |z|` (a cosine head)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import UninitializedParameter

from pour.errors import UsageError
from pour.models.modes import evaluating

__all__ = ["FormLayer", "LinearForm", "RowLayer", "form_of", "has_form", "is_affine", "linear_form"]

_PROBES = 5
_ROWS_AT_ONCE = 512
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class LinearForm:
    """The scores of a module as a linear map of its features, or of their direction."""

    rows: Tensor
    """W, C x d. If a cosine head also normalises its weight, the length of each row is its scale."""
    bias: Tensor | None
    """b of length C, or None for zeros. A cosine head has none."""
    is_cosine: bool
    """Whether the module normalises its features: `W z / |z|`."""

    def as_layer(self) -> FormLayer:
        """Return a layer that computes the same."""
        layer = FormLayer(self.rows.shape[1], len(self.rows), bias=self.bias is not None, is_cosine=self.is_cosine)
        layer.to(self.rows)
        with torch.no_grad():
            layer.weight.copy_(self.rows)
            if self.bias is not None:
                layer.bias.copy_(self.bias)
        return layer


class RowLayer(nn.Linear):
    """Base of layers with another `forward`, whose weight and bias are W and b of its linear form."""


class FormLayer(RowLayer):
    """Layer that computes `W z + b`, or `W z / |z|`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, is_cosine: bool) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.is_cosine = is_cosine

    def forward(self, input: Tensor) -> Tensor:
        """Compute the scores of features (..., d)."""
        return super().forward(F.normalize(input, dim=-1) if self.is_cosine else input)


def form_of(layer: nn.Module) -> LinearForm:
    """Return the linear form of a head. Raise UsageError if it has none.

    Examples:
        >>> form_of(nn.Conv2d(4, 3, 1)).rows.shape
        torch.Size([3, 4])
    """
    if isinstance(layer, nn.Linear | nn.Conv2d) and (isinstance(layer, RowLayer) or is_affine(layer)):
        bias = None if layer.bias is None else layer.bias.detach()
        return LinearForm(layer.weight.detach().flatten(1), bias, is_cosine=False)
    form = linear_form(layer)
    if form is None:
        problem = f"The head is a {type(layer).__name__} that computes neither W z + b nor cosines"
        raise UsageError(f"{problem}; replace it by nn.Linear, a 1x1 nn.Conv2d or a cosine head.")
    return form


def has_form(module: nn.Module) -> bool:
    """Return whether `module` computes scores of features by a linear map or by cosines."""
    # TorchScript modules accept no hooks.
    return not isinstance(module, torch.jit.ScriptModule) and linear_form(module) is not None


@torch.no_grad()
def is_affine(layer: nn.Linear | nn.Conv2d) -> bool:
    """Return whether `layer` computes `W z + b`, which a subclass such as a cosine classifier does not."""
    weight = layer.weight.flatten(1)
    if type(layer).forward in (nn.Linear.forward, nn.Conv2d.forward) or weight.is_meta:
        return True
    z = torch.linspace(-1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device).unsqueeze(0)
    scores: Tensor = layer(z if isinstance(layer, nn.Linear) else z[:, :, None, None])
    expected = F.linear(z, weight, layer.bias)
    # A GPU may round the features to the ten bits of TF32.
    tolerance = max(1e-3, 8 * torch.finfo(weight.dtype).eps)
    return torch.allclose(scores.flatten(1), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@torch.no_grad()
def linear_form(module: nn.Module) -> LinearForm | None:
    """Return the linear form of a module that computes scores of features (N, d), or None if it has none.

    The rows are the scores of the d unit vectors. The form is accepted if it predicts the scores of other features. The
    features are normalised before they are scored, so that the direction of a class is its normalised row.

    Examples:
        >>> class Cosine(nn.Linear):
        ...     def forward(self, z):
        ...         return 8 * F.linear(F.normalize(z), F.normalize(self.weight))
        >>> form = linear_form(Cosine(4, 3))
        >>> form.is_cosine, bool(torch.allclose(form.rows.norm(dim=1), torch.tensor(8.0)))
        (True, True)
    """
    matrix = _largest_matrix(module)
    if matrix is None:
        return None
    shapes = dict.fromkeys((tuple(matrix.shape), tuple(matrix.shape[::-1])))
    probed = (_tried(module, matrix, *shape) for shape in shapes if min(shape) > 1)
    return next((form for form in probed if form is not None), None)


def _largest_matrix(module: nn.Module) -> Tensor | None:
    """Return the parameter that could contain the rows: the only large one of the module."""
    parameters = list(module.parameters())
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        return None
    matrices = [parameter for parameter in parameters if parameter.ndim == 2 and parameter.is_floating_point()]
    matrix = max(matrices, key=torch.Tensor.numel, default=None)
    if matrix is None or matrix.is_meta:
        return None
    others = [parameter for parameter in parameters if parameter is not matrix]
    return matrix if all(parameter.numel() <= max(matrix.shape) for parameter in others) else None


def _tried(module: nn.Module, matrix: Tensor, classes: int, width: int) -> LinearForm | None:
    try:
        with evaluating(module), torch.inference_mode(mode=False):
            return _probed(module, matrix, classes, width)
    except Exception:  # The code of a module that is no head may raise anything for these inputs.
        return None


def _probed(module: nn.Module, matrix: Tensor, classes: int, width: int) -> LinearForm | None:
    """Return the form that follows from the outputs for unit vectors, if it predicts the outputs for other features."""

    def scores_of_rows(features: Tensor) -> Tensor:
        scores = module(features)
        if not isinstance(scores, Tensor) or scores.shape != (len(features), classes):
            raise TypeError("the module does not return one score per class")
        return scores

    # The features have numbers of different size and sign, and are the same in each call.
    few = torch.linspace(-1, 2, _PROBES * width, dtype=torch.float64).sin().view(width, _PROBES).T.contiguous()
    few = (few * 3.0 ** torch.arange(_PROBES).unsqueeze(1)).to(matrix)
    expected = scores_of_rows(few)
    forward, backward = [], []
    for places in torch.split(torch.arange(width, device=matrix.device), _ROWS_AT_ONCE):
        unit = F.one_hot(places, width).to(matrix.dtype)
        forward.append(scores_of_rows(unit))
        backward.append(scores_of_rows(-unit))
    rows = ((torch.cat(forward) - torch.cat(backward)) / 2).T.contiguous()
    bias = ((torch.cat(forward) + torch.cat(backward)) / 2).mean(dim=0)
    if _is_near(F.linear(few, rows, bias), expected):
        return LinearForm(rows, bias if bool(bias.any()) else None, is_cosine=False)
    # One number that is added to all scores changes no decision.
    is_one_number = _is_near(bias, bias.mean().expand_as(bias), scale=expected)
    is_cosine = is_one_number and _is_near(F.linear(F.normalize(few), rows, bias), expected)
    return LinearForm(rows, None, is_cosine=True) if is_cosine else None


def _is_near(values: Tensor, expected: Tensor, *, scale: Tensor | None = None) -> bool:
    largest = (expected if scale is None else scale).abs().max()
    tolerance = max(_TOLERANCE, 16 * torch.finfo(values.dtype).eps)
    return bool(torch.isfinite(values).all()) and bool(((values - expected).abs() <= tolerance * largest).all())
