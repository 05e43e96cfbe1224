from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from bench_cells import keep, made_up, table_grid
from hypothesis import given, settings
from hypothesis import strategies as st

import pour.bench.store as store_module
from pour.bench import CellKey, export_store, get_experiment, import_store, make_table, parse_seeds, read_store
from pour.bench.store import (
    StoredExperiment,
    _checksum,
    check_folder,
    check_unmixed,
    load_store,
    read_cell,
    seal,
    settled_precision,
    unseal,
    write_cell,
    write_experiment,
)
from pour.errors import UsageError
from pour.training import get_recipe

if TYPE_CHECKING:
    from pathlib import Path

GRID = table_grid()
CELL = made_up(GRID, "delete-tuned", values={"acc_r": 0.94, "acc_f": 0.1})
TEXT = seal(CELL)


def test_a_cell_comes_back_as_it_was() -> None:
    assert unseal(TEXT) == CELL
    assert seal(unseal(TEXT)) == TEXT
    assert CELL.key == CellKey((0,), 0, "delete-tuned")


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(TEXT) - 1), st.characters(min_codepoint=32, max_codepoint=126))
def test_an_altered_cell_is_noticed(place: int, letter: str) -> None:
    changed = TEXT[:place] + letter + TEXT[place + 1 :]
    # Only space between the tokens may change without being noticed.
    if json.loads(TEXT) == _parsed(changed):
        assert unseal(changed) == CELL
    else:
        with pytest.raises(UsageError):
            unseal(changed)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, len(TEXT) - 3))
def test_half_a_cell_is_noticed(length: int) -> None:
    with pytest.raises(UsageError):
        unseal(TEXT[:length])


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_damaged_and_misplaced_cells_count_as_absent(tmp_path: Path) -> None:
    keep(tmp_path, GRID, CELL, made_up(GRID, "pour-p"))
    assert len(read_store(tmp_path)) == 2
    path = tmp_path / CELL.key.path
    path.with_name("pour-p.json").write_text(TEXT)
    assert read_cell(tmp_path, CellKey((0,), 0, "pour-p")) is None
    assert read_store(tmp_path) == [CELL]
    path.write_bytes(b"\xff\xfe")
    assert read_cell(tmp_path, CELL.key) is None
    assert read_store(tmp_path) == []


def test_cells_of_different_models_are_told() -> None:
    other = made_up(GRID, "pour-p", models="b")
    with pytest.raises(UsageError, match="cells of seed 0 belong to 2 different original models"):
        check_unmixed([CELL, other])
    retrained = replace(other, models={**CELL.models, "retrained": "other"})
    with pytest.raises(UsageError, match="2 different retrained models"):
        check_unmixed([CELL, retrained])
    check_unmixed([CELL, made_up(GRID, "pour-p", seed=1, models="b")])
    without = replace(CELL, models={"original": CELL.models["original"]})
    check_unmixed([without, without])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architecture": "resnet-small"}, "differ in their architecture"),
        ({"recipe": GRID.recipe.change(epochs=3)}, "differ in their recipe"),
    ],
)
def test_cells_of_different_networks_are_told(changes: dict[str, Any], sentence: str) -> None:
    other = made_up(replace(GRID, **changes), "pour-p", seed=1)
    with pytest.raises(UsageError, match=sentence):
        check_unmixed([CELL, other])


def test_cells_of_different_precision_or_options_are_told() -> None:
    later = made_up(GRID, "pour-p", seed=1)
    check_unmixed([CELL, made_up(GRID, "pour-p"), later])
    with pytest.raises(UsageError, match="differ in their precision"):
        check_unmixed([CELL, replace(later, precision="bf16")])
    setup = {**later.setup, "options": {**later.setup["options"], "direction": "scores"}}
    with pytest.raises(UsageError, match="cells of pour-p have different options"):
        check_unmixed([made_up(GRID, "pour-p"), replace(later, setup=setup)])


def test_an_import_that_does_not_fit_is_for_another_folder(tmp_path: Path) -> None:
    later = made_up(GRID, "pour-p", seed=1)
    setup = {**later.setup, "options": {**later.setup["options"], "direction": "scores"}}
    keep(tmp_path / "here", GRID, replace(later, setup=setup))
    export_store(tmp_path / "here", tmp_path / "cells.json.gz")
    keep(tmp_path / "there", GRID, made_up(GRID, "pour-p"))
    with pytest.raises(UsageError, match=r"pour-p have different options; .* so give another folder for them\.$"):
        import_store(tmp_path / "cells.json.gz", tmp_path / "there")
    assert len(read_store(tmp_path / "there")) == 1


def test_cells_that_differ_are_named_with_what_makes_them_anew() -> None:
    cells = [made_up(GRID, row, seed=seed) for row in ("pour-p", "delete-tuned") for seed in (0, 1)]
    stale = replace(cells[0], models={**cells[0].models, "original": "somebody else's"})
    with pytest.raises(
        UsageError,
        match=r"pour-p \(seed 0, class airplane\) is unlike the other 1, so run pour bench on this store with "
        r"--seeds 0, --forget airplane and without --methods",
    ):
        check_unmixed([stale, *cells[1:]])
    others = [replace(cell, data="other images") for cell in cells[2:]]
    told = r"delete-tuned \(seeds 0, 1, class airplane\) are unlike the other 3, .* with --seeds 0,1 --forget airplane"
    with pytest.raises(UsageError, match=told):
        check_unmixed([*others, *cells[:2], made_up(GRID, "finetune-tuned")])
    with pytest.raises(
        UsageError, match=r"precision; pour-p \(seed 0, class airplane\) is unlike the other 3, so keep"
    ):
        check_unmixed([replace(cells[0], precision="bf16"), *cells[1:]])


def test_a_cell_that_fails_has_no_report_of_an_earlier_one(tmp_path: Path) -> None:
    home, there, file = tmp_path / "home", tmp_path / "there", tmp_path / "store.json.gz"
    keep(there, GRID, CELL)
    failed = replace(CELL, values={}, failed="It diverged.")
    keep(home, GRID, CELL)
    write_cell(home, failed, {}, None)
    assert not (home / CELL.key.path).with_suffix(".report.json").exists()
    export_store(home, file)
    import_store(file, there, overwrite=True)
    assert files(there) == files(home)


def test_a_folder_in_a_cells_place_counts_as_absent(tmp_path: Path) -> None:
    keep(tmp_path, GRID, CELL)
    (tmp_path / CELL.key.path).with_name("x.json").mkdir()
    assert read_store(tmp_path) == [CELL]


def test_a_store_keeps_its_precision(tmp_path: Path) -> None:
    assert settled_precision(tmp_path, None) is None
    assert settled_precision(tmp_path, "bf16") == "bf16"
    keep(tmp_path, GRID, replace(CELL, precision="bf16"))
    assert settled_precision(tmp_path, None) == "bf16"
    with pytest.raises(UsageError, match=r"another precision \(bf16, not fp32\); give another folder"):
        settled_precision(tmp_path, "fp32")
    with pytest.raises(UsageError, match="must be fp32 or bf16, but is 'fp64'"):
        settled_precision(tmp_path, "fp64")  # type: ignore[arg-type]
    beside = tmp_path / "models" / "seed-0" / "original.json"
    beside.parent.mkdir(parents=True)
    beside.write_text('{"precision": "fp32"}')
    beside.with_name("damaged.json").write_text("[")
    with pytest.raises(UsageError, match="contains results in fp32 and bf16; choose one with precision="):
        settled_precision(tmp_path, None)
    assert settled_precision(tmp_path, "fp32") == "fp32", "which of them is to be kept"


def test_a_store_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UsageError, match="file is a file; give a folder"):
            check_folder(out)
    check_folder(tmp_path / "runs")


def test_a_store_holds_one_experiment(tmp_path: Path) -> None:
    write_experiment(tmp_path, StoredExperiment.of(GRID))
    write_experiment(tmp_path, StoredExperiment.of(replace(GRID, seeds=(7,))))
    with pytest.raises(UsageError, match="contains results of cifar10, not of digits; give another folder"):
        write_experiment(tmp_path, StoredExperiment.of(get_experiment("digits")))
    before = (tmp_path / "experiment.json").read_text()
    with pytest.raises(UsageError, match=r"another architecture \(resnet18, not resnet-small\); give another folder"):
        write_experiment(tmp_path, StoredExperiment.of(replace(GRID, architecture="resnet-small")))
    with pytest.raises(UsageError, match=r"another recipe \(fast of 60, not short of 12\); give another folder"):
        write_experiment(tmp_path, StoredExperiment.of(replace(GRID, recipe=get_recipe("short"))))
    assert (tmp_path / "experiment.json").read_text() == before
    with pytest.raises(UsageError, match="contains no results; run pour bench"):
        read_store(tmp_path / "elsewhere")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}


def test_results_travel_without_models(tmp_path: Path) -> None:
    home, there, file = tmp_path / "home", tmp_path / "there", tmp_path / "store.json.gz"
    keep(home, GRID, CELL, made_up(GRID, "pour-p", seed=1))
    model = home / "models" / "seed-0" / "original.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    assert export_store(home, file) == 2
    assert import_store(file, there) == 2
    assert not (there / "models").exists()
    assert files(there) == files(home)
    assert import_store(file, there) == 0, "the same results are no news"
    again = tmp_path / "again.json.gz"
    export_store(there, again)
    assert again.read_bytes() == file.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        export_store(home, file)


def test_other_results_are_not_clobbered(tmp_path: Path) -> None:
    home, there, file = tmp_path / "home", tmp_path / "there", tmp_path / "store.json.gz"
    keep(home, GRID, CELL)
    export_store(home, file)
    mine = made_up(GRID, "delete-tuned", values={"acc_r": 0.5})
    keep(there, GRID, mine)
    with pytest.raises(UsageError, match=r"1 cells of .* differ from those in .*delete-tuned.json among them"):
        import_store(file, there)
    assert read_store(there) == [mine]
    assert import_store(file, there, overwrite=True) == 1
    assert read_store(there) == [CELL]


def test_results_of_other_models_are_not_mixed_in(tmp_path: Path) -> None:
    home, there, file = tmp_path / "home", tmp_path / "there", tmp_path / "store.json.gz"
    keep(home, GRID, CELL)
    export_store(home, file)
    mine = made_up(GRID, "pour-p", models="b")
    keep(there, GRID, mine)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="different original models"):
            import_store(file, there, overwrite=overwrite)
    assert read_store(there) == [mine]
    digits = tmp_path / "digits"
    write_experiment(digits, StoredExperiment.of(get_experiment("digits")))
    with pytest.raises(UsageError, match="contains results of cifar10, not of digits"):
        import_store(file, digits)


def published(path: Path, **changes: Any) -> Path:
    """Write a published file of one cell with other content."""
    entry = {"cell": json.loads(TEXT)["cell"], "run": {}, "report": None}
    path.write_bytes(gzip.compress(json.dumps({"schema": 1, "cells": [entry], **changes}).encode()))
    return path


@pytest.mark.parametrize("row", ["../evil", "/tmp/evil", "x/y", "a\\b", "evil.run", ""])
def test_a_published_file_cannot_write_elsewhere(tmp_path: Path, row: str) -> None:
    cell = json.loads(TEXT)["cell"]
    entry = {"cell": {**cell, "setup": {**cell["setup"], "row": row}}}
    out = tmp_path / "a" / "b" / "out"
    with pytest.raises(UsageError, match="A row cannot be called"):
        import_store(published(tmp_path / "evil.json.gz", cells=[entry]), out)
    assert not list(tmp_path.rglob("*.json"))


def test_bad_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = tmp_path / "out", tmp_path / "x.json.gz"
    published(file)
    assert import_store(file, tmp_path / "good") == 1
    for changes, sentence in (
        ({"cells": []}, "contains no cell"),
        ({"cells": [{"cell": {}}]}, r"lacks the key cells\.0\.cell\.setup"),
        ({"more": 1}, "has the unknown key more"),
        ({"schema": 2}, "has schema 2, newer than this pour reads"),
    ):
        with pytest.raises(UsageError, match=sentence):
            import_store(published(file, **changes), out)
    content = published(file).read_bytes()
    for damaged in (b"not compressed", content[: len(content) // 2], content[:30] + b"xx" + content[32:]):
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match="cannot be read as an exported store"):
            import_store(file, out)
    with pytest.raises(UsageError, match=r"There is no file .*nothing.json.gz; check the path"):
        import_store(tmp_path / "nothing.json.gz", out)
    monkeypatch.setattr(store_module, "_LARGEST_FILE", 100)
    with pytest.raises(UsageError, match="is larger than 0 MiB"):
        import_store(published(file), out)
    assert not out.exists()
    with pytest.raises(UsageError, match="contains no results"):
        export_store(out, tmp_path / "y.json.gz")


def test_a_published_file_is_read_like_a_folder(tmp_path: Path) -> None:
    keep(tmp_path / "store", GRID, CELL, made_up(GRID, "pour-p", seed=1))
    export_store(tmp_path / "store", tmp_path / "x.json.gz")
    assert load_store(tmp_path / "x.json.gz").experiment == load_store(tmp_path / "store").experiment
    assert read_store(tmp_path / "x.json.gz") == read_store(tmp_path / "store")
    assert make_table(tmp_path / "x.json.gz") == make_table(tmp_path / "store")


@pytest.mark.parametrize(
    "changes",
    [
        {"setup": {}},
        {"setup": {**CELL.setup, "seed": "0"}},
        {"setup": {**CELL.setup, "options": None}},
        {"setup": {**CELL.setup, "recipe": 3}},
        {"values": None},
        {"values": {"acc_r": {"value": "high"}}},
        {"values": {"acc_r": None}},
        {"values": {"acc_r": {"low": 0.1}}},
        {"setup": {**CELL.setup, "row": "../../evil"}},
    ],
)
def test_a_checksum_makes_no_cell(changes: dict[str, Any]) -> None:
    """A file that was made by another program, or another version, with a right checksum."""
    content = {**json.loads(TEXT)["cell"], **changes}
    text = json.dumps({"schema": 1, "sha256": _checksum(content), "cell": content})
    with pytest.raises(UsageError):
        unseal(text)
    with pytest.raises(UsageError):
        unseal("[" * 100_000)


def test_a_cell_of_a_newer_version_is_told() -> None:
    with pytest.raises(UsageError, match="has schema 2, newer than this pour reads"):
        unseal(TEXT.replace('"schema": 1', '"schema": 2'))


def test_damaged_cells_are_told_and_not_left_out_of_an_export(tmp_path: Path) -> None:
    keep(tmp_path, GRID, CELL, made_up(GRID, "pour-p", seed=1))
    assert not load_store(tmp_path).damaged
    path = tmp_path / CELL.key.path
    path.write_text(path.read_text()[:100])
    assert load_store(tmp_path).damaged == (CELL.key.path.as_posix(),)
    assert any("Damaged cells are left out (1)" in note for note in make_table(tmp_path).notes)
    with pytest.raises(UsageError, match=r"damaged cells \(1\), such as cells/"):
        export_store(tmp_path, tmp_path / "x.json.gz")
    assert not (tmp_path / "x.json.gz").exists()


def test_an_export_is_of_the_experiment_that_is_named(tmp_path: Path) -> None:
    keep(tmp_path / "store", GRID, CELL)
    with pytest.raises(UsageError, match=f"contains results of {GRID.name}, not of zeroshot"):
        export_store(tmp_path / "store", tmp_path / "x.json.gz", experiment="zeroshot")
    assert export_store(tmp_path / "store", tmp_path / "x.json.gz", experiment=GRID.name) == 1


@pytest.mark.parametrize("text", ["99999999999", "99999999999999999999999,", "4611686018427387904,"])
def test_seeds_have_a_bound(text: str) -> None:
    with pytest.raises(UsageError, match=r"at most 10000 seeds, each below 2\^62"):
        parse_seeds(text)
