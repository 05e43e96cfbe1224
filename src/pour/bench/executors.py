"""Run the tasks of a grid: in this process, in several processes, or in Ray's workers on several machines."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import socket
import threading
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import torch

from pour._memory import keep_freed_memory
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Crew", "Worker", "alone", "check_workers", "crew"]

# Seconds until a machine without an answer counts as absent.
_PATIENCE = 10.0
Task = TypeVar("Task")
_Task = TypeVar("_Task", contravariant=True)
Crew: TypeAlias = "Callable[[Iterable[Task]], Iterator[Task]]"
"""Runs tasks and yields each finished task. Processes of this machine start at the call, other workers at iteration."""


class Worker(Protocol[_Task]):
    """Runs tasks one after the other, and can keep data in memory between them."""

    def prepare(self) -> None:
        """Load the data of every task. Several workers do so at once, before the first task."""
        ...

    def do(self, task: _Task, /) -> None:
        """Run a task, whose results are files that all workers can read."""
        ...


@contextlib.contextmanager
def crew(
    start: Callable[[], Worker[Task]], *, device: str | None, jobs: int, ray: str | None = None
) -> Iterator[Crew[Task]]:
    """Yield a function that runs tasks and yields each finished task.

    Args:
        start: Makes a worker, in the process of the worker.
        device: Device of the workers; None lets each worker choose.
        jobs: Number of workers.
        ray: Address of a Ray cluster ("auto" finds the cluster of this machine, "local" starts one); None uses
            processes of this machine.
    """
    if ray is not None:
        with _on_ray(start, device, jobs, ray) as do:
            yield do
    elif jobs > 1:
        with _in_processes(start, device, jobs) as do:
            yield do
    else:
        yield partial(alone, start())


def alone(worker: Worker[Task], tasks: Iterable[Task]) -> Iterator[Task]:
    """Run tasks in this process and yield each finished task."""
    for task in tasks:
        worker.do(task)
        yield task


_worker: Worker[Any] | None = None


@contextlib.contextmanager
def _in_processes(start: Callable[[], Worker[Task]], device: str | None, jobs: int) -> Iterator[Crew[Task]]:
    threads = torch.get_num_threads()
    if device is not None and device.startswith("cuda"):
        # The GPU computes, and threads of several processes would only slow each other down.
        threads = max(1, threads // jobs)
    # Spawned, because a forked process cannot use a GPU that its parent has used.
    pool = ProcessPoolExecutor(
        max_workers=jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(start, threads),
    )

    def do(tasks: Iterable[Task]) -> Iterator[Task]:
        with _report_dead_workers():
            waiting = {pool.submit(_call, "do", task): task for task in tasks}
        return finished(waiting)

    def finished(waiting: dict[Future[None], Task]) -> Iterator[Task]:
        for future in as_completed(waiting):
            with _report_dead_workers():
                future.result()
            yield waiting[future]

    try:
        with _report_dead_workers():
            for _ in range(jobs):
                # Each call starts a process. A failure here repeats, and is reported, with the first task.
                pool.submit(_call, "prepare")
        yield do
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _report_dead_workers() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise PourError(
            "A worker process ended by itself, perhaps out of memory; finished cells are kept. Start again with fewer "
            "jobs."
        ) from error


def _start(start: Callable[[], Worker[Any]], threads: int) -> None:
    global _worker
    # On a CPU, a worker has as many threads as a single process, so that the bytes of a cell do not depend on it.
    torch.set_num_threads(threads)
    keep_freed_memory()
    _worker = start()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process after its parent, also after a killed parent. Workers of a pool would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _call(method: str, *tasks: Any) -> None:
    """Call a method of this process's worker."""
    getattr(_worker, method)(*tasks)


class _RayWorker:
    """Worker on one of Ray's machines."""

    def __init__(self, start: Callable[[], Worker[Any]], threads: int) -> None:
        torch.set_num_threads(threads)
        self._worker = start()

    def do(self, task: Any) -> Any:
        self._worker.do(task)
        return task


@contextlib.contextmanager
def _on_ray(start: Callable[[], Worker[Task]], device: str | None, jobs: int, address: str) -> Iterator[Crew[Task]]:
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        resources = {"num_cpus": jobs} if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False, **resources)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"There is no Ray cluster at {address} ({error}); start one with ray start.") from error
    workers: list[Any] = []
    try:
        resources = ray.cluster_resources()
        # Ray hides the GPUs from a worker that does not request one.
        with_gpu = "GPU" in resources if device is None else device.startswith("cuda")
        room = int(resources.get("GPU" if with_gpu else "CPU", 0))
        if jobs > room:
            kind = "GPUs" if with_gpu else "CPUs"
            cure = f"ask for {room}" if room else "give another device="
            raise UsageError(f"{jobs} jobs were requested, but the Ray cluster has {room} {kind}; {cure}.")
        remote = ray.remote(num_cpus=1, num_gpus=int(with_gpu))(_RayWorker)
        workers += [remote.remote(start, torch.get_num_threads()) for _ in range(jobs)]
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


def check_workers(jobs: int, address: str | None = None) -> None:
    """Raise UsageError unless there can be `jobs` workers at an address. Ray itself would try for ten minutes.

    Args:
        jobs: Number of workers.
        address: Address of a Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT. None is this machine.
    """
    if jobs < 1:
        raise UsageError(f"The number of jobs must be at least 1, but is {jobs}.")
    if address is not None:
        _import_ray()
    if address in (None, "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is no address of a Ray cluster; give auto, local or HOST:PORT.")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"There is no Ray cluster at {address} ({error}); start one with ray start.") from error


def _import_ray() -> Any:
    try:
        importlib.import_module("ray.util")
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError('Several machines need Ray; pip install "pour-unlearning[ray]".') from error
