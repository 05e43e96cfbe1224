"""Metrics that see half of the data in each of two processes."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pour.geometry import NearestMeanAgreement, NeuralCollapseMetric, neural_collapse


def draw():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(25)
    weight = torch.randn(4, 6, generator=generator)
    features = weight[labels] + 0.5 * torch.randn(100, 6, generator=generator)
    return features, labels, weight


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    features, labels, weight = draw()
    # Shares of different sizes, the first without class 3.
    mine = (labels < 2) if rank == 0 else (labels >= 2)
    metric = NeuralCollapseMetric(4, 6, weight=weight)
    metric.update(features[mine], labels[mine])
    found = {name: float(value) for name, value in metric.compute().items()}
    metric.sync()
    agreement = NearestMeanAgreement(metric.means, weight)
    agreement.update(features[mine])
    found["nc4"] = float(agreement.compute())
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed support")
def test_two_processes_agree_with_one(tmp_path):
    mp.spawn(work, args=(str(tmp_path),), nprocs=2)
    features, labels, weight = draw()
    expected = neural_collapse(features, labels, weight).to_dict()
    for rank in range(2):
        result = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert result == pytest.approx(expected, rel=1e-9, abs=1e-6)
