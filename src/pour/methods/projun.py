"""Class unlearning by activation spaces: remove the forget space from the weights of every layer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.data.samples import checked_batch
from pour.models.modes import evaluating
from pour.models.tap import to_unit
from pour.unlearning.contract import Method, option
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.weight_checks import check_weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["ProjUn", "scaled_importance"]

Layer = nn.Linear | nn.Conv2d
_LARGEST_ALPHA = 1e12
_KERNELS_PER_WINDOW = 3


@register
@dataclass(kw_only=True)
class ProjUn(Method):
    """Project the forget images' activation space, minus its part shared with retained images, out of every layer.

    The inputs of each convolution (as patches) and linear layer on a few images span a space with singular vectors U
    and shares of energy e_i. Let M(a) = U diag(a e_i / ((a - 1) e_i + 1)) U^T, M_r for the retained and M_f for the
    forget images. The layer's weight becomes W (I - (M_f - M_f M_r))^T, without training. Biases and BatchNorm do not
    change. All activations are from the original network, so changes of early layers do not affect later layers. The
    published factors for CIFAR-10 (VGG11) are the default. CIFAR-100 used 1000 and 30, and a ResNet needs tuning. The
    authors use at most 10,000 patches per layer. Here wide maps are cut to one window, and all its patches are used.
    """

    name: ClassVar[str] = "projun"
    paper: ClassVar[str] = "Deep Unlearning (Kodge et al., TMLR 2024)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "one pass over 1,800 images, one d^3 solve per layer"

    alpha_retain: float = option(
        100.0,
        "Strength with which weak directions of the retained space count as shared; tuned among 10 to 1000.",
        above=0,
        most=_LARGEST_ALPHA,
    )
    alpha_forget: float = option(
        3.0,
        "Strength with which weak directions of the forget space are removed; tuned among 1 to 100.",
        above=0,
        most=_LARGEST_ALPHA,
    )
    images: int = option(900, "Number of images of each side, spread evenly over its classes.", least=1)
    batch_size: int = option(100, "Number of images per pass.", least=1)

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Compute the activation spaces of both sides, then change the weight of every layer."""
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                check_weight(layer, name, self.name)
        model.to(run.torch_device)
        retain = self._moments(model, request.retain.sample(self.images, run, batch_size=self.batch_size), run)
        forget = self._moments(model, request.forget.sample(self.images, run, batch_size=self.batch_size), run)
        with torch.no_grad():
            for layer, moment in forget.items():
                if layer in retain:
                    _project(layer, scaled_importance(moment, self.alpha_forget), retain[layer], self.alpha_retain)
        run.log(0, layers=len(forget))
        return model

    def _moments(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], run: Run) -> dict[Layer, Tensor]:
        generator = torch.Generator().manual_seed(run.seed)
        moments: dict[Layer, Tensor] = {}
        with evaluating(model), _watched(model, moments, generator), torch.no_grad():
            for images, _ in map(checked_batch, batches):
                model(to_unit(images.to(run.torch_device)))
        return moments


def scaled_importance(moment: Tensor, alpha: float) -> Tensor:
    """Return M(alpha) of a second moment G (..., d, d), with the shares of energy e rescaled.

    U diag(alpha e / ((alpha - 1) e + 1)) U^T is the rational function alpha E (I + (alpha - 1) E)^-1 of E = G / tr G,
    so one solve computes it without a decomposition.

    Examples:
        >>> scaled_importance(torch.diag(torch.tensor([3.0, 1.0])), 3.0)
        tensor([[0.9000, 0.0000],
                [0.0000, 0.5000]])
    """
    trace = moment.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    energy = moment / trace.clamp(min=torch.finfo(moment.dtype).tiny)
    identity = torch.eye(moment.shape[-1], dtype=moment.dtype, device=moment.device)
    # Both factors are functions of the same symmetric matrix, so their order does not matter.
    factor = torch.linalg.cholesky(identity + (alpha - 1) * energy)
    return torch.cholesky_solve(alpha * energy, factor)


def _project(layer: Layer, forget: Tensor, retain: Tensor, alpha_retain: float) -> None:
    """Replace W by W (I - (M_f - M_f M_r))^T, group by group."""
    removed = forget - forget @ scaled_importance(retain, alpha_retain)
    weight = layer.weight
    grouped = weight.reshape(len(removed), -1, removed.shape[-1]).to(removed.dtype)
    weight.copy_((grouped - grouped @ removed.mT).reshape(weight.shape))


@contextlib.contextmanager
def _watched(model: nn.Module, moments: dict[Layer, Tensor], generator: torch.Generator) -> Iterator[None]:
    """Add up the second moments of the inputs of each layer."""

    def watch(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(layer, nn.Conv2d):
            rows = _patches(layer, inputs[0].float(), generator)
        else:
            rows = inputs[0].float().reshape(1, -1, inputs[0].shape[-1])
        # Products of one batch are in float32, which is fast, and the sum is in float64.
        moment = (rows.mT @ rows).double()
        moments[layer] = moments[layer] + moment if layer in moments else moment  # type: ignore[index]

    with contextlib.ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.requires_grad:
                hooks.callback(layer.register_forward_pre_hook(watch).remove)
        yield


def _patches(layer: nn.Conv2d, maps: Tensor, generator: torch.Generator) -> Tensor:
    """Return the inputs of each kernel position, (groups, n, kernel inputs); a wide map is cut to a random window."""
    spans = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    padding = _padding(layer, spans)
    rows, columns = (_KERNELS_PER_WINDOW * span for span in spans)
    if maps.shape[2] > rows and maps.shape[3] > columns:
        top = int(torch.randint(maps.shape[2] - rows + 1, (), generator=generator))
        left = int(torch.randint(maps.shape[3] - columns + 1, (), generator=generator))
        maps, padding = maps[:, :, top : top + rows, left : left + columns], (0, 0)
    unfolded = F.unfold(maps, layer.kernel_size, layer.dilation, padding, layer.stride)
    inputs = unfolded.shape[1] // layer.groups
    return unfolded.view(len(maps), layer.groups, inputs, -1).permute(1, 0, 3, 2).reshape(layer.groups, -1, inputs)


def _padding(layer: nn.Conv2d, spans: Sequence[int]) -> tuple[int, int]:
    if layer.padding == "same":
        return (spans[0] - 1) // 2, (spans[1] - 1) // 2
    return (0, 0) if isinstance(layer.padding, str) else (int(layer.padding[0]), int(layer.padding[1]))
