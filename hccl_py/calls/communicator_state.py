"""State shared by the parts of a communicator: its engine while it is open."""

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hccl_py.algorithms.choice.shared import Shared
from hccl_py.algorithms.choice.tuner import Cores
from hccl_py.algorithms.choice.tuning import tuning_of
from hccl_py.calls.plan_cache import PlanCache
from hccl_py.compression import GainCheck
from hccl_py.diagnosis.errors import CallErrors
from hccl_py.diagnosis.reporter import Reporter
from hccl_py.observe.flight_recorder import FlightRecorder, Membership
from hccl_py.transport import _core
from hccl_py.transport.arguments import seconds
from hccl_py.transport.bootstrap.mesh import Mesh
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.errors import AbortedError
from hccl_py.transport.network.identity import Identity, are_crowded, count_cores
from hccl_py.transport.types import Compression

UNISSUED: dict[object, Callable[[], None]] = {}
"""Communicators with earlier calls of their process group still to be submitted; each with a
function that waits for that."""


@dataclass(eq=False)
class CommunicatorState:
    """One rank's part of a communicator, shared by its collectives, Works and reports."""

    name: str
    rank: int
    world_size: int
    calls: _core.EngineState  # the engine and the default deadline, for calls made in C++
    coordination: Coordination | None  # None: this rank is alone
    reporter: Reporter
    recorder: FlightRecorder
    plans: PlanCache
    errors: CallErrors
    gain: GainCheck
    compression: Compression = Compression.NONE  # default of calls
    in_groups: bool = True  # whether `hccl_py.group()` collects the calls
    forked: bool = False  # this process is a child of the rank
    num_windows: int = 0  # made so far
    num_grows: int = 0  # begun so far
    owner: "weakref.ref[Any] | None" = None  # the Communicator
    ended: str = "is closed"  # for errors of calls after the end
    goes_on: bool = False  # a communicator that shrink or grow returned took this one's place

    @property
    def core(self) -> Any:
        """The engine; None once the communicator is closed, or in a forked child."""
        return self.calls.engine

    @core.setter
    def core(self, core: Any) -> None:
        self.calls.engine = core

    @property
    def timeout_s(self) -> float:
        """Default deadline of every call."""
        return self.calls.timeout_s

    def limit(self, timeout_s: float | None) -> float:
        """Return the deadline of a call, in seconds."""
        return self.timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

    def require_engine(self) -> _core.Communicator:
        """Return the engine; raise AbortedError after close()."""
        core: _core.Communicator | None = self.core
        if core is not None:
            return core
        if self.forked:
            raise AbortedError(
                "this process was forked from a rank and is no rank itself: the communicator "
                f"{self.name} belongs to its parent. Communicate in the parent, or start the "
                "process with the spawn method and make a communicator (init_process_group) there"
            )
        raise AbortedError(
            f"[{self.name}, rank {self.rank} of {self.world_size}] the communicator {self.ended}"
        )


def assemble(
    member: tuple[str, int],
    timeout_s: float,
    core: _core.Communicator,
    mesh: Mesh,
    compression: Compression,
) -> CommunicatorState:
    """Make the state of a connected communicator; `member` is its name and this rank."""
    name, rank = member
    coordination = mesh.coordination
    processes = tuple((one.identity.host, one.identity.pid) for one in mesh.world.members)
    size = len(processes)
    # If it has all processes, its ranks are the job's; a process group sets its own.
    everyone = os.environ.get("WORLD_SIZE", str(size)) == str(size)
    membership = Membership(
        name,
        rank,
        id=coordination.members.communicator_id if coordination else b"",
        processes=processes,
        boot_id=Identity.of_this_process().boot_id,
        global_ranks=tuple(range(size)) if everyone else None,
        nodes=mesh.nodes,
    )
    clock = coordination.clock if coordination else lambda: None
    recorder = FlightRecorder(core, membership, clock)
    reporter = Reporter(core, recorder)
    survey = partial(reporter.survey, coordination.survey) if coordination else None
    errors = CallErrors(recorder, survey)
    if len(mesh.nodes) == 1:
        compression = Compression.NONE
    shared = Shared.parse(mesh.shared)
    tuning, reproducible = tuning_of(shared.tuning), shared.reproducible
    plans = PlanCache(
        rank,
        mesh.nodes,
        tuning,
        compression=compression,
        reproducible=reproducible,
        cores=_cores([member.identity for member in mesh.world.members]),
    )
    gain = GainCheck(name, is_open=rank == 0 and compression is not Compression.NONE)
    calls = _core.EngineState(core, timeout_s)
    parts = calls, coordination, reporter, recorder, plans, errors, gain, compression
    return CommunicatorState(name, rank, size, *parts)


def _cores(ranks: Sequence[Identity]) -> Cores:
    is_one_host = len({one.machine for one in ranks}) == 1
    return Cores(count_cores(ranks) if is_one_host else None, are_crowded(ranks))
