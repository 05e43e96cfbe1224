"""Write the JSON Schema of each kind of file that pour reads to docs/schemas/.

    python scripts/schemas.py          # write the files
    python scripts/schemas.py --check  # fail if a file is missing, old or not needed

An editor completes and checks the TOML file of an experiment whose first line is ``#:schema PATH/experiment.json``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pour import _records

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"
KINDS = {  # Name of the schema: module and name of the record, title.
    "experiment": ("pour.bench.experiment", "ExperimentFile", "Experiment, as a TOML file for pour bench"),
    "model-header": ("pour.models.header", "Header", "Header of a model, in the metadata of its safetensors file"),
    "audit": ("pour.auditing.report", "AuditReport", "Result of pour audit --out"),
    "measure": ("pour.auditing.cache", "StoredMeasure", "Measured values in the folder of pour audit --cache"),
    "cell": ("pour.bench.store", "_SealedCell", "Cell of pour bench"),
    "stored-experiment": ("pour.bench.store", "StoredExperiment", "File experiment.json of pour bench"),
    "results": ("pour.bench.store", "ResultFile", "Results of pour bench --export, after decompression"),
    "trial": ("pour.bench.tuning", "StoredTrial", "Trial of pour tune"),
    "tuning": ("pour.bench.selection", "TuningResult", "Result of pour tune"),
    "study": ("pour.bench.study", "StudyFile", "Result of pour study"),
}


def record(name: str) -> type[Any]:
    """Return the record of a kind of file."""
    module, kind, _ = KINDS[name]
    described: type[Any] = getattr(importlib.import_module(module), kind)
    return described


def schemas() -> dict[str, str]:
    """Return the schema of each kind of file as JSON, by name; the docstrings of fields are their descriptions."""
    # Only here, because it means that pydantic parses the source.
    _records._CONFIG["use_attribute_docstrings"] = True
    _records._ADAPTERS.clear()
    texts = {}
    for name, (_, _, title) in KINDS.items():
        whole: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        whole |= {**_records.schema(record(name)), "title": title}
        if "base" in whole["properties"]:
            # A file with a base need not repeat its keys.
            whole["anyOf"] = [{"required": ["base"]}, {"required": whole.pop("required")}]
        texts[name] = json.dumps(whole, indent=1) + "\n"
    del _records._CONFIG["use_attribute_docstrings"]
    return texts


def main() -> int:
    """Write or check the files and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare the files")
    options = parser.parse_args()
    texts = {FOLDER / f"{name}.json": text for name, text in schemas().items()}
    present = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    different = sorted(path.name for path in {*texts, *present} if texts.get(path) != present.get(path))
    if options.check:
        print("\n".join(f"docs/schemas/{name} differs; run python scripts/schemas.py" for name in different))
        return int(bool(different))
    FOLDER.mkdir(exist_ok=True)
    for path in present.keys() - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
