from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bench_cells import small_grid

import pour
import pour.bench.tuning_grid as tuning_grid
from pour.bench import TuningResult, get_experiment, tune_experiment
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
        return TuningResult(method=method, rule="benchmark", seed=100, trials=(), best=None, note="")

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


def test_wrong_use_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pour-p has nothing to tune in digits"):
        tune_experiment("digits", tmp_path, methods=["pour-p"])
    with pytest.raises(UsageError, match="report seed 0 or class 8; tune on others"):
        tune_experiment("digits", tmp_path, seed=0)
    with pytest.raises(UsageError, match="report seed 100 or class 3; tune on others"):
        tune_experiment("digits", tmp_path, forget=["3"])
    with pytest.raises(UsageError, match="Say which classes tuning mine should forget"):
        tune_experiment(small_grid(name="mine"), tmp_path)
    assert not any(tmp_path.iterdir())
