"""The queue pairs of one communicator, for each lane to each rank of another node.

The steps are those of the bootstrap: `describe` before the ranks exchange what it returns, `attach`
with what they got, `start` once all ranks have come so far. So no packet meets a queue pair that
cannot receive yet or has no RECV, and none that belongs to a rank that has not proved itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.providers.registry import VARIABLE
from hccl_py.transport.providers.verbs.opened import DESCRIPTION, OpenedPort
from hccl_py.transport.providers.verbs.settings import RdmaSettings
from hccl_py.transport.verbs.types import State

_TIMEOUT_UNIT_S = 4.096e-6


class RdmaLanes:
    """Opens the device; the queue pairs then belong to the engine."""

    def __init__(self, num_lanes: int, interfaces: Collection[str]) -> None:
        """Open; `interfaces` are those of the control connections."""
        self._settings = RdmaSettings.from_environment()
        self._num_lanes = num_lanes
        try:
            self._opened = OpenedPort(self._settings, interfaces)
            self._registrations = _core.RdmaRegistrations.create(
                _core.RdmaDomain(self._opened.core),
                arena_of_this_process(),
                self._settings.registered_bytes,
            )
        except HcclError as error:
            raise BootstrapError(f"{VARIABLE}=verbs: {error}") from error
        self._ends: dict[int, tuple[_core.RdmaLaneEnd, ...]] = {}

    def describe(self, ranks: Iterable[int], slot_bytes: int) -> dict[int, bytes]:
        """Make the queue pairs to these ranks, and say what each rank has to know of its own.

        Args:
            slot_bytes: the most that a message has.
        """
        self._opened.log()
        timeout_s = _TIMEOUT_UNIT_S * 2**self._settings.timeout_code
        retries = self._settings.retry_count
        for rank in sorted(ranks):
            try:
                self._ends[rank] = tuple(
                    _core.RdmaLaneEnd(
                        self._registrations,
                        self._settings.num_pairs,
                        slot_bytes,
                        timeout_s,
                        retries,
                    )
                    for _ in range(self._num_lanes)
                )
            except HcclError as error:
                raise BootstrapError(f"making queue pairs with rank {rank}: {error}") from error
        describe = self._opened.describe
        return {rank: b"".join(map(describe, self._pairs(rank))) for rank in self._ends}

    def attach(self, described: Mapping[int, bytes]) -> None:
        """Step to RTR with what the ranks said of theirs."""
        for rank, packed in described.items():
            ends = [
                packed[at : at + DESCRIPTION.size] for at in range(0, len(packed), DESCRIPTION.size)
            ]
            for pair, end in zip(self._pairs(rank), ends, strict=True):
                try:
                    pair.attach(self._opened.read_description(end))
                    pair.modify(State.RTR)
                except HcclError as error:
                    raise BootstrapError(
                        f"connecting a queue pair with rank {rank}, from GID {self._opened.gid}: "
                        f"{error}; are both GIDs of one network? see HCCL_IB_GID_INDEX"
                    ) from error

    def start(self) -> dict[int, tuple[_core.RdmaLaneEnd, ...]]:
        """Step to RTS; return the lanes by rank, and keep none."""
        for rank in self._ends:
            for pair in self._pairs(rank):
                pair.modify(State.RTS)
        started, self._ends = self._ends, {}
        return started

    def _pairs(self, rank: int) -> list[_core.RdmaQueuePair]:
        return [pair for end in self._ends[rank] for pair in end.pairs()]
