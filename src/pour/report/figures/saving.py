"""Write a figure to a file, or as SVG for a page. The same figure gives the same bytes."""

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

# Dates and versions would make each file different.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# A style sheet inside the SVG would apply to the whole page; figure_svg sets the same on the element.
_NOT_FOR_PAGES = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<title>.*?</title>|<style.*?</style>", re.DOTALL
)
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?<=url\(#)[^)]*(?=\))|(?<=href="#)[^"]*(?=")')


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure of a `draw_` function to a file and return its path. Replace an existing file only if it works.

    Args:
        figure: Figure.
        path: File with the suffix .png, .svg or .pdf, which sets the format.
    """
    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    if kind not in _METADATA:
        raise UsageError(f"{target} does not say which kind of picture it is; let it end in .png, .svg or .pdf.")
    label = {"Description" if kind == "png" else "Title": str(figure.get_label()) or None}
    with settings(), atomic_path(target) as temporary:
        figure.savefig(temporary, format=kind, metadata={**_METADATA[kind], **label})
    return target


def figure_svg(figure: Figure) -> str:
    """Return a figure as an `<svg>` element of a page, without background, comments, addresses and fonts.

    Ids inside contain a digest of the drawing, so that several figures can be in one page. Letters are paths, and the
    figure's label is the text for screen readers.
    """
    with settings():
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=_METADATA["svg"], transparent=True)
    svg = _NOT_FOR_PAGES.sub("", buffer.getvalue()).strip()
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href=", "href=")
    mark = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
    # Ids without a reference are removed: equal figures would repeat them on a page.
    used = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda match: f' id="{mark}{match[1]}"' if match[1] in used else "", svg)
    svg = _REFERENCE.sub(lambda match: mark + match[0], svg)
    label = html.escape(str(figure.get_label()), quote=True)
    return svg.replace(
        "<svg ", f'<svg role="img" aria-label="{label}" stroke-linejoin="round" stroke-linecap="butt" ', 1
    )
