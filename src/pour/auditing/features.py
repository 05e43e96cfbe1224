"""Store the output of the audited models: feature vectors and scores, the inputs of all metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pour.models.tap import Features

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SIDES", "Role", "Seen", "Side", "Tapped", "View"]

Role = Literal["original", "unlearned", "retrained", "retrained_second"]
"""Role of a model in an audit."""
View = Literal["features", "raw"]
"""`features`: input of the head. `raw`: output of the encoder, before a projector."""
Side = Literal["forget", "retain"]
"""`forget`: samples of the forgotten classes. `retain`: all other samples."""
SIDES: dict[Side, str] = {"retain": "r", "forget": "f"}
"""Letters of the sides in the names of metrics."""

_BY_ROW = ("features", "labels", "samples", "scores", "counts")


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen(Features):
    """Output of one model on one split, in float32 on the device of the audit.

    `features` and `raw` have one row per feature vector, (m, d), and `labels` has its class. `scores` (n, C) is
    empty if a sample can have several labels.
    """

    samples: Tensor
    """Index of the sample of each feature vector, (m,)."""
    counts: Tensor
    """The task's counts of each sample, (n, ...); empty if every sample has one label."""
    confusion: Tensor
    """Number of answers by true and by predicted class, (C, C)."""

    @classmethod
    def joined(cls, parts: Sequence[Seen]) -> Seen:
        """Return the output on all samples, joined from the outputs on the batches."""
        rows = {name: torch.cat([getattr(part, name) for part in parts]) for name in _BY_ROW}
        same = all(part.raw is part.features for part in parts)
        raw = rows["features"] if same else torch.cat([part.raw for part in parts])
        return cls(**rows, raw=raw, confusion=torch.stack([part.confusion for part in parts]).sum(dim=0))

    @property
    def num_samples(self) -> int:
        """Number of samples of the split."""
        return max(len(self.scores), len(self.counts))

    def in_order(self, order: Tensor) -> Seen:
        """Return the same output with the samples in another order."""
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        rows = place[self.samples].argsort(stable=True)
        features = self.features[rows]
        raw = features if self.raw is self.features else self.raw[rows]
        by_sample = {"scores": self.scores, "counts": self.counts}
        ordered = {name: values[order] for name, values in by_sample.items() if len(values)}
        samples = place[self.samples][rows]
        return replace(self, features=features, raw=raw, labels=self.labels[rows], samples=samples, **ordered)


@dataclass(frozen=True, eq=False)
class Tapped:
    """Output of one model on every split."""

    role: Role
    digest: str
    """SHA-256 of the state dict."""
    forgotten: tuple[int, ...]
    splits: Mapping[str, Seen]
    """Output by split: `"test"`, `"train"` and further test sets."""
    weight: Tensor
    """Weight of the head, (C, d), projected like the features."""
    bias: Tensor | None
    """Bias of the head, (C,)."""
    projected: bool
    """Whether the model has a projector before its head, so that the two views differ."""
    source: str | None = None
    """Names of the cache files with the features; None without a cache."""

    def mask(self, split: str, side: Side) -> Tensor:
        """Return a mask of the feature vectors of a split that belong to a side, (m,)."""
        forgotten = _are_of(self.splits[split].labels, self.forgotten)
        return forgotten if side == "forget" else ~forgotten

    def rows(self, split: str, view: View = "features") -> Tensor:
        """Return the feature vectors of a split, (m, d)."""
        rows: Tensor = getattr(self.splits[split], view)
        return rows

    def side(self, split: str, side: Side, view: View = "features") -> Tensor:
        """Return the feature vectors of one side of a split."""
        return self.rows(split, view)[self.mask(split, side)]

    def side_counts(self, split: str) -> tuple[int, int]:
        """Return the number of samples with a feature vector of a forgotten class, and of the others."""
        forgotten = int(torch.bincount(self.groups(split, "forget")).count_nonzero())
        return forgotten, self.splits[split].num_samples - forgotten

    def groups(self, split: str, side: Side) -> Tensor:
        """Return the sample of each feature vector of one side of a split."""
        return self.splits[split].samples[self.mask(split, side)]

    def labels(self, split: str) -> Tensor:
        """Return the class of each feature vector of a split, (m,)."""
        return self.splits[split].labels

    def answers(self, split: str = "test") -> list[int]:
        """Return how often each class is the answer on the forgotten classes of a split."""
        counts: list[int] = self.splits[split].confusion[list(self.forgotten)].sum(dim=0).tolist()
        return counts

    def predicts_forgotten(self, split: str) -> Tensor:
        """Return a mask of the samples whose answer is a forgotten class, (n,)."""
        return _are_of(self.splits[split].scores.argmax(dim=1), self.forgotten)


def _are_of(labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    return torch.isin(labels, torch.tensor(classes, device=labels.device))
