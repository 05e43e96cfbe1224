"""Write the choices of a finished tuning into the file of tuned options that ships with pour.

    python scripts/ship_tuning.py FOLDER DATASET

FOLDER is a folder of ``pour tune`` with the rule ``benchmark``. Other datasets and methods in the file do not change.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from pour._io import write_text
from pour._records import read
from pour.bench import settings
from pour.errors import UsageError
from pour.unlearning import make_method


def ship(folder: Path, dataset: str, target: Path) -> list[str]:
    """Add the choices in ``folder`` to ``target`` and return the names of the methods.

    Every option is written, also those that were not searched, because a default that changes later must not change a
    tuned row.
    """
    methods = sorted(path.parent.name.removesuffix("-benchmark") for path in folder.glob("*-benchmark/result.json"))
    chosen = {method: found for method in methods if (found := settings.chosen_options(folder, method)) is not None}
    if not chosen:
        raise UsageError(f"{folder} has no tuning by the rule benchmark that chose a setting; run pour tune first.")
    other = next((found.dataset for found in chosen.values() if found.dataset not in (None, dataset)), None)
    if other is not None:
        raise UsageError(f"{folder} was tuned on {other}, not on {dataset}.")
    known = read(settings.Shipped, target) if target.is_file() else {}
    for method, found in chosen.items():
        options = settings.tuned_row_options(method, dataset, found.options)
        complete = make_method(method, **options).options()
        known.setdefault(dataset, {})[method] = replace(found, options=complete)
    content = {name: {method: asdict(found) for method, found in methods.items()} for name, methods in known.items()}
    write_text(target, json.dumps(content, indent=1, sort_keys=True) + "\n")
    return list(chosen)


def main() -> None:
    """Ship the tuning of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("dataset", metavar="DATASET")
    given = parser.parse_args()
    print(*ship(given.folder, given.dataset, settings.TUNED), sep="\n")


if __name__ == "__main__":
    main()
