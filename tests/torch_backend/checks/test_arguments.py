"""Wrong arguments: the message says which, what was expected and what came; the group goes on."""

import math
import traceback
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from hccl_py.transport.errors import InvalidArgumentError

Wrong = tuple[Callable[[], object], str]


def wrong_calls(rank: int, n: int) -> list[Wrong]:
    """Return (call, pattern that its message has to match)."""
    group = dist.group.WORLD
    four = torch.ones(4)
    ints = torch.ones(4, dtype=torch.int32)
    several = [torch.ones(4) for _ in range(n)]
    coalesced = dist.AllreduceOptions()
    coalesced.reduceOp = dist.ReduceOp.BAND
    return [
        (lambda: group.broadcast([four.to_sparse()]), r"`tensor`.*dense.*sparse_coo"),
        (
            lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()),
            r"`tensors`.*dense.*sparse_csr.*to_dense",
        ),
        (
            lambda: dist.all_reduce(four.to_sparse(), dist.ReduceOp.MAX),
            r"`op` of a sparse tensor must be sum or avg, got max",
        ),
        (
            lambda: dist.all_reduce(torch.ones(4 + rank).to_sparse()),
            rf"\({4 + rank},\) of torch.float32, 1 .*sparse, that of rank {1 - rank} is not",
        ),
        (lambda: group.allreduce([four, four]), r"one tensor, got a list of 2"),
        (lambda: group.allreduce(["x"]), r"`tensors` must be a tensor, got str"),
        (lambda: dist.all_reduce(torch.ones(1).expand(4)), r"share memory"),
        (lambda: group.allreduce([four], coalesced), r"float32, got band"),
        (lambda: group.allreduce([four + 0j], dist.ReduceOp.MAX), r"complex64, got max"),
        (lambda: group.broadcast(four, root=n), rf"`src`.* 0 to {n - 1}, got {n}"),
        (lambda: group.reduce(four, -1), rf"`dst`.* 0 to {n - 1}, got -1"),
        (lambda: dist.all_gather_single(torch.empty(4 * n), ints), r"int32"),
        (
            lambda: dist.all_gather_single(torch.empty(4 * n + 1), four),
            rf"`output` must have {4 * n} elements \({n} times `input`\), got {4 * n + 1}",
        ),
        (
            lambda: dist.all_gather([*several, four], four),
            rf"`tensor_list` must be {n} tensors, one per rank, got {n + 1}",
        ),
        (
            lambda: dist.all_gather([torch.empty(5) for _ in range(n)], four),
            r"`tensor_list` must have 4 elements .* got 5",
        ),
        (
            lambda: group.allgather([[ints] * n], [four]),
            r"`tensor_list` has torch.int32, expected torch.float32",
        ),
        (
            lambda: dist.reduce_scatter_single(torch.empty(4), torch.ones(4 * n - 1)),
            rf"`input` must have {4 * n} elements .* got {4 * n - 1}",
        ),
        (lambda: dist.reduce_scatter(torch.empty(3), several), r"`output` must have 4 elements"),
        (
            lambda: dist.all_to_all_single(torch.empty(n + 1), torch.empty(n + 1)),
            rf"divisible by {n} ranks",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), four, [4] * n, [5] * n),
            rf"`input_split_sizes` must be {n} sizes that add up to 4",
        ),
        (lambda: dist.all_to_all_single(torch.empty(()), torch.empty(())), r"got a scalar"),
        (
            lambda: dist.all_to_all(several[:-1], several),
            rf"`output_tensor_list` must be {n} tensors",
        ),
        (
            lambda: group.gather([several], [four], (rank + 1) % n),
            rf"`gather_list` must be given on the root \(rank {(rank + 1) % n}\) only",
        ),
        (lambda: group.send([four], n, 0), rf"`dst`.* 0 to {n - 1}"),
        (lambda: group.recv([four], -1, 0), rf"`src`.* 0 to {n - 1}"),
        (lambda: group.all_gather_single_coalesced(several, []), r"0 tensors"),
        (lambda: group.split_group([rank, n]), rf"ranks of 0..{n - 1}, got {n}"),
    ]


def check_wrong_calls(rank: int, world_size: int) -> int:
    wrong = wrong_calls(rank, world_size)
    for call, pattern in wrong:
        with pytest.raises(InvalidArgumentError, match=pattern) as caught:
            call()
        assert isinstance(caught.value, ValueError), pattern
        assert isinstance(caught.value, RuntimeError), pattern
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [world_size] * 2, f"after {pattern}"
    return len(wrong)


def test_wrong_argument_is_explained_and_the_group_stays_usable() -> None:
    assert run_ranks(check_wrong_calls, 2, backend="hccl") == [27] * 2


def check_dtensor(rank: int, world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    tensor = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    assert tensor.redistribute(mesh, [Replicate()]).to_local().tolist() == list(range(8))
    with pytest.raises(InvalidArgumentError, match=r"DTensor.*to_local"):
        dist.group.WORLD.allreduce([tensor])


class Labelled(torch.Tensor):
    """A tensor that only has a name of its own."""


def check_subclasses(rank: int, world_size: int) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    labelled = torch.ones(3).as_subclass(Labelled)
    dist.all_reduce(labelled)
    assert labelled.tolist() == [world_size] * 3
    with FakeTensorMode():
        work = dist.group.WORLD.allreduce([torch.ones(3)])
        assert work.wait()
        assert work.get_future().wait()[0].shape == (3,)
        dist.all_gather_single(torch.empty(3 * world_size), torch.empty(3))
    check_dtensor(rank, world_size)


def test_subclasses_of_tensor_are_unwrapped_or_rejected() -> None:
    run_ranks(check_subclasses, 2, backend="hccl")


def one_rank_calls() -> dict[str, Callable[[object], object]]:
    """Return calls of one argument that may be anything, by `method: argument`."""
    group, t, cut = dist.group.WORLD, torch.ones(4), torch.zeros(4)
    return {
        "allreduce: tensors": lambda v: group.allreduce(v),
        "allreduce: timeout": lambda v: group.allreduce([t], timeout=v),
        "broadcast: src|root": lambda v: group.broadcast(t, root=v),
        "coalesced: tensors": lambda v: group.allreduce_coalesced(v),
        "allgather: tensor_list": lambda v: group.allgather(v, [t]),
        "allgather: tensor": lambda v: group.allgather([[cut]], v),
        "allgather_coalesced: output_tensor_lists": lambda v: group.allgather_coalesced(v, [t]),
        "all_gather_single: output": lambda v: group.all_gather_single(v, t),
        "reduce_scatter: input_list": lambda v: group.reduce_scatter([cut], v),
        "reduce_scatter_single: input": lambda v: group.reduce_scatter_single(cut, v),
        "alltoall: input_tensor_list": lambda v: group.alltoall([cut], v),
        "alltoall: output_tensor_list": lambda v: group.alltoall(v, [t]),
        "all_to_all_single: input_split_sizes": lambda v: group.all_to_all_single(cut, t, [], v),
        "gather: gather_list": lambda v: group.gather(v, [t], 0),
        "scatter: scatter_list": lambda v: group.scatter([cut], v, 0),
        "send: dst": lambda v: group.send([t], v),
        "send: tag": lambda v: group.send([t], 0, v),
        "recv: src": lambda v: group.recv([t], v),
        "wait: timeout": lambda v: group.allreduce([t]).wait(v),
        "set_timeout: timeout": lambda v: group.set_timeout(v),
        "monitored_barrier: timeout": lambda v: dist.monitored_barrier(timeout=v),
        "split_group: ranks": lambda v: group.split_group(v),
        "split_group of dist: split_ranks": lambda v: dist.split_group(split_ranks=v),
    }


def check_any_argument(rank: int, n: int) -> None:
    group = dist.group.WORLD
    for name, call in one_rank_calls().items():
        for bad in (None, math.nan, math.inf, -1, 1 << 70, "30", object(), np.zeros((7, 2))):
            try:
                call(bad)
            except InvalidArgumentError as error:
                names = name.partition(": ")[2].split("|")
                assert any(one in str(error) for one in names), (name, bad, str(error))
                assert "\n" not in str(error), (name, bad)
            except Exception as error:  # of torch itself
                last = traceback.extract_tb(error.__traceback__)[-1].filename
                assert "hccl_py" not in last, (name, bad, error)
            group.set_timeout(60.0)


def test_any_argument_is_taken_or_named_in_one_line() -> None:
    run_ranks(check_any_argument, 1, backend="hccl")


def check_endless(rank: int, n: int) -> None:
    dist.init_process_group("hccl", timeout=timedelta(days=36500))
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == n
    dist.new_group([0, 1], timeout=timedelta(days=36500))
    dist.destroy_process_group()


def test_endless_timeout_of_torch_is_the_longest() -> None:
    run_ranks(check_endless, 2)
