"""Find sentences whose noun the reader has to guess, in docstrings, comments, messages, help texts and Markdown.

    python scripts/lint_prose.py src/pour docs --limit 1

Prints each phrase with a cure, and fails if there are more than ``--limit`` per 1,000 words. The phrases are defined in
``prose_patterns.toml``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PROSE = ["docstring", "comment", "message", "help", "markdown"]
MARKUP = [  # Each entry: regular expression, replacement. CODE takes the place of code, links and formatted values.
    (r"(?ms)^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", ""),
    (r"(?s)<!--.*?-->|<[^>\n]{1,200}>|:math:|\$[^$\n]+\$|[*_]{2,3}", " "),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r":\w+(?::\w+)?:`[^`]*`|``[^`]+``|`[^`\n]+`|https?://\S+", "CODE"),
]
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+|\s*(?:\*{0,2}[\w.`*]+(?:,\s*[\w.`*]+)*(?:\s*\([^)]*\))?|:\w+[^:]*):\s+")
SECTION = re.compile(r"\s*(?:Arg(?:ument)?s|Returns?|Raises|Yields?|Examples?|Notes?|Attributes|Parameters)\s*:*\s*$")
NO_PROSE = re.compile(r"noqa|type:|pragma|fmt:|!|ruff:|mypy:|\W*$")


class Rule(NamedTuple):
    """One entry of ``prose_patterns.toml``."""

    name: str
    kinds: list[str]
    cure: str
    patterns: list[re.Pattern[str]]


def rules() -> list[Rule]:
    """Return the rules of ``prose_patterns.toml`` in their order."""
    table = tomllib.loads(Path(__file__).with_name("prose_patterns.toml").read_text(encoding="utf-8"))
    return [
        Rule(
            name,
            rule.get("in", PROSE),
            rule["cure"],
            [re.compile(find.replace("{be}", "(?:is|are|was|were)")) for find in rule["find"]],
        )
        for name, rule in table.items()
    ]


def paragraphs(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yield (line, paragraph) for each paragraph, list item and table cell of ``text``, without markup and doctests."""
    for pattern, replacement in MARKUP:
        for match in reversed(list(re.finditer(pattern, text))):
            lines = "\n" * match[0].count("\n")
            text = text[: match.start()] + match.expand(replacement) + lines + text[match.end() :]
    paragraph: list[str] = []
    start, in_doctest = 0, False
    for number, line in enumerate([*text.split("\n"), ""], first_line):
        stripped = line.strip()
        in_doctest = stripped.startswith(">>>") or (in_doctest and bool(stripped))
        item = ITEM.match(line)
        skipped = not stripped or in_doctest or stripped.startswith("..") or bool(SECTION.match(line))
        if paragraph and (skipped or item or stripped.startswith(("#", "|"))):
            yield start, " ".join(paragraph)
            paragraph = []
        if stripped.startswith("|"):
            yield from ((number, cell.strip()) for cell in stripped.split("|") if len(cell.split()) > 3)
        elif not skipped:
            start = start if paragraph else number
            paragraph.append((line[item.end() :] if item else line).strip(" #*\t"))


def literal(*nodes: ast.expr) -> str:
    """Return the text of string expressions, with CODE between the parts of a formatted string."""
    constants = (part.value for node in nodes for part in ast.walk(node) if isinstance(part, ast.Constant))
    return "CODE".join(value for value in constants if isinstance(value, str))


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each comment; comments on consecutive lines are one text."""
    blocks: dict[int, str] = {}
    first = last = 0
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT:
            first = first if token.start[0] == last + 1 else token.start[0]
            last = token.start[0]
            blocks[first] = f"{blocks.get(first, '')}{token.string.lstrip('#').strip()}\n"
    yield from ((line, text) for line, text in blocks.items() if not NO_PROSE.match(text))


def texts(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, text) for all prose of a file and for each different identifier that a Python file binds."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, "markdown", source
        return
    names = {path.stem: 1}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, "docstring", text
            case ast.Raise(exc=ast.Call(args=arguments)):
                yield node.lineno, "message", literal(*arguments)
            case ast.Call(func=ast.Attribute(attr="warn") | ast.Name(id="warn"), args=[message, *_]):
                yield node.lineno, "message", literal(message)
            case ast.Call(func=ast.Name(id="option"), args=[_, message]):
                yield message.lineno, "help", literal(message)
            case ast.keyword(arg="help", value=message):
                yield message.lineno, "help", literal(message)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.setdefault(name, node.lineno)
    yield from ((line, "name", name) for name, line in names.items())
    yield from ((line, "comment", text) for line, text in comments(source))


def lint(path: Path, rules: list[Rule]) -> tuple[int, list[str]]:
    """Return the number of words in a file, and a line of output for each phrase."""
    words = 0
    hits: list[str] = []
    for line, kind, text in texts(path):
        for index, (number, paragraph) in enumerate([(line, text)] if kind == "name" else paragraphs(text, line)):
            words += len(re.findall(r"\w+(?:[-'./]\w+)*", paragraph)) if kind != "name" else 0
            unmatched = paragraph
            for rule in rules:
                if kind not in rule.kinds or (index > 0 and rule.name.startswith("opening")):
                    continue
                for pattern in rule.patterns:
                    for match in pattern.finditer(unmatched):
                        excerpt = paragraph[max(0, match.start() - 40) : match.end() + 40]
                        hits.append(f"{path}:{number}: {rule.name}: ...{excerpt}... {rule.cure}")
                    unmatched = pattern.sub(lambda match: "_" * len(match[0]), unmatched)
    return words, hits


def main() -> int:
    """Lint the paths of the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a .py or .md file, or a folder of them")
    parser.add_argument("--limit", type=float, default=0.0, help="number of phrases per 1,000 words that passes")
    parser.add_argument("--quiet", action="store_true", help="print only the total if it is below the limit")
    options = parser.parse_args()
    files = [file for path in options.paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    all_rules = rules()
    results = [lint(file, all_rules) for file in files if file.suffix in {".py", ".md"}]
    words = sum(count for count, _ in results)
    hits = [hit for _, file_hits in results for hit in file_hits]
    rate = 1000 * len(hits) / max(1, words)
    if rate > options.limit or not options.quiet:
        print("\n".join(hits))
    print(f"{len(hits)} phrases in {words:,} words: {rate:.2f} per 1,000 words, limit {options.limit:g}")
    return int(rate > options.limit)


if __name__ == "__main__":
    sys.exit(main())
