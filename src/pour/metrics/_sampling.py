"""Seeded, stratified choices of samples and folds."""

import torch
from torch import Tensor


def stratified_sample(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Choose `size` samples with every class in its share: sorted indices into labels (n,), or all if n <= size.

    Shares are rounded by largest remainder, so that the sizes of the classes are off by less than one.
    """
    if len(labels) <= size:
        return torch.arange(len(labels), device=labels.device)
    # The draw is on the CPU, so that it does not depend on the device; sorting is faster on the device of the labels.
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    order = order[labels[order].argsort(stable=True)]
    counts = labels.bincount().cpu()
    exact = counts.double() * size / len(labels)
    take = exact.floor().long()
    take[(exact - take).argsort(descending=True, stable=True)[: size - int(take.sum())]] += 1
    samples = [part[:k] for part, k in zip(torch.split(order, counts.tolist()), take.tolist(), strict=True)]
    return torch.cat(samples).sort().values


def stratified_folds(strata: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Deal the samples of each stratum out over the folds in random order: fold numbers, shape (n,).

    Each stratum continues at the fold after the last one, in the order of the strata's numbers. The sizes of the folds,
    and their shares of any run of neighbouring strata, differ by at most one.
    """
    order = torch.randperm(len(strata), generator=generator).to(strata.device)
    order = order[strata[order].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order), device=order.device) % folds
    return fold
