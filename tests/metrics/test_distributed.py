"""Two processes over gloo give what one process gives, from the same features."""

import pytest
import torch
import torch.multiprocessing as mp

from pour.metrics import LinearCKA


def _data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(101, 12, generator=g) + 5
    return x, x @ torch.randn(12, 7, generator=g) + torch.randn(101, 7, generator=g)


def _values(rows):
    metrics = {"cka": LinearCKA(), "debiased": LinearCKA(12, 7, debiased=True), "printed": LinearCKA(center=False)}
    for batch in torch.tensor(rows, dtype=torch.long).split(16) if rows else ():
        for metric in metrics.values():
            metric.update(*(features[batch] for features in _data()))
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def _worker(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=2)
    rows = {
        "uneven": (range(37), range(37, 101)),
        "one without data": (range(101), ()),
    }
    if rank == 0:
        # A value of this process alone must not wait for the other.
        alone = LinearCKA(sync_on_compute=False)
        alone.update(*_data())
        alone.compute()
    torch.save({name: _values(list(parts[rank])) for name, parts in rows.items()}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    mp.spawn(_worker, (str(tmp_path),), nprocs=2)
    one = _values(list(range(101)))
    for rank in range(2):
        for split, two in torch.load(tmp_path / f"{rank}.pt", weights_only=True).items():
            assert two.keys() == one.keys()
            for name, value in one.items():
                assert two[name] == pytest.approx(value, abs=1e-9), (split, name)
