"""Write the choices of a finished tuning into the file of tuned options that ships with pour.

    python scripts/ship_tuning.py FOLDER DATASET

FOLDER is a folder of ``pour tune`` with the rule ``benchmark``. Other datasets and methods in the file do not change.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pour._io import write_text
from pour._records import encode, read
from pour.bench import rows
from pour.errors import UsageError
from pour.unlearning import make_method


def ship(folder: Path, dataset: str, target: Path) -> list[str]:
    """Add the choices in ``folder`` to ``target`` and return the names of the methods.

    Options that were not searched are written too, because a default that changes later must not change a tuned row.
    """
    names = sorted(path.parent.name.removesuffix("-benchmark") for path in folder.glob("*-benchmark/result.json"))
    choices = {name: choice for name in names if (choice := rows.chosen_options(folder, name)) is not None}
    if not choices:
        raise UsageError(f"{folder} has no tuning by the rule benchmark that chose a setting; run pour tune first.")
    other = next((choice.dataset for choice in choices.values() if choice.dataset not in (None, dataset)), None)
    if other is not None:
        raise UsageError(f"{folder} was tuned on {other}, not on {dataset}.")
    shipped = read(rows.Shipped, target) if target.is_file() else {}
    for method, choice in choices.items():
        options = rows.tuned_row_options(method, dataset, choice.options)
        complete = make_method(method, **options).options()
        shipped.setdefault(dataset, {})[method] = replace(choice, options=complete)
    write_text(target, encode(shipped, indent=1, sort_keys=True) + "\n")
    return list(choices)


def main() -> None:
    """Ship the tuning of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("dataset", metavar="DATASET")
    arguments = parser.parse_args()
    print(*ship(arguments.folder, arguments.dataset, rows.TUNED), sep="\n")


if __name__ == "__main__":
    main()
