"""Safe checkpoints: safetensors with the model's history in the metadata."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pour._io import atomic_path, refuse_to_overwrite
from pour._version import __version__
from pour.errors import PourError, UsageError
from pour.geometry.projector import Projector
from pour.models import history as cards
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.head import find_head
from pour.models.networks.registry import load_plain, rebuild
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead, projector_of_state
from pour.models.state import TORCH_SUFFIXES, digest, is_torch_file, load_into, read_state_dict, unreadable

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["Header", "Projection", "load", "read_header", "save"]

FORMAT_VERSION = 1
_SEAL = "pour_sha256"


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A projector in front of a head, or behind the layer of an image embedding."""

    head: str
    """Dotted name of the head, or of that layer."""
    rank: int
    forgotten: tuple[int, ...]
    logit: ForgottenLogit
    behind: bool = False
    """Whether the projector works on the layer's output."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a checkpoint says about itself."""

    architecture: cards.Architecture | None
    class_names: tuple[str, ...] | None
    history: tuple[cards.Record, ...]
    projections: tuple[Projection, ...]
    """The projected heads; none for an original or a folded model."""
    aliases: Mapping[str, str]
    """Names of tied tensors, and the name under which each is stored."""
    digest: str
    """SHA-256 of the state dict."""
    pour_version: str
    head: str | None = None
    """Dotted name of the head, where the model was told."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Everything as JSON text, but for wall-clock times: the same command must give the same bytes."""
        records = [record.to_dict() for record in self.history]
        for record in records:
            record.pop("seconds")
        fields = {**dataclasses.asdict(self), "history": records}
        if self.head is None:
            fields.pop("head")
        for entry in fields["projections"]:
            # A file without dual encoders stays readable for versions that know none.
            if not entry["behind"]:
                entry.pop("behind")
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Header:
        """Read what :meth:`to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        if data["format_version"] > FORMAT_VERSION:
            raise UsageError(
                f"The checkpoint has format {data['format_version']}, newer than this pour reads "
                f"({FORMAT_VERSION}); update pour-unlearning."
            )
        arch = data["architecture"]
        names = data["class_names"]
        projections = [{**entry, "forgotten": tuple(entry["forgotten"])} for entry in data["projections"]]
        return cls(
            architecture=None if arch is None else cards.Architecture(arch["name"], arch["options"]),
            class_names=None if names is None else tuple(names),
            history=tuple(cards.Record.from_dict(record) for record in data["history"]),
            projections=tuple(Projection(**entry) for entry in projections),
            aliases=data["aliases"],
            digest=data["digest"],
            pour_version=data["pour_version"],
            head=data.get("head"),
            format_version=data["format_version"],
        )


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    arch: str | cards.Architecture | None = None,
    class_names: Sequence[str] | None = None,
) -> Path:
    """Write ``model`` as safetensors with its history, classes and architecture; whole or not at all.

    Args:
        model: Any model, projected or not.
        path: Where to; usually ``*.safetensors``.
        overwrite: Replace a file that is there.
        arch: What :func:`pour.models.build_model` would build it from, if the model does not know: a name, or a name
            with options. Without any, :func:`load` needs the model.
        class_names: The names of the classes, if the model does not know them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(nn.Linear(4, 3), f"{folder}/m.safetensors")
        ...     load(path, nn.Linear(4, 3))
        Linear(in_features=4, out_features=3, bias=True)
    """
    target = Path(path)
    check_ending(target)
    refuse_to_overwrite(target, overwrite=overwrite)
    model = cards.unwrap(model)
    state = _plain_state(model)
    stored, aliases = _without_ties(state)
    names = cards.class_names(model) if class_names is None else cards.checked_names(class_names)
    header = Header(
        architecture=_architecture(model, arch),
        class_names=names,
        history=tuple(cards.history(model)),
        projections=tuple(
            Projection(
                head=name,
                rank=module.projector.rank,
                forgotten=module.forgotten if isinstance(module, ProjectedHead) else (),
                logit=module.forgotten_logit if isinstance(module, ProjectedHead) else "keep",
                behind=isinstance(module, ProjectedEmbedding),
            )
            for name, module in model.named_modules()
            if isinstance(module, ProjectedHead | ProjectedEmbedding)
        ),
        aliases=aliases,
        digest=digest(state),
        pour_version=__version__,
        head=cards.head_name(model),
    )
    text = header.to_json()
    with atomic_path(target) as temporary:
        try:
            save_file(stored, temporary, metadata={"format": "pt", "pour": text, _SEAL: _seal(text)})
            _sort_metadata(temporary)
        except SafetensorError as error:
            raise PourError(f"Could not write {target}: {error}; nothing was changed.") from error
    return target


def check_ending(path: Path) -> None:
    """Raise for a name that other programs would take for one of PyTorch's own files."""
    if path.suffix.lower() in TORCH_SUFFIXES:
        raise UsageError(
            f"Models are written as safetensors, not as {path.suffix}; call the file "
            f"{path.with_suffix('.safetensors').name}."
        )


def load(
    path: str | os.PathLike[str], model: nn.Module | None = None, *, device: str | torch.device | None = None
) -> nn.Module:
    """Read a model from a file, in evaluation mode.

    A file by :func:`save` brings its architecture, class names, history and projector, and its digest is checked.
    Plain weights (other safetensors, or a ``.pt``/``.pth`` state dict of plain tensors) need the model they belong to.

    Args:
        path: The file.
        model: A model of the same architecture, which is copied and not changed; needed if the file names none. For a
            file of a :class:`~pour.models.NormalizedModel` it may be the network inside, which then takes normalised
            images as it did before.
        device: Where to put the model; by default where ``model`` is, else the CPU.

    Raises:
        UsageError: The file is missing, cut short, altered, not plain tensors, or for another architecture.
    """
    source = Path(path)
    state = read_state_dict(source)
    header = None if is_torch_file(source) else read_header(source)
    if model is None and (header is None or header.architecture is None):
        raise UsageError(f"{source} does not say which architecture it is for; pass the model it belongs to.")
    if model is not None:
        result = copy_model(cards.unwrap(model))
    elif header is not None and header.architecture is not None:
        result = rebuild(header.architecture)
    if header is None:
        load_plain(result, state, source=str(source))
    else:
        state.update({name: state[kept] for name, kept in header.aliases.items() if kept in state})
        if digest(state) != header.digest:
            raise UsageError(f"{source} was altered after it was saved: its weights do not match its digest.")
        if _is_wrapped(state) and not _is_wrapped(result.state_dict()):
            header, state = _unwrapped(header, state)
        result = _with_projectors(result, header, state, str(source))
        load_into(result, state, source=str(source))
        cards.set_card(
            result,
            history=header.history,
            class_names=header.class_names,
            architecture=header.architecture,
            head=header.head,
        )
    return result.to(device).eval() if device is not None else result.eval()


def _is_wrapped(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict is that of a :class:`~pour.models.NormalizedModel`."""
    return "normalize.mean" in state and all(name.startswith(("model.", "normalize.")) for name in state)


def _unwrapped(header: Header, state: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
    """What belongs to the network inside a :class:`~pour.models.NormalizedModel`."""
    inside = "model."
    projections = tuple(
        dataclasses.replace(entry, head=entry.head.removeprefix(inside)) for entry in header.projections
    )
    head = None if header.head is None else header.head.removeprefix(inside)
    own = {name.removeprefix(inside): tensor for name, tensor in state.items() if name.startswith(inside)}
    return dataclasses.replace(header, architecture=None, projections=projections, head=head), own


def read_header(path: str | os.PathLike[str]) -> Header | None:
    """What a checkpoint says about itself, without reading its weights; None for a file that pour did not write."""
    source = Path(path)
    if not source.is_file():
        raise UsageError(f"There is no file {source}; check the path.")
    try:
        with safe_open(source, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise unreadable(source, error) from error
    text = metadata.get("pour")
    if text is None:
        return None
    if metadata.get(_SEAL) != _seal(text):
        raise UsageError(f"{source} was altered after it was saved: its history does not match its digest.")
    try:
        return Header.from_json(text)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise UsageError(f"{source} has a history that cannot be read ({error}); save the model again.") from error


def _sort_metadata(path: Path) -> None:
    """Put the metadata in order: safetensors writes it in a random one, and the same model must give the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        fields: dict[str, Any] = json.loads(file.read(size))
        fields["__metadata__"] = dict(sorted(fields["__metadata__"].items()))
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _plain_state(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, object] = dict(model.state_dict())
    odd = [name for name, value in state.items() if not isinstance(value, Tensor) or value.is_meta]
    if odd:
        raise UsageError(f"The model's state {odd[0]!r} is no tensor with values, so it cannot be saved.")
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _without_ties(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Split a state dict into tensors that own their memory and names of tensors that are the same ones."""
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


def _architecture(model: nn.Module, arch: str | cards.Architecture | None) -> cards.Architecture | None:
    if not isinstance(arch, str):
        return arch or cards.architecture(model)
    known = cards.architecture(model)
    if known is not None and known.name == arch:
        return known
    mean = getattr(getattr(model, "normalize", None), "mean", None)
    channels = mean.numel() if isinstance(mean, Tensor) else 3
    options = {"num_classes": find_head(model).num_classes, "in_channels": channels, "image_size": 32}
    return cards.Architecture(arch, options)


def _with_projectors(model: nn.Module, header: Header, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """Make the projected heads of ``model`` those of the file."""
    for projected in [module for module in model.modules() if isinstance(module, ProjectedHead)]:
        model = swap_module(model, projected, projected.head)
    for behind in [module for module in model.modules() if isinstance(module, ProjectedEmbedding)]:
        model = swap_module(model, behind, behind.layer)
    for entry in header.projections:
        try:
            place = model.get_submodule(entry.head)
            projector = projector_of_state(state, entry.head)
        except (AttributeError, KeyError) as error:
            raise UsageError(
                f"{source} is for another architecture than this {type(model).__name__}, which has no head "
                f"{entry.head!r}; give the model that it was saved from."
            ) from error
        layer: nn.Module
        if entry.behind and isinstance(projector, Projector):
            layer = ProjectedEmbedding(place, projector)
        else:
            layer = ProjectedHead(place, projector, forgotten=entry.forgotten, forgotten_logit=entry.logit)
        model = swap_module(model, place, layer.to(next(place.parameters()).device))
    return model
