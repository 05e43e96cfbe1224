from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_cells
import pytest
from bench_cells import cell_bytes, small_grid

import pour
import pour.bench.cell as cells
import pour.training.tasks.classify as classify_module
from pour.bench import (
    CellKey,
    Outcome,
    Row,
    export_store,
    import_store,
    read_store,
    run_experiment,
    tune_experiment,
)
from pour.bench.grid import _turn, _warn_of_tuned_tests
from pour.bench.rows import REFERENCES, expand_rows
from pour.bench.store import read_cell, seal, unseal
from pour.bench.study import FOLLOWED, run_study
from pour.data.dataset import ImageSplit
from pour.errors import DivergenceError, PourError, UsageError
from pour.methods.masked_head import MaskedHead
from pour.methods.pour_p import PourP

ROWS = [row.name for row in small_grid().rows]


def walked(out: Path, **options: Any) -> Outcome:
    grid = options.pop("grid", small_grid())
    return run_experiment(grid, out, device="cpu", progress=False, **options)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a walk that nothing disturbed; tests work on copies."""
    out = tmp_path_factory.mktemp("bench") / "store"
    outcome = walked(out)
    assert (outcome.done, outcome.kept, outcome.failed) == (len(ROWS), 0, ())
    return out


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "store")
    return tmp_path / "store"


def test_a_cell_says_everything_that_is_needed_to_repeat_it(finished: Path) -> None:
    cell = read_cell(finished, CellKey((3,), 0, "delete-tuned"))
    assert cell is not None
    assert cell.setup["options"]["batch_size"] == 128, "defaults are written out"
    assert (cell.setup["options"]["lr"], cell.setup["seed"], cell.setup["forgotten"]) == (1e-3, 0, [3])
    assert cell.setup["recipe"]["epochs"] == 2
    for role, name in (
        ("original", "seed-0/original"),
        ("retrained", "seed-0/forget-3/retrained"),
        ("ceiling", "seed-1/forget-3/retrained"),
    ):
        model = pour.load(finished / "models" / f"{name}.safetensors")
        assert cell.models[role] == pour.models.state.digest(model.state_dict())  # type: ignore[attr-defined]
    assert len({*cell.models.values()}) == 4
    assert cell.versions["torch"]
    assert (cell.needs, cell.steps, cell.precision) == (("forget",), 2, "fp32")
    reading = cell.values["acc_r"]
    assert 0 <= reading.low <= reading.value <= reading.high <= 1  # type: ignore[operator]
    beside = json.loads((finished / cell.key.path).with_suffix(".run.json").read_text())
    assert {"seconds", "host", "device", "date", "commit"} <= set(beside)
    report = pour.AuditReport.load((finished / cell.key.path).with_suffix(".report.json"))
    assert report.value("rus_r") == cell.values["rus_r"].value
    assert not (finished / "cache").exists(), "features are dropped with the group"


def test_references_are_what_they_should_be(finished: Path) -> None:
    cells = {cell.key.row: cell for cell in read_store(finished)}
    assert list(cells) == sorted(ROWS)
    assert cells["original"].values["cka_f_o"].value == pytest.approx(1)
    assert cells["retrained"].values["rus_r"].value == pytest.approx(1)
    assert cells["ceiling"].values["rus_r"].value < 1  # type: ignore[operator]
    assert cells["ceiling"].models["unlearned"] == cells["pour-p"].models["ceiling"]
    assert cells["retrained"].values["acc_f"].value == 0


def test_damaged_cells_are_made_again_with_the_same_bytes(store: Path, computed: list[str]) -> None:
    before = cell_bytes(store)
    folder = store / "cells" / "forget-3" / "seed-0"
    half = folder / "pour-p.json"
    half.write_text(half.read_text()[:500])
    altered = folder / "masked-head.json"
    altered.write_text(altered.read_text().replace('"acc_r": {', '"acc_r":  {').replace('"n": 36', '"n": 37', 1))
    (folder / "original.json").unlink()
    assert walked(store).done == 3
    assert computed == ["original", "pour-p", "masked-head"]
    assert cell_bytes(store) == before


def test_other_models_make_a_seeds_cells_again(store: Path, computed: list[str]) -> None:
    """A model that went missing and came back different, as it does on a GPU."""
    before = {cell.key: cell for cell in read_store(store)}
    path = store / "models" / "seed-1" / "forget-3" / "retrained"
    other = pour.load(path.with_suffix(".safetensors"))
    next(other.parameters()).data.mul_(1.01)
    pour.save(other, path.with_suffix(".safetensors"), overwrite=True)
    sidecar = json.loads(path.with_suffix(".json").read_text())
    sidecar["digest"] = pour.models.state.digest(other.state_dict())  # type: ignore[attr-defined]
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    walked(store, methods=["masked-head"])
    assert computed == ["original", "retrained", "ceiling", "masked-head"]
    after = {cell.key: cell for cell in read_store(store)}
    assert after[CellKey((3,), 0, "masked-head")].models["ceiling"] == sidecar["digest"]
    assert after[CellKey((3,), 0, "pour-p")] == before[CellKey((3,), 0, "pour-p")], "not asked for, so still stale"
    with pytest.raises(UsageError, match="run pour bench on this store"):
        pour.bench.make_table(store)


def test_the_next_seeds_retrained_model_is_the_ceiling(store: Path, computed: list[str]) -> None:
    walked(store, seeds=[0, 1], methods=["masked-head"])
    assert computed == ["original", "retrained", "original", "retrained", "ceiling", "masked-head"]
    cells = {(cell.key.seed, cell.key.row): cell for cell in read_store(store)}
    assert cells[0, "ceiling"].models["unlearned"] == cells[1, "retrained"].models["unlearned"]
    assert len({cells[seed, row].models["unlearned"] for seed in (0, 1) for row in ("retrained", "ceiling")}) == 3


def test_results_without_models_stay_unless_something_is_missing(store: Path, computed: list[str]) -> None:
    shutil.rmtree(store / "models")
    assert walked(store).kept == len(ROWS)
    assert computed == []
    mixed = read_cell(store, CellKey((3,), 0, "pour-p"))
    assert mixed is not None
    mixed = replace(mixed, models={**mixed.models, "original": "somebody else's"})
    (store / mixed.key.path).write_text(seal(mixed))
    walked(store)
    assert computed == ["original", "retrained", "retrained", "pour-p"], "only new models say which cell is right"


def test_another_precision_is_refused(store: Path, computed: list[str]) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for work in (walked, run_studied, tuned_there):
        with pytest.raises(UsageError, match=r"another precision \(fp32, not bf16\); give another folder"):
            work(store, precision="bf16")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    assert computed == []


def test_trials_on_another_network_need_another_folder(store: Path, computed: list[str]) -> None:
    other = small_grid(recipe=small_grid().recipe.change(epochs=3))
    with pytest.raises(UsageError, match=r"another recipe \(digits of 2, not digits of 3\); give another folder"):
        tune_experiment(other, store, device="cpu", progress=False)
    assert computed == []


def run_studied(out: Path, **options: Any) -> object:
    row = Row(name="pour-p", method="pour-p", setting="closed form", family="paper")
    followed = [Row(name=name, method=name, setting="tuned", family="paper") for name in FOLLOWED]
    return run_study(small_grid(rows=(row, *followed)), out, device="cpu", progress=False, **options)


def tuned_there(out: Path, **options: Any) -> object:
    return tune_experiment(small_grid(), out, device="cpu", progress=False, **options)


@pytest.fixture
def other_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits with one test image made darker."""
    real = classify_module.load_dataset

    def darker(name: str, root: Path | None = None, **_: Any) -> Any:
        dataset = real(name, root)
        test = dataset.splits["test"]
        images = test.images.copy()
        images[0] //= 2
        return replace(dataset, splits={**dataset.splits, "test": ImageSplit(images, test.labels)})

    monkeypatch.setattr(classify_module, "load_dataset", darker)


@pytest.mark.usefixtures("other_images")
def test_models_of_other_images_are_refused_and_their_cells_made_again(store: Path, computed: list[str]) -> None:
    with pytest.raises(UsageError, match="was trained on other images than digits has now; give another folder"):
        walked(store)
    assert computed == []
    shutil.rmtree(store / "models")
    before = {cell.data for cell in read_store(store)}
    assert walked(store).done == len(ROWS)
    after = {cell.data for cell in read_store(store)}
    assert len(after) == 1
    assert after != before
    assert walked(store).done == 0


def test_results_are_there_without_the_data(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise UsageError("digits is not here.")

    monkeypatch.setattr(classify_module, "load_dataset", missing)
    assert walked(store).kept == len(ROWS)


def test_what_is_named_twice_is_done_once(store: Path) -> None:
    assert walked(store, seeds=[0, 0], forget=[3, "3"]).kept == len(ROWS)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for work in (walked, run_studied, tuned_there):
        with pytest.raises(UsageError, match="file is a file; give a folder for the results"):
            work(tmp_path / "file")


def test_a_method_that_diverges_is_a_result(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: Any, **__: Any) -> None:
        raise DivergenceError("The loss became nan at step 3; use a smaller learning rate.")

    monkeypatch.setattr(cells, "carry_out", diverge)
    grid = small_grid()
    row = Row(name="scrub-common", method="scrub", setting="common", family="paper")
    outcome = walked(store, grid=replace(grid, rows=(*grid.rows, row)))
    assert outcome.failed == ("scrub-common, seed 0: The loss became nan at step 3; use a smaller learning rate.",)
    assert walked(store, grid=replace(grid, rows=(*grid.rows, row))).done == 0
    assert "became nan" in pour.bench.render(pour.bench.make_table(store), "markdown")


def test_a_tuned_row_that_diverges_runs_at_a_smaller_rate(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, rates = cells.carry_out, []

    def fragile(model: Any, request: Any, method: Any, run: Any) -> Any:
        rates.append(method.lr)
        if method.lr > 2e-4:
            raise DivergenceError("The loss became nan at step 3; use a smaller learning rate.")
        return real(model, request, method, run)

    monkeypatch.setattr(cells, "carry_out", fragile)
    grid = small_grid()
    row = Row(
        name="finetune-tuned", method="finetune", setting="tuned", family="paper", options={"lr": 1e-3, "epochs": 1}
    )
    assert walked(store, grid=replace(grid, rows=(*grid.rows, row))).failed == ()
    assert rates == [1e-3, pytest.approx(1e-3 / 3, rel=1e-4), pytest.approx(1e-3 / 9, rel=1e-4)]
    cell = read_cell(store, CellKey((3,), 0, row.name))
    assert cell is not None
    assert cell.rate_factor == pytest.approx(1 / 9)
    assert cell.setup["options"]["lr"] == 1e-3, "what was asked for"
    text = pour.bench.render(pour.bench.make_table(store), "markdown")
    assert "finetune-tuned diverged at its learning rate on 1 of 1 seeds and ran at 1/9 of it there." in text
    # One rate for all is what the common setting is.
    rates.clear()
    common = replace(row, name="finetune-common", setting="common")
    outcome = walked(store, grid=replace(grid, rows=(*grid.rows, common)))
    assert outcome.failed == ("finetune-common, seed 0: The loss became nan at step 3; use a smaller learning rate.",)
    assert rates == [1e-3]


def test_long_cells_are_made_first() -> None:
    rows = expand_rows(["references", "pour-p", "delete", "finetune", "scrub"], "digits")
    grid = replace(small_grid(), rows=rows)
    keys = [CellKey((3,), seed, row.name) for seed in (0, 1) for row in rows]
    order = [key.row for key in sorted(keys, key=lambda key: _turn(grid, key)) if key.seed == 0]
    assert order[:7] == [*REFERENCES, "finetune-common", "scrub-common", "finetune-tuned", "scrub-tuned"]
    assert set(order[7:]) >= {"delete-common", "delete-tuned", "pour-p"}


def test_requests_and_seeds_of_the_users(store: Path, computed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells.CellWorker, "do", lambda self, task: computed.append(task))
    with pytest.raises(pour.PourError, match="were written but do not match their settings"):
        walked(store, forget=["4", [1, 2]], seeds=[5], methods=["pour-p"])
    assert {task.forget for task in computed if isinstance(task, CellKey)} == {(4,), (1, 2)}
    assert {task.seed for task in computed if isinstance(task, CellKey)} == {5}


def test_wrong_use_is_told(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="number of jobs must be at least 1, but is 0"):
        walked(store, jobs=0)
    with pytest.raises(UsageError, match="has no method 'pour-x'"):
        walked(store, methods=["pour-x"])
    with pytest.raises(UsageError, match="has no seeds"):
        walked(store, seeds=[])
    with pytest.raises(UsageError, match="contains results of digits, not of mine"):
        walked(store, grid=small_grid(name="mine"))
    with pytest.raises(UsageError, match="There is no experiment 'x'"):
        run_experiment("x", tmp_path)


@pytest.mark.slow
def test_ray_workers_make_the_same_bytes(store: Path) -> None:
    pytest.importorskip("ray", reason='needs pip install "pour-unlearning[ray]"')
    before = cell_bytes(store)
    folder = store / "cells" / "forget-3" / "seed-0"
    (folder / "delete-tuned.json").unlink()
    (folder / "pour-p.json").unlink()
    assert walked(store, jobs=2, ray="local").done == 2
    assert cell_bytes(store) == before


def test_ray_is_an_extra(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (store / "cells" / "forget-3" / "seed-0" / "pour-p.json").unlink()
    with pytest.raises(UsageError, match=r'pip install "pour-unlearning\[ray\]"'):
        walked(store, ray="auto")


SCRIPT = """
import sys
import torch
sys.path.insert(0, sys.argv[2])
from bench_cells import cell_bytes, small_grid
from pour.bench import run_experiment
torch.set_num_threads(int(sys.argv[3]))
run_experiment(small_grid(), sys.argv[1], device="cpu", progress=False)
"""


@pytest.mark.slow
def test_a_killed_walk_loses_at_most_the_running_cell(finished: Path, tmp_path: Path) -> None:
    import torch

    out = tmp_path / "killed"
    first = out / "cells" / "forget-3" / "seed-0" / f"{ROWS[1]}.json"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), str(Path(bench_cells.__file__).parent), str(torch.get_num_threads())],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:
        deadline = time.monotonic() + 120
        while not first.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    kept = {file: file.stat().st_mtime_ns for file in (out / "cells").rglob("*.json") if "run.json" not in file.name}
    there = [name for name in ROWS if read_cell(out, CellKey((3,), 0, name)) is not None]
    assert there[:2] == ROWS[:2]
    assert len(there) < len(ROWS)
    outcome = walked(out)
    assert outcome.done == len(ROWS) - len(there)
    assert cell_bytes(out) == cell_bytes(finished)
    untouched = out / "cells" / "forget-3" / "seed-0" / f"{ROWS[0]}.json"
    assert untouched.stat().st_mtime_ns == kept[untouched]


def test_tuned_rows_on_the_class_of_the_tuning_are_warned_of(tmp_path: Path) -> None:
    plain = Row(name="delete-tuned", method="delete", setting="tuned", family="paper")
    grid = small_grid(rows=(replace(plain, tuned_on=(8,), tuned_with=100),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_tuned_tests(grid)
        _warn_of_tuned_tests(small_grid(rows=(plain,), forget=((8,),), seeds=(100,)))
    with pytest.warns(UserWarning, match="chosen on class 8"):
        _warn_of_tuned_tests(replace(grid, forget=((3,), (1, 8))))
    with pytest.warns(UserWarning, match="chosen on seed 100"):
        _warn_of_tuned_tests(replace(grid, seeds=(100,)))


def test_a_seed_that_was_made_elsewhere_stays(store: Path, tmp_path: Path, computed: list[str]) -> None:
    """What lies here of its models is the ceiling of the seed before, and another network than its own."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(store / "cells" / "forget-3" / "seed-0", elsewhere / "cells" / "forget-3" / "seed-1")
    shutil.copy(store / "experiment.json", elsewhere)
    for cell_file in sorted((elsewhere / "cells").rglob("*.json")):
        if cell_file.name.endswith((".run.json", ".report.json")):
            continue
        cell = unseal(cell_file.read_text())
        assert cell is not None
        setup = {**cell.setup, "seed": 1}
        moved = {role: f"another {role}" for role in cell.models}
        cell_file.write_text(seal(replace(cell, setup=setup, models=moved)))
    tar = tmp_path / "seed-1.tar"
    assert export_store(elsewhere, tar) == len(ROWS)
    assert import_store(tar, store) == len(ROWS)
    before = cell_bytes(store)
    assert walked(store, seeds=[0, 1]).kept == 2 * len(ROWS)
    assert computed == []
    assert cell_bytes(store) == before


def test_a_cell_that_breaks_off_costs_nothing_but_itself(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store / "cells" / "forget-3" / "seed-0"
    for name in ("pour-p.json", "masked-head.json"):
        (folder / name).unlink()

    def break_off(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    real = MaskedHead.__call__
    monkeypatch.setattr(PourP, "__call__", break_off)
    with pytest.raises(PourError, match=r"ended 1 cells, such as pour-p of seed 0: 'RuntimeError: out of memory'"):
        walked(store)
    assert (folder / "masked-head.json").is_file()
    assert not (folder / "pour-p.json").exists()
    error = store / "errors" / "forget-3" / "seed-0" / "pour-p.txt"
    assert "Traceback" in error.read_text()
    monkeypatch.undo()
    assert MaskedHead.__call__ is real
    assert walked(store).done == 1, "it is tried again"
    assert not error.exists()


def test_a_store_that_cannot_be_written_is_told_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    walked(tmp_path / "store", seeds=[0], methods=["pour-p"])
    computed.clear()
    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(PourError, match="No space left on device"):
        walked(tmp_path / "store", seeds=[5], methods=["pour-p"])
    assert computed == []


def test_what_a_killed_run_left_in_the_cache_is_not_read(store: Path) -> None:
    before = cell_bytes(store)
    (store / "cells" / "forget-3" / "seed-0" / "pour-p.json").unlink()
    (store / "cache").mkdir()
    (store / "cache" / "left").write_bytes(b"damaged")
    walked(store)
    assert not (store / "cache").exists()
    assert cell_bytes(store) == before


@pytest.mark.parametrize("damage", ["", "[]", '{"name": "digits", "rows": 3}', '{"name": "digits", "rows": [3]}'])
def test_a_store_that_no_longer_says_whose_it_is_keeps_its_models(
    store: Path, damage: str, computed: list[str]
) -> None:
    (store / "experiment.json").write_text(damage)
    longer = small_grid(recipe=small_grid().recipe.change(epochs=3))
    with pytest.raises(UsageError, match=r"another recipe \(digits of 2, not digits of 3\); give another folder"):
        walked(store, grid=longer)
    assert computed == []
    assert walked(store).done == 0
    assert json.loads((store / "experiment.json").read_text())["name"] == "digits"


def test_files_beside_models_that_are_damaged(store: Path, computed: list[str]) -> None:
    (store / "models" / "seed-0" / "original.json").write_text("[]")
    before = cell_bytes(store)
    (store / "cells" / "forget-3" / "seed-0" / "pour-p.json").unlink()
    walked(store)
    assert "original" in computed
    assert cell_bytes(store) == before


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:x", ":80"])
def test_an_address_without_a_cluster_is_told_at_once(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray", reason='needs pip install "pour-unlearning[ray]"')
    with pytest.raises(UsageError, match="Ray cluster"):
        walked(tmp_path / "store", ray=address)
    assert not (tmp_path / "store").exists()


def test_classes_forgotten_together_have_no_order(store: Path) -> None:
    outcome = walked(store, forget=[["3", "0"], [0, 3]], methods=["pour-p"])
    assert outcome.done + outcome.kept == 4
    assert (store / "cells" / "forget-0-3").is_dir()
    assert not (store / "cells" / "forget-3-0").exists()


def test_a_tuned_row_is_not_replaced_by_one_that_is_not(store: Path, computed: list[str]) -> None:
    """As by the same command without its --tuning."""
    before = cell_bytes(store)
    rows = tuple(
        replace(row, options={"steps": 2}, untuned=True) if row.name == "delete-tuned" else row
        for row in small_grid().rows
    )
    with pytest.raises(UsageError, match=r"delete-tuned of seed 0 .* has tuned options, and this run would replace it"):
        walked(store, grid=small_grid(rows=rows))
    assert cell_bytes(store) == before
    assert computed == []
