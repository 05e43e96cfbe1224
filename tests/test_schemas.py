"""Real files of each kind that pour reads, and the JSON Schema of each in docs/schemas/."""

from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench_cells import keep, made_up, small_grid
from safetensors import safe_open
from script_modules import script

import pour
from pour._records import decode, encode
from pour.bench.tuning import MethodTuning
from pour.errors import UsageError
from pour.training import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ROOT / "tests" / "networks" / "digits"
SCHEMAS = script("schemas")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, digits: Any, digits_original: Any) -> Mapping[str, str]:
    """Return the text of a file of each kind, as pour writes it."""
    folder = tmp_path_factory.mktemp("files")
    student = pour.forget(digits_original, classes=["3"])
    pour.save(student, folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        header = file.metadata()["pour"]
    report = pour.audit(
        original=digits_original, unlearned=student, data=digits, device="cpu", progress=False, cache=folder / "cache"
    )
    experiment = small_grid()
    keep(folder / "store", experiment, made_up(experiment, "pour-p", values={"acc_r": 0.9}))
    run = Run(device="cpu", progress=False)
    options = {"batch_size": 64, "augment": False, "steps": 2, "lr": 1e-4}
    tuning = MethodTuning(
        model=digits_original, dataset=digits, classes=(3,), method="delete", run=run, out=folder, options=options
    )
    tuning.result()
    study = json.loads((ROOT / "results" / "study" / "cifar10.json").read_text())["separation"]
    built_in = ROOT / "src" / "pour" / "bench" / "experiments" / "cifar10.toml"
    return {
        "experiment": json.dumps(tomllib.loads(built_in.read_text(encoding="utf-8"))),
        "model-header": header,
        "audit": report.to_json(),
        "measure": next((folder / "cache").glob("*-measures.json")).read_text(),
        "cell": next((folder / "store" / "cells").rglob("pour-p.json")).read_text(),
        "stored-experiment": (folder / "store" / "experiment.json").read_text(),
        "results": gzip.decompress((ROOT / "results" / "cifar10-batchnorm.json.gz").read_bytes()).decode(),
        "trial": next((folder / "delete-user").glob("[!r]*.json")).read_text(),
        "tuning": (folder / "delete-user" / "result.json").read_text(),
        "study": json.dumps(study),
    }


def given_keys(encoded: Any, given: Any) -> Any:
    """Return ``encoded`` without the keys that ``given`` lacks."""
    if isinstance(given, dict):
        return {key: given_keys(encoded[key], value) for key, value in given.items()}
    if isinstance(given, list):
        assert len(encoded) == len(given)
        return [given_keys(*pair) for pair in zip(encoded, given, strict=True)]
    return encoded


@pytest.mark.parametrize("kind", SCHEMAS.KINDS)
def test_a_real_file_of_each_kind_is_decoded_and_encoded_again(files: Mapping[str, str], kind: str) -> None:
    decoded = decode(SCHEMAS.record(kind), files[kind], kind)
    assert isinstance(decoded, SCHEMAS.record(kind))
    # Keys that the file of an experiment, or a cell of an earlier version, lacks have defaults.
    encoded = json.loads(encode(decoded))
    assert given_keys(encoded, json.loads(files[kind])) == json.loads(files[kind])


@pytest.mark.parametrize("kind", SCHEMAS.KINDS)
def test_a_file_with_an_unknown_key_is_refused(files: Mapping[str, str], kind: str) -> None:
    with pytest.raises(UsageError, match=f"{kind} has the unknown key surprise; remove it"):
        decode(SCHEMAS.record(kind), json.dumps({**json.loads(files[kind]), "surprise": 1}), kind)


def test_the_schemas_of_the_docs_are_up_to_date() -> None:
    found = {path.stem: path.read_text(encoding="utf-8") for path in SCHEMAS.FOLDER.glob("*.json")}
    schemas = SCHEMAS.schemas()
    if "Unique name in the experiment" not in schemas["experiment"]:
        pytest.skip("this version of pydantic does not read the docstrings of fields")
    assert found == schemas, "run make docs"


def test_the_schema_of_an_experiment_fits_the_built_in_files() -> None:
    validate = pytest.importorskip("jsonschema").Draft202012Validator(json.loads(SCHEMAS.schemas()["experiment"]))
    files = sorted((ROOT / "src" / "pour" / "bench" / "experiments").glob("*.toml"))
    assert len(files) >= 8
    for file in files:
        text = file.read_text(encoding="utf-8")
        first = text.splitlines()[0]
        assert (file.parent / first.removeprefix("#:schema ")).resolve() == SCHEMAS.FOLDER / "experiment.json"
        assert validate.is_valid(tomllib.loads(text)), file
    assert not validate.is_valid({**tomllib.loads(text), "colour": 1})
    assert not validate.is_valid({"seeds": [0]})
