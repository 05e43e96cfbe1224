"""Count the files of pour that four journeys execute: forget, unlearn, audit and bench.

    python scripts/journeys.py            # all, each in a process of its own
    python scripts/journeys.py unlearn    # one, with the names of its files

A file counts if a function of it runs, or if the journey imports it. The preparation does not count: loaded networks,
the digits divided into forget and retain samples, and the rows of the experiment.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pour

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = Path(__file__).resolve().parent.parent / "tests" / "networks" / "digits"
SOURCE = Path(pour.__file__).parent


def forget() -> Callable[[], Any]:
    """Return a call of pour.forget."""
    model = pour.load(NETWORKS / "original.safetensors")
    return lambda: pour.forget(model, classes=["3"])


def unlearn() -> Callable[[], Any]:
    """Return a call of pour.unlearn with POUR-D."""
    model = pour.load(NETWORKS / "original.safetensors")
    request = pour.ForgetRequest.of(pour.Splits.of(pour.load_dataset("digits"), ["3"]))
    return lambda: pour.unlearn(model, request, method="pour-d", steps=2, device="cpu", progress=False)


def audit() -> Callable[[], Any]:
    """Return a call of pour.audit with a retrained model."""
    original, retrained = (pour.load(NETWORKS / f"{name}.safetensors") for name in ("original", "retrained"))
    models = {"original": original, "unlearned": pour.forget(original, classes=["3"]), "retrained": retrained}
    splits = pour.Splits.of(pour.load_dataset("digits"), ["3"])
    return lambda: pour.audit(**models, data=splits, device="cpu", progress=False)


def bench() -> Callable[[], Any]:
    """Return a call that computes the cells of POUR-P and of the references for one seed."""
    from pour.bench import get_experiment, run_experiment

    experiment = get_experiment("digits")
    experiment = replace(experiment, recipe=experiment.recipe.change(epochs=1), seeds=(0,))
    folder = tempfile.mkdtemp()
    return lambda: run_experiment(experiment, folder, methods=["pour-p"], device="cpu", progress=False)


JOURNEYS = {journey.__name__: journey for journey in (forget, unlearn, audit, bench)}


def executed(journey: Callable[[], Any]) -> list[str]:
    """Return the files of pour that a call executes."""
    files: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        journey()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(name).relative_to(SOURCE)) for name in files if Path(name).is_relative_to(SOURCE))


def count(name: str) -> int:
    """Return the number of files that a journey executes in a new process."""
    done = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return len(done.stdout.splitlines())


def main() -> None:
    """Print the counts of all journeys, or the files of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journey", nargs="?", choices=JOURNEYS)
    chosen = parser.parse_args().journey
    if chosen:
        print("\n".join(executed(JOURNEYS[chosen]())))
        return
    for name in JOURNEYS:
        print(f"{name}: {count(name)} files")


if __name__ == "__main__":
    main()
