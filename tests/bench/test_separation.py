from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import stats

from pour._records import decode, encode
from pour.bench import SeparationStudy, cell, separation_study
from pour.bench.study import rank_correlation
from pour.errors import DivergenceError, UsageError
from pour.models.tap import extract_features
from pour.training import Run
from pour.training.tasks.classify import Classify

if TYPE_CHECKING:
    from torch import nn

    from pour.data.dataset import ImageDataset


RUN = Run(device="cpu", progress=False)


@pytest.fixture(scope="module")
def study(digits: ImageDataset, digits_original: nn.Module) -> SeparationStudy:
    methods = {"pour-p": {}, "delete": {"steps": 8, "lr": 3e-3, "batch_size": 64, "augment": False}}
    return separation_study(digits_original, digits, methods, classes=[0, 3, 8], run=RUN)


def test_costs_and_distances(study: SeparationStudy, digits: ImageDataset, digits_original: nn.Module) -> None:
    seen = extract_features(digits_original, Classify().batches(digits.splits["test"], Run(device="cpu")))
    features, labels = seen.features.double().numpy(), seen.labels.numpy()
    right = seen.scores.argmax(dim=1).numpy() == labels

    def pairs(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.linalg.norm(x[:, None] - y[None], axis=2).mean())

    for entry in study.classes:
        gone, rest = features[labels == entry.label], features[labels != entry.label]
        energy = 2 * pairs(gone, rest) - pairs(gone, gone) - pairs(rest, rest)
        assert entry.energy == pytest.approx(np.sqrt(energy), rel=1e-6)
        assert entry.acc_r_before == pytest.approx(right[labels != entry.label].mean())
        assert entry.nearest != entry.name
        assert entry.methods["pour-p"]["acc_f"] == 0  # type: ignore[index]
        cost = entry.methods["delete"]
        assert cost is not None
        assert cost["acc_r_change"] == pytest.approx(cost["acc_r"] - entry.acc_r_before)
        assert cost["acc_f"] < 0.5
    assert [entry.name for entry in study.classes] == ["0", "3", "8"]


def test_the_correlation_is_spearmans(study: SeparationStudy) -> None:
    rng = np.random.default_rng(0)
    first = study.classes[0]
    drawn = [(rng.random(), float(rng.integers(0, 3))) for _ in range(9)]
    classes = tuple(
        replace(first, energy=energy, methods={"x": {"acc_r_change": change}, "y": None}) for energy, change in drawn
    )
    assert rank_correlation(classes, "x") == pytest.approx(stats.spearmanr(*zip(*drawn, strict=True)).statistic)
    assert rank_correlation(classes[:2], "x") is None
    assert rank_correlation(classes, "y") is None
    level = [replace(entry, energy=1.0) for entry in classes]
    assert rank_correlation(level, "x") is None


def test_it_is_kept_as_json(study: SeparationStudy) -> None:
    stored = json.loads(encode(study))
    assert stored["correlation"]["delete"] == rank_correlation(study.classes, "delete")
    assert stored["classes"][1]["name"] == "3"
    assert decode(SeparationStudy, encode(study), "study.json") == study


def test_a_method_that_diverges_and_wrong_use(
    digits: ImageDataset, digits_original: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise DivergenceError("The loss became nan.")

    monkeypatch.setattr(cell, "carry_out", diverge)
    study = separation_study(digits_original, digits, {"delete": {}}, classes=[1], run=RUN)
    assert study.classes[0].methods == {"delete": None}
    assert study.correlation["delete"] is None
    with pytest.raises(UsageError, match="at least one method and one class"):
        separation_study(digits_original, digits, {}, classes=[1], run=RUN)


def test_a_method_that_diverges_is_run_at_smaller_rates(
    digits: ImageDataset, digits_original: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cell.carry_out

    def fragile(model: nn.Module, request: Any, method: Any, run: Any) -> nn.Module:
        if method.lr > 2e-4:
            raise DivergenceError("The loss became nan.")
        return real(model, request, method, run)

    monkeypatch.setattr(cell, "carry_out", fragile)
    settings = {"delete": {"lr": 1e-3, "steps": 2}}
    study = separation_study(digits_original, digits, settings, classes=[1], run=RUN)
    cost = study.classes[0].methods["delete"]
    assert cost is not None
    assert cost["rate_factor"] == pytest.approx(1 / 9)
