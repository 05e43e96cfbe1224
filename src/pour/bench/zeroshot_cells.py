"""The cells of the zero-shot experiment: forget, fold, score the embeddings that were made once."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pour._provenance import circumstances
from pour._version import __version__
from pour.auditing.measurement import Reading
from pour.bench.store import Cell, CellKey, read_cell, write_cell
from pour.data.digest import split_digest
from pour.errors import UsageError
from pour.models.clip.concepts import SHRINKAGE, forget_concepts
from pour.models.clip.texts import prompt_embeddings
from pour.models.head import find_head
from pour.models.history import history
from pour.models.projecting.fold import fold
from pour.models.projecting.forget import forget
from pour.models.state import tensor_digest
from pour.models.tap import extract_features, to_unit
from pour.training.run import Run
from pour.training.tasks.classify import evaluation_loader
from pour.training.tasks.match import REQUEST_PROMPTS as PAPER_PROMPTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from pour.bench.zeroshot_models import Original, ZeroShotModels
    from pour.data.dataset import ImageDataset, ImageSplit

__all__ = ["Cells"]

# The fold is compared with the projected model on these many images.
_FOLD_IMAGES = 256


@dataclass(frozen=True)
class _Seen:
    """The embeddings of a test set, made once and scored for every request."""

    features: Tensor
    labels: Tensor
    images: Tensor
    """The first few images, on which folding is checked."""

    @classmethod
    def of(cls, model: nn.Module, split: ImageSplit, run: Run) -> _Seen:
        found = extract_features(model, evaluation_loader(split, run), device=run.torch_device)
        images = next(iter(evaluation_loader(split, run)))[0][:_FOLD_IMAGES]
        return cls(found.features, found.labels, to_unit(images))

    def answers(self, model: nn.Module) -> Tensor:
        """The class with the highest score for every image."""
        head = find_head(model).module
        with torch.inference_mode():
            scores: Tensor = head(self.features)
        return scores.argmax(dim=1)


class Cells:
    """Makes cells one after the other; a seed's model and embeddings are opened when its first cell is missing."""

    def __init__(self, models: ZeroShotModels, dataset: ImageDataset, transfer: ImageDataset | None) -> None:
        self._models = models
        self._dataset = dataset
        self._transfer = transfer
        self._tested = models.tested(dataset)
        self._data = _data_digest(self._tested, None if transfer is None else transfer.splits["test"])
        self._seed: int | None = None
        self._original: Original
        self._seen: _Seen
        self._elsewhere: tuple[Tensor, _Seen] | None = None

    def make(self, key: CellKey) -> bool:
        """Make a cell unless it is there; say whether it was made."""
        self.open(key.seed)
        setup = self._setup(key)
        there = read_cell(self._models.out, key)
        if there is not None and there.setup == setup and self._good(there):
            return False
        started = time.perf_counter()
        run = self._run(key.seed)
        before, after = self._original.model, self._forgotten(key)
        folded, why_not = _folded(after)
        answers = {"before": self._seen.answers(before), "after": self._seen.answers(after)}
        values = self._values(key, answers, after)
        if folded is not None:
            values["fold_gap"] = _gap(after, folded, self._seen.images)
        cell = Cell(
            setup=setup,
            models={
                "original": self._original.digest,
                "retrained": "",
                "ceiling": "",
                "unlearned": history(folded or after)[-1].digest_after,
            },
            data=self._data,
            precision=str(run.precision),
            versions={"pour": __version__, "torch": torch.__version__, "python": platform.python_version()},
            family="control" if key.row == "random" else "paper" if key.row == "text" else "relative",
            note=why_not,
            forgotten_names=tuple(self._dataset.classes[label] for label in key.forget),
            values={name: Reading(value=value) for name, value in values.items()},
            answers=tuple(self._answered(key, answers["after"])),
        )
        surroundings = {
            "seconds": {"cell": time.perf_counter() - started},
            "host": platform.node(),
            **circumstances(run.torch_device, run.precision),
        }
        write_cell(self._models.out, cell, surroundings, json.dumps(self._by_class(answers), indent=1) + "\n")
        return True

    def _good(self, cell: Cell) -> bool:
        """Whether a cell comes from this original, these images and the precision asked for."""
        same = cell.models["original"] == self._original.digest and cell.data == self._data
        return same and self._models.precision in (None, cell.precision)

    def open(self, seed: int) -> None:
        """Open the model of a seed, trained where it is not there, and make its embeddings."""
        if seed == self._seed:
            return
        run = self._run(seed)
        self._original = self._models.open(seed, self._dataset)
        self._original.model.to(run.torch_device)
        self._seen = _Seen.of(self._original.model, self._tested, run)
        if self._transfer is not None:
            text = prompt_embeddings(self._original.encode, self._transfer.classes, self._models.prompts)
            found = _Seen.of(self._original.model, self._transfer.splits["test"], run)
            self._elsewhere = (text.to(run.torch_device), found)
        self._seed = seed

    def _run(self, seed: int) -> Run:
        return Run(seed=seed, device=self._models.device, precision=self._models.precision, progress=False)

    def _setup(self, key: CellKey) -> dict[str, Any]:
        names = self._dataset.classes
        setup = {
            "dataset": self._models.data,
            "transfer": None if self._transfer is None else self._transfer.name,
            "architecture": self._models.arch,
            "recipe": asdict(self._models.recipe) if self._models.trained else {"name": "pretrained"},
            "forgotten": list(key.forget),
            "seed": key.seed,
            "row": key.row,
            "method": "pour-p",
            "setting": key.row,
            "options": {
                "prompts": self._models.prompts,
                "request": PAPER_PROMPTS,
                "forgotten_logit": "keep",
                **({"shrinkage": SHRINKAGE} if key.row == "specific" else {}),
            },
            "text": tensor_digest(self._original.model.text.cpu()),
            "classes": len(names),
        }
        plain: dict[str, Any] = json.loads(json.dumps(setup))
        return plain

    def _forgotten(self, key: CellKey) -> nn.Module:
        original = self._original
        if key.row == "random":
            numbers = torch.Generator().manual_seed(1_000_003 * key.seed + sum(key.forget))
            rows = torch.randn(len(key.forget), original.model.text.shape[1], generator=numbers)
            return forget(original.model, directions=rows)
        names = self._dataset.classes
        return forget_concepts(
            original.model,
            [names[label] for label in key.forget],
            encode=original.encode,
            others=[name for label, name in enumerate(names) if label not in key.forget],
            part=key.row,  # type: ignore[arg-type]
            templates=PAPER_PROMPTS,
        )

    def _values(self, key: CellKey, answers: Mapping[str, Tensor], after: nn.Module) -> dict[str, float]:
        own = torch.isin(self._seen.labels, torch.tensor(key.forget, device=self._seen.labels.device))
        values: dict[str, float] = {}
        for when, suffix in (("before", "_before"), ("after", "")):
            right = (answers[when] == self._seen.labels).double()
            values[f"acc_f{suffix}"] = right[own].mean().item()
            values[f"acc_r{suffix}"] = right[~own].mean().item()
        # A concept that was never recognised has nothing to lose.
        values["fall"] = 1 - values["acc_f"] / values["acc_f_before"] if values["acc_f_before"] else 0.0
        if self._elsewhere is not None:
            text, seen = self._elsewhere
            projected = find_head(after).module.projector(seen.features)  # type: ignore[operator]
            for features, suffix in ((seen.features, "_before"), (projected, "")):
                right = (features @ text.T).argmax(dim=1) == seen.labels
                values[f"transfer{suffix}"] = right.double().mean().item()
        return values

    def _by_class(self, answers: Mapping[str, Tensor]) -> dict[str, Any]:
        """For the bars: how many images of each class there are, and how many were right before and after."""
        size, labels = len(self._dataset.classes), self._seen.labels
        right = {
            when: torch.bincount(labels[found == labels], minlength=size).tolist() for when, found in answers.items()
        }
        counts = torch.bincount(labels, minlength=size).tolist()
        return {"classes": list(self._dataset.classes), "images": counts, **right}

    def _answered(self, key: CellKey, answers: Tensor) -> list[int]:
        own = torch.isin(self._seen.labels, torch.tensor(key.forget, device=self._seen.labels.device))
        counts: list[int] = torch.bincount(answers[own], minlength=len(self._dataset.classes)).tolist()
        return counts


def _data_digest(tested: ImageSplit, transfer: ImageSplit | None) -> str:
    """The digest of the tested images; with a transfer set, the first half of it and of that set's."""
    own = split_digest(tested)
    return own if transfer is None else own[:32] + split_digest(transfer)[:32]


def _folded(model: nn.Module) -> tuple[nn.Module | None, str]:
    try:
        return fold(model), ""
    except UsageError as error:
        return None, str(error)


def _gap(projected: nn.Module, folded: nn.Module, images: Tensor) -> float:
    """The largest difference between the cosines of the projected and of the folded model, in evaluation mode."""
    with torch.inference_mode():
        first, second = (model.eval()(images) for model in (projected, folded))
    scale = find_head(folded).layer.log_scale.exp()  # type: ignore[operator]
    return float(((first - second).abs().max() / scale).item())
