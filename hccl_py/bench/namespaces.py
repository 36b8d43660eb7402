"""Two hosts on one machine: network namespaces joined by virtual Ethernet links.

What is sent between them takes the kernel's whole way through TCP, as between two machines that
have no wire. Needs root, `ip` and, for `limit`, `tc`. Rank processes `enter` their host before
they open a socket; other programs run inside through `command`.
"""

from __future__ import annotations

import ctypes
import ipaddress
import itertools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_CLONE_NEWNET = 0x40000000
_MOUNTED = Path("/run/netns")
_COMMAND_TIMEOUT_S = 20.0
_numbers = itertools.count()


class NamespaceError(Exception):
    """The namespaces or their links could not be made; the message says what to do."""


class TwoHosts:
    """Two namespaces and their links; a context manager that removes both.

    Link k is the interface `veth<k>` on both hosts. Host 0 has the address 10.210.k.1 and
    fd00:210:k::1 there, host 1 ends in 2.

    Attributes:
        names: of the two namespaces.
        num_links: number of links.
    """

    def __init__(self, num_links: int = 1) -> None:
        """Make the namespaces and bring all links up.

        Raises:
            NamespaceError: not root, no `ip`, or the kernel refused.
        """
        if os.geteuid() != 0:
            raise NamespaceError("network namespaces need root: run this as root (sudo)")
        self.num_links = num_links
        made = f"hccl-{os.getpid()}-{next(_numbers)}"
        self.names = (f"{made}-a", f"{made}-b")
        try:
            for name in self.names:
                _run("ip", "netns", "add", name)
                _run("ip", "-n", name, "link", "set", "lo", "up")
            for link in range(num_links):
                self._join(link)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TwoHosts:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove namespaces and links."""
        self.close()

    def close(self) -> None:
        """Remove namespaces and links; processes inside keep them until they end. Idempotent."""
        for name in self.names:
            if (_MOUNTED / name).exists():
                _run("ip", "netns", "delete", name)

    def interface(self, link: int) -> str:
        """Name a link's interface, the same on both hosts."""
        return f"veth{link}"

    @property
    def interfaces(self) -> str:
        """All of them, as GLOO_SOCKET_IFNAME and HCCL_SOCKET_IFNAME want them."""
        return ",".join(map(self.interface, range(self.num_links)))

    def address(self, host: int, link: int = 0) -> str:
        """Return a host's IPv4 address on a link."""
        return f"10.210.{link}.{host + 1}"

    def address_v6(self, host: int, link: int = 0) -> str:
        """Return a host's IPv6 address on a link, in its shortest form."""
        return str(ipaddress.ip_address(f"fd00:210:{link}::{host + 1}"))

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """Make the command line that runs a program on a host."""
        return ["ip", "netns", "exec", self.names[host], *arguments]

    def take_down(self, link: int) -> None:
        """Cut a link: the interface of host 0 goes down, so both lose the carrier."""
        _run("ip", "-n", self.names[0], "link", "set", self.interface(link), "down")

    def bring_up(self, link: int) -> None:
        """Mend a link that was taken down."""
        _run("ip", "-n", self.names[0], "link", "set", self.interface(link), "up")
        # The kernel took the IPv6 address away with the link.
        address = f"{self.address_v6(0, link)}/64"
        device = self.interface(link)
        _run("ip", "-n", self.names[0], "addr", "replace", address, "dev", device, "nodad")

    def limit(self, link: int, megabit_per_s: int) -> None:
        """Let a link carry so much and no more, in each direction; replaces an earlier limit."""
        for name in self.names:
            shaper = f"tbf rate {megabit_per_s}mbit burst 128kb latency 50ms".split()
            where = ["dev", self.interface(link), "root"]
            _run("ip", "netns", "exec", name, "tc", "qdisc", "replace", *where, *shaper)

    def _join(self, link: int) -> None:
        device = self.interface(link)
        here, there = self.names
        pair = ["type", "veth", "peer", "name", device, "netns", there]
        _run("ip", "-n", here, "link", "add", device, *pair)
        for host, name in enumerate(self.names):
            four = f"{self.address(host, link)}/24"
            _run("ip", "-n", name, "addr", "add", four, "dev", device)
            six = f"{self.address_v6(host, link)}/64"
            # nodad: without a neighbour to ask, an address would be tentative for a second.
            _run("ip", "-n", name, "addr", "add", six, "dev", device, "nodad")
            _run("ip", "-n", name, "link", "set", device, "up")


def enter(name: str) -> None:
    """Move the calling thread, and threads it starts from now on, into a namespace.

    Raises:
        NamespaceError: there is no such namespace, or no right to enter it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(_MOUNTED / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(f"no network namespace {name}: {error.strerror}") from error
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            problem = os.strerror(ctypes.get_errno())
            raise NamespaceError(f"cannot enter network namespace {name}: {problem}")
    finally:
        os.close(descriptor)


def _run(*command: str) -> None:
    """Run a command; its own words are the best explanation of a failure."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except FileNotFoundError as error:
        raise NamespaceError(f"there is no {command[0]}: install iproute2") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise NamespaceError(f"{' '.join(command)}: {said or f'exit code {done.returncode}'}")
