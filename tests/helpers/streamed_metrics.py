"""Every streaming metric of the package on rows of one set of features."""

import torch

from pour.geometry import NearestMeanAgreement, NeuralCollapseMetric
from pour.metrics import LinearCKA


def streamed(rows):
    """Every streaming metric of the package on the given rows of one set of features."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(101, 12, generator=g) + 5
    y = x @ torch.randn(12, 7, generator=g) + torch.randn(101, 7, generator=g)
    labels = torch.randint(0, 4, (101,), generator=g)
    weight = torch.randn(4, 12, generator=g)
    metrics = {
        "cka": LinearCKA(),
        "debiased": LinearCKA(12, 7, debiased=True),
        "printed": LinearCKA(center=False),
        "collapse": NeuralCollapseMetric(4, 12, weight=weight),
    }
    for batch in torch.as_tensor(list(rows)).split(16):
        for name in ("cka", "debiased", "printed"):
            metrics[name].update(x[batch], y[batch])
        metrics["collapse"].update(x[batch], labels[batch])
    found = {}
    for name, metric in metrics.items():
        value = metric.compute()
        found |= (
            {f"{name}.{k}": float(v) for k, v in value.items()} if isinstance(value, dict) else {name: float(value)}
        )
    metrics["collapse"].sync()
    agreement = NearestMeanAgreement(metrics["collapse"].means, weight)
    for batch in torch.as_tensor(list(rows)).split(16):
        agreement.update(x[batch])
    return found | {"nc4": float(agreement.compute())}
