import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from pour.errors import UsageError
from pour.metrics import rmia
from pour.metrics._sampling import stratified_folds, stratified_sample


def splits(n_train=600, n_test=200, d=6, shift=0.0, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    train_labels, test_labels = (torch.arange(n) % classes for n in (n_train, n_test))
    means = 3 * torch.randn(classes, d, generator=g)
    train = means[train_labels] + torch.randn(n_train, d, generator=g) + shift
    test = means[test_labels] + torch.randn(n_test, d, generator=g)
    return train, train_labels, test, test_labels


def test_unrelated_membership_is_chance_and_a_shift_is_found():
    blind = rmia(*splits(8000, 4000), classes=[1])
    assert blind.balanced_accuracy.covers(0.5)
    assert blind.auc.covers(0.5)
    assert (blind.members, blind.others) == (1000, 1000)
    sharp = rmia(*splits(shift=8.0), classes=[1])
    assert sharp.tpr.value == 1
    assert sharp.fpr.value == 0
    assert sharp.balanced_accuracy.value == sharp.auc.value == 1
    assert sharp.tpr.low < 1


@pytest.mark.parametrize("C", [1.0, 1e-3])
def test_agrees_with_scikit_learn_fold_by_fold(C):
    train, train_labels, test, test_labels = splits(shift=0.4)
    result = rmia(train, train_labels, test, test_labels, classes=[2], seed=7, C=C)

    generator = torch.Generator().manual_seed(7)
    keep = stratified_sample(train_labels, 200, generator)
    labels = torch.cat([train_labels[keep], test_labels])
    member = torch.arange(400) < 200
    strata = labels + 4 * ((labels != 2).long() + 2 * member.long())
    fold = stratified_folds(strata, 5, generator).numpy()
    x = StandardScaler().fit_transform(torch.cat([train[keep], test]).double().numpy())
    member, attacked = member.numpy(), (labels == 2).numpy()
    called, pairs, right = np.zeros(400, dtype=bool), 0, 0.0
    for k in range(5):
        attack = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000, C=C)
        attack.fit(x[fold != k], member[fold != k])
        held = (fold == k) & attacked
        called[held] = attack.predict(x[held])
        count = (held & member).sum() * (held & ~member).sum()
        right += count * roc_auc_score(member[held], attack.decision_function(x[held]))
        pairs += count
    assert result.tpr.value == pytest.approx(called[attacked & member].mean())
    assert result.fpr.value == pytest.approx(called[attacked & ~member].mean())
    assert result.balanced_accuracy.value == pytest.approx((1 + result.tpr.value - result.fpr.value) / 2)
    assert result.auc.value == pytest.approx(right / pairs, abs=1e-9)


def test_same_seed_same_result_and_plain_numbers():
    data = splits(shift=0.2)
    first, second = rmia(*data, classes=1, seed=3), rmia(*data, classes=1, seed=3)
    assert first == second
    assert first != rmia(*data, classes=1, seed=4)
    assert isinstance(dataclasses.asdict(first)["tpr"]["low"], float)


def test_the_sample_is_stratified_to_within_one():
    labels = torch.tensor([0] * 50 + [1] * 30 + [3] * 21)
    chosen = stratified_sample(labels, 40, torch.Generator().manual_seed(0))
    assert len(chosen) == len(chosen.unique()) == 40
    counts = labels[chosen].bincount(minlength=4)
    assert (counts - torch.tensor([50.0, 30.0, 0.0, 21.0]) * 40 / 101).abs().max() < 1
    assert torch.equal(stratified_sample(labels, 101, torch.Generator()), torch.arange(101))


def test_folds_are_stratified_to_within_one():
    strata = torch.randint(0, 6, (203,), generator=torch.Generator().manual_seed(0))
    fold = stratified_folds(strata, 5, torch.Generator().manual_seed(0))
    counts = torch.stack([strata[fold == k].bincount(minlength=6) for k in range(5)])
    assert (counts.max(0).values - counts.min(0).values).max() <= 1
    assert counts.sum(1).max() - counts.sum(1).min() <= 1


def test_several_small_forgotten_classes_are_dealt_to_every_fold():
    train, train_labels, test, test_labels = splits(60, 60, classes=20)
    result = rmia(train, train_labels, test, test_labels, classes=[3, 17])
    assert (result.members, result.others) == (6, 6)


@pytest.mark.parametrize("level", [0.0, 0.1])
def test_constant_features_are_chance(level):
    _, train_labels, _, test_labels = splits()
    result = rmia(torch.full((600, 3), level), train_labels, torch.full((200, 3), level), test_labels, classes=[0])
    assert result.auc.value == 0.5
    assert result.balanced_accuracy.value == 0.5


def test_wrong_use_says_what_is_wrong():
    train, train_labels, test, test_labels = splits()
    with pytest.raises(UsageError, match=r"at least 5 training images of the forgotten classes \[9\].*got 0"):
        rmia(train, train_labels, test, test_labels, classes=[9])
    few = test_labels.clone()
    few[few == 1] = 2
    few[:3] = 1
    with pytest.raises(UsageError, match=r"at least 5 test images.*got 3"):
        rmia(train, train_labels, test, few, classes=[1])
    with pytest.raises(UsageError, match="same model"):
        rmia(train[:, :4], train_labels, test, test_labels, classes=[1])
    with pytest.raises(UsageError, match="train_labels has 599 entries for 600"):
        rmia(train, train_labels[1:], test, test_labels, classes=[1])
    with pytest.raises(UsageError, match="test_features contains NaN"):
        rmia(train, train_labels, test * float("nan"), test_labels, classes=[1])
    with pytest.raises(UsageError, match="at least 2 folds"):
        rmia(train, train_labels, test, test_labels, classes=[1], folds=1)
    with pytest.raises(UsageError, match="test_labels must be class indices from 0 up"):
        rmia(train, train_labels, test, test_labels - 1, classes=[1])
