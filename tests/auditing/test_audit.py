import copy
import json

import numpy as np
import pytest
import torch
from torch import nn

import pour
from pour.auditing import AuditReport, audit
from pour.auditing.audited import audited_data
from pour.auditing.measure import Measurer
from pour.auditing.relearning import Relearning
from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.metrics import aus, linear_cka, rus
from pour.models.tap import extract_features
from pour.training import Run
from pour.training.tasks.classify import Classify

QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def projected(digits_original):
    return pour.forget(digits_original, classes=["3"])


@pytest.fixture(scope="module")
def full(digits_original, digits_retrained, digits_retrained_second, projected, digits_splits):
    """POUR-P audited with everything there is to read it against."""
    return audit(
        original=digits_original,
        unlearned=projected,
        retrained=[digits_retrained, digits_retrained_second],
        data=digits_splits,
        **QUIET,
    )


@pytest.fixture(scope="module")
def alone(digits_original, projected, digits_splits):
    """The same without a reference."""
    return audit(original=digits_original, unlearned=projected, data=digits_splits, **QUIET)


def features(model, split):
    return extract_features(model, Classify().batches(split, Run(device="cpu", progress=False)))


def test_the_numbers_are_those_of_the_metrics(full, digits_original, digits_retrained, projected, digits_splits):
    sides = {"f": digits_splits.forget_test, "r": digits_splits.retain_test}
    seen = {
        (name, side): features(model, split)
        for name, model in (("o", digits_original), ("u", projected), ("t", digits_retrained))
        for side, split in sides.items()
    }
    accuracy = {key: (s.scores.argmax(1) == s.labels).double().mean().item() for key, s in seen.items()}
    assert full.value("acc_r") == pytest.approx(accuracy["u", "r"])
    assert full.value("acc_f") == pytest.approx(accuracy["u", "f"])
    assert full.line("acc_f").original.value == pytest.approx(accuracy["o", "f"])
    assert full.value("aus") == pytest.approx(aus(accuracy["o", "r"], accuracy["u", "r"], accuracy["u", "f"]))
    cka = {
        (side, letter, view): float(linear_cka(getattr(seen["u", side], view), seen[base, side].features))
        for side in "fr"
        for letter, base in (("o", "o"), ("r", "t"))
        for view in ("features", "raw")
    }
    for (side, letter, view), value in cka.items():
        assert full.value(f"cka_{side}_{letter}", view) == pytest.approx(value, abs=1e-5)
    for view in ("features", "raw"):
        for letter, reference in (("o", "original"), ("r", "retrained")):
            expected = rus(cka["f", letter, view], cka["r", letter, view], reference=reference)
            assert full.value(f"rus_{letter}", view) == pytest.approx(expected, abs=1e-5)
    other = float(linear_cka(seen["t", "f"].features, seen["o", "f"].features))
    assert full.line("cka_f_o").retrained.value == pytest.approx(other, abs=1e-5)


def test_every_line_has_a_verdict_against_the_retrained_model(full):
    assert all(line.verdict != "no reference" for line in full.lines)
    assert all(line.retrained is not None for line in full.lines)
    names = {line.name for line in full.lines if line.section != "raw"}
    for name in ("acc_r", "acc_tf", "aus", "cka_f_o", "rus_r_train", "rmia_auc", "probe_knn_nearest", "entropy_f"):
        assert name in names
    for name in ("norm_leak_train", "nc1", "nc4_train", "discrepancy_mmd", "kl_uniform_f_train"):
        assert name in names
    assert not full.notes


def test_a_projector_hides_the_class_from_the_head_but_not_from_the_encoder(full):
    assert full.line("acc_f").verdict == "within its interval"
    assert full.value("cka_f_o", "raw") == pytest.approx(1)
    assert full.line("cka_f_o", "raw").verdict == "leaks more"
    assert full.line("probe_linear", "raw").unlearned == full.line("probe_linear", "raw").original
    assert full.value("probe_linear") <= full.value("probe_linear", "raw")
    assert full.models["unlearned"].projected
    assert full.models["unlearned"].methods == ("pour-p",)
    assert full.answers["unlearned"][3] == 0
    assert sum(full.answers["original"]) == 36


def test_answers_are_compared_with_those_of_the_retrained_model(full, alone):
    """By hand, and against what another seed of it answers; a projector moves the class to the middle of the others."""
    shares = {role: np.array(counts) / sum(counts) for role, counts in full.answers.items()}
    line = full.line("answers_r")
    for reading, role in ((line.unlearned, "unlearned"), (line.original, "original")):
        assert reading.value == pytest.approx(np.abs(shares[role] - shares["retrained"]).sum() / 2)
        assert reading.n == 36
    assert line.original.value > 0.9
    assert line.retrained.value == pytest.approx(np.abs(shares["retrained_second"] - shares["retrained"]).sum() / 2)
    assert line.retrained.low == 0
    assert line.verdict == ("within its interval" if line.unlearned.value <= line.retrained.high else "destroyed")
    assert {"answers_r", "answers_r_train"} <= {line.name for line in full.lines}
    assert not any(line.name.startswith("answers_r") for line in alone.lines)


def test_the_decision_is_against_the_floor(full):
    assert {(d.metric, d.view) for d in full.discrepancies} == {
        (metric, view) for metric in ("mmd", "energy", "sliced-wasserstein-1") for view in ("features", "raw")
    }
    for found in full.discrepancies:
        assert found.epsilon == found.floor
        assert found.decision == ("met" if found.total <= found.floor else "not met")
        assert found.lower - 1e-9 <= found.total <= found.upper + 1e-9
    raw = next(d for d in full.discrepancies if (d.metric, d.view) == ("mmd", "raw"))
    assert raw.total == pytest.approx(raw.original)


def test_without_a_reference_its_metrics_are_absent(alone):
    names = {line.name for line in alone.lines}
    assert not any(name.removesuffix("_train").endswith("_r") and name.startswith(("cka", "rus")) for name in names)
    assert not any(name.startswith("discrepancy") for name in names)
    assert "cka_f_o" in names
    assert all(line.verdict == "no reference" and line.retrained is None for line in alone.lines)
    assert not alone.discrepancies
    assert "None" not in str(alone)
    assert "no retrained model" in str(alone)


def test_another_retrained_seed_is_at_the_ceiling(
    digits_original, digits_retrained, digits_retrained_second, digits_splits
):
    report = audit(
        original=digits_original,
        unlearned=digits_retrained_second,
        retrained=digits_retrained,
        data=digits_splits,
        **QUIET,
    )
    assert not any(line.section == "raw" for line in report.lines)
    leaking = [line.name for line in report.lines if line.verdict == "leaks more"]
    # Of one reference the intervals are those of its images: norms and probes of another seed may lie outside.
    assert not [name for name in leaking if name.startswith(("acc", "cka", "rus", "rmia", "answers"))]
    # Comparisons with the retrained model have no reference when it is the only one.
    assert report.line("cka_f_r").verdict == "no reference"
    assert all(found.decision == "undecided" for found in report.discrepancies)


def test_the_untouched_original_leaks(digits_original, digits_retrained, digits_retrained_second, digits_splits):
    report = audit(
        original=digits_original,
        unlearned=digits_original,
        retrained=[digits_retrained, digits_retrained_second],
        data=digits_splits,
        reference=True,
        **QUIET,
    )
    for name in ("acc_f", "acc_tf", "aus", "cka_f_o", "rus_o", "rus_r", "probe_linear", "discrepancy_mmd"):
        assert report.line(name).verdict == "leaks more", name
    assert report.value("rus_o") == pytest.approx(0)
    assert {found.decision for found in report.discrepancies} == {"not met"}


def test_a_ruined_model_is_destroyed(digits_original, digits_retrained, digits_splits):
    ruined = copy.deepcopy(digits_original)
    torch.manual_seed(0)
    for module in ruined.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=0.05)
    with torch.no_grad():
        ruined.head.bias[3] = -100
    report = audit(original=digits_original, unlearned=ruined, retrained=digits_retrained, data=digits_splits, **QUIET)
    for name in ("acc_r", "cka_r_o", "nc1", "nc4_train"):
        assert report.line(name).verdict == "destroyed", name
    assert report.line("aus").verdict == "destroyed"


def test_the_same_call_gives_the_same_bytes(alone, digits_original, projected, digits_splits):
    again = audit(original=digits_original, unlearned=projected, data=digits_splits, **QUIET)
    assert again.to_json() == alone.to_json()


def test_a_real_report_survives_a_file(full, tmp_path):
    assert AuditReport.load(full.save(tmp_path / "report.json")) == full
    json.loads(full.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert "nan" not in str(full).lower()


def test_the_cache_changes_nothing(full, digits_original, digits_retrained, projected, digits_splits, tmp_path):
    call = {"original": digits_original, "unlearned": projected, "retrained": digits_retrained, "data": digits_splits}
    plain = audit(**call, **QUIET)
    first = audit(**call, cache=tmp_path, **QUIET)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    second = audit(**call, cache=str(tmp_path), cache_unlearned=True, **QUIET)
    assert len(list(tmp_path.glob("*.safetensors"))) == 6
    third = audit(**call, cache=tmp_path, cache_unlearned=True, **QUIET)
    assert plain == first == second == third


def test_references_are_measured_once(
    digits_original, digits_retrained, projected, digits_splits, tmp_path, monkeypatch
):
    measured = []
    whole = Measurer.features

    def spy(self, model, view):
        measured.append((model.role, view))
        return whole(self, model, view)

    monkeypatch.setattr(Measurer, "features", spy)
    call = {"original": digits_original, "unlearned": projected, "retrained": digits_retrained, "data": digits_splits}
    call |= {"limit": 60, "cache": tmp_path, **QUIET}
    first = audit(**call)
    assert {role for role, _ in measured} == {"original", "unlearned", "retrained"}
    measured.clear()
    assert audit(**call) == first
    assert {role for role, _ in measured} == {"unlearned"}
    # Another seed draws other folds, so nothing of the first is read.
    measured.clear()
    audit(**call, seed=1)
    assert {role for role, _ in measured} == {"original", "unlearned", "retrained"}
    for file in tmp_path.glob("*-measures.json"):
        file.write_text(file.read_text()[:-20])
    measured.clear()
    assert audit(**call) == first
    assert {role for role, _ in measured} == {"original", "unlearned", "retrained"}


def test_what_a_reference_could_not_be_measured_for_is_said_again(
    digits_original, projected, digits_splits, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise UsageError("too few images")

    monkeypatch.setattr("pour.auditing.measure.knn_probe", refuse)
    call = {"original": digits_original, "unlearned": projected, "data": digits_splits, "limit": 60, **QUIET}
    first = audit(**call, cache=tmp_path)
    assert any("knn probe of the original model is absent" in note for note in first.notes)
    assert audit(**call, cache=tmp_path) == first


def test_the_models_are_left_alone(digits_original, projected, digits_splits):
    states = [copy.deepcopy(model.state_dict()) for model in (digits_original, projected)]
    audit(original=digits_original, unlearned=projected, data=digits_splits, limit=60, **QUIET)
    for model, before in zip((digits_original, projected), states, strict=True):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(value.stride() == before[name].stride() for name, value in model.state_dict().items())


def test_a_dataset_and_classes_are_the_same_as_splits(alone, digits, digits_original, projected):
    report = audit(original=digits_original, unlearned=projected, data=digits, classes=["3"], **QUIET)
    assert report == alone


def test_layers(digits_original, projected, digits_splits):
    report = audit(original=digits_original, unlearned=projected, data=digits_splits, layers=True, limit=60, **QUIET)
    assert [(m.reference, m.side) for m in report.layers] == [("original", "forget"), ("original", "retain")]
    found = report.layers[0]
    assert found.rows == found.columns
    assert len(found.rows) >= 4
    # The projector comes after the last block, so that the encoders agree layer by layer.
    assert np.allclose(np.diag(found.values), 1)
    assert AuditReport.from_json(report.to_json()) == report


def test_a_limit_takes_training_images_only(digits_splits, digits_original, projected):
    limited = (
        audited_data(digits_splits, None, None, digits_original, projected).limited(60, seed=0).splits("This test")
    )
    assert (len(limited.forget_train), len(limited.retain_train)) == (60, 60)
    assert len(limited.test.whole) == len(digits_splits.test.whole)
    counts = np.bincount(limited.retain_train.labels, minlength=10)
    assert counts[3] == 0
    assert set(np.delete(counts, 3)) <= {6, 7}
    report = audit(original=digits_original, unlearned=projected, data=digits_splits, limit=60, **QUIET)
    assert report.data.counts == {"test": (36, 319), "train": (60, 60)}
    assert report.line("cka_f_o_train").unlearned.n == 60
    assert report.settings["limit"] == 60


def test_extra_test_sets_have_accuracies(digits, digits_original, projected):
    test = digits.splits["test"]
    external = ImageSplit(test.images[::2].copy(), test.labels[::2].copy())
    data = ImageDataset(digits.name, digits.classes, {**digits.splits, "external": external}, digits.info)
    report = audit(original=digits_original, unlearned=projected, data=data, classes=["3"], **QUIET)
    assert report.value("acc_f_external") == 0
    assert report.line("acc_r_external").unlearned.n == int((external.labels != 3).sum())


def test_bad_calls(digits, digits_original, digits_splits, projected):
    call = {"original": digits_original, "unlearned": projected} | QUIET
    with pytest.raises(UsageError, match="history names no forgotten classes; pass classes"):
        audit(data=digits, **call | {"unlearned": digits_original})
    with pytest.raises(UsageError, match="but the original's does: they seem to be swapped"):
        audit(data=digits, **call | {"original": projected, "unlearned": digits_original})
    with pytest.raises(UsageError, match=r"classes names \[4\], but the splits were made for \[3\]"):
        audit(data=digits_splits, classes=["4"], **call)
    with pytest.raises(UsageError, match=r"needs a test split and a train split, and a list has none"):
        audit(data=[1, 2], classes=[3], **call)
    with pytest.raises(UsageError, match="retrained has 3 models; pass one, or two"):
        audit(data=digits_splits, retrained=[digits_original] * 3, **call)
    with pytest.raises(UsageError, match="A limit of 5 training images per side is too small"):
        audit(data=digits_splits, limit=5, **call)
    with pytest.raises(UsageError, match="precision must be fp32 or bf16"):
        audit(data=digits_splits, precision="fp8", **call)
    with pytest.raises(UsageError, match="seed must be a whole number from 0"):
        audit(data=digits_splits, seed=-1, **call)
    with pytest.raises(UsageError, match=r"align must be one of .*, but is 'procrustez'"):
        audit(data=digits_splits, align="procrustez", **call)
    for epsilon in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="epsilon must be a finite number"):
            audit(data=digits_splits, epsilon=epsilon, **call)


def test_a_test_split_without_the_class_is_refused(digits, digits_original, projected):
    test = digits.splits["test"]
    data = ImageDataset(
        "digits", digits.classes, {**digits.splits, "test": test.take(np.flatnonzero(test.labels != 3))}, digits.info
    )
    with pytest.raises(UsageError, match="test split of digits has no image of the forgotten classes"):
        audit(original=digits_original, unlearned=projected, data=data, classes=["3"], **QUIET)


def test_a_single_forgotten_test_image_gives_defined_values(digits, digits_original, digits_retrained, projected):
    test = digits.splits["test"]
    rows = np.sort(np.concatenate([np.flatnonzero(test.labels != 3), np.flatnonzero(test.labels == 3)[:1]]))
    data = ImageDataset("digits", digits.classes, {**digits.splits, "test": test.take(rows)}, digits.info)
    report = audit(
        original=digits_original, unlearned=projected, retrained=digits_retrained, data=data, classes=["3"], **QUIET
    )
    assert report.value("cka_f_o") == 0
    assert report.line("cka_f_o").unlearned.debiased is None
    for name in ("cka_f_o", "rus_o", "entropy_f", "kl_uniform_f"):
        assert report.line(name).unlearned.low is None
        assert report.line(name).verdict == "no reference", "one image says nothing"
    assert any("membership" in note for note in report.notes)
    json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))


def test_constant_features_give_defined_values(digits_original, digits_retrained, digits_splits):
    constant = copy.deepcopy(digits_original)
    with torch.no_grad():
        for module in constant.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.zero_()
    report = audit(
        original=digits_original, unlearned=constant, retrained=digits_retrained, data=digits_splits, **QUIET
    )
    assert report.value("cka_r_o") == 0
    assert report.value("probe_linear") == pytest.approx(0.5)
    assert any("cannot be aligned" in note for note in report.notes)
    json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))


def test_two_forgotten_classes(digits, digits_original, digits_retrained):
    splits = Splits.of(digits, ["3", "8"])
    unlearned = pour.forget(digits_original, classes=["3", "8"])
    report = audit(
        original=digits_original,
        unlearned=unlearned,
        retrained=digits_retrained,
        data=splits,
        epsilon=10.0,
        trusted=True,
        **QUIET,
    )
    assert report.data.forgotten_names == ("3", "8")
    turned = audit(original=digits_original, unlearned=unlearned, data=Splits.of(digits, ["8", "3"]), **QUIET)
    assert turned.data == report.data
    assert report.value("acc_f") == 0
    assert {found.decision for found in report.discrepancies} == {"met"}
    assert [note.partition(",")[0] for note in report.notes] == [
        "the retrained model recognises 48.8% of the forgotten training images"
    ], "it was trained without 3 alone"


def test_classes_of_few_images_leave_neural_collapse_without_a_verdict(
    digits, digits_original, digits_retrained, projected
):
    test = digits.splits["test"]
    rows = np.sort(np.concatenate([np.flatnonzero(test.labels != 5), np.flatnonzero(test.labels == 5)[:9]]))
    data = ImageDataset("digits", digits.classes, {**digits.splits, "test": test.take(rows)}, digits.info)
    report = audit(
        original=digits_original, unlearned=projected, retrained=digits_retrained, data=data, classes=["3"], **QUIET
    )
    for name in ("nc1", "nc2_norm_spread", "nc3"):
        assert report.line(name).retrained.low is None
        assert report.line(name).verdict == "no reference"
        assert report.line(f"{name}_train").verdict != "no reference"


def test_a_limit_leaves_a_rare_class_its_image(digits, digits_original, digits_retrained, projected):
    train = digits.splits["train"]
    rows = np.sort(np.concatenate([np.flatnonzero(train.labels != 9), np.flatnonzero(train.labels == 9)[:2]]))
    data = ImageDataset("digits", digits.classes, {**digits.splits, "train": train.take(rows)}, digits.info)
    report = audit(original=digits_original, unlearned=projected, data=data, classes=["3"], limit=100, **QUIET)
    assert 0 <= report.value("rmia_balanced_accuracy") <= 1
    assert not any("membership" in note for note in report.notes)


def test_the_nearest_class_is_counted_on_its_own(full, digits_splits):
    n = full.line("probe_linear_nearest").unlearned.n
    counts = np.bincount(digits_splits.test.whole.labels)
    assert n - counts[3] in counts.tolist()


def test_models_with_scores_for_other_numbers_of_classes_are_compared(digits_splits):
    torch.manual_seed(0)
    original, retrained = (nn.Sequential(nn.Flatten(), nn.Linear(64, width)) for width in (10, 12))
    report = audit(
        original=original,
        unlearned=pour.forget(original, classes=["3"]),
        retrained=retrained,
        data=digits_splits,
        trusted=True,
        **QUIET,
    )
    assert 0 <= report.value("answers_r") <= 1


def test_layers_of_a_network_without_parts(digits_splits):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(64, 10)

        def forward(self, images):
            return self.model(images.flatten(1))

    report = audit(original=One(), unlearned=One(), data=digits_splits, layers=True, trusted=True, **QUIET)
    assert {found.rows for found in report.layers} == {("model",)}


def test_models_that_are_not_what_they_are_given_as_are_told(digits_original, digits_retrained, digits_splits):
    untouched = audit(
        original=digits_original,
        unlearned=digits_original,
        retrained=pour.models.copy_and_swap.copy_model(digits_original),
        data=digits_splits,
        trusted=True,
        **QUIET,
    )
    assert any("the retrained model recognises 100.0% of the forgotten training" in note for note in untouched.notes)
    other = pour.forget(digits_original, classes=["5"])
    asked = {
        "original": digits_original,
        "retrained": digits_retrained,
        "data": digits_splits,
        "trusted": True,
        **QUIET,
    }
    assert audit(unlearned=other, **asked).notes == (
        "the unlearned model's history has no request to forget 3",
        "the unlearned model was made to forget 5 as well, whose images count as retained; audit all of its "
        "classes together",
    )
    both = pour.forget(pour.fold(other), classes=["3"])
    assert [note.split(",")[0] for note in audit(unlearned=both, **asked).notes] == [
        "the unlearned model was made to forget 5 as well"
    ]
    with pytest.raises(UsageError, match="An audit needs the original model; pass original="):
        audit(original=None, unlearned=other, data=digits_splits)


def dense(seed, width=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def test_heads_are_found_on_the_images_of_the_data(digits_splits):
    """Of each model by itself: the retrained ones are built in another way."""
    original = dense(0)
    models = {
        "original": original,
        "unlearned": pour.forget(original, classes=["3"], head="3"),
        "retrained": [nn.Sequential(dense(1), nn.Identity()), nn.Sequential(dense(2), nn.LogSoftmax(dim=1)).half()],
    }
    relearning = Relearning(steps=(0, 1))
    untrained = {"trusted": True, **QUIET}
    report = audit(**models, data=digits_splits, relearn=relearning, layers=True, **untrained)
    assert report.value("acc_f") == 0
    # The encoder of the original and the unlearned model is the same.
    assert report.value("cka_f_o", "raw") == pytest.approx(1)
    assert len(report.relearning) == 4
    assert {entry.reference for entry in report.layers} == {"original", "retrained"}
    del models["retrained"]
    named = audit(**models, data=digits_splits, head="3", **untrained)
    assert audit(**models, data=digits_splits, **untrained) == named


def test_a_head_that_does_not_give_the_scores_is_not_audited(digits_splits):
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Linear(64, 10)
            self.weight = nn.Parameter(torch.randn(10, 10))

        def forward(self, images):
            return nn.functional.linear(nn.functional.normalize(self.emb(images.flatten(1))), self.weight)

    for role in ("original", "unlearned", "retrained"):
        models = {"original": dense(0), "unlearned": dense(1), "retrained": dense(2)} | {role: Cosine()}
        with pytest.raises(
            UsageError, match=rf"although emb \(10 x 64\) has as many outputs.*This is the {role} model"
        ):
            audit(**models, data=digits_splits, **QUIET)
    with pytest.raises(UsageError, match=r"'1' gives 16 scores.*This is the original model"):
        audit(original=dense(0), unlearned=dense(1), data=digits_splits, head="1", **QUIET)
