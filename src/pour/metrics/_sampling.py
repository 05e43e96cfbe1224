"""Seeded, stratified choices of samples and folds."""

import torch
from torch import Tensor


def stratified_sample(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Choose `size` samples with every class in its share: sorted indices into labels (n,), all where n <= size.

    Shares are rounded by largest remainder, so that the sizes of the classes are off by less than one.
    """
    if len(labels) <= size:
        return torch.arange(len(labels), device=labels.device)
    known = labels.cpu()
    order = torch.randperm(len(known), generator=generator)
    order = order[known[order].argsort(stable=True)]
    counts = known.bincount()
    exact = counts.double() * size / len(known)
    take = exact.floor().long()
    take[(exact - take).argsort(descending=True, stable=True)[: size - int(take.sum())]] += 1
    chosen = [part[:k] for part, k in zip(torch.split(order, counts.tolist()), take.tolist(), strict=True)]
    return torch.cat(chosen).sort().values.to(labels.device)


def stratified_folds(strata: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Deal the samples of each stratum out over the folds in random order: fold numbers, shape (n,).

    Dealing goes on from one stratum to the next in the order of their numbers, so that the folds' sizes, and their
    shares of any run of neighbouring strata, differ by at most one.
    """
    known = strata.cpu()
    order = torch.randperm(len(known), generator=generator)
    order = order[known[order].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order)) % folds
    return fold.to(strata.device)
