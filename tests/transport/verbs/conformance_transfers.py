"""What every provider promises of messages that arrive: whole, in order, once, under pressure."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from queue_pairs import ALL, PATIENCE_S, Bytes, Connected, End, pattern

from hccl_py.transport.verbs import (
    Access,
    Opcode,
    QueueFullError,
    RecvRequest,
    ScatterGather,
    SendFlags,
    SendRequest,
    Status,
)

MTU = 4096
SIZES = [0, 1, 2, 3, 7, 64, 87, 88, 89, 1000, MTU - 1, MTU, MTU + 1, 3 * MTU - 1, 3 * MTU, 65535]
RDMA = [Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM, Opcode.RDMA_READ]
EVERY = [Opcode.SEND, Opcode.SEND_WITH_IMM, *RDMA]


def transfer(a: End, b: End, opcode: Opcode, num_bytes: int, seed: int) -> None:
    """Move bytes between a and b with one request, and check everything about it."""
    data = pattern(num_bytes, seed)
    source, target = (b, a) if opcode is Opcode.RDMA_READ else (a, b)
    source.memory[:num_bytes] = data
    target.memory[: num_bytes + 1] = 0xEE
    consumes = opcode not in (Opcode.RDMA_WRITE, Opcode.RDMA_READ)
    if consumes:
        b.post_recv(b.memory.size, wr_id=seed + 1)
    a.post_send(opcode, num_bytes=num_bytes, to=b.region, wr_id=seed, imm=seed + 2)
    sent = a.take_one()
    assert (sent.status, sent.wr_id, sent.opcode) == (Status.SUCCESS, seed, opcode)
    assert (sent.byte_len, sent.qp_num) == (num_bytes, a.pair.number)
    if consumes:
        received = b.take_one()
        is_send = opcode in (Opcode.SEND, Opcode.SEND_WITH_IMM)
        assert received.opcode is (Opcode.RECV if is_send else Opcode.RECV_RDMA_WITH_IMM)
        assert (received.status, received.wr_id) == (Status.SUCCESS, seed + 1)
        assert received.byte_len == num_bytes
        assert received.imm == (None if opcode is Opcode.SEND else seed + 2)
        assert received.qp_num == b.pair.number
    # Not numpy's own assertion: it takes half a minute for a gigabyte.
    assert np.array_equal(target.memory[:num_bytes], data)
    assert target.memory[num_bytes] == 0xEE


@pytest.fixture(scope="session")
def two_gigabytes() -> Iterator[Bytes]:
    """Made once: to touch new memory takes longer than to send it."""
    memory = [np.resize(pattern(251 << 16), 2 << 30)]
    yield memory[0]
    memory.clear()


class Provider:
    """What the suites are told."""

    provider: str
    small_mtu = 100

    def connected(self, **options: float | Access) -> Connected:
        return Connected(self.provider, **options)  # type: ignore[arg-type]


class Transfers(Provider):
    """Data arrives once, whole and in order."""

    @pytest.mark.parametrize("opcode", EVERY)
    def test_every_size_arrives_whole(self, opcode: Opcode) -> None:
        with self.connected(path_mtu=MTU) as (a, b):
            for seed, num_bytes in enumerate(SIZES):
                transfer(a, b, opcode, num_bytes, seed)
                transfer(b, a, opcode, num_bytes, seed)

    @pytest.mark.nightly("calls")
    def test_one_gigabyte_arrives_whole(self, two_gigabytes: Bytes) -> None:
        half = 1 << 30
        source, target = two_gigabytes[:half], two_gigabytes[half:]
        source[::4099] += 1  # what an earlier provider left behind is wrong now
        with self.connected() as (a, b):
            mine = a.domain.register(source, Access.LOCAL_READ)
            theirs = b.domain.register(target, ALL)
            request = SendRequest(
                Opcode.RDMA_WRITE, (mine.piece(),), remote_address=theirs.address, rkey=theirs.rkey
            )
            a.pair.post_send(request)
            [done] = a.expect(Status.SUCCESS)
            assert done.byte_len == half
        for at in range(0, half, 1 << 26):
            assert np.array_equal(source[at : at + (1 << 26)], target[at : at + (1 << 26)])

    def test_messages_arrive_in_order(self) -> None:
        count = 2000
        with self.connected(max_send_wr=256, max_recv_wr=256) as (a, b):
            posted = received = sent = 0
            arrived: list[tuple[int, int | None]] = []
            while received < count:
                while posted < count and posted - received < 128:
                    b.post_recv(64, offset=64 * (posted % 256), wr_id=posted)
                    offset = 64 * (posted % 256)
                    a.memory[offset : offset + 64] = posted % 256
                    size = posted % 65
                    opcode = Opcode.SEND_WITH_IMM
                    a.post_send(opcode, num_bytes=size, offset=offset, imm=posted, wr_id=posted)
                    posted += 1
                for one in b.queue.wait(timeout_s=PATIENCE_S, max_completions=64):
                    assert one.status is Status.SUCCESS
                    assert one.byte_len == received % 65
                    offset = 64 * (received % 256)
                    assert (b.memory[offset : offset + one.byte_len] == received % 256).all()
                    arrived.append((one.wr_id, one.imm))
                    received += 1
                full = posted - sent >= 128  # no room for as many again
                for one in a.take(posted - sent) if full else a.queue.poll(256):
                    assert (one.wr_id, one.status) == (sent, Status.SUCCESS)
                    sent += 1
            assert arrived == [(i, i) for i in range(count)]

    def test_scatter_and_gather_lists_are_one_message(self) -> None:
        with self.connected(path_mtu=self.small_mtu, max_sge=4) as (a, b):
            data = pattern(1000)
            a.memory[:1000] = data
            pieces = [(0, 1), (1, 498), (499, 0), (499, 501)]
            targets = [(2000, 333), (5000, 1), (100, 666), (9000, 50)]
            gathered = tuple(a.region.piece(*piece) for piece in pieces)
            b.pair.post_recv(RecvRequest(tuple(b.region.piece(*one) for one in targets)))
            a.pair.post_send(SendRequest(Opcode.SEND, gathered))
            a.expect(Status.SUCCESS)
            assert b.expect(Status.SUCCESS)[0].byte_len == 1000
            landed = [b.memory[at : at + size] for at, size in targets[:3]]
            np.testing.assert_array_equal(np.concatenate(landed), data)
            assert (b.memory[9000:9050] == 0).all()

    def test_inline_memory_is_free_at_once_and_needs_no_region(self) -> None:
        with self.connected(max_inline=64) as (a, b):
            b.post_recv(64)
            data = pattern(64, 3)
            piece = ScatterGather(int(data.ctypes.data), 64, lkey=0)
            flags = SendFlags.INLINE | SendFlags.SIGNALED
            a.pair.post_send(SendRequest(Opcode.SEND, (piece,), flags=flags))
            data[:] = 0
            b.expect(Status.SUCCESS)
            np.testing.assert_array_equal(b.memory[:64], pattern(64, 3))

    def test_unsignaled_success_makes_no_completion(self) -> None:
        with self.connected() as (a, b):
            for i in range(10):
                a.post_send(
                    Opcode.RDMA_WRITE, num_bytes=8, to=b.region, wr_id=i, flags=SendFlags.NONE
                )
            a.post_send(Opcode.RDMA_WRITE, num_bytes=8, to=b.region, wr_id=10)
            assert a.take_one().wr_id == 10
            assert a.queue.poll() == []

    def test_fence_waits_for_the_read(self) -> None:
        with self.connected(num_bytes=8 << 20, path_mtu=MTU) as (a, b):
            half = 4 << 20
            b.memory[:half] = 7
            a.memory[half:] = 9
            a.post_send(Opcode.RDMA_READ, num_bytes=half, to=b.region)
            a.post_send(
                Opcode.RDMA_WRITE,
                num_bytes=half,
                offset=half,
                to=b.region,
                flags=SendFlags.FENCE | SendFlags.SIGNALED,
            )
            a.expect(Status.SUCCESS, Status.SUCCESS)
            assert (a.memory[:half] == 7).all()
            assert (b.memory[:half] == 9).all()


class Pressure(Provider):
    """Many requests, full queues, several threads."""

    def test_thousand_requests_are_outstanding(self) -> None:
        with self.connected(max_send_wr=1000, max_recv_wr=1000) as (a, b):
            for end, other in ((a, b), (b, a)):
                for i in range(1000):
                    end.post_send(
                        (Opcode.SEND, Opcode.RDMA_WRITE, Opcode.RDMA_READ)[i % 3],
                        num_bytes=16,
                        offset=16 * (i % 3) + 4096,
                        to=other.region,
                        wr_id=i,
                    )
                with pytest.raises(QueueFullError):
                    for _ in range(1001):
                        end.post_send(num_bytes=16)
            for end in (a, b):
                for _ in range(334):
                    end.post_recv(16)
            for end in (a, b):
                done = end.take(1334)
                assert all(one.status is Status.SUCCESS for one in done)
                sends = [one.wr_id for one in done if one.opcode is not Opcode.RECV]
                assert sends == list(range(1000))

    @pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ])
    def test_both_sides_full_of_large_requests_do_not_block(self, opcode: Opcode) -> None:
        with self.connected(num_bytes=2 << 20, max_send_wr=32) as (a, b):
            half = 1 << 20
            a.memory[:half], b.memory[:half] = 1, 2
            # A read lands in the second half, a write comes from the first.
            mine, theirs = (0, half) if opcode is Opcode.RDMA_WRITE else (half, 0)
            for _ in range(32):
                for end, other in ((a, b), (b, a)):
                    end.post_send(
                        opcode, num_bytes=half, offset=mine, to=other.region, remote_offset=theirs
                    )
            for end in (a, b):
                assert all(one.status is Status.SUCCESS for one in end.take(32))
            assert (a.memory[half:] == 2).all()
            assert (b.memory[half:] == 1).all()

    def test_one_thread_posts_while_another_waits(self) -> None:
        count = 2000
        with self.connected(max_send_wr=64, max_recv_wr=64) as (a, b):
            free = threading.Semaphore(64)
            failures: list[BaseException] = []

            def guarded(action: object, *arguments: object) -> None:
                try:
                    action(*arguments)  # type: ignore[operator]
                except BaseException as error:
                    failures.append(error)

            def post(end: End) -> None:
                for i in range(count):
                    assert free.acquire(timeout=PATIENCE_S)
                    end.post_send(Opcode.RDMA_WRITE_WITH_IMM, num_bytes=8, to=b.region, imm=i)

            def take_sent(end: End) -> None:
                for _ in range(count):
                    assert end.take_one().status is Status.SUCCESS
                    free.release()

            def take_received(end: End) -> None:
                for i in range(count):
                    assert end.take_one().imm == i
                    if i + 64 < count:
                        end.post_recv(0)

            for _ in range(64):
                b.post_recv(0)
            threads = [
                threading.Thread(target=guarded, args=(action, end), daemon=True)
                for action, end in ((post, a), (take_sent, a), (take_received, b))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(2 * PATIENCE_S)
            assert not failures
            assert not any(thread.is_alive() for thread in threads)
