from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bench_cells import small_grid
from method_cases import ITERATIVE

import pour
import pour.bench.tuning as tuning
from pour._io import write_text
from pour._records import encode
from pour._torchvision import torchvision_works
from pour.bench import EXPERIMENTS, Row, cell, get_experiment, tune_experiment
from pour.bench.rows import tuned_row
from pour.bench.selection import Rule, Trial, TuningResult, choose, relative_change
from pour.bench.tuning import MethodTuning, grid
from pour.errors import DivergenceError, UsageError
from pour.models.copy_and_swap import copy_model
from pour.training import Run
from pour.training.tasks.classify import Classify
from pour.unlearning import IterativeMethod, make_method
from pour.unlearning.toolkit.find_rate import RATES

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from pour.data.dataset import ImageDataset
    from pour.unlearning import ForgetRequest

RUN = Run(device="cpu", progress=False)
FAST: dict[str, Any] = {"batch_size": 64, "augment": False, "steps": 4}


def tuned(
    model: nn.Module,
    dataset: ImageDataset,
    method: str,
    out: Path,
    *,
    rule: Rule = "user",
    seed: int = 0,
    **options: Any,
) -> TuningResult:
    run = Run(seed=seed, device="cpu", progress=False)
    return tune(model, dataset, (3,), method, run=run, rule=rule, out=out, options=FAST | options)


def tune(model: nn.Module, dataset: Any, classes: tuple[int, ...], method: str, **more: Any) -> TuningResult:
    return MethodTuning(model=model, dataset=dataset, classes=classes, method=method, **more).result()


@pytest.mark.parametrize("name", ITERATIVE)
def test_every_iterative_method_has_the_same_budget(name: str) -> None:
    method = make_method(name)
    assert isinstance(method, IterativeMethod)
    rates = {option: getattr(method, option) or 1e-4 for option in method.rate_options}
    settings = grid(method, rates)
    assert len({json.dumps(setting) for setting in settings}) == 8
    assert len({setting["lr"] for setting in settings}) == 4
    for setting in settings:
        make_method(name, **setting)


def test_rates_are_scaled_together_and_lengths_halved() -> None:
    method = make_method("fcs")
    assert isinstance(method, IterativeMethod)
    settings = grid(method, {"lr": 4e-3, "flatten_lr": 5e-3, "contrast_lr": 3e-4})
    np.testing.assert_allclose([s["lr"] / s["contrast_lr"] for s in settings], 4e-3 / 3e-4, rtol=1e-5)
    assert sorted({setting["epochs"] for setting in settings}) == [4, 8]
    once = make_method("bad-teacher")
    assert isinstance(once, IterativeMethod)
    assert sorted({setting["epochs"] for setting in grid(once, {"lr": 1e-4})}) == [1, 2]


def test_what_ends_a_climb_is_its_stop_rule() -> None:
    climb = make_method("gradient-ascent")
    assert isinstance(climb, IterativeMethod)
    assert [setting["stop_accuracy"] for setting in grid(climb, {"lr": 1e-4})] == [0.1] * 4 + [0.002] * 4
    endless = make_method("gradient-ascent", stop_accuracy=None)
    assert isinstance(endless, IterativeMethod)
    assert sorted({setting["epochs"] for setting in grid(endless, {"lr": 1e-4})}) == [10, 20]


def test_a_forget_only_method_takes_the_gentlest_setting_that_forgets(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path
) -> None:
    result = tuned(digits_original, digits, "delete", tmp_path, steps=40, lr=1e-4, batch_size=32)
    assert len(result.trials) == 8
    assert all(trial.retain_accuracy is None and trial.aus is None for trial in result.trials)
    assert "retention was not seen" in result.note
    accepted = [trial for trial in result.trials if (trial.forget_accuracy or 0) <= 0.002 and not trial.failed]
    assert accepted
    assert result.options == min(accepted, key=lambda trial: trial.weight_change or 0).options
    assert (tmp_path / "delete-user" / "result.json").is_file()


@pytest.mark.parametrize(("method", "rule"), [("finetune", "benchmark"), ("scrub", "user"), ("delete", "benchmark")])
def test_seen_images_decide_by_aus(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, method: str, rule: Rule
) -> None:
    length = {"steps": None, "epochs": 1, "ascent_epochs": 1} if method == "scrub" else {}
    result = tuned(digits_original, digits, method, tmp_path, rule=rule, **length)
    scores = [trial.aus for trial in result.trials if trial.aus is not None]
    assert result.trials[result.best or 0].aus == max(scores)
    assert "AUS" in result.note


def test_a_method_without_forget_images_says_that_forgetting_was_not_seen(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path
) -> None:
    result = tuned(digits_original, digits, "finetune", tmp_path)
    assert all(trial.forget_accuracy is None for trial in result.trials)
    assert "forgetting was not seen" in result.note


def test_trials_see_only_what_the_rule_allows(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[ForgetRequest] = []

    def spy(model: nn.Module, request: ForgetRequest, *_: Any) -> nn.Module:
        requests.append(request)
        return copy_model(model)

    monkeypatch.setattr(cell, "carry_out", spy)
    judged: list[np.ndarray] = []
    answers = Classify.answers

    def watch(task: Any, model: nn.Module, split: Any, run: Any) -> Any:
        assert split.source is digits.splits["train"].source
        judged.append(split.index)
        return answers(task, model, split, run)

    monkeypatch.setattr(Classify, "answers", watch)
    for method, rule, forget, retain in (
        ("delete", "user", 147, 1165),
        ("scrub", "user", 147, 1165),
        ("scrub", "benchmark", 132, 1165),
        ("sure", "benchmark", 119, 1048),
    ):
        requests.clear()
        judged.clear()
        length = {"steps": None, "epochs": 2, "ascent_epochs": 1} if method == "scrub" else {}
        tuned(digits_original, digits, method, tmp_path, rule=rule, **length)  # type: ignore[arg-type]
        request = requests[0]
        assert (len(request.forget), len(request.retain)) == (forget, pytest.approx(retain, abs=6))  # type: ignore[arg-type]
        trained = {row for part in (request.forget, request.retain) for row in part.index.tolist()}  # type: ignore[union-attr]
        seen = {row for rows in judged for row in rows.tolist()}
        if rule == "benchmark":
            assert not trained & seen
        elif method == "scrub":
            assert seen & trained <= set(np.flatnonzero(digits.splits["train"].labels == 3).tolist())
        if method == "sure":
            assert not seen & set(request.validation.index.tolist())  # type: ignore[union-attr]


def test_goes_on_where_it_stopped(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = cell.carry_out, 0

    def counted(*arguments: Any, **options: Any) -> nn.Module:
        nonlocal calls
        calls += 1
        return real(*arguments, **options)

    monkeypatch.setattr(cell, "carry_out", counted)
    first = tuned(digits_original, digits, "finetune", tmp_path, steps=2)
    files = sorted((tmp_path / "finetune-user").glob("lr-*.json"))
    assert (calls, len(files)) == (8, 8)
    files[0].unlink()
    files[1].write_text("{ half a file")
    again = tuned(digits_original, digits, "finetune", tmp_path, steps=2)
    assert calls == 10
    assert again.options == first.options
    other_seed = tuned(digits_original, digits, "finetune", tmp_path, steps=2, seed=1)
    assert calls == 18
    assert other_seed.seed == 1
    stored = json.loads((tmp_path / "finetune-user" / "result.json").read_text())
    assert stored["trials"][stored["best"]]["options"] == other_seed.options


def test_another_default_is_another_trial(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def tried(_: Any, options: dict[str, Any]) -> Trial:
        seen.append(options)
        return Trial(options=options, weight_change=1.0, forget_accuracy=0.0)

    monkeypatch.setattr(MethodTuning, "_run", tried)
    first = tuned(digits_original, digits, "delete", tmp_path)
    tuned(digits_original, digits, "delete", tmp_path)
    count, real = len(seen), tuning.make_method
    assert count == len(first.trials)
    monkeypatch.setattr(tuning, "make_method", lambda name, **options: real(name, **{"momentum": 0.123, **options}))
    tuned(digits_original, digits, "delete", tmp_path)
    assert len(seen) == 2 * count
    assert "momentum" not in first.trials[0].options, "a result names what was searched"


def test_pour_a_is_tuned_around_the_rate_of_its_own_trials(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[tuple[bool, bool]] = []

    def tried(search: Any, options: dict[str, Any]) -> Trial:
        method = make_method("pour-a")
        granted = search.request.grant(method.needs + method.accepts, name="pour-a")
        offered.append((granted.has("forget"), granted.has("retain")))
        return Trial(options=options, weight_change=1.0, forget_accuracy=0.0)

    monkeypatch.setattr(MethodTuning, "_run", tried)
    options: dict[str, Any] = {"steps": 4, "batch_size": 32}
    result = tune(digits_original, digits, (3,), "pour-a", run=RUN, out=tmp_path, options=options)
    assert {trial.options["lr"] for trial in result.trials} & set(RATES)
    assert all(forget and not retain for forget, retain in offered), "what it needs, no more"


def test_a_diverging_trial_is_a_trial(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any, **__: Any) -> nn.Module:
        raise DivergenceError("The loss became nan at step 3; use a smaller learning rate.")

    monkeypatch.setattr(cell, "carry_out", diverge)
    result = tuned(digits_original, digits, "finetune", tmp_path)
    assert all("became nan" in (trial.failed or "") for trial in result.trials)
    with pytest.raises(UsageError, match="No setting of finetune can be chosen: every setting diverged"):
        _ = result.options


def test_where_every_setting_diverges_lower_rates_are_tried(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cell.carry_out

    def fragile(model: nn.Module, request: Any, method: Any, run: Any) -> nn.Module:
        if method.lr > 5e-5:
            raise DivergenceError("The loss became nan at step 3; use a smaller learning rate.")
        return real(model, request, method, run)

    monkeypatch.setattr(cell, "carry_out", fragile)
    result = tuned(digits_original, digits, "finetune", tmp_path, lr=0.01)
    assert [trial.failed is None for trial in result.trials] == [False] * 12 + [True] * 4
    assert [trial.options["lr"] for trial in result.trials[8:]] == [1e-4, 3e-4] * 2 + [1e-5, 3e-5] * 2
    assert result.options["lr"] in (1e-5, 3e-5)


@pytest.mark.parametrize(
    ("best_rate", "further"),
    [
        (1e-4, []),
        (1.2e-5, [1e-6, 3e-6] * 2),
        (2e-6, [1e-6, 3e-6] * 2),
        (1e-9, [1e-6, 3e-6] * 2 + [1e-7, 3e-7] * 2),
        (1e-3, [1e-3, 3e-3] * 2),
        (1, [1e-3, 3e-3] * 2 + [1e-2, 3e-2] * 2),
    ],
)
def test_a_best_rate_at_the_edge_is_looked_beyond(
    digits_original: nn.Module,
    digits: ImageDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    best_rate: float,
    further: list[float],
) -> None:
    def judged(_: Any, options: dict[str, Any]) -> Trial:
        return Trial(options=options, weight_change=0.1, aus=0.9 - 0.05 * abs(np.log10(options["lr"] / best_rate)))

    monkeypatch.setattr(MethodTuning, "_run", judged)
    result = tuned(digits_original, digits, "delete", tmp_path, lr=1e-4)
    assert [trial.options["lr"] for trial in result.trials[8:]] == further


def test_where_little_is_left_to_gain_eight_settings_do(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(_: Any, options: dict[str, Any]) -> Trial:
        return Trial(options=options, weight_change=0.1, aus=0.995 - options["lr"])

    monkeypatch.setattr(MethodTuning, "_run", judged)
    assert len(tuned(digits_original, digits, "delete", tmp_path, lr=1e-4).trials) == 8


def test_rates_that_make_no_difference_are_not_looked_beyond(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(_: Any, options: dict[str, Any]) -> Trial:
        if options["lr"] > 5e-5:
            return Trial(options=options, failed="The loss became nan at step 3; use a smaller learning rate.")
        return Trial(options=options, weight_change=options["lr"], aus=0.5)

    monkeypatch.setattr(MethodTuning, "_run", judged)
    result = tuned(digits_original, digits, "delete", tmp_path, lr=1e-4)
    assert len(result.trials) == 8
    assert result.options["lr"] == pytest.approx(1e-5)


def test_a_rate_that_the_data_decide_is_found(digits_original: nn.Module, digits: ImageDataset, tmp_path: Path) -> None:
    result = tuned(digits_original, digits, "pour-d", tmp_path, steps=2)
    rates = sorted({trial.options["lr"] for trial in result.trials})
    np.testing.assert_allclose(np.array(rates) / rates[2], [0.1, 0.3, 1, 3], rtol=1e-4)
    assert 1e-6 < rates[2] < 1e-2


def test_choices_without_a_good_setting() -> None:
    def forgot(accuracy: float, change: float) -> Trial:
        return Trial(options={}, weight_change=change, forget_accuracy=accuracy)

    choice = choose([forgot(0.5, 0.1), forgot(0.2, 0.4)], original_accuracy=None)
    assert choice.best == 1
    assert "none being at most 0.2%" in choice.note

    def kept(accuracy: float, change: float) -> Trial:
        return Trial(options={}, weight_change=change, retain_accuracy=accuracy)

    assert choose([kept(0.5, 0.1), kept(0.985, 0.3), kept(0.99, 0.2)], original_accuracy=0.99).best == 1
    choice = choose([kept(0.5, 0.1), kept(0.6, 0.4)], original_accuracy=0.99)
    assert choice.best == 1
    assert "all losing more than 1%" in choice.note


def test_the_change_of_the_weights_is_relative(digits_original: nn.Module) -> None:
    other = copy_model(digits_original)
    old = np.concatenate([p.detach().double().numpy().ravel() for p in digits_original.parameters()])
    rng = np.random.default_rng(0)
    for parameter in other.parameters():
        parameter.data += 0.01 * parameter.data.new_tensor(rng.standard_normal(parameter.shape))
    new = np.concatenate([p.detach().double().numpy().ravel() for p in other.parameters()])
    assert relative_change(digits_original, other) == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old))


def test_bad_use_is_told(digits_original: nn.Module, digits: ImageDataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pour-p takes no optimisation steps; give an iterative method"):
        tune(digits_original, digits, (3,), "pour-p", run=RUN, out=tmp_path)
    with pytest.raises(UsageError, match="rule must be user or benchmark, but is 'best'"):
        tune(digits_original, digits, (3,), "finetune", rule="best", run=RUN, out=tmp_path)


def test_what_was_forgotten_before_is_not_among_what_is_kept(
    digits_original: nn.Module, digits: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that brings a class back would gain by it."""
    judged: list[set[int]] = []
    answers = Classify.answers

    def watch(task: Any, model: nn.Module, split: Any, run: Any) -> Any:
        judged.append(set(split.labels.tolist()))
        return answers(task, model, split, run)

    monkeypatch.setattr(Classify, "answers", watch)
    monkeypatch.setattr(cell, "carry_out", lambda model, *_: copy_model(model))
    before = pour.fold(pour.forget(digits_original, classes=["9"]))
    tuned(before, digits, "delete", tmp_path, rule="benchmark")
    assert {frozenset(labels) for labels in judged} == {frozenset(range(9))}


def test_every_iterative_method_is_tuned_on_what_no_table_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[MethodTuning] = []

    def spy(search: MethodTuning) -> None:
        calls.append(search)
        result = TuningResult(method=search.method, rule="benchmark", seed=100, trials=(), best=None, note="")
        write_text(search.out / f"{search.method}-benchmark" / "result.json", encode(result))

    monkeypatch.setattr(MethodTuning, "result", spy)
    results = tune_experiment(small_grid(), tmp_path, device="cpu", progress=False)
    assert [result.method for result in results] == ["delete"]
    (call,) = calls
    assert call.classes == (8,)
    assert (call.run.seed, call.rule, call.options["batch_norm"]) == (100, "benchmark", "frozen")
    assert call.recipe is not None
    assert call.recipe.epochs == 2
    kept = pour.load(tmp_path / "models" / "seed-100" / "original.safetensors")
    assert all((a == b).all() for a, b in zip(call.model.parameters(), kept.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "zeroshot"])
def test_tuning_and_tables_share_nothing(name: str) -> None:
    experiment = get_experiment(name)
    assert experiment.tuning_forget
    assert not set(experiment.tuning_forget) & {label for request in experiment.forget for label in request}
    assert tuning.TUNING_SEED not in experiment.seeds


def test_methods_side_by_side_choose_what_one_after_the_other_would(tmp_path: Path) -> None:
    methods = ("bad-teacher", "delete")
    few = {
        f"{name}_{letter}": values[::4]
        for name, split in pour.load_dataset("digits").splits.items()
        for letter, values in (("x", split.images), ("y", split.labels))
    }
    np.savez(tmp_path / "few.npz", **few)
    rows = tuple(
        Row(name=f"{name}-tuned", method=name, setting="tuned", family="relative", options=FAST) for name in methods
    )
    grid = small_grid(rows=rows, dataset=str(tmp_path / "few.npz"))
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    first = tune_experiment(grid, alone, device="cpu", progress=False)
    shutil.copytree(alone, beside)
    for method in methods:
        (beside / f"{method}-benchmark" / "result.json").unlink()
        min((beside / f"{method}-benchmark").iterdir()).unlink()
    second = tune_experiment(grid, beside, device="cpu", jobs=2, progress=False)
    assert tuple(result.method for result in second) == methods
    assert {(result.architecture, result.forgotten) for result in second} == {("resnet-digits", (8,))}
    for one, other in zip(first, second, strict=True):
        assert one.best == other.best
        again = [replace(trial, seconds=0) for trial in other.trials]
        assert [replace(trial, seconds=0) for trial in one.trials] == again


def test_batch_norm_may_train_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(_: Any, options: dict[str, Any]) -> Trial:
        return Trial(options=options, weight_change=0.1, aus=0.995)

    monkeypatch.setattr(MethodTuning, "_run", judged)
    rows = (Row(name="finetune-tuned", method="finetune", setting="tuned", family="paper"),)
    grid = small_grid(rows=rows)
    (result,) = tune_experiment(grid, tmp_path / "training", batch_norm="train", device="cpu", progress=False)
    assert {trial.options["batch_norm"] for trial in result.trials} == {"train"}
    taken = tuned_row("finetune", "digits", tmp_path / "training")
    assert taken.options["batch_norm"] == "train", "a grid takes what was tuned"
    (tmp_path / "training" / "finetune-benchmark" / "result.json").unlink()
    before = sorted((tmp_path / "training").rglob("*"))
    with pytest.raises(UsageError, match=r"another batch norm \(train, not frozen\); give another folder"):
        tune_experiment(grid, tmp_path / "training", device="cpu", progress=False)
    assert sorted((tmp_path / "training").rglob("*")) == before
    with pytest.raises(UsageError, match="batch_norm must be frozen or train, but is 'eval'"):
        tune_experiment(grid, tmp_path / "other", batch_norm="eval", device="cpu")  # type: ignore[arg-type]


def test_bad_use_of_an_experiment_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="number of jobs must be at least 1, but is 0"):
        tune_experiment("digits", tmp_path, jobs=0)
    with pytest.raises(UsageError, match="pour-p has nothing to tune in digits"):
        tune_experiment("digits", tmp_path, methods=["pour-p"])
    with pytest.raises(UsageError, match="The tables of digits report seed 0; tune on others"):
        tune_experiment("digits", tmp_path, seed=0)
    with pytest.raises(UsageError, match="report class 3; tune on others"):
        tune_experiment("digits", tmp_path, forget=["3", "8"])
    with pytest.raises(UsageError, match="report seed 1 and class 3; tune on others"):
        tune_experiment("digits", tmp_path, forget=["3"], seed=1)
    with pytest.raises(UsageError, match="experiment mine has no class for tuning; give classes with forget="):
        tune_experiment(small_grid(name="mine", tuning_forget=()), tmp_path)
    assert not any(tmp_path.iterdir())


SCENES = """
task = "segment"
dataset = "camvid"
architecture = "smp:linknet:tu-mobilenetv3_small_050"
recipe = { name = "scenes", epochs = 12, batch_size = 6, lr = 5e-3 }
forget = ["road"]
tuning_forget = ["car"]

[[rows]]
name = "pour-d"
method = "pour-d"
setting = "tuned"
options = { batch_size = 4, augment = false, steps = 4, lr = 3e-3 }
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the file of an experiment on scenes; both rules tune the same original."""
    torchvision_works()
    pytest.importorskip("segmentation_models_pytorch")
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "mine.toml").write_text(SCENES)
    return folder


@pytest.mark.parametrize("rule", ["user", "benchmark"])
def test_an_experiment_on_scenes_is_tuned_by_their_iou(small_world: Path, scenes: Path, rule: Rule) -> None:
    file, out = str(scenes / "mine.toml"), scenes / "out"
    (result,) = tune_experiment(file, out, rule=rule, root=small_world, device="cpu", progress=False)
    assert (result.dataset, result.forgotten) == ("camvid", (2,))
    finished = [trial for trial in result.trials if trial.failed is None]
    assert len(finished) >= 8
    assert all(0 <= (trial.forget_accuracy or 0) <= 1 for trial in finished)
    assert len({trial.forget_accuracy for trial in finished}) > 2, "settings forget differently"
    if rule == "user":
        assert all(trial.retain_accuracy is None for trial in finished), "a forget-only method sees no other label"
    else:
        assert result.trials[result.best or 0].aus == max(trial.aus or 0 for trial in finished)
