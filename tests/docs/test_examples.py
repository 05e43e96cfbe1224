"""The examples of the README and of the pages run as pasted, from an empty folder, and print what the pages show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from page_examples import Page, assert_same_output, pages

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = pages(ROOT / "docs")
FAST = sorted(page for page, speed in PAGES.items() if speed == "fast")
SLOW = sorted(page for page, speed in PAGES.items() if speed == "slow")


def run(path: Path, folder: Path, **options: Any) -> int:
    with torch.random.fork_rng():
        return Page(path, folder, **options).run()


@pytest.mark.parametrize("page", FAST)
def test_a_page_runs_as_pasted(page: str, tmp_path: Path) -> None:
    assert run(ROOT / "docs" / page, tmp_path) > 0


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_a_longer_page_runs_as_pasted(page: str, tmp_path: Path) -> None:
    assert run(ROOT / "docs" / page, tmp_path) > 0


def test_the_readmes_example_runs_as_pasted(tmp_path: Path) -> None:
    assert run(ROOT / "README.md", tmp_path, languages=("python", "text")) == 1
    assert "pour-a" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_readmes_commands_run_as_pasted(tmp_path: Path) -> None:
    assert run(ROOT / "README.md", tmp_path, languages=("console",)) >= 6
    assert {"audit.html", "network.safetensors"} <= {file.name for file in tmp_path.iterdir()}


def test_an_output_of_other_words_is_found() -> None:
    assert_same_output("Acc_f 97.9 % in 12 s\n...\nend", "Acc_f  98.6 % in 3 s\nmore\nlines\nend\n")
    assert_same_output("direction ... steps 40", "direction decisions, steps 40")
    for expected, found in (("Acc_f 97.9 %", "Acc_r 97.9 %"), ("left 0.0 %", "left 14.0 %"), ("a", "a\nb"), ("a", "")):
        with pytest.raises(AssertionError):
            assert_same_output(expected, found)


def test_a_block_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```python title="own.py"\nvalue = 3\n```\n\n```python\nimport own\nprint(own.value)\n```\n\n')
    with page.open("a") as file:
        file.write("```text\n3\n```\n\n```console\n$ pour --version\n...\n```\n")
    assert run(page, tmp_path) == 2
    page.write_text("```python\nprint(1)\n```\n\n```text\none\n```\n")
    with pytest.raises(AssertionError, match="but this was printed"):
        run(page, tmp_path)
