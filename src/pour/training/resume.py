"""State of an unfinished training on disk, so that a killed and resumed run has the result of an uninterrupted run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from pour.models.state import write_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

__all__ = ["ResumeFile"]


@dataclass(frozen=True, kw_only=True)
class ResumeFile:
    """File with the state of a run between epochs.

    The file names its run. A file of another run, or an unreadable file, is ignored, and the run starts from the
    beginning.
    """

    path: Path
    """Path of the file, which is removed at the end of the run."""
    fingerprint: str
    """Text that identifies the run: data, recipe, seed, precision."""
    seconds: float = 20.0
    """Shortest time between two writes. Writes happen at the end of an epoch."""

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
        """Write weights, the optimiser's buffers and the progress, atomically."""
        tensors: dict[str, Tensor] = {f"model/{name}": value for name, value in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items() if value is not None}
        metadata = {"fingerprint": self.fingerprint, "progress": json.dumps(progress)}
        write_tensors(tensors, self.path, metadata)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Load the state into `model` and `optimizer` and return the progress, or None without a usable file."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("fingerprint") != self.fingerprint:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model/")})
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                state.setdefault(int(index), {})[key] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        for parameter, buffers in optimizer.state.items():
            # The file does not contain memory layouts. Fused kernels need buffers with the layout of the parameters.
            for key, value in buffers.items():
                if value.shape == parameter.shape:
                    buffers[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        progress: dict[str, Any] = json.loads(metadata["progress"])
        return progress

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)
