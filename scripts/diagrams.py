"""Draw the diagrams of calls as SVG from their text (make docs).

    python scripts/diagrams.py

Reads each ``docs/images/diagrams/NAME.txt`` and writes ``NAME.svg``. A line ``file: words`` is a box with a file and
its task; ``//`` begins a new line. A line ``file -> file`` is a call, and ``file ..> file`` is data that is read later.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images" / "diagrams"
LETTER, LINE, MARGIN, COLUMN_GAP, ROW_GAP = 7.4, 18, 12, 46, 22
STYLE = """
    rect { fill: #6b7fd7; fill-opacity: .13; stroke: #6b7fd7; stroke-width: 1.4 }
    text { fill: #3f4a66; font-size: 13px }
    .file { font-family: ui-monospace, monospace; font-size: 12px; font-weight: 600 }
    path { stroke: #7c869c; stroke-width: 1.5; fill: none } .later { stroke-dasharray: 4 4 }
    @media (prefers-color-scheme: dark) { text { fill: #c5cbe0 } }
"""


@dataclass
class Box:
    """A file and what it does, at a place of the diagram."""

    file: str
    words: list[str]
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    callers: list[str] = field(default_factory=list)

    @property
    def width(self) -> float:
        """Width of the longest line and of the margins."""
        return max(LETTER * 1.08 * len(self.file), *(LETTER * len(line) for line in self.words), 60) + 2 * MARGIN

    @property
    def height(self) -> float:
        """Height of all lines and of the margins."""
        return LINE * (1 + len(self.words)) + 1.4 * MARGIN


def parse(text: str) -> tuple[dict[str, Box], list[tuple[str, str, bool]]]:
    """Return the boxes by file, and the arrows: from, to, and whether the data is read later."""
    boxes: dict[str, Box] = {}
    arrows = []
    for line in filter(None, map(str.strip, text.splitlines())):
        arrow = re.fullmatch(r"(\S+) (->|\.\.>) (\S+)", line)
        if arrow:
            arrows.append((arrow[1], arrow[3], arrow[2] == "..>"))
        else:
            file, _, words = line.partition(": ")
            boxes[file] = Box(file, [part.strip() for part in words.split("//")] if words else [])
    for begin, end, _ in arrows:
        boxes[end].callers.append(begin)
    for _ in boxes:
        for box in boxes.values():
            box.column = max([box.column, *(boxes[caller].column + 1 for caller in box.callers)])
    return boxes, arrows


def place(boxes: dict[str, Box]) -> tuple[float, float]:
    """Set the place of each box. Return width and height of the diagram."""
    x = height = 0.0
    columns = [
        [box for box in boxes.values() if box.column == n] for n in range(1 + max(b.column for b in boxes.values()))
    ]
    tallest = max(sum(box.height + ROW_GAP for box in column) for column in columns) - ROW_GAP
    for column in columns:
        y = (tallest - sum(box.height + ROW_GAP for box in column) + ROW_GAP) / 2
        for box in column:
            box.x, box.y = x, y
            y += box.height + ROW_GAP
        x += max(box.width for box in column) + COLUMN_GAP
        height = max(height, y)
    return x - COLUMN_GAP, tallest


def draw(text: str, title: str) -> str:
    """Return the SVG of a diagram."""
    boxes, arrows = parse(text)
    width, height = place(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8:.0f} {height + 8:.0f}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title><style>{STYLE}</style>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:#7c869c;stroke:none"/></marker></defs>',
    ]
    for begin, end, later in arrows:
        first, second = boxes[begin], boxes[end]
        x1, y1 = first.x + first.width, first.y + first.height / 2
        x2, y2 = second.x, second.y + second.height / 2
        bend = (x2 - x1) / 2
        kind = ' class="later"' if later else ""
        curve = f"M{x1:.0f} {y1:.0f}C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2 - 2:.0f} {y2:.0f}"
        parts.append(f'<path{kind} d="{curve}" marker-end="url(#tip)"/>')
    for box in boxes.values():
        parts.append(
            f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="7"/>'
        )
        for number, line in enumerate([box.file, *box.words]):
            kind = ' class="file"' if number == 0 else ""
            y = box.y + MARGIN + LINE * (number + 0.7)
            parts.append(f'<text{kind} x="{box.x + MARGIN:.0f}" y="{y:.0f}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    """Draw all diagrams and return the exit code."""
    for file in sorted(FOLDER.glob("*.txt")):
        file.with_suffix(".svg").write_text(
            draw(file.read_text(encoding="utf-8"), f"Calls of {file.stem}"), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
