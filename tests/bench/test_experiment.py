from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from method_cases import NAMES
from script_modules import script

from pour._records import decode, encode
from pour.bench import EXPERIMENTS, Row, expand_rows, get_experiment, parse_seeds
from pour.bench import rows as rows_module
from pour.bench.rows import REFERENCES, label_of, methods_of, tuned_row
from pour.bench.store import StoredExperiment, load_store
from pour.errors import UsageError
from pour.unlearning import IterativeMethod, Method, get_method, registry
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    from torch import nn

ship = script("ship_tuning").ship
TUNED_METHODS = [name for name in NAMES if name != "pour-a"]
PAPER, CONTROLS = methods_of("paper"), methods_of("controls")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_papers_grids(name: str) -> None:
    experiment = get_experiment(name)
    assert experiment.seeds == (0, 1, 2)
    assert experiment.forget == {"cifar10": ((0,), (1,), (5,)), "cifar100": ((0,), (20,), (60,))}[name]
    assert 100 not in experiment.seeds
    assert not {(4,), (42,)} & set(experiment.forget), "the classes that tuning looks at"
    methods = list(dict.fromkeys(row.method for row in experiment.rows if row.method is not None))
    assert set(NAMES) - {"retrain", "pour-a", "text-direction"} <= set(methods)
    # The published tables have no anchored rows.
    assert {"pour-a", "delete-anchored"}.isdisjoint({*methods, *(row.name for row in experiment.rows)})
    assert [row.name for row in experiment.rows[:3]] == list(REFERENCES)
    assert tuple(methods[: len(PAPER)]) == PAPER
    assert tuple(methods[len(PAPER) : len(PAPER) + len(CONTROLS)]) == CONTROLS
    order = ["reference", "paper", "control", "relative"]
    families = [order.index(row.family) for row in experiment.rows]
    assert families == sorted(families)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("method", [name for name in TUNED_METHODS if issubclass(get_method(name), IterativeMethod)])
def test_both_settings_of_an_iterative_method(dataset: str, method: str) -> None:
    rows = {row.name: row for row in expand_rows([method], dataset)}
    assert set(rows) == {f"{method}-common", f"{method}-tuned"}
    common, tuned = rows[f"{method}-common"].resolved(), rows[f"{method}-tuned"].resolved()
    kind = get_method(method)
    assert issubclass(kind, IterativeMethod)
    assert {common[option] for option in kind.rate_options} == {1e-4 if dataset == "cifar10" else 5e-5}
    shared = ("epochs", "steps", "batch_size", "batch_norm", "weight_decay", "optimizer", "schedule")
    # DUCK's epochs are of forget images, each shown with 41 retained batches.
    epochs = 4 if (method, dataset) == ("duck", "cifar10") else 20
    assert [common[option] for option in shared] == [epochs, None, 128, "train", 0.0, "sgd", "constant"]
    assert tuned["batch_norm"] == "frozen"


def test_methods_without_steps_have_one_row() -> None:
    rows = {row.name: row for row in get_experiment("cifar10").rows}
    assert rows["pour-p"].resolved()["forgotten_logit"] == "keep"
    assert rows["esc-1"].resolved()["rank"] == 1
    assert rows["esc"].resolved()["rank"] is None
    names = [row.name for row in rows.values() if row.setting == "closed form"]
    assert {"pour-p", "masked-head", "random-direction", "leace", "ssd", "projun"} <= set(names)
    other = {row.name: row.resolved() for row in get_experiment("cifar100").rows}
    assert other["projun"]["alpha_retain"] == 1000
    assert rows["gradient-ascent-common"].resolved()["stop_accuracy"] is None


def test_a_users_method_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(kw_only=True)
    class Mine(Method):
        """Nothing."""

        name: ClassVar[str] = "mine-for-this-test"
        paper: ClassVar[str] = "test"

        def __call__(self, model: nn.Module, request: object, run: object) -> nn.Module:
            return model

    monkeypatch.setitem(registry._METHODS, Mine.name, Mine)
    assert get_experiment("cifar10").rows[-1] == Row(
        name="mine-for-this-test", method="mine-for-this-test", setting="closed form", family="relative"
    )


def result_file(folder: Path, method: str, **changes: object) -> None:
    result = {"method": method, "rule": "benchmark", "seed": 100, "best": 1, "note": "the largest AUS"} | {
        "trials": [{"options": {"lr": 1.0}}, {"options": {"lr": 0.5, "epochs": 3}}]
    }
    path = folder / f"{method}-benchmark" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result | changes))


def test_tuned_options_come_from_a_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result_file(tmp_path, "delete")
    result_file(tmp_path, "finetune", best=None)
    tuned = tuned_row("delete", "cifar10", tmp_path)
    assert tuned.options == {"lr": 0.5, "epochs": 3, "batch_norm": "frozen"}
    assert tuned.note == "tuned by the rule 'benchmark' with seed 100"
    assert (tuned.tuned_on, tuned.tuned_with) == ((), 100), "an older file does not say which classes"
    rows = {row.name: row for row in get_experiment("cifar10", {"tuning": str(tmp_path)}).rows}
    assert rows["delete-tuned"].resolved()["lr"] == 0.5
    for untuned in ("finetune-tuned", "scrub-tuned"):
        assert rows[untuned].note == "not tuned: the method's defaults, but batch_norm=frozen"
        assert rows[untuned].options == {"batch_norm": "frozen"}
    assert rows["pour-d-tuned"].note == "not tuned: the method's defaults"
    assert rows["duck-tuned"].note == "not tuned: the method's defaults, but epochs=4"

    frozen = tmp_path / "tuned.json"
    frozen.write_text(json.dumps({"cifar100": {"scrub": {"options": {"lr": 7.0}, "rule": "benchmark", "seed": 1}}}))
    assert ship(tmp_path, "cifar10", frozen) == ["delete"]
    monkeypatch.setattr(rows_module, "TUNED", frozen)
    chosen = tuned_row("delete", "cifar10").options
    assert chosen == make_method("delete", lr=0.5, epochs=3, batch_norm="frozen").options(), "all that it ran with"
    assert tuned_row("scrub", "cifar100").options["lr"] == 7.0
    assert tuned_row("scrub", "cifar10").options == {"batch_norm": "frozen"}


def test_a_tuned_pour_d_has_rows_at_its_defaults_beside_it(tmp_path: Path) -> None:
    result_file(tmp_path, "pour-d")
    result_file(tmp_path, "delete")
    rows = {row.name: row for row in get_experiment("cifar10", {"tuning": str(tmp_path)}).rows}
    assert rows["pour-d-default"].setting == "default"
    assert rows["pour-d-default"].resolved() == make_method("pour-d").stored_options()
    assert rows["pour-d-cosine"].resolved() == make_method("pour-d", schedule="cosine").stored_options()
    assert rows["pour-d-cosine"].note == "the method's defaults, but schedule=cosine"
    assert rows["pour-d-tuned"].resolved()["lr"] == 0.5
    assert "delete-default" not in rows
    # The tuned row itself has the defaults where nothing was tuned.
    untuned = tmp_path / "other"
    result_file(untuned, "delete")
    assert {"pour-d-default", "pour-d-cosine"}.isdisjoint(
        row.name for row in get_experiment("cifar10", {"tuning": str(untuned)}).rows
    )
    assert "pour-d-default" not in {row.name for row in expand_rows(["pour-d"], "cifar10", tuning=tmp_path)}


def test_options_of_another_network_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result_file(tmp_path, "delete", dataset="cifar10", architecture="resnet18", forgotten=[4])
    rows = {row.name: row for row in get_experiment("cifar10", {"tuning": str(tmp_path)}).rows}
    assert rows["delete-tuned"].note.startswith("tuned by")
    assert (rows["delete-tuned"].tuned_on, rows["delete-tuned"].tuned_with) == ((4,), 100)
    with pytest.raises(UsageError, match="tuned for delete on resnet18, not on resnet-small"):
        get_experiment("cifar10", {"architecture": "resnet-small", "tuning": str(tmp_path)})
    with pytest.raises(UsageError, match="tuned for delete on cifar10, not on cifar100"):
        get_experiment("cifar100", {"tuning": str(tmp_path)})

    frozen = tmp_path / "tuned.json"
    ship(tmp_path, "cifar10", frozen)
    monkeypatch.setattr(rows_module, "TUNED", frozen)
    assert tuned_row("delete", "cifar10", architecture="resnet18").options["lr"] == 0.5
    untuned = tuned_row("delete", "cifar10", architecture="resnet-small")
    assert untuned.options == {"batch_norm": "frozen"}
    assert untuned.untuned
    assert (untuned.tuned_on, untuned.tuned_with) == ((), None)


def test_what_ships_with_pour_says_all_that_was_tuned_and_on_what() -> None:
    for dataset, methods in json.loads(rows_module.TUNED.read_text()).items():
        for method, choice in methods.items():
            everything = make_method(method, **choice["options"]).options()
            assert {**get_method(method).newer_options, **choice["options"]} == everything
            assert choice["dataset"] == dataset
            assert choice["architecture"] == get_experiment(dataset).architecture
            assert tuple(choice["forgotten"]) == get_experiment(dataset).tuning_forget


def test_a_folder_without_tuning_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no finished tuning by the rule benchmark; run pour tune"):
        get_experiment("cifar10", {"tuning": str(tmp_path / "mistyped")})
    (tmp_path / "delete-user").mkdir()
    (tmp_path / "delete-user" / "result.json").write_text("{}")
    with pytest.raises(UsageError, match="delete-user was chosen by the rule user"):
        get_experiment("cifar10", {"tuning": str(tmp_path)})


def test_a_tuning_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    result_file(tmp_path / "cut", "delete", best=7)
    with pytest.raises(UsageError, match=r"result.json cannot be used: best is 7, but there are 2 trials"):
        tuned_row("delete", "cifar10", tmp_path / "cut")
    broken = tmp_path / "broken" / "delete-benchmark" / "result.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    with pytest.raises(UsageError, match="is not valid JSON"):
        tuned_row("delete", "cifar10", tmp_path / "broken")
    with pytest.raises(UsageError, match="has no tuning by the rule benchmark"):
        ship(tmp_path, "cifar10", tmp_path / "x.json")


def test_rows_are_selected_by_method_or_by_row() -> None:
    experiment = get_experiment("digits")
    assert [row.name for row in experiment.select(["delete"])] == [
        *REFERENCES,
        "delete-common",
        "delete-tuned",
        "delete-anchored",
    ]
    assert [row.name for row in experiment.select(["delete-common"])] == [*REFERENCES, "delete-common"]
    assert experiment.select(None) == experiment.rows
    with pytest.raises(UsageError, match=r"digits has no method 'delte'; did you mean 'delete'\?"):
        experiment.select(["delte"])


def test_anchored_rows_read_forget_images_alone(tmp_path: Path) -> None:
    result_file(tmp_path, "delete", forgotten=[8])
    for experiment in (
        get_experiment("digits", {"tuning": str(tmp_path)}),
        get_experiment("cifar10-small", {"tuning": str(tmp_path)}),
    ):
        rows = {row.name: row for row in experiment.rows}
        assert rows["pour-a"].resolved() == make_method("pour-a", anchor="views").options()
        assert (rows["pour-a"].setting, rows["pour-a"].family) == ("default", "paper")
        assert rows["delete-anchored"].options == {**rows["delete-tuned"].options, "anchor": "views"}
        assert rows["delete-anchored"].tuned_on == (8,)
        assert "anchor" not in rows["delete-tuned"].resolved()
        assert [label_of(name, rows[name].method) for name in ("pour-a", "delete-anchored")] == [
            "POUR-A",
            "DELETE, anchored",
        ]
        families = [row.family for row in experiment.rows]
        assert sorted(families, key=["reference", "paper", "control", "relative"].index) == families
    for experiment in (
        get_experiment("pathmnist"),
        get_experiment("cifar100", {"architecture": "resnet-small", "recipe": "short"}),
    ):
        assert "pour-a" not in {row.method for row in experiment.rows}


def test_stored_cells_are_of_their_own_rows_without_newer_options() -> None:
    row = next(row for row in get_experiment("digits").rows if row.name == "delete-tuned")
    assert {"anchor", "anchor_weight"}.isdisjoint(row.resolved())
    assert replace(row, options={**row.options, "anchor": "none"}).resolved() == row.resolved()
    views = replace(row, options={**row.options, "anchor": "views"}).resolved()
    assert views == {**row.resolved(), "anchor": "views"}


def test_seeds_of_the_command_line() -> None:
    assert [parse_seeds(text) for text in ("1", "2", "5,", "3, 1")] == [(0,), (0, 1), (5,), (3, 1)]
    assert parse_seeds("1,2,1") == (1, 2), "a seed named twice counts once"
    for text in ("", "0", "a", "1,b", ",", "-1,"):
        with pytest.raises(UsageError, match="Seeds are a number of them"):
            parse_seeds(text)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_papers_grids_with_another_network(name: str) -> None:
    paper, small = get_experiment(name), get_experiment(name, {"architecture": "resnet-small", "recipe": "short"})
    assert (small.architecture, small.recipe.name) == ("resnet-small", "short")
    assert replace(small, architecture=paper.architecture, recipe=paper.recipe, rows=paper.rows) == paper
    # What was tuned on the paper's network is not taken for another.
    assert [row for row in small.rows if row.setting != "tuned"] == [
        row for row in paper.rows if row.setting not in ("tuned", "default")
    ]
    assert all(row.untuned for row in small.rows if row.setting == "tuned")
    with pytest.raises(UsageError, match="There is no recipe 'brief'"):
        get_experiment(name, {"recipe": "brief"})


def test_only_the_small_network_has_anchored_rows_on_cifar10() -> None:
    paper, small = get_experiment("cifar10", {"architecture": "resnet-small", "recipe": "short"}), "cifar10-small"
    anchored = [row.name for row in get_experiment(small).rows if row.options.get("anchor") == "views"]
    assert anchored == ["pour-a", "delete-anchored"]
    assert not [row for row in paper.rows if row.options.get("anchor") == "views"]
    rows = tuple(row for row in get_experiment(small).rows if row.name not in anchored)
    assert replace(get_experiment(small), rows=rows) == paper


def test_wrong_experiments_are_told() -> None:
    experiment = get_experiment("digits")
    with pytest.raises(UsageError, match="There is no experiment 'mnist'; the experiments are digits, cifar10"):
        get_experiment("mnist")
    with pytest.raises(UsageError, match="has no seeds"):
        replace(experiment, seeds=())
    with pytest.raises(UsageError, match="seed must not be negative, but is -1"):
        replace(experiment, seeds=(-1,))
    with pytest.raises(UsageError, match="names a row twice"):
        replace(experiment, rows=(*experiment.rows, experiment.rows[-1]))
    with pytest.raises(UsageError, match="There is no column 'acc'"):
        replace(experiment, columns=("acc",))
    with pytest.raises(UsageError, match="pass the backbone's weights"):
        get_experiment("cifar10", {"freeze_backbone": True})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_built_in_experiment_is_read(name: str) -> None:
    experiment = get_experiment(name)
    assert experiment.name == ("cifar10" if name == "cifar10-small" else name)
    for row in experiment.rows:
        row.resolved()
    # The weights of another package are read only for a run.
    stored = StoredExperiment.of(replace(experiment, settings={}))
    assert decode(StoredExperiment, encode(stored), "experiment.json") == stored


def test_the_files_in_the_package_are_the_built_in_experiments() -> None:
    files = Path(rows_module.__file__).with_name("experiments").glob("*.toml")
    assert {file.stem for file in files} == set(EXPERIMENTS)


def test_scenes_have_the_same_rows_and_notes_of_their_own() -> None:
    camvid, voc = get_experiment("camvid"), get_experiment("voc2012")
    assert camvid.forget == (("car",), ("pedestrian",), ("bicyclist",), ("fence",), ("pole",))
    assert voc.architecture == "smp:deeplabv3plus:resnet101"
    notes = {grid.name: {row.name: row.note for row in grid.rows} for grid in (camvid, voc)}
    assert notes["camvid"]["pour-d"].startswith("rate chosen on car and 60 test images")
    assert notes["voc2012"]["pour-d"].startswith("not tuned on this data")
    assert {name for name, note in notes["camvid"].items() if note} == {"pour-d"}
    assert [row.resolved() for row in camvid.rows] == [row.resolved() for row in voc.rows]


MINE = """
base = "digits"
seeds = [5]
forget = ["7", [1, 2]]
rows = ["references", "delete", { name = "kept", method = "pour-p", options = { forgotten_logit = "keep" } }]

[recipe]
epochs = 2
"""


def test_a_users_file_is_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    mine = get_experiment(path)
    assert (mine.name, mine.dataset, mine.seeds, mine.forget) == ("mine", "digits", (5,), (("7",), (1, 2)))
    assert mine.recipe == get_experiment("digits").recipe.change(epochs=2)
    assert [row.name for row in mine.rows] == [*REFERENCES, "delete-common", "delete-tuned", "kept"]
    assert mine.rows[-1] == Row(name="kept", method="pour-p", options={"forgotten_logit": "keep"})
    changed = get_experiment(path, {"recipe.epochs": 3, "seeds": [1, 2], "image_size": 16})
    assert (changed.recipe.epochs, changed.seeds, changed.settings) == (3, (1, 2), {"image_size": 16})
    again = tmp_path / "again.toml"
    again.write_text('base = "mine.toml"\nname = "another"\nrecipe = "fast"\n')
    assert (get_experiment(again).name, get_experiment(again).recipe.name) == ("another", "fast")


def test_the_identity_of_a_cell_is_that_of_its_resolved_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "digits"\nname = "digits"\n[recipe]\nepochs = 3\n')
    asked = get_experiment("digits", {"recipe.epochs": 3})
    assert get_experiment(path).cell_identity == asked.cell_identity
    assert StoredExperiment.of(get_experiment(path)) == StoredExperiment.of(asked)


def test_paths_begin_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "experiments"
    result_file(folder / "tuned", "delete")
    (folder / "w.safetensors").write_bytes(b"")
    (folder / "mine.toml").write_text(
        'base = "digits"\ndataset = "folder:images"\ntuning = "tuned"\n[settings]\nweights = "w.safetensors"\n'
    )
    monkeypatch.chdir(tmp_path)
    mine = get_experiment("experiments/mine.toml")
    assert mine.dataset == "folder:images"
    assert mine.dataset_path == f"folder:{folder / 'images'}"
    assert mine.settings["weights"] == str(folder / "w.safetensors")
    assert next(row for row in mine.rows if row.name == "delete-tuned").options["lr"] == 0.5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("seeds = [0", "mine.toml is not valid TOML: "),
        ('dataset = "digits"\nforget = [1]', "mine.toml lacks the key rows"),
        (f'{MINE}\nlr = "high"', "mine.toml cannot be used: The recipe has the value 'high' for lr, which must be"),
        (f"colour = 1\n{MINE}", "mine.toml has the unknown key colour"),
        (MINE.replace("[5]", '["a"]'), "mine.toml has the value 'a' for seeds.0, which must be a valid integer"),
        (MINE.replace("epochs = 2", "epochs = -1"), "number of epochs must be a whole number"),
        (MINE.replace('"pour-p"', '"pour-q"'), "no method 'pour-q'"),
        (MINE.replace('"digits"', '"absent.toml"'), "no file"),
        (MINE.replace('"delete"', '"delet"'), "no method 'delet'; did you mean 'delete'"),
        (f'task = "sort"\n{MINE}', "no task 'sort'"),
        (f"{MINE}\n[settings]\nenlarge = 2", "no setting 'enlarge'"),
        (MINE.replace('name = "kept"', 'nam = "kept"'), "mine.toml"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        [row.resolved() for row in get_experiment(path).rows]
    assert sentence in str(caught.value)
    assert str(caught.value).count(". ") <= 1


@pytest.mark.parametrize("name", ["lr/2", "v1.run", "v1.report", "pour-p (mask)", "", "a b"])
def test_a_row_is_called_as_a_file_can_be(name: str) -> None:
    with pytest.raises(UsageError, match="A row cannot be called"):
        Row(name=name, method="pour-p", setting="closed form", family="paper")
    for good in ("v1.2", "pour-p_mask", "a+b"):
        Row(name=good, method="pour-p", setting="closed form", family="paper")


@pytest.mark.parametrize("name", ["camvid", "zeroshot"])
def test_the_published_results_are_of_the_built_in_experiment(name: str) -> None:
    stored = load_store(Path(__file__).parents[2] / "results" / f"{name}.json.gz").experiment
    grid = get_experiment(name)
    assert stored is not None
    settings = {"dataset": grid.dataset, "architecture": grid.architecture, "recipe": asdict(grid.recipe)}
    assert stored.name == grid.name
    assert {key: stored.settings[key] for key in settings} == settings
    assert [row.name for row in stored.rows] == [row.name for row in grid.rows]
    assert [row.label for row in stored.rows] == [row.label for row in grid.rows]
    assert (stored.columns, stored.table) == (grid.columns, grid.table)
