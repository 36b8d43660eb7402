"""What torch's two kinds of group share besides collectives: settings, other groups, the end."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType, PrefixStore

from hccl_py.diagnosis.exceptions import describe_error, ends_by_exception
from hccl_py.torch_backend.checks.arguments import seconds_of
from hccl_py.torch_backend.submit import CallingGroup
from hccl_py.torch_backend.work import as_torch_error
from hccl_py.transport.errors import AbortedError, CollectiveTimeoutError, HcclError
from hccl_py.transport.threads import is_of_signal_handler

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator
    from hccl_py.observe.statistics import Statistics

_ANSWER_S = 10.0
"""Extra time to wait for rank 0's answer, because rank 0 waits for the timeout too."""

GROUPS: weakref.WeakSet[GroupIdentity] = weakref.WeakSet()
"""All groups of this process."""


class GroupIdentity(CallingGroup):
    """A group without its collectives."""

    supports_splitting = False
    supports_coalescing = False
    supports_reconfigure = False
    supports_shrinking = hasattr(dist.distributed_c10d, "_create_shrunk_process_group")
    supports_time_estimate = False
    use_pg_for_symm_mem_rendezvous = False
    shown_as = ""
    """The name in torch's records; empty: its own. See `replace_gloo.py`."""
    before_shutdown: Callable[[], object] | None = None
    """Called once, at a regular end of the group."""

    def __init__(
        self, communicator: Communicator, store: Any, global_ranks: Sequence[int], name: str
    ) -> None:
        """Make a group that owns `communicator` from now on.

        `store` belongs to this group; `global_ranks` is empty for the default group.
        """
        super().__init__(communicator)
        communicator.exclude_from_groups()  # torch's callers rely on finished calls
        self._store = store
        self._global_ranks = list(global_ranks)
        self._name = name
        self._description = ""
        self._splits: Counter[tuple[int, ...]] = Counter()
        self._num_barriers = 0
        self._describe(global_ranks=tuple(self.global_ranks))
        GROUPS.add(self)

    def _describe(self, **changes: Any) -> None:
        recorder = self.communicator.flight_recorder
        recorder.member = recorder.member._replace(**changes)

    @property
    def global_ranks(self) -> list[int]:
        """The ranks of this group's members in the default group."""
        return self._global_ranks or list(range(self._world_size))

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name that `pg.name()` and DDP's log show, for a group of hccl alone."""
        return "hccl"

    _get_backend_name = getBackendName

    def get_group_store(self) -> Any:
        """Return the store that the group was made with."""
        return self._store

    @property
    def options(self) -> Any:
        """The group's settings, as torch's Backend.Options."""
        options = Backend.Options("hccl", timedelta(seconds=self.communicator.timeout_s))
        options.global_ranks_in_group = self._global_ranks
        options.group_name = self._name  # type: ignore[assignment]
        return options

    def statistics(self) -> Statistics:
        """Return this rank's counters of this group, see `Statistics`."""
        return self.communicator.statistics()

    def dump_flight_recorder(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the last calls of all groups of this rank; see `Communicator`'s method."""
        return self.communicator.dump_flight_recorder(folder)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set the default timeout of calls."""
        for communicator in self.carriers():
            communicator.timeout_s = seconds_of(timeout)

    _set_default_timeout = set_timeout

    def get_error(self) -> Any:
        """Return torch's ErrorType of this group's failure; an abort on purpose is none."""
        core = self.communicator._state.core
        if core is None or not core.failed():
            return ErrorType.SUCCESS
        failure = core.failure()  # None: the diagnosis is not complete
        error = failure and self.communicator._state.errors.of_failure(failure)
        if isinstance(error, AbortedError):
            return ErrorType.SUCCESS
        late = isinstance(error, CollectiveTimeoutError)
        return ErrorType.TIMEOUT if late else ErrorType.COMM_ERROR

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the engine counts the calls."""

    def _get_sequence_number_for_group(self) -> int:
        number: int = self.communicator._state.require_engine().sequence()
        return number

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: hccl needs no memory of its own."""
        return False

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Block until every rank calls it, or raise an error that names the missing ranks.

        Ranks meet at the store, so this works while a collective hangs. `timeout` None is the
        group's; `wait_all_ranks`: name all missing ranks instead of the first.
        """
        limit_s = self.communicator.timeout_s if timeout is None else seconds_of(timeout)
        self._num_barriers += 1
        store = PrefixStore(f"monitored_barrier/{self._num_barriers}", self._store)
        store.set(str(self._rank), "here")
        if self._rank == 0:
            deadline = time.monotonic() + limit_s
            missing: list[str] = []
            for rank in map(str, range(1, self._world_size)):
                # Torch's stores treat 0 as no limit; here, as with gloo, no rank arrives in time.
                if limit_s <= 0 or not _comes(store, rank, deadline - time.monotonic()):
                    missing.append(rank)
                    if not wait_all_ranks:
                        break
            store.set("missing", ", ".join(missing))
        elif not _comes(store, "missing", limit_s + _ANSWER_S):
            raise barrier_failed(self._rank, limit_s + _ANSWER_S, "0", ", or lost the store")
        named = store.get("missing").decode()
        if named:
            raise barrier_failed(self._rank, limit_s, named)

    def shutdown(self) -> None:
        """Leave the group regularly: see `Communicator.close`. Later calls fail."""
        step, self.before_shutdown = self.before_shutdown, None
        try:
            if step is not None:
                step()
            if not ends_by_exception():
                self.drain()
                self.unended.wait()
        except BaseException as error:
            # Otherwise `close` waits for started calls, after a SystemExit.
            self._abort(f"shutdown was interrupted: {describe_error(error)}")
            raise
        finally:
            self._close()

    def abort(self) -> None:
        """Fail all calls in flight, here and on the other ranks."""
        self._abort("ProcessGroup.abort() was called")

    def _abort(self, reason: str) -> None:
        for communicator in self.carriers():
            communicator.abort(reason)

    def _close(self) -> None:
        for communicator in self.carriers():
            communicator.close()

    def subset(self, members: Sequence[int], name: str, timeout_s: float | None) -> Communicator:
        """Return a communicator of some ranks of this group; see `split_group`."""
        self.drain()
        try:
            return self.communicator.subset(members, name, timeout_s=timeout_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, pg_options: object = None
    ) -> GroupIdentity:
        """Return a group of the other ranks; `dist.shrink_group` replaces this group by it.

        Dead ranks are left out whether named or not.

        Args:
            ranks_to_exclude: of this group; the same on all other ranks, which must all call this.
            shrink_flags: SHRINK_ABORT ends calls in flight first.

        Raises:
            DistBackendError: on all callers: too few ranks arrived, or they could not connect.
        """
        if shrink_flags:
            self._abort("shrink_group was called with SHRINK_ABORT")
        self.drain()
        try:
            left = self.communicator.shrink(ranks_to_exclude)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        # The default group has no list of ranks; the remaining ranks are renumbered.
        ranks = [self._global_ranks[rank] for rank in left.old_ranks if self._global_ranks]
        part = f"shrunk/{left.flight_recorder.member.id.hex()}"
        return self._derived(left, part, ranks, left.name)

    def _derived(
        self, communicator: Communicator, part: str, ranks: list[int], name: str
    ) -> GroupIdentity:
        # Its own prefix: the new group must not read this one's keys.
        group = type(self)(communicator, PrefixStore(part, self._store), ranks, name)
        group.backends, group.shown_as = self.backends, self.shown_as
        return group


def barrier_failed(rank: int, elapsed_s: float, ranks: str, more: str = "") -> Exception:
    """Return the error of a monitored barrier that some ranks missed."""
    return dist.DistBackendError(
        f"monitored_barrier on rank {rank}: Timed out after {elapsed_s:g} s; "
        f"rank(s) {ranks} did not come{more}"
    )


def _comes(store: Any, key: str, timeout_s: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=max(timeout_s, 0.001)))
    except RuntimeError as error:  # a FileStore's timeout has no specific type
        if "timeout" not in str(error).lower() or is_of_signal_handler(error):
            raise
        return False
    return True
