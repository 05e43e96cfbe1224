from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

import pytest
from figure_examples import confusion, embedding, examples
from matplotlib.figure import Figure

from pour.errors import PourError, UsageError
from pour.report.figures import draw_confusion, draw_embedding, figure_svg, save_figure

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", sorted(MAGIC))
@pytest.mark.parametrize("name", ["confusion", "embedding", "tradeoff"])
def test_the_same_data_give_the_same_bytes(tmp_path: Path, kind: str, name: str) -> None:
    figure = examples()[name]()
    first = save_figure(figure, tmp_path / f"a.{kind}").read_bytes()
    assert first.startswith(MAGIC[kind])
    assert save_figure(figure, tmp_path / f"b.{kind}").read_bytes() == first
    assert save_figure(examples()[name](), tmp_path / f"c.{kind}").read_bytes() == first
    for word in (b"CreationDate", b"<dc:date>", b"Matplotlib v", b"matplotlib.org"):
        assert word not in first


def test_the_svg_is_the_same_each_time() -> None:
    figure = draw_embedding(embedding())
    assert figure_svg(figure) == figure_svg(figure) == figure_svg(draw_embedding(embedding()))


def test_an_svg_has_a_text_for_screen_readers() -> None:
    figure = draw_confusion(confusion())
    figure.set_label('a "quoted" <b> & more')
    root = ElementTree.fromstring(figure_svg(figure))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'a "quoted" <b> & more'


def test_an_svg_for_a_page_has_no_background_but_a_file_has(tmp_path: Path) -> None:
    figure = draw_confusion(confusion(), theme="dark")
    assert "#14171c" in save_figure(figure, tmp_path / "a.svg").read_text()
    assert 'style="fill: #14171c"' not in figure_svg(figure)


def test_a_file_that_names_no_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        save_figure(draw_confusion(confusion()), tmp_path / "figure.jpeg")


def test_a_failed_saving_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_figure(draw_confusion(confusion()), tmp_path / "a.png")
    before = path.read_bytes()

    def full_disk(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(PourError, match="No space left"):
        save_figure(draw_confusion(confusion()), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_many_points_become_a_picture_inside_the_vector_file() -> None:
    few, many = figure_svg(draw_embedding(embedding())), figure_svg(draw_embedding(embedding(n=40_000)))
    assert "<image" not in few
    assert "<image" in many
    assert len(many) < 2_000_000
