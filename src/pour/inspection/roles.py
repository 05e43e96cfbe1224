"""Check that the models of an audit differ, and that their histories agree with their roles."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pour._words import in_words
from pour.inspection.findings import Finding
from pour.models.card import card_of
from pour.models.history import forgotten_before, history
from pour.models.networks.normalize import NormalizedModel
from pour.models.projecting.project import projected_layers
from pour.models.state import digest, tensor_digest
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torch import nn

__all__ = ["doubts_on_roles", "doubts_on_training", "words_for"]

# Tensors that are not weights: they can differ between two copies of one network.
_NOT_WEIGHTS = ("normalize.mean", "normalize.std", "num_batches_tracked")


def doubts_on_roles(
    models: Mapping[Any, nn.Module], forgotten: Collection[int], names: Sequence[str], *, reference: bool
) -> Iterator[Finding]:
    """Yield the contradictions between the roles of the models, their weights and their histories.

    Args:
        models: Models by role: original, unlearned, and perhaps retrained and retrained_second.
        forgotten: Indices of the forgotten classes.
        names: Names of all classes.
        reference: Accept that the unlearned model is also the original or a retrained model.
    """
    original, unlearned = models["original"], models["unlearned"]
    recorded, before = forgotten_before(unlearned), forgotten_before(original)
    forgotten = frozenset(forgotten)
    if not reference:
        if before & forgotten and len(history(unlearned)) < len(history(original)):
            yield Finding(
                "roles",
                f"The original has a history of forgetting {words_for(before & forgotten, names)}, and the unlearned "
                "model has none: they seem to be swapped; pass the model before forgetting as the original.",
            )
        elif forgotten <= before:
            yield Finding(
                "roles",
                f"The original has a history of forgetting {words_for(forgotten, names)}; pass the model before "
                "forgetting as the original.",
            )
        if recorded and not recorded & forgotten:
            yield Finding(
                "roles",
                f"The unlearned model's history has forgotten {words_for(recorded, names)}, not "
                f"{words_for(forgotten, names)}; name the class of the history, or pass the model that forgot "
                f"{words_for(forgotten, names)}.",
            )
    yield from doubts_on_training(original, forgotten, names)
    for role, model in models.items():
        if role.startswith("retrained"):
            yield from _doubts_on_retrained(role, model, forgotten, names)
    yield from _same(models, reference=reference)
    entries = history(unlearned)
    recorded_digests = {entry.digest_before for entry in entries}
    if entries and not reference and recorded_digests.isdisjoint(_digests(original)):
        yield Finding(
            "roles",
            "No entry in the unlearned model's history begins with the weights of this original; check that the "
            "unlearned model comes from it.",
            certain=False,
        )


def doubts_on_training(original: nn.Module, forgotten: Collection[int], names: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if the original was trained without some of the `forgotten` classes, by its record."""
    training = card_of(original).training
    missing = set(() if training is None else training.left_out) & set(forgotten)
    if missing:
        yield Finding(
            "roles",
            f"The original was trained without {words_for(missing, names)}, so it has nothing to forget; pass the "
            "model that was trained on all classes.",
        )


def _doubts_on_retrained(
    role: str, model: nn.Module, forgotten: Collection[int], names: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding if the record or the history of a retrained model contains a forgotten class."""
    title = _title(role)
    methods = {entry.method for entry in history(model) if set(entry.classes) & set(forgotten)} - {"retrain"}
    if methods:
        yield Finding(
            "roles",
            f"{title} has a history of forgetting {words_for(forgotten, names)} with {in_words(sorted(methods))}; pass "
            "a model that was trained without the class.",
        )
    training = card_of(model).training
    # A model of the method retrain contains the training record of the model that it replaces.
    trained_classes = set() if training is None or history(model) else set(forgotten) - set(training.left_out)
    if trained_classes:
        yield Finding(
            "seen",
            f"{title} was trained on {words_for(trained_classes, names)}, as its file records; pass a model that was "
            "trained without the class.",
        )


def _same(models: Mapping[Any, nn.Module], *, reference: bool) -> Iterator[Finding]:
    """Yield a finding for each pair of models with the same weights."""
    contents: dict[str, str] = {}
    for role, model in models.items():
        content = _content(model)
        other = contents.setdefault(content, role)
        if other != role and not (reference and "unlearned" in (role, other)):
            yield Finding(
                "same",
                f"{_title(other)} and {_title(role).lower()} have the same weights; check that two different files are "
                "passed.",
            )


def _content(model: nn.Module) -> str:
    """Return one digest of the weights, without their names, and of the projectors."""
    network = unwrap(model)
    weights = [tensor for name, tensor in _state(network).items() if not name.endswith(_NOT_WEIGHTS)]
    parts = sorted(f"{tuple(tensor.shape)} {tensor_digest(tensor)}" for tensor in weights)
    parts += [
        f"{name} {getattr(layer, 'forgotten', ())} {getattr(layer, 'forgotten_logit', '')}"
        for name, layer in projected_layers(network).items()
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _digests(model: nn.Module) -> Iterator[str]:
    """Yield the digest of a network, and of the network inside a `NormalizedModel`."""
    network = unwrap(model)
    yield digest(_state(network))
    if isinstance(network, NormalizedModel):
        yield digest(_state(network.model))


def _state(model: nn.Module) -> dict[str, Tensor]:
    state = unwrap(model).state_dict()
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and not value.is_meta}


def _title(role: str) -> str:
    titles = {"retrained_second": "The second retrained model", "original": "The original"}
    return titles.get(role, f"The {role} model")


def words_for(classes: Collection[int], names: Sequence[str]) -> str:
    """Return the names of classes in a sentence.

    Examples:
        >>> words_for({2, 0}, ["cat", "dog"])
        "'cat' and class 2"
    """
    return in_words([f"'{names[label]}'" if label < len(names) else f"class {label}" for label in sorted(classes)])
