"""From a store to a mesh of authenticated connections, ready for the engine.

Nothing here moves payload. C++ gets connections only after both sides proved that they know the
communicator's secret, and with no byte left unread on them.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.full_mesh import FullMesh
from hccl_py.transport.bootstrap.party import CONTROL, Key, Party
from hccl_py.transport.bootstrap.rdma_agreement import first_problem
from hccl_py.transport.bootstrap.rendezvous import Card, Meeting, meet
from hccl_py.transport.bootstrap.sealed_store import SealedStore, Store
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.bootstrap.tls import Tls
from hccl_py.transport.control.control_plane import hold, release
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.control.message import Roster
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.agreed import given
from hccl_py.transport.network.identity import Endpoint, Identity, Member
from hccl_py.transport.network.rejections import logger
from hccl_py.transport.network.secret import SECRET, weakness
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.network.sockets import (
    BACKLOG,
    Connection,
    bind_listeners,
    bind_to_device,
    bind_unix,
)
from hccl_py.transport.network.system_calls import require_system_calls
from hccl_py.transport.network.transports import AUTO, VARIABLE, VERBS
from hccl_py.transport.providers.interface import MAX_PROVIDER_CARD_BYTES, Lane, Provider, Site
from hccl_py.transport.providers.registry import provider_class
from hccl_py.transport.providers.verbs.automatic import agreed as rdma_is_agreed
from hccl_py.transport.providers.verbs.automatic import usable_family as usable_rdma_family

if TYPE_CHECKING:
    from hccl_py.transport.providers.verbs.lanes import RdmaLanes


@dataclass(frozen=True)
class Terms:
    """What a rank brings along that concerns the others.

    Attributes:
        settings: those that `agreed.SETTINGS` compares and that are not the network's.
        shared: what all ranks get from rank 0.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    shared: bytes = b""


@dataclass(frozen=True)
class Link:
    """The connections with one other rank, non-blocking and close-on-exec.

    Attributes:
        controls: one Unix socket (same node), or one TCP connection per path.
        lanes: the TCP connections of each lane, one per path; empty where they are made when first
            needed, where memory is shared and where a provider has the lanes.
        paths: name of each path; empty where memory is shared.
        shared: the peer's segment, the eventfd of its doorbell and its registered memory; None
            where no memory is shared.
        provided: the lanes of a provider in Python.
        rdma_lanes: over queue pairs of an RDMA device, in RTS.
    """

    rank: int
    controls: tuple[Connection, ...]
    lanes: tuple[tuple[Connection, ...], ...]
    paths: tuple[str, ...]
    shared: tuple[int, ...] | None = None
    provided: tuple[Lane, ...] = ()
    rdma_lanes: tuple[_core.RdmaLaneEnd, ...] = ()


@dataclass(frozen=True)
class Mesh:
    """All connections of this rank, which are the caller's of `connect` to close.

    Attributes:
        party: this rank among all ranks.
        links: one per other rank, ascending.
        listeners: where ranks of other nodes make lanes and replace connections; empty on a single
            node.
        provider: owns the links' provided lanes, to be closed after them; None without one.
        coordination: this rank's hold on the control plane, still to be attached; None if alone.
        shared: what rank 0 shared with all ranks; empty if alone.
    """

    party: Party
    links: tuple[Link, ...]
    listeners: tuple[socket.socket, ...]
    provider: Provider | None = None
    coordination: Coordination | None = None
    shared: bytes = b""

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node; nodes in the order in which ranks first name them."""
        nodes: dict[tuple[str, int, str], list[int]] = {}
        for member in self.party.members:
            nodes.setdefault(member.identity.node, []).append(member.rank)
        return tuple(map(tuple, nodes.values()))


def connect(
    store: Store,
    rank: int,
    world_size: int,
    *,
    make_segment: Callable[[tuple[int, ...]], tuple[int, int, int]],
    num_lanes: int,
    timeout_s: float,
    slot_bytes: int,
    identity: Identity | None = None,
    ask: Callable[[], Terms] = Terms,
) -> Mesh:
    """Find, authenticate and connect all ranks.

    Args:
        store: used by the ranks of this communicator only; wrap it in a prefix.
        make_segment: called once with the ranks that share memory, in order, this one included;
            returns what those peers get a copy of, see `Party.segment`. The descriptors stay the
            caller's, on failure too.
        num_lanes: data lanes per rank that shares no memory.
        slot_bytes: the most that a message of a lane has.
        identity: replaces this process's identity, e.g. to emulate nodes with threads as ranks.
        ask: called once, when the others hear of a failure: if it raises, that is the error of
            all ranks.

    Raises:
        InvalidArgumentError: rank, world_size or a setting makes no sense.
        BootstrapError: names ranks, hosts, addresses and the step that failed. Nothing stays open.
    """
    # An empty secret is refused below, which the others are to hear.
    sealed = SealedStore(store, os.fsencode(os.environ.get(SECRET, "")))
    if world_size == 1 and rank == 0:
        require_system_calls()
        identity = identity or Identity.of_this_process()
        ask()
        _refuse_others(sealed, Member(0, identity))
        alone = Party(0, (Member(0, identity),), b"", b"", make_segment((0,)))
        return Mesh(alone, (), ())
    failure = SharedFailure(sealed, rank, world_size)
    # The failure is shared before anything closes, pending connections too: peers would fail in
    # turn, and one of them would be the first to share its failure.
    with contextlib.ExitStack() as opened, failure.sharing():
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(f"rank {rank} is not in 0..{world_size - 1} (world_size)")
        deadline = Deadline(timeout_s, getattr(store, "hopeless", None))
        require_system_calls()
        identity = identity or Identity.of_this_process()
        terms = ask()
        settings = replace(NetworkSettings.from_environment(), store_host=_host_of(store))
        if rank == 0:
            _warn_once(weakness(settings.secret))
        lanes = num_lanes, slot_bytes
        mine = _Resources(rank, world_size, lanes, identity, settings, opened)
        card = replace(mine.card, settings=given({**settings.compared(), **terms.settings}))
        meeting = meet(store, rank, card, settings.secret, deadline, terms.shared, failure.look)
        failure.has_met = True
        deadline.hopeless = getattr(store, "hopeless_to_connect", deadline.hopeless)
        coordination = _coordination(meeting, rank)
        opened.callback(coordination.close)
        mine.settle_transport(meeting.cards, sealed, deadline, failure)
        mesh = mine.connect(meeting, make_segment, deadline, coordination, failure)
        release(mine.plane)  # the coordination has a hold of its own
        opened.pop_all()  # what is still open is the caller's from here on
    return mesh


def _refuse_others(store: SealedStore, me: Member) -> None:
    """Tell ranks that come although this one is to be alone that WORLD_SIZE differs."""
    if store.is_there:
        with contextlib.suppress(BootstrapError):
            store.set("members", msgpack.packb({"failure": f"{me} has world_size 1"}))


@cache
def _warn_once(text: str) -> None:
    # The first communicator reads the variable and removes it; hccl-launch has warned itself.
    if text and "HCCL_PROGRESS_FILE" not in os.environ:
        logger.warning(text)


def _host_of(store: Any) -> str | None:
    """Return where a store of torch is served, None for other stores."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host = getattr(store, "host", None)
    return host if isinstance(host, str) else None


class _Resources:
    """What a rank opens before the rendezvous, because its card describes it.

    Sockets are bound there and listen only after it: a job on one node never opens a port, and
    nobody is served before the secret is known.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        lanes: tuple[int, int],  # how many, and the most that a message of them has
        identity: Identity,
        settings: NetworkSettings,
        opened: contextlib.ExitStack,
    ) -> None:
        """Open; `opened` closes all of it, and what is opened later, if the bootstrap fails."""
        self.settings = settings
        self._opened = opened
        self._rank = rank
        self._num_lanes, self._slot_bytes = lanes
        self._tls = Tls() if settings.tls else None
        self._unix = opened.enter_context(bind_unix())
        self._tcp: list[socket.socket] = []
        endpoints: list[Endpoint] = []
        tcp_problem = None  # matters only if there are two nodes
        try:
            self._tcp, endpoints = bind_listeners(settings)
        except (BootstrapError, OSError) as error:
            tcp_problem = str(error)
        for listener in self._tcp:
            opened.enter_context(listener)
        host = endpoints[0].host if endpoints else ""
        self._provider: Provider | None = None
        site = Site(rank, world_size, self._num_lanes, host, settings.ports)
        provider_card = self._open_provider(site)
        self._interfaces = [endpoint.interface for endpoint in endpoints]
        rdma_family = ""
        if settings.transport == AUTO and settings.is_plain and len(endpoints) == 1:
            rdma_family = usable_rdma_family(self._interfaces)
        self._rdma: RdmaLanes | None = None
        if settings.transport == VERBS:
            try:
                self._rdma = self._open_rdma()
            except BootstrapError as error:
                raise BootstrapError(f"{VARIABLE}={VERBS}: {error}") from error
        self.plane = hold()
        opened.callback(release, self.plane)
        self.card = Card(
            identity,
            world_size,
            self._num_lanes,
            self._unix.getsockname()[1:].decode(),
            tuple(endpoints),
            tcp_problem,
            self._tls.certificate if self._tls is not None else b"",
            settings.transport,
            provider_card,
            self.plane.contact(host, settings.ports),
            rdma_family,
        )

    def _open_provider(self, site: Site) -> bytes:
        make_provider = provider_class(self.settings.transport)
        if make_provider is None or not site.address:
            return b""
        self._provider = make_provider(site)
        self._opened.callback(self._provider.close)
        card = self._provider.card()
        if len(card) > MAX_PROVIDER_CARD_BYTES:
            raise BootstrapError(
                f"{VARIABLE}={self.settings.transport}: the provider's card has {len(card)} "
                f"bytes, > {MAX_PROVIDER_CARD_BYTES}"
            )
        return card

    def connect(
        self,
        meeting: Meeting,
        make_segment: Callable[[tuple[int, ...]], tuple[int, int, int]],
        deadline: Deadline,
        coordination: Coordination,
        failure: SharedFailure,
    ) -> Mesh:
        """Connect to all ranks; closes what is only needed for that, and nothing else."""
        party = self._party(meeting, make_segment)
        _log_unused(party)
        local = {member.rank for member in party.members if party.is_local(member.rank)}
        remote = {member.rank for member in party.members} - local
        if party.ties_interfaces and not any(map(party.shares_machine, remote)):
            for listener, endpoint in zip(self._tcp, self.card.endpoints, strict=True):
                bind_to_device(listener, endpoint.interface)
        listeners = [self._unix] if len(local) > 1 else []
        listeners += self._tcp if remote else []
        for listener in listeners:
            listener.listen(BACKLOG)
        if remote:
            failure.tell_listening()
        full_mesh = FullMesh(party, listeners, deadline, failure)
        self._opened.callback(full_mesh.close)
        made = full_mesh.run()
        provided: Mapping[int, Sequence[Lane]] = {}
        if self._provider is not None:
            full_mesh.join()  # while its lanes connect nobody looks at the other connections
            provided = self._provider.connect([card.provider for card in meeting.cards], deadline)
        rdma_lanes: Mapping[int, tuple[_core.RdmaLaneEnd, ...]] = {}
        if self._rdma is not None:
            # Only over connections that are authenticated; none sends before all can receive.
            self._rdma.make(remote, self._slot_bytes)
            mine = self._rdma.describe()
            theirs = full_mesh.exchange(mine, {rank: len(one) for rank, one in mine.items()})
            self._rdma.attach(theirs)
        full_mesh.join()
        if self._rdma is not None:
            rdma_lanes = self._rdma.start()
        links = _links(party, made, provided, rdma_lanes)
        full_mesh.close()
        kept = tuple(self._tcp) if remote else ()
        for unused in {self._unix, *self._tcp} - set(kept):
            unused.close()
        return Mesh(party, links, kept, self._provider, coordination, meeting.shared)

    def settle_transport(
        self,
        cards: Sequence[Card],
        store: SealedStore,
        deadline: Deadline,
        failure: SharedFailure,
    ) -> None:
        """Let `auto` become `verbs` where every rank can; the device is opened only for that."""
        if self.settings.transport != AUTO or not any(card.rdma for card in cards):
            return
        node = self.card.identity.node
        remote = [rank for rank, card in enumerate(cards) if card.identity.node != node]
        num_nodes = len({card.identity.node for card in cards})
        if num_nodes == 1 or not rdma_is_agreed([card.rdma for card in cards]):
            return
        rdma, problem = None, ""
        try:
            rdma = self._open_rdma()
            rdma.make(remote, self._slot_bytes)
        except RuntimeError as error:  # an HcclError, or what the system refuses, as descriptors
            problem = f"rank {self._rank} on {self.card.identity.host}: {error}"
        problem = first_problem(store, self._rank, len(cards), problem, deadline, failure.look)
        if problem:
            log = logger.warning if self._rank == 0 else logger.info
            log("HCCL_TRANSPORT=auto: TCP instead of RDMA: %s", problem)
        else:
            self._rdma = rdma
            self.settings = replace(self.settings, transport=VERBS)

    def _open_rdma(self) -> "RdmaLanes":
        # Imported when used: it brings all of verbs along.
        from hccl_py.transport.providers.verbs.lanes import RdmaLanes

        return RdmaLanes(self._num_lanes, self._interfaces)

    def _party(
        self, meeting: Meeting, make_segment: Callable[[tuple[int, ...]], tuple[int, int, int]]
    ) -> Party:
        members = tuple(
            Member(rank, card.identity, card.unix_name, card.endpoints, card.certificate)
            for rank, card in enumerate(meeting.cards)
        )
        shares_memory = self.settings.transport in (AUTO, VERBS)
        node = self.card.identity.node
        on_node = tuple(one.rank for one in members if one.identity.node == node)
        local_ranks = on_node if shares_memory else (self._rank,)
        if self._tls is not None:
            self._tls.trust(one.certificate for one in members if one.rank not in local_ranks)
        return Party(
            self._rank,
            members,
            meeting.communicator_id,
            meeting.secret,
            make_segment(local_ranks),
            self.card.num_lanes if self._provider is None and self._rdma is None else 0,
            self.settings.has_paths,
            self.settings.num_connections,
            self._tls,
            shares_memory,
        )


def _coordination(meeting: Meeting, rank: int) -> Coordination:
    machine = meeting.cards[rank].identity.machine
    contacts = tuple(
        card.contact if card.identity.machine == machine else replace(card.contact, unix_name="")
        for card in meeting.cards
    )
    return Coordination(Roster(meeting.communicator_id, rank, contacts))


def _log_unused(party: Party) -> None:
    me = party.members[party.rank]
    fewest = min(
        (member for member in party.members if member.identity.node != me.identity.node),
        key=lambda member: len(member.endpoints),
        default=me,
    )
    if len(fewest.endpoints) < len(me.endpoints):
        interfaces = ", ".join(endpoint.interface for endpoint in me.endpoints)
        logger.warning(
            f"rank {party.rank} has {len(me.endpoints)} interfaces ({interfaces}), {fewest} has "
            f"{len(fewest.endpoints)}: towards it the first {len(fewest.endpoints)} are used"
        )


def _links(
    party: Party,
    made: Mapping[Key, PendingConnection],
    provided: Mapping[int, Sequence[Lane]],
    rdma_lanes: Mapping[int, tuple[_core.RdmaLaneEnd, ...]],
) -> tuple[Link, ...]:
    """Hand finished connections over; nothing can fail once the first is detached."""
    links = []
    for peer in (member.rank for member in party.members if member.rank != party.rank):
        if party.is_local(peer):
            control = made[Key(peer, CONTROL, 0)]
            links.append(Link(peer, (control.detach(),), (), (), control.descriptors))
            continue
        paths = range(party.num_paths(peer))
        controls, *lanes = [
            tuple(made[Key(peer, index, path)].detach() for path in paths)
            for index in range(1 + party.num_lanes_at_start)
        ]
        names = tuple(party.path_name(peer, path) for path in paths)
        of_provider = tuple(provided.get(peer, ()))
        of_device = rdma_lanes.get(peer, ())
        links.append(Link(peer, controls, tuple(lanes), names, None, of_provider, of_device))
    return tuple(links)
