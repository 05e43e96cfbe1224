"""Measure the result and the time of every unlearning method, in comparison with retraining in the same run.

For each seed an original and a retrained model are trained, then every method runs with its own defaults (nothing is
tuned; `pour bench` computes the tables) and is audited against both. The first seed runs all methods, the other
seeds run the methods of `--every-seed`. The ratio is the time of retraining over the time of the method, both without
compilation.

    python benchmarks/methods.py                                                        digits, on the CPU
    python benchmarks/methods.py --data cifar10 --forget airplane --seeds 0,1,2 --json FILE   for a GPU
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import pour
from pour._io import write_text
from pour._provenance import circumstances
from pour.data.splits import Splits
from pour.errors import PourError
from pour.training import Run, get_recipe
from pour.training.tasks.classify import Classify
from pour.unlearning import request_of
from pour.unlearning.unlearn import make_method

COLUMNS = (
    "acc_r",
    "acc_f",
    "acc_tr",
    "acc_tf",
    "aus",
    "cka_f_o",
    "cka_r_o",
    "rus_o",
    "rus_r",
    "cka_f_r",
    "cka_r_r",
    "rmia_tpr",
    "probe_linear",
)


def waited(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def row_of(report: pour.AuditReport) -> dict[str, float]:
    values = report.values()
    return {name: values[name] for name in COLUMNS if values.get(name) is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--forget", default="3")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", help="names with commas between them; by default all methods")
    parser.add_argument(
        "--every-seed", default="pour-d,pour-p,masked-head", help="methods of the seeds after the first"
    )
    parser.add_argument("--device")
    parser.add_argument("--keep", type=Path, help="a folder for the first seed's original.safetensors and retrained")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    dataset = pour.load_dataset(args.data)
    splits = Splits.of(dataset, [args.forget])
    recipe = get_recipe("digits" if args.data == "digits" else "fast")
    arch = "resnet-digits" if args.data == "digits" else "resnet18"
    every = [info.name for info in pour.list_methods() if info.name != "retrain"]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    device = Run(device=args.device).torch_device
    rows: list[dict[str, object]] = []

    def keep(row: dict[str, object]) -> None:
        rows.append(row)
        shown = {key: round(value, 4) for key, value in row.items() if isinstance(value, float)}
        print(row["seed"], row["method"], shown, row.get("failed", ""), flush=True)
        if args.json:
            facts = {"data": args.data, "forget": args.forget, "recipe": recipe.name, **circumstances(device, None)}
            facts["command"] = shlex.join(["python", *sys.argv])
            write_text(args.json, json.dumps({**facts, "rows": rows}, indent=1) + "\n")

    for seed in seeds:
        run = Run(seed=seed, device=args.device, progress=False)
        original, _ = Classify().train(dataset, recipe, run, arch=arch)
        started = waited(device)
        # The initialisation differs from the original's, as in pour bench.
        again = Run(seed=seed + 1000, device=args.device, progress=False)
        retrained, log = Classify().train(dataset, recipe, again, arch=arch, without=[args.forget])
        retraining = waited(device) - started

        if args.keep and seed == seeds[0]:
            args.keep.mkdir(parents=True, exist_ok=True)
            for name, model in (("original", original), ("retrained", retrained)):
                pour.save(model, args.keep / f"{name}.safetensors", overwrite=True)
        # Without a cache the two references would be measured again for every method.
        cache = tempfile.TemporaryDirectory()
        references = {"original": original, "retrained": retrained, "data": splits, "seed": seed, "progress": False}
        references["cache"] = cache.name

        def judge(model: torch.nn.Module, references: dict[str, Any] = references) -> dict[str, float]:
            return row_of(pour.audit(unlearned=model, **references))

        keep({"seed": seed, "method": "original", **judge(original)})
        spent = {"seconds": retraining, "loop_seconds": log.seconds}
        keep({"seed": seed, "method": "retrain", **spent, **judge(retrained)})
        chosen = every if args.methods is None else args.methods.split(",")
        for name in chosen if seed == seeds[0] else args.every_seed.split(","):
            # The paper's form.
            options = {"forgotten_logit": "keep", "direction": "weights"} if name == "pour-p" else {}
            method = make_method(name, **options)
            request = request_of(Classify(), dataset, [args.forget], method, original, recipe=recipe, seed=seed)
            started = waited(device)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    model = pour.unlearn(original, request, method=method, seed=seed, device=device, progress=False)
            except PourError as error:
                keep({"seed": seed, "method": name, "options": method.options(), "failed": str(error)})
                continue
            seconds = waited(device) - started
            facts = {"seconds": seconds, "times faster than retraining": log.seconds / seconds}
            keep({"seed": seed, "method": name, "options": method.options(), **facts, **judge(model)})
        cache.cleanup()


if __name__ == "__main__":
    main()
