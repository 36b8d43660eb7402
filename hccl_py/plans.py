"""The plans of one communicator, by collective, size class and root: made at first use and kept."""

import os
from typing import NamedTuple

from hccl_py.algorithms import plans_for, verify_algorithm
from hccl_py.fingerprint import pack_call
from hccl_py.plan import lower
from hccl_py.topology import Topology
from hccl_py.transport import _core
from hccl_py.tuner import choose, size_class


class Prepared(NamedTuple):
    """A plan that the engine can run.

    Attributes:
        plan: the engine's form of it.
        call: the bits of the fingerprint that collective and root fix.
    """

    plan: _core.Plan
    call: int


class PlanCache:
    """Chooses, writes, lowers and keeps plans."""

    def __init__(self, rank: int, topology: Topology) -> None:
        """Start empty. `HCCL_VERIFY=1` proves every plan before its first use."""
        self._rank = rank
        self._topology = topology
        self._verify = os.environ.get("HCCL_VERIFY") == "1"
        self._prepared: dict[tuple[str, int, int | None], Prepared] = {}

    def get(self, collective: str, num_bytes: int, root: int | None = None) -> Prepared:
        """Return the plan for a call.

        Args:
            collective: its name.
            num_bytes: its size, equal on all ranks (0 where ranks cannot know).
            root: for a rooted collective.
        """
        key = (collective, size_class(num_bytes), root)
        try:
            return self._prepared[key]
        except KeyError:
            return self._prepared.setdefault(key, self._prepare(collective, num_bytes, root))

    def _prepare(self, collective: str, num_bytes: int, root: int | None) -> Prepared:
        algorithm = choose(collective, num_bytes, self._topology)
        if self._verify:
            verify_algorithm(collective, algorithm, self._topology, root)
        everyone = [lower(p) for p in plans_for(collective, algorithm, self._topology, root)]
        lowered = everyone[self._rank]
        plan = _core.make_plan(
            ops=[list(row) for row in lowered.ops],
            peers=list(lowered.peers),
            data_chunks=lowered.data_chunks,
            scratch_slots=lowered.scratch_slots,
            # Tiles have to be the same everywhere, so the widest op of any rank sizes them.
            max_chunk_span=max(one.max_chunk_span for one in everyone),
            rank=self._rank,
            world_size=self._topology.world_size,
        )
        return Prepared(plan, pack_call(collective, root))
