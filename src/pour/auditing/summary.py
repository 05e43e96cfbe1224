"""Summarise an audit in three statements: the answers, the features, the retained classes.

The first statement reports how often the model answers with the forgotten classes. The second reports how much of
them its features show, compared with the retrained models. The third reports what the retained classes lost. All
numbers come from the lines and answers of the report. A value differs from a reference only if it is outside the
reference's 95 % interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pour._words import in_words, percent, tenths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.auditing.measurement import Reading
    from pour.auditing.report import AuditReport, Line, Section

__all__ = ["summarise"]

_Position = Literal["above", "within", "below"]
# The preferred measure comes first. For each, a value above the retrained models' interval is a leak.
_FEATURE_MEASURES = ("probe_linear", "probe_knn", "cka_f_o")
_REFERENCES = ("original", "retrained")
# A longer list of names would hide the numbers of the statement.
_MOST_NAMES = 3


def summarise(report: AuditReport) -> tuple[str, str, str]:
    """Return the statements on the answers, the features and the retained classes.

    Examples:
        >>> from pour.auditing import AuditedData, AuditedModel, AuditReport, Line, Reading
        >>> model = AuditedModel(digest="0" * 64, architecture=None, methods=("pour-p",), projected=False)
        >>> line = Line(
        ...     name="acc_f", section="scores", unlearned=Reading(value=0.021, n=1000), original=Reading(value=0.894))
        >>> data = AuditedData(name="pets", classes=("cat", "dog"), forgotten=(0,), counts={"test": (1000, 1000)})
        >>> summarise(AuditReport(data=data, models={"unlearned": model}, settings={}, lines=(line,)))[0]
        "The model still answers 'cat' on 2.1 % of 1,000 test images of 'cat' (original 89.4 %)."
    """
    summary = _Summary(report)
    return summary.answers(), summary.features(), summary.retained_classes()


@dataclass(frozen=True)
class _Summary:
    report: AuditReport

    def answers(self) -> str:
        """Return how often the model answers with the forgotten classes."""
        pixelwise = self.report.pixelwise
        unit = "pixel" if pixelwise else "image"
        line = self._line("iou_f" if pixelwise else "acc_f")
        shares, n = self._shares(line)
        if "unlearned" not in shares:
            return f"The audit did not measure what the model answers on {unit}s of {self._names}."
        share = shares["unlearned"]
        other = 0.0 if pixelwise else self._share_of_other_forgotten(share)
        still = (share > 0 and (line is None or self._leaks(line))) or other > 0
        answer = "a forgotten class" if pixelwise else "the right class"
        portion = f"{_portion(share, n, f'test {unit}')} of {self._names}"
        verb = "still answers" if still else "answers"
        sentence = f"The model {verb} {answer if self._several else self._names} on {portion}"
        if other > 0:
            sentence += f", and another forgotten class on {percent(other)}"
        elif line is not None and not (pixelwise or still) and share > 0:
            is_within = _position(line.unlearned, line.retrained) == "within"
            sentence += f", within {self._retrained_models} 95 % interval" if is_within else ""
        references = _in_brackets({role: percent(shares[role]) for role in _REFERENCES if role in shares})
        if shares.get("original", 1.0) > 1 / len(self.report.data.classes):
            return f"{sentence}{references}."
        doubt = f"The original is no better than chance on {self._names}, so there was nothing to forget."
        return f"{sentence}{references}. {doubt}"

    def _shares(self, line: Line | None) -> tuple[dict[str, float], int | None]:
        """Return how often each model answers with a forgotten class on these classes, and the number of answers.

        A pixel counts if its answer is any forgotten class. An image counts if its answer is the right class.
        """
        if self.report.pixelwise:
            totals = {role: sum(counts) for role, counts in self.report.answers.items()}
            forgotten = self.report.data.forgotten
            shares = {
                role: sum(counts[label] for label in forgotten) / totals[role]
                for role, counts in self.report.answers.items()
                if totals[role]
            }
            return shares, totals.get("unlearned")
        if line is None:
            return {}, None
        readings = {"unlearned": line.unlearned, "original": line.original, "retrained": line.retrained}
        return {role: reading.value for role, reading in readings.items() if reading}, line.unlearned.n

    def features(self) -> str:
        """Return how much of the forgotten classes the features show, compared with the retrained models."""
        line = self._feature_line()
        if line is None:
            return " ".join([f"The audit did not measure how {self._names} appears in the features.", *self._gap(None)])
        sentences = [self._feature_sentence(line)]
        raw = self._line(line.name, "raw")
        if raw is not None:
            value = _feature_value(raw, raw.unlearned.value)
            measure = "the CKA is" if raw.name == "cka_f_o" else "the probe reaches"
            sentences.append(
                f"In the encoder's raw features, which a projector does not change, {measure} {value}"
                f"{self._judgement(raw)}."
            )
        return " ".join([*sentences, *self._gap(line)])

    def retained_classes(self) -> str:
        """Return the loss of the retained classes, and the position of their accuracy relative to the references."""
        line = self._line("iou_r_rest" if self.report.pixelwise else "acc_r")
        measure = "mean IoU" if self.report.pixelwise else "accuracy"
        if line is None:
            return f"The audit did not measure the {measure} of the retained classes."
        where = f" outside the pixels of {self._names}" if self.report.pixelwise else ""
        after = tenths(line.unlearned.value)
        if line.original is None:
            return f"The retained classes have {after:.1f} % {measure}{where}; the audit has no value of the original."
        before = tenths(line.original.value)
        if after == before:
            sentence = f"The retained classes kept their {measure} of {after:.1f} %{where}"
        else:
            verb = "lost" if after < before else "gained"
            points = f"{abs(after - before):.1f} points of {measure}{where}"
            sentence = f"The retained classes {verb} {points}, from {before:.1f} % to {after:.1f} %"
        positions = []
        if (position := _position(line.unlearned, line.original)) is not None:
            positions.append(f"{position} the original's 95 % interval")
        if line.retrained is not None and (position := _position(line.unlearned, line.retrained)) is not None:
            positions.append(f"{position} {self._retrained_models} ({_interval(line, line.retrained)})")
        return f"{sentence}{', which is ' if positions else ''}{' and '.join(positions)}."

    def _share_of_other_forgotten(self, accuracy: float) -> float:
        """Return the share of forgotten images whose answer is a forgotten class, but the wrong one."""
        counts = self.report.answers.get("unlearned", ())
        total = sum(counts)
        if not self._several or not total:
            return 0.0
        wrong = sum(counts[label] for label in self.report.data.forgotten) - round(accuracy * total)
        return max(0, wrong) / total

    def _leaks(self, line: Line) -> bool:
        """Return whether the value is above the retrained models' interval, or whether no interval can be used."""
        return self._retrained_knows_class or _position(line.unlearned, line.retrained) in (None, "above")

    def _feature_line(self) -> Line | None:
        """Return the first measure that distinguishes the original from the retrained models, otherwise the first one.

        The choice does not depend on the unlearned model, so that all methods have the same measure.
        """
        lines = [line for name in _FEATURE_MEASURES if (line := self._line(name, "features")) is not None]
        distinct = [line for line in lines if _distinguishes(line)]
        compared = [line for line in lines if line.retrained is not None]
        return next(iter([*distinct, *compared, *lines]), None)

    def _feature_sentence(self, line: Line) -> str:
        """Return how much of the forgotten classes the input features of the head show."""
        whose = "the projected features" if self._line(line.name, "raw") is not None else "its features"
        value = _feature_value(line, line.unlearned.value)
        references = {}
        if line.original is not None:
            references["original"] = _feature_value(line, line.original.value)
        if line.retrained is not None:
            references["retrained"] = _interval(line, line.retrained)
        if line.name == "cka_f_o":
            unit = "pixels" if self.report.pixelwise else "images"
            sentence = f"On {unit} of {self._names}, {whose} have a CKA of {value} with the original's"
        else:
            probe = "A linear probe" if line.name == "probe_linear" else "A 5-NN probe"
            sentence = f"{probe} finds {self._names} in {whose} with {value} balanced accuracy"
        return f"{sentence}{_in_brackets(references)}{self._judgement(line)}."

    def _judgement(self, line: Line) -> str:
        """Return the comparison with a model that never saw the classes, or an empty text without such a model."""
        position = _position(line.unlearned, line.retrained)
        if position is None or self._retrained_knows_class:
            return ""
        if position == "within" and not _distinguishes(line):
            return f", but {self._retrained_models} interval contains the original too, so this shows no difference"
        pronoun = "them" if self._several else "it"
        amount = {"above": "more", "within": "no more", "below": "less"}[position]
        damage = ", so the features are damaged" if position == "below" else ""
        return f": {amount} than in a model that never saw {pronoun}{damage}"

    def _gap(self, line: Line | None) -> list[str]:
        """Return a sentence on the missing comparison with a retrained model, or no sentence if none is missing."""
        classes = "classes" if self._several else "class"
        amount = f"how much of {self._names} a model that never saw {'them' if self._several else 'it'} would show"
        if "retrained" not in self.report.models:
            remedy = f"pass a model trained without the {classes}"
            return [f"No retrained model was passed, so it is not known {amount}; {remedy}."]
        if self._retrained_knows_class:
            return [f"The retrained model recognises training images of {self._names}, so it does not show {amount}."]
        if line is None or line.retrained is None:
            return [f"This measure of the retrained model is absent, so it is not known {amount}; see the notes."]
        if _position(line.unlearned, line.retrained) is None:
            return [f"The retrained model's value has no interval, so it is not known {amount}; use more test images."]
        return []

    @property
    def _retrained_knows_class(self) -> bool:
        """Whether the retrained model was probably trained on the forgotten classes."""
        line = self._line("acc_tf")
        accuracy = None if line is None else line.retrained
        return accuracy is not None and accuracy.value > 1 / len(self.report.data.classes)

    @property
    def _retrained_models(self) -> str:
        count = sum(role.startswith("retrained") for role in self.report.models)
        return "the retrained models'" if count > 1 else "the retrained model's"

    @property
    def _several(self) -> bool:
        return len(self.report.data.forgotten) > 1

    @property
    def _names(self) -> str:
        names = [f"'{name}'" for name in self.report.data.forgotten_names]
        if len(names) > _MOST_NAMES:
            return f"the {len(names)} forgotten classes"
        return in_words(names)

    def _line(self, name: str, section: Section = "scores") -> Line | None:
        return next((line for line in self.report.lines if (line.name, line.section) == (name, section)), None)


def _position(reading: Reading, reference: Reading | None) -> _Position | None:
    """Return the position of a value relative to a reference's interval, or None without an interval."""
    if reference is None or (reference.low is None and reference.high is None):
        return None
    low, high = reference.bounds
    return "below" if reading.value < low else "above" if reading.value > high else "within"


def _distinguishes(line: Line) -> bool:
    """Return whether the original's value is above the retrained models' interval."""
    if line.name == "cka_f_o":
        # The original's CKA with itself.
        return line.retrained is not None and line.retrained.high is not None and line.retrained.high < 1
    return line.original is not None and _position(line.original, line.retrained) == "above"


def _portion(share: float, n: int | None, unit: str) -> str:
    """Return a share of counted images or pixels.

    Examples:
        >>> _portion(0.021, 1000, "test image"), _portion(0.0, 1, "test image"), _portion(1.0, None, "test image")
        ('2.1 % of 1,000 test images', '0 of 1 test image', '100.0 % of the test images')
    """
    if n is None:
        return f"{percent(share)} of the {unit}s"
    return f"{'0' if share == 0 else percent(share)} of {n:,} {unit}{'' if n == 1 else 's'}"


def _feature_value(line: Line, value: float) -> str:
    return f"{value:.2f}" if line.name == "cka_f_o" else percent(value)


def _interval(line: Line, reading: Reading) -> str:
    """Return an interval in the unit of the line, or the value if there is no interval."""
    if reading.low is None and reading.high is None:
        return _feature_value(line, reading.value)
    low, high = reading.bounds
    return f"{low:.2f} to {high:.2f}" if line.name == "cka_f_o" else f"{tenths(low):.1f} to {tenths(high):.1f} %"


def _in_brackets(values: Mapping[str, str]) -> str:
    """Return the values of the references in brackets, or an empty text without values."""
    return f" ({', '.join(f'{role} {value}' for role, value in values.items())})" if values else ""
