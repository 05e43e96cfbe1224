"""Find the cause of a low accuracy: repeat the measurement with changed inputs or with other labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pour._words import in_words
from pour.inspection.roles import words_for
from pour.models.networks.normalize import Normalize
from pour.models.tap import to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pour.inspection.answers import Answers, Sample
    from pour.inspection.findings import Cause

__all__ = ["Change", "Renaming", "better_inputs", "renamed_labels"]

_NORMALISATIONS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mean and deviation 0.5": ((0.5,), (0.5,)),
}
# Largest value of images in [0, 1]: rounding and interpolation can exceed 1.
_UNIT = 1.05
# Floats above this value are pixels from 0 to 255. Normalised pixels stay below it.
_PIXELS = 16.0
# Least z-scores of a gain in accuracy: above the first it is not by chance, above the second it is tested further.
_SURE = 4.0
_PROMISING = 1.0
# Number of samples on which each change is tested before it is tested on all samples.
_SCREENED = 64
_LEAST_GAIN = 0.05
# Larger gain for samples of a single class, on which a constant answer could be right by chance.
_LEAST_GAIN_ALONE = 0.3
# Least agreement (kappa) of a network that was trained long enough.
_GOOD_AGREEMENT = 0.5


@dataclass(frozen=True)
class Change:
    """Change of the inputs that improves the accuracy."""

    cause: Cause
    problem: str
    """The likely cause and what to check."""
    change: Callable[[Tensor], Tensor]


def _changes(images: Tensor) -> Iterator[Change]:
    """Yield the changes that suit the range of the inputs, which are floats (n, c, h, w)."""
    channels, low, high = images.shape[1], float(images.min()), float(images.max())
    normalisations = {name: _of_channels(*values, images) for name, values in _NORMALISATIONS.items()}
    dims = (0, 2, 3)
    scale = 255.0 if high > _PIXELS and low >= 0 else 1.0
    images_in_unit = images.float() / scale
    normalisations["their own mean and deviation"] = (
        images_in_unit.mean(dim=dims).view(1, -1, 1, 1),
        images_in_unit.std(dim=dims).clamp(min=1e-3).view(1, -1, 1, 1),
    )
    if scale > 1:
        problem = "the images have values from 0 to 255, but the network expects other values; divide them by 255"
        yield Change("values", problem, partial(_normalised, mean=0.0, std=255.0))
        for name, (mean, std) in normalisations.items():
            further = f"{problem}, and normalise them ({name})"
            yield Change("values", further, partial(_normalised, mean=255 * mean, std=255 * std))
    elif low >= 0 and high <= _UNIT:
        problem = "the network expects values from 0 to 255, but these go from 0 to 1; multiply by 255 in the network"
        yield Change("values", problem, partial(torch.mul, other=255.0))
        for name, (mean, std) in normalisations.items():
            problem = (
                f"the network expects normalised images ({name}), but these are not; normalise them, or wrap the "
                "network in pour.models.NormalizedModel"
            )
            yield Change("normalisation", problem, partial(_normalised, mean=mean, std=std))
    elif low < 0:
        del normalisations["their own mean and deviation"]
        for name, (mean, std) in normalisations.items():
            problem = (
                f"the images are normalised twice ({name}), in the data and in the network; remove one normalisation"
            )
            yield Change("normalisation", problem, partial(_normalised, mean=-mean / std, std=1 / std))
    if channels == 3:
        problem = "the channels are in another order than the network expects (BGR or RGB); reverse them"
        yield Change("channels", problem, partial(torch.flip, dims=(1,)))


def _of_channels(mean: Sequence[float], std: Sequence[float], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation for the channels of `images`; grey images get the mean over the channels."""
    values = [torch.tensor(part, device=images.device) for part in (mean, std)]
    if images.shape[1] != 3:
        values = [part.mean().view(1) for part in values]
    return values[0].view(1, -1, 1, 1), values[1].view(1, -1, 1, 1)


def _normalised(images: Tensor, *, mean: Tensor | float, std: Tensor | float) -> Tensor:
    return (images - mean) / std


def never_trained(model: nn.Module) -> bool:
    """Return whether the network has BatchNorm layers whose running statistics are those of a new layer.

    Examples:
        >>> never_trained(nn.BatchNorm2d(3)), never_trained(nn.Linear(3, 3))
        (True, False)
    """
    layers = [layer for layer in unwrap(model).modules() if isinstance(layer, _BatchNorm)]
    means, variances = ([getattr(layer, f"running_{name}") for layer in layers] for name in ("mean", "var"))
    if not layers or any(part is None for part in (*means, *variances)):
        return False
    return not any(bool(part.any()) for part in means) and all(bool((part == 1).all()) for part in variances)


def normalised_twice(model: nn.Module, sample: Sample) -> str | None:
    """Return a sentence if the inputs are normalised and the network normalises them again, otherwise None."""
    layer = next((layer for layer in unwrap(model).modules() if isinstance(layer, Normalize)), None)
    if layer is None or not sample.kept or not sample.kept[0][0].is_floating_point():
        return None
    low, high = float(sample.kept[0][0].min()), float(sample.kept[0][0].max())
    if low >= 1 - _UNIT:
        return None
    return (
        f"the network normalises images in [0, 1] itself, but these go from {low:.3g} to {high:.3g}; remove the "
        "normalisation of the data"
    )


def better_inputs(
    model: nn.Module, sample: Sample, before: Answers, *, low: bool, expected: float | None
) -> tuple[Change, Answers] | None:
    """Return the change of the inputs with the best answers, if they are certainly better than `before`.

    Each change is tested on the first kept samples, and the promising changes are tested on all kept samples.

    Args:
        model: Model that gave the answers `before`.
        sample: Samples of these answers.
        before: Answers to all of the samples.
        low: The accuracy is as low as chance or below the recorded accuracy. Otherwise only a large gain counts.
        expected: Recorded accuracy on the classes of the samples, or None.
    """
    inputs = [images for images, _ in sample.kept]
    if not inputs or inputs[0].ndim != 4:
        return None
    best: tuple[float, Change, Answers] | None = None
    for change in _changes(to_unit(inputs[0].to(sample.device)).float()):
        for number, certain in ((_SCREENED, False), (sum(map(len, inputs)), True)):
            answers = sample.again(model, change.change, number)
            first_answers = before.where(before.samples < number)
            if answers is None or len(answers) != len(first_answers):
                break
            gain = _gain(first_answers, answers, certain=certain)
            if gain < _least_gain(change, answers, low=low, expected=expected) - (0 if certain else _LEAST_GAIN):
                break
            if len(answers.shown) < 2 and expected is not None:
                # An accuracy above the recorded one is a constant answer.
                gain = -abs(answers.accuracy().value - expected)
            if certain and (best is None or gain > best[0]):
                best = (gain, change, answers)
    return None if best is None else (best[1], best[2])


def _least_gain(change: Change, after: Answers, *, low: bool, expected: float | None) -> float:
    """Return the smallest gain of a change that identifies the cause."""
    if len(after.shown) < 2:
        # A constant answer would be right on the only class, so the accuracy must return to the recorded one.
        is_recorded = expected is not None and after.accuracy().value >= expected - 2 * _LEAST_GAIN
        return _LEAST_GAIN if is_recorded else _LEAST_GAIN_ALONE
    if low or change.cause == "channels":
        return _LEAST_GAIN
    # More contrast can improve a network that was trained too briefly.
    return 2 * _LEAST_GAIN if after.agreement().value >= _GOOD_AGREEMENT else 1.0


def _gain(before: Answers, after: Answers, *, certain: bool = True) -> float:
    """Return the gain of a change in agreement, or in accuracy on a single class; 0 if it may be by chance."""
    difference = after.right() - before.right()
    spread = sqrt(float((difference**2).sum()))
    if not spread or difference.sum() / spread < (_SURE if certain else _PROMISING):
        return 0.0
    if len(before.shown) < 2:
        return float(difference.mean())
    return after.agreement().value - before.agreement().value


@dataclass(frozen=True)
class Renaming:
    """Other labels under which the answers are right."""

    label_of: dict[int, int]
    """Class of the model for each class of the data."""
    accuracy: float
    """Accuracy under these labels on the samples that did not decide them."""

    def sentence(self, names: Sequence[str]) -> str:
        """Return up to three of the renamed classes, as part of a sentence."""
        moved = [(label, other) for label, other in self.label_of.items() if label != other][:3]
        pairs = [
            f"{words_for([one], names)} of the data is {words_for([other], names)} to the model" for one, other in moved
        ]
        return in_words(pairs)


def renamed_labels(answers: Answers, *, low: bool) -> Renaming | None:
    """Return labels that agree better with the answers, or None. Half of the samples confirm the other half.

    Args:
        answers: Answers to samples of at least two classes.
        low: The answers are not those of a trained model, or below the record. Otherwise the answers must agree well.
    """
    from scipy.optimize import linear_sum_assignment

    is_even = np.searchsorted(np.unique(answers.samples), answers.samples) % 2 == 0
    first, second = answers.where(is_even), answers.where(~is_even)
    rows, columns = linear_sum_assignment(-first.table())
    label_of = {first.shown[row]: int(column) for row, column in zip(rows, columns, strict=True)}
    second = second.of(list(label_of))
    if len(second.shown) < 2:
        return None
    truth = np.array([label_of[int(label)] for label in second.truth], np.int64)
    renamed = replace(second, truth=truth)
    is_good = low or renamed.agreement().value >= _GOOD_AGREEMENT
    return Renaming(label_of, renamed.accuracy().value) if is_good and _gain(second, renamed) >= _LEAST_GAIN else None
