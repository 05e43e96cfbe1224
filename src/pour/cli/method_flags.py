"""A method's options as flags of the command line, typed and explained by its dataclass."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pour.unlearning.contract import Method

__all__ = ["DEFAULT_METHOD", "chosen_method", "field_docs", "with_method_options"]

DEFAULT_METHOD = "pour-a"
_PREFIX = "option_"


def chosen_method(arguments: Sequence[str]) -> str:
    """The value of ``--method`` among a command's arguments, read before they are parsed.

    Example:
        >>> chosen_method(["m.safetensors", "--method", "delete"]), chosen_method(["--method=ssd"]), chosen_method([])
        ('delete', 'ssd', 'pour-a')
    """
    for position, argument in enumerate(arguments):
        if argument == "--method" and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith("--method="):
            return argument.removeprefix("--method=")
    return DEFAULT_METHOD


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, its parents' included.

    Example:
        >>> from pour.methods.pour_p import PourP
        >>> field_docs(PourP)["forgotten_logit"][:35]
        "The forgotten class's own score: ma"
    """
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        if not isinstance(definition, ast.ClassDef):
            continue
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[field.target.id] = " ".join(after.value.value.split())
    return docs


def with_method_options(command: Callable[..., None], method: type[Method] | None) -> Callable[..., None]:
    """``command`` with a flag for each option of ``method``; what is given reaches it as the dict ``options``."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
    flags = [] if method is None else _flags(method)

    def wrapper(**arguments: Any) -> None:
        given = {flag.name.removeprefix(_PREFIX): arguments.pop(flag.name) for flag in flags}
        command(**arguments, options={name: value for name, value in given.items() if value is not None})

    parameters = [*own, *flags]
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _flags(method: type[Method]) -> list[inspect.Parameter]:
    hints = get_type_hints(method)
    docs = field_docs(method)
    flags: list[inspect.Parameter] = []
    for field in dataclasses.fields(method):
        kind = _writable(hints[field.name])
        if kind is None:
            continue
        dashed = field.name.replace("_", "-")
        default = "derived" if field.default is None else field.default
        option = typer.Option(
            f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}",
            help=f"{docs.get(field.name, '')} Default: {default}.".strip(),
            show_default=False,
            rich_help_panel=f"Options of {method.name}",
        )
        annotation = Annotated[Optional[kind], option]  # type: ignore[valid-type]  # noqa: UP045
        flags.append(
            inspect.Parameter(_PREFIX + field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return flags


def _writable(hint: Any) -> Any:
    """The type of an option that the command line can write, or None."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [argument for argument in get_args(hint) if argument is not type(None)]
        return _writable(inner[0]) if len(inner) == 1 else None
    if get_origin(hint) is Literal or hint in (bool, int, float, str):
        return hint
    return None
