from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pour.bench.executors import crew
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


class Noting:
    """Writes down what it was asked to do, and by which process."""

    def __init__(self, folder: Path, *, dies_on: str = "") -> None:
        self._folder = folder
        self._dies_on = dies_on

    def prepare(self) -> None:
        self._note("prepare")

    def do(self, task: str) -> None:
        if task == self._dies_on:
            os._exit(1)
        if task == "refuse":
            raise UsageError("This task cannot be done; give another.")
        self._note(task)

    def _note(self, what: str) -> None:
        (self._folder / f"{what}-{os.getpid()}").touch()


def noted(folder: Path, what: str) -> set[int]:
    """The processes that noted something."""
    return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{what}-*")}


def test_one_job_is_this_process(tmp_path: Path) -> None:
    with crew(partial(Noting, tmp_path), device="cpu", jobs=1) as do:
        assert list(do(["a", "b"])) == ["a", "b"]
    assert noted(tmp_path, "a") == noted(tmp_path, "b") == {os.getpid()}


def test_workers_prepare_before_there_are_tasks(tmp_path: Path) -> None:
    with crew(partial(Noting, tmp_path), device="cpu", jobs=2) as do:
        started = time.monotonic()
        while len(noted(tmp_path, "prepare")) < 1 and time.monotonic() - started < 60:
            time.sleep(0.05)
        assert noted(tmp_path, "prepare"), "nobody has asked for anything yet"
        assert sorted(do(["a", "b", "c"])) == ["a", "b", "c"]
        workers = noted(tmp_path, "a") | noted(tmp_path, "b") | noted(tmp_path, "c")
        assert os.getpid() not in workers
        with pytest.raises(UsageError, match="give another"):
            list(do(["refuse"]))
        assert list(do(["d"])) == ["d"], "the others go on"


def test_processes_begin_before_anybody_asks_for_what_is_done(tmp_path: Path) -> None:
    with crew(partial(Noting, tmp_path), device="cpu", jobs=2) as do:
        first, second = do(["a"]), do(["b"])
        started = time.monotonic()
        while not noted(tmp_path, "b") and time.monotonic() - started < 60:
            time.sleep(0.05)
        assert noted(tmp_path, "b")
        assert (list(second), list(first)) == (["b"], ["a"])


def test_a_dead_worker_is_told_of(tmp_path: Path) -> None:
    with crew(partial(Noting, tmp_path, dies_on="b"), device="cpu", jobs=2) as do:
        with pytest.raises(PourError, match="ended by itself, perhaps out of memory; finished cells are kept"):
            list(do(["a", "b"]))
        with pytest.raises(PourError, match="Start again with fewer jobs"):
            list(do(["c"]))
