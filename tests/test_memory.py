"""Freed memory is kept where the C library can, and only there."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pour import _memory
from pour._memory import keep_freed_memory

# How much of ten freed tensors of 28 MB the C library still holds, by its own account.
PROBE = """
import ctypes, sys, torch
from pour._memory import keep_freed_memory

class Account(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

try:
    account = ctypes.CDLL(None).mallinfo2
except AttributeError:
    sys.exit("no mallinfo2")
account.restype = Account
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("no mallopt")
tensors = [torch.ones(7 * 2**20) for _ in range(10)]
before = account().fordblks
del tensors
print(account().fordblks - before)
"""
FREED = 10 * 28 * 2**20


def held(how: str) -> int:
    """Bytes of what was freed that are still at hand."""
    done = subprocess.run([sys.executable, "-c", PROBE, how], capture_output=True, text=True, timeout=120)
    if done.stderr.startswith("no mall"):
        pytest.skip(f"the C library has {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.slow
def test_what_is_freed_is_at_hand_again() -> None:
    assert held("keep") >= FREED
    assert held("free") < FREED / 2


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
