"""The matrix of right numbers: collective x form of call x provider x element type and operation.

A form is where the blocks lie (`SHAPES`) and how the call is made (`FACES`). Each call is made with
arrays and with tensors, as a first call and as a known one; guard bytes stand round every buffer.
The oracle is `harness/oracle.py`. Sums that leave their type's range: `test_average.py`; numbers by
algorithm: `test_algorithms.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from guarded import Guarded
from oracle import KINDS, MOVABLE, MOVING, REDUCING, ROOTED, Collective, contribution, ops_of
from placed_calls import SHAPES, TAKE_UNEVEN, PlacedCall
from thread_ranks import ThreadRanks, ranks_on, wait_until
from tiers import by_night

import hccl_py
from hccl_py import Communicator, ReduceOp

SUM = ReduceOp.SUM
SAMPLES = [
    *[("float32", SUM, 0), ("bfloat16", ReduceOp.AVG, 1), ("int64", ReduceOp.MAX, 17)],
    *[("complex64", ReduceOp.AVG, 17), ("float32", SUM, 70_001), ("uint8", ReduceOp.BXOR, 20_011)],
    ("float64", SUM, None),
]
"""Of the forms: one of each way of adding up, and sizes of a block: none, one, an odd number, more
than one tile of two ranks; None: blocks of uneven lengths, where a call takes lists."""
SIZES = (0, 1, 17, 20_011)
LARGEST = 150_001
"""Many tiles with a short last one."""


every_form_ranks = ranks_on(
    "aa", *by_night("calls", "aaa", "aaaaa", "aaabb", "abbab"), HCCL_VERIFY="1"
)
uneven_ranks = ranks_on("aaabb", HCCL_VERIFY="1")
each_type_ranks = ranks_on("a", "aab", *by_night("calls", "aa", "aaabb"), HCCL_VERIFY="1")


@pytest.fixture(scope="module", params=["tcp", "verbs_over_tcp", "zmq"])
def provider_ranks(request: pytest.FixtureRequest) -> Iterator[ThreadRanks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HCCL_TRANSPORT", request.param)
        with ThreadRanks("aab") as ranks:
            yield ranks


def one_by_one(comm: Communicator, calls: list[PlacedCall]) -> Iterator[None]:
    for _ in range(2):  # the second time the call is known
        for call in calls:
            call.run(comm)
        yield


def all_at_once(comm: Communicator, calls: list[PlacedCall]) -> Iterator[None]:
    for _ in range(2):
        for call in calls:
            call.fill()
        for work in [work for call in calls for work in call.start(comm.nonblocking)]:
            work.wait()
        yield


def in_a_group(comm: Communicator, calls: list[PlacedCall]) -> Iterator[None]:
    for _ in range(2):
        for call in calls:
            call.fill()
        with hccl_py.group():
            for call in calls:
                call.start(comm)
        yield


def replayed(comm: Communicator, calls: list[PlacedCall]) -> Iterator[None]:
    with hccl_py.capture() as graph:
        for call in calls:
            call.start(comm)
    for _ in range(2):
        for call in calls:
            call.fill()
        graph.replay()
        yield


Face = Callable[[Communicator, list[PlacedCall]], Iterator[None]]
FACES = (one_by_one, all_at_once, in_a_group, replayed)


def collectives(
    n: int, count: int | None, dtype: str, op: ReduceOp, kinds: Sequence[str] = KINDS
) -> list[Collective]:
    found = []
    for index, kind in enumerate(kinds if count is not None else TAKE_UNEVEN):
        roots = range(n) if kind in ROOTED and count in range(20) else [(index + (count or 0)) % n]
        found += [Collective(kind, dtype, count, n, op, root) for root in roots]
    return found


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_of_every_collective(
    every_form_ranks: ThreadRanks, shape: str, face: Face
) -> None:
    check_form(every_form_ranks, shape, face)


each_shape_with_one_face = pytest.mark.parametrize(
    ("shape", "face"), list(zip(SHAPES, (*FACES, one_by_one), strict=True))
)


@pytest.mark.nightly("calls")
@each_shape_with_one_face
def test_every_collective_of_uneven_nodes(
    uneven_ranks: ThreadRanks, shape: str, face: Face
) -> None:
    check_form(uneven_ranks, shape, face)


@each_shape_with_one_face
def test_every_collective_over_every_provider(
    provider_ranks: ThreadRanks, shape: str, face: Face
) -> None:
    check_form(provider_ranks, shape, face)


def check_form(ranks: ThreadRanks, shape: str, face: Face) -> None:
    for index, (dtype, op, count) in enumerate(SAMPLES):
        if count is None and "lists" not in shape:
            continue
        every = collectives(ranks.world_size, count, dtype, op)
        if "in place" in shape and (face is replayed or count is None):
            every = [one for one in every if one.kind != "all_to_all"]  # is rejected

        def run(comm: Communicator, every: Any = every, of_torch: bool = index % 2 == 0) -> None:
            calls = [PlacedCall(one, comm.rank, shape, of_torch) for one in every]
            for turn, _ in enumerate(face(comm, calls)):
                for call in calls:
                    call.check(turn)

        ranks.run(run)


@pytest.mark.parametrize("dtype", MOVABLE)
def test_every_type_operation_and_size(each_type_ranks: ThreadRanks, dtype: str) -> None:
    """Whole buffers, in place where the method is; an all_reduce has the same bits everywhere."""
    n, ops = each_type_ranks.world_size, ops_of(dtype)
    every = [
        *(Collective("all_reduce", dtype, LARGEST, n, op) for op in ops[:1]),
        *(
            one
            for op in ops
            for count in (SIZES if op is ops[0] else SIZES[2:3])  # kernels: csrc/reduce
            for one in collectives(n, count, dtype, op, REDUCING)
        ),
        *(one for count in SIZES for one in collectives(n, count, dtype, SUM, MOVING)),
    ]

    def run(comm: Communicator) -> list[bytes]:
        calls = [PlacedCall(one, comm.rank, "in place") for one in every]
        next(one_by_one(comm, calls))
        for call in calls:
            call.check()
        return [call.outputs for call in calls if call.what.kind == "all_reduce"]

    first, *others = each_type_ranks.run(run)
    assert all(other == first for other in others)


def test_min_and_max_propagate_nan(each_type_ranks: ThreadRanks) -> None:
    def all_reduce(comm: Communicator) -> list[float]:
        results = []
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            data = np.array([comm.rank, np.nan if comm.rank == 0 else 1.0], np.float32)
            comm.all_reduce(data, op)
            results += data.tolist()
        return results

    for smallest, nan, largest, also_nan in each_type_ranks.run(all_reduce):
        assert (smallest, largest) == (0, each_type_ranks.world_size - 1)
        assert np.isnan([nan, also_nan]).all()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("shape", ["apart", "in place"])
def test_blocks_of_megabytes_come_whole_over_every_lane(
    shape: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node: in shared memory such blocks are long messages, over sockets they fit slots."""
    monkeypatch.setenv("HCCL_TRANSPORT", transport)
    every = [Collective(kind, "uint8", 2_500_003, 2) for kind in ("all_to_all", "all_gather")]

    def run(comm: Communicator) -> None:
        calls = [PlacedCall(one, comm.rank, shape) for one in every]
        next(one_by_one(comm, calls))
        for call in calls:
            call.check()

    with ThreadRanks("aa") as ranks:
        ranks.run(run)


ranks = ranks_on("a", "aa", "abbab", HCCL_VERIFY="1")
LENGTHS = (0, 1, 17, 70_001)  # none, one, odd, more than two tiles of eight-byte elements


def test_barrier_holds_everyone_until_the_last(ranks: ThreadRanks) -> None:
    arrived: list[int] = []
    last = ranks.world_size - 1

    def meet(comm: Communicator) -> int:
        if comm.rank == last:
            wait_until(lambda: len(arrived) == last, "all others are on their way")
        arrived.append(comm.rank)
        comm.barrier()
        return len(arrived)

    for _ in range(20):
        arrived.clear()
        assert ranks.run(meet) == [ranks.world_size] * ranks.world_size
        ranks.run(lambda comm: comm.barrier())


def test_send_and_recv_every_pair_and_size(ranks: ThreadRanks) -> None:
    n = ranks.world_size

    def numbers(sender: int, receiver: int, count: int) -> Guarded:
        return Guarded(contribution(sender * n + receiver, count, "float64"), "float64")

    def talk(comm: Communicator) -> list[bytes]:
        slots = [(count, peer) for count in LENGTHS for peer in range(n)]  # itself too
        given = [numbers(comm.rank, peer, count) for count, peer in slots]
        received = [Guarded(np.zeros(count), "float64") for count, _ in slots]
        works = [
            comm.nonblocking.send(one.buffer, peer, tag=count)
            for one, (count, peer) in zip(given, slots, strict=True)
        ]
        # Received in the reverse of the order in which they were sent.
        for into, (count, peer) in reversed(list(zip(received, slots, strict=True))):
            comm.recv(into.buffer, peer, tag=count)
        for work in works:
            work.wait()
        return [into.bytes for into in received]

    for rank, got in enumerate(ranks.run(talk)):
        assert got == [numbers(peer, rank, count).bytes for count in LENGTHS for peer in range(n)]
