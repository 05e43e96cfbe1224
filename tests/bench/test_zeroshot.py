"""The zero-shot experiment: training, cells, resuming, tables, bars and the commands around it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import dual_families as families
import numpy as np
import pytest
import torch
from bench_cells import save_texts
from command_line import here, process

import pour
from pour.bench import export_store, get_experiment, import_store, make_table, render, run_experiment
from pour.bench.rendering import save_bars
from pour.bench.store import read_store, seal
from pour.data.dataset import ImageDataset, ImageSplit
from pour.errors import UsageError
from pour.models import TextTable, ZeroShotClassifier

WIDTH = 48
DIGITS = [str(digit) for digit in range(10)]
FORGET = ["3", "8"]
ROWS = tuple(row.name for row in get_experiment("zeroshot").rows)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_texts(tmp_path_factory.mktemp("text") / "digits.npz", width=WIDTH)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    out = tmp_path_factory.mktemp("zeroshot") / "runs"
    outcome = run(out, text_file)
    assert (outcome.done, outcome.kept) == (12, 0)
    return out


def run(out: Path, text_file: Path, **options: object) -> pour.bench.Outcome:
    changes = {
        "architecture": "clip-resnet-digits",
        "dataset": "digits",
        "transfer": "digits",
        "text": str(text_file),
        "forget": FORGET,
        "recipe": {"name": "digits", "epochs": 6},
    }
    changes |= {name: options.pop(name) for name in ("architecture", "recipe", "recipe.epochs") if name in options}
    return run_experiment(get_experiment("zeroshot", changes), out, device="cpu", progress=False, **options)


def test_the_encoder_learns_and_forgets_by_text(store: Path) -> None:
    cells = {(cell.key.forget, cell.key.row): cell for cell in read_store(store)}
    assert set(cells) == {(forget, row) for forget in ((3,), (8,), (3, 8)) for row in ROWS}
    for (forget, row), cell in cells.items():
        values = {name: reading.value for name, reading in cell.values.items()}
        assert values["acc_r_before"] > 0.85
        assert values["fold_gap"] < 1e-5
        if row == "random":
            assert values["acc_f"] > 0.5 * values["acc_f_before"]
        elif row == "specific":
            assert values["fall"] >= 0.7, (forget, row, values)
        if row != "random":
            assert values["acc_r"] > values["acc_r_before"] - 0.02
        # The transfer set is the same data, so that its accuracy is that of all classes.
        size = sum(cell.answers)
        images = {name: cell.values[f"acc.{name}"].n for name in DIGITS}
        right = {name: cell.values[f"acc.{name}"].value * images[name] for name in DIGITS}
        assert values["transfer"] == pytest.approx(sum(right.values()) / sum(images.values()))
        assert values["acc_f"] == pytest.approx(sum(right[str(label)] for label in forget) / size)
        assert size == sum(images[str(label)] for label in forget)


def test_the_stored_cells_are_what_the_saved_model_gives(store: Path) -> None:
    model = pour.load(store / "models" / "seed-0" / "original.safetensors")
    assert isinstance(model, ZeroShotClassifier)
    split = pour.load_dataset("digits").splits["test"]
    images = torch.from_numpy(split.images).permute(0, 3, 1, 2).float() / 255
    texts = TextTable.load(next(store.parent.parent.glob("text*/digits.npz")))
    folded = pour.fold(pour.models.forget_concepts(model, "a photo of a 8.", encode=texts, part="text"))
    with torch.no_grad():
        answers = folded.eval()(images).argmax(dim=1).numpy()
    own = split.labels == 8
    cell = next(cell for cell in read_store(store) if (cell.key.forget, cell.key.row) == ((8,), "text"))
    assert cell.values["acc_f"].value == pytest.approx((answers[own] == 8).mean())
    assert cell.values["acc_r"].value == pytest.approx((answers == split.labels)[~own].mean())
    assert np.array_equal(np.bincount(answers[own], minlength=10), cell.answers)


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A copy of the store, to be changed."""
    return shutil.copytree(store, tmp_path / "copy")


def darker(name: str, root: Path | None = None, **_: Any) -> ImageDataset:
    """The dataset with one test image made darker."""
    dataset = pour.load_dataset(name, root)
    test = dataset.splits["test"]
    images = test.images.copy()
    images[0] //= 2
    splits = {**dataset.splits, "test": ImageSplit(images, test.labels)}
    return ImageDataset(name=dataset.name, classes=dataset.classes, splits=splits, info=dataset.info)


def test_the_transfer_images_belong_to_the_identity_of_a_cell(
    copy: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def second_is_darker(name: str, root: Path | None = None, **_: Any) -> ImageDataset:
        opened.append(name)
        return darker(name, root) if len(opened) % 2 == 0 else pour.load_dataset(name, root)

    monkeypatch.setattr("pour.training.tasks.match.load_dataset", second_is_darker)
    with pytest.raises(UsageError, match="was trained on other images than digits has now"):
        run(copy, text_file)


def test_the_table_has_means_and_every_concept(store: Path) -> None:
    table = make_table(store, against="paper")
    labels = [row.label for row in table.rows]
    assert labels[:8] == ["each of 2"] * 4 + ["2 at once"] * 4
    assert {"3", "8", "goldfish", "bison"} <= set(labels)
    mean = table.rows[0].entries["acc_f_before"].mean
    single = [row.entries["acc_f_before"].mean for row in table.rows if row.label in FORGET and "text" in row.setting]
    assert mean == pytest.approx(sum(single) / 2)
    paper = next(row for row in table.rows if row.label == "goldfish")
    assert paper.published
    assert paper.entries["acc_r_change"].mean == pytest.approx(1.87)
    for format in ("rich", "markdown", "latex", "csv"):
        assert "bison" in render(table, format)
    assert "differ by at most" in render(table, "markdown")


def test_a_damaged_cell_is_told(copy: Path) -> None:
    path = copy / read_store(copy)[0].key.path
    path.write_text(path.read_text()[:300])
    assert any(note.startswith("Damaged cells are left out (1)") for note in make_table(copy).notes)


def test_every_joint_request_has_lines_of_its_own(copy: Path, text_file: Path) -> None:
    run(copy, text_file, forget=["1", "7"], methods=["text", "specific"])
    run(copy, text_file, forget=["1", "7", "8"], methods=["text"])
    table = make_table(copy)
    joint = [row for row in table.rows if "at once" in row.label]
    assert [(row.label, row.setting) for row in joint] == [
        ("2 at once: 1, 7", "text (paper)"),
        ("2 at once: 1, 7", "specific"),
        *(("2 at once: 3, 8", setting) for setting in ("text (paper)", "specific", "centred", "random (control)")),
        ("3 at once", "text (paper)"),
    ]
    cells = {(cell.key.forget, cell.key.row): cell for cell in read_store(copy)}
    for row, key in ((joint[0], (1, 7)), (joint[2], (3, 8)), (joint[6], (1, 7, 8))):
        assert row.entries["acc_f_before"].n == 1
        assert row.entries["acc_f_before"].mean == pytest.approx(100 * cells[key, "text"].values["acc_f_before"].value)
    assert len({row.name for row in table.rows}) == len(table.rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setup": {"recipe": {"name": "fast"}}}, "differ in their recipe;"),
        ({"setup": {"transfer": None}}, "differ in their transfer;"),
        ({"setup": {"text": "other"}}, "differ in their text;"),
        ({"data": "other"}, "differ in their images;"),
        ({"precision": "bf16"}, "differ in their precision;"),
        ({"models": {"original": "other", "retrained": "", "ceiling": ""}}, "2 different original models"),
    ],
)
def test_cells_that_do_not_belong_together_make_no_table(copy: Path, changes: dict[str, Any], words: str) -> None:
    cell = next(cell for cell in read_store(copy) if (cell.key.forget, cell.key.row) == ((3,), "text"))
    setup = {**cell.setup, **changes.get("setup", {})}
    (copy / cell.key.path).write_text(seal(replace(cell, **{**changes, "setup": setup})))
    for show in (make_table, save_bars):
        with pytest.raises(UsageError, match=words):
            show(copy)


def test_what_was_measured_is_still_read() -> None:
    table = make_table(Path(__file__).parents[2] / "results" / "zeroshot.json.gz")
    assert [row.label for row in table.rows[:8]] == ["each of 10"] * 4 + ["10 at once"] * 4


def test_the_bars_show_each_concept(store: Path) -> None:
    files = save_bars(store)
    assert len(files) == 2 * len(ROWS)
    assert all("points on its own classes" in file.read_text() for file in files)


def test_results_travel_without_their_models(store: Path, tmp_path: Path) -> None:
    assert export_store(store, tmp_path / "cells.tar") == 12
    assert import_store(tmp_path / "cells.tar", tmp_path / "there") == 12
    assert make_table(tmp_path / "there") == make_table(store)
    assert [file.read_bytes() for file in save_bars(tmp_path / "there")] == [
        file.read_bytes() for file in save_bars(store)
    ]


@pytest.mark.slow
def test_the_commands_from_training_to_the_audit(tmp_path: Path, text_file: Path) -> None:
    original, forgotten, by_class = (tmp_path / f"{name}.safetensors" for name in ("o", "f", "c"))
    common = ("--device", "cpu", "--quiet")
    done = process(
        "train", "--data", "digits", "--arch", "clip-resnet-digits", "--set", f"text={text_file}", "--epochs", 6,
        "--out", original, *common,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = process(
        "unlearn", original, "--concept", "a photo of a 3", "--text", text_file, "--concept-part", "specific",
        "--out", forgotten, "--quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    history = json.loads(here("history", forgotten, "--json").stdout)
    assert [record["method"] for record in history] == ["pour-p"]
    assert history[0]["options"]["concepts"] == ["a photo of a 3"]
    done = process("unlearn", original, "--method", "pour-p", "--forget", "3", "--out", by_class, *common)
    assert done.returncode == 0, done.stderr
    for file in (forgotten, by_class):
        done = process("audit", original, file, "--forget", "3", "--data", "digits", "--json", "--device", "cpu")
        assert done.returncode == 0, done.stderr
        values = pour.AuditReport.from_json(done.stdout).values()
        assert values["acc_f"] <= 0.2
        assert values["acc_r"] > 0.85
    for arguments, sentence in (
        (("unlearn", original, "--out", tmp_path / "x.safetensors"), "--forget (a class) or --concept (words)"),
        (
            ("unlearn", original, "--concept", "a zebra", "--text", text_file, "--out", tmp_path / "x.safetensors"),
            "has no text 'a zebra'",
        ),
    ):
        done = here(*arguments)
        assert done.returncode == 2
        assert sentence in done.stderr


@pytest.mark.slow
def test_a_pretrained_clip_and_a_folder_of_images_from_one_command(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    model = families.hf_clip()
    model.save_pretrained(tmp_path / "clip")
    families.save_tokenizer(tmp_path / "clip")
    numbers = np.random.default_rng(0)
    for name in ("n1", "n2", "n3", "n4"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(6):
            pixels = numbers.integers(0, 255, (40, 50, 3), dtype=np.uint8)
            pillow.fromarray(pixels).save(tmp_path / "images" / name / f"{index}.png")
    (tmp_path / "names.txt").write_text("n1 cat\nn2 dog\nn3 red fish\nn4 ship\n")
    out = tmp_path / "runs"
    command = (
        "bench", tmp_path / "mine.toml", "--forget", "cat", "--forget", "red fish", "--out", out, "--device", "cpu",
    )  # fmt: skip
    (tmp_path / "mine.toml").write_text(
        f'base = "zeroshot"\nname = "zeroshot"\narchitecture = "hf:{tmp_path / "clip"}"\n'
        'dataset = "folder:images@32"\n[settings]\nnames = "names.txt"\ntransfer = "null"\ntest_on_all = true\n'
    )
    done = process(*command)
    assert done.returncode == 0, done.stderr
    assert "12 cells computed, 0 were already stored" in done.stdout
    assert "red fish" in done.stdout
    assert "0 cells computed, 12 were already stored" in process(*command).stdout
    cells = read_store(out)
    # Every image of a plain folder is tested: nothing is trained.
    assert {sum(cell.answers) for cell in cells if cell.key.forget == (0,)} == {6}
    assert all(cell.values["fold_gap"].value < 1e-5 for cell in cells)
    assert (out / "figures" / "changes-specific-dark.svg").is_file()
    printed = here("table", out, "--format", "markdown", "--against", "paper")
    assert "European fire salamander" in printed.stdout


def test_wrong_use_is_said_in_a_sentence(tmp_path: Path) -> None:
    changes = {"dataset": "digits", "transfer": "null", "forget": ["3"]}
    for arch, match in (
        ("resnet18", "is no encoder|names no dual encoder"),
        (f"hf:{tmp_path / 'nothing'}", "cannot open"),
    ):
        with pytest.raises(UsageError, match=match):
            run_experiment(get_experiment("zeroshot", {**changes, "architecture": arch}), tmp_path / "runs")
    assert not (tmp_path / "runs" / "experiment.json").exists()
    (tmp_path / "names.txt").write_text("x y")
    with pytest.raises(UsageError, match="which digits does not have"):
        run_experiment(get_experiment("zeroshot", {**changes, "names": str(tmp_path / "names.txt")}), tmp_path / "o")
