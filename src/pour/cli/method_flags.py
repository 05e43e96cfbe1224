"""Options of a method as flags of the command line, with the types and the help of its dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pour.unlearning.contract import Method

__all__ = ["DEFAULT_METHOD", "chosen_method", "with_method_options"]

DEFAULT_METHOD = "pour-a"
_PREFIX = "option_"


def chosen_method(arguments: Sequence[str]) -> str:
    """Return the value of `--method` among the arguments of a command, before they are parsed.

    Examples:
        >>> chosen_method(["m.safetensors", "--method", "delete"]), chosen_method(["--method=ssd"]), chosen_method([])
        ('delete', 'ssd', 'pour-a')
    """
    for position, argument in enumerate(arguments):
        if argument == "--method" and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith("--method="):
            return argument.removeprefix("--method=")
    return DEFAULT_METHOD


def with_method_options(command: Callable[..., None], method: type[Method] | None) -> Callable[..., None]:
    """Return `command` with a flag for each option of `method`. It gets the values as the dict `options`."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
    flags = [] if method is None else _flags(method)

    def wrapper(**arguments: Any) -> None:
        values = {flag.name.removeprefix(_PREFIX): arguments.pop(flag.name) for flag in flags}
        command(**arguments, options={name: value for name, value in values.items() if value is not None})

    parameters += flags
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _flags(method: type[Method]) -> list[inspect.Parameter]:
    """Return one flag per option of `method` that the command line can write."""
    from pour.unlearning.contract import declaration, types_of

    flags: list[inspect.Parameter] = []
    for field in dataclasses.fields(method):
        kind = _writable(types_of(method).get(field.name))
        if kind is None:
            continue
        dashed = field.name.replace("_", "-")
        default = "" if field.default is None else f" Default: {field.default}."
        flag = typer.Option(
            f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}",
            help=f"{declaration(method, field.name).get('help', '')}{default}".strip(),
            show_default=False,
            rich_help_panel=f"Options of {method.name}",
        )
        annotation = Annotated[Optional[kind], flag]  # type: ignore[valid-type]  # noqa: UP045
        flags.append(
            inspect.Parameter(_PREFIX + field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return flags


def _writable(hint: Any) -> Any:
    """Return the type of an option that the command line can write, or None."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [argument for argument in get_args(hint) if argument is not type(None)]
        return _writable(inner[0]) if len(inner) == 1 else None
    if get_origin(hint) is Literal or hint in (bool, int, float, str):
        return hint
    return None
