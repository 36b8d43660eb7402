"""What torch asks a process group about itself; the collectives stand in `process_group.py`.

A Python subclass of torch's ProcessGroup has no C++ backend inside. The names in camel case are
those C++ calls back (it would fail without them); the others are asked by torch's Python code, and
the C++ answers would raise or crash. `_get_backend` returns the group itself, so what torch asks
a backend is answered here too. `new_group` must not be defined: torch would delegate to it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore

from hccl_py.torch_backend.types import seconds_of
from hccl_py.torch_backend.work import as_torch_error
from hccl_py.transport.errors import HcclError, InvalidArgumentError

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator
    from hccl_py.observe.statistics import Statistics

    class _Base:
        """The stub's overloads name C++ signatures that no Python method can match."""

        def __init__(self, rank: int, world_size: int) -> None: ...
        def rank(self) -> int: ...  # noqa: D102
        def size(self) -> int: ...  # noqa: D102
else:
    _Base = dist.ProcessGroup


@dataclass(frozen=True)
class GroupOptions:
    """What a group needs of torch's `_DistributedBackendOptions`."""

    group_rank: int
    group_size: int
    store: Any
    global_ranks_in_group: list[int]
    group_id: str


class TorchSurface(_Base):
    """Identity, capabilities and clocks of a group."""

    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False
    supports_time_estimate = False
    bound_device_id = None
    use_pg_for_symm_mem_rendezvous = False

    def __init__(self, communicator: Communicator, options: Any) -> None:
        """Keep what torch will ask for.

        Args:
            communicator: carries the data.
            options: torch's `_DistributedBackendOptions` of the group.
        """
        # The constructor with a store is broken for Python subclasses in torch 2.13.
        super().__init__(options.group_rank, options.group_size)
        self._communicator = communicator
        communicator.exclude_from_groups()  # torch takes a call that returned for done
        self._store = options.store
        self._global_ranks = list(options.global_ranks_in_group)
        self._name: str = options.group_id
        self._description = ""
        self._sequence_number = 0
        self._monitored_barriers = 0
        self._splits: Counter[tuple[int, ...]] = Counter()

    def getBackendName(self) -> str:  # noqa: N802
        """Return what `pg.name()` and DDP's log say."""
        return "hccl"

    _get_backend_name = getBackendName

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name under which functional collectives look the group up."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return that name."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Take the description that the user gave."""
        self._description = description
        recorder = self._communicator.flight_recorder
        recorder.group = recorder.group._replace(description=description)

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return that description."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        # From 2.15 on torch asks while it makes a group, and attaches a recorder to a C++ backend
        # of each device; only with none does it leave a group that is all Python alone.
        groups: Any = dist.distributed_c10d._world.pg_map
        being_made = self not in groups
        return [] if being_made else [torch.device("cpu")]

    def _get_backend(self, device: torch.device | str) -> TorchSurface:
        # Its tensors are staged, see torch_staging.py.
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if torch.device(device).type in ("cpu", accelerator and accelerator.type):
            return self
        raise RuntimeError(f"hccl carries no tensors on {device}")

    def get_group_store(self) -> Any:
        """Return the store that the group was made with."""
        return self._store

    @property
    def options(self) -> Any:
        """The group's settings, as torch's Backend.Options."""
        timeout = timedelta(seconds=self._communicator.timeout_s)
        options = Backend.Options("hccl", timeout)
        options.global_ranks_in_group = self._global_ranks
        options.group_name = self._name  # type: ignore[assignment]
        return options

    def statistics(self) -> Statistics:
        """Return what this rank counted in this group; what there is stands in `Statistics`."""
        return self._communicator.statistics()

    def dump_flight_recorder(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the last calls of all groups of this rank; see `Communicator`'s."""
        return self._communicator.dump_flight_recorder(folder)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Change how long a call without a timeout of its own may take."""
        self._communicator.timeout_s = seconds_of(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence_number = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence_number

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: any memory will do, none need come from us."""
        return False

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Do nothing: the group connected when it was made."""

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Do nothing: this is for hooks, of which there are none."""

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> TorchSurface | None:
        """Return a group of some ranks of this one, of which torch does not know.

        `torch.distributed.split_group` and `new_group` make one that torch knows.

        Args:
            ranks: of this group, in the order that they are to have; all of them call.
            timeout: of the new group; None: as here.
            opts: there is nothing to set.
            group_name: of the new group, the same on all of its ranks.
            group_desc: for the user.
            device_types: there is nothing to choose.

        Returns:
            The group; None on a rank that is not in it.

        Raises:
            InvalidArgumentError: these are not ranks of this group.
            DistBackendError: a rank did not come, or died.
        """
        members = [int(rank) for rank in ranks]
        if self.rank() not in members:
            return None
        self._splits[tuple(members)] += 1
        part = f"split/{'-'.join(map(str, members))}/{self._splits[tuple(members)]}"
        name = group_name or f"{self._name}/{part}"
        limit_s = None if timeout is None else timeout.total_seconds()
        try:
            made = self._communicator.subset(members, name, timeout_s=limit_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        everybody = self._global_ranks or range(self.size())
        global_ranks = [everybody[rank] for rank in members]
        recorder = made.flight_recorder
        recorder.group = recorder.group._replace(global_ranks=tuple(global_ranks))
        store = PrefixStore(part, self._store)
        group = type(self)(
            made, GroupOptions(made.rank, made.world_size, store, global_ranks, name)
        )
        group.setGroupDesc(group_desc or f"{self._description}:split")
        return group

    def merge_remote_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: groups are made of ranks of the default group, or at a store."""
        raise InvalidArgumentError(
            "merge_remote_group: hccl groups cannot be merged; put all ranks in one job with "
            "torch.distributed.init_process_group, and make the parts with new_group(ranks)"
        )

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Block until every rank came, or raise naming those that did not.

        Meets in the store, so it works where the data plane is stuck.

        Args:
            timeout: how long to wait; None: the group's timeout.
            wait_all_ranks: name all missing ranks instead of the first.
        """
        limit = timeout or timedelta(seconds=self._communicator.timeout_s)
        self._monitored_barriers += 1
        key = f"monitored_barrier/{self._monitored_barriers}"
        self._store.set(f"{key}/{self.rank()}", "here")
        if self.rank() == 0:
            missing = self._missing_ranks(key, limit, wait_all_ranks)
            self._store.set(key, ", ".join(str(rank) for rank in missing))
        else:
            # Rank 0 answers only when its own time is over.
            if not self._comes(key, limit + timedelta(seconds=10)):
                raise dist.DistBackendError(
                    f"monitored_barrier on rank {self.rank()}: Timed out after "
                    f"{limit.total_seconds() + 10:g} s; rank(s) 0 did not come, or lost the store"
                )
        missing_text = self._store.get(key).decode()
        if missing_text:
            raise dist.DistBackendError(
                f"monitored_barrier on rank {self.rank()}: Timed out after "
                f"{limit.total_seconds():g} s; rank(s) {missing_text} did not come"
            )

    def _missing_ranks(self, key: str, limit: timedelta, wait_all_ranks: bool) -> list[int]:
        deadline = time.monotonic() + limit.total_seconds()
        missing = []
        for rank in range(1, self.size()):
            rest = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
            if not self._comes(f"{key}/{rank}", rest):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        return missing

    def _comes(self, key: str, limit: timedelta) -> bool:
        """Wait until `key` is in the store; tell whether it came in time."""
        try:
            self._store.wait([key], limit)
        except RuntimeError as error:  # that of a FileStore has no type of its own
            if "timeout" not in str(error).lower():
                raise
            return False
        return True
