"""What freezing BatchNorm means to methods that see retained images: their rates, with BatchNorm training and frozen.

The tuned rows of ``pour bench`` freeze BatchNorm for every method. That is what methods need that see forget images
alone; one that walks over the retained images may let it train, and then bears rates at which it diverges otherwise.
Each row is a method with one of its rates' factors and one mode, audited against the original and a retrained model.

    python benchmarks/batch_norm.py ORIGINAL RETRAINED --data cifar10 --forget airplane --methods finetune --json FILE
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pour
from pour._circumstances import circumstances
from pour._files import write_text
from pour.data.splits import Splits
from pour.errors import PourError
from pour.methods import request_of
from pour.methods.unlearning import make_method
from pour.training import Run

COLUMNS = ("acc_r", "acc_f", "aus", "rus_o", "rus_r", "probe_linear")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("retrained", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--forget", default="3")
    parser.add_argument("--methods", default="finetune,scrub,salun,sure,l1-sparse,fcs")
    parser.add_argument("--factors", default="1,3,10", help="of a method's own learning rates")
    parser.add_argument("--epochs", type=int, help="instead of each method's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--precision", choices=["fp32", "bf16"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    splits = Splits.of(pour.load_dataset(args.data), [args.forget])
    original, retrained = pour.load(args.original), pour.load(args.retrained)
    run = Run(seed=args.seed, device=args.device, precision=args.precision, progress=False)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:

        def judged(model: Any) -> dict[str, float]:
            report = pour.audit(
                original=original,
                unlearned=model,
                retrained=retrained,
                data=splits,
                cache=cache,
                seed=args.seed,
                device=args.device,
                progress=False,
            )
            values = report.values()
            return {name: values[name] for name in COLUMNS if name in values}

        def keep(row: dict[str, Any]) -> None:
            rows.append(row)
            shown = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            print(shown, flush=True)
            if args.json:
                facts = {"data": args.data, "forget": args.forget, "original": args.original.name, "seed": args.seed}
                facts |= circumstances(run.torch_device, run.precision)
                facts["command"] = shlex.join(["python", *sys.argv])
                write_text(args.json, json.dumps({**facts, "rows": rows}, indent=1) + "\n")

        keep({"method": "original", **judged(original)})
        factors = [float(factor) for factor in args.factors.split(",")]
        for name, mode, factor in itertools.product(args.methods.split(","), ("train", "frozen"), factors):
            own = make_method(name)
            rates = {rate: getattr(own, rate) * factor for rate in own.rate_options}  # type: ignore[attr-defined]
            length = {} if args.epochs is None else {"epochs": args.epochs}
            method = make_method(name, batch_norm=mode, **rates, **length)
            request = request_of(splits, method, original, seed=args.seed)
            row = {"method": name, "batch_norm": mode, "factor": factor, "options": method.options()}
            started = time.perf_counter()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    model = pour.unlearn(
                        original,
                        request,
                        method=method,
                        seed=args.seed,
                        device=args.device,
                        precision=run.precision,
                        progress=False,
                    )
            except PourError as error:
                keep({**row, "failed": str(error)})
                continue
            keep({**row, "seconds": time.perf_counter() - started, **judged(model)})


if __name__ == "__main__":
    main()
