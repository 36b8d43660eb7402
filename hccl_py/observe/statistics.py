"""A communicator's counters, as plain numbers that can be logged, subtracted and written as JSON.

All counters are of this rank's own sends, from the communicator's first connection on, and never
decrease. A queue pair of `hccl_py.transport.verbs` has its own counters, see its `statistics`.
"""

from typing import TypedDict, cast

from hccl_py.fingerprint import NAMES
from hccl_py.transport import _core

TRANSFERS = ("send", "recv")
_FIRST_TRANSFER = 16  # kind_of_send in csrc/base/statistics.h; below, the numbers of collectives

DEVICES = ("shm", "tcp", "verbs", "provider")
"""Shared memory, TCP, queue pairs, and the lanes of a provider in Python (HCCL_TRANSPORT)."""


class DeviceStatistics(TypedDict):
    """Counters of all lanes over one kind of transport."""

    messages: int  # sent; a payload with several readers counts once per reader
    bytes: int  # of their payload
    stalls: int  # messages that could not leave at once
    retries: int  # resent: a connection broke (tcp), or a device failed (verbs)
    reconnects: int  # connections that replaced a broken one (tcp)


class PathStatistics(DeviceStatistics):
    """Counters of one connection of one lane, through all its reconnects."""

    peer: int  # rank at the other end
    lane: int  # which lane to that peer; the last one is for send and recv
    path: str  # interface, addresses and number of the connection
    connected: bool | None  # whether it is up; None: no message has needed it yet
    checksum_errors: int  # frames that arrived damaged (HCCL_CHECKSUM=1)
    bytes_per_second: float  # measured while busy; 0 before there is enough data


class CallStatistics(TypedDict):
    """How long all calls of one kind took, from their start to their end.

    A wait counts as waiting for late ranks until the first message of the rank that it waits for
    arrives. Waits of up to about a microsecond are not counted. For `send` and `recv` it is the
    time until the peer made its call.
    """

    calls: int  # that ended without error
    waiting_s: float  # for late ranks
    moving_s: float  # the rest: moving and reducing data
    elements: int  # of all blocks of each call; 0 for blocks of any sizes


class PeerStatistics(TypedDict):
    """Lateness of one rank in this rank's collectives, over any number of hops."""

    waited_s: float  # how long this rank waited for it
    times_last: int  # collectives in which this rank waited for it longest


class Statistics(TypedDict):
    """All counters of a communicator."""

    collectives: int  # that this rank finished without error
    rendezvous: int  # of these, the ones with messages read or written in registered memory
    single_copies: int  # messages that the kernel copied once, between the memory of two ranks
    slot_copies: int  # payloads that this rank copied into or out of slots of queue pairs
    remote_reads: int  # payloads that it read out of a peer's registered memory by RDMA
    sleeps: int  # times that a waiting thread went to sleep in the kernel
    doorbells: int  # times that a sleeping peer of this node was woken
    waiting_s: float  # seconds of its collectives that this rank waited for late ranks
    moving_s: float  # the other seconds of its collectives
    calls: dict[str, CallStatistics]  # by kind of call; only kinds that were called
    peers: list[PeerStatistics]  # by rank; of this rank itself zeros
    devices: dict[str, DeviceStatistics]  # by name, all of `DEVICES`
    paths: list[PathStatistics]  # one for each connection to ranks of other nodes


def read_statistics(core: _core.Communicator) -> Statistics:
    """Read all counters of an engine. Any thread may, at any time."""
    counted = core.statistics()
    paths = core.path_statistics()
    devices = {name: {"retries": 0, **counted.pop(name), "reconnects": 0} for name in DEVICES}
    for key in ("retries", "reconnects"):
        devices["tcp"][key] += sum(path[key] for path in paths)
    transfers = zip(TRANSFERS, counted["calls"][_FIRST_TRANSFER:], strict=True)
    named = [*zip(NAMES, counted["calls"], strict=False), *transfers]
    calls = {
        name: {
            "calls": count,
            "waiting_s": waiting_ns / 1e9,
            "moving_s": moving_ns / 1e9,
            "elements": elements,
        }
        for name, (count, waiting_ns, moving_ns, elements) in named
        if count
    }
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
