"""Run `python -m pour` and the script `pour`."""

import os
import signal
from typing import Any, NoReturn

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C during its imports ends it with a message, too."""
    handler = signal.getsignal(signal.SIGINT)
    # A shell starts its background commands with Ctrl-C ignored.
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from pour.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()


def _end(*_: Any) -> NoReturn:
    # An exception in an import can be caught by the importing package.
    os.write(2, b"pour: Interrupted before the work began; start the same command again.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
