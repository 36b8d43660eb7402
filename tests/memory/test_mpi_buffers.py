"""Buffers as mpi4py describes them. Types are numpy's codes here: no MPI library is needed.

`tests/schedulers/test_mpirun.py` has mpi4py's own types, under mpirun.
"""

from typing import Any

import numpy as np
import pytest
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, InvalidArgumentError, ReduceOp, premul_sum
from hccl_py.memory.buffers import blocks_of, span_of

ranks = ranks_on("aab")
pair = ranks_on("aa")
ARRAY = np.arange(12, dtype=np.float32)
BYTES = bytearray(48)


@pytest.mark.parametrize(
    ("given", "first", "count"),
    [
        ([ARRAY, 5], 0, 5),
        ((ARRAY, 5), 0, 5),
        ([ARRAY, np.int64(5)], 0, 5),
        ([ARRAY, 0], 0, 0),
        ([ARRAY, "f"], 0, 12),
        ([ARRAY, "f4"], 0, 12),
        ([ARRAY, 5, "f"], 0, 5),
        ([ARRAY, None, "f"], 0, 12),
        ([ARRAY, (5, 3), "f"], 3, 5),
        ([ARRAY, 5, 3, "f"], 3, 5),
        ([BYTES, 5, "f"], 0, 5),
        ([BYTES, "f"], 0, 12),
        ([ARRAY.view(np.uint8), (5, 3), "f"], 3, 5),
    ],
)
def test_specification_of_one_buffer_has_its_elements(given: Any, first: int, count: int) -> None:
    span = span_of(given, writable=True)
    base = span_of(given[0]).address
    assert (span.address - base, span.count, span.kind.name) == (4 * first, count, "float32")


@pytest.mark.parametrize(
    ("given", "blocks"),
    [
        ([ARRAY, "f"], [(0, 4), (4, 4), (8, 4)]),
        ([ARRAY, 2], [(0, 2), (2, 2), (4, 2)]),
        ([ARRAY, 2, "f"], [(0, 2), (2, 2), (4, 2)]),
        ([ARRAY, [1, 0, 5]], [(0, 1), (1, 0), (1, 5)]),
        ([ARRAY, (1, 0, 5), "f"], [(0, 1), (1, 0), (1, 5)]),
        ([ARRAY, np.array([1, 0, 5]), "f"], [(0, 1), (1, 0), (1, 5)]),
        ([ARRAY, ([1, 2, 3], [9, 4, 0])], [(9, 1), (4, 2), (0, 3)]),
        ([ARRAY, ((1, 2, 3), (9, 4, 0)), "f"], [(9, 1), (4, 2), (0, 3)]),
        ([ARRAY, [1, 2, 3], [9, 4, 0], "f"], [(9, 1), (4, 2), (0, 3)]),
        ([BYTES, ([1, 2, 3], [9, 4, 0]), "f"], [(9, 1), (4, 2), (0, 3)]),
    ],
)
def test_specification_with_counts_has_a_block_for_each_rank(
    given: Any, blocks: list[tuple[int, int]]
) -> None:
    base = span_of(given[0]).address
    found = blocks_of(given, "output", 3, writable=True)
    assert [((one.address - base) // 4, one.count) for one in found] == blocks


def test_list_of_two_arrays_has_the_blocks_of_two_ranks() -> None:
    one, other = np.zeros(3, np.int64), np.zeros(2, np.int64)
    assert [block.count for block in blocks_of([one, other], "output", 2)] == [3, 2]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([ARRAY, 13], "expected elements of a buffer of 12, got 13 from element 0 on"),
        ([ARRAY, -1], "got -1 from element 0 on"),
        ([ARRAY, (5, 8), "f"], "got 5 from element 8 on"),
        ([ARRAY, "d"], "expected the type of its elements, float32, got float64; leave the type"),
        ([ARRAY, "no type"], "expected a type of numpy, such as 'f4', got 'no type'"),
        ([ARRAY, "O"], "expected numbers"),
        ([ARRAY, [1, 2, 3], "f"], "expected one count"),
        ([ARRAY, "f", "f"], r"expected \[data, count, type\]"),
        (["f", 3, "f"], r"expected \[data, count, type\]"),
        ([None, "f"], r"expected \[data, count, type\]"),
        ([bytearray(7), "f"], "expected the type of its elements"),
        ([ARRAY[::2], 3], "with strides"),
        ([3, 4], "expected a contiguous CPU torch tensor or C-contiguous numpy array"),
    ],
)
def test_wrong_specification_says_what_was_expected(given: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"data: .*{text}"):
        span_of(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([ARRAY, [1, 2]], r"counts: expected a number for each of 3 ranks, got \[int, int\]"),
        ([ARRAY, ([1, 2, 3], [0, 1])], "displacements: expected a number for each of 3 ranks"),
        ([ARRAY, ([1, 2, 3], [0, 1, 10])], r"output\[2\]: .*got 3 from element 10 on"),
        ([ARRAY, 5], r"output\[2\]: .*got 5 from element 10 on"),
        ([ARRAY[:11], "f"], "that 3 ranks can divide evenly, got 11 elements; give the counts"),
    ],
)
def test_wrong_counts_say_what_was_expected(given: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        blocks_of(given, "output", 3)


def test_read_only_specification_is_rejected_as_output() -> None:
    with pytest.raises(InvalidArgumentError, match="writable"):
        span_of([bytes(8), "f"], writable=True)


def test_every_call_takes_specifications(ranks: ThreadRanks) -> None:
    n, counts, starts = 3, [1, 2, 3], [9, 4, 0]

    def call(comm: Communicator) -> None:
        me = comm.rank
        data, sums = np.full(9, me + 1, np.int32), np.zeros(9, np.int32)
        comm.all_reduce([data, (5, 2), "i"], output=[sums, 5])
        assert sums.tolist() == [6] * 5 + [0] * 4 and (data == me + 1).all()
        comm.all_reduce([data, 2], ReduceOp.MAX)
        assert data.tolist() == [3] * 2 + [me + 1] * 7
        comm.broadcast((data, 9, "i"), 1)
        assert data.tolist() == [3] * 2 + [2] * 7
        comm.reduce([np.full(3, me, np.int32), "i"], 2, output=[sums, (3, 6), "i"])
        assert sums[6:].tolist() == [3 * (me == 2)] * 3
        rows = np.full(10, -1, np.int32)
        comm.all_gather([rows, (counts, starts), "i"], [np.full(me + 1, me, np.int32), "i"])
        assert rows.tolist() == [2, 2, 2, -1, 1, 1, -1, -1, -1, 0]
        back = np.zeros(4, np.int32)
        comm.reduce_scatter([back, 4], [np.arange(24, dtype=np.int32), 4, "i"])
        assert back.tolist() == [n * (4 * me + i) for i in range(4)]
        taken = np.zeros(n * (me + 1), np.int32)
        comm.all_to_all([taken, [me + 1] * n], [np.repeat(np.int32(me), 6), counts])
        assert taken.tolist() == np.repeat(range(n), me + 1).tolist()
        comm.gather([rows, counts, starts, "i"] if me == 1 else None, [data, me + 1], 1)
        comm.scatter([back, me + 1], [rows, counts, starts, "i"] if me == 1 else None, 1)
        assert back[: me + 1].tolist() == [3] * min(me + 1, 2) + [2] * (me == 2)
        work = comm.nonblocking.all_reduce([data, 1, "i"])
        work.wait()
        assert data[0] == 9
        peer, source = (me + 1) % n, (me - 1) % n
        sent = comm.nonblocking.send([data, (2, 7), "i"], peer)
        comm.recv([sums, 2, "i"], source)
        sent.wait()
        assert sums[:2].tolist() == [2, 2]

    ranks.run(call)


InPlaceType = type("InPlaceType", (int,), {"__module__": "mpi4py.MPI"})
IN_PLACE = InPlaceType(-1)


@pytest.mark.parametrize("count", [0, 5, 300_001])
def test_reduce_scatter_in_place_has_its_result_at_the_start(
    count: int, pair: ThreadRanks, ranks: ThreadRanks
) -> None:
    def call(comm: Communicator) -> None:
        me, n = comm.rank, comm.world_size
        all_given = [np.arange(n * count) % 97 * (rank + 1.0) for rank in range(n)]
        expected = np.sum(all_given, 0).reshape(n, count)[me]
        given = all_given[me].copy()
        comm.reduce_scatter(given, IN_PLACE)
        assert given[:count].tolist() == expected.tolist()
        given = np.concatenate([[-1.0], all_given[me], [-1.0]])
        work = comm.nonblocking.reduce_scatter(
            [given, [count] * n, [1 + count * rank for rank in range(n)], "d"], IN_PLACE
        )
        work.wait()
        assert given[1 : count + 1].tolist() == expected.tolist()
        assert given[0] == given[-1] == -1

    pair.run(call)
    ranks.run(call)


def test_reduce_scatter_in_place_takes_a_premultiplied_sum(pair: ThreadRanks) -> None:
    def call(comm: Communicator) -> None:
        given = np.array([1.0, 2.0, 3.0, 4.0]) * (comm.rank + 1)
        comm.reduce_scatter(given, IN_PLACE, premul_sum(0.5))
        assert given[:2].tolist() == [[1.5, 3.0], [4.5, 6.0]][comm.rank]

    pair.run(call)


def test_reduce_scatter_in_place_of_uneven_blocks_is_rejected(pair: ThreadRanks) -> None:
    def call(comm: Communicator) -> None:
        with pytest.raises(InvalidArgumentError, match="input: expected block 1 to have 1 elem"):
            comm.reduce_scatter([np.zeros(3), [1, 2]], IN_PLACE)

    pair.run(call)
