"""The state that the parts of one process group share: communicator, ranks, path of calls.

    ProcessGroupHccl (process_group.py)    what torch calls
      ├─ fast path (fast_path.py)          plain tensors, nothing to check: the communicator at once
      └─ CheckedCalls (checked.py)         the slow path: every other call
           └─ Submitter (submit.py)        runs a checked call: inline, in the background, staged

All of them hold the `GroupState` of this file.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hccl_py.torch_backend import owns
from hccl_py.torch_backend.future_threads import Lane

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator

FAST_METHODS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("barrier", "send", "recv"),
)
"""The communicator's methods that the fast path calls."""

STATES: weakref.WeakSet[GroupState] = weakref.WeakSet()
"""Of all groups of this process."""


@dataclass(frozen=True)
class GroupOptions:
    """What a group needs of torch's `_DistributedBackendOptions`."""

    group_rank: int
    group_size: int
    store: Any
    global_ranks_in_group: list[int]
    group_id: str


class GroupState:
    """The shared state of one process group.

    Attributes:
        communicator: carries the data.
        rank: of this process in the group.
        world_size: number of ranks.
        lane: where the futures of the group's collectives complete, in order.
        methods: of the communicator by name, each that blocks and then the one that does not.
        drain: blocks until every staged call before this one has been handed to the communicator.
        staging_busy: staged calls wait for the device; other calls must come after them.
        fast: calls on plain host tensors may take the fast path; see `choose_path`.
        sequence_number: number of collectives that were called.
        backend_config: what the user asked for, as torch writes it, for example "cpu:hccl".
        other_backends: the backends of device types that are not hccl's; None: not read yet.
    """

    def __init__(self, communicator: Communicator, rank: int, world_size: int) -> None:
        """Take over `communicator`."""
        self.communicator = communicator
        self.rank = rank
        self.world_size = world_size
        self.lane = Lane()
        # Looked up once: the fast path of a small call is not much longer than a lookup.
        self.methods = {
            name: (getattr(communicator, name), getattr(communicator.nonblocking, name))
            for name in FAST_METHODS
        }
        self.drain: Callable[[], None] = _nothing
        self.staging_busy = self.fast = False
        self.sequence_number = 0
        self.backend_config = ""
        self.other_backends: Mapping[str, str] | None = None
        STATES.add(self)

    def read_backends(self, group: object) -> Mapping[str, str]:
        """Return the backends of the devices that are not hccl's, as in "cpu:gloo,cuda:hccl".

        Torch gives such a group to hccl alone, and tells its devices only after it was made.
        """
        if self.other_backends is None:
            names: Any = dist.distributed_c10d._world.pg_backend_config
            self.set_backends(names.get(group, ""))
        return self.other_backends or {}

    def set_backends(self, config: str) -> None:
        """Keep the devices of other backends, whose tensors this group rejects."""
        self.backend_config = config
        pairs = [pair.split(":") for pair in config.split(",")]
        self.other_backends = {
            pair[0]: pair[1] for pair in pairs if len(pair) == 2 and not owns(pair[1])
        }
        self.choose_path()

    def choose_path(self) -> None:
        """Allow the fast path if no state of the group needs the checks of the slow one."""
        known = self.other_backends
        usable = known is not None and "cpu" not in known
        self.fast = usable and not self.staging_busy

    def describe(self, **changes: Any) -> None:
        """Change how the group appears in the flight recorder's files."""
        recorder = self.communicator.flight_recorder
        recorder.member = recorder.member._replace(**changes)


def _nothing() -> None:
    """Drain a group that has no staged calls."""
