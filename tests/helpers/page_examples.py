"""Execute the code blocks of a Markdown page as a reader would, and compare their output with the page.

A ``python`` block runs in the namespace of its page. A ``console`` block has commands after ``$`` and their output.
A ``text`` block right after a ``python`` block contains what this block prints. A block with ``title="FILE"`` is a file
that the reader writes. A block of another language, or with ``{.no-run}``, is not executed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from command_line import process
from sybil import Document, Example, Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent>[ ]*)```[ ]*(?P<language>\w*)[ ]*(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S
)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
# Machines round differently, so training ends in slightly different accuracies. Shares are in percent or in [0, 1].
PERCENT, SHARE = 5.0, 0.1
_ERASED = [
    (re.compile(r"\b\d+(?:\.\d+)? (?:s|min|seconds|ms)\b"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8,}\b"), "DIGEST"),
    (re.compile(r"(?:/tmp/|/var/)\S+"), "PATH"),
]


def pages(root: Path) -> dict[str, str]:
    """Return the pages whose front matter sets ``run``, by relative path, with the value: ``fast`` or ``slow``."""
    found = {}
    for file in sorted(root.rglob("*.md")):
        front = re.match(r"---\n(.*?)\n---\n", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        run = re.search(r"^run: (\w+)$", front[1], flags=re.MULTILINE) if front else None
        if run:
            found[str(file.relative_to(root))] = run[1]
    return found


def assert_same_output(expected: str, found: str) -> None:
    """Compare two outputs: equal words, and numbers that differ by no more than training on another machine explains.

    ``...`` on a line of its own stands for any number of lines, and inside a line for any text.
    """
    pattern = _lines(expected)
    assert _match(pattern, _lines(found)), f"The page shows\n{expected}\nbut this was printed\n{found}"


def _lines(text: str) -> list[str]:
    for erased, name in _ERASED:
        text = erased.sub(name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines() if line.strip()]


def _match(expected: list[str], found: list[str]) -> bool:
    if not expected:
        return not found
    if expected[0] == "...":
        return any(_match(expected[1:], found[start:]) for start in range(len(found) + 1))
    return bool(found) and _same_line(expected[0], found[0]) and _match(expected[1:], found[1:])


def _same_line(expected: str, found: str) -> bool:
    parts = [re.escape(NUMBER.sub("#", part)) for part in expected.split("...")]
    numbers = [NUMBER.findall(text) for text in (expected, found)]
    if not re.fullmatch(".*".join(parts), NUMBER.sub("#", found)):
        return False
    return "..." in expected or all(map(_near, *numbers))


def _near(expected: str, found: str) -> bool:
    first, second = (float(number.replace(",", "")) for number in (expected, found))
    if "." not in expected and "." not in found:
        return abs(first - second) <= max(PERCENT if abs(first) > 20 else 3, 0.25 * abs(first))
    return abs(first - second) <= (SHARE if max(abs(first), abs(second)) <= 1.5 else max(PERCENT, 0.2 * abs(first)))


@dataclass
class Page:
    """The examples of one page, and the state that they share."""

    path: Path
    folder: Path
    """Empty folder in which the reader works."""
    languages: tuple[str, ...] = ("python", "console", "text")
    """Languages of the blocks to execute."""
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""
    """What the previous block printed."""
    executed: int = 0

    def run(self) -> int:
        """Execute all blocks in their order and return their number."""
        document = Document.parse(str(self.path), self._regions)
        with contextlib.chdir(self.folder), _own_modules(self.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for example in document.examples():
                example.evaluate()
        return self.executed

    def _regions(self, document: Document) -> Iterator[Region]:
        for match in FENCE.finditer(document.text):
            code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
            evaluate = self._evaluator(match["language"], match["options"])
            if evaluate:
                yield Region(match.start(), match.end(), code, evaluate)

    def _evaluator(self, language: str, options: str) -> Callable[[Example], None] | None:
        title = re.search(r'title="([^"]+)"', options)
        if "no-run" in options or (language not in self.languages and not title):
            return None
        if title:
            return lambda example: self._write(title[1], example.parsed)
        return {"python": self._python, "console": self._console, "text": self._text}.get(language)

    def _write(self, name: str, code: str) -> None:
        (self.folder / name).write_text(code, encoding="utf-8")

    def _python(self, example: Example) -> None:
        code = compile("\n" * example.line + example.parsed, str(self.path), "exec")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, self.namespace)
        self.printed = out.getvalue()
        self.executed += 1

    def _console(self, example: Example) -> None:
        for entry in re.split(r"^\$ ", example.parsed, flags=re.MULTILINE)[1:]:
            command, _, output = entry.replace("\\\n", " ").partition("\n")
            words = shlex.split(command, comments=True)
            assert words[0] in ("pour", "python"), f"{self.path}: {command}"
            if words[0] == "pour":
                done = process(*words[1:], cwd=self.folder, COLUMNS=100)
            else:
                import subprocess

                done = subprocess.run(
                    [sys.executable, *words[1:]],
                    cwd=self.folder,
                    capture_output=True,
                    text=True,
                    timeout=300,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    check=False,
                )
            assert done.returncode == 0, f"{self.path}: {command}\n{done.stdout}{done.stderr}"
            if output.strip():
                assert_same_output(output, done.stdout)
            self.printed = done.stdout
            self.executed += 1

    def _text(self, example: Example) -> None:
        if self.printed:
            assert_same_output(example.parsed, self.printed)
        self.printed = ""


@contextlib.contextmanager
def _own_modules(folder: Path) -> Iterator[None]:
    """Let the page import the files that it wrote."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
