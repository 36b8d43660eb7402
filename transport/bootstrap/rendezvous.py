"""Ranks meet at a store: each leaves a card, rank 0 collects them and publishes one list.

The store is the root of trust: a process that can read it can join, unless HCCL_SECRET is set.
Every value is sealed with an HMAC under that secret (under the empty one where it is unset: then
the seal only finds damage), bounded in size, and parsed only if the seal fits. O(world_size) store
operations. `mesh.py` uses the cards.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.bootstrap.sealed_store import SealedStore, Store
from hccl_py.transport.control.message import Contact
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.network.agreed import differences
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Endpoint, Identity, Member
from hccl_py.transport.network.interfaces import address_family, is_loopback
from hccl_py.transport.network.sockets import has_ended
from hccl_py.transport.network.transports import AUTO

_COMMUNICATOR_ID_BYTES = 16
_SECRET_BYTES = 32
MAX_CARD_BYTES = 4096
_MAX_SHARED_BYTES = 256 << 10


@dataclass(frozen=True)
class Card:
    """What a rank publishes before any connection exists.

    Attributes:
        num_lanes: see `Party`.
        unix_name, endpoints, certificate: see `Member`; nothing listens there yet.
        tcp_problem: why there are no endpoints; an error only with a peer on another node.
        provider: the card of its provider; empty without one.
        settings: those that `agreed.COMPARED` names.
        contact: of its process's control plane.
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
    contact: Contact = Contact()
    rdma: str = ""
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Meeting:
    """What all ranks agree on after the rendezvous."""

    cards: tuple[Card, ...]
    communicator_id: bytes
    secret: bytes = field(repr=False)
    shared: bytes = b""  # by rank 0


def meet(
    store: Store,
    rank: int,
    card: Card,
    secret: bytes | None,
    deadline: Deadline,
    shared: bytes = b"",
    look: Callable[[], None] = lambda: None,
) -> Meeting:
    """Exchange cards with all ranks; without a `secret` rank 0 draws one, which the store sees.

    All ranks get what is `shared` by rank 0. Whoever waits calls `look` now and then, which may
    raise to end that.

    BootstrapError: ranks did not arrive, disagree or cannot reach each other. Rank 0 decides, the
    others raise the same error.
    """
    sealed = SealedStore(store, secret)
    packed = _pack_card(card)
    _claim(sealed, rank, card, packed)
    if rank == 0:
        try:
            if len(shared) > _MAX_SHARED_BYTES:
                raise BootstrapError(
                    f"rank 0 shares {len(shared)} bytes, expected at most {_MAX_SHARED_BYTES}"
                )
            cards = _collect(sealed, card, deadline, look)
            content = _list_of_members(cards, secret, shared)
        except HcclError as error:
            sealed.set("members", msgpack.packb({"failure": str(error)[:MAX_CARD_BYTES]}))
            raise
        sealed.set("members", content)
    else:
        # The others' deadlines pass at about the same time as rank 0's: do not rely on its error.
        otherwise = "rank 0 published no list of members; look at its log"
        sealed.wait(["members"], rank, card.world_size, deadline, otherwise, look)
    limit = (card.world_size + 1) * (MAX_CARD_BYTES + 64) + _MAX_SHARED_BYTES
    what = f"rank {rank}: the list of members that rank 0 published"
    return _read_members(rank, card, packed, sealed.get("members", what, limit), secret)


def _claim(sealed: SealedStore, rank: int, mine: Card, packed: bytes) -> None:
    """Leave the card, where no other process has left one for this rank."""
    key, what = f"member/{rank}", f"the card of rank {rank}"
    if not sealed.set_first(key, packed):
        other = _unpack_card(rank, sealed.get(key, what, MAX_CARD_BYTES))
        raise _claimed_twice(rank, mine, other)


def _claimed_twice(rank: int, *cards: Card) -> BootstrapError:
    who = " and ".join(f"pid {one.identity.pid} on {one.identity.host}" for one in cards)
    return BootstrapError(
        f"two processes claim rank {rank}: {who}; does every process have a RANK of its own, and "
        "every job a store of its own?"
    )


def _collect(
    sealed: SealedStore, mine: Card, deadline: Deadline, look: Callable[[], None]
) -> list[bytes]:
    """Wait for all cards and return them; judge each early enough that none is awaited in vain."""
    keys = [f"member/{rank}" for rank in range(mine.world_size)]
    came: dict[int, Card] = {}

    def read(rank: int) -> bytes:
        packed = sealed.get(keys[rank], f"the card of rank {rank}", MAX_CARD_BYTES)
        came[rank] = card = _unpack_card(rank, packed)
        if card.world_size != mine.world_size:
            raise BootstrapError(
                f"rank {rank} has world_size {card.world_size}, rank 0 has {mine.world_size}: set "
                "WORLD_SIZE to the same value on every rank"
            )
        return packed

    def watch() -> None:
        look()
        for rank, key in enumerate(keys):
            if rank not in came and sealed.has(key):
                read(rank)
        for rank, card in came.items():
            if has_ended(card.identity, card.unix_name, mine.identity):
                raise BootstrapError(
                    f"{Member(rank, card.identity)} ended before all ranks had arrived; look at "
                    "its log"
                )

    sealed.wait(keys, 0, mine.world_size, deadline, "the store failed", watch)
    packed = [read(rank) for rank in range(mine.world_size)]
    cards = [came[rank] for rank in range(mine.world_size)]
    different = differences([card.settings for card in cards])
    if different:
        raise BootstrapError(different)
    _check_reachable(cards)
    return packed


def _list_of_members(packed: list[bytes], secret: bytes | None, shared: bytes) -> bytes:
    content = {
        "communicator_id": secrets.token_bytes(_COMMUNICATOR_ID_BYTES),
        "secret": None if secret else secrets.token_bytes(_SECRET_BYTES),
        "cards": packed,
        "shared": shared,
    }
    return bytes(msgpack.packb(content))


def _read_members(
    rank: int, mine: Card, packed: bytes, content: bytes, secret: bytes | None
) -> Meeting:
    try:
        members = msgpack.unpackb(content)
        if "failure" in members:
            raise BootstrapError(f"rank {rank}: rank 0 ended the bootstrap: {members['failure']}")
        cards = list(members["cards"])
        meeting = Meeting(
            tuple(_unpack_card(index, card) for index, card in enumerate(cards)),
            members["communicator_id"],
            secret or members["secret"],
            members["shared"],
        )
        _check_types(meeting)
    except (ValueError, KeyError, TypeError) as error:
        raise BootstrapError(f"rank {rank}: rank 0 published a damaged list: {error}") from error
    if len(cards) != mine.world_size:
        raise BootstrapError(
            f"rank {rank} expects {mine.world_size} ranks, rank 0 expects {len(cards)}"
        )
    if cards[rank] != packed:
        raise _claimed_twice(rank, mine, meeting.cards[rank])
    return meeting


def _check_reachable(cards: Sequence[Card]) -> None:
    """Reject what would end in a connection timeout on some other rank."""
    if cards[0].transport == AUTO and len({card.identity.node for card in cards}) == 1:
        return
    machines = {card.identity.machine for card in cards}
    for rank, card in enumerate(cards):
        who = f"rank {rank} on {card.identity.host}"
        if not card.endpoints:
            raise BootstrapError(
                f"{who} has peers on other nodes but cannot listen: {card.tcp_problem}"
            )
        for endpoint, first in zip(card.endpoints, cards[0].endpoints, strict=False):
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
        if len(machines) > 1 and not card.contact.port:
            raise BootstrapError(
                f"{who} has peers on other machines but its coordinator cannot listen: "
                f"{card.contact.problem}"
            )


def _pack_card(card: Card) -> bytes:
    packed = bytes(msgpack.packb({"version": PROTOCOL_VERSION, **asdict(card)}))
    if len(packed) > MAX_CARD_BYTES:
        raise BootstrapError(f"this rank's card has {len(packed)} bytes, > {MAX_CARD_BYTES}")
    return packed


def _unpack_card(rank: int, packed: bytes) -> Card:
    try:
        fields = msgpack.unpackb(packed)
        if "failure" in fields:  # instead of a card, see shared_failure.py
            raise BootstrapError(str(fields["failure"]))
        version = fields.pop("version")
        if version != PROTOCOL_VERSION:
            raise BootstrapError(
                f"rank {rank} speaks bootstrap protocol {version}, rank 0 {PROTOCOL_VERSION}: "
                "install one version of hccl-py everywhere"
            )
        fields["identity"] = Identity(**fields["identity"])
        fields["endpoints"] = tuple(Endpoint(**one) for one in fields["endpoints"])
        fields["contact"] = Contact(**fields["contact"])
        card = Card(**fields)
        for part in (card, card.contact, card.identity, *card.endpoints):
            _check_types(part)
        for endpoint in card.endpoints:
            address_family(endpoint.host)
        int(card.identity.cores, 16)
        if not all(type(one) is str for pair in card.settings.items() for one in pair):
            raise TypeError("settings are not strings")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BootstrapError(f"the card of rank {rank} is damaged: {error}") from error
    return card


def _check_types(received: object) -> None:
    for name, expected in _types()[type(received)].items():
        if not isinstance(getattr(received, name), expected):
            raise TypeError(f"{name} is not {expected}")


@cache  # to evaluate the annotations takes longer than all else of a card
def _types() -> dict[type, dict[str, Any]]:
    """Return the types of all fields, by the class of what ranks publish."""
    return {
        part: {
            name: get_origin(expected) if get_origin(expected) in (tuple, dict) else expected
            for name, expected in get_type_hints(part).items()
        }
        for part in (Meeting, Card, Contact, Identity, Endpoint)
    }
