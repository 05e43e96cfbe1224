"""Measure the effect of POUR-D's rate, schedule and length: how large RUS(o) can become, and at which cost.

The models are those of a store of `pour bench`, so that only the students are trained. Without a retrained model, as in
a store of `pour tune`, the measures that need it are left out. Two controls read retained images. `--fresh` initialises
the last block of the original again and trains this block alone on retained images for the number of epochs. `--blend`
spreads the class over the retained classes (controls.py), with the number as the weight of the retained images.

    python benchmarks/pour_d.py runs/digits --data digits --forget 3                      on the CPU
    python benchmarks/pour_d.py runs/cifar10 --data cifar10 --forget airplane --json FILE  for a GPU
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from controls import Blend, with_fresh_block

import pour
from methods import row_of, waited
from pour._io import write_text
from pour._provenance import circumstances
from pour.bench.shared_models import ModelKey
from pour.bench.tuning import starting_rates
from pour.data.splits import Splits
from pour.errors import PourError
from pour.methods.pour_d import PourD
from pour.training import Run
from pour.training.run import Precision
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--forget", required=True, help="a class, or several classes that are forgotten one at a time, as in 3,5"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--factors", default="1,3,10,30,100", help="factors of the default learning rate; empty for the controls alone"
    )
    parser.add_argument("--steps", default="400,2000")
    parser.add_argument("--batch-norms", default="frozen,train")
    parser.add_argument("--schedules", default=PourD().schedule, help="such as cosine,one-cycle; by default POUR-D's")
    parser.add_argument("--fresh", default="", help="epochs of the control, such as 1,5; by default none")
    parser.add_argument("--blend", default="", help="anchors of the control, such as 1,3; by default none")
    parser.add_argument("--device")
    parser.add_argument("--precision", choices=get_args(Precision))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    run = Run(seed=args.seed, device=args.device, precision=args.precision, progress=False)
    # Read before the long work, because the commit may change meanwhile.
    facts = {"data": args.data, "forget": args.forget, "seed": args.seed}
    facts |= circumstances(run.torch_device, run.precision)
    facts["command"] = shlex.join(["python", *sys.argv])
    dataset = pour.load_dataset(args.data)
    original = pour.load(args.store / ModelKey(args.seed, "original").path)
    rows: list[dict[str, object]] = []
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as cache:
        warnings.simplefilter("ignore", UserWarning)
        for forget in args.forget.split(","):
            splits = Splits.of(dataset, [forget])
            judge = judge_of(args.store, original, splits, run, cache)
            for row in sweep(args, original, pour.ForgetRequest.of(splits), run, judge):
                rows.append({"forget": forget, **row})
                print({key: round(value, 4) if isinstance(value, float) else value for key, value in rows[-1].items()})
                if args.json:
                    write_text(args.json, json.dumps({**facts, "rows": rows}, indent=1) + "\n")


def sweep(
    args: argparse.Namespace,
    original: nn.Module,
    request: pour.ForgetRequest,
    run: Run,
    judge: Callable[[nn.Module], dict[str, float]],
) -> Iterator[dict[str, object]]:
    """Yield the measures of the original, then those of every setting."""
    yield {"method": "original", **judge(original)}
    usual = starting_rates(PourD(), original, request, run)["lr"]
    lengths = [int(steps) for steps in args.steps.split(",")]
    factors = [float(factor) for factor in args.factors.split(",") if factor]
    modes, schedules = args.batch_norms.split(","), args.schedules.split(",")
    trials: list[tuple[str, nn.Module, dict[str, object]]] = [
        ("pour-d", original, {"lr": usual * factor, "steps": steps, "batch_norm": mode, "schedule": schedule})
        for steps, mode, schedule, factor in itertools.product(lengths, modes, schedules, factors)
    ]
    for epochs in (int(text) for text in args.fresh.split(",") if text):
        options = {"lr": 0.1, "epochs": epochs, "schedule": "cosine", "batch_norm": "train"}
        trials.append(("finetune", with_fresh_block(original, args.seed), options))
    trials += [("blend", original, {"anchor": float(text)}) for text in args.blend.split(",") if text]
    for method, start, options in trials:
        row: dict[str, object] = {"method": method, **options}
        if method == "pour-d":
            row["factor"] = round(options["lr"] / usual, 6)  # type: ignore[operator]
        started = waited(run.torch_device)
        try:
            made = Blend(**options) if method == "blend" else make_method(method, **options)  # type: ignore[arg-type]
            model = carry_out(start, request, made, run)
            row["seconds"] = waited(run.torch_device) - started
            row |= judge(model)
        except PourError as error:
            row["failed"] = str(error)
        yield row


def judge_of(
    store: Path, original: nn.Module, splits: Splits, run: Run, cache: str
) -> Callable[[nn.Module], dict[str, float]]:
    """An audit, against the retrained network where there is one."""
    path = store / ModelKey(run.seed, "retrained", splits.forgotten).path
    retrained = pour.load(path) if path.is_file() else None
    settings = {"data": splits, "cache": cache, "seed": run.seed, "device": run.device, "progress": False}
    return lambda model: row_of(pour.audit(original=original, unlearned=model, retrained=retrained, **settings))


if __name__ == "__main__":
    main()
