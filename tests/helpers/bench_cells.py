"""Cells made up for tests of the store and the tables, and a grid that takes seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from pour.auditing.measurement import Reading
from pour.bench import Cell, Experiment, Row, get_experiment
from pour.bench.cell import cell_setup
from pour.bench.rows import expand_rows
from pour.bench.store import StoredExperiment, write_cell, write_experiment
from pour.models import CAPTIONS, PROMPTS, TextTable
from pour.models.clip.texts import prompts_of
from pour.unlearning import get_method

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE_ROWS = expand_rows(["references"], "digits")


def small_grid(**changes: Any) -> Experiment:
    """Six cells of a network that is hardly trained."""
    rows = (
        *REFERENCE_ROWS,
        Row(name="pour-p", method="pour-p", setting="closed form", family="paper"),
        Row(name="delete-tuned", method="delete", setting="tuned", family="paper", options={"steps": 2, "lr": 1e-3}),
        Row(name="masked-head", method="masked-head", setting="closed form", family="control"),
    )
    digits = get_experiment("digits")
    base: dict[str, Any] = {"recipe": digits.recipe.change(epochs=2), "rows": rows, "seeds": (0,)}
    return replace(digits, **(base | changes))


def table_grid(dataset: str = "cifar10", **changes: Any) -> Experiment:
    """An experiment whose cells are never computed, with methods that have no tuned options."""
    names = ("references", "finetune", "sure", "delete", "pour-p", "pour-d", "masked-head")
    rows = expand_rows(names, dataset, architecture="a network that nothing was tuned on")
    return replace(get_experiment("cifar10"), name=dataset, dataset=dataset, rows=rows, **changes)


def made_up(
    experiment: Experiment,
    row: str,
    *,
    seed: int = 0,
    forget: tuple[int, ...] = (0,),
    values: dict[str, float] | None = None,
    models: str = "a",
    **changes: Any,
) -> Cell:
    found = next(entry for entry in experiment.rows if entry.name == row)
    from pour.bench import CellKey

    facts: dict[str, Any] = {
        "setup": cell_setup(experiment, found, CellKey(forget, seed, row)),
        "models": {role: f"{role} {models} {seed}" for role in ("original", "retrained", "ceiling")},
        "data": "images",
        "precision": "fp32",
        "versions": {"pour": "0"},
        "family": found.family,
        "needs": () if found.method is None else get_method(found.method).needs,
        "note": found.note,
        "untuned": found.untuned,
        "forgotten_names": ("airplane",),
        "values": {name: Reading(value=value, n=10) for name, value in (values or {}).items()},
    }
    return Cell(**(facts | changes))


def save_texts(path: Path, *, width: int = 48) -> Path:
    """Write random text embeddings of the digits: a common part, a part of the class, a little of the template."""
    numbers = torch.Generator().manual_seed(0)
    common, classes = torch.randn(width, generator=numbers), torch.randn(10, width, generator=numbers)
    templates = (*CAPTIONS, *PROMPTS)
    noise = 0.2 * torch.randn(len(templates), 10, width, generator=numbers)
    rows = F.normalize((0.8 * common + classes + noise).flatten(0, 1), dim=1)
    return TextTable(tuple(prompts_of(list(map(str, range(10))), templates)), rows, "random").save(path)


def keep(out: Path, experiment: Experiment, *cells: Cell) -> None:
    write_experiment(out, StoredExperiment.of(experiment))
    for cell in cells:
        write_cell(out, cell, {"seconds": 1.0}, "{}\n")


def cell_bytes(out: Path) -> dict[str, bytes]:
    """Return the files of all cells and reports, without times and hosts."""
    files = (out / "cells").rglob("*.json")
    return {str(file.relative_to(out)): file.read_bytes() for file in files if not file.name.endswith(".run.json")}
