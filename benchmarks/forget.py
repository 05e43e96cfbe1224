"""Forgetting 100 of 21,000 classes: time and peak memory, against the textbook way that forms P.

Run: python benchmarks/forget.py [--classes 21000] [--features 4096] [--forget 100] [--repeats 5]

Each way runs in its own process, because the peak of resident memory only ever grows. Three figures per way: the time
of a call, the growth of the process's peak, and the largest single allocation in torch (from its profiler). Both ways
leave the head alone and give a new one, so a second C x d weight is part of the work; "less copy" leaves it out.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from pour.models import forget

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20


def by_pour(head: nn.Linear, classes: list[int]) -> object:
    return forget(head, classes, direction="weights", forgotten_logit="keep")


def by_matrix(head: nn.Linear, classes: list[int]) -> object:
    """W P with P = I - V^T (V V^T)^-1 V as a d x d matrix."""
    with torch.no_grad():
        V = head.weight[classes]
        P = torch.eye(head.in_features) - V.T @ torch.linalg.solve(V @ V.T, V)
        return head.weight @ P


WAYS: dict[str, Callable[[nn.Linear, list[int]], object]] = {"pour": by_pour, "matrix": by_matrix}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def allocations(call: Callable[[], object]) -> tuple[int, int]:
    """Sum and largest of the allocations that one call makes in torch on the CPU."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as run:
        call()
    sizes = [
        event.nbytes()
        for event in run.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.nbytes() > 0
    ]
    return sum(sizes), max(sizes, default=0)


def measure(way: str, num_classes: int, width: int, count: int, repeats: int) -> dict[str, float]:
    torch.manual_seed(0)
    head = nn.Linear(width, num_classes)
    classes = torch.randperm(num_classes)[:count].tolist()
    call = WAYS[way]
    by_pour(nn.Linear(8, 4), [0])
    before = peak()
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        result = call(head, classes)
        times.append(time.perf_counter() - start)
        if repeat == 0:
            grown = peak() - before
        del result
    total, largest = allocations(lambda: call(head, classes))
    figures = {"seconds": min(times), "median": statistics.median(times), "grown": grown}
    if way == "pour":
        check(head, classes)
    return {**figures, "allocated": total, "largest": largest}


def check(head: nn.Linear, classes: list[int]) -> None:
    """The result is W P z + b, with P z by least squares in float64."""
    z = torch.randn(2, head.in_features, dtype=torch.float64)
    V = head.weight.detach()[classes].double()
    Pz = z - torch.linalg.lstsq(V.T, z.T).solution.T @ V
    rows = slice(0, 500)
    expected = Pz @ head.weight.detach()[rows].double().T + head.bias.detach()[rows].double()
    forgotten = forget(head, classes, direction="weights", forgotten_logit="keep")
    difference = (forgotten(z.float())[:, rows].double() - expected).abs().max() / expected.abs().max()
    if difference > 1e-5:
        raise SystemExit(f"The forgotten head is wrong by {difference:.1e}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=21_000)
    parser.add_argument("--features", type=int, default=4_096)
    parser.add_argument("--forget", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = (options.classes, options.features, options.forget, options.repeats)
    if options.way:
        print(json.dumps(measure(options.way, *sizes)))
        return
    flags = ["--classes", "--features", "--forget", "--repeats"]
    arguments = [text for flag, size in zip(flags, sizes, strict=True) for text in (flag, str(size))]
    results = {}
    for way in WAYS:
        done = subprocess.run(
            [sys.executable, __file__, *arguments, "--way", way], check=True, capture_output=True, text=True
        )
        results[way] = json.loads(done.stdout.splitlines()[-1])

    weights = options.classes * options.features * 4
    square = options.features**2 * 4
    print(
        f"head {options.classes} x {options.features} ({weights / MIB:.0f} MiB), forgetting {options.forget} classes;"
    )
    print(f"P would be {square / MIB:.0f} MiB; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':8}{'best s':>10}{'median s':>10}{'peak MiB':>10}{'less copy':>10}{'largest':>10}")
    extra = {}
    for way, figures in results.items():
        extra[way] = figures["grown"] - weights
        largest = figures["largest"]
        print(
            f"{way:8}{figures['seconds']:10.3f}{figures['median']:10.3f}{figures['grown'] / MIB:10.1f}"
            f"{extra[way] / MIB:10.1f}{largest / MIB:10.1f}"
        )
    pour, matrix = results["pour"], results["matrix"]
    print(f"time ratio matrix / pour: {matrix['median'] / pour['median']:.2f}")
    print(f"extra memory ratio matrix / pour: {extra['matrix'] / max(extra['pour'], 1):.1f}")
    under_a_second = pour["seconds"] < 1
    # Besides the copy of the head, nothing as large as a d x d matrix is ever made.
    no_square = pour["allocated"] - weights < square and extra["pour"] < square
    print(f"under a second: {under_a_second}; no d x d matrix: {no_square}")
    raise SystemExit(0 if under_a_second and no_square else 1)


if __name__ == "__main__":
    main()
