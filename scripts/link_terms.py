"""Link the terms of the glossary at their first use on each page.

    python scripts/link_terms.py [--write]

Prints each page and term without a link, and fails if there are any. ``--write`` adds the links. Headings, tables,
code, formulas and links are not searched. A term is a heading of the third level in the glossary. A comment below the
heading can list other forms: ``<!-- also: class to forget, forget set -->``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
GLOSSARY = Path("reference/glossary.md")
# Pages that consist of a file from another folder.
SKIPPED = {"project/changelog.md", "project/contributing.md"}
MASKED = re.compile(
    r"\A---\n.*?\n---\n"  # front matter
    r"|<!-- results:.*?<!-- end -->"  # generated tables
    r"|<details.*?</details>"
    r"|^[ ]*```.*?^[ ]*```"
    r"|^[ ]*\$\$.*?\$\$"  # formulas
    r"|<!--.*?-->|<[^>\n]+>"
    r"|^:::.*?$|^#.*?$|^[ ]*\|.*?$|^(?:!!!|\?\?\?).*?$|^[ ]*\[[^\]]+\]:.*?$"
    r"|`[^`\n]+`|\$[^$\n]+\$|!?\[[^\]]*\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)


def slug(term: str) -> str:
    """Return the anchor of a heading.

    >>> slug("RUS(r)")
    'rusr'
    """
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", term.lower())).strip("-")


def terms(text: str) -> dict[str, list[str]]:
    """Return the forms of each term of a glossary by its anchor, the longest form first."""
    found = {}
    for match in re.finditer(r"^### (.+?)\n+(?:<!-- also: (.+?) -->)?", text, flags=re.MULTILINE):
        forms = [match[1], *(match[2] or "").split(", ")]
        found[slug(match[1])] = sorted(filter(None, forms), key=len, reverse=True)
    return found


def first_uses(text: str, glossary: dict[str, list[str]]) -> list[tuple[int, int, str]]:
    """Return begin, end and anchor of the first use of each term that no earlier link of the page explains."""
    masked = MASKED.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    forms = sorted(((form, anchor) for anchor, entry in glossary.items() for form in entry), key=lambda x: -len(x[0]))
    uses: dict[str, tuple[int, int, str]] = {}
    for form, anchor in forms:
        spaced = re.escape(form).replace(r"\ ", r"\s+")
        for match in re.finditer(rf"(?<![\w-]){spaced}s?(?![\w(-])", masked, flags=re.IGNORECASE):
            if anchor not in uses or match.start() < uses[anchor][0]:
                uses[anchor] = (match.start(), match.end(), anchor)
            # A shorter term inside this one is no use of the shorter term.
            masked = masked[: match.start()] + "\0" * (match.end() - match.start()) + masked[match.end() :]
    linked = {anchor: text.find(f"{GLOSSARY.name}#{anchor})") for anchor in uses}
    return sorted(use for anchor, use in uses.items() if not 0 <= linked[anchor] < use[0])


def with_links(text: str, uses: list[tuple[int, int, str]], page: Path) -> str:
    """Return a page with a link at each of ``uses``."""
    target = Path(os.path.relpath(GLOSSARY, page.parent)).as_posix()
    for begin, end, anchor in reversed(uses):
        text = f"{text[:begin]}[{text[begin:end]}]({target}#{anchor}){text[end:]}"
    return text


def missing_links(docs: Path, *, write: bool = False) -> list[str]:
    """Return a line for each term without a link, and add the links if ``write`` is set."""
    glossary = terms((docs / GLOSSARY).read_text(encoding="utf-8"))
    missing = []
    for file in sorted(docs.rglob("*.md")):
        page = file.relative_to(docs)
        if page == GLOSSARY or page.as_posix() in SKIPPED:
            continue
        text = file.read_text(encoding="utf-8")
        uses = first_uses(text, glossary)
        missing += [f"{page}:{text.count(chr(10), 0, begin) + 1}: {text[begin:end]!r}" for begin, end, _ in uses]
        if write and uses:
            file.write_text(with_links(text, uses, page), encoding="utf-8")
    return missing


def main() -> int:
    """Check or add the links, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="add the links")
    options = parser.parse_args()
    missing = missing_links(DOCS, write=options.write)
    print("\n".join(missing) or "All terms are linked at their first use.")
    return int(bool(missing) and not options.write)


if __name__ == "__main__":
    sys.exit(main())
