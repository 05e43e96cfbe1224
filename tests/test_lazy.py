"""What starts without the slow half of its dependencies."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ("torchmetrics", "torchvision", "transformers", "timm", "sklearn", "scipy", "matplotlib", "lightning_fabric")


@pytest.mark.parametrize(
    "code",
    [
        "import pour.cli",
        "import pour.auditing, pour.bench.compute_cell",
        "import pour.metrics, torch; pour.metrics.linear_cka(torch.eye(4), torch.eye(4))",
    ],
)
def test_nothing_slow_is_imported_before_it_is_used(code: str) -> None:
    """A worker, or a command that ends with one sentence, should not wait seconds for what it does not use."""
    program = f"{code}; import sys; print(*(name for name in {SLOW} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_training_does_not_wait_for_torchmetrics() -> None:
    """Fabric asks for its version alone; whoever needs the rest imports it afterwards."""
    program = (
        "import sys, pour.training as t; t.Run(device='cpu', progress=False).fabric(); "
        "before = 'torchmetrics' in sys.modules, 'lightning_fabric' in sys.modules; "
        "from pour.metrics import LinearCKA; from torchmetrics import Metric; "
        "print(before, issubclass(LinearCKA, Metric))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(False, True) True"


def test_the_streaming_classes_are_there_by_name() -> None:
    import pour.geometry
    import pour.metrics

    for package in (pour.metrics, pour.geometry):
        missing = [name for name in package.__all__ if not hasattr(package, name)]
        assert missing == []
    with pytest.raises(AttributeError, match="has no attribute 'LinearCKB'"):
        _ = pour.metrics.LinearCKB
