"""What a communicator counted, as plain numbers that can be logged, subtracted and written as JSON.

Everything counts what this rank sent, from the communicator's first connection on, and never
decreases. A queue pair of `hccl_py.transport.verbs` counts for itself, see its `statistics`.
"""

from typing import TypedDict, cast

from hccl_py.fingerprint import NAMES
from hccl_py.transport import _core

TRANSFERS = ("send", "recv")
_FIRST_TRANSFER = 16  # kind_of_send in csrc/statistics.h; below, the numbers of collectives

DEVICES = ("shm", "tcp", "verbs", "provider")
"""Shared memory, TCP, queue pairs, and the lanes of a provider in Python (HCCL_TRANSPORT)."""


class DeviceStatistics(TypedDict):
    """Counters of all lanes over one kind of transport.

    Keys:
        messages: sent; a payload that several readers share counts once for each.
        bytes: of their payload.
        stalls: messages that could not leave at once.
        retries: messages sent again, because a connection broke (tcp) or because the peer had no
            RECV posted (verbs).
        reconnects: connections that took the place of a broken one (tcp).
    """

    messages: int
    bytes: int
    stalls: int
    retries: int
    reconnects: int


class PathStatistics(DeviceStatistics):
    """Counters of one connection of one lane, through all its reconnects.

    Keys:
        peer: rank at the other end.
        lane: which lane to that peer; the last one is for send and recv.
        path: interface, addresses and number of the connection.
        connected: whether it stands now.
        checksum_errors: frames that arrived damaged (HCCL_CHECKSUM=1).
        bytes_per_second: measured while it was busy; 0 if it has not been long enough.
    """

    peer: int
    lane: int
    path: str
    connected: bool
    checksum_errors: int
    bytes_per_second: float


class CallStatistics(TypedDict):
    """How long all calls of one kind took, from their start to their end.

    A wait counts as waiting for late ranks until the first message of the rank that held this one
    up has arrived. Waits of about a microsecond and less are not seen. For `send` and `recv` it is
    the time until the other side had made its call.

    Keys:
        calls: that ended without error.
        waiting_s: for late ranks.
        moving_s: the rest: moving and reducing data.
    """

    calls: int
    waiting_s: float
    moving_s: float


class PeerStatistics(TypedDict):
    """How late one rank was for this rank's collectives, over any number of hops.

    Keys:
        waited_s: how long this rank waited for it.
        times_last: in how many collectives it was the one waited for longest.
    """

    waited_s: float
    times_last: int


class Statistics(TypedDict):
    """All counters of a communicator.

    Keys:
        collectives: that this rank finished without error.
        rendezvous: of these, the ones with messages that were read or written in registered memory.
        sleeps: times that a waiting thread went to sleep in the kernel.
        doorbells: sleeping peers of this node that were woken.
        waiting_s: seconds of its collectives that this rank waited for late ranks.
        moving_s: the other seconds of them.
        calls: by kind of call, `CallStatistics`; only kinds that were called.
        peers: by rank, `PeerStatistics`; of this rank itself zeros.
        devices: by name, all of `DEVICES`.
        paths: one for each connection to ranks of other nodes.
    """

    collectives: int
    rendezvous: int
    sleeps: int
    doorbells: int
    waiting_s: float
    moving_s: float
    calls: dict[str, CallStatistics]
    peers: list[PeerStatistics]
    devices: dict[str, DeviceStatistics]
    paths: list[PathStatistics]


def read_statistics(core: _core.Communicator) -> Statistics:
    """Read all counters of an engine. Any thread may, at any time."""
    counted = core.statistics()
    paths = core.path_statistics()
    devices = {name: {"retries": 0, **counted.pop(name), "reconnects": 0} for name in DEVICES}
    for key in ("retries", "reconnects"):
        devices["tcp"][key] += sum(path[key] for path in paths)
    calls = _calls(counted["calls"])
    collectives = [one for name, one in calls.items() if name not in TRANSFERS]
    peers = [
        {"waited_s": waited_ns / 1e9, "times_last": times} for waited_ns, times in counted["peers"]
    ]
    read = {
        **counted,
        "waiting_s": sum(one["waiting_s"] for one in collectives),
        "moving_s": sum(one["moving_s"] for one in collectives),
        "calls": calls,
        "peers": peers,
        "devices": devices,
        "paths": paths,
    }
    return cast(Statistics, read)


def _calls(counted: list[tuple[int, int, int]]) -> dict[str, CallStatistics]:
    transfers = zip(TRANSFERS, counted[_FIRST_TRANSFER:], strict=True)
    named = [*zip(NAMES, counted, strict=False), *transfers]
    return {
        name: {"calls": calls, "waiting_s": waiting_ns / 1e9, "moving_s": moving_ns / 1e9}
        for name, (calls, waiting_ns, moving_ns) in named
        if calls
    }
