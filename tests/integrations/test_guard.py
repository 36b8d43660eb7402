"""The guard warns of copies that nothing keeps equal, and is quiet in every good job."""

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S
from ranks import run_ranks
from tiers import by_night
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

import hccl_py
from hccl_py.integrations.guard import guard
from hccl_py.integrations.guard.guard import FIRST_STEP, LATE_STEP

STEPS = 3 * FIRST_STEP


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.1)


def train(
    network: nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS
) -> Iterator[int]:
    """Train on data of this rank's own; yield after each backward pass, before the step."""
    optimizer = optimizer or sgd(network)
    torch.manual_seed(100 + dist.get_rank())
    for step in range(steps):
        optimizer.zero_grad()
        network(torch.randn(4, 16)).square().mean().backward()
        yield step
        optimizer.step()


def run(job: Iterator[object]) -> None:
    for _ in job:
        pass


def ddp() -> None:
    of_user = optimizers.register_optimizer_step_pre_hook(lambda *_: None)  # after the guard's
    run(train(DistributedDataParallel(model())))
    of_user.remove()
    hooks = (*optimizers._global_optimizer_pre_hooks.values(),)
    assert not any("guard" in repr(hook) for hook in hooks), "a good job pays for its first step"


def accumulation() -> None:
    network = DistributedDataParallel(model())
    optimizer = sgd(network)
    for step in range(4 * STEPS):
        with contextlib.nullcontext() if step % 4 == 3 else network.no_sync():
            network(torch.randn(4, 16)).square().mean().backward()
        if step % 4 == 3:
            optimizer.step()


def fast_ddp() -> None:
    run(train(hccl_py.fast_ddp(model(dist.get_rank()))))


def closures() -> None:
    network = DistributedDataParallel(model())
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = network(torch.randn(4, 16)).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def fsdp2() -> None:
    run(train(fully_shard(model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))))


def zero_1() -> None:
    network = DistributedDataParallel(model())
    sharded = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, lr=0.1)
    run(train(network, sharded))


def tensor_parallel() -> None:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    network = parallelize_module(model(), mesh, plan)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        network(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()


def tensor_parallel_by_hand() -> None:
    """Plain tensors, of one shape on all ranks; activations are reduced."""
    first, last = nn.Linear(16, 32), nn.Linear(32, 16)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    for _ in range(STEPS):
        torch.manual_seed(3)
        summed = last(torch.tanh(first(torch.randn(4, 16))))
        dist.all_reduce(summed.data)
        optimizer.zero_grad()
        summed.square().mean().backward()
        optimizer.step()


def pipeline() -> None:
    """Stages of one shape and one seed; only messages travel."""
    rank = dist.get_rank()
    passed = torch.zeros(4, 16)
    for _ in train(model()):
        (dist.recv if rank else dist.send)(passed, 1 - rank)


def local_sgd() -> None:
    """A seed makes the copies equal, and nothing is reduced for longer than the first looks."""
    period, network = 10 * FIRST_STEP, model()
    for step in train(network, steps=2 * period):
        if step == period:
            for parameter in network.parameters():
                dist.all_reduce(parameter.data, dist.ReduceOp.AVG)


def diloco() -> None:
    period, network = 10 * FIRST_STEP, model()
    start = [parameter.detach().clone() for parameter in network.parameters()]
    outer = torch.optim.SGD(start, lr=0.7, momentum=0.9, nesterov=True)
    for step in train(network, steps=2 * period):
        if step == period:
            for kept, parameter in zip(start, network.parameters(), strict=True):
                kept.grad = kept - parameter.detach()
                dist.all_reduce(kept.grad, dist.ReduceOp.AVG)
            outer.step()
            for kept, parameter in zip(start, network.parameters(), strict=True):
                parameter.data.copy_(kept)


def gan() -> None:
    one, other = DistributedDataParallel(model()), DistributedDataParallel(model(1))
    for _ in zip(train(one), train(other), strict=True):
        pass


def gradients_by_all_gather() -> None:
    """Nothing is reduced, and the copies stay equal."""
    network = model()
    for _ in train(network):
        for parameter in network.parameters():
            all_of_them = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
            dist.all_gather(all_of_them, parameter.grad)
            parameter.grad = torch.stack(all_of_them).mean(0)


def gradients_by_gloo() -> None:
    beside = dist.new_group(backend="gloo")
    run(train(DistributedDataParallel(model(), process_group=beside)))


def parts_of_several_shapes() -> None:
    network = nn.Linear(16, 8 + dist.get_rank())
    run(train(network))


def one_rank_trains() -> None:
    if dist.get_rank():
        run(train(model()))


def inference() -> None:
    model()(torch.randn(4, 16))


GOOD = (ddp, accumulation, fast_ddp, pipeline, local_sgd, gradients_by_all_gather, inference)
OTHER_GOOD = (
    *(closures, fsdp2, zero_1, tensor_parallel, tensor_parallel_by_hand, diloco, gan),
    *(gradients_by_gloo, parts_of_several_shapes, one_rank_trains),
)


def copies_that_never_were_equal() -> None:
    """Warned of while it runs."""
    deadline_s = time.monotonic() + HANG_S
    for _ in train(model(dist.get_rank()), steps=10**9):
        done = torch.tensor([float("hccl: warning" in said())])
        dist.broadcast(done, 0)
        if done.item():
            return
        assert time.monotonic() < deadline_s


def copies_of_one_seed() -> None:
    """Warned of at the end, though every step reduces its loss."""
    for _ in train(model()):
        dist.all_reduce(torch.ones(1))


def copies_for_long() -> None:
    run(train(nn.Linear(16, 1), steps=LATE_STEP + 1))
    said_in_time.append("hccl: warning" in said())


BAD = copies_that_never_were_equal, copies_of_one_seed, copies_for_long

said_in_time: list[bool] = []
_output = io.StringIO()


def said() -> str:
    return _output.getvalue()


def outputs(rank: int, world_size: int, jobs: tuple[str, ...]) -> dict[str, str]:
    """Return what this rank wrote to stderr in each job, each with a default group of its own."""
    written = {}
    for name in jobs:
        job: Callable[[], None] = globals()[name]
        dist.init_process_group("hccl")
        with contextlib.redirect_stderr(_output):
            job()
            if job is copies_for_long and rank == 0:
                assert said_in_time == [True]
            dist.destroy_process_group()
        written[name] = said()
        _output.seek(0)
        _output.truncate()
    return written


def outputs_without_hccl(rank: int, world_size: int, job: str, backend: str) -> str:
    """Return what this rank wrote to stderr, up to its exit; no default group without backend."""
    with contextlib.redirect_stderr(_output):
        if backend:
            dist.init_process_group(backend)
        globals()[job]()
        guard._end_at_exit()
    return said()


def no_group() -> None:
    network = model()
    optimizer = sgd(network)
    for _ in range(STEPS):
        network(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()


def one_communicator() -> None:
    with hccl_py.Communicator():
        no_group()
        guard._end_at_exit()


def names(jobs: tuple[Callable[[], None], ...]) -> tuple[str, ...]:
    return tuple(job.__name__ for job in jobs)


@pytest.mark.parametrize("jobs", [GOOD, *by_night("training", (OTHER_GOOD,))])
def test_good_jobs_are_quiet(jobs: tuple[Callable[[], None], ...]) -> None:
    for written in run_ranks(outputs, 2, names(jobs), env={"HCCL_GUARD": "warn"}):
        assert {name: text for name, text in written.items() if "hccl" in text} == {}


def test_copies_are_warned_of_once_by_rank_0() -> None:
    first, *others = run_ranks(outputs, 2, names(BAD))
    for name, text in first.items():
        assert text.count("hccl: warning: the ranks train copies") == 1, (name, text)
        assert "DistributedDataParallel" in text
    assert all(text == "" for written in others for text in written.values())


@pytest.mark.parametrize(("job", "backend"), [(copies_of_one_seed, "gloo"), (no_group, "")])
def test_copies_are_warned_of_with_any_backend_and_with_none(
    job: Callable[[], None], backend: str
) -> None:
    first, *others = run_ranks(outputs_without_hccl, 2, job.__name__, backend)
    assert first.count("hccl: warning: the ranks train copies") == 1, first
    assert others == [""]


GOOD_WITHOUT_HCCL = [(ddp, "gloo"), (local_sgd, "gloo"), (pipeline, "gloo"), (one_communicator, "")]


@pytest.mark.parametrize(("job", "backend"), GOOD_WITHOUT_HCCL)
def test_good_jobs_are_quiet_with_any_backend(job: Callable[[], None], backend: str) -> None:
    assert run_ranks(outputs_without_hccl, 2, job.__name__, backend) == [""] * 2


def fails(rank: int, world_size: int) -> str:
    try:
        outputs(rank, world_size, names((copies_of_one_seed,)))
    except hccl_py.HcclError as error:
        return str(error)
    return ""


def test_error_is_raised_on_rank_0_and_off_is_off() -> None:
    raised, *others = run_ranks(fails, 2, env={"HCCL_GUARD": "error"})
    assert "HCCL_GUARD=off" in raised
    assert others == [""]
    assert run_ranks(fails, 2, env={"HCCL_GUARD": "off"}) == ["", ""]


def rejects(rank: int, world_size: int) -> None:
    os.environ["HCCL_GUARD"] = "loud"
    with pytest.raises(hccl_py.InvalidArgumentError, match="expected off, warn or error"):
        dist.init_process_group("hccl")


def test_wrong_setting_is_one_line() -> None:
    run_ranks(rejects, 1)
