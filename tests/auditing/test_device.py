import pytest
import torch

import pour
from pour.auditing import Relearning, audit


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_what_the_cpu_finds(
    digits_original, digits_retrained, digits_retrained_second, digits_splits, tmp_path
):
    call = {
        "original": digits_original,
        "unlearned": pour.forget(digits_original, classes=["3"]),
        "retrained": [digits_retrained, digits_retrained_second],
        "data": digits_splits,
        "layers": True,
        "progress": False,
    }
    on_cpu = audit(device="cpu", **call)
    on_gpu = audit(device="cuda", cache=tmp_path, relearn=Relearning(steps=(0, 5)), **call)
    again = audit(device="cuda", cache=tmp_path, **call)
    for name, value in on_cpu.values().items():
        # Convolutions in TF32 move features by a thousandth, and a single image of 36 a rate by 0.03.
        assert on_gpu.values()[name] == pytest.approx(value, abs=0.03, rel=0.03), name
        assert again.values()[name] == pytest.approx(on_gpu.values()[name], abs=1e-3), name
    assert next(digits_original.parameters()).device.type == "cpu"
