"""Exports: the names of the user's network, what is refused, and nothing left of a wrong file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from shop_network import ShopNet
from torch import Tensor, nn

import pour
from pour.errors import PourError, UsageError
from pour.models import NormalizedModel, masked_score
from pour.models.exporting import check
from pour.models.exporting import export as exporting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return ShopNet().eval()


def scores(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(images)  # type: ignore[no-any-return]


def test_the_original_code_loads_the_plain_names(network: nn.Module, images: Tensor, tmp_path: Path) -> None:
    forgotten = pour.forget(network, classes=[1])
    done = pour.export(forgotten, tmp_path / "new" / "shop.safetensors", example=images)
    assert done.path == tmp_path / "new" / "shop.safetensors"
    assert "ShopNet of shop_network.py loaded it with strict=True and gave the same outputs" in done.check
    fresh = ShopNet()
    fresh.load_state_dict(load_file(done.path), strict=True)
    torch.testing.assert_close(scores(fresh, images), scores(forgotten, images))
    assert not bool((scores(fresh, images).argmax(dim=1) == 1).any())
    assert [file.name for file in done.path.parent.iterdir()] == ["shop.safetensors"]
    with pytest.raises(UsageError, match="already exists"):
        pour.export(forgotten, done.path, example=images)


@pytest.mark.slow
def test_the_normalisation_of_the_wrapper_is_stated(network: nn.Module, images: Tensor, tmp_path: Path) -> None:
    forgotten = pour.forget(NormalizedModel(network, [0.4], [0.25], resize=12), classes=[1])
    done = pour.export(forgotten, tmp_path / "shop.pth", example=images)
    assert "mean [0.4] and deviation [0.25] and resized to 12 x 12 pixels" in done.images
    state = torch.load(done.path, weights_only=True)
    assert list(state) == list(network.state_dict())
    fresh = ShopNet()
    fresh.load_state_dict(state, strict=True)
    resized = nn.functional.interpolate((images - 0.4) / 0.25, size=12, mode="bilinear", antialias=True)
    torch.testing.assert_close(scores(fresh, resized), scores(forgotten, images))


def test_a_wrong_tensor_leaves_nothing(
    network: nn.Module, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(state: dict[str, Tensor], *rest: Any, **options: Any) -> None:
        save_file({**state, "body.0.bias": state["body.0.bias"] + 1e-4}, *rest, **options)

    monkeypatch.setattr(exporting, "save_file", wrong)
    with pytest.raises(PourError, match=r"shop.safetensors was not written, because the written tensors differ"):
        pour.export(pour.forget(network, classes=[1]), tmp_path / "shop.safetensors", example=images)
    assert not list(tmp_path.iterdir())


def test_other_scores_in_the_other_process_leave_nothing(
    network: nn.Module, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if folding had forgotten nothing."""
    monkeypatch.setattr(exporting, "_folded", lambda _: network)
    (tmp_path / "shop.pt").write_text("an older file")
    with pytest.raises(PourError, match=r"was not written, because its outputs differ by .* from those of the model"):
        pour.export(pour.forget(network, classes=[1]), tmp_path / "shop.pt", example=images, overwrite=True)
    assert (tmp_path / "shop.pt").read_text() == "an older file"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_counts_as_a_difference() -> None:
    low = masked_score(torch.float32)
    wanted = torch.tensor([[3.0, low, -2.0]])
    reference = check.Reference((), {}, {"logits": wanted, "hidden": [torch.tensor([1, 2])]}, "an example")
    whole = torch.tensor([1, 2])
    assert reference.difference([wanted + 1e-5, whole]) == pytest.approx(1e-5 / 3, rel=0.1)
    assert reference.difference([torch.where(wanted < -9, 2 * wanted, wanted), whole]) == 0
    for wrong in (wanted + 1e-2, wanted.abs(), wanted * torch.nan, wanted.clamp(min=-10)):
        with pytest.raises(check.CheckError, match="differ"):
            reference.difference([wrong, whole])
    with pytest.raises(check.CheckError, match="shapes"):
        reference.difference([wanted[:, :2], whole])


def test_a_class_that_another_process_cannot_import_is_told(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    assert check._write_class(tmp_path, nn.Sequential(Local(2, 2)), {}) == "its class Local is defined in a function"
    main = type("Main", (nn.Linear,), {"__module__": "__main__"})
    assert check._write_class(tmp_path, main(2, 2), {}) == "its class Main is defined in __main__"
    network = ShopNet()
    network.helper = lambda: None  # type: ignore[assignment]
    assert "cannot be pickled" in str(check._write_class(tmp_path, network, {}))


def normalized(network: nn.Module) -> nn.Module:
    return NormalizedModel(network, [0.5], [0.5])


@pytest.mark.parametrize(
    ("make", "name", "options", "words"),
    [
        (ShopNet, "shop.pt", {}, "does not record the size of its images; pass example="),
        (ShopNet, "shop", {}, "A ShopNet is no model of transformers, so it cannot become the folder"),
        (ShopNet, "shop.onx", {}, "end the path in .safetensors, .pt or .onnx"),
        (lambda: normalized(ShopNet()), "shop.pt", {"normalization": "inside"}, "Only an ONNX file can contain"),
        (lambda: normalized(ShopNet()), "shop.onnx", {"normalization": "both"}, "choose one of 'inside', 'outside'"),
        (lambda: pour.forget(ShopNet(bias=False), [1]), "shop.pt", {"example": torch.rand(2, 1, 8, 8)},
         r"no bias for the mask; forget with forgotten_logit=\"keep\" .* or export it to ONNX, which keeps"),
        (lambda: ShopNet().to("meta"), "shop.pt", {}, "'body.0.weight' is no tensor with values"),
        (ShopNet, "shop.onnx", {"example": {"x": torch.rand(2, 1, 8, 8)}}, "takes one tensor of images"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused_with_the_remedy(
    make: Callable[[], nn.Module], name: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        pour.export(make(), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_a_zero_shot_classifier_is_exported_by_its_encoder(tmp_path: Path) -> None:
    model = pour.build_model("clip-resnet-digits", 4, in_channels=1, image_size=8)
    with pytest.raises(UsageError, match=r"export its encoder, pour.fold\(model\).model"):
        pour.export(model, tmp_path / "m.pt")
