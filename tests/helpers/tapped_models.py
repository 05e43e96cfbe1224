"""Features around a simplex, as an audit taps them from a model."""

import torch

from pour.auditing.features import Seen, Tapped
from pour.geometry import simplex_etf
from pour.metrics.predictions import confusion_matrix

CLASSES = 5


def make_seen(rows, labels, scores=None):
    """Return features and scores of one model on one split."""
    scores = torch.zeros(len(rows), CLASSES) if scores is None else scores
    return Seen(
        features=rows,
        raw=rows,
        labels=labels,
        samples=torch.arange(len(rows)),
        scores=scores,
        counts=torch.empty(0),
        confusion=confusion_matrix(scores, labels, scores.shape[1]),
    )


def make_tapped(*, train=200, test=100, noise=0.3, forgotten=(2,), seed=0, role="unlearned", dim=8):
    """Features around a simplex, and the scores of a head along it."""
    g = torch.Generator().manual_seed(seed)
    means = simplex_etf(CLASSES, dim).float()
    splits = {}
    for name, count in (("test", test), ("train", train), ("external", test)):
        labels = torch.arange(count) % CLASSES
        rows = means[labels] + noise * torch.randn(count, dim, generator=g)
        splits[name] = make_seen(rows, labels, 4 * rows @ means.T)
    return Tapped(
        role=role,
        digest="0",
        forgotten=forgotten,
        splits=splits,
        weight=4 * means,
        bias=torch.zeros(CLASSES),
        projected=False,
    )
