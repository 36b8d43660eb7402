"""Probes another node: is it reachable, and do full-size packets pass.

The end of a connection shows the fault:

| observation | outcome |
|---|---|
| it connects, both sides prove the secret, 128 KB pass | good |
| no answer, although the link knows the host | dropped: a firewall's DROP |
| refused, or an ICMP error at once | rejected: a firewall's REJECT, as the port has a listener |
| no host on the link has the address | dead: cable, switch, VLAN |
| the kernel has no route | no route |
| it connects, but full-size packets never arrive | stalled: packets over some size vanish |
"""

import contextlib
import errno
import os
import socket
import time
from typing import Literal, TypedDict

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.network.interfaces import address_family
from hccl_py.transport.wire.handshake import ClosedError, RejectedError, SecretHandshake

PURPOSE = b"HCCL-PF2"
BULK, BULK_BYTES = b"B", 128 << 10
"""Bytes that a dialling node sends, and the answer when all have arrived."""

# The kernel needs 3 s to find that no host on the link has an address.
CONNECT_S = 4.0
STALL_S = 3.0
PROBE_S = 2 * CONNECT_S + STALL_S  # the connection, its handshake, packets of full size
_AT_ONCE_S = 0.9  # an ICMP error arrives within a round trip

Outcome = Literal[
    "good", "dropped", "rejected", "dead", "no route", "stalled", "wrong peer", "broken"
]


class Target(TypedDict):
    """A target to dial: a node's port for a path of the ranks or, with None, the master port.

    `interface` and `source` are the connection's local end; "": the kernel chooses.
    """

    node: int
    path: int | None
    interface: str
    source: str
    host: str
    port: int


class PairResult(TypedDict):
    """The result of dialling a target; `detail` is the error in words."""

    target: Target
    outcome: Outcome
    detail: str


def probe(target: Target, secret: bytes) -> PairResult:
    """Dial a target; takes up to about 10 s if it is not reachable."""
    began_s = time.monotonic()
    try:
        with contextlib.closing(_dial(target)) as connection:
            shaken = SecretHandshake(connection, target["host"], PURPOSE, secret, True)
            shaken.prove(Deadline(CONNECT_S))
            is_good = target["path"] is None or _passes(shaken)
            return PairResult(target=target, outcome="good" if is_good else "stalled", detail="")
    except (OSError, RejectedError) as error:
        outcome = _outcome(error, target["host"], time.monotonic() - began_s)
        detail = getattr(error, "strerror", None) or str(error)
        return PairResult(target=target, outcome=outcome, detail=detail)


def _dial(target: Target) -> socket.socket:
    if not target["source"]:
        return socket.create_connection((target["host"], target["port"]), CONNECT_S)
    dialled = socket.socket(address_family(target["host"]), socket.SOCK_STREAM)
    try:
        dialled.bind((target["source"], 0))
        if target["interface"]:
            # As ranks do, if the kernel permits: two adapters may share a network.
            name = target["interface"].encode() + b"\0"
            with contextlib.suppress(PermissionError):
                dialled.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
        dialled.settimeout(CONNECT_S)
        dialled.connect((target["host"], target["port"]))
    except BaseException:
        dialled.close()
        raise
    return dialled


def _passes(shaken: SecretHandshake) -> bool:
    """Return whether full-size packets pass."""
    deadline = Deadline(STALL_S)
    try:
        shaken.finish(shaken.send(os.urandom(BULK_BYTES)), deadline)  # a tunnel may compress zeros
        return shaken.finish(shaken.receive(1), deadline) == BULK
    except TimeoutError:
        return False


def _outcome(error: Exception, host: str, elapsed_s: float) -> Outcome:
    if isinstance(error, RejectedError):
        return "broken" if isinstance(error, ClosedError) else "wrong peer"
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, TimeoutError):
        return "dead" if _is_off_link(host) else "dropped"
    if code == errno.EHOSTUNREACH:
        return "dead" if elapsed_s > _AT_ONCE_S or _is_off_link(host) else "rejected"
    if code in (errno.ECONNREFUSED, errno.EACCES, errno.EPERM):
        return "rejected"
    return "no route" if code == errno.ENETUNREACH else "broken"


def _is_off_link(host: str) -> bool:
    """Return whether the kernel found no owner of an IPv4 address."""
    with contextlib.suppress(OSError), open("/proc/thread-self/net/arp") as table:
        return any(line.split()[:3:2] == [host, "0x0"] for line in table)
    return False
