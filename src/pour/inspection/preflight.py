"""Check before any work that models, data and classes fit together."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour._words import percent
from pour.data.samples import first_batch, is_indexed, some_batches
from pour.inspection.answers import Answers, Sample, enough
from pour.inspection.causes import better_inputs, never_trained, normalised_twice, renamed_labels
from pour.inspection.findings import Finding, settle
from pour.inspection.roles import doubts_on_roles, doubts_on_training, words_for
from pour.metrics.intervals import rate_difference
from pour.models.card import card_of
from pour.models.history import forgotten_before
from pour.training.tasks.task import get_task, task_of_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from pour.data.samples import Batches, IndexedSamples
    from pour.training.run import Run
    from pour.training.tasks.task import Task

__all__ = ["check_audit", "check_request", "doubts_on_answers"]

_BATCH = 64
# At most this multiple of the wanted samples is read from loaders, and from datasets without a list of labels.
_LOADER_SHARE = 4
_LEAST_AGREEMENT = 0.1
"""Least agreement (kappa) that is not by chance, for at most a hundred classes. Below it, answers are by chance."""
_TIMES_CHANCE = 10.0
_LEAST_ODDS = 1.5
# Above this accuracy no cause is searched for.
_GOOD = 0.95
# Agreement (kappa) of a network that was certainly trained long enough.
_WELL_TRAINED = 0.7
# If one answer has at least this share, and this mean probability, the labels are probably in another order.
_MOST_ANSWERS = 0.5
_SURE_ANSWERS = 0.5
_BELOW_RECORD = 0.1
# Least number of samples for a finding.
_FEWEST = 20


def check_request(
    model: nn.Module,
    sources: Sequence[Callable[[int, int], Iterator[tuple[Tensor, Tensor]]]],
    *,
    classes: Collection[int],
    names: Sequence[str],
    run: Run,
    force: bool = False,
) -> tuple[str, ...]:
    """Check the original of a request to forget; return the sentences of the notes.

    Args:
        model: The original.
        sources: Functions that yield batches of forget images, and perhaps of retained images, for a number of images
            and a batch size.
        classes: Indices of the classes to forget.
        names: Names of all classes.
        run: Device of the check.
        force: Warn of contradictions instead of raising an error.

    Raises:
        PreflightError: The original does not recognise the classes, or was trained without them.
    """
    findings = list(doubts_on_training(model, classes, names))
    # A class that the model forgot before may be forgotten again, so its accuracy is not checked.
    if sources and (force or not findings) and not forgotten_before(model) & set(classes):
        first = next(sources[0](1, 1), None)
        if first is None:
            # The method refuses a loader without batches.
            return settle(findings, force=force)
        images, labels = first
        task = get_task(task_of_labels(labels))
        most, size = enough(images[0]), min(_BATCH, task.batch_size(run))
        groups = zip_longest(*(source(most, size) for source in sources))
        batches = (batch for group in groups for batch in group if batch is not None)
        findings += doubts_on_answers(model, Sample(batches, task, run.torch_device), classes, names)
    return settle(findings, force=force)


def check_audit(
    models: Mapping[Any, nn.Module],
    samples: Mapping[str, IndexedSamples | Batches],
    *,
    task: Task[Any, Any],
    classes: Collection[int],
    names: Sequence[str],
    run: Run,
    force: bool = False,
    reference: bool = False,
) -> tuple[str, ...]:
    """Check the models and the data of an audit; return the sentences of the notes.

    Args:
        models: Models by role: original, unlearned, and perhaps retrained and retrained_second.
        samples: Samples by split.
        task: Task of the labels.
        classes: Indices of the forgotten classes.
        names: Names of all classes.
        run: Device of the check.
        force: Warn of contradictions instead of raising an error.
        reference: Accept that the unlearned model is also another model, as in the row of a reference in a table.

    Raises:
        PreflightError: Models, data and classes contradict each other.
    """
    findings = list(doubts_on_roles(models, classes, names, reference=reference))
    if force or not any(finding.certain for finding in findings):
        findings += _doubts_on_splits(models, samples, task, classes, names, run)
    return settle(findings, force=force)


def _doubts_on_splits(
    models: Mapping[Any, nn.Module],
    samples: Mapping[str, IndexedSamples | Batches],
    task: Task[Any, Any],
    classes: Collection[int],
    names: Sequence[str],
    run: Run,
) -> Iterator[Finding]:
    """Yield the findings on the answers of all models to the test and training samples."""
    by_split: dict[str, list[Finding]] = {}
    reading: dict[str, Sample] = {}
    answers: dict[str, Answers] = {}
    for split in ("test", "train"):
        if split in samples:
            most = enough(first_batch(samples[split], 1)[0][0])
            size = min(_BATCH, task.batch_size(run))
            sample = reading[split] = Sample(
                _both_sides(samples[split], task, classes, most, size), task, run.torch_device
            )
            title = {"train": "training"}.get(split, split)
            findings = list(doubts_on_answers(models["original"], sample, classes, names, unit=f"{title} {task.unit}s"))
            by_split[split] = findings
            if sample.answered is not None:
                answers[split] = sample.answered
    swapped = next(_swapped(models, reading, answers, by_split, classes, names), None)
    if swapped is not None:
        yield swapped
    else:
        yield from _joined(by_split, answers)
    for role, model in models.items():
        if role.startswith("retrained"):
            yield from _doubts_on_unseen(role, model, reading, task, classes, names)


def _joined(by_split: Mapping[str, list[Finding]], answers: Mapping[str, Answers]) -> Iterator[Finding]:
    """Yield the findings of both splits. If only one split has a finding, its sentence names the split."""
    certain = [split for split, findings in by_split.items() if any(finding.certain for finding in findings)]
    if len(certain) == 1 and len(answers) == 2:
        (other,) = set(answers) - set(certain)
        is_recognised = answers[other].agreement().low > _LEAST_AGREEMENT
        rate = percent(answers[other].accuracy().value)
        titles = {"train": "training", "test": "test"}
        for finding in by_split[certain[0]]:
            if not is_recognised:
                yield finding
                continue
            sentence = f"{finding.sentence} This concerns only the {titles[certain[0]]} split"
            yield Finding(
                finding.cause,
                f"{sentence}: the original recognises {rate} of the {titles[other]} split.",
                finding.certain,
            )
        return
    causes: set[str] = set()
    for finding in chain.from_iterable(by_split.values()):
        if finding.cause not in causes:
            yield finding
        causes.add(finding.cause)
    if len(answers) == 2 and not certain:
        train, test = (answers[split].accuracy() for split in ("train", "test"))
        if train.high < test.low - _BELOW_RECORD:
            yield Finding(
                "labels",
                f"The original recognises {percent(train.value)} of the training samples, but {percent(test.value)} of "
                "the test samples; check that both splits have the same labels and normalisation.",
                certain=False,
            )


def _swapped(
    models: Mapping[Any, nn.Module],
    reading: Mapping[str, Sample],
    answers: Mapping[str, Answers],
    by_split: Mapping[str, list[Finding]],
    classes: Collection[int],
    names: Sequence[str],
) -> Iterator[Finding]:
    """Yield a finding if the unlearned model recognises the classes, and the original does not."""
    for split, sample in reading.items():
        if split not in answers or not any(finding.certain for finding in by_split[split]):
            continue
        unlearned = sample.again(models["unlearned"])
        if unlearned is None:
            continue
        # The share of the class among answers to other samples is subtracted: a constant answer recognises nothing.
        knows = [
            rate_difference(model_answers.of(classes).accuracy(), model_answers.of(classes, others=True).share(classes))
            for model_answers in (answers[split], unlearned)
        ]
        if knows[1].low > max(knows[0].high, _LEAST_AGREEMENT):
            rates = [
                percent(model_answers.of(classes).accuracy().value) for model_answers in (unlearned, answers[split])
            ]
            yield Finding(
                "roles",
                f"The unlearned model recognises {rates[0]} of the {split} samples of {words_for(classes, names)}, and "
                f"the original {rates[1]}: they seem to be swapped; pass the model before forgetting as the original.",
            )


def _doubts_on_unseen(
    role: str,
    model: nn.Module,
    reading: Mapping[str, Sample],
    task: Task[Any, Any],
    classes: Collection[int],
    names: Sequence[str],
) -> Iterator[Finding]:
    """Yield a finding if a retrained model recognises the forgotten classes."""
    for split, sample in reading.items():
        model_answers = sample.only(classes).again(model)
        if model_answers is None:
            continue
        accuracy = model_answers.of(classes).accuracy()
        if accuracy.low > _by_chance(model_answers.num_classes):
            title = "second retrained" if role.endswith("second") else "retrained"
            yield Finding(
                "seen",
                f"The {title} model recognises {percent(accuracy.value)} of {len(model_answers)} {split} samples of "
                f"{words_for(classes, names)}, so it seems to have been trained on them; pass a model that was trained "
                "without the class.",
                certain=not task.knows_unseen,
            )
            return


def doubts_on_answers(
    model: nn.Module, sample: Sample, classes: Collection[int], names: Sequence[str], *, unit: str = "images"
) -> Iterator[Finding]:
    """Yield findings if `model` does not recognise the samples, each with its likely cause.

    Args:
        model: Model that was trained on all classes.
        sample: Samples of the forgotten classes, and perhaps of others. They are read once.
        classes: Indices of the forgotten classes; may be empty.
        names: Names of all classes.
        unit: Noun for the samples.
    """
    answers = sample.answered = sample.answers(model)
    if answers is None:
        return
    doubtful = _Doubtful(model, answers, classes, names, unit)
    by_chance = (doubtful.by_chance or doubtful.missed) and not doubtful.as_recorded
    low = bool(by_chance or doubtful.below_record)
    alone = len(answers.shown) < 2
    if alone and len(answers) >= _FEWEST and never_trained(model):
        yield Finding(
            "untrained",
            f"{doubtful.measured}. Its BatchNorm layers have never seen an image, so the network is untrained; load "
            "its weights.",
        )
        return
    if alone and (problem := normalised_twice(model, sample)) is not None:
        yield Finding("normalisation", f"{doubtful.measured}, but {problem}.")
        return
    if not low and (alone or doubtful.as_recorded or answers.accuracy().value >= _GOOD):
        return
    better = better_inputs(model, sample, answers, low=low, expected=doubtful.expected)
    renaming = None if alone else renamed_labels(answers, low=low)
    if renaming is not None and (better is None or renaming.accuracy >= better[1].accuracy().value):
        yield Finding(
            "labels",
            f"{doubtful.measured}. With other labels it recognises {percent(renaming.accuracy)}: the classes are in "
            f"another order, since {renaming.sentence(names)}; bring the labels into the model's order.",
        )
    elif better is not None:
        change, after = better
        # More contrast can help a network that was trained too briefly, but it stays a weak network.
        is_certain = low or change.cause == "channels" or after.agreement().value >= _WELL_TRAINED
        yield Finding(
            change.cause,
            f"{doubtful.measured}. With changed inputs it recognises {percent(after.accuracy().value)}: "
            f"{change.problem}.",
            certain=is_certain,
        )
    else:
        yield from doubtful.findings()


class _Doubtful:
    """The answers of a model, compared with chance and with its recorded accuracy."""

    def __init__(
        self, model: nn.Module, answers: Answers, classes: Collection[int], names: Sequence[str], unit: str
    ) -> None:
        self.answers, self.classes, self.names, self.unit = answers, classes, names, unit
        self.training = card_of(model).training
        self.forget, self.retain = answers.of(classes), answers.of(classes, others=True)

    @property
    def measured(self) -> str:
        """Measured accuracies, chance and the recorded accuracy."""
        parts = []
        if len(self.forget):
            parts.append(
                f"{percent(self.forget.accuracy().value)} of {len(self.forget)} {self.unit} of "
                f"{words_for(self.classes, self.names)}"
            )
        if len(self.retain):
            others = "others" if parts else self.unit
            parts.append(f"{percent(self.retain.accuracy().value)} of {len(self.retain)} {others}")
        chance = f"chance is {percent(1 / self.answers.num_classes)}"
        recorded = [value for side in (self.forget, self.retain) if (value := self._expected(side)) is not None]
        if recorded:
            chance += f", and its file recorded {' and '.join(map(percent, recorded))}"
        return f"The original recognises {' and '.join(parts)} ({chance})"

    @property
    def by_chance(self) -> bool:
        """Whether the answers are certainly not better than by chance."""
        if len(self.answers) < _FEWEST:
            return False
        if len(self.answers.shown) > 1:
            return self.answers.agreement().high < self._least
        return self.answers.accuracy().high < _by_chance(self.answers.num_classes)

    @property
    def _least(self) -> float:
        return min(_LEAST_AGREEMENT, _TIMES_CHANCE / self.answers.num_classes)

    @property
    def missed(self) -> list[int]:
        """Forgotten classes that the model predicts as often for other samples as for samples of the class."""
        if len(self.answers.shown) < 2:
            return []
        return [
            label
            for label in sorted(self.classes)
            if len(of_label := self.answers.of([label])) >= _FEWEST
            and rate_difference(of_label.accuracy(), self.answers.of([label], others=True).share([label])).high
            < self._least
        ]

    @property
    def below_record(self) -> list[tuple[Answers, float]]:
        """Pairs of answers and recorded accuracy: the forgotten or retained side, if it is below its record."""
        sides = [(side, self._expected(side)) for side in (self.forget, self.retain)]
        return [
            (side, expected)
            for side, expected in sides
            if expected is not None and len(side) >= _FEWEST and side.accuracy().high < expected - _BELOW_RECORD
        ]

    @property
    def expected(self) -> float | None:
        """Recorded accuracy, averaged over the classes of the samples; None if it was not recorded."""
        return self._expected(self.answers)

    @property
    def as_recorded(self) -> bool:
        """Whether the recorded accuracy is better than chance, and neither side is certainly below it."""
        if self.expected is None or self.expected < _by_chance(self.answers.num_classes):
            return False
        pairs = [(side, self._expected(side)) for side in (self.forget, self.retain)]
        return all(value is None or side.accuracy().high >= value for side, value in pairs)

    def _expected(self, side: Answers) -> float | None:
        """Return the recorded test accuracy, averaged over the classes of `side`, or None."""
        if self.training is None or not len(side):
            return None
        by_class = dict(enumerate(self.training.class_accuracy))
        recorded = [by_class.get(int(label)) for label in side.truth]
        if any(value is None for value in recorded):
            return None
        return float(np.average(np.array(recorded, float), weights=side.counts))

    def findings(self) -> Iterator[Finding]:
        """Yield the findings that changed inputs and other labels do not explain."""
        expected = self._expected(self.forget)
        if self.by_chance:
            answer, share = self.answers.frequent()
            alone = len(self.answers.shown) == 1
            if alone and share >= _MOST_ANSWERS and self.answers.confidence >= _SURE_ANSWERS:
                yield self._named_otherwise(answer, share)
                return
            yield Finding(
                "untrained",
                f"{self.measured}. These are answers by chance: the network seems to be untrained, or the "
                f"{self.unit} are not of its data; check its weights, and the normalisation of the {self.unit}.",
            )
            return
        for label in self.missed:
            answer, share = self.answers.of([label]).frequent()
            if share >= _MOST_ANSWERS and answer != label:
                yield self._named_otherwise(answer, share)
            else:
                # The finding is only a warning if the class was seldom recognised after training, too.
                is_as_recorded = expected is not None and not any(side is self.forget for side, _ in self.below_record)
                yield Finding(
                    "accuracy",
                    f"{self.measured}, so there is little to forget; check the labels and the class to forget.",
                    certain=not is_as_recorded,
                )
            return
        for side, recorded in self.below_record:
            yield Finding(
                "accuracy",
                f"{self.measured}, which is far below the record; check that the {self.unit} are those of the "
                "training, with the same normalisation.",
                certain=side.accuracy().high < recorded / 2,
            )
            return

    def _named_otherwise(self, answer: int, share: float) -> Finding:
        return Finding(
            "labels",
            f"{self.measured}, and calls {percent(share)} of {words_for(self.classes, self.names)} "
            f"{words_for([answer], self.names)}: the labels are in another order, or they are of another "
            "class; check both.",
        )


def _by_chance(num_classes: int) -> float:
    """Return the largest accuracy on one class that may be by chance: 1.5 times the odds of chance."""
    odds = _LEAST_ODDS / max(1, num_classes - 1)
    return odds / (1 + odds)


def _both_sides(
    samples: IndexedSamples | Batches, task: Task[Any, Any], classes: Collection[int], most: int, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches, mixed from at most `most` samples that show one of `classes` and at most `most` others."""
    # Some datasets must decode all their images to read the labels.
    if is_indexed(samples) and getattr(samples, "knows_labels", True):
        is_forgotten = task.belongs(torch.as_tensor(samples.labels), classes).numpy()
        sides = [_spaced(np.flatnonzero(side), most) for side in (is_forgotten, ~is_forgotten)]
        places = np.concatenate([np.linspace(0, 1, len(side)) for side in sides])
        rows = np.concatenate(sides)[np.argsort(places, kind="stable")]
        yield from samples.take(rows).batches(size, "cpu")
        return
    free = [most, most]
    for inputs, labels in some_batches(samples, _LOADER_SHARE * most, size):
        shows = task.belongs(labels, classes)
        parts = [mask.nonzero().flatten()[:count] for mask, count in zip((shows, ~shows), free, strict=True)]
        free = [count - len(part) for count, part in zip(free, parts, strict=True)]
        if len(selected := torch.cat(parts).sort().values):
            yield inputs[selected], labels[selected]
        if not any(free):
            return


def _spaced(rows: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return `count` of the rows, evenly spaced, or all of them."""
    return rows if len(rows) <= count else rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
