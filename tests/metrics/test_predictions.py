from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from sklearn.metrics import confusion_matrix as sklearn_confusion

from pour.errors import UsageError
from pour.metrics import answer_distance, confusion_matrix, retained_uniformity


def test_entropy_and_divergence_agree_with_scipy():
    scores = 3 * torch.randn(70, 6, generator=torch.Generator().manual_seed(0))
    retained = np.exp(scores.double().numpy()[:, [0, 2, 3, 5]])
    retained /= retained.sum(1, keepdims=True)
    expected = {
        "entropy": entropy(retained, axis=1).mean(),
        "kl_to_uniform": entropy(retained, np.full(4, 0.25)[None], axis=1).mean(),
    }
    for result in (retained_uniformity(scores, classes=[1, 4]), retained_uniformity(scores, classes=[4, 1])):
        assert {k: v.item() for k, v in result.items()} == pytest.approx(expected, abs=1e-12)


def test_masked_scores_and_certain_predictions():
    scores = torch.tensor([[float("-inf"), 5.0, 5.0], [1e9, 5.0, 5.0]])
    assert retained_uniformity(scores, classes=0)["entropy"].item() == pytest.approx(log(2))
    certain = retained_uniformity(torch.tensor([[0.0, 1e4, float("-inf")]]), classes=0)
    assert certain["entropy"].item() == 0
    assert certain["kl_to_uniform"].item() == pytest.approx(log(2))
    single = retained_uniformity(torch.randn(3, 2), classes=0)
    assert single == {"entropy": 0, "kl_to_uniform": 0}


def test_confusion_matrix_agrees_with_scikit_learn():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(200, 5, generator=g)
    labels = torch.randint(0, 4, (200,), generator=g)
    expected = sklearn_confusion(labels.numpy(), scores.argmax(1).numpy(), labels=range(5))
    assert np.array_equal(confusion_matrix(scores, labels, 5).numpy(), expected)
    assert confusion_matrix(labels[:0], labels[:0], 3).sum() == 0


def test_wrong_use_says_what_is_wrong():
    with pytest.raises(UsageError, match="some, and not all, of the 2 classes"):
        retained_uniformity(torch.rand(3, 2), classes=[0, 1])
    with pytest.raises(UsageError, match="of the 2 classes"):
        retained_uniformity(torch.rand(3, 2), classes=[2])
    with pytest.raises(UsageError, match="NaN or infinite"):
        retained_uniformity(torch.full((3, 3), float("nan")), classes=[0])
    with pytest.raises(UsageError, match="NaN or infinite"):
        retained_uniformity(torch.full((3, 3), float("-inf")), classes=[0])
    with pytest.raises(UsageError, match="no forgotten images"):
        retained_uniformity(torch.rand(0, 3), classes=[0])
    with pytest.raises(UsageError, match=r"shape \(n, C\)"):
        retained_uniformity(torch.rand(3), classes=[0])
    with pytest.raises(UsageError, match="labels run from 0 to 3, outside the 3 classes"):
        confusion_matrix(torch.tensor([0, 1]), torch.tensor([0, 3]), 3)


answers = st.integers(2, 6).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 50), min_size=n, max_size=n).filter(any) for _ in range(3)))
)


@given(answers)
def test_the_distance_of_answers_is_a_metric_of_shares(counts):
    one, two = (np.array(side) / sum(side) for side in counts[:2])
    apart = answer_distance(counts[0], counts[1])
    assert apart.value == pytest.approx(np.abs(one - two).sum() / 2, abs=1e-12)
    assert 0 <= apart.low <= apart.value <= apart.high <= 1
    assert answer_distance(counts[1], counts[0]).value == pytest.approx(apart.value, abs=1e-12)
    assert answer_distance(counts[0], [3 * count for count in counts[0]]).value == 0
    rest = answer_distance(counts[0], counts[2]).value + answer_distance(counts[2], counts[1]).value
    assert apart.value <= rest + 1e-12
    # Pinsker's kind: the Jensen-Shannon divergence, in bits, is at most the total variation.
    assert jensenshannon(one, two, base=2) ** 2 <= apart.value + 1e-9
    assert (apart.value == pytest.approx(1)) == (not (one * two).any())


def test_the_interval_of_the_distance_covers_it():
    """Of two models whose answers are drawn anew; 95 % is promised, and the largest of several is biased upwards."""
    rng = np.random.default_rng(0)
    p, q = np.array([0.0, 0.6, 0.3, 0.1]), np.array([0.0, 0.2, 0.3, 0.5])
    drawn = [answer_distance(*(rng.multinomial(400, side).tolist() for side in (p, q))) for _ in range(400)]
    assert np.mean([found.covers(0.4) for found in drawn]) > 0.92
    assert np.mean([found.high - found.low for found in drawn]) < 0.15


@pytest.mark.parametrize(("images", "classes"), [(36, 9), (1000, 9), (100, 99), (1000, 99)])
def test_the_interval_of_models_that_answer_alike_reaches_zero(images, classes):
    """Which classes are named more often is chance then, and the distance is never 0."""
    rng = np.random.default_rng(0)
    drawn = [
        answer_distance(*(rng.multinomial(images, np.full(classes, 1 / classes)).tolist() for _ in range(2)))
        for _ in range(300)
    ]
    assert np.mean([found.value for found in drawn]) > 0.04
    assert np.mean([found.low == 0 for found in drawn]) > 0.95


@pytest.mark.parametrize(
    ("counts", "reference", "words"),
    [
        ([1, 2], [1, 2, 3], "over 2 classes cannot be compared with answers over 3"),
        ([0, 0], [1, 2], "needs at least one answer"),
        ([1, 2], [0, 0], "needs at least one answer"),
        ([-1, 3], [1, 2], "negative"),
        ([], [], "needs at least one answer"),
    ],
)
def test_answers_that_cannot_be_compared(counts, reference, words):
    with pytest.raises(UsageError, match=words):
        answer_distance(counts, reference)
