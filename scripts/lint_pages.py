"""Measure the sentences and tables of Markdown pages.

    python scripts/lint_pages.py README.md CONTRIBUTING.md docs

Prints the mean number of words per sentence of each page, each sentence and line that is too long, and each table that
is too wide. Fails if there is one, or if the mean over all pages is too high.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

MEAN_WORDS = 16.0
MOST_WORDS = 35
MOST_CHARACTERS = 120
MOST_COLUMNS = 8

_NO_PROSE = re.compile(
    r"\A---\n.*?\n---\n|<!-- results:.*?<!-- end -->|^[ ]*```.*?^[ ]*```[ ]*$|<!--.*?-->|^[ ]*>[^\n]*|^\$\$.*?^\$\$",
    re.M | re.S,
)
_FOLDED = re.compile(r"<details.*?</details>|^\?\?\?[^\n]*\n(?:(?:[ ]{4}[^\n]*)?\n)*", re.M | re.S)
_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_CODE = re.compile(r"`[^`]+`|\$[^$\n]+\$|https?://\S+")
_END = re.compile(r"(?<=[.!?:])[\"')]*\s+(?=[A-Z0-9\"'(])|(?<=[.!?])\s*$")


class Sentence(NamedTuple):
    """A sentence of a page."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """Number of words; code and formulas count as one word each."""
        return len(re.findall(r"[\w@]+(?:[-'./][\w@]+)*", self.text))


def blank(text: str, pattern: re.Pattern[str]) -> str:
    """Return ``text`` with empty lines instead of the matches of ``pattern``."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of paragraphs and list items, without headings, tables, quotations and code."""
    found: list[Sentence] = []
    paragraph: list[str] = []
    start = 0
    for number, line in enumerate([*blank(text, _NO_PROSE).split("\n"), ""], 1):
        stripped = line.strip()
        item = re.match(r"\s*(?:[-*+]|\d+[.)])\s+", line)
        ends = not stripped or stripped.startswith(("#", "|", "!!!", "???", "===", "--8<--", "[", ":::")) or bool(item)
        if stripped.startswith("[") and not re.match(r"\[[^\]]+\]:", stripped):
            ends = bool(item)
        if ends and paragraph:
            plain = _CODE.sub("CODE", _LINK.sub(r"\1", re.sub(r"<[^>]+>", "", " ".join(paragraph))))
            found += [Sentence(start, part.strip()) for part in _END.split(plain) if part.strip()]
            paragraph = []
        if not ends or item:
            start = start if paragraph else number
            paragraph.append(line[item.end() :] if item else stripped)
    return [sentence for sentence in found if sentence.words]


def problems(path: Path) -> list[str]:
    """Return a line for each sentence, line and table of a page that is too long or too wide."""
    text = path.read_text(encoding="utf-8")
    found = [
        f"{path}:{sentence.line}: {sentence.words} words: {sentence.text[:100]}..."
        for sentence in sentences(text)
        if sentence.words > MOST_WORDS
    ]
    shown = blank(blank(text, _FOLDED), re.compile(r"^[ ]*```.*?^[ ]*```[ ]*$", re.M | re.S))
    for number, line in enumerate(shown.split("\n"), 1):
        columns = line.strip().strip("|").count("|") + 1
        if line.lstrip().startswith("|") and columns > MOST_COLUMNS:
            found.append(f"{path}:{number}: the table has {columns} columns")
    prose = blank(shown, re.compile(r"<!-- results:.*?<!-- end -->", re.S))
    for number, line in enumerate(prose.split("\n"), 1):
        if len(_LINK.sub(r"\1", line)) > MOST_CHARACTERS and not line.lstrip().startswith(("|", "[", "<")):
            found.append(f"{path}:{number}: the line has {len(line)} characters")
    return found


def main() -> int:
    """Lint the pages of the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a page or a folder of pages")
    options = parser.parse_args()
    files = [file for path in options.paths for file in ([path] if path.is_file() else sorted(path.rglob("*.md")))]
    total = words = 0
    found = []
    for file in files:
        lengths = [sentence.words for sentence in sentences(file.read_text(encoding="utf-8"))]
        total, words = total + len(lengths), words + sum(lengths)
        print(f"{sum(lengths) / max(1, len(lengths)):5.1f} words per sentence  {sum(lengths):6,} words  {file}")
        found += problems(file)
    mean = words / max(1, total)
    print("\n".join(found))
    print(f"{mean:.1f} words per sentence in {len(files)} pages, limit {MEAN_WORDS:g}; {len(found)} problems")
    return int(bool(found) or mean > MEAN_WORDS)


if __name__ == "__main__":
    sys.exit(main())
