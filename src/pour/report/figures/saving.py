"""Figures as files, and as SVG to put into a page; the same figure gives the same bytes."""

from __future__ import annotations

import hashlib
import html
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._io import atomic_path
from pour.errors import UsageError
from pour.report.figures.style import settings

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

__all__ = ["figure_svg", "save_figure"]

# Dates and version numbers would make each saving a different file.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# The style sheet would rule over the whole page; what it says is put on the element itself.
_NOT_FOR_PAGES = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<title>.*?</title>|<style.*?</style>", re.DOTALL
)
_NAMED = re.compile(r' id="([^"]*)"')
_REFERRED = re.compile(r'(?<=url\(#)[^)]*(?=\))|(?<=href="#)[^"]*(?=")')


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG, SVG or PDF, whichever the name ends in; whole or not at all.

    Args:
        figure: what a ``draw_`` function gave.
        path: an earlier file at the same place is replaced.

    Returns:
        The path.
    """
    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    if kind not in _METADATA:
        raise UsageError(f"{target} does not say which kind of picture it is; let it end in .png, .svg or .pdf.")
    with settings(), atomic_path(target) as temporary:
        metadata = _METADATA[kind]
        if kind == "png":
            metadata = {**metadata, "Description": str(figure.get_label()) or None}
        elif figure.get_label():
            metadata = {**metadata, "Title": str(figure.get_label())}
        figure.savefig(temporary, format=kind, metadata=metadata)
    return target


def figure_svg(figure: Figure) -> str:
    """Give a figure as an ``<svg>`` element for a page: no background, no comments, no address, no foreign fonts.

    The names inside are made from the contents, so that several figures in one page do not take each other's parts.
    Letters are drawn as paths; the figure's label, a sentence on what it shows, is there for screen readers.
    """
    with settings():
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=_METADATA["svg"], transparent=True)
    svg = _NOT_FOR_PAGES.sub("", buffer.getvalue()).strip()
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href=", "href=")
    mark = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
    # Equal pictures get equal names, which a page may hold only once; nothing refers to them.
    used = set(_REFERRED.findall(svg))
    svg = _NAMED.sub(lambda found: f' id="{mark}{found[1]}"' if found[1] in used else "", svg)
    svg = _REFERRED.sub(lambda found: mark + found[0], svg)
    said = html.escape(str(figure.get_label()), quote=True)
    return svg.replace(
        "<svg ", f'<svg role="img" aria-label="{said}" stroke-linejoin="round" stroke-linecap="butt" ', 1
    )
