"""Check on an input that the output of a layer is the class scores of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour.errors import UsageError, first_line
from pour.models.modes import evaluating
from pour.models.output import output_tensors, scores_of
from pour.models.projecting.projected_head import ProjectedHead, is_masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.utils.hooks import RemovableHandle

    from pour.models.head import Example, Head

__all__ = ["CannotRunError", "fits", "gives_scores", "returns_output", "run_on"]

_LEVELS = 4
_STEP = 0.25
# Largest difference between equal scores, as a share of the distance to the next score.
_TOLERANCE = 1e-3
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)


class CannotRunError(UsageError):
    """The model raised an error on the example."""

    def __init__(self, example: Example, reason: str) -> None:
        self.reason = reason
        shape = f" of shape {tuple(example.shape)}" if isinstance(example, Tensor) else ""
        super().__init__(f"The model cannot run on example={shape} ({reason}); give a small batch that it accepts.")


def run_on(model: nn.Module, example: Example, *, weights: Mapping[str, Tensor] | None = None) -> object:
    """Return what ``model`` returns for ``example``, in evaluation mode. Raise CannotRunError if the model fails.

    Args:
        model: Network, which is not changed.
        example: A tensor, positional arguments or keyword arguments.
        weights: Other values of some parameters, by name.
    """
    kwargs = example if isinstance(example, dict) else {}
    args = () if isinstance(example, dict) else example if isinstance(example, tuple) else (example,)
    try:
        # Tensors made in inference mode, which a model may keep, could not be trained on later.
        with evaluating(model), torch.inference_mode(mode=False), torch.no_grad():
            return torch.func.functional_call(model, dict(weights or {}), args, kwargs, tie_weights=False)
    except _ERRORS as error:
        if isinstance(error, UsageError):
            raise
        raise CannotRunError(example, first_line(error)) from error


def fits(head: Head, output: object) -> bool:
    """Return whether some tensor of a model's ``output`` has as many scores as ``head`` has classes."""
    return any(
        tensor.ndim > 1 and head.num_classes in (tensor.shape[1], tensor.shape[-1]) for tensor in output_tensors(output)
    )


def gives_scores(model: nn.Module, head: Head, example: Example, *, anywhere: bool = False) -> bool:
    """Return whether the scores of ``model`` are the output of ``head``.

    The output of the layer is replaced by chosen scores. A head makes the model return these scores, or an increasing
    function of each (softmax, log-softmax, a temperature), the same for all classes, images and positions. Averages
    over positions and the enlarging of a map do not change scores that are equal at all positions.

    If the model uses the weight of the layer without calling it, the weight is exchanged instead.

    Args:
        model: The network, without compiling or parallel wrappers.
        head: The layer, and its place in ``model``.
        example: An input that the model accepts.
        anywhere: Compare with every tensor that the model returns, not only with its scores.

    Raises:
        CannotRunError: The model fails on the example.

    Example:
        >>> from pour.models.head import Head
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Softmax(dim=1))
        >>> [gives_scores(model, Head(name, model.get_submodule(name)), torch.rand(2, 4)) for name in ("0", "1")]
        [False, True]
    """
    if head.num_classes < 2:
        return False
    orders = _orders(head.num_classes)
    tables: list[list[Tensor]] = []
    for order in orders:
        calls: list[torch.Size] = []
        try:
            # Negative scores, so that an activation such as ReLU behind the layer is noticed.
            with _replaced(head, -_STEP * (1 + order % _LEVELS), calls):
                output = run_on(model, example)
        except CannotRunError:
            # If the model runs with the layer's own output, it does more with this output than to return it.
            run_on(model, example)
            return False
        if not calls:
            return _weight_gives_scores(model, head, example, anywhere=anywhere)
        tables.append(_tables(head, output, calls[-1], anywhere=anywhere))
    return any(_follow(pair, orders) for pair in zip(*tables, strict=False))


def _orders(count: int) -> list[Tensor]:
    """Return two orders of the classes. Classes of one level in the first have other levels in the second."""
    first = torch.arange(count)
    second = torch.empty_like(first)
    second[torch.argsort(first % _LEVELS, stable=True, descending=True)] = first
    return [first, second]


def _replaced(head: Head, scores: Tensor, calls: list[torch.Size]) -> RemovableHandle:
    """Replace the output of the layer by ``scores`` at all positions. Append its shape at each call to ``calls``."""

    def replace(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return None
        calls.append(output.shape)
        shape = [1] * output.ndim
        shape[_class_dim(head, output.shape)] = len(scores)
        return scores.to(output).view(shape).expand(output.shape).contiguous()

    return head.module.register_forward_hook(replace)


def _class_dim(head: Head, shape: torch.Size) -> int:
    """Return the dimension of the layer's output that holds the classes; a convolution may get a single image."""
    return len(shape) - (1 if head.dim == -1 else 3)


def _tables(head: Head, output: object, shape: torch.Size, *, anywhere: bool) -> list[Tensor]:
    """Return the model's scores as tables (rows, C), one for each dimension that may hold the classes."""
    tensors = output_tensors(output)
    if tensors and not anywhere:
        tensors = [scores_of(output, num_classes=head.num_classes)]
    tables = []
    for scores in tensors:
        dims = [dim for dim in (1, -1) if scores.ndim > 1 and scores.shape[dim] == head.num_classes]
        if not dims and scores.numel() == shape.numel():
            scores, dims = scores.reshape(shape), [_class_dim(head, shape)]
        tables += [scores.movedim(dim, -1).reshape(-1, head.num_classes) for dim in dims]
    return tables


def _follow(tables: tuple[Tensor, ...], orders: list[Tensor]) -> bool:
    """Return whether all scores of one level are equal, and higher than those of the level below."""
    if not all(table.is_floating_point() and table.numel() and torch.isfinite(table).all() for table in tables):
        return False
    columns = [torch.argsort(order % _LEVELS).to(tables[0].device) for order in orders]
    by_level = [table[:, column] for table, column in zip(tables, columns, strict=True)]
    levels = torch.split(torch.cat(by_level), torch.bincount(orders[0] % _LEVELS).tolist(), dim=1)
    lowest, highest = torch.tensor([[float(x.min()), float(x.max())] for x in levels], dtype=torch.float64).T
    # Level 0 has the highest scores.
    gap = float((lowest[:-1] - highest[1:]).min())
    return gap > 0 and float((highest - lowest).max()) <= _tolerance(tables[0].dtype) * gap


def _tolerance(dtype: torch.dtype) -> float:
    return max(_TOLERANCE, 16 * torch.finfo(dtype).eps)


def _weight_gives_scores(model: nn.Module, head: Head, example: Example, *, anywhere: bool) -> bool:
    """Return whether the scores change with the weight of a layer that is not called.

    Another order of the rows must give the scores in that order, and twice the weight must change them. The latter
    excludes layers whose weight is normalised. The rows of a projected head, whose mask stays in place, keep their
    order.
    """
    output = run_on(model, example)
    if not fits(head, output):
        return False
    parameters = dict(head.layer.named_parameters(recurse=False))
    if "weight" not in parameters:
        # The weight is computed, as by weight norm: only its shape can be checked.
        return True
    compared = torch.ones_like(head.weight[:, 0], dtype=torch.bool) if head.bias is None else ~is_masked(head.bias)
    prefix = f"{head.name}." if head.name else ""
    rows = [name for name in ("weight", "bias") if name in parameters]
    flipped = {f"{prefix}{name}": parameters[name].detach().flip(0) for name in rows}
    if isinstance(head.module, ProjectedHead):
        compared[list(head.module.forgotten)] = False
        prefix, flipped = f"{prefix}head.", {}
    twice = {f"{prefix}weight": 2 * parameters["weight"].detach()}
    outputs = [output, run_on(model, example, weights=twice), run_on(model, example, weights=flipped)]
    tables = [_tables(head, each, torch.Size((0,)), anywhere=anywhere) for each in outputs]
    for scores, larger, reversed_scores in zip(*tables, strict=False):
        is_equivariant = not flipped or _near(reversed_scores.flip(1)[:, compared], scores[:, compared])
        if is_equivariant and not _near(larger[:, compared], scores[:, compared]):
            return True
    return False


def returns_output(model: nn.Module, head: Head, example: Example) -> bool:
    """Return whether the model returns the output of ``head`` without a change, except of its shape."""
    calls: list[Tensor] = []
    with head.module.register_forward_hook(lambda module, inputs, output: calls.extend(output_tensors(output))):
        results = output_tensors(run_on(model, example))
    return any(_equal(call, result) for call in calls for result in results)


def _equal(output: Tensor, result: Tensor) -> bool:
    return output.dtype == result.dtype and torch.equal(output.flatten(), result.flatten())


def _near(values: Tensor, expected: Tensor) -> bool:
    if values.shape != expected.shape or not values.numel():
        return False
    return bool(((values - expected).abs() <= _tolerance(values.dtype) * expected.abs().max()).all())
