"""The grid on each task: images, scenes and texts."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from bench_cells import cell_bytes, save_texts

import pour
import pour.bench.cell as cells
from pour._torchvision import torchvision_works
from pour.bench import CellKey, Experiment, Outcome, Row, export_store, import_store, read_store, run_experiment
from pour.bench.store import read_cell, seal
from pour.errors import DivergenceError, PourError, UsageError
from pour.training import Recipe, get_recipe

if TYPE_CHECKING:
    from pathlib import Path

torchvision_works()
pytestmark = [
    pytest.mark.filterwarnings("ignore:pour-d still"),
    pytest.mark.filterwarnings("ignore:.*encoder alone"),
]
STEPS = {"steps": 2, "lr": 1e-3}
ORIGINAL = Row(name="original", setting="reference", family="reference")


@dataclass(frozen=True)
class Kind:
    """A small experiment of a task: its rows are original, closed, other and tuned."""

    grid: Experiment
    forget: tuple[int, ...]
    root: Path | None = None

    def walk(self, out: Path, **options: Any) -> Outcome:
        """Compute the missing cells of a store."""
        grid = options.pop("grid", self.grid)
        return run_experiment(grid, out, root=self.root, device="cpu", progress=False, **options)

    def cell(self, row: str) -> CellKey:
        """Return the key of a row's cell."""
        return CellKey(self.forget, 0, row)


def images(_: pytest.FixtureRequest, __: Path) -> Kind:
    rows = (
        ORIGINAL,
        Row(name="closed", method="pour-p"),
        Row(name="other", method="masked-head"),
        Row(name="tuned", method="delete", setting="tuned", options=STEPS),
    )
    recipe = get_recipe("digits").change(epochs=2)
    common: dict[str, Any] = {"recipe": recipe, "forget": ((3,),), "seeds": (0,), "rows": rows}
    return Kind(Experiment(name="mine", dataset="digits", architecture="resnet-digits", **common), (3,))


def scenes(request: pytest.FixtureRequest, _: Path) -> Kind:
    pytest.importorskip("segmentation_models_pytorch")
    rows = (
        ORIGINAL,
        Row(name="closed", method="pour-p"),
        Row(name="other", method="masked-head"),
        Row(name="tuned", method="pour-d", setting="tuned", options={**STEPS, "batch_size": 4, "optimizer": "adamw"}),
    )
    grid = Experiment(
        name="mine",
        task="segment",
        settings={"pixels": 100},
        dataset="camvid",
        architecture="smp:linknet:tu-mobilenetv3_small_050",
        recipe=Recipe(epochs=2, batch_size=6, optimizer="adamw", lr=5e-3),
        forget=(("car",),),
        seeds=(0,),
        rows=rows,
    )
    return Kind(grid, (2,), request.getfixturevalue("small_world"))


def texts(_: pytest.FixtureRequest, folder: Path) -> Kind:
    rows = (
        ORIGINAL,
        Row(name="closed", method="text-direction", options={"part": "text"}),
        Row(name="other", method="text-direction", options={"part": "random"}),
        Row(name="tuned", method="delete", setting="tuned", options=STEPS),
    )
    grid = Experiment(
        name="mine",
        task="match",
        settings={"text": str(save_texts(folder / "digits.npz"))},
        dataset="digits",
        architecture="clip-resnet-digits",
        recipe=get_recipe("digits").change(epochs=2),
        forget=((3,),),
        seeds=(0,),
        rows=rows,
    )
    return Kind(grid, (3,))


@pytest.fixture(scope="module", params=[images, scenes, texts], ids=lambda make: make.__name__)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """A small experiment of each task."""
    made: Kind = request.param(request, tmp_path_factory.mktemp("texts"))
    return made


@pytest.fixture(scope="module")
def finished(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a finished grid; tests change copies."""
    out = tmp_path_factory.mktemp("grid") / "store"
    outcome = kind.walk(out)
    assert (outcome.done, outcome.kept, outcome.failed) == (4, 0, ())
    return out


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished store."""
    return shutil.copytree(finished, tmp_path / "store")


def test_a_cell_has_its_settings_values_and_report(kind: Kind, finished: Path) -> None:
    for row in kind.grid.rows:
        cell = read_cell(finished, kind.cell(row.name))
        assert cell is not None
        assert cell.setup["options"] == json.loads(json.dumps(row.resolved()))
        assert {**cell.setup, **kind.grid.cell_identity} == cell.setup
        assert {"cka_f_o", "cka_r_o", "rus_o"} <= set(cell.values)
        report = pour.AuditReport.load((finished / cell.key.path).with_suffix(".report.json"))
        assert report.value("rus_o") == cell.values["rus_o"].value
        assert set(cell.models) == {"original", "unlearned"}
    model = pour.load(finished / "models" / "seed-0" / "original.safetensors")
    assert pour.models.state.digest(model.state_dict()) == cell.models["original"]  # type: ignore[attr-defined]
    assert not (finished / "cache").exists()


def test_what_is_stored_is_kept(kind: Kind, store: Path, computed: list[str]) -> None:
    before = cell_bytes(store)
    assert kind.walk(store, seeds=[0, 0]).kept == 4
    shutil.rmtree(store / "models")
    assert kind.walk(store).kept == 4, "results do not need their models"
    assert computed == []
    assert cell_bytes(store) == before


def test_damaged_and_missing_files_are_computed_again(kind: Kind, store: Path, computed: list[str]) -> None:
    before = cell_bytes(store)
    closed, other = (store / kind.cell(row).path for row in ("closed", "other"))
    closed.write_text(closed.read_text()[:300])
    other.unlink()
    assert kind.walk(store).done == 2
    assert computed == ["closed", "other"]
    model = store / "models" / "seed-0" / "original.safetensors"
    content = bytearray(model.read_bytes())
    content[-5] ^= 1
    model.write_bytes(content)
    other.unlink()
    assert kind.walk(store).done == 1
    assert computed[2:] == ["original", "other"], "an altered model is trained again"
    assert cell_bytes(store) == before


def test_other_options_compute_only_their_cell_again(kind: Kind, store: Path, computed: list[str]) -> None:
    rows = tuple(
        replace(row, options={**row.options, "steps": 3}) if row.name == "tuned" else row for row in kind.grid.rows
    )
    kind.walk(store, grid=replace(kind.grid, rows=rows))
    assert computed == ["tuned"]


def test_a_store_of_other_settings_is_refused(kind: Kind, store: Path, computed: list[str]) -> None:
    longer = replace(kind.grid, recipe=kind.grid.recipe.change(epochs=3))
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for options, words in (
        ({"grid": longer}, r"another recipe \(\w+ of 2, not \w+ of 3\)"),
        ({"grid": replace(kind.grid, name="another")}, "contains results of mine, not of another"),
        ({"precision": "bf16"}, r"another precision \(fp32, not bf16\)"),
    ):
        with pytest.raises(UsageError, match=words):
            kind.walk(store, **options)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    (store / "experiment.json").write_text("[]")
    with pytest.raises(UsageError, match="another recipe"):
        kind.walk(store, grid=longer)
    assert kind.walk(store).kept == 4
    assert json.loads((store / "experiment.json").read_text())["name"] == "mine"
    assert computed == []


def test_the_precision_is_that_of_the_stored_results(kind: Kind, store: Path) -> None:
    for cell in read_store(store):
        (store / cell.key.path).write_text(seal(replace(cell, precision="bf16")))
    for facts in (store / "models").rglob("*.json"):
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "precision": "bf16"}))
    (store / kind.cell("closed").path).unlink()
    assert kind.walk(store).done == 1
    assert {cell.precision for cell in read_store(store)} == {"bf16"}


def test_models_of_other_samples_are_refused(
    kind: Kind, store: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = type(kind.grid.get_task())
    monkeypatch.setattr(task, "digest", lambda self, dataset: "0" * 64)
    with pytest.raises(UsageError, match=r"was trained on other images than \w+ has now; give another folder"):
        kind.walk(store)
    assert computed == []
    monkeypatch.undo()

    def missing(*_: Any, **__: Any) -> None:
        raise UsageError("The dataset is not here.")

    monkeypatch.setattr(task, "digest", missing)
    assert kind.walk(store).kept == 4, "finished results can be shown without the dataset"


def test_failures_cost_only_their_own_cell(kind: Kind, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cells.carry_out

    def fails(model: Any, request: Any, method: Any, run: Any) -> Any:
        if method.name == kind.grid.rows[3].method:
            raise DivergenceError("The loss became nan at step 1.")
        result = real(model, request, method, run)
        if method.name == kind.grid.rows[2].method:
            next(iter(result.state_dict().values())).fill_(float("nan"))
        return result

    monkeypatch.setattr(cells, "carry_out", fails)
    for row in ("other", "tuned"):
        (store / kind.cell(row).path).unlink()
    outcome = kind.walk(store)
    assert outcome.done == 2
    assert outcome.failed[-1] == "tuned, seed 0: The loss became nan at step 1."
    assert "other, seed 0" in outcome.failed[0]

    def breaks(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cells, "carry_out", breaks)
    (store / kind.cell("closed").path).unlink()
    (store / kind.cell("original").path).unlink()
    with pytest.raises(PourError, match="such as closed of seed 0: 'RuntimeError: out of memory'"):
        kind.walk(store)
    assert (store / kind.cell("original").path).is_file()
    errors = list((store / "errors").rglob("closed.txt"))
    assert "Traceback" in errors[0].read_text()
    monkeypatch.undo()
    assert kind.walk(store).done == 1, "the same command tries again"
    assert not errors[0].exists()


def test_a_tuned_row_is_not_replaced_by_an_untuned_one(kind: Kind, store: Path, computed: list[str]) -> None:
    *rows, tuned = kind.grid.rows
    rows.append(replace(tuned, options={**tuned.options, "steps": 3}, untuned=True))
    with pytest.raises(UsageError, match="has tuned options, and this run would replace it"):
        kind.walk(store, grid=replace(kind.grid, rows=tuple(rows)))
    assert computed == []


def test_results_travel_without_their_models(kind: Kind, store: Path, tmp_path: Path) -> None:
    assert export_store(store, tmp_path / "cells.json.gz") == 4
    assert import_store(tmp_path / "cells.json.gz", tmp_path / "there") == 4
    assert read_store(tmp_path / "there") == read_store(store)
    assert kind.walk(tmp_path / "there").kept == 4


@pytest.mark.slow
def test_processes_side_by_side_compute_the_same_bytes(kind: Kind, store: Path) -> None:
    before = cell_bytes(store)
    for row in ("closed", "tuned"):
        (store / kind.cell(row).path).unlink()
    (store / "models" / "seed-0" / "original.safetensors").unlink()
    assert kind.walk(store, jobs=2).done == 2
    assert cell_bytes(store) == before
