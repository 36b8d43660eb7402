"""What every provider promises: the semantics of a reliable connection.

A provider passes by a class that derives from these and names it, see test_conformance.py.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from queue_pairs import ALL, PATIENCE_S, Bytes, Connected, End, connect, pattern, wait_until

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.verbs import (
    Access,
    CompletionQueue,
    CompletionQueueOverflowError,
    CompletionTimeoutError,
    Opcode,
    ProtectionDomain,
    QueueFullError,
    QueuePair,
    QueuePairAttributes,
    RecvRequest,
    ScatterGather,
    SendFlags,
    SendRequest,
    State,
    Status,
)

MTU = 4096
_ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG
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

    @pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.SEND, Opcode.RDMA_READ])
    def test_large_message_arrives_whole(self, opcode: Opcode) -> None:
        num_bytes = (64 << 20) + 3
        with self.connected(num_bytes=num_bytes + 1) as (a, b):
            transfer(a, b, opcode, num_bytes, 5)

    def test_one_gigabyte_arrives_whole(self, two_gigabytes: Bytes) -> None:
        half = 1 << 30
        source, target = two_gigabytes[:half], two_gigabytes[half:]
        source[::4099] += 1  # what an earlier provider left behind is wrong now
        with self.connected() as (a, b):
            mine = a.domain.register(source, Access.LOCAL_READ)
            theirs = b.domain.register(target, ALL)
            request = SendRequest(
                Opcode.RDMA_WRITE,
                (mine.piece(),),
                remote_address=theirs.address,
                rkey=theirs.rkey,
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
        with self.connected(path_mtu=100, max_sge=4) as (a, b):
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

    def test_read_scatters(self) -> None:
        with self.connected(path_mtu=100) as (a, b):
            b.memory[:900] = pattern(900)
            pieces = (a.region.piece(10, 301), a.region.piece(2000, 599))
            a.pair.post_send(
                SendRequest(
                    Opcode.RDMA_READ, pieces, remote_address=b.region.address, rkey=b.region.rkey
                )
            )
            a.expect(Status.SUCCESS)
            landed = np.concatenate([a.memory[10:311], a.memory[2000:2599]])
            np.testing.assert_array_equal(landed, pattern(900))

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

    def test_passive_peer_is_read_and_written(self) -> None:
        # Nobody polls on b's side.
        with self.connected() as (a, b):
            b.memory[:100] = pattern(100)
            for i in range(20):
                a.post_send(
                    Opcode.RDMA_READ, num_bytes=100, offset=1000, to=b.region, remote_offset=i
                )
                a.post_send(
                    Opcode.RDMA_WRITE, num_bytes=100, offset=1000, to=b.region, remote_offset=i + 1
                )
                a.take(2)

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
        with self.connected(num_bytes=4 << 20, max_send_wr=32) as (a, b):
            half = 2 << 20
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

    def test_both_sides_send_before_either_receives(self) -> None:
        with self.connected(num_bytes=8 << 20) as (a, b):
            half = 4 << 20
            for end in (a, b):
                end.memory[:half] = pattern(half, 1 if end is a else 2)
                for _ in range(4):
                    end.post_send(num_bytes=half)
            for end in (a, b):
                for _ in range(4):
                    end.post_recv(half, offset=half)
            for end in (a, b):
                assert all(one.status is Status.SUCCESS for one in end.take(8))
                expected = pattern(half, 2 if end is a else 1)
                np.testing.assert_array_equal(end.memory[half:], expected)

    def test_sender_waits_for_a_late_receiver(self) -> None:
        with self.connected(min_rnr_timer_s=0.001) as (a, b):
            a.memory[:10] = 5
            a.post_send(num_bytes=10, wr_id=1)
            wait_until(lambda: self._has_retried(a), "a retry")
            b.post_recv(10)
            a.expect(Status.SUCCESS)
            b.expect(Status.SUCCESS)
            assert (b.memory[:10] == 5).all()
            assert a.pair.state is State.RTS

    @staticmethod
    def _has_retried(end: End) -> bool:
        assert end.queue.poll() == []
        return end.pair.statistics()["rnr_retries"] >= 2

    def test_sixty_four_queue_pairs_share_a_completion_queue(self) -> None:
        with self.connected() as (a, b):
            attributes = QueuePairAttributes(max_send_wr=8, max_recv_wr=8)
            ends = []
            for _ in range(64):
                pairs = [QueuePair(e.domain, e.queue, attributes=attributes) for e in (a, b)]
                for pair in pairs:
                    pair.modify(State.INIT)
                connect(*pairs)
                ends.append(pairs)
            for i, (sender, receiver) in enumerate(ends):
                b.memory[i * 8 : i * 8 + 8] = 0
                a.memory[i * 8 : i * 8 + 8] = i
                receiver.post_recv(RecvRequest((b.region.piece(i * 8, 8),), wr_id=i))
                sender.post_send(SendRequest(Opcode.SEND, (a.region.piece(i * 8, 8),), wr_id=i))
            received = {one.wr_id: one for one in b.take(64)}
            sent = {one.wr_id: one for one in a.take(64)}
            for i, (sender, receiver) in enumerate(ends):
                assert received[i].status is sent[i].status is Status.SUCCESS
                assert (sent[i].qp_num, received[i].qp_num) == (sender.number, receiver.number)
                assert (b.memory[i * 8 : i * 8 + 8] == i).all()

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


class Errors(Provider):
    """What goes wrong ends the queue pair, touches nothing, and is named."""

    @pytest.mark.parametrize("opcode", RDMA)
    @pytest.mark.parametrize(
        "fault", ["wrong key", "revoked key", "one too far", "one before", "wraps", "no access"]
    )
    def test_remote_access_is_refused(self, opcode: Opcode, fault: str) -> None:
        access = Access.LOCAL_WRITE if fault == "no access" else ALL
        with self.connected(num_bytes=4096, access=access) as (a, b):
            a.memory[:] = 3
            b.memory[:] = 4
            b.post_recv(0, wr_id=50)
            offset, size, rkey = 0, 4096, b.region.rkey
            if fault == "wrong key":
                rkey ^= 1 << 20
            elif fault == "revoked key":
                b.domain.register(b.memory, ALL)
                b.region.close()
            elif fault == "one too far":
                offset = 1
            elif fault == "one before":
                offset = -1
            elif fault == "wraps":
                offset = 2**64 - 4096 - b.region.address + 1
            remote = (b.region.address + offset) % 2**64
            a.post_send(Opcode.RDMA_WRITE, num_bytes=0, wr_id=7)
            request = SendRequest(
                opcode, (a.region.piece(0, size),), wr_id=8, remote_address=remote, rkey=rkey
            )
            a.pair.post_send(request)
            a.post_send(num_bytes=1, wr_id=9)
            done = a.expect(Status.SUCCESS, Status.REMOTE_ACCESS_ERROR, Status.FLUSHED)
            assert [one.wr_id for one in done] == [7, 8, 9]
            [flushed] = b.expect(Status.FLUSHED)
            assert flushed.wr_id == 50
            assert (a.memory == 3).all()
            assert (b.memory == 4).all()
            assert a.pair.state is State.ERROR
            assert b.pair.state is State.ERROR
            assert a.pair.reason

    def test_after_an_error_everything_is_flushed_in_order(self) -> None:
        with self.connected(max_send_wr=64) as (a, b):
            for i in range(8):
                a.post_recv(8, wr_id=100 + i)
            a.post_send(Opcode.RDMA_WRITE, num_bytes=8, to=b.region, rkey=1, wr_id=0)
            for i in range(1, 20):
                a.post_send(num_bytes=8, wr_id=i, flags=SendFlags.NONE)
            done = a.take(28)
            assert done[0].status is Status.REMOTE_ACCESS_ERROR
            assert all(one.status is Status.FLUSHED for one in done[1:])
            # Each of the two queues in order; the error may come while the rest is being posted.
            assert [one.wr_id for one in done if one.wr_id < 100] == list(range(20))
            assert [one.wr_id for one in done if one.wr_id >= 100] == list(range(100, 108))
            a.post_send(num_bytes=8, wr_id=30)
            a.post_recv(8, wr_id=31)
            done = a.expect(Status.FLUSHED, Status.FLUSHED)
            assert [one.wr_id for one in done] == [30, 31]

    @pytest.mark.parametrize("num_bytes", [11, 100_000])
    def test_message_longer_than_its_recv(self, num_bytes: int) -> None:
        with self.connected(num_bytes=100_000) as (a, b):
            b.post_recv(10, wr_id=1)
            b.post_recv(10, wr_id=2)
            a.memory[:] = 1
            a.post_send(num_bytes=num_bytes)
            a.expect(Status.REMOTE_INVALID_REQUEST_ERROR)
            b.expect(Status.LOCAL_LENGTH_ERROR, Status.FLUSHED)
            assert (b.memory == 0).all()

    @pytest.mark.parametrize("retries", [0, 3])
    def test_receiver_that_is_never_ready(self, retries: int) -> None:
        with self.connected(rnr_retry=retries, min_rnr_timer_s=0.001) as (a, b):
            a.post_send(num_bytes=8)
            a.expect(Status.RNR_RETRY_EXCEEDED)
            assert a.pair.statistics()["rnr_retries"] == retries + 1
            wait_until(lambda: b.pair.state is State.ERROR, "the peer hears of it")

    @pytest.mark.parametrize("opcode", EVERY)
    @pytest.mark.parametrize("fault", ["wrong key", "one too far", "revoked key"])
    def test_local_protection(self, opcode: Opcode, fault: str) -> None:
        with self.connected(num_bytes=4096) as (a, b):
            b.post_recv(4096)
            piece = a.region.piece()
            if fault == "wrong key":
                piece = ScatterGather(piece.address, piece.length, piece.lkey ^ 1 << 17)
            elif fault == "one too far":
                piece = ScatterGather(piece.address + 1, piece.length, piece.lkey)
            else:
                a.region.close()
            b.memory[:] = 4
            request = SendRequest(
                opcode, (piece,), remote_address=b.region.address, rkey=b.region.rkey
            )
            a.pair.post_send(request)
            a.expect(Status.LOCAL_PROTECTION_ERROR)
            assert (b.memory == 4).all()
            b.expect(Status.FLUSHED)

    def test_read_into_memory_that_may_not_be_written(self) -> None:
        with self.connected() as (a, b):
            frozen = a.domain.register(bytes(64), Access.LOCAL_READ)
            request = SendRequest(
                Opcode.RDMA_READ,
                (frozen.piece(),),
                remote_address=b.region.address,
                rkey=b.region.rkey,
            )
            a.pair.post_send(request)
            a.expect(Status.LOCAL_PROTECTION_ERROR)

    def test_recv_whose_memory_was_revoked(self) -> None:
        with self.connected() as (a, b):
            b.post_recv(8)
            b.region.close()
            a.post_send(num_bytes=8)
            a.expect(Status.REMOTE_OPERATION_ERROR)
            b.expect(Status.LOCAL_PROTECTION_ERROR)

    def test_completion_queue_that_overflows_says_so(self) -> None:
        with self.connected(capacity=4) as (a, b):
            for _ in range(6):
                a.post_send(Opcode.RDMA_WRITE, num_bytes=1, to=b.region)
            taken = 0
            with pytest.raises(CompletionQueueOverflowError):
                # One at a time, and only once all six have ended.
                wait_until(lambda: a.pair.statistics()["sent_messages"] == 6, "six writes")
                while True:
                    taken += len(a.queue.wait(timeout_s=PATIENCE_S, max_completions=1))
            assert taken == 4

    def test_wait_ends_at_its_deadline(self) -> None:
        with self.connected() as (a, _), pytest.raises(CompletionTimeoutError):
            a.queue.wait(timeout_s=0.05)


class Closing(Provider):
    """Everything may be closed at any time."""

    def test_peer_that_closes_is_noticed(self) -> None:
        with self.connected() as (a, b):
            a.post_recv(8, wr_id=1)
            b.pair.close()
            [flushed] = a.expect(Status.FLUSHED)
            assert flushed.wr_id == 1
            a.post_send(num_bytes=8)
            a.expect(Status.FLUSHED)

    def test_request_under_way_to_a_peer_that_closes(self) -> None:
        with self.connected() as (a, b):
            a.post_send(num_bytes=8, wr_id=1)  # no RECV: it cannot end
            a.post_send(num_bytes=8, wr_id=2)
            wait_until(lambda: self._knows_of_retry(a), "a retry")
            b.pair.close()
            done = a.expect(Status.RETRY_EXCEEDED, Status.FLUSHED)
            assert [one.wr_id for one in done] == [1, 2]

    @staticmethod
    def _knows_of_retry(end: End) -> bool:
        assert end.queue.poll() == []
        return end.pair.statistics()["rnr_retries"] >= 1

    @pytest.mark.parametrize("state", [State.RESET, State.INIT, State.RTS, State.ERROR])
    def test_close_in_every_state(self, state: State) -> None:
        with self.connected() as (a, b):
            pair = QueuePair(a.domain, a.queue)
            if state is State.INIT:
                pair.modify(State.INIT)
                pair.post_recv(RecvRequest())
            elif state is State.RTS:
                a.post_send(Opcode.RDMA_READ, num_bytes=8, to=b.region)
                a.post_recv(8)
                pair = a.pair
            elif state is State.ERROR:
                pair.modify(State.ERROR)
            assert pair.state is state
            pair.close()
            pair.close()
            with pytest.raises(InvalidArgumentError):
                pair.post_send(SendRequest(Opcode.SEND))

    def test_reset_and_a_new_connection(self) -> None:
        with self.connected() as (a, b):
            transfer(a, b, Opcode.SEND, 100, 1)
            for end in (a, b):
                end.pair.modify(State.RESET)
                end.pair.modify(State.INIT)
                assert end.queue.poll() == []
            connect(a.pair, b.pair)
            for seed, opcode in enumerate(EVERY):
                transfer(a, b, opcode, 5000, seed)

    def test_illegal_steps_are_refused(self) -> None:
        with self.connected() as (a, b):
            pair = QueuePair(a.domain, a.queue)
            for state in (State.RTR, State.RTS):
                with pytest.raises(InvalidArgumentError):
                    pair.modify(state)
            with pytest.raises(InvalidArgumentError):
                pair.post_recv(RecvRequest())
            pair.modify(State.INIT)
            for state in (State.RTR, State.RTS):  # not connected
                with pytest.raises(InvalidArgumentError):
                    pair.modify(state)
            with pytest.raises(InvalidArgumentError):
                pair.post_send(SendRequest(Opcode.SEND))
            for state in (State.INIT, State.RTR):
                with pytest.raises(InvalidArgumentError):
                    a.pair.modify(state)
            transfer(a, b, Opcode.SEND, 10, 0)

    def test_close_ends_the_wait_of_another_thread(self) -> None:
        with self.connected() as (a, _):
            errors: list[BaseException] = []
            waits = threading.Event()

            def wait() -> None:
                waits.set()
                try:
                    a.queue.wait(timeout_s=PATIENCE_S)
                except InvalidArgumentError as error:
                    errors.append(error)

            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            waits.wait()
            a.device.close()
            thread.join(PATIENCE_S / 2)
            assert "closed" in str(errors)

    def test_program_ends_though_a_thread_waits(self) -> None:
        program = (
            "import threading\n"
            "from queue_pairs import Connected\n"
            f"a, b = Connected({self.provider!r}).__enter__()\n"
            "waits = threading.Event()\n"
            "def wait():\n"
            "    waits.set()\n"
            "    a.queue.wait(timeout_s=60)\n"
            "threading.Thread(target=wait, daemon=True).start()\n"
            "waits.wait()\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ended.returncode == 0, ended.stderr

    def test_forked_child_leaves_the_queue_pairs_to_its_parent(self) -> None:
        with self.connected() as (a, b):
            transfer(a, b, Opcode.SEND, 100, 1)
            child = os.fork()
            if child == 0:
                self._end_child(a)
            wait_until(lambda: os.waitid(os.P_PID, child, _ENDED) is not None, "the child ends")
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            transfer(a, b, Opcode.RDMA_READ, 5000, 2)
            transfer(b, a, Opcode.SEND, 5000, 3)

    @staticmethod
    def _end_child(end: End) -> NoReturn:
        """Use what was inherited, destroy it, and end."""
        refused = False
        try:
            end.post_send(num_bytes=8)
        except InvalidArgumentError as error:
            refused = "forked" in str(error)
        end.pair.close()
        end.device.close()
        for name in list(vars(end)):
            delattr(end, name)
        gc.collect()
        os._exit(0 if refused else 1)

    def test_device_counts_what_its_queue_pairs_moved(self) -> None:
        with self.connected(num_bytes=1000) as (a, b):
            assert a.device.statistics()["sent_messages"] == 0
            for num_bytes in (0, 1, 999):
                transfer(a, b, Opcode.SEND, num_bytes, 0)
            QueuePair(a.domain, a.queue).close()
            counted = a.device.statistics(), b.device.statistics()
            assert (counted[0]["sent_messages"], counted[0]["sent_bytes"]) == (3, 1000)
            assert (counted[1]["received_messages"], counted[1]["received_bytes"]) == (3, 1000)
            assert counted[0] == a.pair.statistics()
            a.pair.close()
            assert a.device.statistics()["sent_bytes"] == 1000

    def test_attributes_that_cannot_change_stay(self) -> None:
        with self.connected() as (a, _):
            before = a.pair.attributes
            for changes in ({"timeout_s": 9.0}, {"max_send_wr": 1}):  # in RTS; a size
                with pytest.raises(InvalidArgumentError):
                    a.pair.modify(State.RTS, **changes)
            assert a.pair.attributes == before
            pair = QueuePair(a.domain, a.queue)
            pair.modify(State.INIT, timeout_s=9.0, rnr_retry=0)
            assert (pair.attributes.timeout_s, pair.attributes.rnr_retry) == (9.0, 0)

    @pytest.mark.parametrize("opcode", [Opcode.RECV, 7, 256, -1])
    def test_opcode_that_cannot_be_sent_is_refused(self, opcode: Opcode) -> None:
        with self.connected() as (a, _):
            with pytest.raises(InvalidArgumentError, match="opcode"):
                a.pair.post_send(SendRequest(opcode))
            assert a.pair.state is State.RTS

    def test_device_closes_everything_on_it(self) -> None:
        with self.connected() as (a, _):
            other = CompletionQueue(a.device, 4)
            domain = ProtectionDomain(a.device)
            QueuePair(domain, other).modify(State.INIT)
            a.device.close()
            for use in (other.poll, lambda: domain.register(bytearray(1))):
                with pytest.raises(InvalidArgumentError):
                    use()
            assert a.pair.state is State.RESET


class Conformance(Transfers, Pressure, Errors, Closing):
    """All of it."""
