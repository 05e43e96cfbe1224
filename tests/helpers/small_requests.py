"""A tiny network and tiny batches of a user, for the tests of the formula of each method."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pour
from pour.unlearning import ForgetRequest

CLASSES = 4
FORGOTTEN = 2
NOTHING = 1e-20
"""A learning rate that changes no weight, so that the losses of a run can be computed by hand."""

Batch = tuple[Tensor, Tensor]


def tiny_net(seed: int = 0) -> nn.Module:
    """Four classes of 1 x 6 x 6 images, a BatchNorm on the way."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 5, 3),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(5, CLASSES),
        )
        net[1].running_mean.uniform_(-0.1, 0.1)  # type: ignore[operator, union-attr]
    return net.eval()


def batches(count: int, size: int, labels: tuple[int, ...], seed: int) -> list[Batch]:
    """``count`` batches of float images whose labels go round ``labels``."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(size, 1, 6, 6, generator=generator), torch.tensor(labels).repeat(size)[:size]) for _ in range(count)
    ]


FORGET = batches(2, 4, (FORGOTTEN,), seed=1)
RETAIN = batches(3, 6, (0, 1, 3), seed=2)
VALIDATION = batches(2, 5, (0, 1, 3), seed=3)


def small_request(**changes: Any) -> ForgetRequest:
    """Two forget batches of 4 images, three retained ones of 6."""
    offered: dict[str, Any] = {
        "classes": [FORGOTTEN],
        "forget": FORGET,
        "retain": RETAIN,
        "validation": VALIDATION,
        "build": lambda: tiny_net(int(torch.randint(1000, ()))),
    }
    return ForgetRequest(**(offered | changes))


def unlearn(model: nn.Module, method: str, request: ForgetRequest | None = None, **options: Any) -> nn.Module:
    """`pour.unlearn` on the CPU, in full precision, quietly."""
    chosen = small_request() if request is None else request
    return pour.unlearn(model, chosen, method=method, device="cpu", precision="fp32", progress=False, **options)


def losses(model: nn.Module) -> np.ndarray:
    """Return the loss of each step of the last method."""
    return np.array(pour.history(model)[-1].losses)


def cross_entropy(model: nn.Module, batch: Batch) -> float:
    """Return the cross-entropy of a batch, with the model in evaluation mode."""
    with torch.no_grad():
        return float(F.cross_entropy(model.eval()(batch[0]), batch[1]))


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> np.ndarray:
    """KL(softmax(teacher / T) || softmax(student / T)) of each row, in float64."""
    p, q = (torch.softmax(scores.detach().double() / temperature, dim=1).numpy() for scores in (teacher, student))
    return np.asarray((p * np.log(p / q)).sum(axis=1))
