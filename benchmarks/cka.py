"""Measure the time, error and memory of linear CKA, in comparison with n x n implementations and other packages.

    python benchmarks/cka.py                                        n = 10,000, d = 512
    python benchmarks/cka.py --device cuda --large --json out.json  also n = 1,281,167, d = 2,048 in one pass

Times are of interleaved repeats in one run: the median, and the fastest, which other load on the machine disturbs
least. Implementations that take minutes are timed once.
"""

import argparse
import importlib.util
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pour._io import write_text
from pour.metrics import LinearCKA, linear_cka

Implementation = Callable[[Tensor, Tensor], Tensor | float]


def features(n: int, d: int, device: str, seed: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return two related feature matrices with a mean and a falling spectrum, a function of seed and start only."""
    g = torch.Generator(device).manual_seed(seed * 1_000_003 + start)
    spectrum = torch.logspace(0, -1, d, device=device)
    x = torch.randn(n, d, generator=g, device=device) * spectrum
    y = 0.6 * x + 0.8 * torch.randn(n, d, generator=g, device=device) * spectrum
    return x.add_(0.5), y.add_(0.3)


def gram_of_centred_features(x: Tensor, y: Tensor) -> Tensor:
    x, y = x - x.mean(0), y - y.mean(0)
    k, m = x @ x.T, y @ y.T
    return (k * m).sum() / (torch.linalg.norm(k) * torch.linalg.norm(m))


def gram_in_float64(x: Tensor, y: Tensor) -> Tensor:
    return gram_of_centred_features(x.double(), y.double())


def gram_with_centring_matrix(x: Tensor, y: Tensor) -> Tensor:
    n = len(x)
    h = torch.eye(n, device=x.device) - 1 / n
    k, m = h @ (x @ x.T) @ h, h @ (y @ y.T) @ h
    return (k * m).sum() / (torch.linalg.norm(k) * torch.linalg.norm(m))


def ckatorch_base(x: Tensor, y: Tensor) -> Tensor:
    from ckatorch.core import cka_base

    return cka_base(x, y)


def torch_cka_hsic(x: Tensor, y: Tensor) -> float:
    """torch_cka's HSIC on Gram matrices made as its `compare` makes them, all samples as one batch (debiased)."""
    from torch_cka import CKA

    k, m = x @ x.T, y @ y.T
    k.fill_diagonal_(0.0)
    m.fill_diagonal_(0.0)
    owner = SimpleNamespace(device=x.device)
    xy, xx, yy = (CKA._HSIC(owner, a, b) for a, b in ((k, m), (k, k), (m, m)))
    return xy / (xx * yy) ** 0.5


def streamed(x: Tensor, y: Tensor) -> Tensor:
    metric = LinearCKA().to(x.device)
    for a, b in zip(x.split(1000), y.split(1000), strict=True):
        metric.update(a, b)
    return metric.compute()


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def small(n: int, d: int, device: str, repeats: int, slow: bool) -> dict[str, Any]:
    x, y = features(n, d, device, seed=0)
    fast: dict[str, Implementation] = {
        "pour linear_cka": linear_cka,
        "pour LinearCKA, batches of 1,000": streamed,
        "pour linear_cka, debiased": lambda a, b: linear_cka(a, b, debiased=True),
        "Gram of centred features, float32": gram_of_centred_features,
        "Gram of centred features, float64": gram_in_float64,
    }
    once: dict[str, Implementation] = {"Gram with an n x n centring matrix, float32": gram_with_centring_matrix}
    missing = []
    for package, name, call in (
        ("ckatorch", "ckatorch cka_base (float64)", ckatorch_base),
        ("torch_cka", "torch_cka HSIC (debiased, float32)", torch_cka_hsic),
    ):
        if importlib.util.find_spec(package) is None:
            missing.append(package)
        else:
            once[name] = call
    times: dict[str, list[float]] = {}
    values: dict[str, float] = {}

    def measure(name: str, call: Implementation) -> None:
        synchronise(device)
        start = time.perf_counter()
        value = call(x, y)
        synchronise(device)
        times.setdefault(name, []).append(time.perf_counter() - start)
        values[name] = float(value)

    for call in fast.values():
        call(x, y)
    for _ in range(repeats):
        for name, call in fast.items():
            measure(name, call)
    if slow:
        for name, call in once.items():
            measure(name, call)

    ours = statistics.median(times["pour linear_cka"])
    exact = values["Gram of centred features, float64"]
    debiased = values["pour linear_cka, debiased"]
    rows = [
        {
            "name": name,
            "seconds": statistics.median(seconds),
            "fastest": min(seconds),
            "repeats": len(seconds),
            "times_ours": statistics.median(seconds) / ours,
            "times_ours_fastest": min(seconds) / min(times["pour linear_cka"]),
            "value": values[name],
            "off": abs(values[name] - (debiased if "debiased" in name else exact)),
        }
        for name, seconds in times.items()
    ]
    return {"n": n, "d": d, "device": device, "rows": rows, "not_installed": missing}


def chunks(n: int, d: int, device: str, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, n, rows):
        yield features(min(rows, n - start), d, device, seed=1, start=start)


def two_pass(n: int, d: int, device: str, rows: int) -> tuple[float, float]:
    """Return CKA and debiased CKA in float64: means in a first pass over the chunks, centred sums in a second."""
    means = torch.zeros(2, d, dtype=torch.float64, device=device)
    for x, y in chunks(n, d, device, rows):
        means += torch.stack([x.sum(0, dtype=torch.float64), y.sum(0, dtype=torch.float64)]) / n
    sums = torch.zeros(3, d, d, dtype=torch.float64, device=device)
    norms = torch.zeros(5, dtype=torch.float64, device=device)
    for x, y in chunks(n, d, device, rows):
        x, y = x.double() - means[0], y.double() - means[1]
        for total, a, b in zip(sums, (x, x, y), (y, x, y), strict=True):
            total += a.T @ b
        p, q = (x * x).sum(1), (y * y).sum(1)
        norms += torch.stack([p @ q, p @ p, q @ q, p.sum(), q.sum()])
    xy, xx, yy = ((s * s).sum().item() for s in sums)
    pq, pp, qq, p1, q1 = norms.tolist()

    def unbiased(square: float, products: float, totals: float) -> float:
        return square - n / (n - 2) * products + totals / ((n - 1) * (n - 2))

    top = unbiased(xy, pq, p1 * q1)
    return xy / (xx * yy) ** 0.5, top / (unbiased(xx, pp, p1 * p1) * unbiased(yy, qq, q1 * q1)) ** 0.5


def large(n: int, d: int, device: str, rows: int) -> dict[str, Any]:
    plain, debiased = LinearCKA(d).to(device), LinearCKA(d, debiased=True).to(device)
    plain.update(*features(rows, d, device, seed=2))
    plain.compute()
    plain.reset()
    synchronise(device)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    seconds, whole = 0.0, time.perf_counter()
    for x, y in chunks(n, d, device, rows):
        synchronise(device)
        start = time.perf_counter()
        plain.update(x, y)
        synchronise(device)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    value = plain.compute().item()
    seconds += time.perf_counter() - start
    whole = time.perf_counter() - whole
    peak = torch.cuda.max_memory_allocated() if device.startswith("cuda") else None
    for name in plain._defaults:
        setattr(debiased, name, getattr(plain, name))
    debiased._update_count = plain._update_count
    second = debiased.compute().item()
    exact, exact_debiased = two_pass(n, d, device, rows)
    return {
        "n": n,
        "d": d,
        "device": device,
        "rows_per_update": rows,
        "seconds": seconds,
        "seconds_with_making_the_features": whole,
        "value": value,
        "off_from_two_pass_float64": abs(value - exact),
        "debiased": second,
        "debiased_off_from_two_pass_float64": abs(second - exact_debiased),
        "state_bytes": sum(getattr(plain, name).numel() * 8 for name in plain._defaults),
        "peak_device_bytes": peak,
    }


def peak_bytes(case: str, n: int, d: int) -> int:
    """Return by how much the peak memory of a fresh process grows while it works on n samples."""
    command = [sys.executable, __file__, "--peak", case, "--n", str(n), "--d", str(d)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(case: str, n: int, d: int) -> None:
    streamed(*features(2000, d, "cpu", seed=0))
    before = high_water()
    if case == "stream":
        metric = LinearCKA()
        for x, y in chunks(n, d, "cpu", 1000):
            metric.update(x, y)
        metric.compute()
    else:
        gram_of_centred_features(*features(n, d, "cpu", seed=0))
    print(high_water() - before)


def high_water() -> int:
    # On Linux getrusage would report the larger memory of the parent process, from before this one was started.
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def show(result: dict[str, Any]) -> None:
    print(f"{result['machine']}, torch {result['torch']}, {result['threads']} CPU threads")
    part = result["small"]
    print(f"\nn = {part['n']:,}, d = {part['d']:,}, {part['device']}, median of repeats")
    print(
        f"{'implementation':46}{'median s':>10}{'x ours':>8}{'fastest s':>11}{'x ours':>8}{'value':>10}{'off by':>10}"
    )
    for row in part["rows"]:
        print(
            f"{row['name']:46}{row['seconds']:10.4f}{row['times_ours']:8.1f}{row['fastest']:11.4f}"
            f"{row['times_ours_fastest']:8.1f}{row['value']:10.6f}{row['off']:10.1e}"
            f"{'  (once)' if row['repeats'] == 1 else ''}"
        )
    for package in part["not_installed"]:
        print(f"{package} is not installed")
    for name, size in result.get("memory", {}).items():
        print(f"peak memory, {name}: {size / 2**20:,.0f} MiB")
    if "large" in result:
        part = result["large"]
        print(f"\nn = {part['n']:,}, d = {part['d']:,}, {part['device']}, one pass")
        for key in list(part)[3:]:
            print(f"  {key.replace('_', ' '):42}{part[key]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-slow", action="store_true", help="leave out the implementations that take minutes")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory of fresh CPU processes")
    parser.add_argument("--large", action="store_true", help="add one pass over --large-n samples")
    parser.add_argument("--large-n", type=int, default=1_281_167)
    parser.add_argument("--large-d", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=16_384, help="samples per update of the large pass")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--peak", choices=["stream", "gram"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak, options.n, options.d)
        return
    # TF32 would make the float32 rivals faster and wrong in the third digit.
    torch.backends.cuda.matmul.allow_tf32 = False
    cuda = options.device.startswith("cuda")
    result: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "small": small(options.n, options.d, options.device, options.repeats, not options.no_slow),
    }
    if not options.no_memory and not cuda:
        result["memory"] = {
            f"{label}, n = {n:,}": peak_bytes(case, n, options.d)
            for label, case, n in (
                ("streaming", "stream", options.n),
                ("streaming", "stream", 10 * options.n),
                ("Gram of centred features", "gram", options.n),
            )
        }
    if options.large:
        result["large"] = large(options.large_n, options.large_d, options.device, options.rows)
    show(result)
    if options.json:
        write_text(options.json, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
