"""pour texts, and the parts of other commands that concern zero-shot classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import pour
from pour._io import refuse_to_overwrite
from pour.cli.flags import Out, Overwrite, Root
from pour.cli.terminal import tell_outcome
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from pour.models.clip.texts import TextEncoder

__all__ = [
    "Concept",
    "ConceptPart",
    "TextFile",
    "bench_zero_shot",
    "forget_by_text",
    "open_text",
    "texts",
]

TextFile = Annotated[
    Path | None,
    typer.Option("--text", help="A file of text embeddings from pour texts; by default they are computed."),
]
Concept = Annotated[
    list[str] | None,
    typer.Option(help="For a zero-shot classifier: what to forget, in words; may be given several times."),
]
ConceptPart = Annotated[
    Literal["text", "specific", "centered"] | None,
    typer.Option(
        help="Which part of the words to remove: all (the paper), what other classes' texts lack, centred.",
        show_default="specific",
    ),
]


def open_text(file: Path | None) -> TextEncoder:
    """The text embeddings of a file, or the sentence encoder."""
    from pour.models import TextTable, minilm_encoder

    return minilm_encoder() if file is None else TextTable.load(file)


def forget_by_text(model: nn.Module, concepts: list[str], text: Path | None, part: ConceptPart) -> nn.Module:
    """A copy of a zero-shot classifier that has forgotten ``concepts``."""
    from pour.models import ZeroShotClassifier, forget_concepts

    if not isinstance(model, ZeroShotClassifier):
        raise UsageError(
            "--concept is for zero-shot classifiers (pour train --arch clip-resnet18); name classes with --forget."
        )
    return forget_concepts(model, concepts, encode=open_text(text), part=part or "specific")


def texts(
    out: Out,
    data: Annotated[
        list[str] | None, typer.Option(help="A dataset whose class names go into all templates; several are allowed.")
    ] = None,
    concept: Annotated[list[str] | None, typer.Option(help="A further text, as it is; several are allowed.")] = None,
    root: Root = None,
    overwrite: Overwrite = False,
) -> None:
    """Compute text embeddings with the sentence encoder.

    For machines that lack it: pour train --text and pour bench zeroshot --text read the file.
    """
    from pour.models import CAPTIONS, PROMPTS, TextTable, minilm_encoder
    from pour.models.clip.texts import prompts_of

    refuse_to_overwrite(out, overwrite=overwrite)
    names = [name for each in data or ["cifar100", "cifar10"] for name in pour.load_dataset(each, root).classes]
    wanted = [*prompts_of(names, (*CAPTIONS, *PROMPTS)), *(concept or ())]
    table = TextTable.encode(minilm_encoder(), wanted, name="all-MiniLM-L6-v2")
    table.save(out)
    typer.echo(f"{len(table.texts)} texts of width {table.embeddings.shape[1]}: {out}")


def bench_zero_shot(
    folder: Path,
    *,
    arch: str | None,
    data: str | None,
    text: Path | None,
    names: Path | None,
    root: Path | None,
    rows: list[str] | None,
    seeds: Sequence[int] | None,
    forget: list[str] | None,
    epochs: int | None,
    device: str | None,
    precision: str | None,
    quiet: bool,
) -> None:
    """Forget concepts by text, one by one and all at once; print the table and draw the bars."""
    from pour.bench import show_table
    from pour.bench.zeroshot import run_zero_shot
    from pour.bench.zeroshot_table import save_bars, zero_shot_table
    from pour.training import get_recipe
    from pour.training.tasks.match import read_names

    outcome = run_zero_shot(
        folder,
        arch=arch or "clip-resnet18",
        data=data or "cifar100",
        transfer="cifar10" if data in (None, "cifar100") else None,
        text=text,
        names={} if names is None else read_names(names),
        root=root,
        rows=rows,
        seeds=seeds or (0,),
        forget=forget,
        recipe=get_recipe("fast").change(epochs=epochs),
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    tell_outcome(outcome, folder)
    save_bars(folder)
    if not quiet:
        show_table(zero_shot_table(folder))
