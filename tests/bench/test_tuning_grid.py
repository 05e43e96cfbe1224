from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bench_cells import small_grid

import pour
import pour.bench.tuning as tuning
import pour.bench.tuning_grid as tuning_grid
from pour.bench import Row, TuningResult, get_experiment, tune_experiment
from pour.bench.selection import Trial
from pour.bench.settings import tuned_options
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from pour.data.splits import Splits


def test_every_iterative_method_is_tuned_on_what_no_table_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[nn.Module, Splits, str, dict[str, Any]]] = []

    def spy(model: nn.Module, splits: Splits, method: str, **options: Any) -> TuningResult:
        calls.append((model, splits, method, options))
        facts: dict[str, Any] = {"dataset": splits.name, "architecture": None, "forgotten": splits.forgotten}
        return TuningResult(method=method, rule="benchmark", seed=100, trials=(), best=None, note="", **facts)

    monkeypatch.setattr(tuning_grid, "tune", spy)
    results = tune_experiment(small_grid(), tmp_path, device="cpu", progress=False)
    assert [result.method for result in results] == ["delete"]
    model, splits, _, options = calls[0]
    assert splits.forgotten == (8,)
    assert (options["seed"], options["rule"], options["batch_norm"]) == (100, "benchmark", "frozen")
    assert options["recipe"].epochs == 2
    kept = pour.load(tmp_path / "models" / "seed-100" / "original.safetensors")
    assert all((a == b).all() for a, b in zip(model.parameters(), kept.parameters(), strict=True))


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar100"])
def test_tuning_and_tables_share_nothing(name: str) -> None:
    experiment = get_experiment(name)
    assert tuning_grid.TUNED_CLASSES[name] not in experiment.forget
    assert tuning_grid.TUNING_SEED not in experiment.seeds


def test_methods_side_by_side_choose_what_one_after_the_other_would(tmp_path: Path) -> None:
    methods = ("bad-teacher", "delete")
    few = {
        f"{name}_{letter}": values[::4]
        for name, split in pour.load_dataset("digits").splits.items()
        for letter, values in (("x", split.images), ("y", split.labels))
    }
    np.savez(tmp_path / "few.npz", **few)
    rows = tuple(Row(name=f"{name}-tuned", method=name, setting="tuned", family="relative") for name in methods)
    grid = small_grid(rows=rows, dataset=str(tmp_path / "few.npz"))
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    first = tune_experiment(grid, alone, device="cpu", progress=False)
    shutil.copytree(alone, beside)
    for method in methods:
        (beside / f"{method}-benchmark" / "result.json").unlink()
        min((beside / f"{method}-benchmark").iterdir()).unlink()
    second = tune_experiment(grid, beside, device="cpu", jobs=2, progress=False)
    assert tuple(result.method for result in second) == methods
    assert {(result.architecture, result.forgotten) for result in second} == {("resnet-digits", (8,))}
    for one, other in zip(first, second, strict=True):
        assert one.best == other.best
        again = [replace(trial, seconds=0) for trial in other.trials]
        assert [replace(trial, seconds=0) for trial in one.trials] == again


def test_batch_norm_may_train_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(model: Any, request: Any, method: str, options: dict[str, Any], *_: Any) -> Trial:
        return Trial(options=options, weight_change=0.1, aus=0.995)

    monkeypatch.setattr(tuning, "_try", judged)
    rows = (Row(name="finetune-tuned", method="finetune", setting="tuned", family="paper"),)
    grid = small_grid(rows=rows)
    (result,) = tune_experiment(grid, tmp_path / "training", batch_norm="train", device="cpu", progress=False)
    assert {trial.options["batch_norm"] for trial in result.trials} == {"train"}
    taken = tuned_options("finetune", "digits", tmp_path / "training")
    assert taken.options["batch_norm"] == "train", "a grid takes what was tuned"
    (tmp_path / "training" / "finetune-benchmark" / "result.json").unlink()
    before = sorted((tmp_path / "training").rglob("*"))
    with pytest.raises(UsageError, match=r"another batch norm \(train, not frozen\); give another folder"):
        tune_experiment(grid, tmp_path / "training", device="cpu", progress=False)
    assert sorted((tmp_path / "training").rglob("*")) == before
    with pytest.raises(UsageError, match="batch_norm must be frozen or train, but is 'eval'"):
        tune_experiment(grid, tmp_path / "other", batch_norm="eval", device="cpu")  # type: ignore[arg-type]


def test_wrong_use_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="number of jobs must be at least 1, but is 0"):
        tune_experiment("digits", tmp_path, jobs=0)
    with pytest.raises(UsageError, match="pour-p has nothing to tune in digits"):
        tune_experiment("digits", tmp_path, methods=["pour-p"])
    with pytest.raises(UsageError, match="The tables of digits report seed 0; tune on others"):
        tune_experiment("digits", tmp_path, seed=0)
    with pytest.raises(UsageError, match="report class 3; tune on others"):
        tune_experiment("digits", tmp_path, forget=["3", "8"])
    with pytest.raises(UsageError, match="report seed 1 and class 3; tune on others"):
        tune_experiment("digits", tmp_path, forget=["3"], seed=1)
    with pytest.raises(UsageError, match="Say which classes tuning mine should forget"):
        tune_experiment(small_grid(name="mine"), tmp_path)
    assert not any(tmp_path.iterdir())
