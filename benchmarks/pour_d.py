"""What POUR-D gives as its learning rate and length grow: how far RUS(o) can be driven, and what that costs.

The models are those of a store of ``pour bench``, so that nothing is trained here but the students. With ``--fresh`` a
control stands beside them that needs retained images: the last block of the original anew, trained on those alone for
so many epochs while the rest stays as it is.

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

import torch
from torch import nn

import pour
from methods import row_of, waited
from pour._circumstances import circumstances
from pour._files import write_text
from pour.bench.shared import ModelKey
from pour.bench.tuning import starting_rates
from pour.data.splits import Splits
from pour.errors import PourError
from pour.methods.pour_d import PourD
from pour.methods.unlearning import carry_out, make_method
from pour.models.surgery import copy_model
from pour.training import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--forget", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--factors", default="1,3,10,30,100", help="of the default learning rate")
    parser.add_argument("--steps", default="400,2000")
    parser.add_argument("--batch-norms", default="frozen,train")
    parser.add_argument("--fresh", default="", help="epochs of the control, such as 1,5; by default none")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    splits = Splits.of(pour.load_dataset(args.data), [args.forget])
    request = pour.ForgetRequest.of(splits)
    run = Run(seed=args.seed, device=args.device, progress=False)
    original = pour.load(args.store / ModelKey(args.seed, "original").path)
    retrained = pour.load(args.store / ModelKey(args.seed, "retrained", splits.forgotten).path)
    rows: list[dict[str, object]] = []
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as cache:
        warnings.simplefilter("ignore", UserWarning)
        usual = starting_rates(PourD(), original, request, run)["lr"]
        lengths = [int(steps) for steps in args.steps.split(",")]
        factors = [float(factor) for factor in args.factors.split(",")]
        trials: list[tuple[str, nn.Module, dict[str, object]]] = [
            ("pour-d", original, {"lr": usual * factor, "steps": steps, "batch_norm": mode})
            for steps, mode, factor in itertools.product(lengths, args.batch_norms.split(","), factors)
        ]
        for epochs in (int(text) for text in args.fresh.split(",") if text):
            options = {"lr": 0.1, "epochs": epochs, "schedule": "cosine", "batch_norm": "train"}
            trials.append(("finetune", with_fresh_block(original, args.seed), options))
        for method, start, options in trials:
            row: dict[str, object] = {"method": method, **options}
            if method == "pour-d":
                row["factor"] = round(options["lr"] / usual, 6)  # type: ignore[operator]
            started = waited(run.torch_device)
            try:
                model = carry_out(start, request, make_method(method, **options), run)
                row["seconds"] = waited(run.torch_device) - started
                row |= row_of(
                    pour.audit(
                        original=original,
                        unlearned=model,
                        retrained=retrained,
                        data=splits,
                        cache=cache,
                        seed=args.seed,
                        device=args.device,
                        progress=False,
                    )
                )
            except PourError as error:
                row["failed"] = str(error)
            rows.append(row)
            print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
            if args.json:
                facts = {"data": args.data, "forget": args.forget, "seed": args.seed}
                facts |= circumstances(run.torch_device, run.precision)
                facts["command"] = shlex.join(["python", *sys.argv])
                write_text(args.json, json.dumps({**facts, "rows": rows}, indent=1) + "\n")


def with_fresh_block(model: nn.Module, seed: int) -> nn.Module:
    """A copy whose last block starts anew and alone may be trained."""
    network = copy_model(model).requires_grad_(False)
    torch.manual_seed(seed)
    block = network.blocks[-1].requires_grad_(True)  # type: ignore[index, operator]
    for module in block.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return network


if __name__ == "__main__":
    main()
