"""`output=`: what it may share memory with, and what not. Its numbers: `test_matrix.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Array
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, InvalidArgumentError, ReduceOp

ranks = ranks_on("a", "aa", "aaabb")
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
