"""Every format, loaded and run by a process that cannot import pour."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from command_line import here
from safetensors.torch import load_file
from shop_network import ShopNet
from torch import Tensor, nn

import pour
from pour.errors import PourError
from pour.models import NormalizedModel, set_class_names
from pour.models.exporting import without_pour

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def scores(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("arch", "build"),
    [
        ("timm:vit_tiny_patch16_224", "timm.create_model('vit_tiny_patch16_224', num_classes=5, in_chans=3, img_size="),
        ("torchvision:resnet18", "torchvision.models.get_model('resnet18', weights=None, num_classes=5)"),
        ("smp:fpn:resnet18", "segmentation_models_pytorch.create_model('fpn', 'resnet18', encoder_weights=None, "),
    ],
)  # fmt: skip
def test_a_network_of_a_library_is_built_by_its_name(arch: str, build: str, tmp_path: Path) -> None:
    pytest.importorskip(build.partition(".")[0])
    options: dict[str, Any] = {"resize": 32} if "vit" in arch else {}
    forgotten = pour.forget(pour.build_model(arch, 5, **options), classes=[1])
    done = pour.export(forgotten, tmp_path / "m.safetensors")
    assert build in done.check
    assert "4 random images of 3 x 32 x 32" in done.check
    assert not any(name.startswith(("model.", "normalize.")) for name in load_file(done.path))


def test_a_network_of_pour_runs_as_a_graph(tmp_path: Path, digits_original: nn.Module) -> None:
    file = pour.save(pour.forget(digits_original, ["3"]), tmp_path / "m.safetensors")
    done = here("export", file, "--data", "digits", "--out", tmp_path / "plain.safetensors")
    assert done.returncode == 0, done.stderr
    normalised, check, path = done.stdout.splitlines()
    assert normalised == "Images in [0, 1] are normalised inside."
    assert "the graph of the network ran" in check
    assert "ResNet is defined in pour.models.networks.resnet" in check
    assert path == str(tmp_path / "plain.safetensors")
    assert load_file(path).keys() == digits_original.state_dict().keys()
    again = here("export", file, "--out", path)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(("normalization", "bias"), [("inside", False), ("outside", True)])
def test_onnx_takes_any_batch(images: Tensor, tmp_path: Path, normalization: Any, bias: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = pour.forget(NormalizedModel(ShopNet(bias=bias), [0.4], [0.25], resize=12), classes=[1])
    done = pour.export(model, tmp_path / "m.onnx", example=images[:1], normalization=normalization)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert ("normalised inside" in done.images) is (normalization == "inside")
    session = runtime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    more = torch.rand(7, 1, 8, 8)
    inputs = more if normalization == "inside" else nn.functional.interpolate(
        (more - 0.4) / 0.25, size=12, mode="bilinear", antialias=True
    )  # fmt: skip
    found = torch.from_numpy(session.run(["scores"], {"images": inputs.numpy()})[0])
    torch.testing.assert_close(found, scores(model, more), rtol=1e-4, atol=1e-4)


def test_a_folder_of_transformers_keeps_its_head(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        num_labels=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    set_class_names(model, ["cat", "dog", "fox", "hen"])
    wrapped = NormalizedModel(pour.forget(model, classes="fox"), [0.5] * 3, [0.5] * 3)
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "notes.txt").write_text("of the user")
    with pytest.raises(PourError, match="already contains files"):
        pour.export(wrapped, tmp_path / "vit")
    done = pour.export(wrapped, tmp_path / "vit", overwrite=True)
    assert "ViTForImageClassification.from_pretrained loaded it" in done.check
    loaded, info = type(model).from_pretrained(tmp_path / "vit", output_loading_info=True)
    assert not any(info.values())
    assert loaded.config.id2label == {0: "cat", 1: "dog", 2: "fox", 3: "hen"}
    inputs = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(scores(loaded, (inputs - 0.5) / 0.5).logits, scores(wrapped, inputs))  # type: ignore[attr-defined]
    assert (tmp_path / "vit" / "notes.txt").read_text() == "of the user"
    assert [file.name for file in tmp_path.iterdir()] == ["vit"]


def test_a_folder_that_loads_with_another_head_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an unfolded model was saved before."""
    transformers = pytest.importorskip("transformers")
    from pour.models.exporting import export as exporting

    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=4, layer_type="basic"
    )
    model = pour.forget(transformers.ResNetForImageClassification(config), classes=[1])
    model.__dict__.pop("save_pretrained")  # the guard
    monkeypatch.setattr(exporting, "_folded", lambda whole: whole)
    with pytest.raises(PourError, match=r"hub was not written, because .*missing_keys.*classifier.1"):
        pour.export(model, tmp_path / "hub", example=torch.rand(2, 3, 32, 32))
    assert not list(tmp_path.iterdir())


def _write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 5)

    def forward(self, x):
        return self.fc(x.flatten(1))
"""
SCRIPT = """
import sys

import torch
from net import Net

import pour

model = pour.forget(Net(), classes=[1])
print(pour.export(model, sys.argv[1], example=torch.rand(2, 1, 8, 8)).check)
"""


@pytest.mark.parametrize(
    ("first_line", "words"),
    [("", "Net of net.py loaded it with strict=True"), ("import pour", "the graph of the network ran")],
)
def test_the_class_is_imported_from_the_users_code(first_line: str, words: str, tmp_path: Path) -> None:
    _write(tmp_path, "net.py", f"{first_line}\n{NET}")
    script = _write(tmp_path, "script.py", SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "m.pt"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert set(torch.load(tmp_path / "m.pt")) == {"fc.weight", "fc.bias"}


def test_the_other_process_cannot_import_pour() -> None:
    code = f"import runpy; runpy.run_path({without_pour.__file__!r})['_refuse_pour'](); import pour.models"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pour cannot be imported, because an export must work without pour" in done.stderr


def test_half_precision_stays(images: Tensor, tmp_path: Path) -> None:
    network = ShopNet().to(torch.bfloat16)
    done = pour.export(pour.forget(network, classes=[1]), tmp_path / "m.pt", example=images.to(torch.bfloat16))
    assert {tensor.dtype for tensor in torch.load(done.path).values() if tensor.is_floating_point()} == {torch.bfloat16}
