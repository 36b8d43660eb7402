"""Every provider under the one conformance suite: the semantics of a reliable connection."""

import os
import threading

import numpy as np
import pytest
from conformance_errors import Closing, Errors
from conformance_transfers import Pressure, Transfers, two_gigabytes
from queue_pairs import ALL, Connected
from thread_ranks import ThreadRanks, wait_until

from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.progress import progress_thread
from hccl_py.transport.verbs import Opcode, SendRequest, Status
from hccl_py.transport.verbs import device as verbs_device

__all__ = ["two_gigabytes"]


class Conformance(Transfers, Pressure, Errors, Closing):
    """A provider passes by a class that derives from this and names it."""


class TestLoopback(Conformance):
    provider = "loopback"


class TestShm(Conformance):
    provider = "shm"

    def test_region_that_is_read_where_it_lies_stays_until_it_was_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        thread = _core.ProgressThread()
        thread.stop()  # nothing moves unless this thread polls
        monkeypatch.setattr(verbs_device, "progress_thread", lambda: thread)
        num_bytes = 1 << 16
        memory = _core.Region(arena_of_this_process(), num_bytes).array()
        memory[:] = 7
        with self.connected(num_bytes=num_bytes) as (a, b):
            region = a.domain.register(memory, ALL)
            b.pair.post_send(
                SendRequest(
                    Opcode.RDMA_READ,
                    (b.region.piece(),),
                    remote_address=region.address,
                    rkey=region.rkey,
                )
            )

            def close_and_use_again() -> None:
                region.close()
                memory[:] = 9

            assert a.queue.poll() == []  # answers
            closer = threading.Thread(target=close_and_use_again)
            closer.start()
            closer.join(0.2)
            b.expect(Status.SUCCESS)
            assert np.array_equal(b.memory, np.full(num_bytes, 7, np.uint8))
            closer.join()


class TestTcp(Conformance):
    provider = "tcp"


class TestZmq(Conformance):
    provider = "zmq"


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_devices_share_one_thread() -> None:
    with Connected("loopback"):
        before = num_threads()
        with Connected("loopback"), Connected("shm"), Connected("tcp"):
            # One that was joined before may end a little later.
            wait_until(lambda: num_threads() <= before, "no thread more")


def test_communicators_use_the_thread_of_the_devices() -> None:
    with Connected("loopback"), ThreadRanks("aa") as ranks:
        before = num_threads()
        for work in [ranks.run(lambda comm: comm.nonblocking.barrier()) for _ in range(3)]:
            for one in work:
                one.wait()
        wait_until(lambda: num_threads() <= before, "no thread more")
    assert progress_thread() is progress_thread()
