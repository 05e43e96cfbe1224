from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from method_cases import ITERATIVE

import pour
import pour.bench.tuning as tuning
from pour.bench.selection import Rule, Trial, TuningResult, choose, relative_change
from pour.bench.tuning import grid, tune
from pour.errors import DivergenceError, UsageError
from pour.models.copy_and_swap import copy_model
from pour.unlearning import IterativeMethod, make_method
from pour.unlearning.toolkit.find_rate import RATES

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from pour.data.splits import Splits
    from pour.unlearning import ForgetRequest

FAST: dict[str, Any] = {"batch_size": 64, "augment": False, "steps": 4}


def tuned(
    model: nn.Module, splits: Splits, method: str, out: Path, *, rule: Rule = "user", **options: Any
) -> TuningResult:
    return tune(model, splits, method, rule=rule, device="cpu", progress=False, out=out, **(FAST | options))


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
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path
) -> None:
    result = tuned(digits_original, digits_splits, "delete", tmp_path, steps=40, lr=1e-4, batch_size=32)
    assert len(result.trials) == 8
    assert all(trial.retain_accuracy is None and trial.aus is None for trial in result.trials)
    assert "retention was not seen" in result.note
    accepted = [trial for trial in result.trials if (trial.forget_accuracy or 0) <= 0.002 and not trial.failed]
    assert accepted
    assert result.options == min(accepted, key=lambda trial: trial.weight_change or 0).options
    assert (tmp_path / "delete-user" / "result.json").is_file()


@pytest.mark.parametrize(("method", "rule"), [("finetune", "benchmark"), ("scrub", "user"), ("delete", "benchmark")])
def test_seen_images_decide_by_aus(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, method: str, rule: Rule
) -> None:
    length = {"steps": None, "epochs": 1, "ascent_epochs": 1} if method == "scrub" else {}
    result = tuned(digits_original, digits_splits, method, tmp_path, rule=rule, **length)
    scores = [trial.aus for trial in result.trials if trial.aus is not None]
    assert result.trials[result.best or 0].aus == max(scores)
    assert "AUS" in result.note


def test_a_method_without_forget_images_says_that_forgetting_was_not_seen(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path
) -> None:
    result = tuned(digits_original, digits_splits, "finetune", tmp_path)
    assert all(trial.forget_accuracy is None for trial in result.trials)
    assert "forgetting was not seen" in result.note


def test_trials_see_only_what_the_rule_allows(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[ForgetRequest] = []

    def spy(model: nn.Module, request: ForgetRequest, *_: Any) -> nn.Module:
        requests.append(request)
        return copy_model(model)

    monkeypatch.setattr(tuning, "carry_out", spy)
    judged: list[np.ndarray] = []
    accuracy = tuning._accuracy

    def watch(model: nn.Module, split: Any, run: Any) -> float | None:
        if split is not None:
            assert split.source is digits_splits.train.whole.source
            judged.append(split.index)
        return accuracy(model, split, run)

    monkeypatch.setattr(tuning, "_accuracy", watch)
    for method, rule, forget, retain in (
        ("delete", "user", 147, 1165),
        ("scrub", "user", 147, 1165),
        ("scrub", "benchmark", 132, 1165),
        ("sure", "benchmark", 119, 1048),
    ):
        requests.clear()
        judged.clear()
        length = {"steps": None, "epochs": 2, "ascent_epochs": 1} if method == "scrub" else {}
        tuned(digits_original, digits_splits, method, tmp_path, rule=rule, **length)  # type: ignore[arg-type]
        request = requests[0]
        assert (len(request.forget), len(request.retain)) == (forget, pytest.approx(retain, abs=6))  # type: ignore[arg-type]
        trained = {row for part in (request.forget, request.retain) for row in part.index.tolist()}  # type: ignore[union-attr]
        seen = {row for rows in judged for row in rows.tolist()}
        if rule == "benchmark":
            assert not trained & seen
        elif method == "scrub":
            assert seen & trained <= set(digits_splits.forget_train.index.tolist())  # type: ignore[union-attr]
        if method == "sure":
            assert not seen & set(request.validation.index.tolist())  # type: ignore[union-attr]


def test_goes_on_where_it_stopped(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = tuning.carry_out, 0

    def counted(*arguments: Any, **options: Any) -> nn.Module:
        nonlocal calls
        calls += 1
        return real(*arguments, **options)

    monkeypatch.setattr(tuning, "carry_out", counted)
    first = tuned(digits_original, digits_splits, "finetune", tmp_path, steps=2)
    files = sorted((tmp_path / "finetune-user").glob("lr-*.json"))
    assert (calls, len(files)) == (8, 8)
    files[0].unlink()
    files[1].write_text("{ half a file")
    again = tuned(digits_original, digits_splits, "finetune", tmp_path, steps=2)
    assert calls == 10
    assert again.options == first.options
    other_seed = tune(
        digits_original,
        digits_splits,
        "finetune",
        seed=1,
        device="cpu",
        progress=False,
        out=tmp_path,
        **(FAST | {"steps": 2}),
    )
    assert calls == 18
    assert other_seed.seed == 1
    stored = json.loads((tmp_path / "finetune-user" / "result.json").read_text())
    assert stored["trials"][stored["best"]]["options"] == other_seed.options


def test_another_default_is_another_trial(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def tried(*given: Any) -> Trial:
        seen.append(given[3])
        return Trial(options=given[3], weight_change=1.0, forget_accuracy=0.0)

    monkeypatch.setattr(tuning, "_try", tried)
    first = tuned(digits_original, digits_splits, "delete", tmp_path)
    tuned(digits_original, digits_splits, "delete", tmp_path)
    count, real = len(seen), tuning.make_method
    assert count == len(first.trials)
    monkeypatch.setattr(tuning, "make_method", lambda name, **options: real(name, **{"momentum": 0.123, **options}))
    tuned(digits_original, digits_splits, "delete", tmp_path)
    assert len(seen) == 2 * count
    assert "momentum" not in first.trials[0].options, "a result names what was searched"


def test_pour_a_is_tuned_around_the_rate_of_its_own_trials(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[tuple[object, object]] = []

    def tried(_: nn.Module, request: ForgetRequest, __: str, options: dict[str, Any], *___: Any) -> Trial:
        offered.append((request.forget, request.retain))
        return Trial(options=options, weight_change=1.0, forget_accuracy=0.0)

    monkeypatch.setattr(tuning, "_try", tried)
    options: dict[str, Any] = {"steps": 4, "batch_size": 32}
    result = tune(digits_original, digits_splits, "pour-a", device="cpu", progress=False, out=tmp_path, **options)
    assert {trial.options["lr"] for trial in result.trials} & set(RATES)
    assert all(forget is not None and retain is None for forget, retain in offered), "what it needs, no more"


def test_a_diverging_trial_is_a_trial(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any, **__: Any) -> nn.Module:
        raise DivergenceError("The loss became nan at step 3; use a smaller learning rate.")

    monkeypatch.setattr(tuning, "carry_out", diverge)
    result = tuned(digits_original, digits_splits, "finetune", tmp_path)
    assert all("became nan" in (trial.failed or "") for trial in result.trials)
    with pytest.raises(UsageError, match="No setting of finetune can be chosen: every setting diverged"):
        _ = result.options


def test_where_every_setting_diverges_lower_rates_are_tried(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuning.carry_out

    def fragile(model: nn.Module, request: Any, method: Any, run: Any) -> nn.Module:
        if method.lr > 5e-5:
            raise DivergenceError("The loss became nan at step 3; use a smaller learning rate.")
        return real(model, request, method, run)

    monkeypatch.setattr(tuning, "carry_out", fragile)
    result = tuned(digits_original, digits_splits, "finetune", tmp_path, lr=0.01)
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
    digits_splits: Splits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    best_rate: float,
    further: list[float],
) -> None:
    def judged(model: Any, request: Any, method: str, options: dict[str, Any], *_: Any) -> Trial:
        return Trial(options=options, weight_change=0.1, aus=0.9 - 0.05 * abs(np.log10(options["lr"] / best_rate)))

    monkeypatch.setattr(tuning, "_try", judged)
    result = tuned(digits_original, digits_splits, "delete", tmp_path, lr=1e-4)
    assert [trial.options["lr"] for trial in result.trials[8:]] == further


def test_where_little_is_left_to_gain_eight_settings_do(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(model: Any, request: Any, method: str, options: dict[str, Any], *_: Any) -> Trial:
        return Trial(options=options, weight_change=0.1, aus=0.995 - options["lr"])

    monkeypatch.setattr(tuning, "_try", judged)
    assert len(tuned(digits_original, digits_splits, "delete", tmp_path, lr=1e-4).trials) == 8


def test_rates_that_make_no_difference_are_not_looked_beyond(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(model: Any, request: Any, method: str, options: dict[str, Any], *_: Any) -> Trial:
        if options["lr"] > 5e-5:
            return Trial(options=options, failed="The loss became nan at step 3; use a smaller learning rate.")
        return Trial(options=options, weight_change=options["lr"], aus=0.5)

    monkeypatch.setattr(tuning, "_try", judged)
    result = tuned(digits_original, digits_splits, "delete", tmp_path, lr=1e-4)
    assert len(result.trials) == 8
    assert result.options["lr"] == pytest.approx(1e-5)


def test_a_rate_that_the_data_decide_is_found(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path
) -> None:
    result = tuned(digits_original, digits_splits, "pour-d", tmp_path, steps=2)
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


def test_bad_use_is_told(digits_original: nn.Module, digits_splits: Splits, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pour-p takes no optimisation steps"):
        tune(digits_original, digits_splits, "pour-p", out=tmp_path)
    with pytest.raises(UsageError, match="rule must be user or benchmark, but is 'best'"):
        tune(digits_original, digits_splits, "finetune", rule="best", out=tmp_path)  # type: ignore[arg-type]


def test_what_was_forgotten_before_is_not_among_what_is_kept(
    digits_original: nn.Module, digits_splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that brings a class back would gain by it."""
    judged: list[set[int]] = []

    def watch(model: nn.Module, split: Any, run: Any) -> float | None:
        judged.append(set() if split is None else set(split.labels.tolist()))
        return 0.5

    monkeypatch.setattr(tuning, "_accuracy", watch)
    monkeypatch.setattr(tuning, "carry_out", lambda model, *_: copy_model(model))
    before = pour.fold(pour.forget(digits_original, classes=["9"]))
    tuned(before, digits_splits, "delete", tmp_path, rule="benchmark")
    assert {frozenset(labels) for labels in judged} == {frozenset({3}), frozenset(range(9)) - {3}}
