"""The queue pairs of one communicator, for each lane to each rank of another node.

The steps are those of the bootstrap: `describe` before the ranks exchange what it returns, `attach`
with what they got, `start` once all ranks have come so far. So no packet meets a queue pair that
cannot receive yet or has no RECV, and none that belongs to a rank that has not proved itself.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping

from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.memory_watch import watch_of_this_process
from hccl_py.transport.providers.registry import VARIABLE
from hccl_py.transport.providers.verbs.opened import DESCRIPTION, OpenedPort
from hccl_py.transport.providers.verbs.settings import MOST_PAIRS, RdmaSettings
from hccl_py.transport.verbs.types import State

_TIMEOUT_UNIT_S = 4.096e-6
_COUNT = struct.Struct("!I")
"""Queue pairs of each lane; their descriptions follow, lane by lane."""


class RdmaLanes:
    """Opens the device; the queue pairs then belong to the engine."""

    def __init__(self, num_lanes: int, interfaces: Collection[str]) -> None:
        """Open; `interfaces` are those of the control connections."""
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
            raise BootstrapError(f"{VARIABLE}=verbs: {error}") from error
        self._ends: dict[int, tuple[_core.RdmaLaneEnd, ...]] = {}

    def describe(self, ranks: Iterable[int], slot_bytes: int) -> dict[int, bytes]:
        """Make the queue pairs to these ranks, and say what each rank has to know of its own.

        Args:
            slot_bytes: the most that a message has.
        """
        for port in self._ports:
            port.log()
        timeout_s = _TIMEOUT_UNIT_S * 2**self._settings.timeout_code
        retries = self._settings.retry_count
        for rank in sorted(ranks):
            try:
                self._ends[rank] = tuple(
                    _core.RdmaLaneEnd(
                        self._registrations[lane % len(self._ports)],
                        self._settings.num_pairs,
                        slot_bytes,
                        timeout_s,
                        retries,
                    )
                    for lane in range(self._num_lanes)
                )
            except HcclError as error:
                raise BootstrapError(f"making queue pairs with rank {rank}: {error}") from error
        return {rank: self._describe(rank) for rank in self._ends}

    def _describe(self, rank: int) -> bytes:
        """Describe all queue pairs to a rank, in as many bytes whatever their number."""
        ends = b"".join(port.describe(pair) for port, pair in self._pairs(rank))
        room = self._num_lanes * MOST_PAIRS * DESCRIPTION.size
        return _COUNT.pack(self._settings.num_pairs) + ends.ljust(room, b"\0")

    def attach(self, described: Mapping[int, bytes]) -> None:
        """Step to RTR with what the ranks said of theirs."""
        for rank, packed in described.items():
            (num_pairs,) = _COUNT.unpack_from(packed)
            if num_pairs != self._settings.num_pairs:
                raise BootstrapError(
                    f"rank {rank} has {num_pairs} queue pairs for each lane, this rank "
                    f"{self._settings.num_pairs}: set HCCL_IB_QPS_PER_CONNECTION to one value on "
                    "all ranks"
                )
            for index, (port, pair) in enumerate(self._pairs(rank)):
                at = _COUNT.size + index * DESCRIPTION.size
                end = packed[at : at + DESCRIPTION.size]
                try:
                    pair.attach(port.read_description(end))
                    pair.modify(State.RTR)
                except HcclError as error:
                    raise BootstrapError(
                        f"connecting a queue pair with rank {rank}, from GID {port.gid}: "
                        f"{error}; are both GIDs of one network? see HCCL_IB_GID_INDEX"
                    ) from error

    def start(self) -> dict[int, tuple[_core.RdmaLaneEnd, ...]]:
        """Step to RTS; return the lanes by rank, and keep none."""
        for rank in self._ends:
            for _, pair in self._pairs(rank):
                pair.modify(State.RTS)
        started, self._ends = self._ends, {}
        return started

    def _pairs(self, rank: int) -> list[tuple[OpenedPort, _core.RdmaQueuePair]]:
        """Return all to this rank; the lanes take turns on the ports."""
        return [
            (self._ports[lane % len(self._ports)], pair)
            for lane, end in enumerate(self._ends[rank])
            for pair in end.pairs()
        ]
