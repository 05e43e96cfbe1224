from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pour
from pour._torchvision import torchvision_works
from pour.errors import UsageError
from pour.models import find_head
from pour.report.figures import draw_gradcam, find_map_layer, grad_cam, gradcam_data


class Pooled(nn.Module):
    """Convolutions, mean, linear: Grad-CAM has a closed form."""

    def __init__(self, width: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu_(self.body(x)).mean(dim=(2, 3)))


class Tokens(nn.Module):
    """A vision transformer that reads its class token, or the mean of its patches."""

    def __init__(self, *, pool: str, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).transpose(1, 2)
        z = torch.cat([self.token.expand(len(z), -1, -1), z], dim=1)
        for block in self.blocks:
            z = block(z)
        z = self.norm(z)
        return self.head(z[:, 0] if self.pool == "token" else z[:, 1:].mean(dim=1))


@pytest.fixture
def pooled() -> Pooled:
    torch.manual_seed(0)
    return Pooled().double()


def images(n: int = 5, channels: int = 1, side: int = 8) -> Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_with_a_mean_before_the_head_it_is_the_head_row_times_the_map(pooled: Pooled) -> None:
    x, classes = images(), torch.tensor([0, 1, 2, 3, 0])
    with torch.no_grad():
        maps = torch.relu(pooled.body(x))
    expected = torch.einsum("nk,nkij->nij", pooled.fc.weight.detach()[classes], maps).clamp(min=0) / maps[0, 0].numel()
    torch.testing.assert_close(grad_cam(pooled, x, classes), expected)


def test_the_model_is_left_as_it_was(pooled: Pooled) -> None:
    pooled.train()
    before = copy.deepcopy(pooled.state_dict())
    grad_cam(pooled, images(), torch.zeros(5, dtype=torch.int64))
    assert pooled.training
    assert all(parameter.grad is None for parameter in pooled.parameters())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in pooled.modules())
    for name, value in pooled.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_a_frozen_model_has_the_same_maps(pooled: Pooled) -> None:
    x, classes = images(), torch.tensor([0, 1, 2, 3, 0])
    expected = grad_cam(pooled, x, classes)
    pooled.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(grad_cam(pooled, x, classes), expected)


def test_one_map_does_not_depend_on_the_others_in_the_batch(pooled: Pooled) -> None:
    x, classes = images(), torch.tensor([0, 1, 2, 3, 0])
    alone = torch.cat([grad_cam(pooled, x[i : i + 1], classes[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(grad_cam(pooled, x, classes), alone)


def test_the_map_is_where_the_class_is() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        model[4].weight.copy_(torch.eye(2))
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 5, 2] = 1
    found = grad_cam(model, x, torch.tensor([0]))[0]
    assert divmod(int(found.argmax()), 8) == (5, 2)
    assert int((found > 0).sum()) == 1


@pytest.mark.parametrize("logit", ["mask", "keep", "zero"])
def test_a_projected_class_has_no_map_of_its_own_but_the_encoder_still_has_it(pooled: Pooled, logit: str) -> None:
    unlearned = pour.forget(pooled, [1], direction="weights", forgotten_logit=logit)  # type: ignore[arg-type]
    data = gradcam_data(
        pooled, unlearned, images(4), torch.tensor([0, 1, 2, 1]), classes=["a", "b", "c", "d"], forgotten=[1]
    )
    gone = data.labels == 1
    assert data.projected
    assert (data.maps["after"][gone] == 0).all()
    np.testing.assert_allclose(data.maps["through original"], data.maps["before"])
    assert data.maps["before"].max() <= 1
    assert all(np.max([data.maps["before"][i], data.maps["after"][i]]) in (0, 1) for i in range(4))
    figure = draw_gradcam(data)
    assert "zero by construction" in figure.get_supxlabel()
    assert [axes.get_title() for axes in figure.axes[:4]] == ["b", "b", "a", "c"]


def test_a_model_that_only_changed_its_encoder_gets_no_such_note(pooled: Pooled) -> None:
    other = copy.deepcopy(pooled)
    with torch.no_grad():
        other.body[0].weight.mul_(0.5)
    data = gradcam_data(pooled, other, images(2), torch.tensor([0, 1]), classes=list("abcd"), forgotten=[1])
    assert not data.projected
    assert "zero by construction" not in draw_gradcam(data).get_supxlabel()
    # Its head is the original's, so its own score and the original's row ask the same.
    np.testing.assert_allclose(data.maps["after"], data.maps["through original"])


def test_tokens_are_read_before_the_last_attention_when_a_class_token_is_the_feature() -> None:
    torch.manual_seed(0)
    model = Tokens(pool="token")
    layer = find_map_layer(model, images(1, 3, 16).float())
    assert layer.name == "blocks.1.norm1"
    assert (layer.layout, layer.grid) == ("tokens", (4, 4))
    assert grad_cam(model, images(2, 3, 16).float(), torch.tensor([0, 2])).shape == (2, 4, 4)


def test_tokens_averaged_have_the_closed_form_too() -> None:
    torch.manual_seed(0)
    model, x = Tokens(pool="mean"), images(3, 3, 16).float()
    classes = torch.tensor([0, 1, 2])
    seen: list[Tensor] = []
    handle = model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    assert find_map_layer(model, x).name == "norm"
    found = grad_cam(model, x, classes)
    handle.remove()
    patches = seen[-1].detach()[:, 1:]
    expected = torch.einsum("nd,ntd->nt", model.head.weight.detach()[classes], patches).clamp(min=0) / 16
    torch.testing.assert_close(found.flatten(1), expected, atol=1e-6, rtol=1e-4)


def test_oblong_images_have_oblong_grids() -> None:
    torch.manual_seed(0)
    model = Tokens(pool="token")
    assert find_map_layer(model, torch.rand(1, 3, 8, 32)).grid == (2, 8)


@pytest.mark.parametrize(
    ("name", "options", "side", "grid"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}, 32, (4, 4)),
        ("resnet18", {}, 64, (2, 2)),
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2, "depths": (1, 1)}, 64, (8, 8)),
    ],
)
def test_networks_of_timm(name: str, options: dict[str, object], side: int, grid: tuple[int, int]) -> None:
    torchvision_works()
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=5, **options).eval()
    x = torch.rand(2, 3, side, side)
    assert find_map_layer(model, x).grid == grid
    found = grad_cam(model, x, torch.tensor([0, 4]))
    assert found.shape == (2, *grid)
    assert float(found.max()) > 0


@pytest.mark.parametrize("kind", ["convolution", "tokens"])
def test_pytorch_grad_cam_finds_the_same(kind: str) -> None:
    torchvision_works()
    oracle = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    torch.manual_seed(0)
    classes = torch.tensor([0, 1, 2])
    reshape = None
    if kind == "convolution":
        model: nn.Module = Pooled().eval()
        x, layer = images(3).float(), model.body  # type: ignore[union-attr]
    else:
        model = Tokens(pool="token").eval()
        x, layer = images(3, 3, 16).float(), model.blocks[1].norm1  # type: ignore[index,union-attr]

        def reshape(tokens: Tensor) -> Tensor:
            return tokens[:, 1:].transpose(1, 2).unflatten(2, (4, 4))

    cam = oracle.GradCAM(model=model, target_layers=[layer], reshape_transform=reshape)
    theirs = cam(input_tensor=x, targets=[targets.ClassifierOutputTarget(int(label)) for label in classes])
    ours = grad_cam(model, x, classes).detach()
    size = x.shape[-2:]
    low, high = ours.amin(dim=(1, 2), keepdim=True), ours.amax(dim=(1, 2), keepdim=True)
    scaled = nn.functional.interpolate(((ours - low) / (1e-7 + high - low))[:, None], size=size, mode="bilinear")[:, 0]
    assert np.corrcoef(scaled.flatten().numpy(), theirs.flatten())[0, 1] > 0.95


def test_many_images_are_cut_with_a_note(pooled: Pooled) -> None:
    labels = torch.arange(30) % 4
    data = gradcam_data(pooled, pooled, images(30), labels, classes=list("abcd"), forgotten=[1])
    figure = draw_gradcam(data)
    assert "10 of 30 images" in figure.get_supxlabel()
    assert sum(bool(axes.images) for axes in figure.axes) == 40


def test_wrong_use_is_told(pooled: Pooled) -> None:
    with pytest.raises(UsageError, match="one index below 4"):
        grad_cam(pooled, images(2), torch.tensor([0, 4]))
    with pytest.raises(UsageError, match="expected \\(N, channels, H, W\\)"):
        grad_cam(pooled, images(2)[0], torch.tensor([0]))
    with pytest.raises(UsageError, match="no feature map"):
        grad_cam(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), images(2).float(), torch.tensor([0, 1]))
    with pytest.raises(UsageError, match="reads 6 features"):
        gradcam_data(
            pooled, Pooled(width=8).double(), images(1), torch.tensor([0]), classes=list("abcd"), forgotten=[1]
        )
    dense = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Conv2d(6, 4, 1))
    with pytest.raises(UsageError, match="a score for every pixel"):
        grad_cam(dense, images(1).float(), torch.tensor([0]), head=find_head(dense, head="1").name)
