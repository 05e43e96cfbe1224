"""Program of the two processes of auditing/test_processes.py."""

import json
import sys
from pathlib import Path

import torch
from torch import distributed

import pour
from pour.auditing import Relearning, audit, gather_rows, join_processes
from pour.auditing.processes import all_agree, share_of
from pour.data.splits import Splits


def audit_files(folder, original, unlearned, retrained):
    call = {
        "original": pour.load(original),
        "unlearned": pour.load(unlearned),
        "retrained": pour.load(retrained),
        "data": Splits.of(pour.load_dataset("digits"), ["3"]),
        "cache": folder / "cache",
        "relearn": Relearning(images_per_class=2, steps=(0, 2)),
        "device": "cpu",
        "progress": False,
    }
    fresh = audit(**call)
    from_cache = audit(**call)
    assert fresh == from_cache
    fresh.save(folder / f"{distributed.get_rank()}.json")


def metrics(folder):
    from streamed_metrics import streamed

    join_processes()
    join_processes()
    rank = distributed.get_rank()
    found = streamed(range(37) if rank == 0 else range(37, 101))
    # Shares of odd sizes, and of fewer rows than processes.
    for count in (7, 1, 0):
        rows = torch.arange(3 * count).view(count, 3)
        assert torch.equal(gather_rows(rows[share_of(count).start : share_of(count).stop], count), rows)
    assert all_agree(True, torch.device("cpu"))
    assert not all_agree(rank == 0, torch.device("cpu"))
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    task, folder, *files = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent))
    audit_files(Path(folder), *files) if task == "audit" else metrics(Path(folder))
