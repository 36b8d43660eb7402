"""all_reduce, reduce and reduce_scatter: every type, operation, size and node layout.

The oracle is numpy. Integers are exact, floats within one rounding per rank, and every rank of an
all_reduce ends with the same bits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from guarded import REDUCIBLE, Array, Guarded, assert_reduced, contribution, ops_of, reduced
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, ReduceOp

MORE = [pytest.param(nodes, marks=pytest.mark.nightly("calls")) for nodes in ("aaa", "aaaaa")]
ranks = ranks_on("a", "aa", "aaabb", *MORE, HCCL_VERIFY="1")
# None, one, an odd number, more than one tile of two ranks, many tiles with a short last one.
SIZES = (0, 1, 17, 20_011, 150_001)


def _contributions(world_size: int, dtype: str, count: int = SIZES[-1]) -> list[Array]:
    return [contribution(rank, count, dtype) for rank in range(world_size)]


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_all_reduce_every_op_and_size_equals_numpy(ranks: ThreadRanks, dtype: str) -> None:
    inputs = _contributions(ranks.world_size, dtype)

    def all_reduce(comm: Communicator) -> list[Guarded]:
        results = []
        for op in ops_of(dtype):
            for count in SIZES:
                data = Guarded(inputs[comm.rank][:count], dtype)
                comm.all_reduce(data.buffer, op)
                results.append(data)
        return results

    results = iter(zip(*ranks.run(all_reduce), strict=True))
    for op in ops_of(dtype):
        expected = reduced(inputs, dtype, op)
        for count in SIZES:
            buffers = next(results)
            assert len({one.bytes for one in buffers}) == 1, f"{op.name} of {count} differs"
            assert_reduced(buffers[0].values, expected[:count], inputs, dtype)


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_reduce_every_op_changes_the_root_only(ranks: ThreadRanks, dtype: str) -> None:
    inputs = _contributions(ranks.world_size, dtype)
    roots = range(ranks.world_size)

    def reduce(comm: Communicator) -> list[Guarded]:
        results = []
        for op in ops_of(dtype):
            for root, count in zip(roots, SIZES[: len(roots)][::-1], strict=True):
                data = Guarded(inputs[comm.rank][:count], dtype)
                comm.reduce(data.buffer, root, op)
                results.append(data)
        return results

    results = iter(zip(*ranks.run(reduce), strict=True))
    for op in ops_of(dtype):
        expected = reduced(inputs, dtype, op)
        for root, count in zip(roots, SIZES[: len(roots)][::-1], strict=True):
            for rank, data in enumerate(next(results)):
                if rank == root:
                    assert_reduced(data.values, expected[:count], inputs, dtype)
                else:
                    np.testing.assert_array_equal(data.values, inputs[rank][:count])


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_reduce_scatter_every_op_and_size_equals_numpy(ranks: ThreadRanks, dtype: str) -> None:
    n = ranks.world_size
    inputs = _contributions(n, dtype)

    def reduce_scatter(comm: Communicator) -> list[tuple[Guarded, Guarded]]:
        results = []
        for op in ops_of(dtype):
            for count in SIZES:
                block = count // n
                input = Guarded(inputs[comm.rank][: block * n], dtype)
                output = Guarded(np.zeros(block), dtype)
                comm.reduce_scatter(output.buffer, input.buffer, op)
                results.append((input, output))
        return results

    results = iter(zip(*ranks.run(reduce_scatter), strict=True))
    for op in ops_of(dtype):
        expected = reduced(inputs, dtype, op)
        for count in SIZES:
            block = count // n
            for rank, (input, output) in enumerate(next(results)):
                np.testing.assert_array_equal(input.values, inputs[rank][: block * n])
                mine = expected[rank * block : (rank + 1) * block]
                assert_reduced(output.values, mine, inputs, dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
def test_complex_sums_and_averages(ranks: ThreadRanks, dtype: str, op: ReduceOp) -> None:
    n, count = ranks.world_size, 5
    inputs = [
        np.random.default_rng(rank).integers(-9, 9, (n * count, 2)) @ [1, 1j] for rank in range(n)
    ]
    expected = np.sum(inputs, axis=0) / (n if op is ReduceOp.AVG else 1)

    def reduce_all_ways(comm: Communicator) -> tuple[Array, Array, Array]:
        numbers = inputs[comm.rank].astype(dtype)
        everywhere, at_root, mine = numbers.copy(), numbers.copy(), np.empty(count, dtype)
        tensor = torch.from_numpy(numbers.copy())
        comm.all_reduce(tensor, op)
        comm.all_reduce(everywhere, op)
        comm.reduce(at_root, 0, op)
        comm.reduce_scatter(mine, numbers, op)
        assert everywhere.tobytes() == tensor.numpy().tobytes()
        return everywhere, at_root, mine

    for rank, (everywhere, at_root, mine) in enumerate(ranks.run(reduce_all_ways)):
        np.testing.assert_allclose(everywhere, expected, rtol=1e-6)
        np.testing.assert_allclose(at_root, inputs[rank] if rank else expected, rtol=1e-6)
        np.testing.assert_allclose(mine, expected[rank * count :][:count], rtol=1e-6)


def test_min_and_max_propagate_nan(ranks: ThreadRanks) -> None:
    def all_reduce(comm: Communicator) -> list[float]:
        results = []
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            data = np.array([comm.rank, np.nan if comm.rank == 0 else 1.0], np.float32)
            comm.all_reduce(data, op)
            results += data.tolist()
        return results

    for smallest, nan, largest, also_nan in ranks.run(all_reduce):
        assert (smallest, largest) == (0, ranks.world_size - 1)
        assert np.isnan([nan, also_nan]).all()
