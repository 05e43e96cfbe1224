from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from report_samples import SVG, sample_embedding, sample_figures, sample_history, sample_report

from pour.auditing import Line, Reading
from pour.errors import UsageError
from pour.metrics import list_metrics
from pour.report import FigureSection, ReportedRun, write_report
from pour.report.page.cells import VERDICTS, count_verdicts, strip_of
from pour.report.page.facts import access_of, forgotten_words
from pour.report.page.feature_map import Embedding

if TYPE_CHECKING:
    from pathlib import Path

_VOID = {"meta", "link", "img", "input", "br"}


class Page(HTMLParser):
    """What a browser would make of the file, as far as the tests ask: balanced tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def prose(self) -> str:
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("script", "style")).split())


@pytest.fixture
def full(tmp_path: Path) -> Page:
    (tmp_path / "m.safetensors").write_bytes(b"weights")
    write_report(
        sample_report(history=sample_history(), embedding=sample_embedding()),
        tmp_path / "report.html",
        runs=[ReportedRun(name="pour-d", report=sample_report(methods=("pour-d",), shift=0.01))],
        figures=sample_figures(),
        command="pour audit o.safetensors u.safetensors --forget three",
        files=[tmp_path / "m.safetensors"],
    )
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_headline_says_what_how_with_what_and_how_long(full: Page) -> None:
    for words in (
        "Forgetting “three” in digits with pour-p",
        "1 of 4 classes",
        "no data, only the weights",
        "1 min 15 s",
        "a model retrained without the class",
        "9 forgotten, 90 retained",
    ):
        assert words in full.prose


def test_every_line_of_every_run_is_there(full: Page) -> None:
    rows = [attributes for attributes in full.all("tr") if "data-verdict" in attributes]
    report = sample_report()
    assert len(rows) == 2 * len(report.lines)
    counted = count_verdicts(report.lines)
    for verdict, count in counted.items():
        assert sum(row["data-verdict"] == VERDICTS[verdict].slug for row in rows) == 2 * count
    line = report.line("cka_f_o")
    assert line.unlearned.low is not None
    assert f"{line.unlearned.low:.3f} to {line.unlearned.high:.3f}" in full.prose


def test_headline_is_the_summary_of_the_audit(full: Page) -> None:
    ledes = [text for tag, text in full.texts if tag == "p" and text.startswith(sample_report().summary)]
    assert ledes == list(sample_report().summary)
    assert "measures are like those" not in full.prose
    assert full.prose.index(ledes[0]) < full.prose.index("At a glance")


def test_the_legend_counts_the_verdicts(full: Page) -> None:
    numbers = [text for tag, text in full.texts if tag == "strong" and text.isdigit()]
    assert numbers == [str(count) for count in count_verdicts(sample_report().lines).values()]


def test_provenance_is_complete(full: Page) -> None:
    for words in (
        "pour audit o.safetensors u.safetensors --forget three",
        hashlib.sha256(b"weights").hexdigest(),
        "0" * 64,
        "a" * 12 + " → " + "b" * 12,
        "lr=0.1",
        "torch",
        "scikit-learn",
        "procrustes",
        "the entropy is absent: there is one class.",
    ):
        assert words in full.prose


def test_definitions_cover_the_lines_and_links_lead_somewhere(full: Page) -> None:
    ids = [attributes["id"] for _, attributes in full.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in full.all("a")]
    assert links
    assert all(link is not None and link.startswith("#") and link[1:] in ids for link in links)
    # A classifier's page has no IoU.
    told = [
        name
        for name in map(attrgetter("name"), list_metrics())
        if not name.startswith(("random", "weight")) and "iou_" not in name
    ]
    assert {f"def-{name}" for name in told} - set(ids) <= {
        "def-nc2_ideal_angle",
        "def-nc2_angle_deviation",
    }


def test_nothing_is_loaded_and_only_the_own_scripts_run(full: Page, tmp_path: Path) -> None:
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    policy = next(meta["content"] for meta in full.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag in ("script", "style"):
        for content in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
    for _, attributes in full.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), value
    assert "@import" not in text
    assert "url(" not in text


def test_tables_have_headers_captions_and_pictures_have_words(full: Page) -> None:
    assert len(full.all("caption")) == len(full.all("table"))
    assert all(head.get("scope") in ("col", "row") for head in full.all("th"))
    assert all(image.get("alt") for image in full.all("img"))
    assert next(iter(full.all("html"))).get("lang") == "en"
    levels = [int(tag[1]) for tag, _ in full.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = [
        write_report(sample_report(embedding=sample_embedding()), tmp_path / name, figures=sample_figures())
        for name in ("a.html", "b.html")
    ]
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize(
    "evil",
    [
        "<script>alert(1)</script>",
        "</script><script>alert(1)</script>",
        "<!--<script>",
        '" onmouseover="alert(1)',
        "</title><img src=x onerror=alert(1)>",
        "{{ 7 * 7 }}",
        "日本 & <b>",
    ],
)
def test_class_and_run_names_are_text(evil: str, tmp_path: Path) -> None:
    embedding = sample_embedding(models=("original", evil))
    report = sample_report(classes=("zero", "one", "two", evil), methods=(evil,), embedding=embedding)
    write_report(
        replace(report, notes=(evil,)),
        tmp_path / "p.html",
        figures=[FigureSection(title=evil, alt=evil, light=SVG, caption=evil)],
        command=evil,
    )
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(re.findall(r"<script>", text)) == 3
    assert f"Forgetting “{' '.join(evil.split())}”" in page.prose.replace("Forgetting “ ", "Forgetting “")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "x" not in [attributes.get("src") for attributes in page.all("img")]
    data = json.loads(re.findall(r'id="embedding-data">(.*?)</script>', text, re.DOTALL)[0])
    assert data["classes"][3] == evil
    assert data["models"] == ["original", evil]


def test_an_svg_is_shown_as_a_picture_so_that_its_scripts_are_dead(tmp_path: Path) -> None:
    evil = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    write_report(sample_report(), tmp_path / "p.html", figures=[FigureSection(title="t", alt="a", light=evil)])
    assert "alert(1)" not in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_without_a_retrained_model_there_are_values_but_no_verdicts(tmp_path: Path) -> None:
    write_report(sample_report(retrained=False), tmp_path / "p.html")
    prose = Page((tmp_path / "p.html").read_text(encoding="utf-8")).prose
    assert "No retrained model was passed, so it is not known how much of 'three'" in prose
    assert "within its interval" not in prose
    assert "not recorded" in prose


def test_a_thousand_classes_and_half_of_them_forgotten(tmp_path: Path) -> None:
    classes = [f"class {index}" for index in range(1000)]
    embedding = sample_embedding(n=4000, classes=1000)
    report = sample_report(classes=classes, forgotten=tuple(range(500)), embedding=embedding)
    spread = replace(report, answers={"unlearned": tuple(range(1000))})
    write_report(spread, tmp_path / "p.html")
    page = Page((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert "Forgetting 500 classes (“class 0”, “class 1”, “class 2” and 497 more)" in page.prose
    assert "all others" in page.prose
    assert "class 499" in page.prose
    assert (tmp_path / "p.html").stat().st_size < 2_000_000


def test_one_retained_class(tmp_path: Path) -> None:
    report = sample_report(classes=("only", "gone"), forgotten=(1,), embedding=sample_embedding(classes=2))
    lines = tuple(line for line in report.lines if not line.name.startswith(("nc", "entropy", "kl")))
    write_report(replace(report, lines=lines, collapse={}), tmp_path / "p.html")
    prose = Page((tmp_path / "p.html").read_text(encoding="utf-8")).prose
    assert "Forgetting “gone”" in prose
    assert "Neural Collapse of the retained classes" not in prose


def test_a_full_page_of_many_points_and_pictures_stays_under_five_megabytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 100_000
    labels = np.arange(n) % 4
    images = np.broadcast_to(rng.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8), (n, 32, 32, 3))
    models = ("original", "pour-p", "pour-d", "rival", "retrained")
    embedding = Embedding(
        points={name: rng.normal(size=(n, 2)) for name in models},
        labels=labels,
        predictions=dict.fromkeys(models, labels),
        images=images,
    )
    write_report(sample_report(embedding=embedding), tmp_path / "p.html")
    assert (tmp_path / "p.html").stat().st_size < 5_000_000


def test_bad_input_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    report, path = sample_report(), tmp_path / "p.html"
    with pytest.raises(UsageError, match="its own name"):
        write_report(report, path, runs=[ReportedRun(name="pour-p", report=report)])
    other = sample_report(forgotten=(0,))
    with pytest.raises(UsageError, match="other data"):
        write_report(report, path, runs=[ReportedRun(name="pour-d", report=other)])
    with pytest.raises(UsageError, match=r"no file .*gone\.safetensors"):
        write_report(report, path, files=[tmp_path / "gone.safetensors"])
    assert list(tmp_path.iterdir()) == []


def test_figures_need_words_and_a_known_format() -> None:
    with pytest.raises(UsageError, match="no alt text"):
        FigureSection(title="t", alt=" ", light=SVG)
    with pytest.raises(UsageError, match="must be the text of an SVG"):
        FigureSection(title="t", alt="a", light=b"GIF89a")
    with pytest.raises(UsageError, match="both a group and a choice"):
        FigureSection(title="t", alt="a", light=SVG, group="Class")
    assert FigureSection(title="t", alt="a", light=SVG).wide


def test_strip_places_values_in_order() -> None:
    strip = strip_of(sample_report().lines[0])
    assert strip.band is not None
    assert strip.whisker[0] < strip.band[0] < strip.value < strip.band[1] < strip.whisker[1]
    assert strip.original is not None
    assert strip.original > strip.band[1]


def test_words_of_the_headline() -> None:
    data = sample_report(classes=[str(c) for c in range(9)], forgotten=(0, 1, 2)).data
    assert forgotten_words(data) == "“0”, “1” and “2”"
    assert access_of(["pour-p", "fold"]) == "no data, only the weights"
    assert access_of([]) == "unknown"
    assert access_of(["scrub"]) == "images of the forgotten classes, images of the retained classes"


def test_a_page_of_scenes_counts_pixels_and_shows_a_class_called_train(tmp_path: Path) -> None:
    report = sample_report()
    scenes = [
        Line(name=name, section="scores", unlearned=Reading(value=0.5, n=90_000), verdict="no reference")
        for name in ("iou_r", "class_iou_r_train", "cka_f_o_train")
    ]
    data = replace(report.data, unit="pixel")
    path = write_report(replace(report, lines=tuple(scenes), data=data), tmp_path / "p.html")
    text = path.read_text(encoding="utf-8")
    assert ">Pixels</th>" in text
    assert "test pixels with each answer" in text
    for name, of_training_images in (("class_iou_r_train", False), ("cka_f_o_train", True)):
        row = re.search(rf'<tr role="row"([^>]*)data-words="{name} ', text)
        assert row is not None
        assert ("data-train" in row[1]) == of_training_images
    assert ">Images</th>" in write_report(report, tmp_path / "q.html").read_text(encoding="utf-8")
