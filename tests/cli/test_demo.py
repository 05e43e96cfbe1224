"""pour demo, as a real process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import complaint, here, succeed

import pour


@pytest.mark.slow
def test_demo(demo, tmp_path):
    out = demo.folder
    assert "control" in demo.printed
    leading = " ".join(pour.AuditReport.load(out / "pour-a.json").summary)
    assert leading in " ".join(demo.printed.split())
    page = Path(demo.printed.strip().splitlines()[-1])
    assert page == out / "report.html"
    assert 100_000 < page.stat().st_size < 5_000_000
    assert pour.history(pour.load(out / "pour-p.safetensors"))[0].class_names == ("3",)
    files = [out / f"{name}.safetensors" for name in ("original", "pour-p")]
    options = ["--forget", "3", "--data", "digits"]
    printed = succeed(
        "audit", *files, *options, "--retrained", out / "retrained.safetensors", "--json", "--quiet"
    ).stdout
    report = pour.AuditReport.from_json(printed)
    assert report.value("acc_f") == 0
    assert report.value("cka_f_o", "raw") == pytest.approx(1.0)
    assert report.line("acc_r").verdict != "no reference"
    assert json.loads(printed)["summary"] == list(report.summary)
    assert "In the encoder's raw features" in report.summary[1]
    alone = succeed("audit", *files, *options, "--out", tmp_path / "alone.json").stdout
    assert "no reference" in alone
    *summary, path = alone.rpartition("\n\n")[2].splitlines()
    assert path == str(tmp_path / "alone.json")
    assert " ".join(" ".join(summary).split()) == " ".join(pour.AuditReport.load(path).summary)
    assert "Compared with: no retrained model." in alone
    assert not any(line.name.endswith("_r_r") for line in pour.AuditReport.load(tmp_path / "alone.json").lines)
    assert "out of range" in complaint(here("audit", *files, "--forget", "12", "--data", "digits"))
