"""From a store to a mesh of authenticated connections, ready for the engine.

    rendezvous.py   who is there, on which node, where do they listen, what is the secret
    full_mesh.py    which connections there must be (connector.py, handshake.py, connection.py)
    mesh.py         both in order; hands out a `Mesh`
    reconnect.py    afterwards: replaces connections that break

Nothing here moves payload. C++ gets connections only after both sides proved that they know the
communicator's secret, and with no byte left unread on them.
"""

import contextlib
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.connector import Key
from hccl_py.transport.bootstrap.full_mesh import FullMesh
from hccl_py.transport.bootstrap.handshake import CONTROL, Party
from hccl_py.transport.bootstrap.rendezvous import Card, Meeting, Store, meet, sharing_failure
from hccl_py.transport.bootstrap.tls import Credentials, Tls
from hccl_py.transport.control.control_plane import ControlPlane, hold, release
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.control.message import Roster
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.identity import Endpoint, Identity, Member, group_by_node
from hccl_py.transport.network.listeners import BACKLOG, bind_listeners, bind_to_devices
from hccl_py.transport.network.open_sockets import Connection
from hccl_py.transport.network.rejections import logger
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.providers.interface import MAX_PROVIDER_CARD_BYTES, Lane, Provider, Site
from hccl_py.transport.providers.registry import AUTO, TCP, VARIABLE, provider_class


@dataclass(frozen=True)
class Link:
    """The connections with one other rank, non-blocking and close-on-exec.

    Attributes:
        rank: the other rank.
        controls: one Unix socket (same node), or one TCP connection per path.
        lanes: the TCP connections of each lane, one per path; empty where memory is shared and
            where a provider has the lanes.
        paths: name of each path; empty where memory is shared.
        segment_fd: the peer's shared memory; None where none is shared.
        doorbell_fd: the peer's eventfd; None where no memory is shared.
        arena_fd: the peer's registered memory; None where no memory is shared.
        provided: the lanes of a provider in Python.
    """

    rank: int
    controls: tuple[Connection, ...]
    lanes: tuple[tuple[Connection, ...], ...]
    paths: tuple[str, ...]
    segment_fd: int | None
    doorbell_fd: int | None
    arena_fd: int | None
    provided: tuple[Lane, ...] = ()


@dataclass(frozen=True)
class Mesh:
    """All connections of this rank.

    Attributes:
        party: this rank among all ranks; None if it is alone.
        members: all ranks, this one included.
        nodes: the ranks of each node; nodes in the order in which ranks first name them.
        links: one per other rank, ascending.
        listeners: where ranks of other nodes may replace connections; empty on a single node.
        provider: owns the links' provided lanes, to be closed after them; None without one.
        coordination: this rank's hold on the control plane, still to be attached; None if alone.
    """

    party: Party | None
    members: tuple[Member, ...]
    nodes: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    listeners: tuple[socket.socket, ...]
    provider: Provider | None = None
    coordination: Coordination | None = None


def connect(
    store: Store,
    rank: int,
    world_size: int,
    *,
    make_segment: Callable[[tuple[int, ...]], tuple[int, int, int]],
    num_lanes: int,
    timeout_s: float,
    identity: Identity | None = None,
) -> Mesh:
    """Find, authenticate and connect all ranks.

    The environment may set HCCL_NODE_ID and what `settings.py` lists.

    Args:
        store: used by the ranks of this communicator only; wrap it in a prefix.
        rank: this rank.
        world_size: number of ranks.
        make_segment: called once with the ranks that share memory, in order, this one included;
            returns what those peers get a copy of: the memfd of the segment, the eventfd of the
            doorbell, the memfd of the arena. They stay the caller's, on failure too.
        num_lanes: data lanes per rank that shares no memory.
        timeout_s: for everything together.
        identity: replaces this process's identity, e.g. to emulate nodes with threads as ranks.

    Returns:
        The mesh; the caller owns its connections, listeners, provider and coordination.

    Raises:
        InvalidArgumentError: rank, world_size, num_lanes, timeout_s or a setting makes no sense.
        BootstrapError: names ranks, hosts, addresses and the step that failed. Nothing stays open.
    """
    _check_arguments(rank, world_size, num_lanes, timeout_s)
    deadline = Deadline(timeout_s, getattr(store, "hopeless", None))
    identity = identity or Identity.of_this_process()
    if world_size == 1:
        make_segment((0,))
        alone = Member(0, identity.host, identity.pid, node=0)
        return Mesh(None, (alone,), ((0,),), (), ())
    settings = NetworkSettings.from_environment()
    with contextlib.ExitStack() as opened:
        offer = _make_offer(settings, identity, _Shape(rank, world_size, num_lanes), opened)
        meeting = meet(store, rank, offer.card, settings.secret, deadline)
        deadline.hopeless = getattr(store, "hopeless_to_connect", deadline.hopeless)
        # Shared before anything closes, pending connections too: peers would fail in turn, and one
        # of them would be the first to share its failure.
        with sharing_failure(store, rank, settings.secret):
            coordination = _coordination(offer, meeting, rank)
            opened.callback(coordination.close)
            mesh = _connect_all(offer, meeting, rank, make_segment, deadline)
            mesh = replace(mesh, coordination=coordination)
        release(offer.plane)  # the coordination has a hold of its own
        opened.pop_all()  # what is still open is the caller's from here on
    return mesh


@dataclass(frozen=True)
class _Shape:
    """This rank, and what all ranks have to agree on."""

    rank: int
    world_size: int
    num_lanes: int


@dataclass(frozen=True)
class _Offer:
    """What a rank brings to the rendezvous: its card, and what the card describes.

    `opened` closes all of it, and what is opened later, if the bootstrap fails.
    """

    opened: contextlib.ExitStack
    card: Card
    unix: socket.socket
    tcp: list[socket.socket]
    credentials: Credentials | None
    provider: Provider | None
    plane: ControlPlane


def _make_offer(
    settings: NetworkSettings, identity: Identity, shape: _Shape, opened: contextlib.ExitStack
) -> _Offer:
    credentials = Credentials.make() if settings.tls else None
    unix = opened.enter_context(_bind_unix())
    tcp, endpoints, problem = _bind_tcp(settings)
    for listener in tcp:
        opened.enter_context(listener)
    provider = _make_provider(settings, shape, endpoints)
    if provider is not None:
        opened.callback(provider.close)
    plane = hold()
    opened.callback(release, plane)
    card = Card(
        identity,
        shape.world_size,
        shape.num_lanes,
        settings.num_connections,
        unix.getsockname()[1:].decode(),
        endpoints,
        problem,
        credentials.certificate if credentials else b"",
        settings.transport,
        _provider_card(settings.transport, provider) if provider is not None else b"",
        settings.checksum,
        plane.contact(endpoints[0].host if endpoints else "", settings.ports),
    )
    return _Offer(opened, card, unix, tcp, credentials, provider, plane)


def _connect_all(
    offer: _Offer,
    meeting: Meeting,
    rank: int,
    make_segment: Callable[[tuple[int, ...]], tuple[int, int, int]],
    deadline: Deadline,
) -> Mesh:
    """Connect to all ranks; closes what is only needed for that, and nothing else."""
    card, provider = offer.card, offer.provider
    members, nodes = _members(meeting)
    shares_memory = card.transport == AUTO
    local_ranks = nodes[members[rank].node] if shares_memory else (rank,)
    party = Party(
        rank,
        members,
        meeting.communicator_id,
        meeting.secret,
        make_segment(local_ranks),
        card.num_lanes if provider is None else 0,
        card.num_connections,
        _tls(offer.credentials, members, local_ranks),
        shares_memory,
    )
    _log_unused(party)
    is_networked = len(local_ranks) < len(members)
    listeners = _listen(offer, party, len(local_ranks) > 1, is_networked)
    full_mesh = FullMesh(party, listeners, deadline)
    offer.opened.callback(full_mesh.close)
    made = full_mesh.run()
    provided: Mapping[int, Sequence[Lane]] = {}
    if provider is not None:
        provided = provider.connect([card.provider for card in meeting.cards], deadline)
    links = _links(party, made, provided)
    full_mesh.close()
    # Only the engine's own connections can be replaced.
    can_reconnect = is_networked and card.transport in (AUTO, TCP)
    kept = tuple(offer.tcp) if can_reconnect else ()
    for unused in {offer.unix, *offer.tcp} - set(kept):
        unused.close()
    return Mesh(party, members, nodes, links, kept, provider)


def _listen(
    offer: _Offer, party: Party, shares_memory: bool, is_networked: bool
) -> list[socket.socket]:
    """Listen where ranks will dial, and return these sockets."""
    if party.ties_interfaces and not _shares_machine_with_other_nodes(party):
        bind_to_devices(offer.tcp, offer.card.endpoints)
    listeners = [offer.unix] if shares_memory else []
    listeners += offer.tcp if is_networked else []
    for listener in listeners:
        listener.listen(BACKLOG)
    return listeners


def _check_arguments(rank: int, world_size: int, num_lanes: int, timeout_s: float) -> None:
    if not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank {rank} is not in 0..{world_size - 1} (world_size)")
    if num_lanes < 1:
        raise InvalidArgumentError(f"num_lanes is {num_lanes}, must be at least 1")
    if not timeout_s > 0:
        raise InvalidArgumentError(f"timeout_s is {timeout_s}, must be positive")


# Sockets are bound before the rendezvous, because cards carry their addresses, but listen only
# after it: a job on one node never opens a port, and nobody is served before the secret is known.


def _bind_unix() -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.setblocking(False)
    bound.bind(f"\0hccl-{secrets.token_hex(16)}")
    return bound


def _bind_tcp(
    settings: NetworkSettings,
) -> tuple[list[socket.socket], tuple[Endpoint, ...], str | None]:
    """Bind to the chosen addresses; else say why not, which matters only if there are two nodes."""
    try:
        listeners, endpoints = bind_listeners(settings)
    except (BootstrapError, OSError) as error:
        return [], (), str(error)
    return listeners, tuple(endpoints), None


def _make_provider(
    settings: NetworkSettings, shape: _Shape, endpoints: Sequence[Endpoint]
) -> Provider | None:
    make = provider_class(settings.transport)
    if make is None or not endpoints:
        return None
    return make(
        Site(shape.rank, shape.world_size, shape.num_lanes, endpoints[0].host, settings.ports)
    )


def _provider_card(transport: str, provider: Provider) -> bytes:
    card = provider.card()
    if len(card) > MAX_PROVIDER_CARD_BYTES:
        raise BootstrapError(
            f"{VARIABLE}={transport}: the provider's card has {len(card)} bytes, "
            f"> {MAX_PROVIDER_CARD_BYTES}"
        )
    return card


def _coordination(offer: _Offer, meeting: Meeting, rank: int) -> Coordination:
    """Admit all ranks' control planes, before any of them can have reason to dial this one."""
    contacts = tuple(card.contact for card in meeting.cards)
    near = tuple(card.identity.machine == offer.card.identity.machine for card in meeting.cards)
    return Coordination(Roster(meeting.communicator_id, rank, contacts, near))


def _tls(
    credentials: Credentials | None, members: Sequence[Member], local_ranks: Sequence[int]
) -> Tls | None:
    if credentials is None:
        return None
    return Tls(credentials, [one.certificate for one in members if one.rank not in local_ranks])


def _log_unused(party: Party) -> None:
    """Warn of interfaces that some peer has no counterpart for."""
    me = party.members[party.rank]
    fewest = min(
        (member for member in party.members if member.node != me.node),
        key=lambda member: len(member.endpoints),
        default=me,
    )
    if len(fewest.endpoints) < len(me.endpoints):
        logger.warning(
            "rank %d has %d interfaces (%s), %s has %d: towards it the first %d are used",
            party.rank,
            len(me.endpoints),
            ", ".join(endpoint.interface for endpoint in me.endpoints),
            fewest,
            len(fewest.endpoints),
            len(fewest.endpoints),
        )


def _shares_machine_with_other_nodes(party: Party) -> bool:
    return any(
        party.shares_machine(member.rank) and not party.is_local(member.rank)
        for member in party.members
    )


def _members(meeting: Meeting) -> tuple[tuple[Member, ...], tuple[tuple[int, ...], ...]]:
    nodes = group_by_node([card.identity for card in meeting.cards])
    node_of = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    members = tuple(
        Member(
            rank,
            card.identity.host,
            card.identity.pid,
            node_of[rank],
            card.unix_name,
            card.endpoints,
            card.identity.machine,
            card.certificate,
        )
        for rank, card in enumerate(meeting.cards)
    )
    return members, nodes


def _links(
    party: Party, made: Mapping[Key, PendingConnection], provided: Mapping[int, Sequence[Lane]]
) -> tuple[Link, ...]:
    """Hand finished made over; nothing can fail once the first is detached."""
    links = []
    for peer in (member.rank for member in party.members if member.rank != party.rank):
        if party.is_local(peer):
            control = made[Key(peer, CONTROL, 0)]
            segment_fd, doorbell_fd, arena_fd = control.descriptors
            unix = (control.detach(),)
            links.append(Link(peer, unix, (), (), segment_fd, doorbell_fd, arena_fd))
            continue
        paths = range(party.num_paths(peer))
        controls, *lanes = [
            tuple(made[Key(peer, index, path)].detach() for path in paths)
            for index in range(1 + party.num_lanes)
        ]
        names = tuple(party.path_name(peer, path) for path in paths)
        of_provider = tuple(provided.get(peer, ()))
        links.append(Link(peer, controls, tuple(lanes), names, None, None, None, of_provider))
    return tuple(links)
