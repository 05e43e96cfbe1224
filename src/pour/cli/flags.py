"""Flags that several commands share."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pour._io import refuse_to_overwrite
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "MORE",
    "RECIPES",
    "Arch",
    "Compile",
    "Data",
    "Device",
    "ExperimentName",
    "Force",
    "Mean",
    "Out",
    "Overwrite",
    "PrecisionFlag",
    "Quiet",
    "Root",
    "Seed",
    "Set",
    "Std",
    "check_model_file",
    "parse_settings",
    "refuse_unread",
]

MORE = "More"
"""Panel of the help for flags that most calls do not need."""

# A literal text, because pour.training.recipes imports torch, which would make --help slow.
RECIPES = "One of fast, long, short, digits, head, scenes."

Out = Annotated[Path, typer.Option(help="File to write.", show_default=False)]
ExperimentName = Annotated[
    str,
    typer.Argument(
        help="digits, cifar10, cifar10-small, cifar100, pathmnist, camvid, voc2012, zeroshot, or a TOML file.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.", rich_help_panel=MORE)]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Warn instead of stopping if models, data and classes contradict each other.",
        rich_help_panel=MORE,
    ),
]
Data = Annotated[str, typer.Option(help="Dataset: a name from pour datasets, a folder (FOLDER@SIZE) or FILE.npz.")]
Root = Annotated[Path | None, typer.Option(help="Data folder; by default POUR_DATA or ~/.cache/pour.")]
Arch = Annotated[
    str | None,
    typer.Option(
        help="Network of plain weights: a name from pour models, or one of your own, as FILE.py:NAME or "
        "package.module:NAME."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:0; by default the GPU, if present.", rich_help_panel=MORE)
]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
PrecisionFlag = Annotated[
    str | None,
    typer.Option("--precision", help="fp32 or bf16; by default bf16 on a GPU that supports it.", rich_help_panel=MORE),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the encoders that methods train; faster on a GPU with many runs.",
        rich_help_panel=MORE,
    ),
]


def _of_plain_weights(flag: str, help: str) -> Any:
    return typer.Option(
        flag, help=f"For plain weights: {help}", rich_help_panel=MORE, show_default="the architecture's"
    )


Mean = Annotated[
    str | None,
    _of_plain_weights("--mean", "channel means of images in [0, 1], as 0.5,0.5,0.5 or one number."),
]
Std = Annotated[str | None, _of_plain_weights("--std", "channel deviations, as 0.25,0.25,0.25 or one number.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress bar and no table.", rich_help_panel=MORE)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting, such as enlarge=2, or in training recipe.epochs=5; may be given several times.",
        metavar="KEY=VALUE",
    ),
]


def check_model_file(out: Path, *, overwrite: bool) -> None:
    """Raise UsageError if the model file or the JSON file next to it must not be written."""
    # Two models whose names differ in their endings alone would share one JSON file.
    if out.suffix.lower() != ".safetensors":
        from pour.models.state import TORCH_SUFFIXES

        stem = out.stem if out.suffix.lower() in {".json", *TORCH_SUFFIXES} else out.name
        raise UsageError(f"{out} does not end in .safetensors, as a model must; call it {stem}.safetensors.")
    refuse_to_overwrite(out, overwrite=overwrite)
    record = out.with_suffix(".json")
    if record.exists() and not out.exists() and not overwrite:
        problem = f"{record}, which belongs to {out}, already exists although {out.name} does not"
        raise UsageError(f"{problem}; pass --overwrite to replace it, or choose another name.")
    refuse_to_overwrite(record, overwrite=overwrite)


def parse_settings(settings: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of `--set KEY=VALUE` by key; a value is read as TOML, or as text if it is no TOML.

    Examples:
        >>> parse_settings(["enlarge=2", "head=simplex", "seeds=[0, 1]"])
        {'enlarge': 2, 'head': 'simplex', 'seeds': [0, 1]}
    """
    values: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise UsageError(f"--set takes KEY=VALUE, such as enlarge=2, but got {setting!r}.")
        try:
            values[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = value
    return values


def refuse_unread(flags: Mapping[str, object], where: str, advice: str = "leave it out") -> None:
    """Raise UsageError for the first flag that was passed and has no use.

    Args:
        flags: Values of flags without use, by name; None, False and an empty list were not passed.
        where: Situation in which the flags have no use, such as "without --data".
        advice: Remedy.
    """
    for flag, value in flags.items():
        if value is not None and value is not False and value != []:
            raise UsageError(f"{flag} has no use {where}; {advice}.")
