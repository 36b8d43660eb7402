"""What runs in the same processes as a group: DataLoader workers, torch.distributed.rpc."""

import pytest
import torch
import torch.distributed as dist
from features import feature
from folders import folder_of_all
from torch import nn
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from training import batches, model, parameters_of, sgd

SECTION = "Beside the group"


def samples() -> TensorDataset:
    """Return the single samples, which a new process can unpickle with nothing but torch."""
    inputs, targets = zip(*batches(2), strict=True)
    return TensorDataset(torch.cat(inputs), torch.cat(targets))


def train_from(loader: DataLoader[object], network: nn.Module) -> list[torch.Tensor]:
    optimizer = sgd(network)
    for epoch in range(2):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(network(inputs), targets).backward()
            optimizer.step()
    return parameters_of(network)


def loaded_by(context: str, rank: int, world_size: int) -> list[torch.Tensor]:
    data = samples()
    sampler = DistributedSampler(data, world_size, rank, seed=3)
    workers = {"num_workers": 1, "multiprocessing_context": context, "persistent_workers": True}
    if context == "spawn" and rank:
        workers = {}  # importing torch once is enough to wait for
    loader = DataLoader(data, batch_size=4, sampler=sampler, **workers)
    return train_from(loader, DistributedDataParallel(model()))


@pytest.mark.nightly("training")
@feature(SECTION, "torch.distributed.rpc beside a group", own_group=True)
def test_rpc_beside_a_group(rank: int, world_size: int, backend: str) -> list[torch.Tensor]:
    """Each asks the other to add while a collective is under way; both end well."""
    dist.init_process_group(backend)
    with folder_of_all(rank) as folder:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
        rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
        total = torch.tensor(1.0)
        work = dist.all_reduce(total, async_op=True)
        asked = rpc.rpc_async(f"rank{1 - rank}", torch.add, (torch.full((3,), 1.0 - rank), 1))
        answer = asked.wait()
        work.wait()
        rpc.shutdown()
    dist.destroy_process_group()
    return [answer, total]


@feature(SECTION, "DataLoader with forked workers")
def test_forked_workers(rank: int, world_size: int) -> list[torch.Tensor]:
    """They are forked while a group runs, and end while it goes on."""
    return loaded_by("fork", rank, world_size)


@pytest.mark.nightly("training")
@feature(SECTION, "DataLoader with spawned workers")
def test_spawned_workers(rank: int, world_size: int) -> list[torch.Tensor]:
    return loaded_by("spawn", rank, world_size)
