"""What stands on a process group: DDP, its hooks, functional collectives, compile, fork."""

import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
BATCH = 12


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 3))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, 6, generator=random), torch.randn(BATCH, 3, generator=random))
        for _ in range(STEPS)
    ]


def train(network: nn.Module, rank: int, world_size: int) -> list[torch.Tensor]:
    """Return the parameters after a few steps on this rank's part of every batch."""
    # No batch statistics in training: each rank would have its own.
    network.eval()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches():
        part = slice(rank * BATCH // world_size, (rank + 1) * BATCH // world_size)
        optimizer.zero_grad()
        nn.functional.mse_loss(network(inputs[part]), targets[part]).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


def check_ddp(rank: int, world_size: int) -> None:
    expected = train(model(), 0, 1)
    for options in (
        {},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 0.0001},
    ):
        network = model()
        if rank:
            for parameter in network.parameters():
                parameter.data.zero_()  # DDP has to broadcast rank 0's
        got = train(DistributedDataParallel(network, **options), rank, world_size)
        for ours, single in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, single)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ddp_equals_training_in_one_process(world_size: int) -> None:
    run_ranks(check_ddp, world_size, backend="hccl")


def check_hooks(rank: int, world_size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    expected = train(model(), 0, 1)

    def average(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / world_size)

    for hook, tolerance in ((average, 1e-5), (default_hooks.fp16_compress_hook, 1e-2)):
        network = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
        network.register_comm_hook(None, hook)
        for ours, single in zip(train(network, rank, world_size), expected, strict=True):
            torch.testing.assert_close(ours, single, rtol=tolerance, atol=tolerance)
    network = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for parameter in train(network, rank, world_size):
        others = [torch.empty_like(parameter) for _ in range(world_size)]
        dist.all_gather(others, parameter)
        assert torch.equal(others[0], others[1])


def test_ddp_hooks_that_wait_inside_callbacks_agree() -> None:
    run_ranks(check_hooks, 2, backend="hccl")


def check_error_in_ddp(rank: int, world_size: int) -> None:
    network = DistributedDataParallel(model())
    if rank == 1:
        os._exit(0)
    with pytest.raises(RuntimeError, match="rank 1"):
        for _ in range(10):
            train(network, rank, world_size)


def test_ddp_peer_dies_is_an_error_not_a_crash() -> None:
    with pytest.raises(AssertionError, match="1 of 2 ranks failed") as caught:
        run_ranks(check_error_in_ddp, 2, backend="hccl")
    assert "rank 1: ended without a word" in str(caught.value)


def check_functional(rank: int, world_size: int) -> None:
    n, group = world_size, dist.group.WORLD

    def collectives(tensor: torch.Tensor) -> list[torch.Tensor]:
        return [
            functional.all_reduce(tensor, "sum", group) + 0,
            functional.all_reduce(tensor, "avg", group) + 0,
            functional.all_gather_tensor(tensor, 0, group) + 0,
            functional.reduce_scatter_tensor(tensor, "sum", 0, group) + 0,
            functional.all_to_all_single(tensor, None, None, group) + 0,
            functional.broadcast(tensor, 1, group) + 0,
            *functional.all_reduce_coalesced([tensor, tensor * 2], "sum", group),
            *functional.all_gather_into_tensor_coalesced([tensor, tensor * 2], group),
        ]

    tensor = torch.arange(2.0 * n) + rank
    every = [torch.arange(2.0 * n) + r for r in range(n)]
    total = sum(every)
    half = slice(2 * rank, 2 * rank + 2)
    expected = [
        total,
        total / n,
        torch.cat(every),
        total[half],
        torch.cat([other[half] for other in every]),
        every[1],
        total,
        2 * total,
        torch.cat(every),
        2 * torch.cat(every),
    ]
    for run in (collectives, torch.compile(collectives, backend="aot_eager", fullgraph=True)):
        for got, wanted in zip(run(tensor), expected, strict=True):
            torch.testing.assert_close(got + 0, wanted)
    out = torch.empty(2 * n * n)
    torch.ops._c10d_functional.wait_tensor(
        torch.ops._c10d_functional.all_gather_into_tensor_out(tensor, n, group.group_name, out=out)
    )
    torch.testing.assert_close(out, torch.cat(every))


def test_functional_collectives_eager_and_compiled_equal_numpy() -> None:
    run_ranks(check_functional, 2, backend="hccl", timeout_s=90)


def check_compiled_ddp(rank: int, world_size: int) -> None:
    network = model()
    compiled = torch.compile(DistributedDataParallel(network), backend="aot_eager")
    got = train(compiled, rank, world_size)
    for ours, single in zip(got, train(model(), 0, 1), strict=True):
        torch.testing.assert_close(ours, single)


def test_compiled_ddp_equals_training_in_one_process() -> None:
    run_ranks(check_compiled_ddp, 2, backend="hccl", timeout_s=90)


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, str]:
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as error:
            return index * index, str(error)
        return index * index, "no error"


def check_fork(rank: int, world_size: int) -> None:
    stop = threading.Event()
    group = dist.new_group()

    def keep_busy() -> None:
        while not stop.is_set():
            group.allreduce([torch.ones(1000)]).wait()

    # Started and stopped by all ranks at the same round, or one would wait for the others.
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        squares = []
        for values, errors in loader:
            squares += values.tolist()
            assert all("forked" in error for error in errors), errors
            dist.all_reduce(torch.ones(100))
        assert squares == [index**2 for index in range(8)]
    pid = os.fork()
    if pid == 0:
        del group
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size] * 3


def test_forked_workers_beside_a_group_work_and_are_told_they_are_no_ranks() -> None:
    run_ranks(check_fork, 2, backend="hccl")
