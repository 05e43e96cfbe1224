"""Measure `pour.unlearn` without a single option, on six ordinary networks of scikit-learn's digits.

The networks are those of ``digits_networks.py``: three CNNs, two MLPs and a small transformer, trained in the run. A
result is good if the class keeps at most 3 % of its test images and the accuracy on the other classes (Acc_r) falls by
at most 1.5 points. Progress goes to standard error, the table to standard output.

    python benchmarks/first_call.py                                   every method; class 0, seed 1
    python benchmarks/first_call.py --only pour-a                     these methods again, the others as stored
    python benchmarks/first_call.py --fresh --classes 2,6 --seeds 8,9 POUR-A, POUR-P, POUR-D and DELETE

The first two write ``results/first_call/methods.json`` and its summary for `pour methods`,
``src/pour/unlearning/first_call.json``; the third writes ``results/first_call/fresh.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from digits_networks import BODIES, BedData, accuracies, bed_data, bed_network, plain_classifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pour
from pour._io import write_text
from pour._provenance import circumstances
from pour.errors import PourError, UsageError
from pour.models import find_head
from pour.models.copy_and_swap import swap_module
from pour.models.projecting.projected_head import ProjectedHead
from pour.unlearning import get_method, make_method

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "src" / "pour" / "unlearning" / "first_call.json"
RESULTS = ROOT / "results" / "first_call"
LABEL, SEED = 0, 1
MOST_LEFT, MOST_LOST = 3.0, 1.5
HELD_OUT = 120
NOT_RUN = {
    "retrain": "needs the recipe that the original was trained with, and these networks have none",
    "text-direction": "is for dual encoders, and these networks have no texts",
}
FRESH: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("pour-a", "pour-a", {}),
    ("pour-p", "pour-p", {}),
    ("pour-d", "pour-d", {}),
    ("delete", "delete", {}),
    ("delete, anchored", "delete", {"anchor": "views"}),
)


def request_of(name: str, body: str, data: BedData, label: int) -> pour.ForgetRequest:
    """Return a request with a loader of forget images, and with the other data that the method needs."""
    needs = get_method(name).needs
    loaders: dict[str, Any] = {}
    if "validation" in needs:
        # The last training images are held out. The originals have seen them, as in the requests of `pour unlearn`.
        images, labels = data.train_images[-HELD_OUT:], data.train_labels[-HELD_OUT:]
        rows = labels != label
        loaders["validation"] = DataLoader(TensorDataset(images[rows], labels[rows]), batch_size=64, shuffle=True)
        data = BedData(data.train_images[:-HELD_OUT], data.train_labels[:-HELD_OUT], data.test_images, data.test_labels)
    # Methods in closed form do not read the forget images. Their head is verified on them.
    loaders["forget"] = data.forget_loader(label)
    if "retain" in needs:
        loaders["retain"] = data.retain_loader(label)
    if "build" in needs:
        loaders["build"] = partial(plain_classifier, body)
    return pour.ForgetRequest(classes=[label], **loaders)


def without_projector(model: nn.Module) -> nn.Module:
    """Return a copy whose head has no projector; the head itself is as the method left it."""
    copied = copy.deepcopy(model)
    place = find_head(copied).module
    return swap_module(copied, place, place.head) if isinstance(place, ProjectedHead) else copied


def row_kept(model: nn.Module) -> nn.Module:
    """Return a copy whose projected head keeps the forgotten class's own score."""
    copied = copy.deepcopy(model)
    place = find_head(copied).module
    if isinstance(place, ProjectedHead):
        place.forgotten_logit = "keep"
    return copied


def measure(
    original: nn.Module, body: str, method: str, options: dict[str, Any], data: BedData, label: int
) -> dict[str, Any]:
    """Unlearn ``label`` and return the accuracies before and after, or the error."""
    acc_r, acc_f = accuracies(original, data, label)
    row: dict[str, Any] = {"original_acc_r": acc_r, "original_acc_f": acc_f}
    request = request_of(method, body, data, label)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            student = pour.unlearn(original, request, method=method, progress=False, **options)
        except PourError as error:
            return {**row, "failed": str(error)}
    row["seconds"] = time.perf_counter() - started
    row["acc_r"], row["acc_f"] = accuracies(student, data, label)
    if isinstance(find_head(student).module, ProjectedHead):
        row["kept_acc_r"], row["kept_acc_f"] = accuracies(row_kept(student), data, label)
    row["unprojected_acc_r"], row["unprojected_acc_f"] = accuracies(without_projector(student), data, label)
    record = pour.history(student)[-1]
    choices = {name: record.options[name] for name in ("direction", "anchor", "lr") if name in record.options}
    shares = {name: value for entry in record.log for name, value in entry.items() if name == "encoder_share"}
    texts = [str(warning.message) for warning in raised if issubclass(warning.category, UserWarning)]
    return {**row, **shares, "chosen": choices, "steps": record.steps, "warnings": texts}


def rows_of(
    cases: list[tuple[str, str, dict[str, Any]]], data: BedData, labels: list[int], seeds: list[int]
) -> list[dict[str, Any]]:
    """Measure every case on every network, class and seed."""
    rows = []
    for seed in seeds:
        for body in BODIES:
            original = bed_network(body, data, seed=seed)
            for label in labels:
                for name, method, options in cases:
                    row = measure(original, body, method, options, data, label)
                    rows.append({"name": name, "network": body, "class": label, "seed": seed, **row})
                    found = row.get("failed") or (
                        f"Acc_r {row['original_acc_r']:.1f} to {row['acc_r']:.1f}, Acc_f {row['acc_f']:.1f}, "
                        f"without the projector {row['unprojected_acc_f']:.1f}, {row['seconds']:.1f} s"
                    )
                    print(f"{body}, class {label}, seed {seed}: {name}: {found}", file=sys.stderr, flush=True)
    return rows


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts, means and worst values of one method's rows."""
    done = [row for row in rows if "failed" not in row]
    summary: dict[str, Any] = {"networks": len(rows), "failed": len(rows) - len(done)}
    if not done:
        return {**summary, "errors": sorted({row["failed"] for row in rows})}
    changes = [row["acc_r"] - row["original_acc_r"] for row in done]
    left = [row["acc_f"] for row in done]
    good = [change >= -MOST_LOST and acc_f <= MOST_LEFT for change, acc_f in zip(changes, left, strict=True)]
    values = {
        "change_acc_r": sum(changes) / len(done),
        "worst_change_acc_r": min(changes),
        "acc_f": sum(left) / len(done),
        "worst_acc_f": max(left),
        "seconds": sum(row["seconds"] for row in done) / len(done),
    }
    summary |= {"good": sum(good), **{name: round(value, 2) for name, value in values.items()}}
    if errors := sorted({row["failed"] for row in rows if "failed" in row}):
        summary["errors"] = errors
    return summary


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line per method, the best first."""
    columns = ("method", "good", "change of Acc_r: mean (worst)", "Acc_f: mean (worst)", "without the projector", "s")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["name"], []).append(row)
    summaries = {name: summary_of(group) for name, group in grouped.items()}
    order = sorted(summaries, key=lambda name: (-summaries[name].get("good", -1), summaries[name].get("acc_f", 100.0)))
    for name in order:
        one = summaries[name]
        if "good" not in one:
            print(f"| {name} | {one['failed']} of {one['networks']} failed | | | | |")
            continue
        encoders = [row["unprojected_acc_f"] for row in grouped[name] if "failed" not in row]
        failed = f" ({one['failed']} failed)" if one["failed"] else ""
        print(
            f"| {name} | {one['good']} of {one['networks']}{failed} "
            f"| {one['change_acc_r']:+.1f} ({one['worst_change_acc_r']:+.1f}) "
            f"| {one['acc_f']:.1f} ({one['worst_acc_f']:.1f}) "
            f"| {sum(encoders) / len(encoders):.1f} ({max(encoders):.1f}) | {one['seconds']:.1f} |"
        )


def surroundings() -> dict[str, Any]:
    """Return command, versions, commit and threads."""
    found = circumstances(torch.device("cpu"), "fp32")
    return {**found, "command": shlex.join(["python", *sys.argv]), "threads": torch.get_num_threads()}


def run_methods(data: BedData, only: list[str]) -> None:
    """Measure the registered methods at their defaults; write all rows and the summary for `pour methods`."""
    names = [info.name for info in pour.list_methods() if info.name not in NOT_RUN]
    if unknown := sorted(set(only) - set(names)):
        raise SystemExit(f"--only names {', '.join(unknown)}; choose from {', '.join(names)}.")
    file = RESULTS / "methods.json"
    stored = json.loads(file.read_text())["rows"] if only and file.is_file() else []
    rows = [row for row in stored if row["name"] not in only and row["name"] in names]
    cases = [(name, name, {}) for name in names if not only or name in only]
    measured = rows_of(cases, data, [LABEL], [SEED])
    facts = surroundings()
    source = {"command": facts["command"], "commit": facts["commit"]}
    rows += [{**row, **source} for row in measured]
    rows.sort(key=lambda row: (row["name"], [*BODIES].index(row["network"])))
    bed = {"class": LABEL, "seed": SEED, "networks": [*BODIES], "good": {"acc_f": MOST_LEFT, "lost_acc_r": MOST_LOST}}
    write_text(file, json.dumps({**facts, "test_bed": bed, "not_run": NOT_RUN, "rows": rows}, indent=1) + "\n")
    summaries = {name: summary_of([row for row in rows if row["name"] == name]) for name in names}
    about = {**bed, "details": "results/first_call/methods.json", "benchmark": "benchmarks/first_call.py"}
    found = {
        name: {
            **summary,
            "options": make_method(name).options(),
            "commit": next(row["commit"] for row in rows if row["name"] == name),
        }
        for name, summary in summaries.items()
        if summary["networks"]
    }
    versions = {name: facts[name] for name in ("versions", "threads")}
    write_text(
        SUMMARY, json.dumps({"test_bed": about, **versions, "not_run": NOT_RUN, "methods": found}, indent=1) + "\n"
    )
    print_table(rows)


def run_fresh(data: BedData, labels: list[int], seeds: list[int]) -> None:
    """Measure POUR-A and its rivals on other classes and seeds."""
    cases, not_run = [], {}
    for name, method, options in FRESH:
        try:
            make_method(method, **options)
            cases.append((name, method, options))
        except UsageError as error:
            not_run[name] = str(error)
            print(f"{name} is left out: {error}", file=sys.stderr)
    rows = rows_of(cases, data, labels, seeds)
    facts = {"classes": labels, "seeds": seeds, "networks": [*BODIES], "not_run": not_run}
    write_text(RESULTS / "fresh.json", json.dumps({**surroundings(), **facts, "rows": rows}, indent=1) + "\n")
    print_table(rows)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="methods to measure again, separated by commas")
    parser.add_argument("--fresh", action="store_true", help="POUR-A, POUR-P, POUR-D and DELETE on --classes, --seeds")
    parser.add_argument("--classes", type=numbers, default=[LABEL], help="for --fresh, separated by commas")
    parser.add_argument("--seeds", type=numbers, default=[SEED], help="for --fresh, separated by commas")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.fresh:
        run_fresh(bed_data(), args.classes, args.seeds)
    else:
        run_methods(bed_data(), [name for name in args.only.split(",") if name])


if __name__ == "__main__":
    main()
