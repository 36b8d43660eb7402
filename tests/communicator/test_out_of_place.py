"""Calls that leave their input as it is: `output=`; and all_to_all, which usually does, in place.

Both faces, every type and operation against numpy, guard bytes round every buffer; what may share
memory and what may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from guarded import Array, Guarded
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, InvalidArgumentError, ReduceOp

ranks = ranks_on("a", "aa", "aaabb")
SIZES = (0, 1, 17, 4_099)
FACES = ("blocking", "nonblocking")


def _call(face: str, comm: Communicator, method: str) -> Callable[..., None]:
    """Return a method that has come to its end when it returns."""
    if face == "blocking":
        finish: Callable[..., None] = getattr(comm, method)
        return finish
    start = getattr(comm.nonblocking, method)
    return lambda *arguments, **options: start(*arguments, **options).wait()


@pytest.mark.parametrize("face", FACES)
def test_output_may_be_data_itself(ranks: ThreadRanks, face: str) -> None:
    n = ranks.world_size

    def in_place(comm: Communicator) -> list[list[float]]:
        results = []
        for data in (np.full(3, comm.rank + 1.0), torch.full((3,), comm.rank + 1.0)):
            _call(face, comm, "all_reduce")(data, output=data)
            _call(face, comm, "broadcast")(data, 0, output=data)
            _call(face, comm, "reduce")(data, 0, ReduceOp.MAX, output=data)
            results.append(data.tolist())
        return results

    assert ranks.run(in_place) == [[[n * (n + 1) / 2] * 3] * 2] * n


def test_reduce_scatter_into_its_own_block(ranks: ThreadRanks) -> None:
    n, count = ranks.world_size, 4_099

    def numbers(rank: int) -> Array:
        return (np.arange(n * count) % 97 + 100 * rank).astype(np.float32)

    def reduce_scatter(comm: Communicator) -> Array:
        memory = numbers(comm.rank)
        output = memory[comm.rank * count :][:count]
        comm.reduce_scatter(output, memory)
        return output

    total = np.sum([numbers(rank) for rank in range(n)], axis=0)
    for rank, got in enumerate(ranks.run(reduce_scatter)):
        np.testing.assert_array_equal(got, total[rank * count :][:count])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128", "S3"])
def test_all_to_all_in_place(ranks: ThreadRanks, dtype: str, face: str) -> None:
    n = ranks.world_size

    def block(sender: int, receiver: int, count: int) -> Array:
        numbers = np.arange(count) % 50 + 7 * sender + receiver
        return numbers.astype("float32" if dtype == "bfloat16" else dtype)

    def all_to_all(comm: Communicator) -> list[list[bytes]]:
        results = []
        for count in SIZES:
            blocks = [block(comm.rank, peer, count) for peer in range(n)]
            whole = Guarded(np.concatenate(blocks), dtype)
            _call(face, comm, "all_to_all")(whole.buffer, whole.buffer)
            parts = [Guarded(part, dtype) for part in blocks]
            listed = [part.buffer for part in parts]
            _call(face, comm, "all_to_all")(listed, tuple(listed))
            assert b"".join(part.bytes for part in parts) == whole.bytes
            results.append([part.bytes for part in parts])
        return results

    for rank, got in enumerate(ranks.run(all_to_all)):
        for count, blocks in zip(SIZES, got, strict=True):
            expected = [Guarded(block(peer, rank, count), dtype).bytes for peer in range(n)]
            assert blocks == expected


def wrong_outputs(data: Array, comm: Communicator) -> list[tuple[Callable[[], Any], str]]:
    count = data.size
    locked = np.zeros(count, np.float32)
    locked.flags.writeable = False
    other = np.zeros(count, np.float32)
    rank = comm.rank
    return [
        (lambda: comm.all_reduce(data, output=np.zeros(count + 1, np.float32)), "got 9"),
        (lambda: comm.all_reduce(data, output=np.zeros(count, np.int32)), "output.*got int32"),
        (lambda: comm.all_reduce(data, output=locked), "output: .* read-only"),
        (lambda: comm.all_reduce(data, output=[0.0] * count), "output: .*got list"),
        (lambda: comm.all_reduce(data[:-1], output=data[1:]), "output: .* a part of it"),
        (lambda: comm.reduce(data[1:], rank, output=data[:-1]), "output: .* a part of it"),
        (lambda: comm.broadcast(data[1:], rank, output=data[:-1]), "output: .* a part of it"),
        (lambda: comm.broadcast(None, rank, output=other), "data: .* got NoneType"),
        (lambda: comm.all_reduce(data, other), "op: expected a ReduceOp, got ndarray; .* output="),
        (lambda: comm.all_reduce(data, torch.ones(8)), "op: .* got Tensor; .* output="),  # type: ignore[arg-type]
        (lambda: comm.reduce(data, rank, other), "op: .* got ndarray; .* output="),
        (lambda: comm.reduce_scatter(data, [data] * comm.world_size, other), "op: .*ndarray"),
        (lambda: comm.all_reduce(data, 99, output=other), "op: expected a ReduceOp, got 99"),
        (lambda: comm.all_reduce(data, ReduceOp.BAND, output=other), "op: .* got band"),
    ]


def test_wrong_output_is_refused_before_anything_is_written(ranks: ThreadRanks) -> None:
    n = ranks.world_size

    def refuse(comm: Communicator) -> list[float]:
        data = np.arange(8, dtype=np.float32)
        for call, message in wrong_outputs(data, comm):
            with pytest.raises(InvalidArgumentError, match=message):
                call()
            assert data.tolist() == list(range(8))
        comm.all_reduce(data)
        return data.tolist()

    assert ranks.run(refuse) == [[float(n * value) for value in range(8)]] * n
