"""What every provider promises of requests that go wrong, and of closing at any time."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conformance_transfers import EVERY, RDMA, Provider, transfer
from queue_pairs import ALL, PATIENCE_S
from thread_ranks import wait_until

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.verbs import (
    Access,
    CompletionQueueOverflowError,
    CompletionTimeoutError,
    Opcode,
    QueuePair,
    RecvRequest,
    ScatterGather,
    SendFlags,
    SendRequest,
    State,
    Status,
)

_ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG


class Errors(Provider):
    """What goes wrong ends the queue pair, touches nothing, and is named."""

    @pytest.mark.parametrize("opcode", RDMA)
    @pytest.mark.parametrize(
        "fault", ["wrong key", "revoked key", "one too far", "one before", "wraps", "no access"]
    )
    def test_remote_access_is_rejected(self, opcode: Opcode, fault: str) -> None:
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
            assert a.pair.statistics()["retries"] == retries + 1
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

    def test_completion_queue_that_overflows_says_so(self) -> None:
        with self.connected(capacity=4) as (a, b):
            for _ in range(6):
                a.post_send(Opcode.RDMA_WRITE, num_bytes=1, to=b.region)
            taken = 0
            with pytest.raises(CompletionQueueOverflowError):
                # One at a time, and only once all six have ended.
                wait_until(lambda: a.pair.statistics()["messages"] == 6, "six writes")
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

    def test_illegal_steps_are_rejected(self) -> None:
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
            thread.join(PATIENCE_S)
            assert "closed" in str(errors)

    def test_forked_child_leaves_the_queue_pairs_to_its_parent(self) -> None:
        with self.connected() as (a, b):
            transfer(a, b, Opcode.SEND, 100, 1)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    a.post_send(num_bytes=8)
                except InvalidArgumentError as error:
                    code = 0 if "forked" in str(error) else 2
                    a.close()
                finally:
                    os._exit(code)
            wait_until(lambda: os.waitid(os.P_PID, child, _ENDED) is not None, "the child ends")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            transfer(a, b, Opcode.RDMA_READ, 5000, 2)
            transfer(b, a, Opcode.SEND, 5000, 3)

    def test_program_ends_though_a_thread_waits(self) -> None:
        program = (
            "import threading\n"
            "from queue_pairs import Connected\n"
            f"a, b = Connected({self.provider!r}).__enter__()\n"
            "waits = threading.Event()\n"
            "def wait():\n"
            "    waits.set()\n"
            "    a.queue.wait(timeout_s=1000)\n"
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
