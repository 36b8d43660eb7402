"""Two hosts on one machine: network namespaces, joined by as many links as a test needs.

    def test_sum_two_hosts():
        with Hosts(num_links=2) as hosts:
            assert run_ranks(check_sum, 4, hosts=hosts, backend="hccl") == ...

Ranks 0 and 1 then run on the first host, 2 and 3 on the second; they share a kernel and its clock,
but no loopback interface, no abstract Unix sockets and hence no shared memory. Link k is called
`link0`, `link1`, ... on both hosts. It can be slow (a token bucket), cut and mended. Needs root and
iproute2; `NEEDS_NAMESPACES` marks tests to be skipped elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

_CLONE_NEWNET = 0x40000000
_COMMAND_S = 20.0
_BURST_S = 0.01
"""How long a limited link may go on at full speed after it stood still."""

_count = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


class Hosts:
    """Two namespaces and the links between them. A context manager: leaving it removes both.

    Attributes:
        names: of the two namespaces.
        interfaces: of the links, on either host.
    """

    def __init__(
        self, *, num_links: int = 1, rates_mbit: Sequence[float | None] = (), ipv6: bool = False
    ) -> None:
        """Say what to make.

        Args:
            num_links: veth pairs, each a network of its own.
            rates_mbit: limit of each link in both directions; None and missing ones have none.
            ipv6: links have IPv6 addresses only, instead of IPv4 only.
        """
        stem = f"hccl-{os.getpid()}-{next(_count)}"
        self.names = (f"{stem}-a", f"{stem}-b")
        self.interfaces = tuple(f"link{link}" for link in range(num_links))
        self._rates = [*rates_mbit, *[None] * (num_links - len(rates_mbit))]
        self._ipv6 = ipv6

    def __enter__(self) -> Hosts:
        """Make hosts and links."""
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            for link in range(len(self.interfaces)):
                self._join(link)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hosts, and with them the links."""
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def address(self, host: int, link: int = 0) -> str:
        """Return the address of a host (0 or 1) on a link."""
        return f"fd77:{link}::{host + 1}" if self._ipv6 else f"10.77.{link}.{host + 1}"

    def host_of(self, rank: int, world_size: int) -> int:
        """Say on which host a rank runs: the first half of the ranks on the first."""
        return rank * 2 // world_size

    def command(self, host: int, *words: str) -> list[str]:
        """Return the command line that runs `words` on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def cut(self, link: int) -> None:
        """Take a link down, as a pulled cable does."""
        for name in self.names:
            _ip("-n", name, "link", "set", self.interfaces[link], "down")

    def mend(self, link: int) -> None:
        """Take a link up again, with its addresses: the kernel drops IPv6 ones with the link."""
        for name in self.names:
            _ip("-n", name, "link", "set", self.interfaces[link], "up")
        for host in range(2):
            self._add_address(host, link)

    def _join(self, link: int) -> None:
        interface = self.interfaces[link]
        here, there = self.names
        ends = ["type", "veth", "peer", "name", interface, "netns", there]
        _ip("link", "add", interface, "netns", here, *ends)
        rate = self._rates[link]
        if rate is not None:
            for name in self.names:
                burst = str(max(16_384, int(rate * 1e6 / 8 * _BURST_S)))
                bucket = ["tbf", "rate", f"{rate}mbit", "burst", burst, "latency", "20ms"]
                _run("tc", "-n", name, "qdisc", "add", "dev", interface, "root", *bucket)
        self.mend(link)

    def _add_address(self, host: int, link: int) -> None:
        address = ["address", "replace", f"{self.address(host, link)}/{64 if self._ipv6 else 24}"]
        # Without `nodad` an IPv6 address cannot be bound for its first seconds.
        more = ["nodad"] if self._ipv6 else []
        _ip("-n", self.names[host], *address, "dev", self.interfaces[link], *more)


def enter(name: str) -> None:
    """Move the calling thread, and those that it starts, into a namespace."""
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {name}")
    finally:
        os.close(descriptor)


def call_inside(name: str, function: Callable[[], T]) -> T:
    """Call a function in a namespace, on a thread of its own; this one stays where it is."""
    outcome: list[T] = []

    def inside() -> None:
        enter(name)
        outcome.append(function())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    return outcome[0]


@functools.cache
def why_not() -> str | None:
    """Say why this process can make no namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is missing (apt install iproute2)"
    try:
        with Hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=_COMMAND_S)


NEEDS_NAMESPACES = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
