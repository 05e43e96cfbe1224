"""Seeded, stratified choices of samples and folds."""

import torch
from torch import Tensor


def stratified_sample(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw `size` samples with the class shares of `labels`. Return their sorted indices, or all if n <= size.

    Shares are rounded by largest remainder, so that the number of samples of each class is off by less than one.
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
    """Distribute the samples of each stratum over the folds in random order. Return the fold of each sample, (n,).

    Each stratum starts at the fold after the last fold of the previous stratum, in the order of the strata's numbers.
    The sizes of the folds differ by at most one. So do their numbers of samples from any neighbouring strata.
    """
    order = torch.randperm(len(strata), generator=generator).to(strata.device)
    order = order[strata[order].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order), device=order.device) % folds
    return fold
