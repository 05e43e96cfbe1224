from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import pour.bench.study as study_module
from pour.bench import get_experiment
from pour.bench.study import FOLLOWED, run_study
from pour.errors import UsageError
from pour.unlearning import make_method

if TYPE_CHECKING:
    from pathlib import Path

    from pour.bench import Experiment

SHORT = {"steps": 6, "batch_size": 64, "augment": False, "batch_norm": "frozen"}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    grid = get_experiment("digits")
    rows = tuple(
        dataclasses.replace(row, options=SHORT if row.setting == "tuned" else row.options)
        for row in grid.rows
        if row.method in (*FOLLOWED, "pour-p") and row.setting != "common"
    )
    return dataclasses.replace(grid, recipe=grid.recipe.change(epochs=2), rows=rows)


@pytest.fixture(scope="module")
def store(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    run_study(experiment, out, looks=3, classes=[0, 3, 8], device="cpu", progress=False)
    return out


def test_everything_is_written(store: Path) -> None:
    names = {path.name for path in (store / "study").iterdir()}
    trajectories = {f"trajectory-{method}.json" for method in FOLLOWED}
    assert names == {*trajectories, "separation.json", "study.svg", "study.png"}
    found = json.loads((store / "study" / "trajectory-delete.json").read_text())
    assert [look["step"] for look in found["result"]["looks"]] == [0, 2, 4, 6]
    assert set(found["setup"]["models"]) == {"original", "retrained"}
    assert {"device", "commit"} <= set(found["circumstances"])
    stored = json.loads((store / "study" / "separation.json").read_text())
    separation = stored["result"]
    assert stored["setup"]["options"]["pour-p"]["forgotten_logit"] == "keep", "the paper's form"
    for method in ("pour-p", *FOLLOWED):
        assert set(stored["setup"]["options"][method]) == set(make_method(method).stored_options()), (
            "defaults are written out"
        )
    assert found["setup"]["options"] == stored["setup"]["options"]["delete"]
    assert [entry["label"] for entry in separation["classes"]] == [0, 3, 8]
    assert set(separation["correlation"]) == {"pour-p", *FOLLOWED}
    assert "<svg" in (store / "study" / "study.svg").read_text()


def test_what_is_there_is_kept_and_what_is_damaged_is_made_again(store: Path, experiment: Experiment) -> None:
    folder = store / "study"
    before = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    (folder / "trajectory-delete.json").write_text("{")
    study = run_study(experiment, store, looks=3, classes=[0, 3, 8], device="cpu", progress=False)
    assert (study / "separation.json").read_bytes() == before["separation.json"]
    assert (
        json.loads((study / "trajectory-delete.json").read_text())["result"]
        == (json.loads(before["trajectory-delete.json"])["result"])
    )
    kept = [path.name for path in folder.glob("*.json") if path.stat().st_mtime_ns == times[path.name]]
    assert sorted(kept) == ["separation.json", "trajectory-gradient-ascent.json", "trajectory-pour-d.json"]


def test_bad_input_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="look at least once"):
        run_study(experiment, tmp_path, looks=0)
    with pytest.raises(UsageError, match="a sample of camvid has several; give an experiment on images"):
        run_study("camvid", tmp_path)
    without = dataclasses.replace(experiment, rows=tuple(row for row in experiment.rows if row.method != "delete"))
    with pytest.raises(UsageError, match="has no row of delete"):
        run_study(without, tmp_path, device="cpu")


def test_a_method_that_diverges_is_followed_at_a_smaller_rate(
    experiment: Experiment, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(store / "models", tmp_path / "models")
    shutil.copy(store / "experiment.json", tmp_path)
    wild = {**SHORT, "lr": 1e6}
    rows = tuple(
        dataclasses.replace(row, options=wild) if row.method == "gradient-ascent" else row for row in experiment.rows
    )
    rates = []
    real = study_module.follow

    def watched(*given: Any, **options: Any) -> Any:
        rates.append(options.get("lr"))
        return real(*given, **options)

    monkeypatch.setattr(study_module, "follow", watched)
    study = run_study(
        dataclasses.replace(experiment, rows=rows), tmp_path, looks=3, classes=[3], device="cpu", progress=False
    )
    tried = [rate for rate in rates if rate is not None]
    assert tried == pytest.approx([1e6, 1e6 / 3, 1e6 / 9, 1e6 / 9], rel=1e-4), "the last again, step by step"
    found = json.loads((study / "trajectory-gradient-ascent.json").read_text())["result"]
    assert found["failed"] is not None, "no rate was small enough, and that is told"
    assert found["options"]["lr"] == pytest.approx(1e6 / 9, rel=1e-4)


def test_a_method_that_stops_early_is_looked_at_as_often(
    experiment: Experiment, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(store / "models", tmp_path / "models")
    shutil.copy(store / "experiment.json", tmp_path)
    climbing = {**SHORT, "steps": 300, "lr": 1e-3, "look_every": 1, "stop_accuracy": 0.1}
    rows = tuple(
        dataclasses.replace(row, options=climbing) if row.method == "gradient-ascent" else row
        for row in experiment.rows
    )
    study = run_study(
        dataclasses.replace(experiment, rows=rows), tmp_path, looks=3, classes=[3], device="cpu", progress=False
    )
    found = json.loads((study / "trajectory-gradient-ascent.json").read_text())["result"]
    steps = [look["step"] for look in found["looks"]]
    assert found["failed"] is None
    assert 3 <= steps[-1] < 100, "three looks at 300 steps would have missed it all"
    assert len(steps) >= 4
    assert found["looks"][-1]["acc_f"] < found["looks"][0]["acc_f"]
