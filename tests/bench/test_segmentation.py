from __future__ import annotations

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pour
import pour.bench.cell as attempts
from pour._torchvision import torchvision_works
from pour.bench import Experiment, Row, get_experiment, make_table, read_store, render, run_experiment
from pour.bench.store import Cell, CellKey, read_cell, seal
from pour.errors import DivergenceError, UsageError
from pour.training import Recipe
from pour.training.tasks.segment import Segment

torchvision_works()
pytest.importorskip("segmentation_models_pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:pour-d still"),
    pytest.mark.filterwarnings("ignore:.*encoder alone"),
]

STEPS = {"steps": 2, "batch_size": 4, "lr": 1e-3, "optimizer": "adamw"}
GRID = Experiment(
    name="camvid",
    task="segment",
    settings={"pixels": 100},
    dataset="camvid",
    architecture="smp:linknet:tu-mobilenetv3_small_050",
    recipe=Recipe(epochs=15, batch_size=6, optimizer="adamw", lr=5e-3),
    forget=(("car",), ("pole",)),
    seeds=(0,),
    columns=get_experiment("camvid").columns,
    table=get_experiment("camvid").table,
    pictures=("pour-p", "pour-d"),
    rows=(
        Row(name="original", method=None, setting="reference", family="reference"),
        Row(name="masked-head", method="masked-head", setting="closed form", family="control"),
        Row(name="pour-p", method="pour-p", setting="closed form", family="paper"),
        Row(name="pour-d", method="pour-d", setting="tuned", family="paper", options=STEPS),
    ),
)


RESULTS = Path(__file__).parents[2] / "results" / "camvid.json.gz"
# One class by one method, from a network that is trained in a moment.
SHORT = replace(GRID, recipe=GRID.recipe.change(epochs=1), forget=(("car",),), rows=GRID.rows[:2])


def walked(out: Path, root: Path, **options: Any):
    grid = options.pop("grid", GRID)
    settings = {name: options.pop(name) for name in ("limit", "weights", "enlarge") if name in options}
    settings = {name: str(value) if name == "weights" else value for name, value in settings.items()}
    grid = replace(grid, settings={**grid.settings, **settings})
    grid = replace(grid, recipe=grid.recipe.change(epochs=options.pop("epochs", None)))
    return run_experiment(grid, out, root=root, device="cpu", progress=False, **options)


@pytest.fixture(scope="module")
def store(tmp_path_factory, small_world) -> Path:
    out = tmp_path_factory.mktemp("bench") / "camvid"
    outcome = walked(out, small_world)
    assert (outcome.done, outcome.kept, outcome.failed) == (8, 0, ())
    return out


@pytest.fixture(scope="module")
def short_store(tmp_path_factory, small_world) -> Path:
    out = tmp_path_factory.mktemp("short") / "camvid"
    assert walked(out, small_world, grid=SHORT).done == 2
    return out


@pytest.fixture
def short(short_store, tmp_path) -> Path:
    """A copy of the small store, to be changed."""
    return shutil.copytree(short_store, tmp_path / "short")


@pytest.fixture
def trainings(monkeypatch) -> list[Any]:
    """The recipes of the networks that are trained while a test runs."""
    seen: list[Any] = []
    real = Segment.train

    def train(task: Segment, data: Any, recipe: Any, *rest: Any, **options: Any) -> Any:
        seen.append(recipe)
        return real(task, data, recipe, *rest, **options)

    monkeypatch.setattr(Segment, "train", train)
    return seen


def rewrite(out: Path, cell: Cell, **changes: Any) -> None:
    setup = {**cell.setup, **changes.pop("setup", {})}
    (out / cell.key.path).write_text(seal(replace(cell, setup=setup, **changes)))


def test_every_cell_is_there_with_its_report_and_overlays(store) -> None:
    cells = read_store(store)
    assert {(cell.forgotten_names, cell.key.row) for cell in cells} == {
        ((name,), row.name) for name in ("Car", "Pole") for row in GRID.rows
    }
    for cell in cells:
        assert {"iou_r", "iou_r_rest", "iou_f", "rus_o", "cka_f_o"} <= set(cell.values)
        report = pour.AuditReport.load((store / cell.key.path).with_suffix(".report.json"))
        assert report.value("iou_r") == cell.values["iou_r"].value
    masked = read_cell(store, CellKey((2,), 0, "masked-head"))
    assert masked is not None
    assert masked.values["iou_f"].value == 0
    pictures = sorted((store / "overlays").glob("*.png"))
    assert [picture.name for picture in pictures] == [
        f"{name}-{row}-seed-0.png" for name in ("car", "pole") for row in ("pour-d", "pour-p")
    ]
    assert all(picture.stat().st_size <= 60_000 for picture in pictures)
    assert not list(store.rglob("*.resume*"))


OTHERWISE = {
    "epochs": ({"epochs": 2}, r"another recipe \(custom of 1, not custom of 2\)"),
    "limit": ({"limit": 6}, r"another limit \(none, not 6\)"),
    "enlarge": ({"enlarge": 2}, r"another enlarge \(1, not 2\)"),
    "rate": (
        {"grid": replace(SHORT, recipe=SHORT.recipe.change(lr=1e-3))},
        r"another recipe \(lr 0.005, not lr 0.001\)",
    ),
    "architecture": (
        {"grid": replace(SHORT, architecture="smp:fpn:tu-mobilenetv3_small_050")},
        r"another architecture \(smp:linknet:\S+, not smp:fpn:\S+\)",
    ),
}


def all_bytes(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "words"),
    [*OTHERWISE.values(), ({"precision": "bf16"}, r"another precision \(fp32, not bf16\)")],
    ids=[*OTHERWISE, "precision"],
)
def test_a_store_of_a_network_that_was_trained_otherwise_is_refused(
    short, small_world, trainings, options, words
) -> None:
    before = all_bytes(short)
    with pytest.raises(UsageError, match=f"{words}; give another folder"):
        walked(short, small_world, **{"grid": SHORT, **options})
    assert all_bytes(short) == before
    assert not trainings
    assert walked(short, small_world, grid=SHORT).done == 0


@pytest.mark.parametrize(("options", "words"), OTHERWISE.values(), ids=[*OTHERWISE])
def test_where_a_store_no_longer_says_whose_it_is_its_network_does(
    short, small_world, trainings, options, words
) -> None:
    (short / "experiment.json").unlink()
    before = all_bytes(short)
    with pytest.raises(UsageError, match=words):
        walked(short, small_world, **{"grid": SHORT, **options})
    assert all_bytes(short) == before
    assert walked(short, small_world, grid=SHORT).done == 0
    assert (short / "experiment.json").is_file()
    assert not trainings


def test_other_weights_train_the_network_again(short, small_world, trainings, tmp_path) -> None:
    start = shutil.copy(short / "models" / "seed-0" / "original.safetensors", tmp_path / "start.safetensors")
    with pytest.raises(UsageError, match=r"another weights \(none, not \w{12}\); give another folder"):
        walked(short, small_world, grid=SHORT, weights=start)
    other = tmp_path / "other"
    assert walked(other, small_world, grid=SHORT, weights=start).done == 2
    assert walked(other, small_world, grid=SHORT, weights=start).done == 0
    assert len(trainings) == 1
    written = (other / "experiment.json").read_bytes()
    with pytest.raises(UsageError, match="There is no file"):
        walked(other, small_world, grid=SHORT, epochs=3, weights=tmp_path / "missing.safetensors")
    assert (other / "experiment.json").read_bytes() == written
    assert len(trainings) == 1


@pytest.mark.filterwarnings("ignore:.*starts from random weights")
def test_a_network_that_cannot_be_trained_claims_no_folder(small_world, tmp_path) -> None:
    odd = pour.save(pour.build_model("resnet-digits", 10, in_channels=1), tmp_path / "odd.safetensors")
    with pytest.raises(UsageError):
        walked(tmp_path / "s", small_world, grid=SHORT, weights=odd)
    assert not (tmp_path / "s" / "experiment.json").exists()


def test_only_what_was_asked_for(small_world, tmp_path, store) -> None:
    shutil.copytree(store / "models", tmp_path / "s" / "models")
    outcome = walked(tmp_path / "s", small_world, methods=["pour-p"], forget=["Road"])
    assert outcome.done == 2
    assert {cell.key.row for cell in read_store(tmp_path / "s")} == {"original", "pour-p"}
    with pytest.raises(UsageError, match="has no method 'delete'"):
        walked(tmp_path / "s", small_world, methods=["delete"])


def test_a_method_that_diverges_does_not_take_the_rest_along(small_world, tmp_path, store, monkeypatch) -> None:
    shutil.copytree(store / "models", tmp_path / "s" / "models")
    real = attempts.carry_out

    def carry_out(model: Any, request: Any, method: Any, run: Any) -> Any:
        if method.name == "pour-d":
            raise DivergenceError("The loss became NaN at step 1.")
        return real(model, request, method, run)

    monkeypatch.setattr(attempts, "carry_out", carry_out)
    outcome = walked(tmp_path / "s", small_world, forget=["car"])
    assert outcome.done == 4
    assert outcome.failed == ("pour-d, seed 0: The loss became NaN at step 1.",)
    assert "POUR-D failed on 1 of 1 cells: The loss became NaN" in render(make_table(tmp_path / "s"), "markdown")


def test_the_table_says_what_the_cells_do(store) -> None:
    table = make_table(store)
    assert [row.name for row in table.rows[:4]] == ["Car-original", "Car-masked-head", "Car-pour-p", "Car-pour-d"]
    assert [row.label for row in table.rows] == ["Car"] * 4 + ["Pole"] * 4
    before, masked = (row.entries for row in table.rows[:2])
    cell = read_cell(store, CellKey((2,), 0, "masked-head"))
    assert cell is not None
    assert masked["iou_r"].mean == pytest.approx(100 * cell.values["iou_r"].value)
    assert masked["iou_f"].change == pytest.approx(-before["iou_f"].mean)
    assert masked["cka_r_o"].change is None, "a similarity is one with the original already"
    assert not any(entry.change for entry in before.values())
    text = render(table, "markdown")
    assert text.splitlines()[2].startswith("| forgotten | method | IoU_r ↑ | IoU_r, rest ↑ | IoU_f ↓ |")
    assert "RUS(o), encoder" in text
    assert text.count("\n| ") == 10
    assert f"0.00 (-{before['iou_f'].mean:.2f})" in text
    rows = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert float(rows[1]["iou_f_mean"]) == 0
    assert float(rows[1]["iou_f_change"]) == pytest.approx(-before["iou_f"].mean)
    assert r"\begin{tabular}" in render(table, "latex")
    assert "Masked head (control)" in render(table, "rich")
    assert render(table, "rich").count("│ Car ") == 1, "a class stands in the first of its lines"


def test_all_flags_of_a_table_work_for_scenes(store) -> None:
    one = make_table(store, forget=["pole"], columns=["iou_f", "acc_r"])
    assert {row.label for row in one.rows} == {"Pole"}
    assert [column.key for column in one.columns] == ["iou_f", "acc_r"]
    beside = make_table(store, by_class=True)
    assert [row.name for row in beside.rows if not row.encoder] == ["original", "masked-head", "pour-p", "pour-d"]
    assert {"iou_f.Car", "iou_f.Pole"} <= {column.key for column in beside.columns}
    above = make_table(store, against=store)
    assert len(above.rows) == 2 * len(make_table(store).rows)


def test_the_papers_table_stands_beside_ours(store) -> None:
    table = make_table(store, against="paper")
    paper = {row.label: row for row in table.rows if row.published}
    assert set(paper) == {"dog", "cat", "bicycle", "chair", "bottle"}
    assert paper["cat"].entries["iou_r"].change == pytest.approx(-7.43)
    assert "ResNet-101" in render(table, "markdown")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setup": {"recipe": {"name": "scenes", "epochs": 9}}}, "differ in their recipe;"),
        ({"setup": {"limit": 24}}, "differ in their limit;"),
        ({"setup": {"pixels": 50}}, "differ in their pixels;"),
        ({"setup": {"enlarge": 2}}, "differ in their enlarge;"),
        ({"data": "other"}, "differ in their images;"),
        ({"precision": "bf16"}, "differ in their precision;"),
        ({"models": {"original": "other"}}, "seed 0 belong to 2 different original models"),
    ],
)
def test_cells_that_do_not_belong_together_make_no_table(short, changes, words) -> None:
    assert len(make_table(short).rows) == 2
    rewrite(short, read_store(short)[0], **changes)
    with pytest.raises(UsageError, match=words):
        make_table(short)


def test_a_damaged_cell_is_told(short) -> None:
    lost = read_store(short)[-1]
    path = short / lost.key.path
    path.write_text(path.read_text()[:300])
    table = make_table(short)
    assert len(table.rows) == 1
    assert table.notes[-1].startswith("Damaged cells are left out (1), such as ")
    assert f"{lost.key.row}.json" in table.notes[-1]


def test_seeds_have_networks_of_their_own(short) -> None:
    for cell in read_store(short):
        other = replace(cell, setup={**cell.setup, "seed": 1}, models={"original": "other"})
        (short / other.key.path).parent.mkdir(parents=True, exist_ok=True)
        (short / other.key.path).write_text(seal(other))
    assert {entry.n for row in make_table(short).rows for entry in row.entries.values()} == {2}


def test_notes_stand_under_the_table(short) -> None:
    for cell in read_store(short):
        for label, name in ((2, "Car"), (3, "Pole")):
            changed = replace(
                cell, forgotten_names=(name,), note="" if cell.key.row == "original" else "rate of a guess"
            )
            changed = replace(changed, setup={**cell.setup, "forgotten": [label]})
            (short / changed.key.path).parent.mkdir(parents=True, exist_ok=True)
            (short / changed.key.path).write_text(seal(changed))
    table = make_table(short)
    sentence = "Masked head (control): rate of a guess."
    assert render(table, "markdown").splitlines()[-1] == sentence
    for format in ("markdown", "latex", "rich"):
        assert render(table, format).count(sentence) == 1  # type: ignore[arg-type]
    assert f"\n% {sentence}\n" in render(table, "latex")


def test_the_papers_setting_differs_only_from_other_data(short) -> None:
    words = "The network, data and image size differ"
    text = render(make_table(short, against="paper"), "markdown")
    assert text.count(words) == text.count("paper: POUR on Pascal VOC 2012") == 1
    assert words not in render(make_table(short), "markdown")
    for cell in read_store(short):
        rewrite(short, cell, setup={"dataset": "voc2012"})
    text = render(make_table(short, against="paper"), "markdown")
    assert words not in text
    assert "paper: POUR on Pascal VOC 2012" in text


def test_what_was_measured_is_still_read() -> None:
    table = make_table(RESULTS)
    assert len(table.rows) == 35
    text = render(table, "markdown")
    assert text.endswith("\nPOUR-D: rate chosen on car and 60 test images, with a network of 9 epochs.\n")
