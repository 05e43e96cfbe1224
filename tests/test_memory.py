"""Freed memory is kept where the C library can, and only there."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pour import _memory
from pour._memory import keep_freed_memory

PROBE = """
import resource, sys, torch
from pour._memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep" and not keep_freed_memory():
    print("unable")
    sys.exit()
network = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(6)))
images = torch.ones(7 * 2**20)
for turn in range(12):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network(images)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROBE, how], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.mark.slow
def test_maps_are_not_asked_for_again_and_again() -> None:
    kept = faults("keep")
    if kept == "unable":
        pytest.skip("the C library has no mallopt")
    # Without it the system clears every map of 28 MB page by page, whatever the size of its pages.
    assert int(kept) < int(faults("free")) / 10


@pytest.mark.parametrize("library", [SimpleNamespace(), SimpleNamespace(mallopt=lambda *_: 0)])
def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, library: SimpleNamespace) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert not keep_freed_memory()


def test_what_a_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory.ctypes, "CDLL", lambda _: pytest.fail("mallopt must not be called"))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert not keep_freed_memory()
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
