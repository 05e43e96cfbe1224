"""Describe the result of `pour.inspect` as a record and as text: facts on a model, measurements and advice."""

from __future__ import annotations

import shutil
import textwrap
from typing import Literal

from pour._records import AnyFloat, encode, record
from pour._words import in_words, percent

__all__ = ["Advice", "Collapse", "Inspection", "Layer", "Rate", "Trial", "Word"]

Word = Literal["nearly", "partly", "no"]
"""Degree to which a network has a property of collapsed networks."""
_LABEL = 12
_WIDEST = 100
_SHOWN = 8


@record()
class Layer:
    """A linear layer that is the head, or could be the head."""

    name: str
    """Dotted name, empty for the model itself."""
    kind: str
    """Class of the layer."""
    num_classes: int
    num_features: int
    found_by: str = ""
    """Sentence on how a head was found; empty for a candidate."""
    removed: int = 0
    """Number of directions that a projector in front of the layer removes."""

    def __str__(self) -> str:
        """Return name, kind and sizes."""
        projected = f" behind a projector that removes {_count(self.removed, 'direction')}" if self.removed else ""
        name = self.name or "the model itself"
        return f"{name} ({self.kind}, {self.num_features} features, {self.num_classes} classes){projected}"


@record()
class Rate:
    """Accuracy on some samples, with its 95 % interval."""

    samples: str
    """Split and classes, such as "test, '3'"."""
    count: int
    """Number of samples."""
    value: AnyFloat
    low: float
    high: float

    def __str__(self) -> str:
        """Return accuracy, interval and number of samples in words."""
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)}) of {self.count:,}"


@record()
class Collapse:
    """One measure of Neural Collapse, and its value for random features and a random head of the same sizes."""

    name: str
    """NC1, NC2 (lengths), NC2 (angles), NC3 or NC4."""
    property: str
    """Property of a collapsed network that the measure describes."""
    value: AnyFloat
    random: AnyFloat
    holds: Word


@record()
class Trial:
    """Result of the projection along one direction of POUR-P, computed on features of the data.

    The score of the forgotten class is kept, so that the effect on the features is visible.
    """

    direction: str
    """Name of the direction."""
    left: float
    """Share of the samples of the forgotten classes that are still recognised."""
    change: float
    """Change of the accuracy on the other classes, from -1 to 1."""


@record()
class Advice:
    """A method for one situation."""

    situation: str
    """Data that may be used."""
    method: str
    """Name of the method."""
    direction: str | None
    """Direction that the method removes, if it is known."""
    expect: str
    """Sentences on the measured results of the method."""


@record()
class Inspection:
    """Facts on a model, measurements on data, and the methods that suit the model. `print` shows it as text.

    Examples:
        >>> import pour
        >>> from torch import nn
        >>> inspection = pour.inspect(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
        >>> inspection.head.name, inspection.parameters, inspection.advice[0].method
        ('1', 650, 'pour-p')
    """

    network: str
    """Name of the class of the network."""
    architecture: str | None
    """Name that the model's card records."""
    parameters: int
    """Number of parameters."""
    dtypes: tuple[str, ...]
    """Precisions of the floating-point weights."""
    device: str
    heads: tuple[Layer, ...]
    """The head, or several heads that share the scores; empty if the head is unclear."""
    unclear: str | None
    """Reason why no head was found, or None."""
    candidates: tuple[Layer, ...]
    """Linear layers that could be the head, the last layer first; empty if the head was found."""
    class_names: tuple[str, ...] | None
    normalisation: dict[str, int]
    """Number of layers by kind, such as BatchNorm."""
    mean: tuple[float, ...] | None
    """Channel means that a `NormalizedModel` subtracts from images in [0, 1]."""
    std: tuple[float, ...] | None
    """Channel deviations by which a `NormalizedModel` divides images in [0, 1]."""
    forgotten: tuple[str, ...]
    """Earlier requests: method and classes."""
    data: str | None
    """Name of the data, and the numbers of samples that were read."""
    accuracy: tuple[Rate, ...]
    """Accuracy on all classes, then on the classes to forget and on the others."""
    doubts: tuple[str, ...] | None
    """Contradictions between model, data and classes, which unlearn and audit refuse. None if no data were read."""
    simplex: Word | None
    """Degree to which the class means form a simplex."""
    collapse: tuple[Collapse, ...]
    trials: tuple[Trial, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
    """Sentences on further properties that affect forgetting."""

    @property
    def head(self) -> Layer | None:
        """The head, or the first of several, or None if it is unclear."""
        return self.heads[0] if self.heads else None

    def to_json(self) -> str:
        """Return the record as JSON."""
        return encode(self)

    def to_text(self, width: int | None = None) -> str:
        """Return the inspection as text of at most `width` columns, by default the width of the terminal."""
        columns = min(_WIDEST, width or shutil.get_terminal_size((_WIDEST, 0)).columns)
        lines: list[str] = []
        for label, text in self._parts():
            if not label and not text:
                lines.append("")
                continue
            # A control character of a name must not reach the terminal.
            clean = "".join(letter if letter.isprintable() else "?" for letter in text)
            first = label.ljust(_LABEL) if len(label) < _LABEL else f"{label} "
            lines += textwrap.wrap(clean, columns, initial_indent=first, subsequent_indent=" " * _LABEL) or [label]
        return "\n".join(line.rstrip() for line in lines)

    __str__ = to_text

    def _parts(self) -> list[tuple[str, str]]:
        """Return labels and texts, one pair per paragraph."""
        parts = [*self._model_parts(), ("", "")]
        if self.data is not None:
            parts += [*self._data_parts(), ("", "")]
        for entry in self.advice:
            direction = f", direction {entry.direction}" if entry.direction else ""
            parts.append(
                ("Advice" if entry is self.advice[0] else "", f"{entry.situation}: {entry.method}{direction}.")
            )
            parts.append(("", entry.expect))
        parts += [("Expect" if index == 0 else "", note) for index, note in enumerate(self.notes)]
        while parts and parts[-1] == ("", ""):
            parts.pop()
        return parts

    def _model_parts(self) -> list[tuple[str, str]]:
        name = f"{self.network} ({self.architecture})" if self.architecture else self.network
        parts = [("Network", f"{name}, {self.parameters:,} parameters, {in_words(self.dtypes)}, on {self.device}")]
        for index, head in enumerate(self.heads):
            parts.append(("Head" if index == 0 else "", f"{head}; {head.found_by}"))
        if self.unclear is not None:
            parts.append(("Head", f"unclear. {self.unclear}"))
            if self.candidates:
                listed = ", ".join(map(str, self.candidates[:_SHOWN]))
                omitted = f" and {len(self.candidates) - _SHOWN} more" if len(self.candidates) > _SHOWN else ""
                parts.append(("", f"Linear layers, the last one first: {listed}{omitted}."))
            name = "name the layer (head=; in the shell --head)"
            images = (
                "Pass images, so that pour can find and verify the head (data= or example=; in the shell --data), or"
            )
            parts.append(("", f"{images} {name}." if self.data is None else f"If you know the layer, {name}."))
        if self.class_names is not None:
            names = [*self.class_names[:_SHOWN]]
            hidden = len(self.class_names) - len(names)
            omitted = f" and {hidden} more" if hidden else ""
            parts.append(("Classes", f"{len(self.class_names)}: {', '.join(names)}{omitted}"))
        parts.append(("Images", self._images()))
        layers = [f"{count} {kind}" for kind, count in self.normalisation.items()]
        parts.append(("Layers", f"normalisation: {in_words(layers) if layers else 'none'}"))
        parts.append(("History", "; ".join(self.forgotten) or "no class was forgotten"))
        return parts

    def _images(self) -> str:
        if self.mean is None or self.std is None:
            return "not normalised inside: pass images in the range and with the normalisation of the training"
        mean, std = (" ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"from 0 to 1, normalised inside: mean {mean}, deviation {std}"

    def _data_parts(self) -> list[tuple[str, str]]:
        parts = [("Data", self.data or "")]
        for index, rate in enumerate(self.accuracy):
            parts.append(("Accuracy" if index == 0 else "", f"{rate.samples}: {rate}"))
        if self.doubts is not None:
            parts += [("Doubt", doubt) for doubt in self.doubts]
            if not self.doubts:
                parts.append(("Check", "no contradiction between model, data and classes was found"))
        if self.simplex is not None:
            parts.append(("Collapse", f"The class means form a simplex: {self.simplex}."))
            parts.append(("", "In brackets: values of random features and a random head of the same sizes."))
            parts += [
                ("", f"{line.name} {_short(line.value)} ({_short(line.random)}). {line.property}: {line.holds}.")
                for line in self.collapse
            ]
        if self.trials:
            parts.append(("Projection", "Measured on the features of these data; the score of the class is kept:"))
        parts += [
            (
                "",
                f"Direction {trial.direction} leaves {percent(trial.left)} of the class; the accuracy of the other "
                f"classes changes by {100 * trial.change:+.1f} points.",
            )
            for trial in self.trials
        ]
        return parts


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
