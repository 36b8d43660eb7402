"""From a store to a mesh of authenticated connections, described by raw descriptors.

    rendezvous.py   who is there, on which node, where do they listen, what is the secret
    wiring.py       dial, accept, authenticate (handshake.py, line.py)
    bootstrap.py    both in order; hands out a `Mesh`

Nothing here moves payload. C++ gets descriptors only after both sides proved that they know the
communicator's secret, and with no byte left unread on them.
"""

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .deadline import Deadline
from .errors import BootstrapError, InvalidArgumentError
from .handshake import CONTROL, Party
from .identity import Identity, Member, group_by_node
from .interfaces import address_family, choose_address
from .line import Line
from .rendezvous import Card, Meeting, Store, meet, telling_failure
from .wiring import Key, Wiring

_BACKLOG = 4096


@dataclass(frozen=True)
class Link:
    """The connections with one other rank. Descriptors are non-blocking and close-on-exec.

    Attributes:
        rank: the other rank.
        control_fd: Unix socket (same node) or TCP connection.
        lane_fds: one TCP connection per lane; empty on the same node.
        segment_fd: the peer's shared memory; None on another node.
        doorbell_fd: the peer's eventfd; None on another node.
        arena_fd: the peer's registered memory; None on another node.
    """

    rank: int
    control_fd: int
    lane_fds: tuple[int, ...]
    segment_fd: int | None
    doorbell_fd: int | None
    arena_fd: int | None


@dataclass(frozen=True)
class Mesh:
    """All connections of this rank.

    Attributes:
        members: all ranks, this one included.
        nodes: the ranks of each node; nodes in the order in which ranks first name them.
        links: one per other rank, ascending.
    """

    members: tuple[Member, ...]
    nodes: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]


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

    The environment may set HCCL_SECRET (shared secret that the store never sees), HCCL_NODE_ID,
    HCCL_SOCKET_IFNAME and MASTER_ADDR (decides on the network, see `interfaces.py`).

    Args:
        store: used by the ranks of this communicator only; wrap it in a prefix.
        rank: this rank.
        world_size: number of ranks.
        make_segment: called once with the ranks of this node, in order, this one included;
            returns what those peers get a copy of: the memfd of the segment, the eventfd of the
            doorbell, the memfd of the arena. They stay the caller's, on failure too.
        num_lanes: TCP data connections per rank of another node.
        timeout_s: for everything together.
        identity: replaces this process's identity, e.g. to emulate nodes with threads as ranks.

    Returns:
        The mesh; the caller owns its descriptors.

    Raises:
        InvalidArgumentError: rank, world_size, num_lanes or timeout_s makes no sense.
        BootstrapError: names ranks, hosts, addresses and the step that failed. Nothing stays open.
    """
    _check_arguments(rank, world_size, num_lanes, timeout_s)
    deadline = Deadline(timeout_s)
    identity = identity or Identity.of_this_process()
    if world_size == 1:
        make_segment((0,))
        return Mesh((Member(0, identity.host, identity.pid, node=0),), ((0,),), ())
    secret = os.environ.get("HCCL_SECRET", "").encode() or None
    with contextlib.ExitStack() as opened:
        unix = opened.enter_context(_bind_unix())
        tcp, problem = _bind_tcp()
        if tcp is not None:
            opened.enter_context(tcp)
        card = _card(identity, world_size, num_lanes, unix, tcp, problem)
        meeting = meet(store, rank, card, secret, deadline)
        members, nodes = _members(meeting)
        local_ranks = nodes[members[rank].node]
        listeners = [unix] if len(local_ranks) > 1 else []
        if tcp is not None and len(nodes) > 1:
            listeners.append(tcp)
        # Inside the block: a failure is told before sockets close and peers fail in turn.
        with telling_failure(store, rank, secret):
            segment = make_segment(local_ranks)
            party = Party(rank, members, meeting.communicator_id, meeting.secret, segment)
            for listener in listeners:
                listener.listen(_BACKLOG)
            wiring = opened.enter_context(Wiring(party, num_lanes, listeners, deadline))
            links = _links(party, num_lanes, wiring.run())
    return Mesh(members, nodes, links)


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


def _bind_tcp() -> tuple[socket.socket | None, str | None]:
    """Bind to the chosen address; else say why not, which matters only if there are two nodes."""
    try:
        address = choose_address(
            os.environ.get("MASTER_ADDR") or None, os.environ.get("HCCL_SOCKET_IFNAME") or None
        )
        bound = socket.socket(address_family(address), socket.SOCK_STREAM)
    except (BootstrapError, OSError) as error:
        return None, str(error)
    try:
        bound.setblocking(False)
        bound.bind((address, 0))
    except OSError as error:
        bound.close()
        return None, f"cannot bind to {address}: {error}"
    return bound, None


def _card(
    identity: Identity,
    world_size: int,
    num_lanes: int,
    unix: socket.socket,
    tcp: socket.socket | None,
    tcp_problem: str | None,
) -> Card:
    host, port = tcp.getsockname()[:2] if tcp is not None else (None, 0)
    unix_name = unix.getsockname()[1:].decode()
    return Card(identity, world_size, num_lanes, unix_name, host, port, tcp_problem)


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
            (card.tcp_host, card.tcp_port) if card.tcp_host is not None else None,
        )
        for rank, card in enumerate(meeting.cards)
    )
    return members, nodes


def _links(party: Party, num_lanes: int, lines: Mapping[Key, Line]) -> tuple[Link, ...]:
    """Turn finished lines into raw descriptors; nothing can fail once the first is detached."""
    links = []
    for peer in (member.rank for member in party.members if member.rank != party.rank):
        is_local = party.is_local(peer)
        control = lines[peer, CONTROL]
        lanes = [] if is_local else [lines[peer, 1 + lane] for lane in range(num_lanes)]
        shared = control.descriptors if is_local else (None, None, None)
        lane_fds = tuple(line.detach() for line in lanes)
        links.append(Link(peer, control.detach(), lane_fds, *shared))
    return tuple(links)
