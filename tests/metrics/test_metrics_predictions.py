from math import log

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import confusion_matrix as sklearn_confusion

from pour.errors import UsageError
from pour.metrics import RetainedUniformity, confusion_matrix, retained_uniformity


def test_entropy_and_divergence_agree_with_scipy():
    scores = 3 * torch.randn(70, 6, generator=torch.Generator().manual_seed(0))
    retained = np.exp(scores.double().numpy()[:, [0, 2, 3, 5]])
    retained /= retained.sum(1, keepdims=True)
    expected = {
        "entropy": entropy(retained, axis=1).mean(),
        "kl_to_uniform": entropy(retained, np.full(4, 0.25)[None], axis=1).mean(),
    }
    metric = RetainedUniformity(classes=[4, 1])
    for batch in scores.split(32):
        metric.update(batch)
    for result in (retained_uniformity(scores, classes=[1, 4]), metric.compute()):
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
