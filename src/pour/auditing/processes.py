"""Divide an audit among the processes of `torchrun`: each runs its share of the samples and receives all features."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

import torch
from torch import distributed

from pour.errors import UsageError
from pour.training.run import resolve_device

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "all_agree",
    "audit_device",
    "gather_rows",
    "is_first_process",
    "join_processes",
    "one_of_several",
    "share_of",
]


def _is_joined() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _rank_and_count() -> tuple[int, int]:
    return (distributed.get_rank(), distributed.get_world_size()) if _is_joined() else (0, 1)


def one_of_several() -> bool:
    """Return whether other processes work on the same audit."""
    return _rank_and_count()[1] > 1


def is_first_process() -> bool:
    """Return whether this process prints and writes for all."""
    return (distributed.get_rank() if _is_joined() else int(os.environ.get("RANK", "0"))) == 0


def audit_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device. Each of several processes gets its own GPU."""
    resolved = resolve_device(device)
    if str(resolved) == "cuda" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return resolved


def join_processes() -> None:
    """Join the processes that `torchrun` started, unless they are joined. A single process does nothing.

    The processes stay joined until the program ends, because torchrun's store keeps the addresses of the first group:
    a second group could connect to them.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not distributed.is_available() or _is_joined():
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(_part_processes)


def _part_processes() -> None:
    if _is_joined():
        distributed.destroy_process_group()


def share_of(count: int) -> range:
    """Return this process's share of `count` rows. Shares are consecutive, so that joining them keeps the order."""
    rank, processes = _rank_and_count()
    return range(count * rank // processes, count * (rank + 1) // processes)


def gather_rows(rows: Tensor, count: int) -> Tensor:
    """Return all `count` rows in every process.

    Args:
        rows: Rows of `share_of` in this process, (n, ...).
        count: Number of rows in all processes together.

    Examples:
        >>> gather_rows(torch.arange(6.0).view(3, 2), 3).shape
        torch.Size([3, 2])
    """
    rank, processes = _rank_and_count()
    sizes = [count * (i + 1) // processes - count * i // processes for i in range(processes)]
    if len(rows) != sizes[rank]:
        raise UsageError(f"Process {rank} has {len(rows)} rows, but its share of {count} is {sizes[rank]}.")
    if processes == 1:
        return rows
    # Shares differ by at most one row, but every process must send the same size.
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(processes)]
    distributed.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def all_agree(answer: bool, device: torch.device) -> bool:
    """Return whether `answer` is true in every process."""
    if not one_of_several():
        return answer
    votes = torch.tensor(int(answer), device=device)
    distributed.all_reduce(votes, distributed.ReduceOp.MIN)
    return bool(votes)
