"""pour texts, and the parts of other commands that concern zero-shot classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import pour
from pour._io import refuse_to_overwrite
from pour.cli.flags import Out, Overwrite, Root
from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Concept",
    "ConceptPart",
    "TextFile",
    "forget_by_text",
    "texts",
]

TextFile = Annotated[
    Path | None,
    typer.Option("--text", help="File of text embeddings from pour texts; by default they are computed."),
]
Concept = Annotated[
    list[str] | None,
    typer.Option(help="For a zero-shot classifier: words to forget; may be given several times."),
]
ConceptPart = Annotated[
    Literal["text", "specific", "centered"] | None,
    typer.Option(
        help="Part of the text embedding to remove: text (all of it, as in the paper), specific (the part outside the "
        "texts of the other classes) or centered (after centring).",
        show_default="specific",
    ),
]


def forget_by_text(model: nn.Module, concepts: list[str], text: Path | None, part: ConceptPart) -> nn.Module:
    """Return a copy of a zero-shot classifier that has forgotten `concepts`."""
    from pour.models import TextTable, ZeroShotClassifier, forget_concepts, minilm_encoder

    if not isinstance(model, ZeroShotClassifier):
        raise UsageError(
            "--concept is for zero-shot classifiers (pour train --arch clip-resnet18); name classes with --forget."
        )
    encode = minilm_encoder() if text is None else TextTable.load(text)
    return forget_concepts(model, concepts, encode=encode, part=part or "specific")


def texts(
    out: Out,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Dataset whose class names are inserted into all templates; may be given several times."),
    ] = None,
    concept: Annotated[
        list[str] | None, typer.Option(help="Further text, used unchanged; may be given several times.")
    ] = None,
    root: Root = None,
    overwrite: Overwrite = False,
) -> None:
    """Compute text embeddings with the sentence encoder.

    Use it for machines without this encoder: pour train and pour bench zeroshot read the file with --set text=FILE.
    """
    from pour.models import CAPTIONS, PROMPTS, TextTable, minilm_encoder
    from pour.models.clip.texts import prompts_of

    refuse_to_overwrite(out, overwrite=overwrite)
    names = [name for each in data or ["cifar100", "cifar10"] for name in pour.load_dataset(each, root).classes]
    all_texts = [*prompts_of(names, (*CAPTIONS, *PROMPTS)), *(concept or ())]
    table = TextTable.encode(minilm_encoder(), all_texts, name="all-MiniLM-L6-v2")
    table.save(out)
    typer.echo(f"{len(table.texts)} texts of width {table.embeddings.shape[1]}: {out}")
