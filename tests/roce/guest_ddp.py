"""Runs on each of two virtual machines: one step of DistributedDataParallel over RDMA.

    NUMBER=1 python guest_ddp.py

An emulated processor loads torch for a minute.
"""

from __future__ import annotations

import faulthandler
import os

import numpy as np
import torch
import torch.distributed as dist
from guest_ranks import check_losses, counters
from torch.nn.parallel import DistributedDataParallel

FEATURES = 64
SAMPLES = 8
LIMIT_S = 200
"""On the guest's clock, where a step takes 25 s, and the import as long."""


def samples_of(rank: int) -> np.ndarray:
    """Return this rank's batch: integers, so that sums are exact."""
    return (np.arange(SAMPLES * FEATURES).reshape(SAMPLES, FEATURES) % 13 + rank).astype(np.float32)


def main() -> None:
    """Compare the gradients of one step with numpy."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    os.environ.update(HCCL_SECRET="of two virtual machines", HCCL_SOCKET_IFNAME="eth0")
    rank = int(os.environ["NUMBER"]) - 1
    before = counters()
    dist.init_process_group("hccl", "tcp://10.99.0.1:29500", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, FEATURES))
    model(torch.from_numpy(samples_of(rank))).sum().backward()
    # Each row of the weight's gradient is the sum of the samples, averaged over the ranks.
    row = np.mean([samples_of(each).sum(0) for each in range(2)], 0)
    gradient = model.module.weight.grad
    assert gradient is not None
    np.testing.assert_array_equal(gradient.numpy(), np.tile(row, (FEATURES, 1)))
    dist.destroy_process_group()
    after = counters()
    check_losses(before, after)
    assert after["sent_pkts"] > before["sent_pkts"], "nothing went over RDMA"
    print("a step of DDP is right", flush=True)


if __name__ == "__main__":
    main()
