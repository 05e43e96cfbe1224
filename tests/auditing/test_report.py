import dataclasses
import json
import re

import pytest
from rich.console import Console

from pour.auditing import AuditedData, AuditedModel, AuditReport, Discrepancy, LayerMap, Line, Reading, RelearningCurve
from pour.errors import UsageError


def make_report(**changes):
    reading = Reading(value=0.25, low=0.2, high=0.3, debiased=0.24, n=36)
    fields = {
        "data": AuditedData(
            name="digits", classes=("a", "b", "c"), forgotten=(1,), counts={"train": (10, 20), "test": (5, 9)}
        ),
        "models": {
            "original": AuditedModel(digest="aa", architecture="resnet18", methods=(), projected=False),
            "unlearned": AuditedModel(digest="bb", architecture=None, methods=("pour-p",), projected=True),
            "retrained": AuditedModel(digest="cc", architecture="resnet18", methods=(), projected=False),
        },
        "settings": {"seed": 0, "limit": None, "precision": "fp32", "device": "cpu", "align": "procrustes"},
        "lines": (
            Line(name="acc_r", section="scores", unlearned=Reading(value=0.9, low=0.88, high=0.92)),
            Line(
                name="cka_f_o",
                section="features",
                unlearned=reading,
                original=None,
                retrained=reading,
                verdict="within its interval",
            ),
            Line(name="cka_f_o", section="raw", unlearned=Reading(value=1.0), retrained=reading, verdict="leaks more"),
        ),
        "discrepancies": (Discrepancy(metric="mmd", view="features", n=5, alpha=0.0, beta=0.0, total=0.1),),
        "collapse": {"original": {"nc1": 0.1}},
        "answers": {"unlearned": (1, 0, 4)},
        "layers": (
            LayerMap(
                reference="original", side="forget", n=5, rows=("stem",), columns=("stem", "a"), values=((1.0, 0.5),)
            ),
        ),
        "relearning": (
            RelearningCurve(
                role="unlearned",
                images_per_class=2,
                steps=(0, 5),
                forget=(Reading(value=0.0), Reading(value=0.5, n=5)),
                retain=(reading, reading),
            ),
        ),
        "notes": ("something is absent",),
    }
    return AuditReport(**fields | changes)


def test_a_report_survives_the_trip_through_a_file(tmp_path):
    report = make_report()
    path = report.save(tmp_path / "deep" / "report.json")
    assert AuditReport.load(path) == report
    assert AuditReport.from_json(report.to_json()) == report
    assert hash(report.lines[0])
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the file"))


def test_saving_again_replaces_the_file(tmp_path):
    make_report().save(tmp_path / "r.json")
    changed = make_report(notes=())
    changed.save(tmp_path / "r.json")
    assert AuditReport.load(tmp_path / "r.json") == changed
    assert len(list(tmp_path.iterdir())) == 1


def test_a_newer_report_is_refused():
    data = make_report().to_dict() | {"schema_version": 2, "from_the_future": 1}
    with pytest.raises(UsageError, match=r"schema_version 2, newer than this pour reads .* update"):
        AuditReport.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", r"has the value \[1\], which must be an object"),
        ('{"a": 1}', "has no schema_version"),
        ('{"schema_version": 1}', "lacks the key data"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        AuditReport.load(tmp_path / "r.json")
    with pytest.raises(UsageError, match="There is no file"):
        AuditReport.load(tmp_path / "none.json")


@pytest.mark.parametrize("missing", [field.name for field in dataclasses.fields(AuditReport)])
def test_a_report_with_a_hole_is_refused(missing):
    data = make_report().to_dict()
    del data[missing]
    with pytest.raises(UsageError, match=missing):
        AuditReport.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("lines", 0, "verdict"), "splendid", "'splendid' for lines.0.verdict"),
        (("lines", 0, "name"), "beauty", "see lines.0: There is no metric called 'beauty'"),
        (("lines", 0, "unlearned"), None, "None for lines.0.unlearned"),
        (("data", "forgotten"), (7,), "see data: There is no class 7"),
        (("models",), {}, "no unlearned model"),
        (("lines", 0, "unlearned", "value"), float("nan"), "nan for lines.0.unlearned.value"),
        (("answers", "unlearned"), [1], "answers for fewer classes"),
        (("layers", 0, "values"), [[1.0]], "see layers.0: The CKA values"),
        (("relearning", 0, "forget"), [], "see relearning.0: A relearning curve"),
        (("settings", "seed"), [3], "for settings.seed"),
    ],
)
def test_a_report_that_nobody_could_show_is_refused(where, value, message):
    data = json.loads(make_report().to_json())
    place = data
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(UsageError, match=re.escape(message)):
        AuditReport.from_json(json.dumps(data), "report.json")


@pytest.mark.parametrize("name", ["[/b]", "cat [wild]", "[bold]", ":cat:"])
def test_names_are_printed_as_they_are(name):
    data = AuditedData(name=f"pets {name}", classes=("a", name, "c"), forgotten=(1,), counts={"test": (5, 9)})
    report = make_report(data=data, notes=(f"{name} is absent",))
    text = str(report)
    assert f"{name} forgotten, pets {name};" in text
    assert f"note: {name} is absent" in text
    other = make_report(lines=(Line(name="acc_r", section="scores", unlearned=Reading(value=0.9)),))
    assert "only in the first: cka_f_o, raw.cka_f_o" in str(report.compare(other))


def test_values_by_name():
    report = make_report()
    assert report.value("acc_r") == 0.9
    assert report.value("cka_f_o") == 0.25
    assert report.value("cka_f_o", "raw") == 1.0
    assert report.values() == {"acc_r": 0.9, "cka_f_o": 0.25, "raw.cka_f_o": 1.0}
    with pytest.raises(UsageError, match="no 'rus_r' in scores or features; it has acc_r, cka_f_o"):
        report.line("rus_r")


def test_it_prints_without_holes():
    text = str(make_report())
    for word in (
        "pour-p",
        "CKA_f(o)",
        "leaks more",
        "within its interval",
        "no reference",
        "undecided",
        "0.250",
        "note:",
    ):
        assert word in text
    assert "None" not in text
    assert "nan" not in text.lower()
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(make_report())
    assert "CKA_f(o)" in console.export_text()


def test_compare_shows_what_changed():
    first = make_report()
    lines = (
        dataclasses.replace(first.lines[0], unlearned=Reading(value=0.5, low=0.48, high=0.52), verdict="destroyed"),
        first.lines[1],
        Line(name="rus_o", section="features", unlearned=Reading(value=0.1)),
    )
    found = first.compare(make_report(lines=lines))
    by_name = {row.name: row for row in found.rows}
    assert by_name["acc_r"].change == pytest.approx(-0.4)
    assert by_name["acc_r"].clear
    assert not by_name["cka_f_o"].clear
    assert by_name["acc_r"].verdicts == ("no reference", "destroyed")
    assert found.only_first == ("raw.cka_f_o",)
    assert found.only_second == ("rus_o",)
    assert found.same_data
    text = str(found)
    assert "-0.4000 *" in text
    assert "only in the second: rus_o" in text


def test_compare_says_when_the_data_differ():
    other = make_report(data=dataclasses.replace(make_report().data, forgotten=(2,)))
    assert not make_report().compare(other).same_data
    assert "different data" in str(make_report().compare(other))


def test_the_mean_of_a_relearning_curve_leaves_out_the_start():
    assert make_report().relearning[0].mean_forget.value == 0.5
