"""The generated pages are current."""

from __future__ import annotations

from script_modules import script


def test_the_generated_pages_are_current() -> None:
    assert not script("pages").outdated_pages(write=False), "run make docs"
