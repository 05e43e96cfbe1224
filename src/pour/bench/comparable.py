"""Which cells may stand in one table."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pour.bench.store_identity import OF_ALL_CELLS
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pour.bench.store import Cell

__all__ = ["check_unmixed"]

Key = TypeVar("Key")
_Alike: TypeAlias = "dict[str, list[Cell]]"


def check_unmixed(cells: Iterable[Cell], settings: Sequence[str] = (), *, remedy: str | None = None) -> None:
    """Raise where cells cannot stand in one table.

    Those of one seed must have been measured against the same models, all on the same images with networks of one kind,
    trained in one way and run in one precision, and each row with the same options for every seed.

    Args:
        cells: of a store.
        settings: further entries of their setup that must agree.
        remedy: what to do instead of making those anew that do not match.
    """
    models: dict[tuple[str, int, tuple[int, ...]], _Alike] = defaultdict(lambda: defaultdict(list))
    kinds: dict[str, _Alike] = defaultdict(lambda: defaultdict(list))
    measured: dict[str, _Alike] = defaultdict(lambda: defaultdict(list))
    options: dict[str, _Alike] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        for role in ("original", "retrained", "ceiling"):
            if role in cell.models:
                request = () if role == "original" else cell.key.forget
                models[role, cell.key.seed, request][cell.models[role]].append(cell)
        for name in OF_ALL_CELLS:
            kinds[name][_text(cell.setup.get(name))].append(cell)
        kinds["precision"][cell.precision].append(cell)
        measured["images"][cell.data].append(cell)
        for name in settings:
            measured[name][_text(cell.setup.get(name))].append(cell)
        options[cell.key.row][_text(cell.setup.get("options"))].append(cell)
    if kind := _mixed(kinds):
        raise UsageError(
            f"The cells of this store differ in their {kind.replace('_', ' ')}; {_unlike(kinds[kind])}, so keep each "
            "kind in its own folder."
        )
    if what := _mixed(measured):
        raise UsageError(f"The cells of this store differ in their {what}; {_redo(measured[what], remedy)}")
    if row := _mixed(options):
        raise UsageError(f"The cells of {row} have different options; {_redo(options[row], remedy)}")
    if found := _mixed(models):
        role, seed, _ = found
        raise UsageError(
            f"The cells of seed {seed} belong to {len(models[found])} different {role} models; "
            f"{_redo(models[found], remedy)}"
        )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _mixed(values: Mapping[Key, _Alike]) -> Key | None:
    """The first of ``values`` that has more than one."""
    return next((key for key, found in values.items() if len(found) > 1), None)


def _unlike(groups: _Alike) -> str:
    """Which cells differ from the others: the smallest of the groups."""
    odd = min(groups.values(), key=len)
    others = sum(map(len, groups.values())) - len(odd)
    rows, seeds = sorted({cell.key.row for cell in odd}), sorted({cell.key.seed for cell in odd})
    classes = dict.fromkeys(" and ".join(_names(cell)) for cell in odd)
    where = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, class {', '.join(classes)}"
    return f"{', '.join(rows)} ({where}) {'is' if len(odd) == 1 else 'are'} unlike the other {others}"


def _redo(groups: _Alike, remedy: str | None) -> str:
    """Which cells differ, and what makes them anew; no row, seed or request of theirs may be left out."""
    if remedy is not None:
        return f"{_unlike(groups)}, so {remedy}."
    cells = [cell for group in groups.values() for cell in group]
    seeds = sorted({cell.key.seed for cell in cells})
    classes = dict.fromkeys(_names(cell)[0] for cell in cells if len(cell.key.forget) == 1)
    flags = ["--seeds", ",".join(map(str, seeds)) + "," * (len(seeds) == 1)]
    flags += [part for name in classes for part in ("--forget", name)]
    return (
        f"{_unlike(groups)}, so run pour bench on this store with {shlex.join(flags)} and without --methods, which "
        "redoes those that do not match, and remove cells of rows that the experiment no longer has."
    )


def _names(cell: Cell) -> tuple[str, ...]:
    return cell.forgotten_names or tuple(map(str, cell.key.forget))
