"""What holds for every figure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from figure_examples import NAMES, audit_report, confusion, embedding, examples

from pour.errors import UsageError
from pour.report import figures

KINDS = sorted(examples())
HOSTILE = ("<script>alert(1)</script>", "$x_1^2$ & $", "\\frac{", "a\nb\t\x00c--><!--")


@pytest.fixture(scope="module")
def hostile_svgs() -> dict[str, str]:
    return {kind: figures.figure_svg(draw()) for kind, draw in examples(HOSTILE).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_belongs_to_no_window_and_leaves_settings_alone_and_says_what_it_shows(kind: str) -> None:
    with matplotlib.rc_context({"text.color": "lime", "font.size": 33, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        figure = examples()[kind]()
        dark = examples()[kind](theme="dark")
        assert dict(matplotlib.rcParams) == before
    assert figure.canvas.manager is None
    assert all(text.get_fontsize() < 12 for text in figure.findobj(matplotlib.text.Text))
    label = str(figure.get_label())
    assert len(label) > 40
    assert label.endswith(".")
    assert figure.get_facecolor()[:3] == (1.0, 1.0, 1.0)
    assert max(dark.get_facecolor()[:3]) < 0.2
    assert [axes.get_title() for axes in figure.axes] == [axes.get_title() for axes in dark.axes]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_are_drawn_as_they_are(kind: str, hostile_svgs: dict[str, str]) -> None:
    svg = hostile_svgs[kind]
    root = ElementTree.fromstring(svg)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("svg", "defs", "g", "path", "use", "clipPath", "rect", "image")
    }
    assert "<!--" not in svg
    assert "<style" not in svg


@pytest.mark.parametrize("kind", KINDS)
def test_an_svg_for_a_page_refers_to_nothing_but_itself(kind: str, hostile_svgs: dict[str, str]) -> None:
    svg = hostile_svgs[kind]
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'href="#([^"]*)"', svg)) | set(re.findall(r"url\(#([^)]*)\)", svg))
    assert referred <= set(ids)
    assert set(re.findall(r'https?://[^" ]*', svg)) == {"http://www.w3.org/2000/svg"}
    assert all(target.startswith(("#", "data:image/png")) for target in re.findall(r'href="([^"]*)"', svg))


def test_two_figures_in_a_page_share_no_names(hostile_svgs: dict[str, str]) -> None:
    ids = [name for svg in hostile_svgs.values() for name in re.findall(r'\bid="([^"]*)"', svg)]
    assert len(ids) == len(set(ids))


def test_dollars_and_signs_reach_the_reader() -> None:
    figure = examples(HOSTILE)["confusion"]()
    texts = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert texts[1] == r"\$x_1^2\$ & \$"
    assert texts[3] == "a b c--><!--"


@pytest.mark.parametrize("kind", ["answers", "changes", "confusion", "embedding", "gradcam", "segmentation"])
def test_a_thousand_classes_can_be_drawn(kind: str) -> None:
    figure = examples([f"class {i}" for i in range(1000)])[kind]()
    size = figure.get_size_inches()
    assert size[0] <= 7.3
    assert size[1] <= 9
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    assert len(texts) < 150


def test_a_thousand_classes_leave_one_line_in_the_legend_and_a_note() -> None:
    figure = figures.draw_embedding(embedding([f"class {i}" for i in range(1000)], n=1000))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["forgotten: class 1"]
    assert "999 retained classes share 12 colours" in figure.get_supxlabel()


def test_a_thousand_classes_are_named_by_index_in_the_confusion() -> None:
    figure = figures.draw_confusion(confusion([f"class {i}" for i in range(1000)]))
    assert "1,000 classes, by index" in figure.get_supxlabel()


@pytest.mark.parametrize("kind", ["answers", "changes", "confusion", "embedding", "gradcam", "segmentation"])
def test_a_single_retained_class_can_be_drawn(kind: str) -> None:
    assert examples(("cat", "dog"))[kind]().axes


def test_no_line_for_even_answers_where_one_class_remains() -> None:
    figure = figures.draw_answers(figures.answers_data(audit_report(("cat", "dog"))))
    assert "even over retained classes" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of 'light', 'dark'"):
        figures.draw_confusion(confusion(), theme="sepia")  # type: ignore[arg-type]


def test_the_examples_cover_every_figure() -> None:
    assert {name.removeprefix("draw_") for name in figures.__all__ if name.startswith("draw_")} == set(examples(NAMES))
