"""Refuse to save a projected model of transformers with `save_pretrained`, whose file would lack the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pour.errors import UsageError
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ProjectedHead

if TYPE_CHECKING:
    from torch import nn

__all__ = ["guard_saving"]

_METHOD = "save_pretrained"


def guard_saving(model: nn.Module) -> None:
    """Make `save_pretrained` of projected parts of `model` raise an error. Restore it for other parts.

    `from_pretrained` does not know the names of a projected head, and would start a new head at random.
    """
    for module in model.modules():
        module.__dict__.pop(_METHOD, None)
        has_projector = any(isinstance(part, ProjectedHead | ProjectedEmbedding) for part in module.modules())
        if has_projector and hasattr(type(module), _METHOD):
            module.__dict__[_METHOD] = _refuse


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "from_pretrained would replace a projected head by a random one; write the model with pour.export(model, "
        "folder), or save pour.fold(model)."
    )
