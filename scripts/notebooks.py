"""Execute the notebooks and store them with their outputs (make notebooks).

    python scripts/notebooks.py [--check] [NAME ...]

The source of a notebook is a Python file in ``notebooks/`` with cells in jupytext's percent format. ``--check`` runs
the sources, writes nothing, and fails if a stored notebook has other cells than its source or no outputs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def execute(source: Path) -> Any:
    """Return the notebook of a source with its outputs. Execution begins in an empty folder."""
    notebook = jupytext.read(source)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(notebook.cells):
        # The same source gives the same file.
        cell["id"] = f"cell-{number}"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}, record_timing=False)
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


def problems(source: Path, executed: Any) -> list[str]:
    """Return a sentence for each difference between a stored notebook and its source."""
    file = source.with_suffix(".ipynb")
    if not file.is_file():
        return [f"{file.name} is missing: run make notebooks"]
    stored = nbformat.read(file, as_version=4)
    if [cell.source for cell in stored.cells] != [cell.source for cell in executed.cells]:
        return [f"{file.name} has other cells than {source.name}: run make notebooks"]
    pairs = zip(stored.cells, executed.cells, strict=True)
    silent = [index for index, (old, new) in enumerate(pairs) if new.get("outputs") and not old.get("outputs")]
    return [f"{file.name} has no output in cells {silent}: run make notebooks"] if silent else []


def main() -> int:
    """Execute the notebooks of the command line, by default all, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of notebooks, by default all")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a notebook is out of date")
    options = parser.parse_args()
    sources = [NOTEBOOKS / f"{name}.py" for name in options.names] or sorted(NOTEBOOKS.glob("*.py"))
    found = []
    for source in sources:
        executed = execute(source)
        if options.check:
            found += problems(source, executed)
        else:
            nbformat.write(executed, source.with_suffix(".ipynb"))
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
