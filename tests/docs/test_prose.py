"""The pages are short sentences, link their terms, and show tables that fit a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from script_modules import script

ROOT = Path(__file__).resolve().parent.parent.parent


def test_sentences_lines_and_tables_are_short() -> None:
    lint = script("lint_pages")
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    problems = [problem for file in files for problem in lint.problems(file)]
    assert not problems, "\n".join(problems)
    lengths = [sentence.words for file in files for sentence in lint.sentences(file.read_text(encoding="utf-8"))]
    assert sum(lengths) / len(lengths) <= lint.MEAN_WORDS


def test_the_linter_counts_sentences(tmp_path: Path) -> None:
    lint = script("lint_pages")
    text = "# A heading\n\nOne two three. Four `five six` [seven](eight.md)!\n\n- Nine ten\n\n| a | row |\n\n> Said.\n"
    assert [sentence.words for sentence in lint.sentences(text)] == [3, 3, 2]
    page = tmp_path / "page.md"
    page.write_text(f"{'word ' * 20}\n{'word ' * 20}.\n\n{'a' * 130}\n\n|{' a |' * 9}\n")
    assert len(lint.problems(page)) == 3


def test_the_readme_has_at_most_700_words() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    assert len(re.findall(r"\w+(?:[-'./()]\w+)*", text)) <= 700


@pytest.mark.parametrize("write", [False])
def test_every_term_is_linked_at_its_first_use(write: bool) -> None:
    assert not script("link_terms").missing_links(ROOT / "docs", write=write)


def test_a_term_without_a_link_is_found_and_linked(tmp_path: Path) -> None:
    link = script("link_terms")
    (tmp_path / "reference").mkdir()
    (tmp_path / "start").mkdir()
    (tmp_path / "reference" / "glossary.md").write_text("### head\n\nX.\n\n### RUS(r)\n<!-- also: score -->\n\nY.\n")
    page = tmp_path / "start" / "page.md"
    page.write_text("# The head\n\n`head` first, then two\nheads and RUS(r), a head.\n\n| head |\n")
    assert link.missing_links(tmp_path, write=True) == ["start/page.md:4: 'heads'", "start/page.md:4: 'RUS(r)'"]
    assert "[heads](../reference/glossary.md#head) and [RUS(r)](../reference/glossary.md#rusr)" in page.read_text()
    assert not link.missing_links(tmp_path)
