"""The way from this node to another one: is there one, do full-size packets pass, how fast is it.

What happens to a connection tells faults apart:

| seen | outcome |
|---|---|
| it connects, both sides prove the secret, 128 KB pass | good |
| no answer at all, though the link knows the host | dropped: a firewall's DROP |
| refused, or an ICMP error at once | rejected: a firewall's REJECT, for the port is listened on |
| nobody on the link owns the address | dead: cable, switch, VLAN |
| the kernel knows no way | no route |
| it connects, and what fills whole packets never comes | stalled: packets over some size vanish |
"""

import contextlib
import errno
import os
import socket
import statistics
import time
from typing import Literal, TypedDict

from hccl_py.launcher.preflight.node.mtu import largest_packet
from hccl_py.launcher.preflight.node.wire import BULK, BULK_SIZE, PING, StrangerError, Wire
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.network.interfaces import address_family

# The kernel needs 3 s to find that nobody on the link owns an address.
CONNECT_S = 4.0
STALL_S = 3.0
MEASURE_S = 10.0
_AT_ONCE_S = 0.9  # an ICMP error comes within a round trip
_STALL_BYTES = 128 << 10
_MOST_BYTES = 32 << 20
_PIECE = os.urandom(1 << 20)  # a tunnel might compress zeros
_PINGS = 30
_LOOKS, _LOOK_S, _MOST_S = 5, 0.05, 1.0

Outcome = Literal[
    "good", "dropped", "rejected", "dead", "no route", "stalled", "stranger", "broken"
]


class Target(TypedDict):
    """What to dial: a port of a node, for a path of the ranks or, with None, the master port.

    `interface` and `source` are where the connection starts; "" leaves that to the kernel.
    """

    node: int
    path: int | None
    interface: str
    source: str
    host: str
    port: int


class PairResult(TypedDict):
    """What dialling a target brought.

    `detail` is the error in words. `mtu` and `largest_packet` are bytes, 0 if unknown. `gb_per_s`
    has one number for each look. Empty and 0: not measured.
    """

    target: Target
    outcome: Outcome
    detail: str
    mtu: int
    largest_packet: int
    latency_us: float
    gb_per_s: list[float]


def probe(target: Target, secret: bytes) -> PairResult:
    """Find out whether there is a way; takes up to about 10 s where there is none."""
    result = _result(target)
    began_s = time.monotonic()
    try:
        with contextlib.closing(_dial(target)) as connection:
            wire = Wire(connection, Deadline(CONNECT_S))
            wire.prove_as_client(secret)
            if target["path"] is not None and not _passes(wire):
                result["outcome"] = "stalled"
        if result["outcome"] == "stalled":
            # What stalled is still queued on that connection, so a new one looks for the size.
            with contextlib.closing(_dial(target)) as connection:
                wire = Wire(connection, Deadline(CONNECT_S))
                wire.prove_as_client(secret)
                result["mtu"], result["largest_packet"] = largest_packet(wire, connection)
    except (OSError, StrangerError) as error:
        if result["outcome"] == "good":
            elapsed_s = time.monotonic() - began_s
            result["outcome"] = _outcome(error, target["host"], elapsed_s)
            result["detail"] = getattr(error, "strerror", None) or str(error)
    return result


def measure(target: Target, secret: bytes) -> PairResult:
    """Measure latency and bandwidth to a target that is known to answer; takes about 0.5 s."""
    result = _result(target)
    with contextlib.suppress(OSError, StrangerError), contextlib.closing(_dial(target)) as dialled:
        wire = Wire(dialled, Deadline(MEASURE_S))
        wire.prove_as_client(secret)
        round_trips_s = [_time_ping(wire) for _ in range(_PINGS)]
        result["latency_us"] = statistics.median(round_trips_s) * 1e6
        began_s = time.monotonic()
        _bulk_s(wire, _STALL_BYTES)
        num_bytes = _STALL_BYTES
        for look in range(-1, _LOOKS):  # the first look only finds how much to send
            took_s = _bulk_s(wire, num_bytes)
            if look >= 0:
                result["gb_per_s"].append(num_bytes / took_s / 1e9)
            else:
                num_bytes = max(_STALL_BYTES, min(_MOST_BYTES, int(num_bytes * _LOOK_S / took_s)))
            if result["gb_per_s"] and time.monotonic() - began_s > _MOST_S:
                break
    return result


def _result(target: Target) -> PairResult:
    return PairResult(
        target=target,
        outcome="good",
        detail="",
        mtu=0,
        largest_packet=0,
        latency_us=0.0,
        gb_per_s=[],
    )


def _dial(target: Target) -> socket.socket:
    if not target["source"]:
        return socket.create_connection((target["host"], target["port"]), CONNECT_S)
    dialled = socket.socket(address_family(target["host"]), socket.SOCK_STREAM)
    try:
        dialled.bind((target["source"], 0))
        if target["interface"]:
            # As ranks do it where the kernel lets this user: two cards may share a network.
            name = target["interface"].encode() + b"\0"
            with contextlib.suppress(PermissionError):
                dialled.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
        dialled.settimeout(CONNECT_S)
        dialled.connect((target["host"], target["port"]))
    except BaseException:
        dialled.close()
        raise
    return dialled


def _passes(wire: Wire) -> bool:
    """Say whether packets of full size come through."""
    wire.deadline = Deadline(STALL_S)
    try:
        _bulk_s(wire, _STALL_BYTES)
    except TimeoutError:
        return False
    return True


def _bulk_s(wire: Wire, num_bytes: int) -> float:
    """Send so many bytes, wait until they have come, and return the seconds."""
    began_s = time.perf_counter()
    wire.send(BULK + BULK_SIZE.pack(num_bytes))
    for first in range(0, num_bytes, len(_PIECE)):
        wire.send(memoryview(_PIECE)[: num_bytes - first])
    if wire.receive(1) != BULK:
        raise ConnectionError("it answered another request")
    return time.perf_counter() - began_s


def _time_ping(wire: Wire) -> float:
    began_s = time.perf_counter()
    wire.send(PING)
    wire.receive(1)
    return time.perf_counter() - began_s


def _outcome(error: Exception, host: str, elapsed_s: float) -> Outcome:
    if isinstance(error, StrangerError):
        return "stranger"
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, TimeoutError):
        return "dead" if _nobody_on_link(host) else "dropped"
    if code == errno.EHOSTUNREACH:
        return "dead" if elapsed_s > _AT_ONCE_S or _nobody_on_link(host) else "rejected"
    if code in (errno.ECONNREFUSED, errno.EACCES, errno.EPERM):
        return "rejected"
    return "no route" if code == errno.ENETUNREACH else "broken"


def _nobody_on_link(host: str) -> bool:
    """Say whether the kernel asked in vain who owns an IPv4 address."""
    with contextlib.suppress(OSError), open("/proc/thread-self/net/arp") as table:
        return any(line.split()[:3:2] == [host, "0x0"] for line in table)
    return False
