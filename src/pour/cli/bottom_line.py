"""The sentence that `pour unlearn` prints before its table: what the run did to the forgotten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour._words import in_words, percent
from pour.errors import DivergenceError

if TYPE_CHECKING:
    from torch import nn

    from pour.models.history import HistoryEntry
    from pour.training import Run
    from pour.unlearning import ForgetRequest

__all__ = ["bottom_line", "forget_accuracies"]

# Minutes are easier to read above this.
_MOST_SECONDS = 120


def forget_accuracies(
    original: nn.Module, forgotten: nn.Module, request: ForgetRequest, run: Run
) -> tuple[float, float] | None:
    """Return the accuracy on the request's forget images before and after, or None if there is none to measure.

    On scenes it is the accuracy on the labelled pixels of the forgotten classes.
    """
    from pour.models.copy_and_swap import copy_model
    from pour.unlearning.forget_only import forget_accuracy

    if request.forget is None:
        return None
    granted = request.grant(("forget",), name="pour unlearn")
    try:
        # Images are float32, and models may have half precision.
        before, after = (forget_accuracy(copy_model(model).float(), granted, run) for model in (original, forgotten))
    except DivergenceError:
        return None
    return before, after


def bottom_line(record: HistoryEntry, accuracies: tuple[float, float] | None, *, pixels: bool = False) -> str:
    """Return one sentence on a run: accuracies, share of the class in the encoder, direction and time.

    Args:
        record: Record of the run in the model's history.
        accuracies: Accuracy on the forget images before and after, or None if it was not measured.
        pixels: Labels belong to pixels.

    Examples:
        >>> from pour.models.history import HistoryEntry
        >>> record = HistoryEntry(method="pour-p", class_names=("3",), options={"direction": "decisions"}, seconds=0.02)
        >>> bottom_line(record, (0.993, 0.0))
        "On the forget images of '3' the accuracy fell from 99.3 % to 0.0 %; direction decisions; below 0.1 s."
        >>> bottom_line(record, None)
        "'3' is forgotten without images, so no accuracy was measured; direction decisions; below 0.1 s."
    """
    named = _names(record)
    unit = "pixels" if pixels else "images"
    if accuracies is None:
        verb = "is" if len(record.class_names or record.classes) == 1 else "are"
        first = f"{named[:1].upper()}{named[1:]} {verb} forgotten without {unit}, so no accuracy was measured"
    else:
        first = f"On the forget {unit} of {named} the accuracy {_change(*accuracies)}"
    parts = [first]
    shares = [entry["encoder_share"] for entry in record.log if "encoder_share" in entry]
    if shares:
        still = "still " if shares[-1] > 0 else ""
        parts.append(f"without the projector the encoder {still}recognises {percent(shares[-1])}")
    direction = record.options.get("direction")
    if isinstance(direction, str):
        parts.append(f"direction {direction}")
    parts.append(_time(record.seconds))
    return "; ".join(parts) + "."


def _names(record: HistoryEntry) -> str:
    names = [f"'{name}'" for name in record.class_names] or [f"class {index}" for index in record.classes]
    return in_words(names or ["the directions"])


def _change(before: float, after: float) -> str:
    if percent(before) == percent(after):
        return f"stayed at {percent(after)}"
    return f"{'fell' if after < before else 'rose'} from {percent(before)} to {percent(after)}"


def _time(seconds: float) -> str:
    if seconds > _MOST_SECONDS:
        return f"{seconds / 60:.0f} min"
    if seconds < 0.1:
        return "below 0.1 s"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
