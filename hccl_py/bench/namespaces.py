"""Hosts on one machine: network namespaces joined by links, more than two by a switch per link.

Messages between hosts pass through two network stacks of the kernel. The hosts share the kernel
and its clock, but no loopback interface and no abstract Unix sockets, hence no shared memory. The
links are called `link0`, `link1`, ... on every host. A link can be slow (a token bucket), cut and
restored. Needs root, iproute2 and, for slow links, tc.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

_CLONE_NEWNET = 0x40000000
_COMMAND_S = 20.0
_BURST_S = 0.01
"""How long a limited link may send at full speed after it was idle."""

# The last number of an address is that of the host. Every host gets a name of its own, because Open
# MPI takes hosts of the same name for one host.
_REMOTE_SHELL = """\
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
names=({names}) address=$1; shift
exec ip netns exec "${{names[${{address##*.}} - 1]}}" \\
  unshare --uts sh -c "echo $address > /proc/sys/kernel/hostname; $*"
"""

_VETH = "ip link add {} netns {} type veth peer name {} netns {}"
_count = itertools.count()


class NamespaceError(Exception):
    """Namespaces or links could not be made."""


class Hosts:
    """Namespaces and the links between them. A context manager: leaving it removes them.

    Attributes:
        names: of the namespaces.
        interfaces: of the links, on every host.
    """

    def __init__(
        self,
        *,
        num_hosts: int = 2,
        num_links: int = 1,
        rates_mbit: Sequence[float | None] = (),
        ipv6: bool = False,
        queue_ms: float = 20,
    ) -> None:
        """Choose what `__enter__` makes.

        Args:
            num_hosts: namespaces; more than two are joined by bridges in a further namespace.
            num_links: veth pairs, each a network of its own.
            rates_mbit: limit of each link in both directions; None and missing ones have none.
            queue_ms: longest queue of a limited link, in milliseconds; more is dropped.
            ipv6: links have IPv6 addresses only, instead of IPv4 only.
        """
        stem = f"hccl-{os.getpid()}-{next(_count)}"
        self.names = tuple(f"{stem}-{chr(ord('a') + host)}" for host in range(num_hosts))
        self._switch = f"{stem}-s" if num_hosts > 2 else None
        self.interfaces = tuple(f"link{link}" for link in range(num_links))
        self._rates = [*rates_mbit, *[None] * (num_links - len(rates_mbit))]
        self._ipv6 = ipv6
        self._queue_ms = queue_ms

    def __enter__(self) -> Hosts:
        """Make hosts and links.

        Raises:
            NamespaceError: not root, a tool is missing, or the kernel rejects it; nothing remains.
        """
        if os.geteuid() != 0:
            raise NamespaceError("network namespaces need root: run this with sudo")
        try:
            for name in filter(None, (*self.names, self._switch)):
                _run(f"ip netns add {name}")
                _run(f"ip -n {name} link set lo up")
            for link in range(len(self.interfaces)):
                self._join(link)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hosts, and with them the links."""
        for name in filter(None, (*self.names, self._switch)):
            with suppress(NamespaceError):  # after a failure some were never made
                _run(f"ip netns delete {name}")

    def address(self, host: int, link: int = 0) -> str:
        """Return the address of a host, counted from 0, on a link."""
        return f"fd77:{link}::{host + 1}" if self._ipv6 else f"10.77.{link}.{host + 1}"

    def host_of(self, rank: int, world_size: int) -> int:
        """Return the host of a rank: equal blocks of ranks in order."""
        return rank * len(self.names) // world_size

    def command(self, host: int, *words: str) -> list[str]:
        """Return the command line that runs `words` on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def remote_shell(self) -> str:
        """Return a script that serves as ssh: it runs a command on the host of an IPv4 address."""
        return _REMOTE_SHELL.format(names=" ".join(self.names))

    def cut(self, link: int) -> None:
        """Take a link down, as a pulled cable does."""
        for name in self.names:
            _run(f"ip -n {name} link set {self.interfaces[link]} down")

    def restore(self, link: int) -> None:
        """Take a link up again, with its addresses: the kernel drops IPv6 ones with the link."""
        interface = self.interfaces[link]
        for host, name in enumerate(self.names):
            _run(f"ip -n {name} link set {interface} up")
            # Without `nodad` an IPv6 address cannot be bound for its first seconds.
            address = self.address(host, link) + ("/64 nodad" if self._ipv6 else "/24")
            _run(f"ip -n {name} address replace {address} dev {interface}")

    def _join(self, link: int) -> None:
        interface, switch = self.interfaces[link], self._switch
        if switch is None:
            here, there = self.names
            _run(_VETH.format(interface, here, interface, there))
        else:
            _run(f"ip -n {switch} link add {interface} type bridge")
            _run(f"ip -n {switch} link set {interface} up")
            for host, name in enumerate(self.names):
                _run(_VETH.format(interface, name, f"{interface}-{host}", switch))
                _run(f"ip -n {switch} link set {interface}-{host} master {interface} up")
        rate = self._rates[link]
        if rate is not None:
            for host, name in enumerate(self.names):
                self._limit(name, interface, rate)
                if switch is not None:  # the direction from the switch to the host
                    self._limit(switch, f"{interface}-{host}", rate)
        self.restore(link)

    def slow_down(self, here: int, there: int, rate_mbit: float) -> None:
        """Route IPv4 traffic from one host to another over a slow link of its own."""
        name, peer = self.names[here], self.names[there]
        interface = f"slow{here}-{there}"
        _run(_VETH.format(interface, name, interface, peer))
        self._limit(name, interface, rate_mbit)
        for end in (name, peer):
            _run(f"ip -n {end} link set {interface} up")
        route = f"{self.address(there)}/32 dev {interface} src {self.address(here)}"
        _run(f"ip -n {name} route add {route}")

    def _limit(self, name: str, interface: str, rate_mbit: float) -> None:
        burst = max(16_384, int(rate_mbit * 1e6 / 8 * _BURST_S))
        bucket = f"rate {rate_mbit}mbit burst {burst} latency {self._queue_ms:g}ms"
        _run(f"tc -n {name} qdisc add dev {interface} root tbf {bucket}")


def enter(name: str) -> None:
    """Move the calling thread, and those that it starts, into a namespace.

    Raises:
        NamespaceError: there is no such namespace, or no right to enter it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(f"no network namespace {name}: {error.strerror}") from error
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            problem = os.strerror(ctypes.get_errno())
            raise NamespaceError(f"cannot enter network namespace {name}: {problem}")
    finally:
        os.close(descriptor)


def _run(command: str) -> None:
    """Run a command; an error has its output."""
    words = command.split()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S)
    except FileNotFoundError as error:
        raise NamespaceError(f"there is no {words[0]}: install iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise NamespaceError(str(error)) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise NamespaceError(f"{command}: {said or f'exit code {done.returncode}'}")
