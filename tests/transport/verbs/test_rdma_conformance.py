"""An RDMA device under the conformance suite of all providers.

It needs a device: `.ci/roce` runs this in a virtual machine with soft-RoCE. Where a device does
otherwise than the software's queue pairs, the test stands here again with what the device does.
"""

import threading

import msgpack
import pytest
from conformance_errors import Closing, Errors
from conformance_transfers import EVERY, RDMA, Pressure, Transfers, two_gigabytes
from thread_ranks import wait_until

from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.providers.verbs.devices import ACTIVE, list_ports
from hccl_py.transport.verbs import (
    CompletionQueue,
    Device,
    Opcode,
    ProtectionDomain,
    QueuePair,
    ScatterGather,
    SendRequest,
    State,
    Status,
)

__all__ = ["two_gigabytes"]

pytestmark = [
    pytest.mark.skipif(
        not any(port.state == ACTIVE for port in list_ports()),
        reason="no active RDMA port here: .ci/roce makes one in a virtual machine",
    ),
    pytest.mark.timeout(300),
]
SOON = {"retry_count": 2, "timeout_s": 0.06}
"""A peer that is silent is given up at once. 7 retries are for ever on soft-RoCE."""


class TestRdma(Transfers, Pressure, Errors, Closing):
    provider = "verbs"
    small_mtu = 256

    @pytest.mark.parametrize("opcode", RDMA)
    @pytest.mark.parametrize("fault", ["wrong key", "revoked key", "one too far"])
    def test_remote_access_is_rejected(self, opcode: Opcode, fault: str) -> None:
        """The peer's RECV ends too, with the same error or flushed."""
        with self.connected(num_bytes=4096, **SOON) as (a, b):
            a.memory[:] = 3
            b.memory[:] = 4
            b.post_recv(0, wr_id=50)
            offset, rkey = 0, b.region.rkey
            if fault == "wrong key":
                rkey ^= 1 << 20
            elif fault == "revoked key":
                b.region.close()
            else:
                offset = 1
            request = SendRequest(
                opcode,
                (a.region.piece(),),
                wr_id=8,
                remote_address=b.region.address + offset,
                rkey=rkey,
            )
            a.pair.post_send(request)
            a.post_send(num_bytes=1, wr_id=9)
            assert [one.wr_id for one in a.take(2)] == [8, 9]
            assert "IBV_WC_REM_ACCESS_ERR" in a.pair.reason or "(ibv_wc_status 10," in a.pair.reason
            [ended] = b.take(1)
            assert (ended.wr_id, ended.status is Status.SUCCESS) == (50, False)
            assert (a.memory == 3).all()
            assert (b.memory == 4).all()
            assert a.pair.state is State.ERROR

    @pytest.mark.parametrize("num_bytes", [11, 100_000])
    def test_message_longer_than_its_recv(self, num_bytes: int) -> None:
        """Devices differ in the status, and may write the RECV's own memory, nothing beside it."""
        with self.connected(num_bytes=100_000, **SOON) as (a, b):
            b.post_recv(10, wr_id=1)
            b.post_recv(10, wr_id=2)
            a.memory[:] = 1
            a.post_send(num_bytes=num_bytes)
            rejected = Status.REMOTE_INVALID_REQUEST_ERROR, Status.REMOTE_OPERATION_ERROR
            assert a.take_one().status in rejected
            assert all(one.status is not Status.SUCCESS for one in b.take(2))
            assert (b.memory[10:] == 0).all()

    @pytest.mark.parametrize("retries", [0, 3])
    def test_receiver_that_is_never_ready(self, retries: int) -> None:
        """Only the sender is in ERROR."""
        with self.connected(rnr_retry=retries, min_rnr_timer_s=0.001) as (a, b):
            a.post_send(num_bytes=8)
            a.expect(Status.RNR_RETRY_EXCEEDED)
            assert (a.pair.state, b.pair.state) == (State.ERROR, State.RTS)

    @pytest.mark.parametrize("opcode", EVERY)
    @pytest.mark.parametrize("fault", ["wrong key", "one too far", "revoked key"])
    def test_local_protection(self, opcode: Opcode, fault: str) -> None:
        """Devices differ in the status, and the peer hears nothing."""
        with self.connected(num_bytes=4096, **SOON) as (a, b):
            b.post_recv(4096)
            piece = a.region.piece()
            if fault == "wrong key":
                piece = ScatterGather(piece.address, piece.length, piece.lkey ^ 1 << 17)
            elif fault == "one too far":
                piece = ScatterGather(piece.address + 1, piece.length, piece.lkey)
            else:
                a.region.close()
            b.memory[:] = 4
            a.pair.post_send(
                SendRequest(opcode, (piece,), remote_address=b.region.address, rkey=b.region.rkey)
            )
            assert a.take_one().status is not Status.SUCCESS
            assert a.pair.state is State.ERROR
            assert (b.memory == 4).all()

    def test_completion_queue_that_overflows_says_so(self) -> None:
        """It does not: what finds no room waits in the device's queue."""
        with self.connected(capacity=4) as (a, b):
            for i in range(6):
                a.post_send(Opcode.RDMA_WRITE, num_bytes=1, to=b.region, wr_id=i)
            assert [one.wr_id for one in a.expect(*[Status.SUCCESS] * 6)] == list(range(6))

    def test_peer_that_closes_is_noticed(self) -> None:
        """By the next request."""
        with self.connected(**SOON) as (a, b):
            a.post_recv(8, wr_id=1)
            b.pair.close()
            a.post_send(num_bytes=8, wr_id=2)
            a.expect(Status.RETRY_EXCEEDED, Status.FLUSHED)
            a.post_send(num_bytes=8)
            a.expect(Status.FLUSHED)

    @pytest.mark.parametrize("opcode", RDMA)
    def test_key_of_another_protection_domain_is_rejected(self, opcode: Opcode) -> None:
        """Each communicator has a domain of its own: its keys are worth nothing to the others."""
        with self.connected(num_bytes=4096, **SOON) as (a, b):
            b.memory[:] = 4
            other = self.connected(num_bytes=4096)
            with other as (_, of_other):
                of_other.memory[:] = 5
                b.post_recv(0)
                a.post_send(opcode, num_bytes=4096, to=of_other.region)
                assert a.take_one().status is Status.REMOTE_ACCESS_ERROR
                assert (of_other.memory == 5).all()
            assert (a.memory == 0).all()

    def test_peer_that_cannot_prove_itself_leaves_the_queue_pair_in_init(self) -> None:
        """It knows the address, and not the secret that is in it."""
        with Device(self.provider) as device:
            domain, queue = ProtectionDomain(device), CompletionQueue(device, capacity=4)
            pairs = [QueuePair(domain, queue) for _ in range(2)]
            for pair in pairs:
                pair.modify(State.INIT)
            addresses = [pair.address for pair in pairs]
            forged = [msgpack.unpackb(address) for address in addresses]
            errors: list[BaseException] = []

            def connect(me: int) -> None:
                version, provider, endpoint = forged[1 - me]
                _, *rest = msgpack.unpackb(endpoint)
                stranger = msgpack.packb([bytes([me]) * 32, *rest])
                address = msgpack.packb([version, provider, stranger])
                try:
                    pairs[me].connect(address, timeout_s=2)
                except BootstrapError as error:
                    errors.append(error)

            threads = [threading.Thread(target=connect, args=[me]) for me in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(errors) == 2
            assert [pair.state for pair in pairs] == [State.INIT] * 2

    def test_limits_are_the_devices(self) -> None:
        with pytest.raises(
            InvalidArgumentError, match=r"max_send_wr \+ max_recv_wr is \d+, device"
        ):
            self.connected(max_send_wr=16384, max_recv_wr=16384)

    def test_error_is_seen_before_a_completion_is_taken(self) -> None:
        with self.connected(**SOON) as (a, _):
            a.post_send(Opcode.RDMA_WRITE, num_bytes=8, rkey=1)
            wait_until(lambda: a.pair.state is State.ERROR, "the device moves it to ERROR")
