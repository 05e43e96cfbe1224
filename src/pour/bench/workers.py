"""Who does the tasks of a grid: this process, several of this machine, or Ray's workers on several machines."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import torch

from pour.bench.work import Worker
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pour.bench.shared import ModelKey
    from pour.bench.store import CellKey
    from pour.bench.work import Work

    Task = ModelKey | CellKey
    Crew = Callable[[Iterable[Task]], Iterator[Task]]

__all__ = ["crew"]


@contextlib.contextmanager
def crew(work: Work, *, jobs: int, ray: str | None) -> Iterator[Crew]:
    """Yield a function that does tasks and gives each back as it is done.

    Args:
        work: what the workers have to know.
        jobs: how many workers.
        ray: the address of a Ray cluster ("auto" finds the one of this machine, "local" starts one); None stays here.
    """
    if ray is not None:
        with _on_ray(work, jobs, ray) as do:
            yield do
    elif jobs == 1:
        yield _alone(work)
    else:
        with _in_processes(work, jobs) as do:
            yield do


def _alone(work: Work) -> Crew:
    worker = Worker(work)

    def do(tasks: Iterable[Task]) -> Iterator[Task]:
        for task in tasks:
            worker.do(task)
            yield task

    return do


_worker: Worker | None = None


@contextlib.contextmanager
def _in_processes(work: Work, jobs: int) -> Iterator[Crew]:
    threads = torch.get_num_threads()
    if work.device is not None and work.device.startswith("cuda"):
        # The GPU computes; the processes would only be in each other's way.
        threads = max(1, threads // jobs)
    # Spawned, because a forked process cannot use a GPU that its parent has touched.
    pool = ProcessPoolExecutor(
        max_workers=jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(work, threads),
    )

    def do(tasks: Iterable[Task]) -> Iterator[Task]:
        waiting = {pool.submit(_do, task): task for task in tasks}
        for future in as_completed(waiting):
            try:
                future.result()
            except BrokenProcessPool as error:
                raise PourError(
                    "A worker process ended by itself, perhaps for want of memory; finished cells are kept. Start "
                    "again with fewer jobs."
                ) from error
            yield waiting[future]

    try:
        yield do
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Work, threads: int) -> None:
    global _worker
    # On a CPU as many threads as alone, so that a cell's bytes do not depend on who made it.
    torch.set_num_threads(threads)
    _worker = Worker(work)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process once its parent is gone, killed ones included; a pool's workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _do(task: Task) -> None:
    if _worker is None:
        raise PourError("A worker process was not started by a crew; this is a fault in pour, please report it.")
    _worker.do(task)


class _RayWorker:
    """A worker that lives on one of Ray's machines."""

    def __init__(self, work: Work, threads: int) -> None:
        torch.set_num_threads(threads)
        self._worker = Worker(work)

    def do(self, task: Task) -> Task:
        self._worker.do(task)
        return task


@contextlib.contextmanager
def _on_ray(work: Work, jobs: int, address: str) -> Iterator[Crew]:
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        here = {"num_cpus": jobs} if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False, **here)
        except ConnectionError as error:
            raise UsageError(f"There is no Ray cluster at {address} ({error}); start one with ray start.") from error
    workers: list[Any] = []
    try:
        resources = ray.cluster_resources()
        # Ray hides the GPUs from a worker that does not ask for one.
        with_gpu = "GPU" in resources if work.device is None else work.device.startswith("cuda")
        room = int(resources.get("GPU" if with_gpu else "CPU", 0))
        if jobs > room:
            kind = "GPUs" if with_gpu else "CPUs"
            raise UsageError(f"{jobs} jobs were asked for, but the Ray cluster has {room} {kind}; ask for {room}.")
        remote = ray.remote(num_cpus=1, num_gpus=int(with_gpu))(_RayWorker)
        workers += [remote.remote(work, torch.get_num_threads()) for _ in range(jobs)]
        pool = ray.util.ActorPool(workers)

        def do(tasks: Iterable[Task]) -> Iterator[Task]:
            try:
                yield from pool.map_unordered(lambda worker, task: worker.do.remote(task), list(tasks))
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, PourError):
                    raise cause from error
                raise PourError(f"A worker of the Ray cluster failed: {cause or error}.") from error

        yield do
    finally:
        for worker in workers:
            ray.kill(worker)
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        importlib.import_module("ray.util")
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError('Several machines need Ray; pip install "pour-unlearning[ray]".') from error
