"""The command line: parse the arguments, call pour, print the result. No other subpackage imports it."""

from __future__ import annotations

import importlib
import os
import sys
import time
import warnings
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

import pour
from pour._memory import keep_freed_memory
from pour.cli.examples import help_footer
from pour.cli.in_flags import flags_of, in_flags
from pour.cli.interruption import after_interruption
from pour.cli.method_flags import chosen_method, with_method_options
from pour.errors import PourError, UsageError

__all__ = ["main", "make_app"]


GROUPS = {
    "Start": ("demo", "inspect"),
    "Models": ("train", "unlearn", "audit", "view", "export", "history"),
    "Compare methods": ("bench", "tune", "table", "study"),
    "Methods, data and weights": ("methods", "metrics", "datasets", "models", "weights", "texts"),
}
"""Names of the commands in the panels of `pour --help`; each is a function in a module of the same name."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
"""Names of all commands, in the order of `pour --help`."""
_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Exit with 0 on success, 2 on wrong use and 1 on failed work."""
    warnings.showwarning = _show_warning
    keep_freed_memory()
    if os.environ.get("NO_COLOR"):
        from typer import rich_utils

        # rich omits colours, but would still print bold text.
        rich_utils.COLOR_SYSTEM = None
    try:
        make_app(sys.argv[1:])()
    except UsageError as error:
        _complain(str(error))
        sys.exit(2)
    except PourError as error:
        _complain(str(error))
        sys.exit(1)
    except OSError as error:
        # An error of the user's folder or disk is reported without a traceback.
        _complain(f"{error.filename or 'The work'} failed: {error.strerror or error}.")
        sys.exit(1)
    except KeyboardInterrupt:
        _complain(_Command.interruption)
        sys.exit(_INTERRUPTED)
    except SystemExit as ended:
        # Typer ends an interrupted command without a message.
        if ended.code == _INTERRUPTED:
            _complain(_Command.interruption)
        raise


def make_app(arguments: list[str]) -> typer.Typer:
    """Return the application, with the flags of the method that `arguments` name."""
    app = typer.Typer(
        name="pour",
        cls=_Group,
        help="Make a trained vision model forget classes, and measure how much of them is left.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    method = None
    if "unlearn" in arguments:
        from pour.unlearning import get_method

        method = get_method(chosen_method(arguments))
    for group, names in GROUPS.items():
        for name in names:
            command = getattr(importlib.import_module(f"pour.cli.{name}"), name)
            flagged = with_method_options(command, method) if name == "unlearn" else command
            app.command(cls=_Command, rich_help_panel=group)(flagged)
    return app


class _Group(TyperGroup):
    """All commands, with examples below their list."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, and write the examples, which are printed next."""
        super().format_help(ctx, formatter)
        formatter.write(help_footer(""))


class _Command(TyperCommand):
    """Command with examples below its help, whose errors and warnings name its flags instead of arguments."""

    running: ClassVar[_Command | None] = None
    interruption: ClassVar[str] = "Interrupted before the work began; start the same command again."

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, and write the examples, which are printed next."""
        super().format_help(ctx, formatter)
        formatter.write(help_footer(str(self.name)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Note what it leaves if it is interrupted."""
        started = time.time()
        _Command.running = self
        try:
            return super().invoke(ctx)
        except PourError as error:
            error.args = (in_flags(str(error), flags_of(self)),)
            raise
        except KeyboardInterrupt as error:
            _Command.interruption = after_interruption(str(self.name), ctx.params, started)
            raise typer.Exit(_INTERRUPTED) from error
        finally:
            _Command.running = None


def _complain(sentence: str) -> None:
    print(f"pour: {sentence}", file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    command = _Command.running
    text = str(message) if command is None else in_flags(str(message), flags_of(command))
    print(f"pour: warning: {text}", file=sys.stderr)


def _version(value: bool) -> None:
    if value:
        typer.echo(pour.__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
