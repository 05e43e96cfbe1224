"""The paper's segmentation experiment: forget classes one by one from a network that scores every pixel."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pour._io import write_text
from pour._progress import ProgressBar
from pour._provenance import circumstances
from pour._version import __version__
from pour.auditing.audit import audit
from pour.bench.attempt import attempt
from pour.bench.compute_cell import cell_setup, measured
from pour.bench.runner import Outcome
from pour.bench.segmentation_experiment import SceneExperiment, scene_experiment
from pour.bench.selection import relative_change
from pour.bench.store import (
    Cell,
    CellKey,
    check_experiment,
    check_folder,
    read_cell,
    settled_precision,
    write_cell,
    write_experiment,
)
from pour.data.registry import load_segmentation
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.models.checkpoint import load, save
from pour.models.history import history
from pour.models.networks.pretrained import read_weights
from pour.models.state import digest
from pour.training.run import Run
from pour.training.tasks.segment import Segment
from pour.unlearning.registry import get_method
from pour.unlearning.request import ForgetRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.bench.experiments import Row
    from pour.data.formats.scenes import SegmentationDataset
    from pour.training.run import Precision

__all__ = ["run_scenes"]

_OVERLAYS = ("pour-p", "pour-d")


def run_scenes(
    experiment: SceneExperiment | str,
    out: str | Path,
    *,
    root: str | Path | None = None,
    weights: str | Path | None = None,
    methods: Iterable[str] | None = None,
    seeds: Sequence[int] | None = None,
    forget: Sequence[str] | None = None,
    epochs: int | None = None,
    limit: int | None = None,
    pixels: int = 10_000,
    device: str | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> Outcome:
    """Train the network where it is not there, and make every cell that is not in the store yet.

    The same call goes on where it was stopped. The network counts as there while its file is whole and was trained in
    the same way from the same weights on the same images; else it is trained again. A cell counts as done while its
    file is whole, its options and images are the ones asked for and its original is that of the store. A store whose
    network, recipe, weights, number of images or precision is another one is refused.

    Args:
        experiment: one of ours by name, or your own.
        out: the folder of the store: ``cells/``, ``models/``, and ``overlays/`` with pictures.
        root: the data folder, by default ``POUR_DATA`` or ``~/.cache/pour``.
        weights: what training starts from, for the whole network or its encoder: a file, or a name of ``pour weights``.
        methods: only these, by method or by row; the original is always measured.
        seeds: instead of the experiment's.
        forget: instead of the experiment's classes; each is a request of its own.
        epochs: instead of the recipe's.
        limit: read only so many images of each split.
        pixels: how many pixels to draw on each side for CKA and RUS.
        device: where to compute, by default the GPU where there is one.
        precision: fp32 or bf16; by default what the network and cells that are there have, else bf16 on a GPU that
            has it. The audit is always in fp32.
        progress: show a progress bar.
    """
    grid = scene_experiment(experiment) if isinstance(experiment, str) else experiment
    grid = replace(
        grid,
        recipe=grid.recipe.change(epochs=epochs),
        seeds=tuple(dict.fromkeys(grid.seeds if seeds is None else seeds)),
        forget=grid.forget if forget is None else tuple(forget),
    )
    folder = Path(out)
    check_folder(folder)
    bench = _Bench(
        grid=grid,
        out=folder,
        data=load_segmentation(grid.dataset, root),
        weights=weights,
        weights_digest=None if weights is None else digest(read_weights(weights)),
        limit=limit,
        pixels=pixels,
        device=device,
        precision=settled_precision(folder, precision),
        progress=progress,
    )
    rows = _selected(grid, methods)
    classes = list(dict.fromkeys(bench.data.indices([name]) for name in grid.forget))
    requests = [(seed, forgotten) for seed in grid.seeds for forgotten in classes]
    described = replace(
        grid.stored(tuple(classes)),
        settings={"enlarge": grid.enlarge, "limit": limit, "weights": bench.weights_digest},
    )
    check_experiment(folder, described)
    if requests:
        # The folder is claimed once there is a network: one that cannot be trained is no experiment.
        bench.original(grid.seeds[0])
    write_experiment(folder, described)
    done = 0
    total = len(requests) * len(rows)
    with ProgressBar(total, f"bench {grid.name}", enabled=progress) as bar:
        for number, (seed, forgotten) in enumerate(requests):
            for row in rows:
                done += bench.make(row, CellKey(forgotten, seed, row.name))
                bar.update(number * len(rows) + rows.index(row) + 1, note=f"{row.name}, seed {seed}")
    keys = [CellKey(forgotten, seed, row.name) for seed, forgotten in requests for row in rows]
    cells = [cell for key in keys if (cell := read_cell(folder, key)) is not None]
    failed = tuple(f"{cell.key.row}, {cell.forgotten_names[0]}: {cell.failed}" for cell in cells if cell.failed)
    return Outcome(out=folder, done=done, kept=total - done, failed=failed)


def _selected(grid: SceneExperiment, methods: Iterable[str] | None) -> tuple[Row, ...]:
    if methods is None:
        return grid.rows
    wanted = set(methods)
    known = {name for row in grid.rows for name in (row.name, row.method) if name is not None}
    if wanted - known:
        raise UsageError(f"{grid.name} has no method {min(wanted - known)!r}; it has {', '.join(sorted(known))}.")
    return tuple(row for row in grid.rows if row.method is None or {row.name, row.method} & wanted)


@dataclass(kw_only=True)
class _Bench:
    """Data and models of a grid, read once."""

    grid: SceneExperiment
    out: Path
    data: SegmentationDataset
    weights: str | Path | None
    weights_digest: str | None
    """SHA-256 of the weights that training starts from."""
    limit: int | None
    pixels: int
    device: str | None
    precision: Precision | None
    progress: bool
    _scenes: dict[str, Scenes] | None = None
    _original: tuple[int, nn.Module, str] | None = None

    def scenes(self, split: str) -> Scenes:
        """A split, in memory."""
        self._scenes = self._scenes or {}
        if split not in self._scenes:
            self._scenes[split] = Scenes.of(self.data.splits[split], limit=self.limit)
        return self._scenes[split]

    @cached_property
    def data_digest(self) -> str:
        """SHA-256 of the training and test images and masks."""
        total = hashlib.sha256()
        for split in ("train", "test"):
            total.update(self.scenes(split).images.tobytes())
            total.update(self.scenes(split).masks.tobytes())
        return total.hexdigest()

    def make(self, row: Row, key: CellKey) -> bool:
        """Make a cell unless it is there; say whether it was made."""
        model, original = self.original(key.seed)
        setup = self._setup(row, key)
        there = read_cell(self.out, key)
        if there is not None and there.setup == setup and self._good(there, original):
            return False
        run = self._run(key.seed)
        started = time.perf_counter()
        request = ForgetRequest.of_scenes(self.scenes("train"), key.forget)
        tried = attempt(row, model, request, run)
        given = tried.model if row.method is not None else None
        if given is not None and not math.isfinite(relative_change(model, given)):
            tried = replace(tried, model=None, failed="The weights are not finite.")
        unlearned, failed, report = tried.model, tried.failed, None
        between = time.perf_counter()
        if unlearned is not None:
            try:
                report = self._audited(model, unlearned, key)
            except UsageError as error:
                if row.method is None:
                    raise
                failed = str(error)
        seconds = {"unlearn": between - started, "audit": time.perf_counter() - between}
        cell = Cell(
            setup=setup,
            models={"original": original}
            | ({} if report is None else {"unlearned": report.models["unlearned"].digest}),
            data=self.data_digest,
            precision=str(run.precision),
            versions={"pour": __version__, "torch": torch.__version__, "python": platform.python_version()},
            family=row.family,
            needs=() if row.method is None else get_method(row.method).needs,
            note=row.note,
            forgotten_names=tuple(self.data.classes[label] for label in key.forget),
            failed=failed,
            warnings=tried.warnings,
            rate_factor=tried.rate_factor,
            steps=0 if unlearned is None or row.method is None else history(unlearned)[-1].steps or 0,
            **({} if report is None else measured(report)),
        )
        if unlearned is not None and report is not None and row.name in _OVERLAYS:
            self._draw(model, unlearned, row, key, run)
        surroundings = {"seconds": seconds, "host": platform.node(), **circumstances(run.torch_device, run.precision)}
        write_cell(self.out, cell, surroundings, None if report is None else report.to_json() + "\n")
        return True

    def _good(self, cell: Cell, original: str) -> bool:
        """Whether a cell comes from this original, these images and the precision asked for."""
        same = cell.models["original"] == original and cell.data == self.data_digest
        return same and self.precision in (None, cell.precision)

    def original(self, seed: int) -> tuple[nn.Module, str]:
        """The network of a seed and its digest, trained where the store has none that was trained in the same way."""
        if self._original is not None and self._original[0] == seed:
            return self._original[1:]
        file = self.out / "models" / f"seed-{seed}" / "original.safetensors"
        found = self._stored(file, seed)
        if found is None:
            self._train(seed, file)
            model = load(file)
            found = model, digest(model.state_dict())
        self._original = (seed, *found)
        return found

    def _stored(self, file: Path, seed: int) -> tuple[nn.Module, str] | None:
        """The network in a file, or None where it is missing, damaged or was trained in another way."""
        wanted = self._identity(seed)
        try:
            stored = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            same = all(name in stored and stored[name] == value for name, value in wanted.items())
            if not same or self.precision not in (None, stored["precision"]):
                return None
            model = load(file)
        except (OSError, ValueError, KeyError, TypeError):
            # UsageError, the sentence for a damaged file, is a ValueError too: what cannot be read is trained again.
            return None
        found = digest(model.state_dict())
        return (model, found) if found == stored.get("digest") else None

    def _identity(self, seed: int) -> dict[str, Any]:
        """What decides the weights of the original, but for the precision, which counts only where it is asked for."""
        return {
            "dataset": self.grid.dataset,
            "architecture": self.grid.architecture,
            "recipe": asdict(self.grid.recipe),
            "enlarge": self.grid.enlarge,
            "limit": self.limit,
            "seed": seed,
            "weights": self.weights_digest,
            "data": self.data_digest,
        }

    def _train(self, seed: int, file: Path) -> None:
        run = replace(self._run(seed), progress=self.progress)
        weights = None if self.weights is None else str(self.weights)
        task = Segment(weights=weights, enlarge=self.grid.enlarge, limit=self.limit)
        model, log = task.train(
            self.data,
            self.grid.recipe,
            run,
            arch=self.grid.architecture,
            resume=file.with_name(f"{file.name}.resume"),
        )
        described = task.describe(model, self.data, run)
        save(model.cpu(), file, overwrite=True)
        facts = {
            **self._identity(seed),
            "digest": digest(model.state_dict()),
            **described,
            "training": {**log.to_dict(), "losses": log.losses[-1:]},
            **circumstances(run.torch_device, run.precision),
        }
        write_text(file.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")

    def _run(self, seed: int) -> Run:
        return Run(seed=seed, device=self.device, precision=self.precision, progress=False)

    def _setup(self, row: Row, key: CellKey) -> dict[str, Any]:
        more = {"enlarge": self.grid.enlarge, "limit": self.limit, "pixels": self.pixels}
        return cell_setup(self.grid, row, key, **more)

    def _audited(self, model: nn.Module, unlearned: nn.Module, key: CellKey) -> AuditReport:
        return audit(
            original=model,
            unlearned=unlearned,
            data=self.data,
            classes=list(key.forget),
            task=Segment(pixels=self.pixels, limit=self.limit),
            seed=key.seed,
            device=self.device,
            progress=False,
        )

    def _draw(self, model: nn.Module, unlearned: nn.Module, row: Row, key: CellKey, run: Run) -> None:
        from pour.report.figures.masks import draw_segmentation
        from pour.report.page.overlays import choose_scenes, overlay_data, save_small

        shown = choose_scenes(self.scenes("test"), key.forget, 2)
        data = overlay_data(model, unlearned, shown, run, classes=self.data.classes, forgotten=key.forget)
        name = "-".join(self.data.classes[label].lower() for label in key.forget)
        save_small(draw_segmentation(data), self.out / "overlays" / f"{name}-{row.name}-seed-{key.seed}.png")
