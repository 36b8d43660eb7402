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
from typing import TYPE_CHECKING

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport import _core
from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.full_mesh import FullMesh
from hccl_py.transport.bootstrap.rdma_agreement import first_problem
from hccl_py.transport.bootstrap.rendezvous import PeerInfo, RendezvousResult, meet
from hccl_py.transport.bootstrap.sealed_store import SealedStore, Store, served_at
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.bootstrap.tls import Tls
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.control.control_plane import acquire, release
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.control.message import ControlMembers
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.agreed import given
from hccl_py.transport.network.identity import Endpoint, Identity, Member
from hccl_py.transport.network.rejections import logger
from hccl_py.transport.network.secret import sealing_key, weakness
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
from hccl_py.transport.providers.interface import (
    MAX_ADDRESS_BYTES,
    Lane,
    Provider,
    ProviderSettings,
)
from hccl_py.transport.providers.registry import provider_class
from hccl_py.transport.providers.verbs.automatic import agreed as rdma_is_agreed
from hccl_py.transport.providers.verbs.automatic import usable_family as usable_rdma_family

if TYPE_CHECKING:
    from hccl_py.transport.providers.verbs.lanes import RdmaLanes

MakeSegment = Callable[[tuple[int, ...]], tuple[int, int, int]]


@dataclass(frozen=True)
class Terms:
    """The data of one rank that `connect` passes to the others.

    Attributes:
        settings: compared settings (`agreed.COMPARED`) that are not the network's.
        shared: rank 0's is passed to all ranks.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    shared: bytes = b""


@dataclass(frozen=True)
class Link:
    """The connections with one other rank, non-blocking and close-on-exec.

    Attributes:
        controls: one Unix socket (same node), or one TCP connection per path.
        lanes: the TCP connections of each lane, one per path; empty where they are made when first
            needed, where memory is shared and where a provider makes the lanes.
        paths: name of each path; empty where memory is shared.
        shared: the peer's segment, the eventfd of its doorbell and its registered memory; None
            where no memory is shared.
        provided: the lanes of a provider in Python.
        rdma_lanes: lanes over queue pairs of an RDMA device, in state RTS.
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
    """All connections of this rank; the caller of `connect` closes them.

    Attributes:
        world: this rank among all ranks.
        links: one per other rank, ascending.
        listeners: where ranks of other nodes make lanes and replace connections; empty on a single
            node.
        provider: owns the links' provided lanes and is closed after them; None without one.
        coordination: this rank's use of the control plane, not attached yet; None if alone.
        shared: rank 0's data for all ranks; empty if alone.
    """

    world: World
    links: tuple[Link, ...]
    listeners: tuple[socket.socket, ...]
    provider: Provider | None = None
    coordination: Coordination | None = None
    shared: bytes = b""

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node; nodes in the order of their lowest ranks."""
        nodes: dict[tuple[str, int, str], list[int]] = {}
        for member in self.world.members:
            nodes.setdefault(member.identity.node, []).append(member.rank)
        return tuple(map(tuple, nodes.values()))


def connect(
    store: Store,
    rank: int,
    world_size: int,
    *,
    make_segment: MakeSegment,
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
            returns the descriptors that those peers receive (`World.segment`). The caller owns
            them, on failure too.
        num_lanes: data lanes per rank that shares no memory.
        slot_bytes: largest message of a lane.
        identity: replaces this process's identity, e.g. to emulate nodes with threads as ranks.
        ask: called once, while failures are shared: its error becomes the error of all ranks.

    Raises:
        InvalidArgumentError: rank, world_size or a setting is invalid.
        BootstrapError: names ranks, hosts, addresses and the step that failed. Nothing stays open.
    """
    sealed = SealedStore(store, sealing_key())
    if world_size == 1 and rank == 0:
        require_system_calls()
        identity = identity or Identity.of_this_process()
        ask()
        _reject_others(sealed, Member(0, identity))
        alone = World(0, (Member(0, identity),), b"", b"", make_segment((0,)))
        return Mesh(alone, (), ())
    failure = SharedFailure(sealed, rank, world_size)
    # A failure is shared before any connection closes. Otherwise a peer might be the first to share
    # one: that its connection was closed.
    with contextlib.ExitStack() as opened, failure.sharing():
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(f"rank {rank} is not in 0..{world_size - 1} (world_size)")
        deadline = Deadline(timeout_s, getattr(store, "hopeless", None))
        require_system_calls()
        identity = identity or Identity.of_this_process()
        terms = ask()
        store_host, _ = served_at(store) or (None, 0)
        settings = replace(NetworkSettings.from_environment(), store_host=store_host)
        if rank == 0:
            _warn_once(weakness(settings.secret))
        lanes = num_lanes, slot_bytes
        mine = _Resources(rank, world_size, lanes, identity, settings, opened)
        info = replace(mine.info, settings=given({**settings.compared(), **terms.settings}))
        result = meet(store, rank, info, settings.secret, deadline, terms.shared, failure.poll)
        failure.has_met = True
        deadline.hopeless = getattr(store, "hopeless_to_connect", deadline.hopeless)
        coordination = _coordination(result, rank)
        opened.callback(coordination.close)
        mine.settle_transport(result.infos, sealed, deadline, failure)
        mesh = mine.connect(result, make_segment, deadline, coordination, failure)
        release(mine.plane)  # the coordination has acquired it too
        opened.pop_all()  # the caller owns them now
    return mesh


def _reject_others(store: SealedStore, me: Member) -> None:
    """Report to ranks with a larger WORLD_SIZE that this rank expects to be alone."""
    if store.is_there:
        with contextlib.suppress(BootstrapError):
            store.set("members", msgpack.packb({"failure": f"{me} has world_size 1"}))


@cache
def _warn_once(text: str) -> None:
    if text and "HCCL_PROGRESS_FILE" not in os.environ:  # under hccl-launch, the launcher warned
        logger.warning(text)


class _Resources:
    """The resources that a rank opens before the rendezvous, for its peer info.

    Sockets are bound before the rendezvous and listen after it: a job on one node never opens a
    port, and no peer is served before the secret is known.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        lanes: tuple[int, int],  # their number, and their largest message
        identity: Identity,
        settings: NetworkSettings,
        opened: contextlib.ExitStack,
    ) -> None:
        """Open them; `opened` closes all, also those opened later, if the bootstrap fails."""
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
        provider_address = self._open_provider(
            ProviderSettings(rank, world_size, self._num_lanes, host, settings.ports)
        )
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
        self.plane = acquire()
        opened.callback(release, self.plane)
        self.info = PeerInfo(
            identity,
            world_size,
            self._num_lanes,
            self._unix.getsockname()[1:].decode(),
            tuple(endpoints),
            tcp_problem,
            self._tls.certificate if self._tls is not None else b"",
            settings.transport,
            provider_address,
            self.plane.control_address(host, settings.ports),
            rdma_family,
        )

    def _open_provider(self, settings: ProviderSettings) -> bytes:
        make_provider = provider_class(self.settings.transport)
        if make_provider is None or not settings.address:
            return b""
        self._provider = make_provider(settings)
        self._opened.callback(self._provider.close)
        address = self._provider.address()
        if len(address) > MAX_ADDRESS_BYTES:
            raise BootstrapError(
                f"{VARIABLE}={self.settings.transport}: the provider's address has {len(address)} "
                f"bytes, > {MAX_ADDRESS_BYTES}"
            )
        return address

    def connect(
        self,
        result: RendezvousResult,
        make_segment: MakeSegment,
        deadline: Deadline,
        coordination: Coordination,
        failure: SharedFailure,
    ) -> Mesh:
        """Connect to all ranks, and close the sockets that are no longer needed."""
        world = self._world(result, make_segment)
        _log_unused(world)
        remote = world.remote
        if world.ties_interfaces and not any(map(world.shares_machine, remote)):
            for listener, endpoint in zip(self._tcp, self.info.endpoints, strict=True):
                bind_to_device(listener, endpoint.interface)
        listeners = [self._unix] if len(remote) < len(world.members) - 1 else []
        listeners += self._tcp if remote else []
        for listener in listeners:
            listener.listen(BACKLOG)
        if remote:
            failure.publish_listening()
        full_mesh = FullMesh(world, listeners, deadline, failure)
        self._opened.callback(full_mesh.close)
        made = full_mesh.run()
        provided: Mapping[int, Sequence[Lane]] = {}
        if self._provider is not None:
            meanwhile = Deadline(deadline.remaining_s, full_mesh.serve)
            provided = self._provider.connect([info.provider for info in result.infos], meanwhile)
        rdma_lanes: Mapping[int, tuple[_core.RdmaLaneEnd, ...]] = {}
        if self._rdma is not None:
            # Over authenticated connections only; no rank sends before all can receive.
            self._rdma.make(remote, self._slot_bytes)
            mine = self._rdma.describe()
            theirs = full_mesh.exchange(mine, {rank: len(one) for rank, one in mine.items()})
            self._rdma.attach(theirs)
        full_mesh.join()
        if self._rdma is not None:
            rdma_lanes = self._rdma.start()
        links = _links(world, made, provided, rdma_lanes)
        full_mesh.close()
        kept = tuple(self._tcp) if remote else ()
        for unused in {self._unix, *self._tcp} - set(kept):
            unused.close()
        return Mesh(world, links, kept, self._provider, coordination, result.shared)

    def settle_transport(
        self,
        infos: Sequence[PeerInfo],
        store: SealedStore,
        deadline: Deadline,
        failure: SharedFailure,
    ) -> None:
        """Change `auto` to `verbs` if every rank can use RDMA; else the device is not kept open."""
        if self.settings.transport != AUTO or not any(info.rdma for info in infos):
            return
        node = self.info.identity.node
        remote = [rank for rank, info in enumerate(infos) if info.identity.node != node]
        num_nodes = len({info.identity.node for info in infos})
        if num_nodes == 1 or not rdma_is_agreed([info.rdma for info in infos]):
            return
        rdma, problem = None, ""
        try:
            rdma = self._open_rdma()
            rdma.make(remote, self._slot_bytes)
        except RuntimeError as error:  # an HcclError, or the system's, e.g. for descriptors
            problem = f"rank {self._rank} on {self.info.identity.host}: {error}"
        problem = first_problem(store, self._rank, len(infos), problem, deadline, failure.poll)
        if problem:
            log = logger.warning if self._rank == 0 else logger.info
            log("HCCL_TRANSPORT=auto: TCP instead of RDMA: %s", problem)
        else:
            self._rdma = rdma
            self.settings = replace(self.settings, transport=VERBS)

    def _open_rdma(self) -> "RdmaLanes":
        # Imported here, because it imports all of verbs.
        from hccl_py.transport.providers.verbs.lanes import RdmaLanes

        return RdmaLanes(self._num_lanes, self._interfaces)

    def _world(self, result: RendezvousResult, make_segment: MakeSegment) -> World:
        members = tuple(
            Member(rank, info.identity, info.unix_name, info.endpoints, info.certificate)
            for rank, info in enumerate(result.infos)
        )
        shares_memory = self.settings.transport in (AUTO, VERBS)
        node = self.info.identity.node
        on_node = tuple(one.rank for one in members if one.identity.node == node)
        local_ranks = on_node if shares_memory else (self._rank,)
        if self._tls is not None:
            self._tls.trust(one.certificate for one in members if one.rank not in local_ranks)
        return World(
            self._rank,
            members,
            result.communicator_id,
            result.secret,
            make_segment(local_ranks),
            self.info.num_lanes if self._provider is None and self._rdma is None else 0,
            self.settings.has_paths,
            self.settings.num_connections,
            self._tls,
            shares_memory,
        )


def _coordination(result: RendezvousResult, rank: int) -> Coordination:
    machine = result.infos[rank].identity.machine
    addresses = tuple(
        info.control if info.identity.machine == machine else replace(info.control, unix_name="")
        for info in result.infos
    )
    members = ControlMembers(result.communicator_id, rank, addresses, result.secret)
    return Coordination(members)


def _log_unused(world: World) -> None:
    me = world.me
    fewest = min(
        (member for member in world.members if member.identity.node != me.identity.node),
        key=lambda member: len(member.endpoints),
        default=me,
    )
    if len(fewest.endpoints) < len(me.endpoints):
        interfaces = ", ".join(endpoint.interface for endpoint in me.endpoints)
        logger.warning(
            f"rank {me.rank} has {len(me.endpoints)} interfaces ({interfaces}), {fewest} has "
            f"{len(fewest.endpoints)}: connections with it use the first {len(fewest.endpoints)}"
        )


def _links(
    world: World,
    made: Mapping[Key, PendingConnection],
    provided: Mapping[int, Sequence[Lane]],
    rdma_lanes: Mapping[int, tuple[_core.RdmaLaneEnd, ...]],
) -> tuple[Link, ...]:
    """Hand over the finished connections; nothing can fail once the first is detached."""
    links = []
    for peer in (member.rank for member in world.members if member.rank != world.rank):
        if world.is_local(peer):
            control = made[Key(peer, CONTROL, 0)]
            links.append(Link(peer, (control.detach(),), (), (), control.descriptors))
            continue
        paths = range(world.num_paths(peer))
        controls, *lanes = [
            tuple(made[Key(peer, index, path)].detach() for path in paths)
            for index in range(1 + world.num_lanes_at_start)
        ]
        names = tuple(world.path_name(peer, path) for path in paths)
        of_provider = tuple(provided.get(peer, ()))
        of_device = rdma_lanes.get(peer, ())
        links.append(Link(peer, controls, tuple(lanes), names, None, of_provider, of_device))
    return tuple(links)
