"""Several processes that share one audit: each taps its share of the images, and all get all features."""

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


def _world() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def one_of_several() -> bool:
    """Whether other processes work on the same audit."""
    return _world()[1] > 1


def is_first_process() -> bool:
    """Whether this process is the one that prints and writes."""
    joined = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank() if joined else int(os.environ.get("RANK", "0"))) == 0


def audit_device(device: str | torch.device | None) -> torch.device:
    """The device of this process: as asked for, and each of several processes on its own GPU."""
    resolved = resolve_device(device)
    one_of_several = resolved.type == "cuda" and "LOCAL_RANK" in os.environ and str(resolved) == "cuda"
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if one_of_several else resolved


def join_processes() -> None:
    """Join the processes that ``torchrun`` started, unless the caller has done so; nothing for a single process.

    They stay joined until the program ends: torchrun's store keeps the addresses of a group that was taken down, so
    that a second group of the same processes could meet at the old ones.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) < 2
    if alone or not distributed.is_available() or distributed.is_initialized():
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(_part_processes)


def _part_processes() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def share_of(count: int) -> range:
    """The rows of ``count`` that this process taps: consecutive, so that joining the shares keeps the order."""
    rank, world = _world()
    return range(count * rank // world, count * (rank + 1) // world)


def gather_rows(rows: Tensor, count: int) -> Tensor:
    """Join every process's share into all ``count`` rows, the same in every process.

    Args:
        rows: this process's rows, those of :func:`share_of`, shape (n, ...).
        count: rows of all processes together.

    Example:
        >>> gather_rows(torch.arange(6.0).view(3, 2), 3).shape
        torch.Size([3, 2])
    """
    rank, world = _world()
    sizes = [count * (i + 1) // world - count * i // world for i in range(world)]
    if len(rows) != sizes[rank]:
        raise UsageError(f"Process {rank} brings {len(rows)} rows; its share of {count} is {sizes[rank]}.")
    if world == 1:
        return rows
    # Shares differ by one row at most, but every process must send the same size.
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(world)]
    distributed.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def all_agree(answer: bool, device: torch.device) -> bool:
    """Whether ``answer`` is true in every process."""
    if _world()[1] == 1:
        return answer
    votes = torch.tensor(int(answer), device=device)
    distributed.all_reduce(votes, distributed.ReduceOp.MIN)
    return bool(votes)
