"""State dicts: compute their digest, read them safely from files, and load them into a model."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pour._io import atomic_path, existing_file
from pour.errors import UsageError, first_line
from pour.models import tensor_pickles

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["checked_state", "digest", "load_into", "read_state_dict", "write_tensors"]

TORCH_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".tar"}
_NESTED_KEYS = ("state_dict", "model_state_dict", "model")
_MOST_LISTED = 3


def tensor_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes in row-major order."""
    # PyTorch calls a single number with a stride above 1 contiguous, but cannot view it as bytes.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    flat = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def digest(state: Mapping[str, Tensor], *, computed: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 over names, shapes, dtypes and bytes of a state dict, in any order of the names.

    Args:
        state: Tensors by name.
        computed: Digests that the caller has already, by name of the tensor.

    Examples:
        >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2)})
        True
        >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(1, 2)})
        False
    """
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        content = (computed or {}).get(name) or tensor_digest(tensor)
        total.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0{content}\n".encode())
    return total.hexdigest()


def checked_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model. Raise UsageError if a part is no tensor, or has no values (meta tensors)."""
    state: dict[str, Any] = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_meta:
            raise UsageError(f"The model's state {name!r} is no tensor with values, so it cannot be written.")
    return state


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors` file, of a `.pt`/`.pth` state dict or of a Lightning checkpoint.

    The state dict may be nested under `state_dict` or `model`. Other entries of a checkpoint, such as
    hyperparameters, are ignored, and no code in them runs.

    Raises:
        UsageError: The file is missing or damaged, or has no state dict.
    """
    source = existing_file(path)
    if is_torch_file(source):
        return _read_torch(source)
    with open_safetensors(source) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(plain, temporary, metadata)


def is_torch_file(path: Path) -> bool:
    """Return whether PyTorch must read the file, by its ending and first bytes (safetensors: a length, then JSON)."""
    if path.suffix.lower() not in TORCH_SUFFIXES:
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] != b"{"


@contextlib.contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file. Raise UsageError if it is damaged or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        problem = f"{path} is not a whole safetensors file ({error})"
        raise UsageError(f"{problem}; it may be cut short, so copy or save it again.") from error


# Errors of PyTorch on a damaged file. The older file format has no checksum, so any step of its reader can fail.
_DAMAGED = (RuntimeError, EOFError, OSError, LookupError, ValueError, AssertionError, AttributeError, TypeError)


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        loaded = _load_torch(path)
    except (*_DAMAGED, pickle.UnpicklingError, struct.error) as error:
        raise UsageError(
            f"{path} cannot be read as a PyTorch file ({first_line(error)}); it may be cut short."
        ) from error
    if isinstance(loaded, dict):
        loaded = next((loaded[key] for key in _NESTED_KEYS if isinstance(loaded.get(key), dict)), loaded)
    if not isinstance(loaded, dict) or not loaded:
        raise UsageError(f"{path} contains a {type(loaded).__name__}, not a state dict; save model.state_dict().")
    others = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor) or not isinstance(name, str)]
    if others:
        names = ", ".join(others[:_MOST_LISTED])
        raise UsageError(f"{path} is not a plain state dict: {names} is no tensor; save model.state_dict().")
    return loaded


def _load_torch(path: Path) -> object:
    """Return the content of a PyTorch file. Objects that are not tensors of plain data are replaced by stand-ins."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not zipfile.is_zipfile(path):
            problem = f"{path} is in PyTorch's old format and contains more than tensors"
            raise UsageError(f"{problem}; save model.state_dict() in the program that made it.") from error
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=tensor_pickles)


def load_into(model: nn.Module, state: Mapping[str, Tensor], *, source: str, optional: tuple[str, ...] = ()) -> None:
    """Copy the tensors and dtypes of `state` into `model`.

    Args:
        model: Network, changed in place.
        state: Tensors by name.
        source: File of the tensors, for the error.
        optional: Names that may be missing from `state`. They keep their value.

    Raises:
        UsageError: Names or shapes differ from those of the model.
    """
    expected = model.state_dict()
    missing = [name for name in expected if name not in state and name not in optional]
    unexpected = [name for name in state if name not in expected]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    problems = [
        f"{what} {', '.join(names[:_MOST_LISTED])}"
        + (f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else "")
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if problems:
        problem = f"{source} is for another architecture than this {type(model).__name__}: {'; '.join(problems)}"
        raise UsageError(f"{problem}; pass the network of the saved model with model=.")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in state:
            # The dtype is changed in place, so that tied weights remain tied.
            tensor.data = tensor.data.to(state[name].dtype)
    model.load_state_dict(dict(state), strict=False)
