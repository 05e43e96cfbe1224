"""What starts without the slow half of its dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = ("torchmetrics", "torchvision", "transformers", "timm", "sklearn", "scipy", "matplotlib")


@pytest.mark.parametrize(
    "code",
    [
        "import pour.cli",
        "import pour.auditing, pour.bench.cell",
        "import pour.metrics, torch; pour.metrics.linear_cka(torch.eye(4), torch.eye(4))",
    ],
)
def test_nothing_slow_is_imported_before_it_is_used(code: str) -> None:
    """A worker, or a command that ends with one sentence, should not wait seconds for what it does not use."""
    program = f"{code}; import sys; print(*(name for name in {SLOW} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_training_does_not_import_torchmetrics() -> None:
    program = (
        "import sys, torch, pour.training as t; run = t.Run(device='cpu', progress=False); "
        "recipe, batch = t.get_recipe('fast').change(epochs=1), (torch.ones(2, 2), torch.tensor([0, 1])); "
        "t.fit(torch.nn.Linear(2, 2), [batch], recipe, run); "
        "print('torchmetrics' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_streaming_classes_are_there_by_name() -> None:
    import pour.geometry
    import pour.metrics

    for package in (pour.metrics, pour.geometry):
        missing = [name for name in package.__all__ if not hasattr(package, name)]
        assert missing == []
    with pytest.raises(AttributeError, match="has no attribute 'LinearCKB'"):
        _ = pour.metrics.LinearCKB


def test_names_and_rooms_are_imported_on_first_use() -> None:
    program = (
        "import sys, pour; assert 'torch' not in sys.modules; "
        "pour.models.NormalizedModel, pour.data.Splits, pour.training.Run, pour.methods, pour.report.FigureSection; "
        "missing = [name for name in pour.__all__ if not hasattr(pour, name)]; assert missing == [], missing"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    import pour

    for name in ("ImageDataset", "Eraser", "zero_shot_classifier", "load_segmentation"):
        assert name in pour.__all__
    with pytest.raises(AttributeError, match="has no attribute 'forgett'"):
        _ = pour.forgett


def test_what_the_pages_write_after_import_pour_works() -> None:
    root = Path(__file__).resolve().parent.parent
    rooms = re.findall(
        r"^\| `(\w+)` \|", (root / "docs" / "project" / "architecture.md").read_text(), flags=re.MULTILINE
    )
    assert {"models", "data", "training", "report", "methods"} <= set(rooms)
    public = [room for room in rooms if room != "cli"]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    written = {
        name
        for page in pages
        for name in re.findall(rf"\bpour\.(?:{'|'.join(public)})\.\w+", page.read_text(encoding="utf-8"))
    }
    assert "pour.models.NormalizedModel" in written
    names = [*sorted(written), *(f"pour.{room}" for room in public)]
    program = f"import pour\nfor name in {names!r}:\n    eval(name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
