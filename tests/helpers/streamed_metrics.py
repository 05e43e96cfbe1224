"""Every streaming metric of the package on rows of one set of features."""

import torch

from pour.metrics import LinearCKA


def streamed(rows):
    """Every streaming metric of the package on the given rows of one set of features."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(101, 12, generator=g) + 5
    y = x @ torch.randn(12, 7, generator=g) + torch.randn(101, 7, generator=g)
    metrics = {
        "cka": LinearCKA(),
        "debiased": LinearCKA(12, 7, debiased=True),
        "printed": LinearCKA(center=False),
    }
    for batch in torch.as_tensor(list(rows)).split(16):
        for metric in metrics.values():
            metric.update(x[batch], y[batch])
    return {name: float(metric.compute()) for name, metric in metrics.items()}
