"""What moves elements without touching them: broadcast, all_gather, all_to_all, gather, scatter.

Every element type, whole buffers and lists of uneven blocks, in place and out of place; guard bytes
round every buffer.
"""

from __future__ import annotations

import numpy as np
import pytest
from guarded import REDUCIBLE, Array, Guarded
from thread_ranks import ThreadRanks, ranks_on, wait_until

from hccl_py import Communicator

MORE = [pytest.param(nodes, marks=pytest.mark.nightly("calls")) for nodes in ("aaa", "aaabb")]
ranks = ranks_on("a", "aa", "aaaaa", "abbab", *MORE, HCCL_VERIFY="1")
SIZES = (0, 1, 17, 70_001)  # none, one, odd, more than two tiles of eight-byte elements
NUMPY_TYPES = [one for one in REDUCIBLE if one != "bfloat16"]
DTYPES = (*NUMPY_TYPES, "complex64", "complex128", "datetime64[s]", "S3", "i4, f8")


def _elements(rank: int, count: int, dtype: str, block: int = 0) -> Array:
    """Return elements that only this rank has for this block; any bytes are good."""
    size = np.dtype(dtype).itemsize * count
    raw = np.random.default_rng((rank, block)).integers(0, 256, size, np.uint8)
    return raw.view(dtype)


def _zeros(count: int, dtype: str) -> Guarded:
    return Guarded(np.zeros(count, dtype), dtype)


def _bytes(arrays: list[Array]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_every_root(ranks: ThreadRanks, dtype: str) -> None:
    n = ranks.world_size

    def broadcast(comm: Communicator) -> list[bytes]:
        results = []
        for root in range(n):
            for count in SIZES:
                data = Guarded(_elements(comm.rank, count, dtype), dtype)
                comm.broadcast(data.buffer, root)
                results.append(data.bytes)
        return results

    expected = [_elements(root, count, dtype).tobytes() for root in range(n) for count in SIZES]
    assert ranks.run(broadcast) == [expected] * n


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather_equal_blocks(ranks: ThreadRanks, dtype: str) -> None:
    n = ranks.world_size

    def all_gather(comm: Communicator) -> list[bytes]:
        results = []
        for count in SIZES:
            input, output = (
                Guarded(_elements(comm.rank, count, dtype), dtype),
                _zeros(n * count, dtype),
            )
            comm.all_gather(output.buffer, input.buffer)
            assert input.bytes == _elements(comm.rank, count, dtype).tobytes()
            in_place = _zeros(n * count, dtype)
            own = in_place.buffer[comm.rank * count : (comm.rank + 1) * count]
            own[...] = input.buffer
            comm.all_gather(in_place.buffer, own)
            assert in_place.bytes == output.bytes
            results.append(output.bytes)
        return results

    expected = [_bytes([_elements(r, count, dtype) for r in range(n)]) for count in SIZES]
    assert ranks.run(all_gather) == [expected] * n


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_to_all_equal_blocks(ranks: ThreadRanks, dtype: str) -> None:
    n = ranks.world_size

    def all_to_all(comm: Communicator) -> list[bytes]:
        results = []
        for count in SIZES:
            blocks = [_elements(comm.rank, count, dtype, peer) for peer in range(n)]
            input, output = Guarded(np.concatenate(blocks), dtype), _zeros(n * count, dtype)
            comm.all_to_all(output.buffer, input.buffer)
            assert input.bytes == _bytes(blocks)
            results.append(output.bytes)
        return results

    for rank, got in enumerate(ranks.run(all_to_all)):
        expected = [
            _bytes([_elements(peer, count, dtype, rank) for peer in range(n)]) for count in SIZES
        ]
        assert got == expected


@pytest.mark.parametrize("dtype", ["float32", "complex128", "S3"])
def test_gather_and_scatter_equal_blocks_every_root(ranks: ThreadRanks, dtype: str) -> None:
    n = ranks.world_size

    def there_and_back(comm: Communicator) -> list[tuple[bytes | None, bytes]]:
        results = []
        for root in range(n):
            for count in SIZES:
                mine = Guarded(_elements(comm.rank, count, dtype), dtype)
                everything = _zeros(n * count, dtype) if comm.rank == root else None
                blocks = everything.buffer if everything else None
                comm.gather(blocks, mine.buffer, root)
                back = _zeros(count, dtype)
                comm.scatter(back.buffer, blocks, root)
                results.append((everything.bytes if everything else None, back.bytes))
        return results

    for rank, got in enumerate(ranks.run(there_and_back)):
        expected = []
        for root in range(n):
            for count in SIZES:
                every = [_elements(peer, count, dtype) for peer in range(n)]
                expected.append((_bytes(every) if rank == root else None, every[rank].tobytes()))
        assert got == expected


# What rank a has for rank b, in elements: uneven, some of it nothing, some of several tiles, also
# where those are long messages.
def _length(sender: int, receiver: int) -> int:
    return (0, 1, 150_003, 13, 7)[(3 * sender + receiver) % 5]


def test_all_to_all_uneven_blocks(ranks: ThreadRanks) -> None:
    n = ranks.world_size

    def all_to_all(comm: Communicator) -> list[bytes]:
        me = comm.rank
        inputs = [Guarded(_elements(me, _length(me, p), "f8", p), "f8") for p in range(n)]
        outputs = [_zeros(_length(p, me), "f8") for p in range(n)]
        comm.all_to_all([one.buffer for one in outputs], tuple(one.buffer for one in inputs))
        assert all(one.bytes is not None for one in inputs)
        return [one.bytes for one in outputs]

    for rank, got in enumerate(ranks.run(all_to_all)):
        expected = [_elements(p, _length(p, rank), "f8", rank).tobytes() for p in range(n)]
        assert got == expected


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_blocks_of_megabytes_come_whole_over_every_lane(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node: in shared memory such blocks are long messages, over sockets they fit slots."""
    monkeypatch.setenv("HCCL_TRANSPORT", transport)
    with ThreadRanks("aa") as ranks:

        def swap(comm: Communicator) -> list[bytes]:
            blocks = _elements(comm.rank, 2 * 2_500_003, "u1")
            got, gathered = np.zeros_like(blocks), np.zeros_like(blocks)
            comm.all_to_all(got, blocks)
            comm.all_gather(gathered, blocks[:2_500_003].copy())
            return [_bytes([got]), _bytes([gathered])]

        all_blocks = [_elements(rank, 2 * 2_500_003, "u1").reshape(2, -1) for rank in range(2)]
        for rank, got in enumerate(ranks.run(swap)):
            expected = [blocks[rank] for blocks in all_blocks], [blocks[0] for blocks in all_blocks]
            assert got == [_bytes(one) for one in expected]


def test_all_gather_gather_and_scatter_uneven_blocks(ranks: ThreadRanks) -> None:
    n = ranks.world_size
    lengths = [_length(rank, 0) for rank in range(n)]
    root = n - 1

    def all_three(comm: Communicator) -> tuple[list[bytes], list[bytes], bytes]:
        mine = Guarded(_elements(comm.rank, lengths[comm.rank], "f8"), "f8")
        everywhere = [_zeros(length, "f8") for length in lengths]
        comm.all_gather([one.buffer for one in everywhere], mine.buffer)
        at_root = [_zeros(length, "f8") for length in lengths] if comm.rank == root else []
        blocks = [one.buffer for one in at_root] if comm.rank == root else None
        comm.gather(blocks, mine.buffer, root)
        back = _zeros(lengths[comm.rank], "f8")
        comm.scatter(back.buffer, blocks, root)
        return [one.bytes for one in everywhere], [one.bytes for one in at_root], back.bytes

    everything = [_elements(rank, lengths[rank], "f8").tobytes() for rank in range(n)]
    for rank, (everywhere, at_root, back) in enumerate(ranks.run(all_three)):
        assert everywhere == everything
        assert at_root == (everything if rank == root else [])
        assert back == everything[rank]


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

    def talk(comm: Communicator) -> list[bytes]:
        works, received = [], []
        for count in SIZES:
            for peer in range(n):  # itself too
                data = Guarded(_elements(comm.rank, count, "f8", peer), "f8")
                works.append(comm.nonblocking.send(data.buffer, peer, tag=count))
                received.append(_zeros(count, "f8"))
        # Received in the reverse of the order in which they were sent.
        slots = [(count, peer) for count in SIZES for peer in range(n)]
        for (count, peer), into in reversed(list(zip(slots, received, strict=True))):
            comm.recv(into.buffer, peer, tag=count)
        for work in works:
            work.wait()
        return [into.bytes for into in received]

    for rank, got in enumerate(ranks.run(talk)):
        expected = [
            _elements(peer, count, "f8", rank).tobytes() for count in SIZES for peer in range(n)
        ]
        assert got == expected
