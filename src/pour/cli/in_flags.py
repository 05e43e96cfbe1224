"""Replace the arguments that a message of the library names by the flags of a command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typer.core import TyperCommand

__all__ = ["ARGUMENT", "WITHOUT_FLAG", "flags_of", "in_flags"]

ARGUMENT = re.compile(
    r"""(?<![\w./:="'-])(?<!\w\()"""  # Not inside a path, a quoted name, a call or another argument.
    r"""(?P<name>[a-z][a-z_]*)=(?P<value>"[^"]*"|'[^']*'|[\w-]+(?:\.[\w-]+)*)?"""
)
"""An argument in a message, such as overwrite=True, direction="scores" or data=."""

WITHOUT_FLAG = {
    "allow_remote": "--remote",
    "build": "build= in Python",
    "classes": "--forget",
    "directions": "directions= in Python",
    "download": "--download to pour train",
    "example": "example= in Python",
    "head": "head= in Python (pour inspect lists the layers)",
    "model": "--arch",
    "num_classes": "--data",
    "request": "request= in Python",
    "retain": "retain= in Python",
}
"""Remedies for arguments of the library without a flag of the same name."""

_OF_PYTHON = {"wrap the network in pour.models.NormalizedModel": "pass --mean and --std"}
"""Remedies in Python, and the flags that do the same."""


def flags_of(command: TyperCommand) -> dict[str, str]:
    """Return the flags of a command by argument. A switch has the arguments NAME=True and NAME=False as well."""
    flags: dict[str, str] = {}
    for parameter in command.params:
        for flag in parameter.opts:
            name = flag.lstrip("-").replace("-", "_")
            if flag.startswith("--"):
                flags[name] = flag
            if flag.startswith("--") and getattr(parameter, "is_flag", False):
                flags |= {f"{name}=True": flag, f"{name}=False": next(iter(parameter.secondary_opts), flag)}
    return flags


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """Return a message of the library with `flags` in place of the arguments that it names.

    Examples:
        >>> in_flags('The rows depend; take direction="scores".', {"direction": "--direction"})
        'The rows depend; take --direction scores.'
    """

    def replace(match: re.Match[str]) -> str:
        name, value = match["name"], (match["value"] or "").strip("\"'")
        if (switch := f"{name}={value}") in flags:
            return flags[switch]
        if name in flags:
            return f"{flags[name]} {value}".strip()
        return WITHOUT_FLAG.get(name, match[0])

    if "mean" in flags:
        for remedy, of_command in _OF_PYTHON.items():
            message = message.replace(remedy, of_command)
    return ARGUMENT.sub(replace, message)
