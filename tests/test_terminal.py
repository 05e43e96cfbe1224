"""What is printed is whole at every width from 60 columns upwards."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_samples import sample_report

import pour
from pour.models.card import change_card
from pour.models.history import HistoryEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = Path(__file__).parents[1] / "results" / "pathmnist.json.gz"
WIDTHS = [60, 61, 79, 80, 97, 100, 120, 139, 160, 163, 200]
OPTIONS = {"direction": "decisions", "lr": 0.00012345, "batch_size": 128, "schedule": "one-cycle", "layer_decay": 0.75}


def model_with_history() -> object:
    model = pour.build_model("resnet-digits", 10, in_channels=1, image_size=8)
    losses = tuple(3.0 - 0.017 * step for step in range(150))
    entry = HistoryEntry(
        method="pour-d", classes=(3,), class_names=("three",), options=OPTIONS, digest_after="ab" * 32, losses=losses
    )
    change_card(model, history=(entry, HistoryEntry(method="fold", classes=(3,), digest_after="cd" * 32)))
    return model


def printed(text: object, capsys: pytest.CaptureFixture[str]) -> str:
    print(text)
    return capsys.readouterr().out


def command(name: str, *arguments: object, **options: object) -> Callable[[pytest.CaptureFixture[str]], str]:
    def run(capsys: pytest.CaptureFixture[str]) -> str:
        module = __import__(f"pour.cli.{name}", fromlist=[name])
        getattr(module, name)(*arguments, **options)
        return capsys.readouterr().out

    return run


def values_of_report() -> Iterable[str]:
    report = sample_report()
    for line in report.lines:
        for reading in (line.unlearned, line.retrained):
            if reading is not None and reading.low is not None:
                yield f"{reading.value:.3f} ({reading.low:.3f} to {reading.high:.3f})"
        yield line.verdict
        yield f"{line.unlearned.n:,}"
    for entry in report.discrepancies:
        yield f"{entry.lower:.3f} to {entry.upper:.3f}"
        yield entry.decision
    # The statements that sum up are printed too.
    yield from " ".join(report.summary).split()


def values_of_table() -> Iterable[str]:
    table = pour.bench.make_table(RESULTS)
    for row in table.rows:
        yield from (*row.label.split(), row.setting)
        yield from (f"{entry.mean:.2f}" for entry in row.entries.values())
    yield from (column.label for column in table.columns)


def words(*texts: object) -> list[str]:
    return " ".join(map(str, texts)).split()


CASES: dict[str, tuple[Callable[[pytest.CaptureFixture[str]], str], Callable[[], Iterable[str]]]] = {
    "report": (lambda capsys: printed(sample_report(), capsys), values_of_report),
    "history": (
        lambda capsys: printed(pour.history(model_with_history()), capsys),
        lambda: ["pour-d", "three", "abababababab", *(f"{name}={value}" for name, value in OPTIONS.items())],
    ),
    "models": (
        command("models"),
        lambda: [word for info in pour.list_models() for word in words(info.name, info.summary)],
    ),
    "methods": (
        command("methods"),
        lambda: [
            word
            for info in pour.list_methods()
            for word in words(info.name, ", ".join(info.needs), info.cost, info.paper, info.summary)
        ],
    ),
    "metrics": (
        command("metrics"),
        lambda: [
            word
            for metric in pour.metrics.list_metrics()
            for word in words(metric.name, metric.family, metric.better, metric.title, metric.meaning)
        ],
    ),
    "datasets": (
        command("datasets"),
        lambda: [
            word
            for status in pour.list_datasets()
            for word in words(status.info.name, status.info.task, status.info.licence, status.info.title)
        ],
    ),
    "table": (command("table", RESULTS), values_of_table),
}


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_whole_at_every_width(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show, values = CASES[case]
    expected = [*values()]
    for width in WIDTHS if case != "table" else WIDTHS[::3]:
        monkeypatch.setenv("COLUMNS", str(width))
        text = show(capsys)
        lines = text.splitlines()
        assert max(map(len, lines)) <= width, (width, max(lines, key=len))
        assert "…" not in text
        missing = [value for value in expected if value not in text]
        assert not missing, (width, missing[:5])
        title = next(index for index, line in enumerate(lines) if line.startswith(("┏", "  ")))
        assert title <= 6, "the titles of a table take at most three lines"


def test_a_history_prints_no_hundred_losses(capsys: pytest.CaptureFixture[str]) -> None:
    history = pour.history(model_with_history())
    for text in (printed(history, capsys), repr(history)):
        assert len(re.findall(r"\d\.\d", text)) < 10
        assert len(text) < 1500


def test_a_text_displays_nothing_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *arguments: displayed.append(arguments))
    assert "pour-d" in str(pour.history(model_with_history()))
    assert not displayed


def test_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    text = command("models")(capsys)
    assert 'pip install "pour-unlearning[vision]"' in text


def test_no_color_leaves_no_style(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    from pour import cli

    monkeypatch.setattr("typer.rich_utils.COLOR_SYSTEM", "auto")
    for arguments in (["models"], ["--help"], ["history", "--help"]):
        monkeypatch.setattr(sys, "argv", ["pour", *arguments])
        written = {}
        for no_color in ("", "1"):
            monkeypatch.setenv("NO_COLOR", no_color)
            monkeypatch.setattr(sys, "stdout", Terminal())
            with pytest.raises(SystemExit):
                cli.main()
            written[no_color] = sys.stdout.getvalue()
            assert len(written[no_color]) > 200
        assert "\x1b[" in written[""]
        assert "\x1b[" not in written["1"]
        monkeypatch.setattr("typer.rich_utils.COLOR_SYSTEM", "auto")
