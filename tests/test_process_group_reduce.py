"""Reductions through torch.distributed: every op and element type against numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch_values import (
    ARITHMETIC,
    BITWISE,
    COMPLEX,
    FEW_DTYPES,
    FLOAT8,
    FLOATS,
    INTEGERS,
    SHAPES,
    mean_of,
    same,
    stack_of,
    tensor_of,
    values,
)

WORLD_SIZES = [1, 2, 3, 4]
Case = tuple[dist.ReduceOp.RedOpType, torch.dtype, torch.Tensor]


def cases(world_size: int, shape: tuple[int, ...]) -> Iterator[Case]:
    """Yield (op, dtype, expected result) for all that can be reduced."""
    yield from arithmetic_cases(world_size, shape, [*FLOATS, *INTEGERS, *FLOAT8])
    for dtype in INTEGERS:
        stack = stack_of(world_size, shape, dtype)
        for op, reduction in BITWISE.items():
            yield op, dtype, tensor_of(reduction(stack), dtype)
    stack = stack_of(world_size, shape, torch.bool)
    for op, reduction in BITWISE.items():
        yield op, torch.bool, tensor_of(reduction(stack), torch.bool)
    yield dist.ReduceOp.MIN, torch.bool, tensor_of(stack.all(0), torch.bool)
    yield dist.ReduceOp.MAX, torch.bool, tensor_of(stack.any(0), torch.bool)
    for dtype in COMPLEX:
        stack = stack_of(world_size, shape, dtype)
        yield dist.ReduceOp.SUM, dtype, tensor_of(stack.sum(0), dtype)
        yield dist.ReduceOp.AVG, dtype, tensor_of(mean_of(stack, dtype), dtype)


def arithmetic_cases(
    world_size: int, shape: tuple[int, ...], dtypes: Sequence[torch.dtype]
) -> Iterator[Case]:
    for dtype in dtypes:
        stack = stack_of(world_size, shape, dtype)
        for op, reduction in ARITHMETIC.items():
            yield op, dtype, tensor_of(reduction(stack), dtype)
        yield dist.ReduceOp.AVG, dtype, tensor_of(mean_of(stack, dtype), dtype)


def nearly(tensor: torch.Tensor, expected: torch.Tensor, op: object, what: object) -> None:
    """Averages of floats may differ in the last bit, everything else in none."""
    if op is not dist.ReduceOp.AVG or not (tensor.is_floating_point() or tensor.is_complex()):
        return same(tensor, expected, what)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    finest = torch.float16 if tensor.dtype.itemsize == 1 else tensor.dtype
    epsilon = 0.26 if tensor.dtype.itemsize == 1 else torch.finfo(finest).eps
    assert tensor.dtype == expected.dtype
    assert torch.allclose(tensor.to(wide), expected.to(wide), rtol=epsilon, atol=epsilon), what
    return None


def check_all_reduce(rank: int, world_size: int) -> int:
    checked = 0
    every = [((7,), cases(world_size, (7,)))]
    every += [(shape, arithmetic_cases(world_size, shape, FEW_DTYPES[:3])) for shape in SHAPES]
    for shape, reductions in every:
        for op, dtype, expected in reductions:
            tensor = tensor_of(values(rank, shape, dtype), dtype)
            dist.all_reduce(tensor, op)
            nearly(tensor, expected, op, (op, dtype, shape))
            checked += 1
    return checked


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_reduce_every_op_and_dtype_equals_numpy(world_size: int) -> None:
    assert min(run_ranks(check_all_reduce, world_size, backend="hccl")) > 150


def test_all_reduce_between_uneven_nodes_equals_numpy() -> None:
    nodes = ["first", "first", "second"]
    run_ranks(check_all_reduce, 3, backend="hccl", env=lambda rank: {"HCCL_NODE_ID": nodes[rank]})


def check_all_reduce_memory(rank: int, world_size: int) -> None:
    total = float(sum(range(1, world_size + 1)))
    mine = rank + 1.0

    guarded = torch.full((100_005,), -7.0)
    guarded[1:-1] = mine
    dist.all_reduce(guarded[1:-1])
    assert guarded[0] == guarded[-1] == -7.0
    assert (guarded[1:-1] == total).all()

    for async_op in (False, True):
        strided = torch.full((6, 4), mine)
        work = dist.all_reduce(strided[::2, 1:3], async_op=async_op)
        if async_op:
            work.wait()
        expected = torch.full((6, 4), mine)
        expected[::2, 1:3] = total
        same(strided, expected, "strided")

        transposed = torch.arange(12.0).reshape(3, 4).t() * mine
        work = dist.all_reduce(transposed, async_op=async_op)
        if async_op:
            work.wait()
        same(transposed, torch.arange(12.0).reshape(3, 4).t() * total, "transposed")

        negated = torch.tensor([1 + mine * 1j]).conj().imag
        assert negated.is_neg()
        work = dist.all_reduce(negated, async_op=async_op)
        if async_op:
            work.wait()
        assert negated.tolist() == [-total]

        parameter = torch.nn.Parameter(torch.full((5,), mine))
        work = dist.all_reduce(parameter, async_op=async_op)
        if async_op:
            work.wait()
        assert parameter.tolist() == [total] * 5
        strided_leaf = torch.full((5, 2), mine).t().requires_grad_()
        work = dist.all_reduce(strided_leaf, async_op=async_op)
        if async_op:
            work.wait()
        assert (strided_leaf == total).all()

        with torch.inference_mode():
            inference = torch.full((4, 2), mine).t()
        work = dist.all_reduce(inference, async_op=async_op)
        if async_op:
            work.wait()
        assert (inference == total).all()


def test_all_reduce_any_memory_layout_is_written_in_place() -> None:
    run_ranks(check_all_reduce_memory, 2, backend="hccl")


def check_reduce(rank: int, world_size: int) -> None:
    for root in range(world_size):
        for op, dtype, expected in cases(world_size, (3, 5)):
            mine = tensor_of(values(rank, (3, 5), dtype), dtype)
            tensor = mine.clone()
            dist.reduce(tensor, root, op)
            nearly(tensor, expected if rank == root else mine, op, (op, dtype, root))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_every_root_equals_numpy_and_others_keep_theirs(world_size: int) -> None:
    run_ranks(check_reduce, world_size, backend="hccl")


def check_reduce_scatter(rank: int, world_size: int) -> None:
    every = [((7,), cases(world_size, (world_size, 7)))]
    for shape in SHAPES:
        few = arithmetic_cases(world_size, (world_size, *shape), FEW_DTYPES[:3])
        every.append((shape, few))
    for shape, reductions in every:
        for op, dtype, expected in reductions:
            whole = tensor_of(values(rank, (world_size, *shape), dtype), dtype)
            output = tensor_of(values(9, shape, dtype), dtype)
            dist.reduce_scatter(output, list(whole), op)
            nearly(output, expected[rank], op, ("list", op, dtype, shape))
            output = tensor_of(values(9, shape, dtype), dtype)
            dist.reduce_scatter_single(output, whole, op)
            nearly(output, expected[rank], op, ("single", op, dtype, shape))
            same(whole, tensor_of(values(rank, (world_size, *shape), dtype), dtype), "input kept")
    flat = torch.arange(4.0 * world_size)
    output = torch.empty(8)[::2]
    dist.reduce_scatter_single(output, flat)
    same(output, flat[rank * 4 : rank * 4 + 4] * world_size, "strided output")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter_lists_and_tensors_equal_numpy(world_size: int) -> None:
    run_ranks(check_reduce_scatter, world_size, backend="hccl")


def check_premultiplied(rank: int, world_size: int) -> None:
    factor = 2.0 + rank
    total = sum((2.0 + r) * (r + 1) for r in range(world_size))
    for factor_given in (factor, torch.tensor([factor])):
        op = dist._make_nccl_premul_sum(factor_given)
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [total] * 3
    kept = torch.full((world_size,), rank + 1.0)
    output = torch.empty(1)
    dist.reduce_scatter_single(output, kept, op)
    assert output.item() == total
    dist.reduce(kept, 0, op)
    assert kept.tolist() == [total if rank == 0 else rank + 1.0] * world_size
    with pytest.raises(ValueError, match="PREMUL_SUM"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), dist._make_nccl_premul_sum(0.5))


def test_premultiplied_sum_scales_each_contribution() -> None:
    run_ranks(check_premultiplied, 3, backend="hccl")


def check_coalesced(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    tensors = [torch.full((size,), rank + 1.0) for size in (3, 0, 5)]
    total = sum(range(1, world_size + 1))
    dist.all_reduce_coalesced(tensors)
    assert [t.tolist() for t in tensors] == [[total] * 3, [], [total] * 5]
    future = dist.all_reduce_coalesced(tensors, async_op=True)
    assert [t.tolist() for t in future.wait()] == [[total * world_size] * n for n in (3, 0, 5)]

    outputs = [torch.empty(2), torch.empty(1)]
    inputs = [torch.arange(2.0 * world_size), torch.ones(world_size)]
    group.reduce_scatter_single_coalesced(outputs, inputs).wait()
    assert outputs[0].tolist() == [2 * rank * world_size, (2 * rank + 1) * world_size]
    assert outputs[1].item() == world_size

    for device in (None, torch.device("cpu")):
        tensors = [torch.ones(4), torch.ones(2)]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        assert [t.tolist() for t in tensors] == [[world_size] * 4, [world_size] * 2]


def test_coalesced_reductions_equal_single_ones() -> None:
    run_ranks(check_coalesced, 2, backend="hccl")
