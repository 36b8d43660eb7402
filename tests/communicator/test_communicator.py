"""What a communicator is beside its collectives: arguments, counters, memory, its end."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from thread_ranks import ThreadRanks, counters, ranks_on

from hccl_py import AbortedError, Communicator, InvalidArgumentError, ReduceOp
from hccl_py.transport import _core

LIMIT_BYTES = 16 << 20

ranks = ranks_on("aab")


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def read_only() -> np.ndarray[Any, Any]:
    array = floats(3)
    array.flags.writeable = False
    return array


# What was called, on all three ranks alike, and what its message must say.
WRONG: list[tuple[Callable[[Communicator], Any], str]] = [
    (lambda c: c.all_reduce([1.0]), "data: expected a contiguous CPU torch tensor.*got list"),
    (lambda c: c.all_reduce(np.float32(1)), "data: expected writable.*read-only numpy.float32"),
    (lambda c: c.all_reduce(floats(4, 4)[:, 1]), r"data: expected.*shape \(4,\) with strides"),
    (lambda c: c.all_reduce(floats(4, 4).T), r"data: expected.*shape \(4, 4\) with"),
    (lambda c: c.all_reduce(torch.zeros(4, 4).t()), r"data: expected.*shape \(4, 4\) with"),
    (lambda c: c.all_reduce(torch.zeros(2, device="meta")), "data: expected.*got one on meta"),
    (lambda c: c.all_reduce(torch.zeros(2, 2).to_sparse()), "data: expected.*layout torch.sparse"),
    (lambda c: c.all_reduce((torch.ones(2) * 1j).conj()), "data: expected.*resolve_conj"),
    (lambda c: c.all_reduce((torch.ones(1) * 1j).conj().imag), "resolve_neg"),  # is contiguous
    (lambda c: c.all_reduce(np.broadcast_to(np.float32(1), 2)), "data: expected.*read-only"),
    (lambda c: c.all_reduce(np.zeros(2, ">f4")), "data: expected numbers in this machine's byte"),
    (lambda c: c.all_reduce(np.array([None])), "data: expected numbers.*got dtype object"),
    (lambda c: c.all_reduce(read_only()), "data: expected a writable array, got a read-only"),
    (lambda c: c.all_reduce(floats(2), ReduceOp.BAND), "op: expected.*float32, got band"),
    (lambda c: c.all_reduce(np.zeros(2, bool), ReduceOp.AVG), "op: expected.*bool, got avg"),
    (lambda c: c.all_reduce(np.zeros(2, "c8"), ReduceOp.MAX), "op: expected.*complex64, got max"),
    (lambda c: c.all_reduce(np.zeros(2, "M8[s]")), r"op: expected.*datetime64\[s\], got sum"),
    (lambda c: c.all_reduce(floats(2), 99), "op: expected a ReduceOp, got 99"),
    (lambda c: c.all_reduce(floats(2), -1), "op: expected a ReduceOp, got -1"),
    (
        lambda c: c.all_reduce(floats(2), "sum"),
        "op: expected a ReduceOp, got 'sum'; write hccl_py.ReduceOp.SUM .*MIN, MAX, AVG",
    ),
    (lambda c: c.all_reduce(floats(2), "prod"), "write hccl_py.ReduceOp.PRODUCT"),
    (lambda c: c.all_reduce(floats(2), "b"), "write for example hccl_py.ReduceOp.SUM"),
    (lambda c: c.all_reduce(floats(2), np.max), "write hccl_py.ReduceOp.MAX"),
    (lambda c: c.all_reduce(floats(2), floats(2)), "op: .*, got ndarray; .* output="),
    (lambda c: c.reduce(floats(2), 0, torch.ones(2)), "op: .* got Tensor; .* output="),
    (lambda c: c.reduce_scatter(floats(2), [floats(2)] * 3, floats(2)), "op: .*ndarray"),
    (lambda c: c.all_reduce(floats(8), output=floats(9)), "output: .*got 9"),
    (lambda c: c.all_reduce(floats(2), output=np.zeros(2, "i4")), "output.*got int32"),
    (lambda c: c.all_reduce(floats(3), output=read_only()), "output: .* read-only"),
    (lambda c: c.all_reduce(floats(2), output=[0.0] * 2), "output: .*got list"),
    (lambda c: c.broadcast(None, c.rank, output=floats(2)), "data: .* got NoneType"),
    (lambda c: c.broadcast(floats(2), 3), r"root: expected a rank of 0\.\.2, got 3"),
    (lambda c: c.broadcast(floats(2), None), r"root: expected a rank of 0\.\.2, got None"),
    (lambda c: c.broadcast(read_only(), (c.rank + 1) % 3), "data: expected a writable array"),
    (lambda c: c.reduce(floats(2), -1), r"root: expected a rank of 0\.\.2, got -1"),
    (lambda c: c.all_gather(floats(7), floats(2)), "output: expected a size that 3 ranks.*got 7"),
    (lambda c: c.all_gather(floats(9), floats(2)), "output: expected block . to have 2.*got 3"),
    (lambda c: c.all_gather(np.zeros(6), floats(2)), "output: expected.*float32.*got float64"),
    (lambda c: c.all_gather([floats(2)] * 2, floats(2)), r"output: expected one.*\(3\), got 2"),
    (lambda c: c.all_gather([read_only()] * 3, floats(3)), r"output\[0\]: expected a writable"),
    (
        lambda c: c.all_gather([floats(2), floats(2), np.zeros(2)], floats(2)),
        r"output\[2\]: expected elements of type float32 like output\[0\], got float64",
    ),
    (lambda c: c.all_gather(np.zeros(3, "c8"), floats(2)), "output: expected.*float32.*complex64"),
    (lambda c: c.reduce_scatter(floats(2), floats(9)), "input: expected block 0 to have 2.*got 3"),
    (lambda c: c.reduce_scatter(read_only(), floats(9)), "output: expected a writable array"),
    (
        lambda c: c.reduce_scatter(floats(2), [floats(2), floats(2), floats(1)]),
        "input: expected block 2 to have 2 elements like output, got 1",
    ),
    (
        lambda c: c.all_to_all(np.zeros(2, "c8"), np.zeros(2, "c8")),
        "input: expected a size that 3 ranks can divide evenly, got 2",
    ),
    (lambda c: c.all_to_all(floats(3), np.zeros(3)), "output: expected.*float64 like input"),
    (lambda c: c.all_to_all([floats(1)] * 4, floats(3)), r"output: expected one.*\(3\), got 4"),
    (lambda c: c.gather(floats(3), floats(1), (c.rank + 1) % 3), "output: expected None.*ndarray"),
    (lambda c: c.gather(None, floats(1), c.rank), "output: expected blocks.*got NoneType"),
    (lambda c: c.scatter(floats(1), None, c.rank), "input: expected blocks on the root"),
    (lambda c: c.scatter(floats(2), floats(3), c.rank), "input: expected block . to have 2"),
    (lambda c: c.send(floats(1), 3), r"peer: expected a rank of 0\.\.2, got 3"),
    (lambda c: c.send(floats(1), 0, -1), r"tag: expected a number of 0\.\.2\^64-1, got -1"),
    (lambda c: c.recv(floats(1), 0, 2**64), "tag: expected a number"),
    (lambda c: c.recv(read_only(), 0), "data: expected a writable array"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_argument_is_named_and_harms_nothing(
    ranks: ThreadRanks, call: Callable[[Communicator], Any], message: str
) -> None:
    def wrong(comm: Communicator) -> int:
        for known in (floats(2), torch.ones(2), torch.ones(1), torch.ones(2) * 1j):
            comm.all_reduce(known)  # calls that the wrong ones are described nearly like
        before = counters(comm)
        with pytest.raises(InvalidArgumentError, match=message):
            call(comm)
        assert counters(comm) == before, "nothing was sent"
        data = np.array([comm.rank])
        comm.all_reduce(data)
        return int(data[0])

    assert ranks.run(wrong) == [3, 3, 3]


def test_close_twice_then_calls_say_closed() -> None:
    with ThreadRanks("aa") as ranks:
        comm = ranks.communicators[0]
        comm.close()
        comm.close()
        comm.abort("nothing to abort")
        for call in (comm.barrier, comm.nonblocking.barrier, comm.statistics):
            with pytest.raises(AbortedError, match=r"\[aa, rank 0 of 2\].*is closed"):
                call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 0, None), "rank and world_size: expected both or neither"),
        ((None, None, 2), "rank and world_size: expected both or neither"),
        (({}, 2, 2), r"rank 2 is not in 0\.\.1"),
        (({}, 0, 0), "rank 0 is not in"),
    ],
)
def test_communicator_of_wrong_numbers_says_so(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Communicator(*arguments)


def _private_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(int(kb) for kb in re.findall(r"Private_\w+:\s+(\d+) kB", text))


def use_everything(rank: int, world_size: int) -> tuple[int, int]:
    """Return the sizes of this rank's segment and of everything else it took."""
    # What an all_to_all sends stays in place from 4 MiB on; all else goes through slots.
    sizes = [(1 << 20, 1 << 18), (1 << 19, 1 << 16)]
    buffers = [
        tuple(np.ones(shape, np.float32) for shape in (count, count, *[(world_size, block)] * 2))
        for count, block in sizes
    ]
    # A forked process copies what it touches of the modules, which is not what is measured.
    with Communicator(None, 0, 1) as alone:
        alone.all_reduce(buffers[0][0])
    before = _private_bytes()
    comm = Communicator()
    for data, received, blocks, gathered in buffers:
        comm.all_reduce(data)
        comm.broadcast(data, 1)
        comm.reduce(data, 0)
        comm.all_gather(gathered, blocks[0])
        comm.reduce_scatter(blocks[0], gathered)
        comm.all_to_all(gathered, blocks)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        work = comm.nonblocking.send(data, right)
        comm.recv(received, left)
        work.wait()
    assert comm.statistics()["devices"]["shm"]["bytes"] > 0, "the ranks did not talk through it"
    # A rank maps all segments of its node, but only its own is its doing.
    segment = Path(f"/proc/self/fd/{comm._state.core.segment_fd()}").stat().st_blocks * 512
    heap = _private_bytes() - before
    comm.barrier()
    comm.close()
    return segment, heap


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.nightly("scale")), 2])
def test_eight_ranks_take_at_most_16_mb_each(nodes: int) -> None:
    # The limit is on what shared memory takes.
    env = {"HCCL_TRANSPORT": "auto"}
    used = run_ranks(
        use_everything, 8, env=lambda rank: env | {"HCCL_NODE_ID": str(rank * nodes // 8)}
    )
    for segment, heap in used:
        assert segment + heap < LIMIT_BYTES, used


def test_segment_for_which_there_is_no_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="segment"):
        _core.Communicator.create(_core.ProgressThread(), 0, 2, [0, 1], 1, 2, 1 << 46, None)
