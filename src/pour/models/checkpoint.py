"""Save models to safetensors files and load them. The metadata contains the header, see `pour.models.header`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pour._io import atomic_path, refuse_to_overwrite
from pour._version import __version__
from pour.errors import UsageError
from pour.models import card as cards
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.header import Header, Projection, read_header, write_file
from pour.models.history import history
from pour.models.networks.normalize import is_wrapped
from pour.models.networks.registry import load_plain, rebuild
from pour.models.projecting.project import Projected, projected_layers
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ProjectedHead, projector_of_state
from pour.models.state import TORCH_SUFFIXES, checked_state, digest, is_torch_file, load_into, read_state_dict
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["check_ending", "load", "save"]


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    class_names: Sequence[str] | None = None,
) -> Path:
    """Write `model` to a safetensors file with its history, classes and architecture. Return the path.

    If writing fails, no new file exists and an existing file is unchanged. `load` needs the model if its card has no
    architecture, see `pour.models.set_architecture`.

    Args:
        model: Any model, projected or not.
        path: File to write, usually `*.safetensors`.
        overwrite: Replace an existing file.
        class_names: Names of the classes, if the model's card has none.

    Raises:
        UsageError: The file exists, or its name has the ending of a PyTorch file.
        PourError: The file cannot be written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(nn.Linear(4, 3), f"{folder}/m.safetensors")
        ...     load(path, nn.Linear(4, 3))
        Linear(in_features=4, out_features=3, bias=True)
    """
    target = Path(path)
    check_ending(target)
    refuse_to_overwrite(target, overwrite=overwrite)
    model = unwrap(model)
    state = checked_state(model)
    stored, aliases = _without_ties(state)
    names = cards.class_names(model) if class_names is None else cards.checked_names(class_names)
    header = Header(
        architecture=cards.architecture(model),
        class_names=names,
        # Without wall-clock times, the same command writes the same bytes.
        history=tuple(dataclasses.replace(entry, seconds=0.0) for entry in history(model)),
        projections=tuple(
            Projection(
                head=name,
                rank=module.projector.rank,
                forgotten=module.forgotten if isinstance(module, ProjectedHead) else (),
                logit=module.forgotten_logit if isinstance(module, ProjectedHead) else "keep",
                behind=isinstance(module, ProjectedEmbedding),
            )
            for name, module in projected_layers(model).items()
        ),
        aliases=aliases,
        digest=digest(state),
        pour_version=__version__,
        head=cards.card_of(model).head,
        training=cards.card_of(model).training,
    )
    with atomic_path(target) as temporary:
        write_file(temporary, stored, header)
    return target


def check_ending(path: Path) -> None:
    """Raise UsageError if `path` has the ending of a PyTorch file, which other programs would unpickle."""
    if path.suffix.lower() in TORCH_SUFFIXES:
        problem = f"Models are written as safetensors, not as {path.suffix}"
        raise UsageError(f"{problem}; call the file {path.with_suffix('.safetensors').name}.")


def load(
    path: str | os.PathLike[str], model: nn.Module | None = None, *, device: str | torch.device | None = None
) -> nn.Module:
    """Return the model in a file, in evaluation mode.

    A file from `save` contains architecture, class names, history and projector, and its digest is checked.
    Plain weights (other safetensors, or a `.pt`/`.pth` state dict of plain tensors) need `model`.

    Args:
        path: File to read.
        model: Model of the same architecture, which is copied and not changed. Needed if the file names no
            architecture. For a file of a `NormalizedModel` it may be the network inside. The result then takes
            normalised images.
        device: Device of the result; by default the device of `model`, otherwise the CPU.

    Raises:
        UsageError: The file is missing, cut short, altered, not plain tensors, or for another architecture.
    """
    source = Path(path)
    state = read_state_dict(source)
    header = None if is_torch_file(source) else read_header(source)
    if model is not None:
        result = copy_model(unwrap(model))
    elif header is not None and header.architecture is not None:
        result = rebuild(header.architecture)
    else:
        raise UsageError(f"{source} contains no name of an architecture; pass a model of the same architecture.")
    if header is None:
        load_plain(result, state, source=str(source))
    else:
        state.update({name: state[stored] for name, stored in header.aliases.items() if stored in state})
        if digest(state) != header.digest:
            raise UsageError(f"{source} was altered after it was saved: its weights do not match its digest.")
        if is_wrapped(state) and not is_wrapped(result.state_dict()):
            header, state = _unwrapped(header, state)
        result = _with_projectors(result, header, state, str(source))
        load_into(result, state, source=str(source))
        cards.change_card(
            result,
            history=header.history,
            class_names=header.class_names,
            architecture=header.architecture,
            head=header.head or cards.card_of(result).head,
            training=header.training,
        )
    return result.to(device).eval() if device is not None else result.eval()


def _unwrapped(header: Header, state: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
    """Return header and state of the network inside a `NormalizedModel`."""
    inside = "model."
    projections = tuple(
        dataclasses.replace(entry, head=entry.head.removeprefix(inside)) for entry in header.projections
    )
    names = [] if header.head is None else header.head.split(",")
    head = ",".join(name.removeprefix(inside) for name in names) if names else None
    inner_state = {name.removeprefix(inside): tensor for name, tensor in state.items() if name.startswith(inside)}
    return dataclasses.replace(header, architecture=None, projections=projections, head=head), inner_state


def _without_ties(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the distinct tensors of a state dict, and for each tied tensor the name of the stored tensor."""
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if storage.data_ptr() and tensor.numel() and key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        whole = storage.nbytes() == tensor.numel() * tensor.element_size() and tensor.is_contiguous()
        stored[name] = tensor.detach() if whole else tensor.detach().clone(memory_format=torch.contiguous_format)
    return stored, aliases


def _with_projectors(model: nn.Module, header: Header, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """Replace the projectors of `model` by the projectors of the file. Return the model."""
    for former in projected_layers(model).values():
        model = swap_module(model, former, former.layer)
    for entry in header.projections:
        try:
            place = model.get_submodule(entry.head)
            projector = projector_of_state(state, entry.head)
        except (AttributeError, KeyError) as error:
            raise UsageError(
                f"{source} is for another architecture than this {type(model).__name__}, which has no head "
                f"{entry.head!r}; pass a model of the saved architecture."
            ) from error
        projected: Projected = (
            ProjectedEmbedding(place, projector)
            if entry.behind
            else ProjectedHead(place, projector, forgotten=entry.forgotten, forgotten_logit=entry.logit)
        )
        model = swap_module(model, place, projected.to(next(place.parameters()).device))
    return model
