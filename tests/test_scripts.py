"""The scripts that measure the source: lines of code, and phrases that hide their noun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from script_modules import script

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''"""A module."""

import os
from typing import (
    Any,
)

__all__ = [
    "f",
]


def f(x):
    """A docstring

    of two paragraphs.
    """
    # A comment.
    text = """one
    two"""  # the text has two lines
    import json
    return (
        text,
    )


class Point:
    x: int = 0
    """A field."""
'''


def test_docstrings_comments_imports_and_exports_are_no_code() -> None:
    # def, two lines of text, three lines of return, class, field
    assert script("count_code").code_lines(SOURCE) == 8


def test_phrases_are_found_in_every_kind_of_text(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(
        '"""What is left."""\n'
        "# Whoever reads this.\n"
        "def f(gone):\n"
        "    '''Return the mean.\n\n    Where both have a class.\n    '''\n"
        "    raise ValueError(f'{gone} is told')\n"
    )
    lint_prose = script("lint_prose")
    words, hits = lint_prose.lint(file, lint_prose.rules())
    assert sorted(hit.split(": ")[1] for hit in hits) == [
        "opening-clause", "opening-comment", "tells", "vague-name",
    ]  # fmt: skip
    assert words == 3 + 3 + 3 + 5 + 2


@pytest.mark.parametrize("text", ["Return the mean.\n", "```\nwhat is done\n```\n", "See `gone` and [a](b.md).\n"])
def test_plain_text_and_code_have_no_phrases(tmp_path: Path, text: str) -> None:
    file = tmp_path / "example.md"
    file.write_text(text)
    lint_prose = script("lint_prose")
    assert lint_prose.lint(file, lint_prose.rules())[1] == []
