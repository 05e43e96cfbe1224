from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb

from pour.report.figures.style import Theme, drawing, listed, plain_text, shortened, style_of

THEMES: list[Theme] = ["light", "dark"]


def luminance(color: str) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(first: str, second: str) -> float:
    bright, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_stand_out_as_wcag_asks(theme: Theme) -> None:
    style = style_of(theme)
    for color in (style.text, style.muted, style.forgotten):
        assert contrast(color, style.background) >= 4.5
    for color in (style.accent, style.baseline):
        assert contrast(color, style.background) >= 3
    assert contrast(style.reference, style.background) >= 2.5


@pytest.mark.parametrize("theme", THEMES)
def test_class_colours_differ_from_each_other_and_from_the_forgotten_one(theme: Theme) -> None:
    style = style_of(theme)
    for first, second in itertools.combinations([style.forgotten, *style.class_palette], 2):
        assert sum((a - b) ** 2 for a, b in zip(to_rgb(first), to_rgb(second), strict=True)) > 0.03


def test_the_forgotten_class_is_dark_red_and_the_others_take_turns() -> None:
    colors = style_of("light").class_colors(30, {4})
    assert colors[4] == "#8b0000"
    assert colors.count("#8b0000") == 1
    assert colors[0] == colors[13] != colors[1]


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60))
def test_no_name_starts_a_formula(name: str) -> None:
    text = plain_text(name)
    assert not is_math_text(text)
    assert text.replace(r"\$", "$") == shortened(name)
    assert len(shortened(name)) <= 28
    assert "\n" not in text


@pytest.mark.parametrize(
    ("names", "said"), [([], "nothing"), (["a"], "a"), (["a", "b"], "a, b"), (list("abcdef"), "a, b, c, d and 2 more")]
)
def test_names_in_a_sentence(names: list[str], said: str) -> None:
    assert listed(names) == said


def test_threads_draw_one_at_a_time() -> None:
    inside: list[str] = []

    def draw(theme: Theme) -> None:
        with drawing(theme):
            inside.append(f"in {theme}")
            inside.append(f"out {theme}")

    threads = [threading.Thread(target=draw, args=(theme,)) for theme in THEMES * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a.replace("in", "out") == b for a, b in zip(inside[::2], inside[1::2], strict=True))
