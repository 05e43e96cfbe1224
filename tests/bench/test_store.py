from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from bench_cells import keep, made_up, table_grid
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.bench import CellKey, export_store, get_experiment, import_store, make_table, parse_seeds, read_store
from pour.bench.comparable import check_unmixed
from pour.bench.store import damaged_cells, read_cell, seal, unseal, write_cell
from pour.bench.store_identity import check_folder, settled_precision, write_experiment
from pour.errors import UsageError
from pour.training import get_recipe

if TYPE_CHECKING:
    from pathlib import Path

GRID = table_grid()
CELL = made_up(GRID, "delete-tuned", values={"acc_r": 0.94, "acc_f": 0.1})
TEXT = seal(CELL)


def test_a_cell_comes_back_as_it_was() -> None:
    assert unseal(TEXT) == CELL
    assert seal(unseal(TEXT) or CELL) == TEXT
    assert CELL.key == CellKey((0,), 0, "delete-tuned")


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(TEXT) - 1), st.characters(min_codepoint=32, max_codepoint=126))
def test_an_altered_cell_is_noticed(place: int, letter: str) -> None:
    changed = TEXT[:place] + letter + TEXT[place + 1 :]
    # Only space between the tokens may change without being noticed.
    assert unseal(changed) in (None, CELL)
    if json.loads(TEXT) != _parsed(changed):
        assert unseal(changed) is None


@settings(deadline=None, max_examples=50)
@given(st.integers(0, len(TEXT) - 3))
def test_half_a_cell_is_noticed(length: int) -> None:
    assert unseal(TEXT[:length]) is None


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
    export_store(tmp_path / "here", tmp_path / "cells.tar")
    keep(tmp_path / "there", GRID, made_up(GRID, "pour-p"))
    with pytest.raises(UsageError, match=r"pour-p have different options; .* so give another folder for them\.$"):
        import_store(tmp_path / "cells.tar", tmp_path / "there")
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
    home, there, tar = tmp_path / "home", tmp_path / "there", tmp_path / "store.tar"
    keep(there, GRID, CELL)
    failed = replace(CELL, values={}, failed="It diverged.")
    keep(home, GRID, CELL)
    write_cell(home, failed, {}, None)
    assert not (home / CELL.key.path).with_suffix(".report.json").exists()
    export_store(home, tar)
    import_store(tar, there, overwrite=True)
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
    with pytest.raises(UsageError, match="holds results in fp32 and bf16; say with --precision"):
        settled_precision(tmp_path, None)
    assert settled_precision(tmp_path, "fp32") == "fp32", "which of them is to be kept"


def test_a_store_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UsageError, match="file is a file; give a folder"):
            check_folder(out)
    check_folder(tmp_path / "runs")


def test_a_store_holds_one_experiment(tmp_path: Path) -> None:
    write_experiment(tmp_path, GRID)
    write_experiment(tmp_path, replace(GRID, seeds=(7,)))
    with pytest.raises(UsageError, match="holds results of cifar10, not of digits; give another folder"):
        write_experiment(tmp_path, get_experiment("digits"))
    before = (tmp_path / "experiment.json").read_text()
    with pytest.raises(UsageError, match=r"another architecture \(resnet18, not resnet-small\); give another folder"):
        write_experiment(tmp_path, replace(GRID, architecture="resnet-small"))
    with pytest.raises(UsageError, match=r"another recipe \(fast of 60, not short of 12\); give another folder"):
        write_experiment(tmp_path, replace(GRID, recipe=get_recipe("short")))
    assert (tmp_path / "experiment.json").read_text() == before
    with pytest.raises(UsageError, match="holds no results; run pour bench"):
        read_store(tmp_path / "elsewhere")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}


def test_results_travel_without_models(tmp_path: Path) -> None:
    home, there, tar = tmp_path / "home", tmp_path / "there", tmp_path / "store.tar"
    keep(home, GRID, CELL, made_up(GRID, "pour-p", seed=1))
    model = home / "models" / "seed-0" / "original.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    assert export_store(home, tar) == 2
    assert import_store(tar, there) == 2
    assert not (there / "models").exists()
    assert files(there) == files(home)
    assert import_store(tar, there) == 0, "the same results are no news"
    again = tmp_path / "again.tar"
    export_store(there, again)
    assert again.read_bytes() == tar.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        export_store(home, tar)


def test_other_results_are_not_clobbered(tmp_path: Path) -> None:
    home, there, tar = tmp_path / "home", tmp_path / "there", tmp_path / "store.tar"
    keep(home, GRID, CELL)
    export_store(home, tar)
    mine = made_up(GRID, "delete-tuned", values={"acc_r": 0.5})
    keep(there, GRID, mine)
    with pytest.raises(UsageError, match=r"1 cells of .* differ from those in .*delete-tuned.json among them"):
        import_store(tar, there)
    assert read_store(there) == [mine]
    assert import_store(tar, there, overwrite=True) == 1
    assert read_store(there) == [CELL]


def test_results_of_other_models_are_not_mixed_in(tmp_path: Path) -> None:
    home, there, tar = tmp_path / "home", tmp_path / "there", tmp_path / "store.tar"
    keep(home, GRID, CELL)
    export_store(home, tar)
    mine = made_up(GRID, "pour-p", models="b")
    keep(there, GRID, mine)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="different original models"):
            import_store(tar, there, overwrite=overwrite)
    assert read_store(there) == [mine]
    digits = tmp_path / "digits"
    write_experiment(digits, get_experiment("digits"))
    with pytest.raises(UsageError, match=r"holds results of digits, and .* those of cifar10"):
        import_store(tar, digits)


def archive(path: Path, name: str, content: bytes = b"{}", kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size, member.type, member.linkname = len(content), kind, "/etc/passwd"
        tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "/tmp/evil.json",
        "cells/forget-0/seed-0/../../../evil.json",
        "cells/forget-0/seed-0/x/y.json",
        "models/seed-0/original.safetensors",
        "cells/forget-0/seed-0/evil.py",
        "cells\\forget-0\\seed-0\\x.json",
    ],
)
def test_archives_cannot_write_elsewhere(tmp_path: Path, name: str) -> None:
    out = tmp_path / "a" / "b" / "out"
    with pytest.raises(UsageError, match="is no result of a store; it is refused"):
        import_store(archive(tmp_path / "evil.tar", name), out)
    assert not list(tmp_path.rglob("*.json"))


def test_bad_archives_are_told(tmp_path: Path) -> None:
    name = CELL.key.path.as_posix()
    link = archive(tmp_path / "link.tar", name, kind=tarfile.SYMTYPE)
    with pytest.raises(UsageError, match="is refused"):
        import_store(link, tmp_path / "out")
    with pytest.raises(UsageError, match="is damaged"):
        import_store(archive(tmp_path / "damaged.tar", name, TEXT[:-40].encode()), tmp_path / "out")
    misplaced = "cells/forget-0/seed-0/pour-p.json"
    with pytest.raises(UsageError, match="is damaged"):
        import_store(archive(tmp_path / "misplaced.tar", misplaced, TEXT.encode()), tmp_path / "out")
    with pytest.raises(UsageError, match="holds no cell"):
        import_store(archive(tmp_path / "empty.tar", "experiment.json"), tmp_path / "out")
    (tmp_path / "text.tar").write_text("not a tar")
    with pytest.raises(UsageError, match="cannot be read as an exported store"):
        import_store(tmp_path / "text.tar", tmp_path / "out")
    with pytest.raises(UsageError, match="too many for a result"):
        import_store(archive(tmp_path / "large.tar", name, b" " * (16 * 2**20 + 1)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="holds no results"):
        export_store(tmp_path / "out", tmp_path / "x.tar")


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
    ],
)
def test_a_checksum_makes_no_cell(changes: dict[str, Any]) -> None:
    """A file that was made by another program, or another version, with a right checksum."""
    assert unseal(seal(replace(CELL, **changes))) is None
    assert unseal("[" * 100_000) is None


def test_damaged_cells_are_told_and_not_left_out_of_an_export(tmp_path: Path) -> None:
    keep(tmp_path, GRID, CELL, made_up(GRID, "pour-p", seed=1))
    assert damaged_cells(tmp_path) == []
    path = tmp_path / CELL.key.path
    path.write_text(path.read_text()[:100])
    assert damaged_cells(tmp_path) == [CELL.key.path.as_posix()]
    assert any("Damaged cells are left out (1)" in note for note in make_table(tmp_path).notes)
    with pytest.raises(UsageError, match=r"damaged cells \(1\), such as cells/"):
        export_store(tmp_path, tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists()


def test_an_export_is_of_the_experiment_that_is_named(tmp_path: Path) -> None:
    keep(tmp_path / "store", GRID, CELL)
    with pytest.raises(UsageError, match=f"holds results of {GRID.name}, not of zeroshot"):
        export_store(tmp_path / "store", tmp_path / "x.tar", experiment="zeroshot")
    assert export_store(tmp_path / "store", tmp_path / "x.tar", experiment=GRID.name) == 1


@pytest.mark.parametrize("text", ["99999999999", "99999999999999999999999,", "4611686018427387904,"])
def test_seeds_have_a_bound(text: str) -> None:
    with pytest.raises(UsageError, match=r"at most 10000 seeds, each below 2\^62"):
        parse_seeds(text)
