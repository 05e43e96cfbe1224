"""State dicts: their digest, reading them safely from files, and putting them into a model."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pour.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["digest", "load_into", "read_state_dict"]

TORCH_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".tar"}
_NESTED_KEYS = ("state_dict", "model_state_dict", "model")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 3


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes in row-major order."""
    # One number with an odd stride counts as contiguous, and cannot be viewed as bytes.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    flat = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def digest(state: Mapping[str, Tensor], *, known: Mapping[str, str] | None = None) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of a state dict; the order of the names does not matter.

    Args:
        state: Names and tensors.
        known: Digests of tensors that the caller has read already, by name.

    Example:
        >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2)})
        True
        >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(1, 2)})
        False
    """
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        content = (known or {}).get(name) or tensor_digest(tensor)
        total.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0{content}\n".encode())
    return total.hexdigest()


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read plain tensors from a ``.safetensors`` file or a ``.pt``/``.pth`` state dict; nothing else is unpickled.

    A state dict nested under ``state_dict`` or ``model`` is taken out, and the ``module.`` that parallel
    training puts before every name is removed; but a file that pour wrote keeps its names, which its digest is of.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"There is no file {path}; check the path.")
    if is_torch_file(path):
        return _strip_prefixes(_read_torch(path))
    state, metadata = _read_safetensors(path)
    return state if "pour" in metadata else _strip_prefixes(state)


def is_torch_file(path: Path) -> bool:
    """Whether PyTorch must read the file: by its ending, unless it starts as safetensors do (a length, then JSON)."""
    if path.suffix.lower() not in TORCH_SUFFIXES:
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] != b"{"


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return state, file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UsageError:
    """The sentence for a file that safetensors cannot open."""
    return UsageError(f"{path} is not a whole safetensors file ({error}); it may be cut short or of another kind.")


# What PyTorch raises on a file that ends too early or was damaged; older ones are read without a checksum.
_CUT_SHORT = (
    RuntimeError,
    EOFError,
    OSError,
    LookupError,
    ValueError,
    AssertionError,
    AttributeError,
    TypeError,
    struct.error,
)


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        loaded: object = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} holds more than plain tensors, and unpickling it could run code; save "
            "model.state_dict() in the environment that made it and pass that file."
        ) from error
    except _CUT_SHORT as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} cannot be read as a PyTorch file ({reason}); it may be cut short.") from error
    for key in _NESTED_KEYS:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    if not isinstance(loaded, dict) or not loaded:
        raise UsageError(f"{path} holds a {type(loaded).__name__}, not a state dict; save model.state_dict().")
    odd = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor) or not isinstance(name, str)]
    if odd:
        raise UsageError(
            f"{path} is not a plain state dict: {', '.join(odd[:_SHOWN])} is no tensor; save model.state_dict()."
        )
    return {str(name): value for name, value in loaded.items()}


def _strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _WRAPPER_PREFIXES:
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _with_prefixes(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """``state`` by the names of a model that is itself a wrapper, whose prefix was taken for one of training's."""
    for prefix in reversed(_WRAPPER_PREFIXES):
        if own and all(name.startswith(prefix) for name in own) and not any(n.startswith(prefix) for n in state):
            state = {prefix + name: tensor for name, tensor in state.items()}
    return state


def load_into(model: nn.Module, state: Mapping[str, Tensor], *, source: str, optional: tuple[str, ...] = ()) -> None:
    """Copy ``state`` into ``model``, taking over dtypes; names and shapes must agree.

    Args:
        model: Changed in place.
        state: The tensors, by the model's own names.
        source: Where they come from, for the error.
        optional: Names that may be missing from ``state`` and then keep their value.
    """
    own = model.state_dict()
    state = _with_prefixes(state, own)
    missing = [name for name in own if name not in state and name not in optional]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    problems = [
        f"{what} {', '.join(names[:_SHOWN])}" + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise UsageError(
            f"{source} is for another architecture than this {type(model).__name__}: {'; '.join(problems)}; "
            "give the model (or --arch and number of classes) that it was saved from."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            # A state dict's tensors alias the model's, so changing their dtype in place keeps tied weights tied.
            if name in state and state[name].dtype != tensor.dtype:
                _set_dtype(model, name, state[name].dtype)
    model.load_state_dict(dict(state), strict=False)


def _set_dtype(model: nn.Module, name: str, dtype: torch.dtype) -> None:
    owner_name, _, leaf = name.rpartition(".")
    value = getattr(model.get_submodule(owner_name), leaf, None)
    if isinstance(value, Tensor):
        value.data = value.data.to(dtype)
