import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from sklearn.metrics import accuracy_score
from tapped_models import CLASSES, make_seen, make_tapped

from pour.auditing.measure import Measurer, aus_reading
from pour.auditing.measurement import Reading
from pour.geometry import neural_collapse
from pour.metrics import Metric, aus, rmia


def make_measurer(train=200):
    return Measurer(seed=0, class_counts=dict.fromkeys(range(CLASSES), train // CLASSES))


def test_accuracies_are_scikit_learns():
    tapped = make_tapped(noise=0.8)
    found = make_measurer().answers(tapped)
    for split, names in (
        ("test", ("acc_r", "acc_f")),
        ("train", ("acc_tr", "acc_tf")),
        ("external", ("acc_r_external", "acc_f_external")),
    ):
        seen = tapped.splits[split]
        for name, side in zip(names, ("retain", "forget"), strict=True):
            keep = tapped.mask(split, side)
            expected = accuracy_score(seen.labels[keep], seen.scores.argmax(1)[keep])
            assert found[name].value == pytest.approx(expected)
            assert found[name].low < expected < found[name].high
            assert found[name].n == int(keep.sum())


def test_a_side_without_images_has_no_accuracy():
    tapped = make_tapped()
    seen = tapped.splits["external"]
    kept = seen.labels != 2
    part = make_seen(seen.features[kept], seen.labels[kept], seen.scores[kept])
    found = make_measurer().answers(replace(tapped, splits={**tapped.splits, "external": part}))
    assert "acc_r_external" in found
    assert "acc_f_external" not in found


def test_entropy_and_its_interval():
    tapped = make_tapped(noise=0.8)
    found = make_measurer().answers(tapped)
    scores = tapped.splits["test"].scores[tapped.labels("test") == 2].double().numpy()
    scores = np.delete(scores, 2, axis=1)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    entropies = -(p * np.log(p)).sum(1)
    assert found["entropy_f"].value == pytest.approx(entropies.mean())
    assert found["kl_uniform_f"].value == pytest.approx(math.log(4) - entropies.mean())
    half = 1.96 * entropies.std(ddof=1) / math.sqrt(len(entropies))
    assert found["entropy_f"].high - found["entropy_f"].value == pytest.approx(half, rel=1e-3)


def test_answers_are_counts_on_forgotten_test_images():
    tapped = make_tapped(noise=0.8)
    answers = tapped.answers()
    predicted = tapped.splits["test"].scores.argmax(1)[tapped.labels("test") == 2]
    assert answers == torch.bincount(predicted, minlength=CLASSES).tolist()


def test_all_feature_metrics_are_there():
    measurer = make_measurer()
    found = measurer.features(make_tapped(), "features")
    assert set(found) == {
        "rmia_tpr",
        "rmia_fpr",
        "rmia_balanced_accuracy",
        "rmia_auc",
        "probe_linear",
        "probe_linear_nearest",
        "probe_knn",
        "probe_knn_nearest",
        "norm_leak",
        "norm_leak_train",
    }
    assert not measurer.notes
    assert found["probe_linear"].value > 0.9
    assert found["rmia_balanced_accuracy"].covers(0.5)


def test_each_norm_leak_is_of_its_own_split():
    """Forgotten training images are the shortest and the longest by halves, forgotten test images all the longest."""
    splits = {}
    for name, norms in (("train", [1, 4, 2, 3]), ("test", [4, 4, 2, 3])):
        rows = torch.tensor(norms).repeat(10)[:, None] * torch.eye(3)[torch.arange(40) % 3]
        labels = torch.tensor([2, 2, 0, 1]).repeat(10)
        splits[name] = make_seen(rows, labels)
    found = make_measurer()._norms(replace(make_tapped(), splits=splits), "features")
    assert found["norm_leak_train"].value == 0.5
    assert found["norm_leak"].value == 1


def test_without_a_limit_the_attack_is_the_papers():
    tapped = make_tapped()
    found = make_measurer().features(tapped, "features")
    expected = rmia(
        tapped.rows("train"), tapped.labels("train"), tapped.rows("test"), tapped.labels("test"), classes=[2], seed=0
    )
    assert found["rmia_tpr"].value == expected.tpr.value
    assert found["rmia_auc"].value == expected.auc.value


def test_a_limit_per_side_does_not_make_the_class_a_sign_of_membership():
    tapped = make_tapped(train=2000, test=500)
    labels = tapped.labels("train")
    # As a limit per side leaves them: as many images of the forgotten class as of all others together.
    kept = torch.cat([(labels == c).nonzero().squeeze(1)[: 400 if c == 2 else 100] for c in range(CLASSES)])
    seen = tapped.splits["train"]
    part = make_seen(seen.features[kept], labels[kept], seen.scores[kept])
    limited = replace(tapped, splits={**tapped.splits, "train": part})
    naive = rmia(part.features, part.labels, tapped.rows("test"), tapped.labels("test"), classes=[2])
    found = make_measurer(train=2000).features(limited, "features")
    assert naive.tpr.value > 0.9
    assert found["rmia_tpr"].value < 0.8
    assert found["rmia_tpr"].n == 100


def test_collapse_is_of_the_retained_classes():
    tapped = make_tapped()
    found, everything = make_measurer().collapse(tapped)
    keep = tapped.mask("train", "retain")
    expected = neural_collapse(tapped.rows("train")[keep], tapped.labels("train")[keep], tapped.weight, tapped.bias)
    assert everything["num_classes"] == CLASSES - 1
    for name in ("nc1", "nc2_norm_spread", "nc2_angle_std", "nc3", "nc4"):
        assert found[f"{name}_train"].value == pytest.approx(getattr(expected, name))
        assert everything[name] == found[f"{name}_train"].value


@pytest.fixture(scope="module")
def fresh_collapse():
    """nc1 of forty training images of each retained class, from fresh samples."""
    return [make_measurer().collapse(make_tapped(seed=seed))[0]["nc1_train"] for seed in range(200)]


def test_the_error_of_nc1_is_that_of_fresh_samples(fresh_collapse):
    # Five groups leave four degrees of freedom.
    errors = [(found.high - found.low) / 2 / student.ppf(0.975, 4) for found in fresh_collapse]
    expected = np.std([found.value for found in fresh_collapse])
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected, rel=0.25)


def test_the_interval_of_nc1_holds_the_mean_of_fresh_samples(fresh_collapse):
    mean = np.mean([found.value for found in fresh_collapse])
    assert 0.91 <= np.mean([found.covers(mean) for found in fresh_collapse]) <= 0.99


def test_what_cannot_be_measured_is_noted_and_absent():
    # Two test images of the forgotten class are too few for five folds.
    measurer = make_measurer()
    tapped = make_tapped()
    labels = tapped.labels("test")
    kept = torch.cat([(labels == c).nonzero().squeeze(1)[: 2 if c == 2 else 20] for c in range(CLASSES)])
    seen = tapped.splits["test"]
    part = make_seen(seen.features[kept], labels[kept], seen.scores[kept])
    found = measurer.features(replace(tapped, splits={**tapped.splits, "test": part}), "features")
    assert not any(name.startswith("rmia") for name in found)
    assert "probe_linear" in found
    assert len(measurer.notes) == 1
    assert "membership of the unlearned model is absent" in measurer.notes[0]
    assert "at least 5 test images" in measurer.notes[0]


def test_constant_features_give_defined_values():
    tapped = make_tapped()
    flat = {name: make_seen(torch.ones_like(s.features), s.labels) for name, s in tapped.splits.items()}
    measurer = make_measurer()
    constant = replace(tapped, splits=flat)
    found = measurer.features(constant, "features")
    assert found["probe_linear"].value == pytest.approx(0.5)
    assert found["probe_knn"].value == pytest.approx(0.5)
    assert found["norm_leak"].value == 0.5
    readings, everything = measurer.collapse(constant)
    assert "nc1" not in readings
    assert any("nc1" in note and "undefined" in note for note in measurer.notes)
    assert all(math.isfinite(value) for value in everything.values())
    assert measurer.answers(constant)["kl_uniform_f"].value == 0


def test_aus_and_its_interval():
    original = {"acc_r": Reading(value=0.95)}
    model = {"acc_r": Reading(value=0.9, low=0.88, high=0.92, n=9), "acc_f": Reading(value=0.1, low=0.05, high=0.2)}
    reading = aus_reading(original, model)
    assert reading.value == aus(0.95, 0.9, 0.1)
    assert reading.low == pytest.approx(reading.value - np.hypot(0.02 / 1.1, 0.95 / 1.1 - 0.95 / 1.2))
    assert reading.high == pytest.approx(reading.value + np.hypot(0.02 / 1.1, 0.95 / 1.05 - 0.95 / 1.1))


def test_the_metric_of_a_package_is_computed_and_an_error_in_it_is_noted(monkeypatch):
    def largest(features, scores, labels, forgotten):
        assert len(features) == len(scores) == len(labels)
        return scores.max()

    described = {"family": "accuracy", "meaning": "A.", "formula": "A", "better": "higher"}
    metrics = [
        Metric(name="largest", title="Largest", compute=largest, **described),
        Metric(name="broken", title="Broken", compute=lambda *_: 1 / 0, **described),
        Metric(name="infinite", title="Infinite", compute=lambda *_: math.inf, **described),
    ]
    monkeypatch.setattr("pour.auditing.measure.list_metrics", lambda: metrics)
    tapped, measurer = make_tapped(), make_measurer()
    found = measurer.answers(tapped)
    assert found["largest"].value == pytest.approx(tapped.splits["test"].scores.max().item())
    assert not {"broken", "infinite"} & found.keys()
    notes = [note for note in measurer.notes if "is absent" in note]
    assert notes[0] == f"broken of the {tapped.role} model is absent: ZeroDivisionError: division by zero."
    assert notes[1] == f"infinite of the {tapped.role} model is absent: its value is inf."
