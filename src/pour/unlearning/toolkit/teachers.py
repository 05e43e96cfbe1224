"""Teachers: frozen networks that a method compares its student with, and parts of the student that do not train."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.card import card_of
from pour.models.copy_and_swap import copy_model
from pour.models.head import find_head, named_head
from pour.models.projecting.projected_head import ProjectedHead, is_masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["divergence", "fresh_model", "frozen_copy", "frozen_head", "unmasked", "without_dropout"]


def frozen_copy(model: nn.Module, run: Run) -> nn.Module:
    """Return a copy in evaluation mode, on the run's device, whose weights do not train."""
    return copy_model(model).to(run.torch_device).eval().requires_grad_(False)


@contextlib.contextmanager
def _changed(attributes: Iterable[tuple[Tensor | nn.Module, str]], value: Any) -> Iterator[None]:
    """Set these attributes of parameters or modules to `value` while the block runs."""
    before = [(owner, name, getattr(owner, name)) for owner, name in attributes]
    for owner, name, _ in before:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


def frozen_head(model: nn.Module) -> AbstractContextManager[None]:
    """Keep the parameters of the head from training while the block runs."""
    return _changed([(parameter, "requires_grad") for parameter in find_head(model).module.parameters()], False)


def without_dropout(model: nn.Module) -> AbstractContextManager[None]:
    """Disable dropout while the block runs, because a student that must match features cannot match noise.

    This includes dropout inside of attention and recurrent layers, and whole branches (the DropPath of timm and
    transformers, the StochasticDepth of torchvision).
    """
    dropping = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)
    shares = [
        (module, name)
        for module in model.modules()
        if isinstance(module, dropping) or _drops_branches(module)
        for name in ("p", "drop_prob", "dropout")
        if isinstance(getattr(module, name, None), float | int)
    ]
    return _changed(shares, 0.0)


def _drops_branches(module: nn.Module) -> bool:
    return any(kind in type(module).__name__ for kind in ("DropPath", "StochasticDepth"))


def fresh_model(model: nn.Module, request: Granted, run: Run) -> nn.Module:
    """Return a freshly initialised network of the request, drawn with the run's seed alone.

    Raises:
        UsageError: The network has another number of scores than `model`.
    """
    with run.seeded():
        fresh = request.build()
    built, expected = named_head(fresh, card_of(model).head).num_classes, find_head(model).num_classes
    if built != expected:
        raise UsageError(
            f"build= made a model with {built} scores, but the model has {expected}; build one with as many."
        )
    return fresh


def unmasked(model: nn.Module, run: Run) -> Callable[[Tensor], Tensor]:
    """Return a function that leaves out the scores (n, C, ...) of masked classes.

    A masked class has the score -1e15. Next to it, a product or a divergence of the other scores is lost in rounding.
    """
    head = find_head(model)
    masked: set[int] = set()
    if isinstance(head.module, ProjectedHead) and head.module.forgotten_logit == "mask":
        masked.update(head.module.forgotten)
    if head.bias is not None:
        masked.update(is_masked(head.bias).nonzero().flatten().tolist())
    if not masked:
        return lambda scores: scores
    others = torch.tensor([label for label in range(head.num_classes) if label not in masked], device=run.torch_device)
    return lambda scores: scores.index_select(1, others)


def divergence(teacher: Tensor, student: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)), averaged over the batch, of scores (n, C, ...).

    Examples:
        >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]])).item()
        0.4337...
    """
    target = F.log_softmax(teacher.float() / temperature, dim=1)
    answer = F.log_softmax(student.float() / temperature, dim=1)
    return F.kl_div(answer, target, reduction="batchmean", log_target=True) * temperature**2
