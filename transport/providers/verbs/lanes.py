"""The queue pairs of one communicator, for each lane to each rank of another node.

Each lane has queue pairs on every device. It uses one device, and the next one when that fails;
lanes start with different devices.

The steps follow the bootstrap: `make` needs no peer; ranks exchange the results of `describe` and
pass them to `attach`; `start` follows once all ranks have attached. So packets only reach queue
pairs that can receive, have RECVs posted, and belong to an authenticated rank.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping

from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.memory_watch import watch_of_this_process
from hccl_py.transport.providers.verbs.opened import DESCRIPTION, OpenedPort
from hccl_py.transport.providers.verbs.settings import MOST_PAIRS, RdmaSettings
from hccl_py.transport.providers.verbs.types import State

_TIMEOUT_UNIT_S = 4.096e-6
_COUNTS = struct.Struct("!II")
"""Devices of each lane, and queue pairs on each; their descriptions follow, lane by lane."""
_MOST_DESCRIBED = 2 * MOST_PAIRS
_LANE_BYTES = _MOST_DESCRIBED * DESCRIPTION.size
"""A hash of a lane's descriptions, device by device."""


class RdmaLanes:
    """Opens the device; the queue pairs then belong to the engine."""

    def __init__(self, num_lanes: int, interfaces: Collection[str]) -> None:
        """Open the device; `interfaces` carry the control connections."""
        self._settings = RdmaSettings.from_environment()
        self._num_lanes = num_lanes
        try:
            self._ports = OpenedPort.chosen(self._settings, interfaces)
            watch = watch_of_this_process() if self._settings.registered_bytes else None
            self._registrations = [
                _core.RdmaRegistrations.create(
                    _core.RdmaDomain(port.core),
                    arena_of_this_process(),
                    watch,
                    self._settings.registered_bytes,
                )
                for port in self._ports
            ]
        except HcclError as error:
            raise BootstrapError(str(error)) from error
        self._ends: dict[int, tuple[_core.RdmaLaneEnd, ...]] = {}

    def make(self, ranks: Iterable[int], slot_bytes: int) -> None:
        """Make missing queue pairs to these ranks. Nothing is sent.

        Args:
            slot_bytes: longest message.
        """
        timeout_s = _TIMEOUT_UNIT_S * 2**self._settings.timeout_code
        retries = self._settings.retry_count
        for rank in sorted(set(ranks) - set(self._ends)):
            try:
                self._ends[rank] = tuple(
                    _core.RdmaLaneEnd(
                        [self._registrations[device] for device in self._devices(lane)],
                        self._settings.num_pairs,
                        slot_bytes,
                        timeout_s,
                        retries,
                    )
                    for lane in range(self._num_lanes)
                )
            except HcclError as error:
                raise BootstrapError(f"making queue pairs with rank {rank}: {error}") from error

    def describe(self) -> dict[int, bytes]:
        """Return, by rank, the description of its queue pairs."""
        for port in self._ports:
            port.log()
        return {rank: self._describe(rank) for rank in self._ends}

    def _devices(self, lane: int) -> list[int]:
        """Return a lane's devices in its order: lanes take turns with the first one."""
        there = len(self._ports)
        used = min(there, _MOST_DESCRIBED // self._settings.num_pairs)
        return [(lane + turn) % there for turn in range(used)]

    def _describe(self, rank: int) -> bytes:
        """Describe all queue pairs to a rank, in a fixed number of bytes."""
        packed = _COUNTS.pack(len(self._devices(0)), self._settings.num_pairs)
        for lane, end in enumerate(self._ends[rank]):
            of_lane = b"".join(port.describe(pair) for port, pair in self._pairs(lane, end))
            packed += of_lane.ljust(_LANE_BYTES, b"\0")
        return packed

    def attach(self, described: Mapping[int, bytes]) -> None:
        """Step to RTR with the ranks' descriptions; the rank with fewer devices decides."""
        for rank, packed in described.items():
            num_devices, num_pairs = _COUNTS.unpack_from(packed)
            if num_pairs != self._settings.num_pairs:
                raise BootstrapError(
                    f"rank {rank} has {num_pairs} queue pairs for each lane, this rank "
                    f"{self._settings.num_pairs}: set HCCL_IB_QPS_PER_CONNECTION to one value on "
                    "all ranks"
                )
            if num_devices < 1:
                raise BootstrapError(f"rank {rank} has no RDMA device for its lanes, expected one")
            for lane, end in enumerate(self._ends[rank]):
                end.keep(num_devices)
                at = _COUNTS.size + lane * _LANE_BYTES
                for port, pair in self._pairs(lane, end):
                    self._connect(rank, port, pair, packed[at : at + DESCRIPTION.size])
                    at += DESCRIPTION.size

    def _connect(
        self, rank: int, port: OpenedPort, pair: _core.RdmaQueuePair, theirs: bytes
    ) -> None:
        try:
            pair.attach(port.read_description(theirs))
            pair.modify(State.RTR)
        except HcclError as error:
            raise BootstrapError(
                f"connecting a queue pair with rank {rank}, from GID {port.gid}: "
                f"{error}; are both GIDs of one network? see HCCL_IB_GID_INDEX"
            ) from error

    def start(self) -> dict[int, tuple[_core.RdmaLaneEnd, ...]]:
        """Step to RTS; return the lanes by rank, and release them."""
        for ends in self._ends.values():
            for end in ends:
                for pair in end.pairs():
                    pair.modify(State.RTS)
        started, self._ends = self._ends, {}
        return started

    def _pairs(
        self, lane: int, end: _core.RdmaLaneEnd
    ) -> Iterator[tuple[OpenedPort, _core.RdmaQueuePair]]:
        """Yield a lane's queue pairs, each with its port, device by device."""
        for index, pair in enumerate(end.pairs()):
            device = self._devices(lane)[index // self._settings.num_pairs]
            yield self._ports[device], pair
