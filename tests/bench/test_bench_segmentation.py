from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import pour
import pour.bench.work as work
from pour._torchvision import torchvision_works
from pour.bench import Row, read_store
from pour.bench.segmentation import run_scenes
from pour.bench.segmentation_experiment import SceneExperiment, scene_experiment
from pour.bench.segmentation_table import is_scene_store, render_scenes, scene_lines, scene_table
from pour.bench.store import CellKey, read_cell
from pour.data import load_segmentation
from pour.errors import DivergenceError, UsageError
from pour.training import Recipe

if TYPE_CHECKING:
    from pathlib import Path

torchvision_works()
pytest.importorskip("segmentation_models_pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:pour-d still"),
    pytest.mark.filterwarnings("ignore:.*encoder alone"),
]

STEPS = {"steps": 2, "batch_size": 4, "lr": 1e-3, "optimizer": "adamw"}
GRID = SceneExperiment(
    name="camvid",
    dataset="camvid",
    architecture="smp:linknet:tu-mobilenetv3_small_050",
    recipe=Recipe(epochs=15, batch_size=6, optimizer="adamw", lr=5e-3),
    forget=("car", "pole"),
    rows=(
        Row(name="original", method=None, setting="reference", family="reference"),
        Row(name="masked-head", method="masked-head", setting="closed form", family="control"),
        Row(name="pour-p", method="pour-p", setting="closed form", family="paper"),
        Row(name="pour-d", method="pour-d", setting="tuned", family="paper", options=STEPS),
    ),
)


def walked(out: Path, root: Path, **options: Any):
    return run_scenes(options.pop("grid", GRID), out, root=root, device="cpu", pixels=100, progress=False, **options)


@pytest.fixture(scope="module")
def store(tmp_path_factory, small_world) -> Path:
    out = tmp_path_factory.mktemp("bench") / "camvid"
    outcome = walked(out, small_world)
    assert (outcome.done, outcome.kept, outcome.failed) == (8, 0, ())
    return out


def test_every_cell_is_there_with_its_report_and_overlays(store) -> None:
    cells = read_store(store)
    assert {(cell.forgotten_names, cell.key.row) for cell in cells} == {
        ((name,), row.name) for name in ("Car", "Pole") for row in GRID.rows
    }
    for cell in cells:
        assert {"iou_r", "iou_r_rest", "iou_f", "rus_o", "cka_f_o"} <= set(cell.values)
        report = pour.AuditReport.load((store / cell.key.path).with_suffix(".report.json"))
        assert report.value("iou_r") == cell.values["iou_r"]["value"]
    masked = read_cell(store, CellKey((2,), 0, "masked-head"))
    assert masked is not None
    assert masked.values["iou_f"]["value"] == 0
    pictures = sorted((store / "overlays").glob("*.png"))
    assert [picture.name for picture in pictures] == [
        f"{name}-{row}-seed-0.png" for name in ("car", "pole") for row in ("pour-d", "pour-p")
    ]
    assert all(picture.stat().st_size <= 60_000 for picture in pictures)
    facts = json.loads((store / "models" / "seed-0" / "original.json").read_text())
    assert 0 < facts["segmentation"]["test"]["mean_iou"] <= 1
    assert not list(store.rglob("*.resume*"))


def test_nothing_is_done_twice_and_what_is_missing_is_made(store, small_world) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*.json")}
    assert walked(store, small_world).done == 0
    gone = CellKey((3,), 0, "pour-p")
    (store / gone.path).unlink()
    damaged = CellKey((2,), 0, "pour-d")
    (store / damaged.path).write_text((store / damaged.path).read_text()[:50])
    assert walked(store, small_world).done == 2
    after = {path: path.read_bytes() for path in store.rglob("*.json")}
    same = [path for path in before if not path.name.endswith(".run.json")]
    assert all(before[path] == after[path] for path in same)


def test_other_options_make_the_cell_again(store, small_world, tmp_path) -> None:
    import shutil

    copy = tmp_path / "camvid"
    shutil.copytree(store, copy)
    rows = (*GRID.rows[:3], replace(GRID.rows[3], options={**STEPS, "steps": 3}))
    assert walked(copy, small_world, grid=replace(GRID, rows=rows)).done == 2


def test_only_what_was_asked_for(small_world, tmp_path, store) -> None:
    import shutil

    shutil.copytree(store / "models", tmp_path / "s" / "models")
    outcome = walked(tmp_path / "s", small_world, methods=["pour-p"], forget=["Road"])
    assert outcome.done == 2
    assert {cell.key.row for cell in read_store(tmp_path / "s")} == {"original", "pour-p"}
    with pytest.raises(UsageError, match="has no method 'delete'"):
        walked(tmp_path / "s", small_world, methods=["delete"])


def test_a_method_that_diverges_does_not_take_the_rest_along(small_world, tmp_path, store, monkeypatch) -> None:
    import shutil

    shutil.copytree(store / "models", tmp_path / "s" / "models")
    real = work.carry_out

    def carry_out(model: Any, request: Any, method: Any, run: Any) -> Any:
        if method.name == "pour-d":
            raise DivergenceError("The loss became NaN at step 1.")
        return real(model, request, method, run)

    monkeypatch.setattr(work, "carry_out", carry_out)
    outcome = walked(tmp_path / "s", small_world, forget=["car"])
    assert outcome.done == 4
    assert outcome.failed == ("pour-d, Car: The loss became NaN at step 1.",)
    lines = scene_lines(tmp_path / "s")
    assert "failed: The loss became NaN" in render_scenes(lines, "markdown")


def test_the_table_says_what_the_cells_do(store) -> None:
    assert is_scene_store(store)
    lines = scene_lines(store)
    assert [line.row for line in lines[:4]] == ["original", "masked-head", "pour-p", "pour-d"]
    assert [line.forgotten for line in lines] == ["Car"] * 4 + ["Pole"] * 4
    before, masked = lines[0], lines[1]
    cell = read_cell(store, CellKey((2,), 0, "masked-head"))
    assert cell is not None
    assert masked.values["iou_r"] == pytest.approx(100 * cell.values["iou_r"]["value"])
    assert masked.changes["iou_f"] == pytest.approx(-before.values["iou_f"])
    assert not before.changes
    text = render_scenes(lines, "markdown")
    assert text.splitlines()[0].startswith("| forgotten | method | IoU_r | IoU_r, rest | IoU_f |")
    assert "RUS(o), encoder" in text
    assert text.count("\n| ") == 9
    rows = list(csv.DictReader(io.StringIO(render_scenes(lines, "csv"))))
    assert float(rows[1]["iou_f"]) == 0
    assert r"\begin{tabular}" in render_scenes(lines, "latex")
    assert "POUR-P, logit masked" in render_scenes(lines, "rich")
    assert scene_table(lines).row_count == 8
    with pytest.raises(UsageError, match="format must be one of"):
        render_scenes(lines, "html")  # type: ignore[arg-type]


def test_the_papers_table_stands_beside_ours(store) -> None:
    lines = scene_lines(store, against="paper")
    paper = {line.forgotten: line for line in lines if line.published}
    assert set(paper) == {"dog", "cat", "bicycle", "chair", "bottle"}
    assert paper["cat"].changes["iou_r"] == pytest.approx(-7.43)
    text = render_scenes(lines, "markdown")
    assert "ResNet-101" in text


def test_our_experiments_name_what_is_there(small_world) -> None:
    camvid = scene_experiment("camvid")
    assert camvid.forget == ("car", "pedestrian", "bicyclist", "fence", "pole")
    assert {row.method for row in camvid.rows} >= {"pour-p", "pour-d", "masked-head"}
    for row in camvid.rows:
        row.resolved()
    assert scene_experiment("voc2012").architecture == "smp:deeplabv3plus:resnet101"
    with pytest.raises(UsageError, match="no segmentation experiment"):
        scene_experiment("cityscapes")
    assert load_segmentation("camvid", small_world).classes == ("Sky", "Road", "Car", "Pole")


def test_a_folder_of_another_experiment_is_refused(store, small_world) -> None:
    with pytest.raises(UsageError, match="holds results of camvid"):
        walked(store, small_world, grid=replace(GRID, name="voc2012"))
