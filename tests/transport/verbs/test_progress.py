"""Queue pairs and communicators are driven by the one progress thread of the process."""

from __future__ import annotations

import os

from queue_pairs import Connected
from thread_ranks import ThreadRanks, wait_until

from hccl_py.transport.progress import progress_thread


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
