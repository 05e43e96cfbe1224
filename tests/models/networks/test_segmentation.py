"""Networks that score every pixel: finding the head, forgetting on feature maps, folding, saving."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import pour
from pour._torchvision import torchvision_works
from pour.errors import UsageError
from pour.models import build_model, find_head, tap_features
from pour.models.networks.segmentation import SegmentationModel, cell_labels, load_encoder

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {
    "smp:deeplabv3plus:resnet18": "model.segmentation_head.0",
    "smp:deeplabv3plus:tu-tf_efficientnet_lite0": "model.segmentation_head.0",
    "smp:linknet:tu-mobilenetv3_small_050": "model.segmentation_head.0",
    "torchvision:deeplabv3_mobilenet_v3_large": "model.classifier.4",
    "hf:segformer": "model.decode_head.classifier",
}
CLASSES = 5
IMAGES = torch.rand(2, 3, 34, 50, generator=torch.Generator().manual_seed(0))

# Before anything else imports torchvision: its operators may not fit this torch.
torchvision_works()
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def needs(arch: str) -> None:
    pytest.importorskip(
        {"smp": "segmentation_models_pytorch", "hf": "transformers"}.get(arch.partition(":")[0], "timm")
    )


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    return {}


def built(networks: dict[str, nn.Module], arch: str) -> nn.Module:
    needs(arch)
    if arch not in networks:
        torch.manual_seed(0)
        model = build_model(arch, CLASSES, image_size=34).eval()
        # A fresh head hardly tells classes apart; a larger one makes the decisions robust.
        with torch.no_grad():
            find_head(model).layer.weight.mul_(20)
        networks[arch] = model
    return networks[arch]


@pytest.mark.parametrize(("arch", "name"), ARCHITECTURES.items())
def test_the_head_is_found_and_scores_have_the_images_size(networks, arch: str, name: str) -> None:
    model = built(networks, arch)
    head = find_head(model)
    assert head.name == name
    assert (head.num_classes, head.dim) == (CLASSES, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_head(model, example=IMAGES).name == name
        assert find_head(pour.forget(model, classes=[2], example=IMAGES), example=IMAGES).name == name
    with torch.no_grad(), tap_features(model) as tap:
        scores = model(IMAGES)
    assert scores.shape == (2, CLASSES, 34, 50)
    assert tap.features.shape[:2] == (2, head.num_features)
    assert isinstance(head.layer, nn.Conv2d)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("logit", ["mask", "keep", "zero"])
def test_forgetting_takes_the_direction_out_of_every_pixel(networks, arch: str, logit: str) -> None:
    model = built(networks, arch)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    forgotten = pour.forget(model, classes=[2], direction="weights", forgotten_logit=logit)
    row = find_head(model).weight[2].double()
    with torch.no_grad(), tap_features(forgotten) as tap:
        scores = forgotten(IMAGES)
    along = torch.einsum("ndhw,d->nhw", tap.features.double(), row / row.norm())
    assert along.abs().max() < 1e-4 * tap.raw.abs().max()
    # An independent oracle: project the encoder's features by hand and apply the convolution.
    by_hand = tap.raw.double() - torch.einsum("ndhw,d,e->nehw", tap.raw.double(), row, row) / row.dot(row)
    torch.testing.assert_close(tap.features.double(), by_hand, rtol=1e-4, atol=1e-4)
    answers = scores.argmax(dim=1)
    if logit == "mask":
        assert not (answers == 2).any()
        assert torch.isfinite(scores).all()
    if logit == "zero":
        torch.testing.assert_close(scores[:, 2], torch.zeros_like(scores[:, 2]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("logit", ["mask", "keep", "zero"])
def test_folding_is_exact_and_keeps_class_and_keys(networks, arch: str, logit: str) -> None:
    model = built(networks, arch)
    forgotten = pour.forget(model, classes=[0, 3], forgotten_logit=logit)
    plain = pour.fold(forgotten)
    assert type(plain) is type(model)
    assert plain.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        unfolded, folded = forgotten(IMAGES), plain(IMAGES)
    shown = unfolded > -1e10
    torch.testing.assert_close(folded[shown], unfolded[shown], rtol=1e-3, atol=1e-3)
    best = unfolded.topk(2, dim=1).values
    clear = best[:, 0] - best[:, 1] > 1e-3
    assert clear.any()
    assert torch.equal(folded.argmax(dim=1)[clear], unfolded.argmax(dim=1)[clear])


@pytest.mark.parametrize("arch", ["smp:linknet:tu-mobilenetv3_small_050", "hf:segformer"])
def test_saving_brings_architecture_projector_and_history_back(networks, tmp_path: Path, arch: str) -> None:
    forgotten = pour.forget(built(networks, arch), classes=[1])
    pour.save(forgotten, tmp_path / "m.safetensors")
    again = pour.load(tmp_path / "m.safetensors")
    with torch.no_grad():
        assert torch.equal(again(IMAGES), forgotten(IMAGES))
    assert [record.method for record in pour.history(again)] == ["pour-p"]


def test_enlarging_is_recorded_and_comes_back(tmp_path: Path) -> None:
    needs("smp:")
    model = build_model("smp:linknet:tu-mobilenetv3_small_050", 4, enlarge=2)
    pour.save(model, tmp_path / "m.safetensors")
    again = pour.load(tmp_path / "m.safetensors")
    assert again.enlarge == 2
    assert again(IMAGES).shape == (2, 4, 34, 50)


def test_resnet101_is_built_with_its_head() -> None:
    needs("smp:")
    model = build_model("smp:deeplabv3plus:resnet101", 21).eval()
    assert find_head(model).name == "model.segmentation_head.0"
    with torch.no_grad():
        assert model(torch.rand(1, 3, 20, 40)).shape == (1, 21, 20, 40)
    assert sum(parameter.numel() for parameter in model.parameters()) > 40e6


def test_plain_networks_of_the_libraries_work_without_our_wrapper() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    network = smp.DeepLabV3Plus("resnet18", encoder_weights=None, classes=4).eval()
    assert find_head(network).name == "segmentation_head.0"
    forgotten = pour.forget(network, classes=[1])
    assert not (forgotten(torch.rand(1, 3, 32, 32)).argmax(dim=1) == 1).any()


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("smp:unet:resnet18", "needs a 1x1 convolution"),
        ("smp:deeplab:resnet18", "smp:deeplabv3plus:resnet101"),
        ("smp:deeplabv3plus:nothing", "Wrong encoder name"),
        ("smp:deeplabv3plus", "smp:ARCHITECTURE:ENCODER"),
    ],
)
def test_wrong_names_are_refused_with_a_sentence(arch: str, words: str) -> None:
    needs("smp:")
    with pytest.raises(UsageError, match=words):
        build_model(arch, 4)


def test_the_wrapper_pads_and_crops_back() -> None:
    class Seen(nn.Conv2d):
        shape: torch.Size

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.shape = images.shape
            return super().forward(images)

    network = Seen(3, 4, 1)
    model = SegmentationModel(network, [0.5] * 3, [0.5] * 3, multiple=16)
    scores = model(IMAGES)
    assert network.shape[-2:] == (48, 64)
    assert scores.shape == (2, 4, 34, 50)
    torch.testing.assert_close(scores, nn.functional.conv2d((IMAGES - 0.5) / 0.5, network.weight, network.bias))
    assert SegmentationModel(network, [0.5] * 3, [0.5] * 3, multiple=16, enlarge=2)(IMAGES).shape == scores.shape
    assert network.shape[-2:] == (80, 112)
    with pytest.raises(UsageError, match="enlarged by 1, 2"):
        SegmentationModel(network, [0.5] * 3, [0.5] * 3, enlarge=0)


def test_coarse_scores_are_brought_to_the_images_size() -> None:
    network = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(3, 4, 1))
    assert SegmentationModel(network, [0.5] * 3, [0.5] * 3, multiple=4)(IMAGES).shape == (2, 4, 34, 50)


@pytest.mark.parametrize(("multiple", "enlarge"), [(1, 1), (16, 1), (16, 2)])
def test_cell_labels_follow_what_the_network_sees(multiple: int, enlarge: int) -> None:
    """Labels as an image of numbers, run through the network: its maps must hold the labels of their cells."""
    labels = torch.arange(34 * 50).view(1, 34, 50)
    model = SegmentationModel(nn.Identity(), [0.0], [1.0], multiple=multiple, enlarge=enlarge)
    frame = model.frame(34, 50)
    size = (int(frame[0]) // 2, int(frame[1]) // 2)
    cells = cell_labels(model, labels, size)
    for i in range(size[0]):
        for j in range(size[1]):
            row, column = int((i + 0.5) * frame[0] / size[0]), int((j + 0.5) * frame[1] / size[1])
            expected = labels[0, row, column].item() if row < 34 and column < 50 else -100
            assert cells[0, i, j].item() == expected


def test_weights_of_an_encoder_alone_are_taken_with_a_warning(tmp_path: Path) -> None:
    needs("smp:")
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    torch.manual_seed(3)
    classifier = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=7)
    save_file(classifier.state_dict(), tmp_path / "encoder.safetensors")
    with pytest.warns(UserWarning, match="encoder alone"):
        model = build_model("smp:linknet:tu-mobilenetv3_small_050", 4, weights=tmp_path / "encoder.safetensors")
    assert torch.equal(model.model.encoder.model.conv_stem.weight, classifier.conv_stem.weight)
    pour.save(model, tmp_path / "whole.safetensors")
    save_file(model.model.state_dict(), tmp_path / "plain.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = build_model("smp:linknet:tu-mobilenetv3_small_050", 4, weights=tmp_path / "plain.safetensors")
    assert torch.equal(find_head(again).weight, find_head(model).weight)
    assert not load_encoder(model.model, {"stem": torch.zeros(3)}, source="nothing")
    save_file({"stem": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="another architecture"):
        build_model("smp:linknet:tu-mobilenetv3_small_050", 4, weights=tmp_path / "other.safetensors")


def test_centred_rows_do_not_depend_on_what_all_rows_share() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    shifted = nn.Sequential(model[0], model[1], nn.Conv2d(8, 4, 1))
    with torch.no_grad():
        shifted[2].bias.copy_(model[2].bias)
        shifted[2].weight.copy_(model[2].weight + torch.randn(1, 8, 1, 1))
    answers = [
        pour.forget(net, classes=[1], direction="centered-weights", head="2")(IMAGES).argmax(dim=1)
        for net in (model, shifted)
    ]
    assert torch.equal(*answers)
    centred = pour.forget(model, classes=[1], direction="centered-weights", head="2")
    expected = find_head(model, head="2").weight
    expected = expected[1] - expected.mean(dim=0)
    basis = find_head(centred).module.projector.basis[0]
    torch.testing.assert_close((basis @ expected).abs(), expected.norm())
