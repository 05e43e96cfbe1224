"""Write the API reference to site/ (make docs)."""

from __future__ import annotations

from pathlib import Path

import pdoc
import pdoc.render

import pour


def main() -> None:
    """Render every public module."""
    for name in pour.__all__:
        # pdoc reads a module's dictionary, and our names get there on first use only.
        setattr(pour, name, getattr(pour, name))
    pdoc.render.configure(docformat="google", math=True)
    pdoc.pdoc("pour", output_directory=Path("site"))


if __name__ == "__main__":
    main()
