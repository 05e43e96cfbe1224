"""Run the paper's experiments: grids of cells, their store, tables and tuning."""

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

_NAMES = {
    "experiment": ("EXPERIMENTS", "Experiment", "get_experiment", "parse_seeds"),
    "grid": ("Outcome", "run_experiment"),
    "rendering": ("Format", "render", "rich_table", "show_table"),
    "rows": ("Row", "expand_rows"),
    "selection": ("TuningResult",),
    "store": ("Cell", "CellKey", "export_store", "import_store", "read_store"),
    "study": ("SeparationStudy", "run_study", "separation_study"),
    "table": ("ResultTable", "make_table"),
    "trajectory": ("Look", "Trajectory", "follow"),
    "tuning": ("MethodTuning", "tune_experiment"),
}
"""Names by the module that defines them."""

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

__getattr__ = lazy_names("pour.bench", _NAMES)
