"""Audits of a frozen backbone, and of an external test set beside the internal one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

import pour
from pour.auditing import AuditReport, audit
from pour.auditing.measurement import Reading
from pour.auditing.shared_encoders import same_encoder
from pour.auditing.verdict import judge
from pour.metrics import linear_cka
from pour.models.tap import extract_features

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from pour.data.splits import Splits

BOTH = ("acc_r", "acc_f", "aus", "cka_f_o", "cka_r_o", "rus_o")


@pytest.fixture(scope="module")
def splits(digits_splits: Splits) -> Splits:
    """The digits with their test images once more as an external set."""
    return replace(digits_splits, extra={"external": digits_splits.test})


@pytest.fixture(scope="module")
def new_head(digits_original: nn.Module) -> nn.Module:
    """The original's encoder under another head that never says 3."""
    model = copy.deepcopy(digits_original)
    with torch.no_grad():
        model.head.bias[3] = -1e4
    return model


@pytest.fixture(scope="module")
def report(digits_original: nn.Module, new_head: nn.Module, splits: Splits) -> AuditReport:
    unlearned = pour.forget(digits_original, classes=["3"])
    return audit(
        original=digits_original, unlearned=unlearned, retrained=new_head, data=splits, device="cpu", progress=False
    )


def test_both_test_sets_have_the_same_lines(report: AuditReport, digits_original: nn.Module, splits: Splits) -> None:
    for name in BOTH:
        inside, outside = report.line(name), report.line(f"{name}_external")
        assert inside.unlearned == outside.unlearned
        assert inside.verdict == outside.verdict
    batches = [
        (
            torch.from_numpy(splits.test.forget.images.copy()).permute(0, 3, 1, 2),
            torch.zeros(len(splits.test.forget), dtype=torch.long),
        )
    ]
    before = extract_features(digits_original, batches, device="cpu")
    after = extract_features(pour.forget(digits_original, classes=["3"]), batches, device="cpu")
    expected = float(linear_cka(before.features.double(), after.features.double()))
    assert report.value("cka_f_o_external") == pytest.approx(expected, abs=1e-4)


def test_nothing_is_compared_with_an_encoder_that_is_the_originals(report: AuditReport, tmp_path: Path) -> None:
    names = {line.name for line in report.lines}
    assert not [name for name in names if name.startswith(("cka_f_r", "cka_r_r", "rus_r", "discrepancy"))]
    assert all(line.retrained is None for line in report.lines if line.section != "scores")
    assert report.line("acc_f").retrained is not None
    assert report.line("acc_f").verdict == "within its interval"
    assert not report.discrepancies
    assert any("frozen backbone" in note for note in report.notes)
    assert "frozen backbone" in " ".join(str(report).split())
    report.save(tmp_path / "r.json")
    assert "frozen backbone" in (tmp_path / "r.json").read_text(encoding="utf-8")
    pour.write_report(report, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "frozen backbone" in page
    assert "external" in page


def test_another_encoder_is_compared(
    digits_original: nn.Module, digits_retrained: nn.Module, digits_splits: Splits
) -> None:
    assert not same_encoder(digits_original, digits_retrained)
    unlearned = pour.forget(digits_original, classes=["3"])
    found = audit(
        original=digits_original,
        unlearned=unlearned,
        retrained=digits_retrained,
        data=digits_splits,
        limit=200,
        device="cpu",
        progress=False,
    )
    assert "rus_r" in {line.name for line in found.lines}
    assert not any("frozen backbone" in note for note in found.notes)


def test_same_encoder_looks_past_heads_only(digits_original: nn.Module, new_head: nn.Module) -> None:
    assert same_encoder(digits_original, new_head)
    assert same_encoder(digits_original, pour.forget(new_head, classes=["3"]))
    moved = copy.deepcopy(digits_original)
    with torch.no_grad():
        next(moved.parameters()).view(-1)[0] += 1e-3
    assert not same_encoder(digits_original, moved)
    # Nothing to train in the encoder: two such networks say nothing by sharing it.
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    assert not same_encoder(flat, copy.deepcopy(flat))


def test_verdicts_on_external_images_follow_external_accuracies() -> None:
    retrained = Reading(value=1.0, low=0.99, high=1.01)
    low = Reading(value=0.6)
    inside = {"acc_f": "leaks more", "acc_f_external": "within its interval", "acc_r_external": "destroyed"}
    assert judge("aus", low, retrained, verdict_on=inside.get) == "leaks more"
    assert judge("aus_external", low, retrained, verdict_on=inside.get) == "destroyed"
