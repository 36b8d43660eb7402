"""What a communicator counted, as plain numbers that can be logged, subtracted and written as JSON.

Everything counts what this rank sent, from the communicator's first connection on, and never goes
back. A queue pair of `hccl_py.transport.verbs` counts for itself, see its `statistics`.
"""

from typing import TypedDict

from hccl_py.transport import _core

DEVICES = ("shm", "tcp", "provider")
"""Shared memory, TCP connections, and the lanes of a provider in Python (HCCL_TRANSPORT)."""


class DeviceStatistics(TypedDict):
    """Counters of all lanes over one kind of transport.

    Keys:
        messages: sent; a payload that several readers share counts once for each.
        bytes: of their payload.
        stalls: messages that could not leave at once.
        retries: messages sent again, on another connection than the one that broke (tcp).
        reconnects: connections that took the place of a broken one (tcp).
    """

    messages: int
    bytes: int
    stalls: int
    retries: int
    reconnects: int


class PathStatistics(TypedDict):
    """Counters of one connection of one lane, through all its reconnects.

    Keys:
        peer: rank at the other end.
        lane: which lane to that peer; the last one is for send and recv.
        path: interface, addresses and number of the connection.
        connected: whether it stands now.
        messages, bytes, stalls, retries, reconnects: see `DeviceStatistics`.
        checksum_errors: frames that arrived damaged (HCCL_CHECKSUM=1).
        bytes_per_second: measured while it was busy; 0 if it has not been long enough.
    """

    peer: int
    lane: int
    path: str
    connected: bool
    messages: int
    bytes: int
    stalls: int
    retries: int
    reconnects: int
    checksum_errors: int
    bytes_per_second: float


class Statistics(TypedDict):
    """All counters of a communicator.

    Keys:
        collectives: that this rank finished without error.
        in_place: of these, the ones whose peers read registered memory where it lies.
        sleeps: times that a waiting thread went to sleep in the kernel.
        doorbells: sleeping peers of this node that were woken.
        devices: by name, all of `DEVICES`.
        paths: one for each connection to ranks of other nodes.
    """

    collectives: int
    in_place: int
    sleeps: int
    doorbells: int
    devices: dict[str, DeviceStatistics]
    paths: list[PathStatistics]


def read_statistics(core: _core.Communicator) -> Statistics:
    """Read all counters of an engine. Any thread may, at any time."""
    counted = core.statistics()
    paths: list[PathStatistics] = core.path_statistics()
    devices: dict[str, DeviceStatistics] = {
        name: {
            "messages": counted[name]["messages"],
            "bytes": counted[name]["bytes"],
            "stalls": counted[name]["stalls"],
            "retries": 0,
            "reconnects": 0,
        }
        for name in DEVICES
    }
    devices["tcp"]["retries"] = sum(path["retries"] for path in paths)
    devices["tcp"]["reconnects"] = sum(path["reconnects"] for path in paths)
    return {
        "collectives": counted["collectives"],
        "in_place": counted["in_place"],
        "sleeps": counted["sleeps"],
        "doorbells": counted["doorbells"],
        "devices": devices,
        "paths": paths,
    }
