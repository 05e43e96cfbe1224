"""The zero-shot experiment: forget concepts by their text, one by one and all at once, and see what else goes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pour._progress import ProgressBar
from pour.bench.experiments import Row
from pour.bench.runner import Outcome
from pour.bench.store import (
    CellKey,
    StoredExperiment,
    check_experiment,
    check_folder,
    read_experiment,
    settled_precision,
    write_experiment,
)
from pour.bench.zeroshot_cells import Cells
from pour.bench.zeroshot_models import ZeroShotModels
from pour.data.classes import resolve_classes
from pour.data.registry import load_dataset
from pour.errors import UsageError
from pour.training.recipes import Recipe, get_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pour.data.dataset import ImageDataset
    from pour.training.run import Precision

__all__ = ["CONCEPTS", "ROWS", "ZERO_SHOT", "ZeroShotRow", "run_zero_shot"]

ZERO_SHOT = "zeroshot"
"""The experiment's name."""
ZeroShotRow = Literal["text", "specific", "centered", "random"]
ROWS: tuple[ZeroShotRow, ...] = ("text", "specific", "centered", "random")
"""What is removed: the concept's text (the paper), its specific or centred part, or a random direction (control)."""
_CLOSED: dict[str, Any] = {"method": "pour-p", "setting": "closed form"}
ROW_TABLE: dict[str, Row] = {
    "text": Row(name="text", family="paper", label="text (paper)", **_CLOSED),
    "specific": Row(name="specific", family="relative", label="specific", **_CLOSED),
    "centered": Row(name="centered", family="relative", label="centred", **_CLOSED),
    "random": Row(name="random", family="control", label="random (control)", **_CLOSED),
}
COLUMNS = ("acc_f_before", "acc_f", "fall", "acc_r_before", "acc_r", "acc_r_change", "transfer_change")
CONCEPTS = tuple(range(0, 100, 10))
"""The classes of CIFAR-100 that are forgotten, fixed beforehand: every tenth."""
PAPER_CONCEPTS = ("goldfish", "European fire salamander", "boa constrictor", "centipede", "bison")
"""The paper's classes of ImageNet."""


def run_zero_shot(
    out: str | Path,
    *,
    arch: str = "clip-resnet18",
    data: str = "cifar100",
    transfer: str | None = "cifar10",
    text: Path | None = None,
    names: Mapping[str, str] | None = None,
    root: str | Path | None = None,
    rows: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    forget: Sequence[int | str] | None = None,
    recipe: Recipe | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> Outcome:
    """Make every cell of the zero-shot experiment that is not in the store yet.

    A cell is one request (a concept, or all of them at once) and one kind of direction. The request says "a photo of a
    NAME."; an encoder that is trained here is scored with the average of other prompts, which it was not trained on.

    Args:
        out: the folder of the store.
        arch: ``clip-resnet18`` trains one; ``hf:FOLDER``, ``hf:NAME`` and ``open_clip:ARCH@WEIGHTS`` are pretrained.
        data: what is classified; ``folder:PATH@SIZE`` for a folder of images to each class.
        transfer: another dataset, scored with prompts of its own classes before and after; None for none.
        text: a file of text embeddings for an encoder that is trained here; by default they are computed.
        names: what classes are called in texts, by class, where a folder's name is not it.
        root: the data folder.
        rows: only these of :data:`ROWS`.
        seeds: of training; a pretrained encoder has one.
        forget: classes by name or index instead of :data:`CONCEPTS` (or the paper's, where the data has them).
        recipe: how to train; by default ``fast``.
        device: where to compute, by default the GPU where there is one.
        precision: of training; by default that of the cells and models that are there.
        progress: show a progress bar.
    """
    unknown = [row for row in rows or () if row not in ROWS]
    if unknown:
        raise UsageError(f"The zero-shot experiment has no row {unknown[0]!r}; it has {', '.join(ROWS)}.")
    chosen = tuple(row for row in ROWS if rows is None or row in rows)
    folder = Path(out).resolve()
    check_folder(folder)
    models = ZeroShotModels(
        out=folder,
        arch=arch,
        data=data,
        root=None if root is None else Path(root),
        recipe=recipe or get_recipe("fast"),
        text=text,
        names=names or {},
        device=device,
        precision=settled_precision(folder, precision),
        progress=progress,
    )
    dataset = models.dataset()
    requests = _requests(dataset, forget)
    described = _experiment(models, requests, chosen)
    other = None
    if transfer is not None and models.trained:
        other = load_dataset(transfer, models.root)
    used = tuple(dict.fromkeys(seeds)) if models.trained else (0,)
    keys = [CellKey(request, seed, row) for seed in used for request in requests for row in chosen]
    cells = Cells(models, dataset, other)
    if keys:
        # The folder is claimed once there is a classifier: one that cannot be opened is no experiment.
        cells.open(keys[0].seed)
    write_experiment(folder, described)
    done = 0
    with ProgressBar(len(keys), f"bench {ZERO_SHOT}", enabled=progress) as bar:
        for number, key in enumerate(keys, 1):
            done += cells.make(key)
            bar.update(number, note=f"{'+'.join(map(str, key.forget))}, {key.row}")
    return Outcome(out=models.out, done=done, kept=len(keys) - done, failed=())


def _requests(dataset: ImageDataset, forget: Sequence[int | str] | None) -> tuple[tuple[int, ...], ...]:
    """Each class on its own, then all of them at once."""
    listed: Sequence[int | str]
    if forget is not None:
        listed = forget
    elif set(PAPER_CONCEPTS) <= set(dataset.classes):
        listed = PAPER_CONCEPTS
    else:
        listed = [label for label in CONCEPTS if label < dataset.num_classes]
    size, names = dataset.num_classes, dataset.classes
    single = list(dict.fromkeys(resolve_classes(item, num_classes=size, class_names=names)[0] for item in listed))
    together = (tuple(sorted(single)),) if 1 < len(single) <= dataset.num_classes - 2 else ()
    return (*((label,) for label in single), *together)


def _experiment(
    models: ZeroShotModels, requests: tuple[tuple[int, ...], ...], rows: tuple[ZeroShotRow, ...]
) -> StoredExperiment:
    """Return what the store will say of its experiment, with the requests and rows that it already has."""
    known = read_experiment(models.out)
    there = () if known is None else tuple(row.name for row in known.rows)
    asked = StoredExperiment(
        name=ZERO_SHOT,
        dataset=models.data,
        architecture=models.arch,
        recipe=asdict(models.recipe) if models.trained else None,
        forget=requests if known is None else tuple(dict.fromkeys((*known.forget, *requests))),
        rows=tuple(ROW_TABLE[row] for row in ROWS if row in there or row in rows),
        task="match",
        layout="concepts",
        columns=COLUMNS,
        notes=("No image was used to forget, and no score is masked.",),
    )
    return check_experiment(models.out, asked)
