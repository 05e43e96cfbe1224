from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from bench_cells import keep, made_up, table_grid
from rich.console import Console

from pour.bench import Row, make_table, render, show_table
from pour.bench.columns import find_column, latex_text
from pour.bench.published import Entry, differs, published
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

GRID = table_grid()
ACC_R = {
    "original": [0.94, 0.95, 0.96],
    "retrained": [0.95, 0.95, 0.95],
    "finetune-tuned": [0.99, 0.99, 0.99],
    "delete-common": [0.88, 0.89, 0.87],
    "delete-tuned": [0.94, 0.95, 0.945],
    "pour-p": [0.945, 0.955, 0.965],
    "pour-d-tuned": [0.93, 0.9, 0.96],
    "masked-head": [0.945, 0.955, 0.965],
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for row, values in ACC_R.items():
        for seed, value in enumerate(values):
            measures = {"acc_r": value, "acc_f": 0.5 if row == "original" else 0.0, "rmia_tpr": 0.5}
            if row == "pour-p":
                measures |= {"cka_f_o": 0.77, "raw.cka_f_o": 1.0}
            keep(tmp_path, GRID, made_up(GRID, row, seed=seed, values=measures))
    return tmp_path


def test_mean_and_deviation_over_seeds(store: Path) -> None:
    table = make_table(store)
    for row, values in ACC_R.items():
        entry = table.row(row).entries["acc_r"]
        wanted = [100 * np.mean(values), 100 * np.std(values, ddof=1)]
        np.testing.assert_allclose([entry.mean, entry.std or 0], wanted, atol=1e-9)
        assert entry.n == 3
    assert table.row("pour-p").entries["rmia"].mean == 50
    assert "airplane forgotten, seeds 0, 1, 2" in table.title
    assert [column.key for column in table.columns] == list(GRID.columns)


def test_the_papers_attack_is_compared_on_the_encoders_features(tmp_path: Path) -> None:
    """It was made on features before the projector, so that is the line it belongs to."""
    for seed, (seen, raw) in enumerate(((0.40, 0.566), (0.41, 0.567), (0.42, 0.568))):
        values = {"acc_r": 0.9, "acc_f": 0.0, "rmia_tpr": seen, "raw.rmia_tpr": raw, "raw.acc_r": 0.9}
        keep(tmp_path, GRID, made_up(GRID, "pour-p", seed=seed, values=values))
    table = make_table(tmp_path, against="paper")
    encoder = next(row for row in table.rows if row.encoder)
    assert table.row("pour-p").entries["rmia"].difference is None
    assert encoder.entries["rmia"].difference is None
    for seed in range(3):
        values = {"acc_r": 0.9, "acc_f": 0.0, "rmia_tpr": 0.567, "raw.rmia_tpr": 0.9 + 0.01 * seed, "raw.acc_r": 0.9}
        keep(tmp_path, GRID, made_up(GRID, "pour-p", seed=seed, values=values))
    table = make_table(tmp_path, against="paper")
    encoder = next(row for row in table.rows if row.encoder)
    assert table.row("pour-p").entries["rmia"].difference is None
    assert encoder.entries["rmia"].difference == "above"
    assert encoder.entries["acc_r"].difference is None


def test_rows_are_grouped_by_the_data_they_need(store: Path) -> None:
    table = make_table(store)
    groups = {row.name: row.group for row in table.rows}
    assert groups["finetune-tuned"] == "retain"
    assert groups["pour-p"] == groups["masked-head"] == groups["delete-tuned"] == "forget"
    order = [row.group for row in table.rows]
    assert order == sorted(order, key=["reference", "retain", "forget"].index)


def test_the_best_two_of_the_forget_only_group_are_marked(store: Path) -> None:
    table = make_table(store)
    marks = {row.name: row.entries["acc_r"].mark for row in table.rows if "acc_r" in row.entries}
    assert marks == {
        "original": None,
        "retrained": None,
        "finetune-tuned": None,
        "delete-common": None,
        "delete-tuned": "second",
        "pour-p": "best",
        "pour-d-tuned": None,
        "masked-head": "best",
    }
    lower = {row.name: row.entries["acc_f"].mark for row in table.rows if row.group == "forget" and not row.encoder}
    assert set(lower.values()) == {"best"}


def test_a_projected_model_has_a_line_for_its_encoder(store: Path) -> None:
    rows = [row for row in make_table(store).rows if row.name == "pour-p"]
    assert [row.encoder for row in rows] == [False, True]
    assert [row.entries["cka_f_o"].mean for row in rows] == [0.77, 1.0]
    assert "acc_r" not in rows[1].entries
    assert rows[1].entries["cka_f_o"].mark is None


def test_markdown(store: Path) -> None:
    text = render(make_table(store), "markdown")
    line = next(line for line in text.splitlines() if line.startswith("| POUR-P |"))
    assert "**95.50±1.00**" in line
    assert "| \N{EN DASH} |" in line, "what was not measured is shown as such"
    assert "<u>94.50±0.50</u>" in text
    assert "| *With retained images* |" in text
    assert "Not run yet: ceiling, finetune-common" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_latex(store: Path) -> None:
    text = render(make_table(store), "latex")
    assert "\\textbf{95.50{\\tiny $\\pm$1.00}}" in text
    assert "\\underline{94.50{\\tiny $\\pm$0.50}}" in text
    assert text.count("{") == text.count("}")
    body = [line for line in text.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {14}


def test_csv_has_unrounded_numbers(store: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(render(make_table(store), "csv"))))
    found = next(row for row in rows if row["row"] == "delete-tuned")
    assert float(found["acc_r_std"]) == pytest.approx(100 * np.std(ACC_R["delete-tuned"], ddof=1))
    assert found["acc_r_n"] == "3"
    assert found["aus_mean"] == ""
    assert [row["source"] for row in rows if row["row"] == "pour-p"] == ["measured", "encoder"]


def test_rich(store: Path) -> None:
    text = render(make_table(store, columns=["acc_r"]), "rich")
    assert "95.50±1.00" in text
    assert "Masked head (control)" in text
    stream = io.StringIO()
    show_table(make_table(store), Console(file=stream, width=60))
    assert "95.50±1.00" in stream.getvalue(), "a narrow terminal cuts no number"
    assert "…" not in stream.getvalue()


def test_against_the_paper(store: Path) -> None:
    table = make_table(store, against="paper")
    paper = {row.name: row for row in table.rows if row.published}
    assert paper["pour-d-tuned"].entries["acc_r"].mean == 92.86
    assert paper["pour-p"].entries["acc_r_change"].mean == pytest.approx(0.5)
    assert "cka_f_o" not in paper["pour-p"].entries
    assert table.row("pour-d-tuned").entries["acc_r"].difference is None
    assert table.row("delete-tuned").entries["acc_r"].difference == "above"
    assert table.row("delete-common").entries["acc_r"].difference is None
    assert table.row("pour-p").entries["acc_r_change"].mean == pytest.approx(0.5)
    assert table.row("masked-head").entries["acc_r"].difference is None
    names = [(row.name, row.setting) for row in table.rows if row.label == "DELETE"]
    assert names == [("delete-common", "common"), ("delete-tuned", "default"), ("delete-tuned", "paper")]
    for format in ("markdown", "rich", "latex"):
        text = render(table, format)  # type: ignore[arg-type]
        assert "paper" in text
    assert "▲" in render(table, "markdown")
    assert "masked-head" not in paper


def test_a_row_at_its_defaults_is_compared_with_the_paper(tmp_path: Path) -> None:
    default = Row(name="pour-d-default", method="pour-d", setting="default", family="paper")
    grid = replace(GRID, rows=(*GRID.rows, default))
    keep(tmp_path, grid, *(made_up(grid, default.name, seed=seed, values={"acc_r": 0.97}) for seed in range(3)))
    table = make_table(tmp_path, against="paper")
    assert table.row("pour-d-default").setting == "default"
    assert table.row("pour-d-default").entries["acc_r"].difference == "above"
    assert [row.setting for row in table.rows] == ["default", "paper"]


def test_the_paper_s_line_stands_below_a_variant_that_it_is_not_compared_with(tmp_path: Path) -> None:
    tuned = Row(name="pour-d-tuned", method="pour-d", setting="tuned", family="paper")
    variant = Row(name="pour-d-cosine", method="pour-d", setting="default", family="paper")
    grid = replace(GRID, rows=(tuned, variant))
    cells = [made_up(grid, row.name, seed=seed, values={"acc_r": 0.97}) for row in (tuned, variant) for seed in (0, 1)]
    keep(tmp_path / "both", grid, *cells)
    table = make_table(tmp_path / "both", against="paper")
    assert [row.setting for row in table.rows] == ["tuned", "default", "paper"]
    assert table.row("pour-d-tuned").entries["acc_r"].difference == "above"
    assert table.row("pour-d-cosine").entries["acc_r"].difference is None
    keep(tmp_path / "variant", grid, *cells[2:])
    assert [row.setting for row in make_table(tmp_path / "variant", against="paper").rows] == ["default"]


def test_the_second_seed_has_no_line_in_the_paper(tmp_path: Path) -> None:
    cells = [made_up(GRID, row, values={"acc_r": 0.95}) for row in ("original", "retrained", "ceiling")]
    keep(tmp_path, GRID, *cells)
    assert [row.name for row in make_table(tmp_path, against="paper").rows if row.published] == [
        "original",
        "retrained",
    ]


def test_every_smaller_rate_is_told(tmp_path: Path) -> None:
    factors = (1.0, 1 / 9, 1 / 3)
    cells = (
        made_up(GRID, "sure-tuned", seed=seed, values={"acc_r": 0.9}, rate_factor=factor)
        for seed, factor in enumerate(factors)
    )
    keep(tmp_path, GRID, *cells)
    told = "sure-tuned diverged at its learning rate on 2 of 3 seeds and ran at 1/3 or 1/9 of it there."
    assert told in make_table(tmp_path).notes


def test_failures_and_gaps_are_told(tmp_path: Path) -> None:
    keep(
        tmp_path,
        GRID,
        made_up(GRID, "sure-tuned", values={"acc_r": 0.9}),
        made_up(GRID, "sure-tuned", seed=1, failed="The loss became nan at step 3."),
        made_up(GRID, "pour-d-tuned", seed=1, failed="The loss became nan."),
    )
    table = make_table(tmp_path)
    entry = table.row("sure-tuned").entries["acc_r"]
    assert (entry.mean, entry.std, entry.n) == (90.0, None, 1)
    assert table.row("pour-d-tuned").entries == {}
    notes = "\n".join(table.notes)
    assert "sure-tuned failed on 1 of 2 seeds: The loss became nan at step 3." in notes
    assert "pour-d-tuned has 1 of 2 seeds." in notes
    assert table.row("sure-tuned").setting == "default", "it was not tuned"
    assert render(table, "markdown")


def test_rows_with_fewer_seeds_share_a_sentence(tmp_path: Path) -> None:
    runs = {"original": 3, "pour-p": 3, "delete-common": 2, "delete-tuned": 2, "pour-d-tuned": 1}
    cells = (
        made_up(GRID, row, seed=seed, values={"acc_r": 0.9}) for row, count in runs.items() for seed in range(count)
    )
    keep(tmp_path, GRID, *cells)
    fewer = [note for note in make_table(tmp_path).notes if note.endswith("of 3 seeds.")]
    assert fewer == ["pour-d-tuned has 1 of 3 seeds.", "delete-common, delete-tuned have 2 of 3 seeds."]


def test_a_row_that_was_tuned_on_some_seeds_is_not_called_default(tmp_path: Path) -> None:
    tuned = "tuned by the rule 'benchmark' with seed 100"
    cells = (
        made_up(GRID, "delete-tuned", values={"acc_r": 0.9}),
        made_up(GRID, "delete-tuned", seed=1, values={"acc_r": 0.9}, note=tuned, untuned=False),
    )
    keep(tmp_path, GRID, *cells)
    assert make_table(tmp_path).row("delete-tuned").setting == "tuned"


def test_an_older_cell_has_only_the_note_that_its_method_was_not_tuned() -> None:
    assert made_up(GRID, "delete-tuned", note="not tuned: the method's defaults", untuned=False).untuned


def test_which_request(tmp_path: Path) -> None:
    keep(
        tmp_path,
        GRID,
        made_up(GRID, "original", forget=(5,), forgotten_names=("dog",), values={"acc_r": 0.5}),
        made_up(GRID, "original", forget=(1,), forgotten_names=("5",), values={"acc_r": 0.1}),
        made_up(GRID, "original", forget=(7, 5), forgotten_names=("horse", "dog"), values={"acc_r": 0.3}),
        made_up(GRID, "original", forget=(9,), forgotten_names=(), values={"acc_r": 0.9}),
    )

    def found(*forget: int | str) -> float:
        return make_table(tmp_path, forget=forget or None).row("original").entries["acc_r"].mean

    assert found() == found(1) == found("1") == 10
    assert found("5") == 10, "a name before an index"
    assert found("dog") == 50
    assert found("horse", "dog") == found(7, "dog") == found("7", 5) == found("dog", "horse") == 30
    assert found(9) == found("9") == 90
    for forget in (["airplane"], ["0"], ["horse"]):
        sentence = rf"no results of forgetting {', '.join(forget)}; it has those of 5; dog; horse, dog; 9\."
        with pytest.raises(UsageError, match=sentence):
            make_table(tmp_path, forget=forget)


def test_classes_side_by_side(store: Path) -> None:
    """Each class as in its own table; a row that only a later class has stands in its place."""
    for seed, value in enumerate((0.5, 0.7)):
        dog = {"forget": (5,), "seed": seed, "forgotten_names": ("guide_dog",)}
        keep(
            store,
            GRID,
            made_up(GRID, "original", values={"acc_r": 0.9}, **dog),
            made_up(GRID, "pour-d-tuned", values={"acc_r": value}, **dog),
            made_up(GRID, "sure-tuned", values={"acc_r": 0.8}, **dog),
        )
    table = make_table(store, columns=["acc_r", "acc_r_change"], by_class=True)
    assert [column.label for column in table.columns] == [
        "Acc_r, airplane",
        "change of Acc_r, airplane",
        "Acc_r, guide_dog",
        "change of Acc_r, guide_dog",
    ]
    assert table.title == (
        "cifar10, resnet18, recipe fast: airplane (seeds 0, 1, 2); guide_dog (seeds 0, 1) forgotten in turn"
    )
    for name, request in (("airplane", [0]), ("guide_dog", [5])):
        for row in make_table(store, forget=request, columns=["acc_r", "acc_r_change"]).rows:
            merged = next(other for other in table.rows if (other.name, other.encoder) == (row.name, row.encoder))
            for key, entry in row.entries.items():
                assert merged.entries[f"{key}.{name}"] == entry
    assert "acc_r.guide_dog" not in table.row("delete-tuned").entries
    rows = [row.name for row in table.rows if not row.encoder]
    listed = [row.name for row in GRID.rows]
    assert [row for row in rows if row in ("finetune-tuned", "sure-tuned")] == ["finetune-tuned", "sure-tuned"]
    assert listed.index("finetune-tuned") < listed.index("sure-tuned") < listed.index("delete-tuned")
    assert "airplane: Mean and sample deviation over 3 seeds." in table.notes
    assert "guide_dog: Mean and sample deviation over 2 seeds." in table.notes
    assert "Acc$_r$, guide\\_dog" in render(table, "latex")
    assert "acc_r.guide_dog_mean" in render(table, "csv").splitlines()[0]


def test_a_store_beside_another(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for seed in range(3):
        for row, value in {"original": 0.95, "pour-p": 0.955, "delete-tuned": 0.90, "pour-d-tuned": 0.93}.items():
            measures = {"acc_r": value + 0.01 * seed, "cka_f_o": 0.8}
            keep(other, GRID, made_up(GRID, row, seed=seed, values=measures, models="b"))
    setup = dict(made_up(GRID, "sure-tuned").setup)
    keep(other, GRID, made_up(GRID, "sure-tuned", models="b", setup=setup | {"options": setup["options"] | {"lr": 7}}))
    keep(store, GRID, made_up(GRID, "sure-tuned", values={"acc_r": 0.9}))
    table = make_table(store, against=other, columns=["acc_r", "cka_f_o"])
    below = [row for row in table.rows if row.elsewhere]
    assert {row.setting for row in below} == {str(other)}
    assert [row.name for row in below] == ["original", "sure-tuned", "delete-tuned", "pour-p", "pour-d-tuned"]
    assert all(entry.mark is None for row in below for entry in row.entries.values())
    for row, found in ((row, table.rows[place + 1]) for place, row in enumerate(table.rows[:-1])):
        assert not found.elsewhere or (found.name, found.encoder) == (row.name, row.encoder)
    # 94.5 and 91, deviations 0.5 and 1: 3.5 apart, where 2.24 are allowed.
    assert table.row("delete-tuned").entries["acc_r"].difference == "above"
    assert table.row("pour-p").entries["cka_f_o"].difference == "below", "no seed deviates on either side"
    assert table.row("original").entries["acc_r"].difference is None
    assert table.row("finetune-tuned").entries["acc_r"].difference is None
    assert table.row("delete-tuned").entries["acc_r"].mark == "second", "as in its own table"
    notes = "\n".join(table.notes)
    assert f"the value of {other} by more than two deviations (2 of 5 values)." in notes
    lr = made_up(GRID, "sure-tuned").setup["options"]["lr"]
    assert f"sure-tuned ran with other options in {other}: lr=7, not {lr}." in notes
    assert f"Not in {other}: retrained, finetune-tuned, delete-common, masked-head." in notes
    sources = [row["source"] for row in csv.DictReader(io.StringIO(render(table, "csv"))) if row["row"] == "original"]
    assert sources == ["measured", f"measured, {other}"]
    apart = make_table(store, against=other, columns=["acc_r_external"])
    assert f"No value of these columns is in {other} too." in apart.notes
    swapped = make_table(other, against=store, columns=["acc_r"])
    assert f"Only in {store}: retrained, finetune-tuned, delete-common, masked-head." in swapped.notes
    assert not any(entry.difference for row in make_table(store, against=store).rows for entry in row.entries.values())


def test_stores_of_different_things_do_not_stand_beside_each_other(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    keep(other, GRID, made_up(GRID, "original", forget=(5,), forgotten_names=("dog",)))
    with pytest.raises(UsageError, match=r"no results of forgetting 0; it has those of dog"):
        make_table(store, against=other)
    grid = replace(GRID, architecture="resnet-small")
    keep(tmp_path / "small", grid, made_up(grid, "original"))
    with pytest.raises(
        UsageError,
        match=r"contains results of cifar10, resnet-small, .* another architecture \(resnet-small, not resnet18\)",
    ):
        make_table(store, against=tmp_path / "small")


def test_a_setting_that_was_not_run_is_named_once(store: Path, tmp_path: Path) -> None:
    rows = [row.name for row in GRID.rows if row.setting == "tuned"]
    keep(tmp_path / "tuned", GRID, *(made_up(GRID, row) for row in ("original", "pour-p", *rows)))
    notes = make_table(tmp_path / "tuned").notes
    assert "Not run: the setting common." in notes
    assert not any("delete-common" in note for note in notes)
    assert any(note.startswith("Not run yet: retrained, ceiling") for note in notes)
    assert "Not run: the setting common." not in make_table(store).notes, "one of its rows was"


def test_wrong_use_is_told(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no column 'accuracy'"):
        make_table(store, columns=["accuracy"])
    with pytest.raises(UsageError, match="format must be one of rich, markdown, latex, csv, but is 'html'"):
        render(make_table(store), "html")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="table has no row 'x'"):
        make_table(store).row("x")
    keep(store, GRID, made_up(GRID, "sure-tuned", models="b"))
    with pytest.raises(UsageError, match="different original models"):
        make_table(store)


def test_published_values() -> None:
    assert published("cifar10", "delete", find_column("rus_r")) == Entry(mean=0.39, std=0.01, n=None)
    assert published("cifar10", "salun", find_column("acc_r")) == Entry(mean=92.72, std=None, n=None)
    assert published("cifar100", "pour-d", find_column("rus_r")) == Entry(mean=0.65, std=None, n=None)
    assert published("cifar10", "retrained", find_column("rmia")) is None
    assert published("digits", "pour-d", find_column("acc_r")) is None
    assert published("cifar10", "sure", find_column("acc_r_change")) is None


def test_two_deviations() -> None:
    assert differs(Entry(mean=1.0, std=0.3), Entry(mean=0.0, std=0.4)) is None
    assert differs(Entry(mean=1.0, std=0.3), Entry(mean=-0.006, std=0.4)) == "above"
    assert differs(Entry(mean=-1.2, std=0.3), Entry(mean=0.0, std=None)) == "below"
    assert differs(Entry(mean=5.0, std=None), Entry(mean=0.0, std=None)) is None
    assert differs(Entry(mean=0.004, std=0.0), Entry(mean=0.0, std=0.0)) is None, "the paper rounds"


def test_the_paper_is_compared_only_with_its_own_class_and_network(tmp_path: Path) -> None:
    rows = [
        made_up(GRID, "pour-p", forget=(1,), seed=seed, forgotten_names=("automobile",), values={"acc_r": 0.5})
        for seed in range(3)
    ]
    keep(tmp_path / "class", GRID, *rows)
    table = make_table(tmp_path / "class", against="paper")
    assert any(row.published for row in table.rows)
    assert table.row("pour-p").entries["acc_r"].difference is None
    assert "The printed values are taken to be of forgetting class 0, so nothing is marked." in table.notes
    assert not any(note.startswith("Arrows") for note in table.notes)
    small = replace(GRID, architecture="resnet-small")
    keep(
        tmp_path / "network", small, *(made_up(small, "pour-p", seed=seed, values={"acc_r": 0.5}) for seed in range(3))
    )
    table = make_table(tmp_path / "network", against="paper")
    assert table.row("pour-p").entries["acc_r"].difference is None
    assert "The printed values are of resnet18, so nothing is marked." in table.notes
    digits = table_grid("digits")
    keep(tmp_path / "digits", digits, made_up(digits, "pour-p", values={"acc_r": 0.5}))
    with pytest.raises(UsageError, match="The paper prints no results on digits"):
        make_table(tmp_path / "digits", against="paper")


def test_what_methods_said_and_what_tuning_saw_is_noted(tmp_path: Path) -> None:
    said = {"warnings": ("pour-d still classifies 5.0% of the forget images as before",)}
    keep(
        tmp_path,
        GRID,
        made_up(GRID, "pour-d-tuned", seed=0, values={"acc_r": 0.9}, **said),
        made_up(GRID, "pour-d-tuned", seed=1, values={"acc_r": 0.9}),
        made_up(GRID, "delete-tuned", seed=0, values={"acc_r": 0.9}, tuned_on=(0, 4), tuned_with=1),
        made_up(GRID, "delete-tuned", seed=1, values={"acc_r": 0.9}, tuned_on=(0, 4), tuned_with=1),
    )
    notes = make_table(tmp_path).notes
    assert "pour-d-tuned warned on 1 of 2 seeds: pour-d still classifies 5.0% of the forget images as before" in notes
    assert "delete-tuned was tuned on a class that is shown here, so it is no fair test." in notes
    assert "delete-tuned was tuned with a seed that is shown here, so it is no fair test." in notes


def test_runs_that_were_trained_otherwise_are_not_set_above_each_other(store: Path, tmp_path: Path) -> None:
    longer = replace(GRID, recipe=GRID.recipe.change(epochs=GRID.recipe.epochs + 1))
    keep(tmp_path / "other", longer, made_up(longer, "pour-p", values={"acc_r": 0.5}))
    with pytest.raises(UsageError, match="another recipe"):
        make_table(store, against=tmp_path / "other")
    for name, changes in (("one", {}), ("two", {"precision": "bf16", "data": "other"})):
        keep(tmp_path / name, GRID, made_up(GRID, "pour-p", values={"acc_r": 0.5}, **changes))
    notes = make_table(tmp_path / "one", against=tmp_path / "two").notes
    assert f"{tmp_path / 'two'} ran in another precision." in notes
    assert f"{tmp_path / 'two'} ran on other images." in notes
    assert f"One seed on either side: nothing says whether values of {tmp_path / 'two'} differ." in notes


def test_columns_and_lines_that_say_nothing_are_left_out(store: Path) -> None:
    table = make_table(store, columns=["acc_r", "acc_r"])
    assert [column.key for column in table.columns] == ["acc_r"]
    assert not any(row.encoder for row in table.rows), "accuracies are not the encoder's"


def test_latex_of_odd_names() -> None:
    assert latex_text("a\nb ~^\\") == r"a b \textasciitilde{}\textasciicircum{}\textbackslash{}"
