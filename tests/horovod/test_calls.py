"""The calls of Horovod's API on 3 ranks: values as Horovod's documentation says, the oracle is
numpy. One job runs all checks.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from quiet_clock import HANG_S
from ranks import run_ranks

import hccl_py.horovod as on_arrays
import hccl_py.horovod.torch as hvd

N = 3
RANKS = range(N)


def given(rank: int, *shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Return what a rank brings: small whole numbers, which every type holds exactly."""
    return np.random.default_rng(rank).integers(1, 5, shape).astype(dtype)


def tensor_of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(given(rank, *shape)).to(dtype)


def all_given(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.stack([given(rank, *shape, dtype=dtype) for rank in RANKS])


def equal(got: torch.Tensor, expected: Any, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(got.detach().double().numpy(), expected, rtol)


def check_reductions(me: int) -> None:
    every = all_given(4, 3)
    mine = tensor_of(me, 4, 3)
    for op, expected in (
        (None, every.mean(0)),
        (hvd.Average, every.mean(0)),
        (hvd.Sum, every.sum(0)),
        (hvd.Min, every.min(0)),
        (hvd.Max, every.max(0)),
        (hvd.Product, every.prod(0)),
    ):
        equal(hvd.allreduce(mine, op=op), expected)
        np.testing.assert_allclose(on_arrays.allreduce(given(me, 4, 3), op=op), expected, rtol=1e-6)
    with pytest.warns(DeprecationWarning):
        equal(hvd.allreduce(mine, average=False), every.sum(0))
    equal(mine, given(me, 4, 3))
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    equal(scaled, every.sum(0) * 1.5)
    whole = torch.tensor([3, 4]) + me
    assert hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5).tolist() == [1 + 2 + 2, 2 + 2 + 3]
    assert hvd.allreduce(whole).tolist() == [4, 5]
    equal(hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16), every.sum(0))
    assert hvd.allreduce(mine, compression=hvd.Compression.fp16).dtype == torch.float32
    equal(hvd.allreduce(tensor_of(me, 5, dtype=torch.bfloat16), op=hvd.Sum), all_given(5).sum(0))
    equal(hvd.allreduce(torch.tensor(float(me))), 1.0)


def check_in_place_and_handles(me: int) -> None:
    every, mine = all_given(2, 3), tensor_of(me, 2, 3)
    handle = hvd.allreduce_async_(mine, op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle) is mine
    equal(mine, every.sum(0))
    across = tensor_of(me, 2, 3).t()  # not contiguous
    assert hvd.allreduce_(across, op=hvd.Max) is across
    equal(across, every.max(0).T)
    shapes = [(5,), (2, 2), (70_000,), (3,), (0,)]
    dtypes = [torch.float32, torch.int64, torch.float32, torch.float64, torch.float32]
    tensors = [tensor_of(me, *pair[0], dtype=pair[1]) for pair in zip(shapes, dtypes, strict=True)]
    sums = [all_given(*shape).sum(0) for shape in shapes]
    made = hvd.grouped_allreduce(tensors, op=hvd.Sum, postscale_factor=2.0)
    for each, like, expected in zip(made, tensors, sums, strict=True):
        assert each.dtype == like.dtype
        equal(each, 2 * expected)
    hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Sum))
    for each, expected in zip(tensors, sums, strict=True):
        equal(each, expected)


def check_moves(me: int) -> None:
    rows = [given(rank, rank, 2) for rank in RANKS]  # none on rank 0
    equal(hvd.allgather(torch.from_numpy(rows[me])), np.concatenate(rows))
    one, other = hvd.grouped_allgather([torch.from_numpy(rows[me]), torch.tensor([me])])
    equal(one, np.concatenate(rows))
    assert other.tolist() == [0, 1, 2]
    mine = tensor_of(me, 3, 2)
    equal(hvd.broadcast(mine, 1), given(1, 3, 2))
    equal(mine, given(me, 3, 2))
    assert hvd.broadcast_(mine, 2) is mine
    equal(mine, given(2, 3, 2))
    splits = [[1, 0, 2], [0, 2, 1], [3, 1, 0]]  # by sender
    sent = torch.arange(sum(splits[me])) + 10 * me
    output, received = hvd.alltoall(sent, splits=torch.tensor(splits[me]))
    assert received.tolist() == [row[me] for row in splits]
    expected = [
        10 * rank + sum(splits[rank][:me]) + index
        for rank in RANKS
        for index in range(splits[rank][me])
    ]
    assert output.tolist() == expected
    assert hvd.alltoall(torch.arange(3) + 10 * me).tolist() == [me, 10 + me, 20 + me]
    for wrong in ([1, 1], [4, 0, 0], [1.0, 1.0, 1.0], [-1, 1, 1]):
        with pytest.raises(ValueError, match="3 whole numbers of at most 3 rows"):
            hvd.alltoall(torch.arange(3), splits=wrong)
    blocks = np.array_split(all_given(7, 2).sum(0), N)
    assert [len(block) for block in blocks] == [3, 2, 2]
    equal(hvd.reducescatter(tensor_of(me, 7, 2), op=hvd.Sum), blocks[me])
    equal(hvd.reducescatter(tensor_of(me, 6)), np.array_split(all_given(6).mean(0), N)[me])
    scaled = hvd.reducescatter(tensor_of(me, 2), op=hvd.Sum, prescale_factor=2, postscale_factor=2)
    equal(scaled, np.array_split(4 * all_given(2).sum(0), N)[me])
    assert hvd.broadcast_object({"rank": me}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object("x" * me) == ["", "x", "xx"]
    indices = torch.tensor([[0, me]])
    sparse = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 3.0]), (4,))
    equal(hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense(), [6, 3, 3, 0])


def check_gradients(me: int) -> None:
    def gradient(call: Any, *shape: int) -> torch.Tensor:
        leaf = torch.ones(*shape, requires_grad=True)
        made = call(leaf)
        (made * (me + 1.0)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    equal(gradient(lambda it: hvd.allreduce(it, op=hvd.Sum), 2), [6, 6])
    equal(gradient(lambda it: hvd.allreduce(it), 2), [2, 2])
    equal(gradient(lambda it: hvd.allgather(it), me + 1, 2), np.full((me + 1, 2), 2))
    equal(gradient(lambda it: hvd.broadcast(it, 1), 2), [2, 2] if me == 1 else [0, 0])
    equal(gradient(lambda it: hvd.alltoall(it), 3), [1, 2, 3])
    equal(gradient(lambda it: hvd.reducescatter(it, op=hvd.Sum), 3), [3, 6, 9])


def check_process_sets(me: int) -> None:
    assert hvd.global_process_set.ranks == [0, 1, 2]
    outer = hvd.add_process_set([2, 0])
    inner = hvd.add_process_set(hvd.ProcessSet([1]))
    assert (outer.process_set_id, outer.ranks, outer.size()) == (1, [0, 2], 2)
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([0, 2])
    if outer.included():
        assert outer.rank() == me // 2
        assert hvd.broadcast(torch.tensor(me), 2, process_set=outer) == 2
        assert hvd.allreduce(torch.tensor(me), op=hvd.Sum, process_set=outer) == 2
        with pytest.raises(ValueError, match="one of the ranks"):
            hvd.broadcast(torch.tensor(me), 1, process_set=outer)
    else:
        assert hvd.allgather(torch.tensor([me]), process_set=inner).tolist() == [1]
        with pytest.raises(ValueError, match="not part of"):
            hvd.allreduce(torch.tensor(me), process_set=outer)
    assert hvd.remove_process_set(inner)
    assert not hvd.remove_process_set(inner)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="that was added"):
        hvd.barrier(process_set=inner)


def check_join(me: int) -> None:
    """Rank 1 has no data, rank 2 most; a rank that joined gives zeros."""
    batches = [2, 0, 5]
    for batch in range(batches[me]):
        present = [rank for rank in RANKS if batches[rank] > batch]
        total = hvd.allreduce(torch.full((3,), me + 1.0), op=hvd.Sum)
        equal(total, [sum(rank + 1 for rank in present)] * 3)
    assert hvd.join() == 2
    # A rank that goes on at once may be ahead of one that has not noticed the end of the join.
    assert hvd.allgather_object(me) == [0, 1, 2]
    assert hvd.allgather_object(hvd.join()) in [[rank] * N for rank in RANKS]


def check_optimizer(me: int) -> None:
    """Ranks whose gradients come in another order, or not at all, end with equal parameters."""
    torch.manual_seed(me)
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    alone = [each.detach().clone().double().requires_grad_() for each in model.parameters()]
    oracle = torch.optim.SGD(alone, lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        groups=4,
        gradient_predivide_factor=2.0,
        backward_passes_per_step=2,
    )
    assert isinstance(optimizer, torch.optim.SGD)
    orders = [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2]]  # rank 2 does not use every layer

    def loss_of(rank: int, values: list[torch.Tensor]) -> torch.Tensor:
        made = torch.from_numpy(given(rank, 2, 4)).to(values[0].dtype)
        for layer in orders[rank]:
            made = torch.tanh(made @ values[2 * layer].t() + values[2 * layer + 1])
        return made.square().sum()

    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            loss_of(me, list(model.parameters())).backward()
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after"):
            optimizer.zero_grad()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        oracle.zero_grad()
        sum(2 * loss_of(rank, alone) / N for rank in RANKS).backward()
        oracle.step()
    for got, expected in zip(model.parameters(), alone, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        for _ in range(3):
            loss_of(me, list(model.parameters())).backward()
    optimizer.step()
    # The state of rank 2 everywhere; a new optimizer there has none.
    fresh = torch.optim.SGD(model.parameters(), lr=1.0 + me, momentum=0.9)
    hvd.broadcast_optimizer_state(optimizer if me == 2 else fresh, root_rank=2)
    assert fresh.param_groups[0]["lr"] == (1.0 + me if me == 2 else 0.1)
    if me != 2:
        for key, value in optimizer.state_dict()["state"].items():
            torch.testing.assert_close(value, fresh.state_dict()["state"][key])


def check_sparse_and_compressed_gradients(me: int) -> None:
    """Each rank uses row 0 and its own, but ranks may have no gradient, or a dense one."""
    none = [[0.0, 0.0]] * 4
    used = [[4 / 3] * 2, [1 / 3] * 2, [1 / 3] * 2, [0, 0]]
    unused = [[1, 1], [1 / 3] * 2, [0, 0], [0, 0]]
    with_dense = [[4 / 3] * 2, [2 / 3] * 2, [1 / 3] * 2, [1 / 3] * 2]
    for sparse, steps, arguments in (
        (True, (used,), {}),
        (True, (none, unused, used, none), {}),
        (True, (unused, with_dense), {}),
        (True, (with_dense, unused), {}),
        (True, (unused,), {"sparse_as_dense": True}),
        (False, (unused,), {"compression": hvd.Compression.fp16}),
    ):
        table = torch.nn.Embedding(4, 2, sparse=sparse)
        hvd.broadcast_parameters(table.state_dict(), root_rank=0)
        before = table.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), **arguments
        )
        total = np.zeros((4, 2))
        for expected in steps:
            optimizer.zero_grad()
            if expected is with_dense and me == 2:
                table.weight.sum().backward()
            elif expected is used or (expected is not none and me < 2):
                table(torch.tensor([0, me])).sum().backward()
            optimizer.step()
            total += expected
        np.testing.assert_allclose(before - table.weight.detach(), total, 1e-3, 1e-6)


def check_sync_batch_norm(me: int) -> None:
    every = [torch.from_numpy(given(rank, rank + 2, 3, 4)).double() for rank in RANKS]
    mine, together = every[me].requires_grad_(), torch.cat(every).detach().requires_grad_()
    ours, theirs = hvd.SyncBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    made, expected = ours(mine), theirs(together)
    begin = sum(len(each) for each in every[:me])
    part = slice(begin, begin + len(mine))
    torch.testing.assert_close(made, expected[part])
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    made.pow(3).sum().backward()
    expected.pow(3).sum().backward()
    assert mine.grad is not None
    assert together.grad is not None
    torch.testing.assert_close(mine.grad, together.grad[part])


def all_checks(me: int, n: int) -> None:
    torch.set_num_threads(1)
    with pytest.raises(ValueError, match=r"use hvd.init\(\)"):
        hvd.rank()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.is_initialized()) == (me, n, True)
    # Nodes of two ranks and one.
    assert (hvd.local_rank(), hvd.local_size()) == [(0, 2), (1, 2), (0, 1)][me]
    assert (hvd.cross_rank(), hvd.cross_size()) == [(0, 2), (0, 1), (1, 2)][me]
    assert not hvd.is_homogeneous()
    for check in CHECKS:
        check(me)
        hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    even = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[even])
    if even.included():
        assert hvd.allgather(torch.tensor([me]), process_set=even).tolist() == [0, 2]
    hvd.shutdown()


CHECKS = (
    check_reductions,
    check_in_place_and_handles,
    check_moves,
    check_gradients,
    check_process_sets,
    check_join,
    check_optimizer,
    check_sparse_and_compressed_gradients,
    check_sync_batch_norm,
)


def test_calls_on_three_ranks_do_what_horovod_documents() -> None:
    run_ranks(all_checks, N, env=lambda rank: {"HCCL_NODE_ID": str(rank // 2)})


def test_a_world_of_one_needs_no_torch_and_no_launcher() -> None:
    program = """
import sys
import numpy as np
import hccl_py.horovod as hvd
hvd.init()
assert (hvd.rank(), hvd.size(), hvd.join()) == (0, 1, 0)
assert hvd.allreduce(np.arange(3.0), postscale_factor=2).tolist() == [0, 2, 4]
assert hvd.reducescatter(np.arange(3)).tolist() == hvd.allgather(np.arange(3)).tolist()
(again,) = hvd.grouped_reducescatter([np.arange(3)], op=hvd.Sum)
assert again.tolist() == hvd.grouped_allgather_async([np.arange(3)]).wait()[0].tolist()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S)


def test_help_shows_the_signature_of_calls_that_wait() -> None:
    signature = inspect.signature(hvd.allreduce_)
    assert signature.parameters == inspect.signature(hvd.allreduce_async_).parameters
    assert [*signature.parameters][:4] == ["tensor", "average", "name", "op"]
    assert (hvd.allreduce_.__name__, hvd.allreduce_.__doc__) == (
        "allreduce_",
        "Reduce in place; return `tensor`.",
    )


def test_adasum_and_two_ops_are_rejected_with_a_reason() -> None:
    with pytest.raises(NotImplementedError, match="no Adasum"):
        hvd.allreduce(torch.ones(1), op=hvd.Adasum)
    with pytest.raises(ValueError, match="only one of them"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
