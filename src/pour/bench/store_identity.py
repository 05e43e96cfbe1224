"""Whose results a folder holds: its experiment, network, recipe and precision, none of which it mixes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, get_args

from pour._io import write_text
from pour.bench.experiments import START
from pour.bench.store import CELLS, read_store
from pour.errors import UsageError
from pour.training.run import Precision, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pour.bench.experiments import Experiment

__all__ = [
    "EXPERIMENT_FILE",
    "OF_ALL_CELLS",
    "check_folder",
    "model_facts",
    "read_experiment",
    "refuse_other",
    "settled_precision",
    "write_experiment",
]

EXPERIMENT_FILE = "experiment.json"
MODELS = "models"
OF_ALL_CELLS = ("dataset", "architecture", "recipe", *START)
"""What decides how the models of a store came about."""
_DIGEST = re.compile("[0-9a-f]{64}")


def check_folder(out: Path) -> None:
    """Raise where a store cannot be, because there is a file, or no folder can be reached."""
    places = (out, *out.parents, out / CELLS, out / MODELS)
    try:
        blocked = next((path for path in places if path.exists() and not path.is_dir()), None)
    except OSError as error:
        raise UsageError(f"{out} cannot be used ({error.strerror or error}); give another folder.") from error
    if blocked is not None:
        raise UsageError(f"{blocked} is a file; give a folder for the results.")


def model_facts(out: Path) -> Iterator[dict[str, Any]]:
    """What the files beside the models of a store say of their training."""
    for path in sorted((out / MODELS).rglob("*.json")):
        if path.name.endswith(".run.json"):
            continue
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            yield found


def settled_precision(out: Path, asked: Precision | None) -> Precision | None:
    """The precision to work in: what is asked for, else that of the cells and models that are there.

    One that neither has would replace them all, and is refused. Where they have both, one must be asked for.
    """
    Run(device="cpu", precision=asked)
    cells = read_store(out) if (out / CELLS).is_dir() else []
    found = {cell.precision for cell in cells} | {str(facts.get("precision")) for facts in model_facts(out)}
    there: list[Precision] = [known for known in get_args(Precision) if known in found]
    if asked is None and len(there) > 1:
        raise UsageError(f"{out} holds results in {' and '.join(there)}; say with --precision which of them to keep.")
    if asked is not None and there and asked not in there:
        raise UsageError(f"{out} holds results in another precision ({there[0]}, not {asked}); give another folder.")
    return there[0] if asked is None and there else asked


def read_experiment(out: Path) -> dict[str, Any] | None:
    """What the store says of its experiment, or None where there is no readable file."""
    try:
        found = json.loads((out / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    try:
        return found if isinstance(found, dict) and _is_experiment(found) else None
    except (AttributeError, TypeError):
        return None


def _is_experiment(found: Mapping[str, Any]) -> bool:
    """Whether what tables ask of an experiment is of its kind; scenes are requested by name, and texts have no rows."""
    rows, columns, forget = (found.get(name, []) for name in ("rows", "columns", "forget"))
    return (
        isinstance(found.get("name"), str)
        and all(isinstance(listed, list) for listed in (rows, columns, forget))
        and all(isinstance(column, str) for column in columns)
        and all(isinstance(name, str) for row in rows for name in ([row] if isinstance(row, str) else _named(row)))
        and all(isinstance(label, int | str) for request in forget for label in request)
    )


def _named(row: Mapping[str, Any]) -> tuple[object, object]:
    """What a row is called, and its setting; None for what it does not say."""
    return row.get("name"), row.get("setting")


def write_experiment(out: Path, experiment: Experiment) -> None:
    """Say whose results the store holds; a store of another experiment is refused.

    Where nothing readable says so, the cells and models that are there do.
    """
    known = read_experiment(out)
    if known is not None and known["name"] != experiment.name:
        raise UsageError(f"{out} holds results of {known['name']}, not of {experiment.name}; give another folder.")
    text = json.dumps(experiment.to_dict(), indent=1, sort_keys=True) + "\n"
    everything = json.loads(text)
    asked = {name: everything.get(name) for name in OF_ALL_CELLS}
    if known is not None:
        refuse_other(out, known, asked)
    else:
        setups = [cell.setup for cell in read_store(out)] if (out / CELLS).is_dir() else []
        for facts in (*setups, *model_facts(out)):
            refuse_other(out, {"name": facts.get("dataset"), **facts}, asked)
    if known is None or (out / EXPERIMENT_FILE).read_text(encoding="utf-8") != text:
        write_text(out / EXPERIMENT_FILE, text)


def refuse_other(out: Path, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise where a store's models came about in another way than is asked for.

    Args:
        out: the store.
        known: what it says of its experiment.
        asked: what decides how models come about.
    """
    other = next((name for name, value in asked.items() if known.get(name) != value), None)
    if other is None:
        return
    before, after = known.get(other), asked[other]
    there, wanted = _brief(before), _brief(after)
    if there == wanted and isinstance(before, dict) and isinstance(after, dict):
        # Two recipes of one name and length.
        entry = next(name for name in {**before, **after} if before.get(name) != after.get(name))
        there, wanted = (f"{entry} {recipe.get(entry)}" for recipe in (before, after))
    raise UsageError(
        f"{out} holds results of {known['name']} with another {other.replace('_', ' ')} ({there}, not {wanted}); "
        "give another folder."
    )


def _brief(value: Any) -> str:
    """A recipe by its name and length, a digest by its first digits, anything else as it is."""
    if isinstance(value, dict):
        return f"{value.get('name')} of {value.get('epochs') or value.get('steps')}"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:12]
    return "none" if value is None else str(value)
