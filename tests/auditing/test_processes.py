"""Two processes that torchrun starts give what one process gives."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import streamed_metrics
import torch
from streamed_metrics import streamed

import pour
from pour.auditing import AuditReport, Relearning, audit, gather_rows, is_first_process
from pour.auditing.processes import all_agree, share_of
from pour.errors import UsageError

WORK = Path(streamed_metrics.__file__).with_name("two_processes.py")


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORK)]
    with subprocess.Popen(
        [*command, *map(str, arguments)], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        try:
            errors = started.communicate(timeout=120)[1]
        except subprocess.TimeoutExpired:
            # The processes that torchrun started would wait for each other for ever.
            os.killpg(started.pid, signal.SIGKILL)
            raise
    assert started.returncode == 0, errors[-3000:]


@pytest.mark.slow
def test_an_audit_by_two_processes(tmp_path, digits_original, digits_retrained, digits_splits):
    projected = pour.forget(digits_original, classes=["3"])
    files = [
        pour.save(model, tmp_path / f"{name}.safetensors")
        for name, model in (("original", digits_original), ("unlearned", projected), ("retrained", digits_retrained))
    ]
    torchrun("audit", tmp_path, *files)
    one = audit(
        original=digits_original,
        unlearned=projected,
        retrained=digits_retrained,
        data=digits_splits,
        relearn=Relearning(images_per_class=2, steps=(0, 2)),
        device="cpu",
        progress=False,
    )
    two = [AuditReport.load(tmp_path / f"{rank}.json") for rank in range(2)]
    assert two[0] == two[1]
    assert two[0].values().keys() == one.values().keys()
    for name, value in one.values().items():
        if name.startswith("acc"):
            assert two[0].values()[name] == value, name
        assert two[0].values()[name] == pytest.approx(value, abs=1e-4), name
    assert two[0].answers == one.answers
    assert [line.verdict for line in two[0].lines] == [line.verdict for line in one.lines]
    # The references were tapped once, and only the first process wrote their features.
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 4


@pytest.mark.slow
def test_streaming_metrics_by_two_processes(tmp_path):
    torchrun("metrics", tmp_path)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        one = streamed(range(101))
    finally:
        torch.distributed.destroy_process_group()
    assert len(one) == 3
    for rank in range(2):
        two = json.loads((tmp_path / f"{rank}.json").read_text())
        assert two.keys() == one.keys()
        for name, value in one.items():
            assert two[name] == pytest.approx(value, abs=1e-9, rel=1e-9), name


def test_a_single_process_has_everything():
    assert is_first_process()
    assert list(share_of(7)) == list(range(7))
    assert all_agree(True, torch.device("cpu"))
    assert not all_agree(False, torch.device("cpu"))
    rows = torch.arange(6.0).view(3, 2)
    assert gather_rows(rows, 3) is rows
    with pytest.raises(UsageError, match="has 3 rows, but its share of 4 is 4"):
        gather_rows(rows, 4)
