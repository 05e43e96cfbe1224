"""A report keeps what its page draws: the page from Python, from a file and from the command are the same."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from command_line import process
from report_samples import sample_report
from torch import nn

import pour
from pour.auditing import AuditReport
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

DIGITS = {"data": pour.load_dataset("digits"), "device": "cpu", "progress": False}
TITLES = (
    "Features of test images, one map for all models",
    "Answers by true class: original and unlearned",
    "Angles",
    "Grad-CAM: original and unlearned",
    "What is answered on forgotten images",
    "Losses while unlearning",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, digits_original: nn.Module, digits_splits: Any) -> Path:
    folder = tmp_path_factory.mktemp("models")
    request = pour.ForgetRequest.of(digits_splits)
    student = pour.unlearn(digits_original, request, method="delete", steps=3, device="cpu", progress=False)
    pour.save(digits_original, folder / "original.safetensors")
    pour.save(student, folder / "student.safetensors")
    return folder


@pytest.fixture(scope="module")
def report(models: Path) -> AuditReport:
    original, student = (pour.load(models / f"{name}.safetensors") for name in ("original", "student"))
    return pour.audit(original=original, unlearned=student, pictures=True, **DIGITS)


def without_command(path: Path) -> str:
    page = re.sub(r'<pre id="command">.*?</button>', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"<p>This page was written from Python.*?</p>", "", page)


@pytest.mark.slow
def test_the_page_of_the_command_is_the_page_from_python(models: Path, report: AuditReport, tmp_path: Path) -> None:
    pour.write_report(report, tmp_path / "python.html")
    files = [models / "original.safetensors", models / "student.safetensors"]
    done = process("audit", *files, "--data", "digits", "--device", "cpu", "--report", tmp_path / "command.html")
    assert done.returncode == 0, done.stderr
    assert without_command(tmp_path / "command.html") == without_command(tmp_path / "python.html")
    assert AuditReport.load(tmp_path / "command.json") == report


@pytest.mark.slow
def test_a_report_from_a_file_has_the_same_page(report: AuditReport, tmp_path: Path) -> None:
    loaded = AuditReport.load(report.save(tmp_path / "report.json"))
    assert loaded == report
    pages = [pour.write_report(part, tmp_path / f"{name}.html") for name, part in (("a", report), ("b", loaded))]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    # 355 test images of 8 x 8 pixels.
    assert (tmp_path / "report.json").stat().st_size < 400_000


def test_the_time_of_a_method_survives_a_file(digits_original: nn.Module, digits_splits: Any, tmp_path: Path) -> None:
    request = pour.ForgetRequest.of(digits_splits)
    student = pour.unlearn(digits_original, request, method="delete", steps=3, device="cpu", progress=False)
    report = pour.audit(original=digits_original, unlearned=student, **DIGITS)
    for part in (report, AuditReport.load(report.save(tmp_path / "report.json"))):
        page = pour.write_report(part, tmp_path / "page.html").read_text(encoding="utf-8")
        assert "not recorded" not in page


def test_drawing_runs_no_model_and_computes_no_map(
    report: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("drawing computes")

    monkeypatch.setattr(nn.Module, "__call__", refuse)
    monkeypatch.setattr("sklearn.manifold.TSNE", refuse)
    monkeypatch.setattr("pour.report.figures.feature_map.joint_map", refuse)
    monkeypatch.setattr("pour.report.figures.feature_map.fixed_map", refuse)
    page = pour.write_report(report, tmp_path / "page.html").read_text(encoding="utf-8")
    assert [title for title in TITLES if title not in page] == []
    assert 'id="embedding-data"' in page


def test_an_audit_keeps_pictures_only_on_request(digits_original: nn.Module, tmp_path: Path) -> None:
    student = pour.forget(digits_original, classes=[3])
    plain = pour.audit(original=digits_original, unlearned=student, **DIGITS)
    assert plain.pictures is None
    page = pour.write_report(plain, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "At a glance" in page
    assert 'id="embedding-data"' not in page


@pytest.mark.slow
def test_inputs_of_a_loader_have_a_map_without_pictures(digits_original: nn.Module) -> None:
    splits = DIGITS["data"].splits
    loaders = {
        name: torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(
                torch.from_numpy(part.images).permute(0, 3, 1, 2), torch.from_numpy(part.labels).long()
            ),
            batch_size=100,
        )
        for name, part in splits.items()
    }
    student = pour.forget(digits_original, classes=[3])
    report = pour.audit(original=digits_original, unlearned=student, pictures=True, **{**DIGITS, "data": loaders})
    assert report.pictures is not None
    assert report.pictures.data["map"]["sheet"] is None
    assert report.pictures.data["gradcam"] is None


def test_an_existing_page_can_be_kept(tmp_path: Path) -> None:
    report = sample_report()
    path = pour.write_report(report, tmp_path / "page.html", overwrite=False)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        pour.write_report(report, path, overwrite=False)
    assert pour.write_report(report, path, overwrite=True).read_bytes() == before
    json = report.save(tmp_path / "report.json", overwrite=False)
    with pytest.raises(UsageError, match="already exists"):
        report.save(json, overwrite=False)


@pytest.mark.parametrize(
    "change",
    [
        {"map": {}},
        {"map": {"models": ["original"]}},
        {"angles": [{"name": "head"}]},
    ],
)
def test_damaged_pictures_are_told_in_a_sentence(report: AuditReport, tmp_path: Path, change: dict[str, Any]) -> None:
    assert report.pictures is not None
    data = {**report.pictures.data, **change}
    damaged = dataclasses.replace(report, pictures=dataclasses.replace(report.pictures, data=data))
    with pytest.raises(UsageError, match=r"pictures are damaged|map of features"):
        pour.write_report(damaged, tmp_path / "page.html")


def test_compressed_arrays_survive_and_bombs_do_not() -> None:
    from pour.auditing.pictures import pack, unpack

    for values in (
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.random.default_rng(0).random((3, 4)),
        np.empty((0, 2)),
    ):
        assert np.array_equal(unpack(pack(values)), values)
    bomb = pack(np.zeros(10**7, np.uint8)) | {"shape": [10]}
    with pytest.raises(ValueError, match="11 bytes instead of 10"):
        unpack(bomb)
    for change in ({"shape": [10**6, 10**6]}, {"type": "O"}, {"shape": [-1]}):
        with pytest.raises(ValueError, match="cannot be a picture"):
            unpack(bomb | change)
