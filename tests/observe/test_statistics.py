"""What is counted, on three ranks of which two share a node."""

import json
import os
import time
from typing import Any

import numpy as np
import pytest
from thread_ranks import ThreadRanks, ranks_on, wait_until

from hccl_py.communicator import Communicator
from hccl_py.observe.statistics import DEVICES, DeviceStatistics, PathStatistics, Statistics

pytestmark = pytest.mark.skipif(
    os.environ.get("HCCL_TRANSPORT", "auto") != "auto", reason="counts what shm and tcp carry each"
)

ranks = ranks_on("aab")


def floats(count: int) -> Any:
    return np.zeros(count, dtype=np.float32)


def sent(after: Statistics, before: Statistics, device: str) -> tuple[int, int]:
    new, old = after["devices"][device], before["devices"][device]
    return new["messages"] - old["messages"], new["bytes"] - old["bytes"]


def exchange(comm: Communicator) -> tuple[Statistics, Statistics]:
    """Rank 0 sends 100 bytes to its neighbour and 200 to the other node."""
    comm.barrier()
    before = comm.statistics()
    if comm.rank == 0:
        comm.send(floats(25), 1)
        comm.send(floats(50), 2)
        # A first message may still wait for its lane when it is sent.
        wait_until(lambda: sent(comm.statistics(), before, "tcp")[0] > 0, "it leaves")
    else:
        comm.recv(floats(25 * comm.rank), 0)
    return before, comm.statistics()


def test_statistics_count_what_a_rank_sends_by_device(ranks: ThreadRanks) -> None:
    (before, after), *receivers = ranks.run(exchange)
    assert sent(after, before, "shm") == (1, 100)
    assert sent(after, before, "tcp") == (1, 200)
    assert sent(after, before, "provider") == (0, 0)
    for before, after in receivers:
        assert [sent(after, before, device)[1] for device in DEVICES] == [0] * len(DEVICES)
        assert after["collectives"] == before["collectives"]


def test_statistics_count_collectives(ranks: ThreadRanks) -> None:
    def count(comm: Communicator) -> int:
        before = comm.statistics()["collectives"]
        for _ in range(7):
            comm.all_reduce(floats(1))
        return comm.statistics()["collectives"] - before

    assert ranks.run(count) == [7] * 3


def test_statistics_are_as_documented_and_fit_for_a_log(ranks: ThreadRanks) -> None:
    counted = ranks.communicators[0].statistics()
    assert counted.keys() == Statistics.__annotations__.keys()
    assert tuple(counted["devices"]) == DEVICES
    for device in counted["devices"].values():
        assert device.keys() == DeviceStatistics.__annotations__.keys()
    for path in counted["paths"]:
        assert path.keys() == PathStatistics.__annotations__.keys()
    assert json.loads(json.dumps(counted)) == counted


def reduce_late(comm: Communicator, others: list[Communicator], delay_s: float) -> Statistics:
    """Come later than `others` to every reduction, if there are any."""

    def have_come() -> bool:
        return all(other._state.core.sequence() % 2 == 0 for other in others)

    for _ in range(4):
        comm.barrier()
        if others:
            wait_until(have_come, "they come")
            time.sleep(delay_s)
        comm.all_reduce(floats(1000))
    return comm.statistics()


@pytest.mark.parametrize("late_rank", [0, 1, 2])
def test_statistics_blame_the_rank_that_comes_late(late_rank: int) -> None:
    delay_s = 0.05
    with ThreadRanks("aab") as three:
        others = [comm for comm in three.communicators if comm.rank != late_rank]
        counted = three.run(
            lambda comm: reduce_late(comm, others if comm.rank == late_rank else [], delay_s)
        )
    for rank, one in enumerate(counted):
        reduces, peers = one["calls"]["all_reduce"], one["peers"]
        assert reduces["calls"] == one["calls"]["barrier"]["calls"] == 4
        assert sum(peer["waited_s"] for peer in peers) == pytest.approx(one["waiting_s"])
        assert peers[rank] == {"waited_s": 0.0, "times_last": 0}
        if rank == late_rank:
            continue
        assert peers[late_rank]["waited_s"] > 4 * delay_s * 0.9
        assert peers[late_rank]["times_last"] >= 2  # another may also wait for a core
        assert reduces["waiting_s"] > 4 * delay_s * 0.9
        total_s = [call["waiting_s"] for call in one["calls"].values()]
        assert one["waiting_s"] == pytest.approx(sum(total_s))


def test_statistics_blame_nobody_if_none_is_late() -> None:
    with Communicator(rank=0, world_size=1) as alone:
        for _ in range(10):
            alone.all_reduce(floats(1000))
        counted = alone.statistics()
    assert counted["waiting_s"] == 0
    assert counted["calls"]["all_reduce"]["moving_s"] > 0
    # Of several ranks one is always the last, if only by a moment: no second of it counts twice.
    with ThreadRanks("aab") as three:
        began = time.monotonic()
        everyone = three.run(lambda comm: reduce_late(comm, [], 0.0))
        elapsed_s = time.monotonic() - began
    for one in everyone:
        assert one["waiting_s"] + one["moving_s"] <= elapsed_s
