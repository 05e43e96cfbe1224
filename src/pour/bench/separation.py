"""Class separation against loss of retention: does a class that stands apart cost less to forget?"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour._io import write_text
from pour._progress import ProgressBar
from pour.bench.attempt import slower
from pour.data.draws import stratified_rows
from pour.data.splits import Splits
from pour.errors import DivergenceError, UsageError
from pour.geometry.discrepancy import energy_distance, median_bandwidth, mmd
from pour.models.tap import extract_features
from pour.training.run import Run
from pour.training.tasks.classify import evaluation_loader
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from pour.data.dataset import ImageDataset
    from pour.training.run import Precision

__all__ = ["ClassSeparation", "SeparationStudy", "separation_study"]

# Pairs go with the square of the number of images.
_IMAGES = 2000


@dataclass(frozen=True, kw_only=True)
class ClassSeparation:
    """One class: how far it is from the others in the original, and what forgetting it cost."""

    label: int
    name: str
    mmd: float
    """K(P_u, P_n) of the original's test features by true class; with collapsed features nearly the same for all."""
    energy: float
    """The same with the square root of the energy distance, which does not level off."""
    nearest: str
    """The retained class that is nearest by energy distance."""
    nearest_energy: float
    acc_r_before: float
    """The original's test accuracy on the other classes."""
    methods: Mapping[str, Mapping[str, float] | None]
    """By method: ``acc_r``, ``acc_f`` and ``acc_r_change`` on test images, and what its learning rates had to be
    multiplied with (``rate_factor``) so that it did not diverge; None where it did at all of them."""


@dataclass(frozen=True, kw_only=True)
class SeparationStudy:
    """All classes of a dataset, each forgotten alone."""

    dataset: str
    seed: int
    classes: tuple[ClassSeparation, ...]

    def correlation(self, method: str) -> float | None:
        """Spearman's rank correlation of the separation (energy) and the change of retained accuracy, over classes."""
        pairs = [
            (entry.energy, found["acc_r_change"])
            for entry in self.classes
            if (found := entry.methods.get(method)) is not None
        ]
        ranks = [_ranks(np.array(values)) for values in zip(*pairs, strict=True)]
        if len(pairs) < 3 or any(rank.std() == 0 for rank in ranks):
            return None
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON, with the correlation of every method."""
        methods = dict.fromkeys(method for entry in self.classes for method in entry.methods)
        return {**asdict(self), "correlation": {method: self.correlation(method) for method in methods}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, atomically."""
        write_text(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def separation_study(
    original: nn.Module,
    dataset: ImageDataset,
    methods: Mapping[str, Mapping[str, Any]],
    *,
    classes: Sequence[int] | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> SeparationStudy:
    """Forget every class on its own and put what that cost beside how far the class stood from the others.

    No retrained model is needed: the separation is the original's, as in the paper's appendix.

    Args:
        original: the model that knows all classes.
        dataset: its data.
        methods: options by the name of the method.
        classes: only these, by index.
        seed: of every run.
        device: where to compute.
        precision: fp32 or bf16.
        progress: show a progress bar.
    """
    wanted = range(dataset.num_classes) if classes is None else classes
    if not methods or not wanted:
        raise UsageError("A study of separation needs at least one method and one class.")
    run = Run(seed=seed, device=device, precision=precision, progress=False)
    test = dataset.splits["test"]
    before = _answers(original, dataset, run)
    chosen = torch.as_tensor(stratified_rows(test.labels, _IMAGES, seed), device=before.labels.device)
    features, labels = before.features[chosen].flatten(1).double(), before.labels[chosen]
    # One kernel for all classes, or their distances would not compare.
    bandwidth = median_bandwidth(features)
    found: list[ClassSeparation] = []
    with ProgressBar(len(wanted) * len(methods), "separation", enabled=progress) as bar:
        for label in wanted:
            gone = features[labels == label]
            others = {
                other: float(energy_distance(gone, features[labels == other]))
                for other in range(dataset.num_classes)
                if other != label
            }
            nearest = min(others, key=others.__getitem__)
            acc_r = _accuracy(before.right, before.labels != label)
            costs: dict[str, dict[str, float] | None] = {}
            for method, options in methods.items():
                costs[method] = _cost_of(original, dataset, label, method, options, run, acc_r)
                bar.update(len(found) * len(methods) + len(costs), note=f"{dataset.classes[label]}, {method}")
            rest = features[labels != label]
            found.append(
                ClassSeparation(
                    label=label,
                    name=dataset.classes[label],
                    mmd=float(mmd(gone, rest, bandwidth=bandwidth)),
                    energy=float(energy_distance(gone, rest)),
                    nearest=dataset.classes[nearest],
                    nearest_energy=others[nearest],
                    acc_r_before=acc_r,
                    methods=costs,
                )
            )
    return SeparationStudy(dataset=dataset.name, seed=seed, classes=tuple(found))


@dataclass(frozen=True)
class _Answers:
    features: Tensor
    right: Tensor
    labels: Tensor


def _answers(model: nn.Module, dataset: ImageDataset, run: Run) -> _Answers:
    seen = extract_features(model, evaluation_loader(dataset.splits["test"], run), device=run.torch_device)
    return _Answers(seen.features, seen.scores.argmax(dim=1) == seen.labels, seen.labels)


def _cost_of(
    original: nn.Module,
    dataset: ImageDataset,
    label: int,
    method: str,
    options: Mapping[str, Any],
    run: Run,
    acc_r_before: float,
) -> dict[str, float] | None:
    """What forgetting a class did, at the first learning rate at which the method does not diverge."""
    request = ForgetRequest.of(Splits.of(dataset, [label]))
    for factor, chosen in slower(method, options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                after = _answers(carry_out(original, request, make_method(method, **chosen), run), dataset, run)
            except DivergenceError:
                continue
        acc_r, acc_f = (_accuracy(after.right, side) for side in (after.labels != label, after.labels == label))
        return {"acc_r": acc_r, "acc_f": acc_f, "acc_r_change": acc_r - acc_r_before, "rate_factor": factor}
    return None


def _accuracy(right: Tensor, where: Tensor) -> float:
    return right[where].double().mean().item()


def _ranks(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count) - 1
    shared: np.ndarray[Any, np.dtype[np.float64]] = (last - (count - 1) / 2)[place]
    return shared
