"""The choice of interfaces and addresses for peers on other nodes.

The default is the source address of the route to the rendezvous (MASTER_ADDR), the one network that
all ranks are known to share. HCCL_SOCKET_IFNAME overrides it; each selected interface carries a
path.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hccl_py.transport.errors import BootstrapError

if TYPE_CHECKING:  # not needed by the launcher's agents, of which a thousand may start at once
    from hccl_py.transport.network.identity import Endpoint
    from hccl_py.transport.network.settings import NetworkSettings

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_IFF_UP = 0x1
_IFREQ_BYTES = 40
_IFREQ_ADDRESS = slice(20, 24)
_LINK_LOCAL_SCOPE = "20"
# Documentation addresses (RFC 5737, RFC 3849): connecting a datagram socket sends nothing, it only
# asks the kernel which source address the default route would use.
_DEFAULT_ROUTE_PROBES = ("192.0.2.1", "2001:db8::1")


def list_interfaces() -> dict[str, list[str]]:
    """Return the interfaces that are up with their addresses, loopback last.

    IPv6 link-local addresses are left out: they are only valid with a local scope.
    """
    ipv6 = _ipv6_addresses()
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in sorted(socket.if_nameindex(), key=lambda entry: entry[1] == "lo"):
            flags = _ask_kernel(probe, _SIOCGIFFLAGS, name)
            if flags is None or not struct.unpack_from("=H", flags, 16)[0] & _IFF_UP:
                continue
            answer = _ask_kernel(probe, _SIOCGIFADDR, name)
            ipv4 = [] if answer is None else [socket.inet_ntoa(answer[_IFREQ_ADDRESS])]
            found[name] = ipv4 + ipv6.get(name, [])
    return found


def select_interfaces(pattern: str, names: Collection[str]) -> list[str]:
    """Return the interfaces of these names that a pattern selects, best first.

    Args:
        pattern: comma list of names or prefixes, in order of preference. A name that exists means
            only that interface (as gloo reads it), otherwise it is a prefix (as NCCL reads it).
            `=` before the list allows exact names only, `^` excludes what the list names, `^=`
            excludes exact names.
    """
    excludes = pattern.startswith("^")
    wanted_names = pattern.removeprefix("^")
    exact_only = wanted_names.startswith("=")
    matches: list[str] = []
    for wanted in (name.strip() for name in wanted_names.removeprefix("=").split(",")):
        # NCCL excludes by prefix even if an interface has exactly that name.
        if exact_only or (wanted in names and not excludes):
            matches += [wanted] if wanted in names else []
        else:
            matches += [name for name in names if wanted and name.startswith(wanted)]
    if excludes:
        return [name for name in names if name not in matches]
    return list(dict.fromkeys(matches))


def choose_addresses(settings: "NetworkSettings") -> tuple["Endpoint", ...]:
    """Choose the addresses to listen on, best first; BootstrapError: no interface matches."""
    from hccl_py.transport.network.identity import Endpoint

    routed = address_towards(settings.rendezvous_host, settings.family)
    if settings.store_host and is_loopback(routed):
        # A job on one host that joins another job: MASTER_ADDR belongs to this job alone.
        routed = address_towards(settings.store_host, settings.family)
    interfaces = list_interfaces()
    if not settings.interfaces:
        if settings.family is not None and address_family(routed) != settings.family:
            raise _no_match(settings, interfaces)
        bearers = (name for name, addresses in interfaces.items() if routed in addresses)
        return (Endpoint(next(bearers, ""), routed),)
    preferred = settings.family or address_family(routed)
    chosen = []
    for name in select_interfaces(settings.interfaces, interfaces):
        fitting = [one for one in interfaces[name] if address_family(one) == preferred]
        addresses = fitting if settings.family is not None else fitting or interfaces[name]
        chosen += [Endpoint(name, address) for address in addresses[:1]]
    if settings.interfaces.startswith("^"):
        # A list of exclusions does not select loopback.
        chosen = [one for one in chosen if not is_loopback(one.host)] or chosen
    if not chosen:
        raise _no_match(settings, interfaces)
    return tuple(chosen)


Target = str | tuple[str, int]
"""An abstract Unix name with its leading zero byte, or numeric host and port."""


def describe_target(target: Target) -> str:
    """Render a dialled address, for messages."""
    if isinstance(target, str):
        return f"unix:@{target[1:]}"
    host, port = target
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def name_to_look_up(host: str) -> str | bytes:
    """Return a host in the form for which `socket.getaddrinfo` loads no Unicode tables.

    Loading them for a str costs an agent of the launcher 4 ms.
    """
    return host.encode() if host.isascii() else host


def address_family(address: str) -> socket.AddressFamily:
    """Return the socket family of a numeric address."""
    is_ipv6 = ipaddress.ip_address(address).version == 6
    return socket.AF_INET6 if is_ipv6 else socket.AF_INET


def is_loopback(address: str) -> bool:
    """Return whether a numeric address is a loopback address."""
    return ipaddress.ip_address(address).is_loopback


def _no_match(
    settings: "NetworkSettings", interfaces: Mapping[str, Sequence[str]]
) -> BootstrapError:
    found = [f"{name} ({', '.join(of_it) or 'no address'})" for name, of_it in interfaces.items()]
    wanted = [f"HCCL_SOCKET_IFNAME={settings.interfaces}"] if settings.interfaces else []
    wanted += [f"HCCL_SOCKET_FAMILY={settings.family.name}"] if settings.family else []
    return BootstrapError(
        f"{' and '.join(wanted)} matches no interface with an address that other hosts can dial "
        f"(IPv6 link-local ones, fe80::, cannot); interfaces that are up: "
        f"{', '.join(found) or 'none'}"
    )


def address_towards(host: str | None, family: socket.AddressFamily | None) -> str:
    """Return this host's address on the way to another one, or that of its default route."""
    if host is not None and _names_loopback(host):
        loopback = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return _source_address(host, family) or loopback
    # A host name may resolve to loopback on the host that bears it (Debian's 127.0.1.1), so only
    # an explicit loopback address is accepted as one.
    for probe in (host, *_DEFAULT_ROUTE_PROBES):
        address = _source_address(probe, family) if probe is not None else None
        if address is not None and not is_loopback(address):
            return address
    return "127.0.0.1"


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(host)
    except ValueError:
        return host == "localhost"


def _source_address(host: str, family: socket.AddressFamily | None) -> str | None:
    try:
        name = name_to_look_up(host)
        targets = socket.getaddrinfo(name, 9, family or 0, socket.SOCK_DGRAM)
    except OSError:
        return None
    for its_family, kind, _, _, target in targets:
        try:
            with socket.socket(its_family, kind) as probe:
                probe.connect(target)
                address = str(probe.getsockname()[0])
        except OSError:
            continue
        if not ipaddress.ip_address(address).is_link_local:
            return address
    return None


def _ask_kernel(probe: socket.socket, request: int, name: str) -> bytes | None:
    try:
        return fcntl.ioctl(probe, request, name.encode().ljust(_IFREQ_BYTES, b"\0"))
    except OSError:
        return None


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            for line in file:
                digits, _, _, scope, _, name = line.split()
                if scope != _LINK_LOCAL_SCOPE:
                    address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                    found.setdefault(name, []).append(address)
    except FileNotFoundError:  # a kernel without IPv6
        pass
    return found
