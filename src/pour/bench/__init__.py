"""The paper's experiments as data, the grid runner and its result store, tables, tuning and the demo."""

from typing import TYPE_CHECKING

from pour._lazy import lazy_names

if TYPE_CHECKING:
    from pour.bench.experiment import EXPERIMENTS, Experiment, get_experiment, parse_seeds
    from pour.bench.grid import Outcome, run_experiment
    from pour.bench.rendering import Format, render, rich_table, show_table
    from pour.bench.rows import Row, expand_rows
    from pour.bench.selection import TuningResult
    from pour.bench.store import Cell, CellKey, export_store, import_store, read_store
    from pour.bench.study import SeparationStudy, run_study, separation_study
    from pour.bench.table import ResultTable, make_table
    from pour.bench.trajectory import Look, Trajectory, follow
    from pour.bench.tuning import MethodTuning, tune_experiment

_HOMES = {
    "EXPERIMENTS": "pour.bench.experiment",
    "Cell": "pour.bench.store",
    "CellKey": "pour.bench.store",
    "Experiment": "pour.bench.experiment",
    "Format": "pour.bench.rendering",
    "Look": "pour.bench.trajectory",
    "MethodTuning": "pour.bench.tuning",
    "Outcome": "pour.bench.grid",
    "ResultTable": "pour.bench.table",
    "Row": "pour.bench.rows",
    "SeparationStudy": "pour.bench.study",
    "Trajectory": "pour.bench.trajectory",
    "TuningResult": "pour.bench.selection",
    "expand_rows": "pour.bench.rows",
    "export_store": "pour.bench.store",
    "follow": "pour.bench.trajectory",
    "get_experiment": "pour.bench.experiment",
    "import_store": "pour.bench.store",
    "make_table": "pour.bench.table",
    "parse_seeds": "pour.bench.experiment",
    "read_store": "pour.bench.store",
    "render": "pour.bench.rendering",
    "rich_table": "pour.bench.rendering",
    "run_experiment": "pour.bench.grid",
    "run_study": "pour.bench.study",
    "separation_study": "pour.bench.study",
    "show_table": "pour.bench.rendering",
    "tune_experiment": "pour.bench.tuning",
}

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "CellKey",
    "Experiment",
    "Format",
    "Look",
    "MethodTuning",
    "Outcome",
    "ResultTable",
    "Row",
    "SeparationStudy",
    "Trajectory",
    "TuningResult",
    "expand_rows",
    "export_store",
    "follow",
    "get_experiment",
    "import_store",
    "make_table",
    "parse_seeds",
    "read_store",
    "render",
    "rich_table",
    "run_experiment",
    "run_study",
    "separation_study",
    "show_table",
    "tune_experiment",
]

__getattr__ = lazy_names("pour.bench", _HOMES)
