"""Makes the C++ engine of a communicator and gives it its connections.

`communicator.py` owns the result; `transport/bootstrap/mesh.py` connects ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hccl_py.plan.tiles import NUM_CHANNELS, slot_bytes
from hccl_py.progress_file import PROGRESS
from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.bootstrap.mesh import Mesh, Terms, connect
from hccl_py.transport.bootstrap.reconnect import Reconnector
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Identity, count_cores
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.network.sockets import OpenSockets
from hccl_py.transport.network.system_calls import usable_cores
from hccl_py.transport.network.transports import VERBS_OVER_TCP
from hccl_py.transport.progress import progress_thread

_MIN_SLOTS = 8

Connected = tuple[_core.Communicator, Mesh, OpenSockets, Reconnector | None]


def connect_engine(
    store: Any,
    rank: int,
    world_size: int,
    timeout_s: float,
    identity: Identity | None,
    *,
    ask: Callable[[], Terms],
) -> Connected:
    """Find the other ranks at the store and connect an engine to all of them.

    The ranks compare the results of `ask`; all get rank 0's shared settings as `Mesh.shared`.

    Return the engine, the mesh, the sockets that a forked child closes, and the object that
    replaces broken connections (None if there are none to replace).
    """
    core: _core.Communicator | None = None

    def make_segment(local_ranks: tuple[int, ...]) -> tuple[int, int, int]:
        nonlocal core
        arena = arena_of_this_process()
        try:
            core = _core.Communicator.create(
                progress=progress_thread(),
                rank=rank,
                world_size=world_size,
                local_ranks=list(local_ranks),
                num_channels=NUM_CHANNELS,
                num_slots=max(_MIN_SLOTS, 2 * len(local_ranks)),
                slot_bytes=slot_bytes(world_size),
                checksum=NetworkSettings.from_environment().checksum,
                arena=arena,
            )
        except (OSError, MemoryError) as error:
            raise BootstrapError(f"rank {rank}: {error.args[-1]}") from None
        return core.segment_fd(), core.doorbell_fd(), arena.fd()

    PROGRESS.note_connecting()
    mesh = connect(
        store,
        rank,
        world_size,
        make_segment=make_segment,
        num_lanes=NUM_CHANNELS + 1,  # the last one is for send and recv
        slot_bytes=slot_bytes(world_size),
        timeout_s=timeout_s,
        identity=identity,
        ask=ask,
    )
    assert core is not None
    sockets = _attach(core, mesh, rank)
    repair = None
    if mesh.listeners:
        repair = Reconnector(core, mesh.world, mesh.listeners, sockets)
    return core, mesh, sockets, repair


def _cores_of(ranks: Sequence[Identity]) -> int:
    """Count the cores that ranks of this host may use together; each may be bound to some."""
    usable, mine = _core.usable_cores(), len(usable_cores())
    if usable < mine:  # a quota of the cgroup, which all ranks share
        return usable
    return max(usable, count_cores(ranks))


def _attach(core: _core.Communicator, mesh: Mesh, rank: int) -> OpenSockets:
    identities = [member.identity for member in mesh.world.members]
    here = [one for one in identities if one.host == identities[rank].host]
    num_threads = 1 if mesh.provider is None else 2  # that keep a core busy: a provider has its own
    core.set_ranks_on_host(num_threads * len(here), _cores_of(here))
    settings = NetworkSettings.from_environment()
    sockets = OpenSockets()
    over_rdma = next((link.rdma_lanes for link in mesh.links if link.rdma_lanes), ())
    for registrations in {lane.registrations()[0] for lane in over_rdma}:  # of devices in use
        core.add_memory(registrations)
    for link in mesh.links:
        for connections in (link.controls, *link.lanes):
            for connection in connections:
                sockets.add(connection)
        if link.provided:
            (control,) = link.controls
            assert isinstance(control, int), "a provider's control connections are never TLS"
            core.add_lanes(link.rank, link.provided, control)
        elif link.shared is not None:
            core.add_shm_peer(link.rank, *link.shared, *link.controls)
        elif link.rdma_lanes:
            (control,) = link.controls
            core.add_rdma_peer(link.rank, list(link.rdma_lanes), control)  # type: ignore[arg-type]
        elif settings.transport == VERBS_OVER_TCP:
            first_paths, (control,) = [lane[0] for lane in link.lanes], link.controls
            thread, name = progress_thread(), link.paths[0]
            core.add_verbs_peer(thread, link.rank, first_paths, control, name)  # type: ignore[arg-type]
        else:
            lanes = [list(lane) for lane in link.lanes]
            core.add_tcp_peer(link.rank, lanes, list(link.controls), list(link.paths))
    if settings.cores:
        core.assume_cores(*settings.cores)
    return sockets
