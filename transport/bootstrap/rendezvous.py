"""The rendezvous: each rank sets its peer info in a store, rank 0 publishes one list of all.

The store is the root of trust: a process that can read it can join, unless HCCL_SECRET is set.
Every value has an HMAC under that secret and a size limit, and is parsed only if both are right.
Where the secret is unset, it counts as empty and the HMAC only detects damage. A rendezvous takes
O(world_size) store operations. `mesh.py` uses the peer infos.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.bootstrap.sealed_store import SealedStore, Store
from hccl_py.transport.control.message import ControlAddress
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.network.agreed import differences
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Endpoint, Identity, Member
from hccl_py.transport.network.interfaces import address_family, is_loopback
from hccl_py.transport.network.sockets import has_ended
from hccl_py.transport.network.transports import AUTO

_COMMUNICATOR_ID_BYTES = 16
_SECRET_BYTES = 32
MAX_INFO_BYTES = 4096
_MAX_SHARED_BYTES = 256 << 10


@dataclass(frozen=True)
class PeerInfo:
    """A rank's published data, before any connection exists.

    Attributes:
        num_lanes: see `World`.
        unix_name, endpoints, certificate: see `Member`; nothing listens there yet.
        tcp_problem: why there are no endpoints; an error only with a peer on another node.
        provider: the address of its provider; empty without one.
        settings: compared settings (`agreed.COMPARED`).
        control: address of its process's control plane.
        rdma: `IPv4` or `IPv6` where `auto` could use a GID of this family; else empty.
    """

    identity: Identity
    world_size: int
    num_lanes: int
    unix_name: str
    endpoints: tuple[Endpoint, ...]
    tcp_problem: str | None
    certificate: bytes = field(default=b"", repr=False)
    transport: str = AUTO
    provider: bytes = b""
    control: ControlAddress = ControlAddress()
    rdma: str = ""
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RendezvousResult:
    """The result of the rendezvous, equal on all ranks."""

    infos: tuple[PeerInfo, ...]
    communicator_id: bytes
    secret: bytes = field(repr=False)
    shared: bytes = b""  # by rank 0


def meet(
    store: Store,
    rank: int,
    info: PeerInfo,
    secret: bytes | None,
    deadline: Deadline,
    shared: bytes = b"",
    poll: Callable[[], None] = lambda: None,
) -> RendezvousResult:
    """Exchange peer infos with all ranks; without a `secret`, rank 0 makes one.

    All ranks get rank 0's `shared`. A waiting rank calls `poll` every second; it may raise to end
    the wait.

    BootstrapError: ranks did not arrive, disagree or cannot reach each other. Rank 0 decides, the
    others raise the same error.
    """
    sealed = SealedStore(store, secret)
    packed = _pack_info(info)
    _claim(sealed, rank, info, packed)
    if rank == 0:
        try:
            if len(shared) > _MAX_SHARED_BYTES:
                raise BootstrapError(
                    f"rank 0 shares {len(shared)} bytes, expected at most {_MAX_SHARED_BYTES}"
                )
            infos = _collect(sealed, info, deadline, poll)
            content = _list_of_members(infos, secret, shared)
        except HcclError as error:
            sealed.set("members", msgpack.packb({"failure": str(error)[:MAX_INFO_BYTES]}))
            raise
        sealed.set("members", content)
    else:
        # Rank 0's deadline passes at about the same time, so its error may come too late.
        otherwise = "rank 0 published no list of members; look at its log"
        sealed.wait(["members"], rank, info.world_size, deadline, otherwise, poll)
    limit = (info.world_size + 1) * (MAX_INFO_BYTES + 64) + _MAX_SHARED_BYTES
    what = f"rank {rank}: the list of members that rank 0 published"
    return _read_members(rank, info, packed, sealed.get("members", what, limit), secret)


def _claim(sealed: SealedStore, rank: int, mine: PeerInfo, packed: bytes) -> None:
    """Set this rank's peer info; BootstrapError: another process has set one for this rank."""
    key, what = f"member/{rank}", f"the peer info of rank {rank}"
    if not sealed.set_first(key, packed):
        other = _unpack_info(rank, sealed.get(key, what, MAX_INFO_BYTES))
        raise _claimed_twice(rank, mine, other)


def _claimed_twice(rank: int, *infos: PeerInfo) -> BootstrapError:
    who = " and ".join(f"pid {one.identity.pid} on {one.identity.host}" for one in infos)
    return BootstrapError(
        f"two processes claim rank {rank}: {who}; does every process have a RANK of its own, and "
        "every job a store of its own?"
    )


def _collect(
    sealed: SealedStore, mine: PeerInfo, deadline: Deadline, poll: Callable[[], None]
) -> list[bytes]:
    """Wait for all peer infos and return them; each is checked when it arrives."""
    keys = [f"member/{rank}" for rank in range(mine.world_size)]
    arrived: dict[int, PeerInfo] = {}

    def read(rank: int) -> bytes:
        packed = sealed.get(keys[rank], f"the peer info of rank {rank}", MAX_INFO_BYTES)
        arrived[rank] = info = _unpack_info(rank, packed)
        if info.world_size != mine.world_size:
            raise BootstrapError(
                f"rank {rank} has world_size {info.world_size}, rank 0 has {mine.world_size}: set "
                "WORLD_SIZE to the same value on every rank"
            )
        return packed

    def watch() -> None:
        poll()
        for rank, key in enumerate(keys):
            if rank not in arrived and sealed.has(key):
                read(rank)
        for rank, info in arrived.items():
            if has_ended(info.identity, info.unix_name, mine.identity):
                raise BootstrapError(
                    f"{Member(rank, info.identity)} ended before all ranks had arrived; look at "
                    "its log"
                )

    sealed.wait(keys, 0, mine.world_size, deadline, "the store failed", watch)
    packed = [read(rank) for rank in range(mine.world_size)]
    infos = [arrived[rank] for rank in range(mine.world_size)]
    different = differences([info.settings for info in infos])
    if different:
        raise BootstrapError(different)
    _check_reachable(infos)
    return packed


def _list_of_members(packed: list[bytes], secret: bytes | None, shared: bytes) -> bytes:
    content = {
        "communicator_id": secrets.token_bytes(_COMMUNICATOR_ID_BYTES),
        "secret": None if secret else secrets.token_bytes(_SECRET_BYTES),
        "infos": packed,
        "shared": shared,
    }
    return bytes(msgpack.packb(content))


def _read_members(
    rank: int, mine: PeerInfo, packed: bytes, content: bytes, secret: bytes | None
) -> RendezvousResult:
    try:
        members = msgpack.unpackb(content)
        if "failure" in members:
            raise BootstrapError(f"rank {rank}: rank 0 ended the bootstrap: {members['failure']}")
        infos = list(members["infos"])
        result = RendezvousResult(
            tuple(_unpack_info(index, info) for index, info in enumerate(infos)),
            members["communicator_id"],
            secret or members["secret"],
            members["shared"],
        )
        _check_types(result)
    except (ValueError, KeyError, TypeError) as error:
        raise BootstrapError(f"rank {rank}: rank 0 published a damaged list: {error}") from error
    if len(infos) != mine.world_size:
        raise BootstrapError(
            f"rank {rank} expects {mine.world_size} ranks, rank 0 expects {len(infos)}"
        )
    if infos[rank] != packed:
        raise _claimed_twice(rank, mine, result.infos[rank])
    return result


def _check_reachable(infos: Sequence[PeerInfo]) -> None:
    """Reject addresses to which other ranks' connections would time out."""
    if infos[0].transport == AUTO and len({info.identity.node for info in infos}) == 1:
        return
    machines = {info.identity.machine for info in infos}
    for rank, info in enumerate(infos):
        who = f"rank {rank} on {info.identity.host}"
        if not info.endpoints:
            raise BootstrapError(
                f"{who} has peers on other nodes but cannot listen: {info.tcp_problem}"
            )
        for endpoint, first in zip(info.endpoints, infos[0].endpoints, strict=False):
            if len(machines) > 1 and is_loopback(endpoint.host):
                raise BootstrapError(
                    f"{who} listens on {endpoint.host}, which other machines cannot reach: "
                    "set MASTER_ADDR to an address that all ranks share, or HCCL_SOCKET_IFNAME"
                )
            if address_family(endpoint.host) != address_family(first.host):
                raise BootstrapError(
                    f"{who} listens on {endpoint.host} ({endpoint.interface}) where rank 0 listens "
                    f"on {first.host} ({first.interface}): choose the interfaces in the same order "
                    "on every rank (HCCL_SOCKET_IFNAME), or one family (HCCL_SOCKET_FAMILY)"
                )
        if len(machines) > 1 and not info.control.port:
            raise BootstrapError(
                f"{who} has peers on other machines but its coordinator cannot listen: "
                f"{info.control.problem}"
            )


def _pack_info(info: PeerInfo) -> bytes:
    packed = bytes(msgpack.packb({"version": PROTOCOL_VERSION, **asdict(info)}))
    if len(packed) > MAX_INFO_BYTES:
        raise BootstrapError(f"this rank's peer info has {len(packed)} bytes, > {MAX_INFO_BYTES}")
    return packed


def _unpack_info(rank: int, packed: bytes) -> PeerInfo:
    try:
        fields = msgpack.unpackb(packed)
        if "failure" in fields:  # instead of a peer info, see shared_failure.py
            raise BootstrapError(str(fields["failure"]))
        version = fields.pop("version")
        if version != PROTOCOL_VERSION:
            raise BootstrapError(
                f"rank {rank} speaks bootstrap protocol {version}, rank 0 {PROTOCOL_VERSION}: "
                "install one version of hccl-py everywhere"
            )
        fields["identity"] = Identity(**fields["identity"])
        fields["endpoints"] = tuple(Endpoint(**one) for one in fields["endpoints"])
        fields["control"] = ControlAddress(**fields["control"])
        info = PeerInfo(**fields)
        for part in (info, info.control, info.identity, *info.endpoints):
            _check_types(part)
        for endpoint in info.endpoints:
            address_family(endpoint.host)
        int(info.identity.cores, 16)
        if not all(type(one) is str for pair in info.settings.items() for one in pair):
            raise TypeError("settings are not strings")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BootstrapError(f"the peer info of rank {rank} is damaged: {error}") from error
    return info


def _check_types(received: object) -> None:
    for name, expected in _types()[type(received)].items():
        if not isinstance(getattr(received, name), expected):
            raise TypeError(f"{name} is not {expected}")


@cache  # evaluating the annotations takes longer than all other work on a peer info
def _types() -> dict[type, dict[str, Any]]:
    """Return the field types of each class that ranks publish."""
    return {
        part: {
            name: get_origin(expected) if get_origin(expected) in (tuple, dict) else expected
            for name, expected in get_type_hints(part).items()
        }
        for part in (RendezvousResult, PeerInfo, ControlAddress, Identity, Endpoint)
    }
