"""``save_pretrained`` of projected models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import pour
from pour.errors import UsageError
from pour.models import NormalizedModel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_projected_model_of_transformers_is_not_saved_without_its_head(tmp_path: Path, wrapped: bool) -> None:
    """from_pretrained does not find the names of a projected head, and starts another one at random."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=4, layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    forgotten = pour.forget(NormalizedModel(model, [0.5] * 3, [0.5] * 3) if wrapped else model, classes=[1])
    forgotten = pour.load(pour.save(forgotten, tmp_path / "m.safetensors"), forgotten)
    network = forgotten.model if wrapped else forgotten
    with pytest.raises(UsageError, match=r"pour.export\(model, folder\), or save pour.fold\(model\)"):
        network.save_pretrained(tmp_path / "hub")  # type: ignore[union-attr, operator]
    plain = pour.fold(forgotten)
    plain = plain.model if wrapped else plain  # type: ignore[assignment]
    plain.save_pretrained(tmp_path / "hub")  # type: ignore[operator]
    loaded = type(model).from_pretrained(tmp_path / "hub")
    assert torch.equal(loaded.classifier[1].weight, plain.classifier[1].weight)  # type: ignore[union-attr, index]
    model.save_pretrained(tmp_path / "original")
