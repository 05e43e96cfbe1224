"""Check on an input that the output of a layer is the class scores of a model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour.errors import UsageError, first_line
from pour.models.input_advice import input_advice
from pour.models.modes import evaluating
from pour.models.output import output_tensors, scores_of
from pour.models.projecting.projected_head import ProjectedHead, is_head_layer, is_masked

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from pour.models.head import Example, Head

__all__ = ["CannotRunError", "fits", "gives_scores", "mask_holds", "modules_behind", "returns_output", "run_on"]

_LEVELS = 4
_STEP = 0.25
# Largest difference between equal scores, as a share of the distance between two levels.
_TOLERANCE = 1e-4
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)


class CannotRunError(UsageError):
    """The model raised an error on the example."""

    def __init__(self, example: Example, reason: str, advice: str | None = None) -> None:
        self.reason, self.advice = reason, advice
        shape = f" of shape {tuple(example.shape)}" if isinstance(example, Tensor) else ""
        problem = f" ({reason}); pass a small batch that it accepts." if advice is None else f": {advice}."
        super().__init__(f"The model cannot run on example={shape}{problem}")


def run_on(model: nn.Module, example: Example, *, weights: Mapping[str, Tensor] | None = None) -> object:
    """Return the output of `model` for `example`, in evaluation mode. Raise CannotRunError if the model fails.

    Args:
        model: Network, which is not changed.
        example: A tensor, positional arguments or keyword arguments.
        weights: Other values of some parameters, by name.
    """
    if isinstance(example, Tensor) and not example.numel():
        raise UsageError("example= has no images; pass a small batch.")
    kwargs = dict(example) if isinstance(example, Mapping) else {}
    args = () if isinstance(example, Mapping) else tuple(example) if isinstance(example, tuple | list) else (example,)
    try:
        # Inference mode is off: a model may store tensors of this run, and later training must be able to use them.
        with evaluating(model), torch.inference_mode(mode=False), torch.no_grad():
            return torch.func.functional_call(model, dict(weights or {}), args, kwargs, tie_weights=False)
    except _ERRORS as error:
        if isinstance(error, UsageError):
            raise
        advice = input_advice(model, example) if isinstance(example, Tensor) else None
        if len(args) == 2 and isinstance(args[1], Tensor) and not args[1].is_floating_point() and args[1].ndim < 2:
            advice = "it contains images and labels, so pass the images alone"
        raise CannotRunError(example, first_line(error), advice) from error


def fits(head: Head, output: object) -> bool:
    """Return whether some tensor of a model's `output` has as many scores as `head` has classes."""
    return any(
        tensor.ndim > 1 and head.num_classes in (tensor.shape[1], tensor.shape[-1]) for tensor in output_tensors(output)
    )


def gives_scores(model: nn.Module, head: Head, example: Example, *, anywhere: bool = False) -> bool:
    """Return whether the scores of `model` are the output of `head`.

    The output of the layer is replaced by chosen scores. If the layer is the head, the model returns these scores or
    an increasing function of each score (softmax, log-softmax, a temperature), the same for all classes, images and
    positions. The chosen scores are equal at all positions, so averages over positions and the enlarging of a map do
    not change them.

    If the model uses the weight of the layer without calling the layer, the weight is replaced instead.

    Args:
        model: The network, without compiling or parallel wrappers.
        head: The layer, and its place in `model`.
        example: An input that the model accepts.
        anywhere: Compare with every tensor that the model returns, not only with its scores.

    Raises:
        CannotRunError: The model fails on the example.

    Examples:
        >>> from pour.models.head import Head
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Softmax(dim=1))
        >>> [gives_scores(model, Head(name, model.get_submodule(name)), torch.rand(2, 4)) for name in ("0", "1")]
        [False, True]
    """
    if head.num_classes < 2:
        return False
    orders = _orders(head.num_classes)
    tables: list[list[Tensor]] = []
    outputs: list[list[Tensor]] = []
    for order in orders:
        try:
            output, shapes = _run_replaced(model, head, example, [order] * len(head.each))
        except CannotRunError:
            # If the model runs with the layer's real output alone, it computes something from this output.
            run_on(model, example)
            return False
        if not all(shapes):
            return not head.further_heads and _weight_gives_scores(model, head, example, anywhere=anywhere)
        tables.append(_tables(head, output, shapes[-1][-1], anywhere=anywhere))
        outputs.append(output_tensors(output))
    if not all(_is_separate(head, pair, orders) for pair in zip(*outputs, strict=False)):
        return False
    if not any(_follow(pair, orders) for pair in zip(*tables, strict=False)):
        return False
    # Each of several heads must contribute to the scores.
    for index in range(len(head.each)) if head.further_heads else ():
        others = [orders[int(index == place)] for place in range(len(head.each))]
        output, shapes = _run_replaced(model, head, example, others)
        pairs = zip(_tables(head, output, shapes[-1][-1], anywhere=anywhere), tables[0], strict=False)
        if any(_near(changed, unchanged) for changed, unchanged in pairs):
            return False
    return not head.further_heads or _are_independent(model, head, example, orders)


def _are_independent(model: nn.Module, head: Head, example: Example, orders: list[Tensor]) -> bool:
    """Return whether no head's features depend on the scores of another head."""
    inputs: list[list[Tensor]] = []
    for order in orders:
        inputs.append([])
        with contextlib.ExitStack() as hooks:
            for each in head.each:
                keep = inputs[-1].append
                hooks.enter_context(each.module.register_forward_pre_hook(lambda _, args, keep=keep: keep(args[0])))
            _run_replaced(model, head, example, [order] * len(head.each))
    return all(torch.equal(first, second) for first, second in zip(*inputs, strict=True))


def _run_replaced(
    model: nn.Module, head: Head, example: Example, orders: list[Tensor]
) -> tuple[object, list[list[torch.Size]]]:
    """Return the output with each head's scores replaced by levels, and the shapes of each head's outputs."""
    shapes: list[list[torch.Size]] = [[] for _ in head.each]
    with contextlib.ExitStack() as hooks:
        for each, order, calls in zip(head.each, orders, shapes, strict=True):
            # The scores are negative, so that an activation such as ReLU behind the layer changes them.
            hooks.enter_context(_replaced(each, -_STEP * (1 + order % _LEVELS), calls))
        return run_on(model, example), shapes


def _is_separate(head: Head, pair: tuple[Tensor, ...], orders: list[Tensor]) -> bool:
    """Return whether an output is independent of the layer's output, or consists of the layer's scores or decisions.

    A model may return an embedding and scores that are computed from it. The layer of the embedding is then no head.
    """
    first, second = pair
    if first.ndim < 2 or not first.is_floating_point() or (first.shape == second.shape and torch.equal(first, second)):
        return True
    tables = [_tables(head, tensor, torch.Size((0,)), anywhere=True) for tensor in pair]
    return any(_follow(each, orders) for each in zip(*tables, strict=False))


def _orders(count: int) -> list[Tensor]:
    """Return two orders of the classes. Classes with the same level in the first have other levels in the second."""
    first = torch.arange(count)
    second = torch.empty_like(first)
    second[torch.argsort(first % _LEVELS, stable=True, descending=True)] = first
    return [first, second]


def _replaced(head: Head, scores: Tensor, calls: list[torch.Size]) -> RemovableHandle:
    """Replace the output of the layer by `scores` at all positions. Append its shape at each call to `calls`."""

    def replace(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return None
        calls.append(output.shape)
        shape = [1] * output.ndim
        shape[_class_dim(head, output.shape)] = len(scores)
        return scores.to(output).view(shape).expand(output.shape).contiguous()

    return head.module.register_forward_hook(replace)


def _class_dim(head: Head, shape: torch.Size) -> int:
    """Return the dimension of the classes in the layer's output. A convolution may get an image without batch."""
    return len(shape) - (1 if head.dim == -1 else 3)


def _tables(head: Head, output: object, shape: torch.Size, *, anywhere: bool) -> list[Tensor]:
    """Return the model's scores as tables (rows, C), one for each dimension that may contain the classes."""
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
    """Return whether the scores are linear in the weight of a layer that is not called.

    Three conditions are checked:

    1. If the rows have another order, the scores have the same order.
    2. If the weight is doubled, the scores change.
    3. If one vector is added to all rows, all scores of a position shift alike.

    This excludes normalised weights and distances. The first condition is not checked for a projected head, because its
    mask does not move with the rows.
    """
    output = run_on(model, example)
    parameters = dict(head.layer.named_parameters(recurse=False)) if is_head_layer(head.layer) else {}
    if not fits(head, output) or "weight" not in parameters:
        return False
    compared = torch.ones_like(head.weight[:, 0], dtype=torch.bool) if head.bias is None else ~is_masked(head.bias)
    prefix = f"{head.name}." if head.name else ""
    rows = [name for name in ("weight", "bias") if name in parameters]
    flipped = {f"{prefix}{name}": parameters[name].detach().flip(0) for name in rows}
    if isinstance(head.module, ProjectedHead):
        compared[list(head.module.forgotten)] = False
        prefix, flipped = f"{prefix}head.", {}
    weight = parameters["weight"].detach()
    # The vector must differ from the rows in size and direction.
    shift = weight.roll(1, dims=1).mean(dim=0) + weight.abs().mean()
    weights = [{}, {f"{prefix}weight": 2 * weight}, {f"{prefix}weight": weight + shift}, flipped]
    outputs = [run_on(model, example, weights=each) for each in weights]
    tables = [_tables(head, each, torch.Size((0,)), anywhere=anywhere) for each in outputs]
    for scores, *changed in zip(*tables, strict=False):
        larger, shifted, reversed_scores = (table[:, compared] for table in (*changed[:2], changed[2].flip(1)))
        before = scores[:, compared]
        moved = shifted - before
        is_equivariant = not flipped or _near(reversed_scores, before)
        is_shifted = _near(moved + before.abs().max(), moved[:, :1].expand_as(moved) + before.abs().max())
        if is_equivariant and is_shifted and not _near(larger, before):
            return True
    return False


def returns_output(model: nn.Module, head: Head, example: Example) -> bool:
    """Return whether the model returns the output of `head` without a change, except of its shape."""
    calls: list[Tensor] = []
    with head.module.register_forward_hook(lambda module, inputs, output: calls.extend(output_tensors(output))):
        results = output_tensors(run_on(model, example))
    return any(_equal(call, result) for call in calls for result in results)


def modules_behind(model: nn.Module, head: Head, example: Example) -> list[str]:
    """Return the names of the modules without children that run after `head`."""
    names: list[str] = []
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if module is head.module or not any(module.children()):
                hooks.enter_context(module.register_forward_hook(lambda *_, name=name: names.append(name)))
        run_on(model, example)
    return names[names.index(head.name) + 1 :] if head.name in names else []


def mask_holds(model: nn.Module, head: Head, example: Example) -> bool:
    """Return whether no forgotten class of a masked head is predicted, for its own scores and for negative scores.

    An activation behind the head, or retained scores below the mask, would leave the mask without effect.

    Args:
        model: Network with a projector in front of its head.
        head: This head.
        example: An input that the model accepts.
    """
    heads = [each for each in head.each if isinstance(each.module, ProjectedHead)]
    projected = heads[0].module if heads else None
    if not isinstance(projected, ProjectedHead) or projected.forgotten_logit != "mask" or not projected.forgotten:
        return True
    forgotten = projected.forgotten_mask.flatten()
    negative = -_STEP * (1 + torch.arange(head.num_classes) % _LEVELS)
    calls: list[torch.Size] = []
    outputs = [run_on(model, example)]
    with contextlib.ExitStack() as hooks:
        for each in heads:
            hooks.enter_context(_replaced(dataclasses.replace(each, module=each.layer), negative, calls))
        outputs.append(run_on(model, example))
    shape = calls[-1] if calls else torch.Size((0,))
    # If two dimensions have the number of classes, either may be the dimension of the classes.
    tables = [_tables(head, output, shape, anywhere=False) for output in outputs]
    if not all(any(_excludes(table, forgotten) for table in candidates) for candidates in tables):
        return False
    return not calls or any(_keeps_levels(table[:, ~forgotten], negative[~forgotten.cpu()]) for table in tables[1])


def _excludes(scores: Tensor, forgotten: Tensor) -> bool:
    """Return whether the probabilities of the forgotten classes are exactly 0, and others are higher.

    Args:
        scores: (rows, C), or probabilities.
        forgotten: Which classes are forgotten, (C,).
    """
    highest, retained = scores[:, forgotten].amax(dim=1), scores[:, ~forgotten].amax(dim=1)
    is_probability = bool((scores >= 0).all()) and bool((scores <= 1).all())
    zero = highest if is_probability else scores.softmax(dim=1)[:, forgotten].amax(dim=1)
    return bool((highest < retained).all()) and not bool(zero.any())


def _keeps_levels(scores: Tensor, levels: Tensor) -> bool:
    """Return whether classes of a higher level have higher scores, in all rows."""
    parts = [scores[:, levels == level] for level in sorted({*levels.tolist()})]
    lowest, highest = (torch.stack([getattr(part, limit)(dim=1) for part in parts]) for limit in ("amin", "amax"))
    return bool((lowest[1:] > highest[:-1]).all())


def _equal(output: Tensor, result: Tensor) -> bool:
    return output.dtype == result.dtype and torch.equal(output.flatten(), result.flatten())


def _near(values: Tensor, expected: Tensor) -> bool:
    if values.shape != expected.shape or not values.numel():
        return False
    return bool(((values - expected).abs() <= _tolerance(values.dtype) * expected.abs().max()).all())
