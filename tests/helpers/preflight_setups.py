"""Set-ups of `pour.unlearn` and `pour.audit`, sound and broken, drawn from stated families with a seed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pour
from pour.models.card import change_card
from pour.models.copy_and_swap import copy_model
from pour.unlearning import Method

if TYPE_CHECKING:
    from collections.abc import Callable

    from pour.data.dataset import ImageDataset, ImageSplit

needs_cifar10 = pytest.mark.skipif(
    not (Path(os.environ.get("POUR_DATA", "/nowhere")) / "cifar10").is_dir(), reason="cifar10 is not under POUR_DATA"
)
NETWORKS = Path(__file__).parent.parent / "networks"
CLASSES = 10
FORGOTTEN = {"digits": 3, "cifar10": 0}
"""Class without which the retrained networks were trained."""
NORMALISATIONS = {
    "ImageNet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "CIFAR": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "half": ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
    "own": ([0.44, 0.41, 0.38], [0.27, 0.30, 0.25]),
}
BROKEN = {
    "untrained": "untrained",
    "not normalised": "normalisation",
    "normalised twice": "normalisation",
    "0 to 255": "values",
    "channels reversed": "channels",
    "labels permuted": "labels",
    "wrong class": "labels",
    "wrong history": "roles",
    "roles swapped": "roles",
    "the same file": "same",
    "retrained is the original": "same",
    "retrained is POUR-P": "roles",
    "retrained knows the class": "seen",
}
"""Families of broken set-ups, each with its cause."""
SOUND = ("good network", "weak network", "one retained class", "small loader", "imbalanced")
_FLOAT_FAMILIES = ("not normalised", "normalised twice", "0 to 255", "channels reversed")
# A set-up of the inputs or labels is broken if it costs this share of the accuracy.
_LEAST_LOSS = 0.1
_ATTEMPTS = 20


class Nothing(Method):
    """A method that reads images and returns the model."""

    name: ClassVar[str] = "nothing"
    paper: ClassVar[str] = "a test"
    needs: ClassVar[tuple[Any, ...]] = ("forget",)
    accepts: ClassVar[tuple[Any, ...]] = ("retain",)

    def __call__(self, model: nn.Module, request: Any, run: Any) -> nn.Module:
        return model


class Expecting(nn.Module):
    """A user's network for normalised images, made of one for images in [0, 1]."""

    def __init__(self, model: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.model = model
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images * self.std + self.mean)


@dataclass(frozen=True)
class SetUp:
    """A call, and the cause for which it must be refused; None if it must not."""

    family: str
    cause: str | None
    title: str
    run: Callable[[], Any]


@cache
def dataset(name: str) -> ImageDataset:
    return pour.load_dataset(name)


@cache
def network(name: str, role: str = "original") -> nn.Module:
    folder = NETWORKS / "digits" if name == "digits" else NETWORKS
    return pour.load(folder / f"{role}.safetensors")


@cache
def weak_network(name: str, seed: int) -> nn.Module:
    """A small network, trained until it recognises 30 % of its training images."""
    train = dataset(name).splits["train"]
    torch.manual_seed(seed)
    rows = np.random.default_rng(seed).permutation(len(train))[:3000]
    images = torch.from_numpy(train.images[rows]).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(train.labels[rows])
    pool = 1 if name == "digits" else 4
    width = images[0, 0].numel() // pool**2 * images.shape[1]
    model = nn.Sequential(nn.AvgPool2d(pool), nn.Flatten(), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2000):
        scores = model(images)
        if float((scores.argmax(dim=1) == labels).float().mean()) >= 0.3:
            break
        optimiser.zero_grad()
        F.cross_entropy(scores, labels).backward()
        optimiser.step()
    return model.eval()


def floats(split: ImageSplit) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(split.images)).permute(0, 3, 1, 2).float() / 255


def batches(images: torch.Tensor, labels: np.ndarray, size: int = 32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    whole = torch.as_tensor(labels, dtype=torch.int64)
    return list(zip(images.split(size), whole.split(size), strict=True))


@cache
def class_accuracies(model: nn.Module, name: str) -> list[float]:
    """Return the accuracy on the test images of each class."""
    split = dataset(name).splits["test"]
    with torch.inference_mode():
        right = torch.cat([model(part).argmax(dim=1) for part in floats(split).split(500)]).numpy() == split.labels
    return [float(right[split.labels == label].mean()) for label in range(CLASSES)]


def with_record(model: nn.Module, name: str, measured: list[float]) -> nn.Module:
    """Return a copy of ``model`` as `pour train` would have written it."""
    from pour.models.card import Training

    model = copy_model(model)
    change_card(model, training=Training(dataset=name, class_accuracy=tuple(measured)))
    return model


class Draw:
    """Draws set-ups, one after the other."""

    def __init__(self, seed: int, names: tuple[str, ...] = ("digits", "cifar10")) -> None:
        self.rng, self.names, self.turn = np.random.default_rng(seed), names, 0

    def pick(self, choices: Any) -> Any:
        return list(choices)[int(self.rng.integers(len(choices)))]

    def part(self, name: str, split: str, most: int) -> ImageSplit:
        whole = dataset(name).splits[split]
        return whole.take(self.rng.permutation(len(whole))[:most])

    def broken(self) -> SetUp:
        """Return a set-up of the next family, which must be refused. Inputs that hardly matter are drawn again."""
        while True:
            self.turn += 1
            for _ in range(_ATTEMPTS):
                set_up = self._broken(list(BROKEN)[self.turn % len(BROKEN)])
                if set_up is not None:
                    return set_up

    def _broken(self, family: str) -> SetUp | None:
        if family in _FLOAT_FAMILIES and "cifar10" not in self.names:
            return None
        name = "cifar10" if family in _FLOAT_FAMILIES else self.pick(self.names)
        original, label = network(name), int(self.rng.integers(CLASSES))
        if BROKEN[family] in ("roles", "same", "seen"):
            return self._of_roles(family, name, label)
        if family == "untrained":
            torch.manual_seed(int(self.rng.integers(2**31)))
            shape = {"in_channels": 1 if name == "digits" else 3, "image_size": 8 if name == "digits" else 32}
            fresh = pour.build_model("resnet-digits" if name == "digits" else "resnet-small", CLASSES, **shape)
            return self._call(family, name, fresh, label, lambda images: images, np.arange(CLASSES))
        mapping = np.arange(CLASSES)
        change: Callable[[torch.Tensor], torch.Tensor] = lambda images: images  # noqa: E731
        if family == "labels permuted":
            mapping = self.rng.permutation(CLASSES)
        elif family == "wrong class":
            other = int((label + self.rng.integers(1, CLASSES)) % CLASSES)
            mapping[other], mapping[label] = label, other
        elif family == "not normalised":
            original = Expecting(original, *NORMALISATIONS[self.pick(NORMALISATIONS)])
        elif family == "normalised twice":
            mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in NORMALISATIONS[self.pick(list(NORMALISATIONS)[:3])])
            change = lambda images: (images - mean) / std  # noqa: E731
        elif family == "0 to 255":
            change = lambda images: images * 255  # noqa: E731
        elif family == "channels reversed":
            change = lambda images: images.flip(1)  # noqa: E731
        return self._call(family, name, original, label, change, mapping)

    def _call(
        self,
        family: str,
        name: str,
        original: nn.Module,
        label: int,
        change: Callable[[torch.Tensor], torch.Tensor],
        mapping: np.ndarray,
    ) -> SetUp | None:
        """Return a call with changed inputs and labels (``mapping`` of the true ones)."""
        access = self.pick(["forget", "both", "audit"])
        parts = {split: self.part(name, split, 1500) for split in ("train", "test")}
        data = {}
        for split, part in parts.items():
            data[split] = batches(change(floats(part)), mapping[part.labels])
        if family not in ("untrained", "labels permuted", "wrong class"):
            # The same network on the same images, as they should be.
            shown = list(data["test"][:12])
            good = network(name)
            with torch.inference_mode():
                rates = [
                    float(torch.cat([model(x).argmax(dim=1) == y for x, y in pairs]).float().mean())
                    for model, pairs in (
                        (good, batches(floats(parts["test"]), parts["test"].labels)[:12]),
                        (original, shown),
                    )
                ]
            if rates[0] - rates[1] < _LEAST_LOSS:
                return None
        # Images of one class alone show little without a record.
        record = access == "forget" or bool(self.rng.integers(2))
        if record and family != "untrained":
            original = with_record(original, name, class_accuracies(network(name), name))
        title = f"{family}, {name}, {access}, class {label}, {'with' if record else 'without'} a record"
        if (
            family == "labels permuted"
            and mapping[np.flatnonzero(mapping == label)[0]] == np.flatnonzero(mapping == label)[0]
        ):
            # This class keeps its label.
            label = int(np.flatnonzero(mapping != np.arange(CLASSES))[0])
        return SetUp(family, BROKEN[family], title, self._run(original, data, label, access))

    def _run(self, original: nn.Module, data: dict[str, Any], label: int, access: str) -> Callable[[], Any]:
        if access == "audit":
            forgotten = pour.forget(original, classes=[label], example=data["test"][0][0])
            return lambda: pour.audit(
                original=original,
                unlearned=forgotten,
                data=data,
                classes=[label],
                device="cpu",
                progress=False,
            )
        images = torch.cat([inputs for inputs, _ in data["train"]])
        labels = torch.cat([part for _, part in data["train"]])
        sides = {
            side: batches(images[mask], labels[mask].numpy())
            for side, mask in (("forget", labels == label), ("retain", labels != label))
        }
        sides = sides if access == "both" else {"forget": sides["forget"]}
        return lambda: pour.unlearn(
            original, classes=[label], method=Nothing(), device="cpu", progress=False, precision="fp32", **sides
        )

    def _of_roles(self, family: str, name: str, label: int) -> SetUp:
        original = network(name)
        roles: dict[str, Any] = {"original": original, "unlearned": pour.forget(original, classes=[label])}
        forgotten = label
        if family == "wrong history":
            forgotten = int((label + self.rng.integers(1, CLASSES)) % CLASSES)
        elif family == "roles swapped":
            unlearned = roles["unlearned"]
            if self.rng.integers(2):
                # As in a file of plain weights, which has no history.
                change_card(unlearned, history=())
            roles = {"original": unlearned, "unlearned": original}
        elif family == "the same file":
            roles["unlearned"] = copy_model(original)
        elif family == "retrained is the original":
            roles["retrained"] = copy_model(original)
        elif family == "retrained is POUR-P":
            roles["retrained"] = pour.forget(original, classes=[label], forgotten_logit="keep")
        elif family == "retrained knows the class":
            other = copy_model(original)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.mul_(1 + 1e-3 * torch.randn_like(parameter))
            roles["retrained"] = other
        parts = {split: self.part(name, split, 1500) for split in ("train", "test")}
        title = f"{family}, {name}, class {label}"
        call = lambda: pour.audit(data=parts, classes=[forgotten], device="cpu", progress=False, **roles)  # noqa: E731
        return SetUp(family, BROKEN[family], title, call)

    def sound(self) -> SetUp:
        """Return a set-up that must not be refused."""
        family, name = self.pick(SOUND), self.pick(self.names)
        weak = family == "weak network" or (family != "good network" and bool(self.rng.integers(2)))
        model = weak_network(name, int(self.rng.integers(5))) if weak else network(name)
        measured = class_accuracies(model, name)
        # Only a class that the network recognises can be forgotten, or retained alone.
        known = [index for index, rate in enumerate(measured) if rate > 1.5 / CLASSES]
        label = int(self.pick(known))
        other = int(self.pick([index for index in known if index != label]))
        record = bool(self.rng.integers(2))
        if record:
            model = with_record(model, name, measured)
        access = self.pick(["forget", "both", "audit"])
        parts = {split: self.part(name, split, 1500) for split in ("train", "test")}
        parts = {split: self._shaped(part, family, label, other) for split, part in parts.items()}
        data = {split: batches(floats(part), part.labels) for split, part in parts.items()}
        roles = (
            f"{'weak' if weak else 'good'}, {name}, {access}, class {label}, {'with' if record else 'without'} a record"
        )
        return SetUp(family, None, f"{family}: {roles}", self._run(model, data, label, access))

    def _shaped(self, part: ImageSplit, family: str, label: int, other: int) -> ImageSplit:
        is_forgotten = part.labels == label
        others = np.flatnonzero(~is_forgotten)
        mine = np.flatnonzero(is_forgotten)
        if family == "one retained class":
            others = others[part.labels[others] == other]
        elif family == "small loader":
            mine, others = mine[:30], others[:30]
        elif family == "imbalanced":
            mine, others = (mine[:15], others) if self.rng.integers(2) else (mine, others[:15])
        return part.take(self.rng.permutation(np.concatenate([mine, others])))
