"""A group whose members change: `init_process_group("hccl", enable_reconfigure=True)`.

torch's `_get_reconfigure_handle` and `_reconfigure` call the methods here, which use the rendezvous
of `membership/reconfigure.py`. A Backend of torch cannot change its rank and its size, so hccl is a
ProcessGroup then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch.distributed as dist

from hccl_py.communicator import Communicator
from hccl_py.membership.reconfigure import Member
from hccl_py.torch_backend.checks.arguments import seconds_of
from hccl_py.torch_backend.groups.identity import barrier_failed
from hccl_py.torch_backend.groups.process_group import ProcessGroupHccl
from hccl_py.torch_backend.work import FINISHED, as_torch_error
from hccl_py.transport.errors import HcclError
from hccl_py.transport.types import ReduceOp

_FINISH_S = 5.0
"""How long the calls that were started may still take, at most."""


class ReconfigurableGroup(ProcessGroupHccl):
    """A process group that is connected by `reconfigure` only, and by each anew.

    Before the first time, and after one that failed, its calls raise.
    """

    supports_reconfigure = True

    def __init__(
        self, communicator: Communicator, store: Any, global_ranks: Sequence[int], name: str
    ) -> None:
        """Make a group that owns `communicator` until it is connected anew."""
        super().__init__(communicator, store, global_ranks, name)
        self._member: Member | None = None  # one has a port

    @classmethod
    def unconnected(cls, options: Any) -> ReconfigurableGroup:
        """Make a group without members; until it has some, rank and size are as torch's options."""
        limit_s, name = seconds_of(options.timeout), options.group_id
        alone = Communicator(None, 0, 1, timeout_s=limit_s, name=name)
        alone.close()
        group = cls(alone, options.store, (), name)
        group._rank, group._world_size = options.group_rank, options.group_size
        group._disconnected("torch.distributed._reconfigure connects it")
        return group

    def rank(self) -> int:
        """Return this process's place among the members."""
        return self._rank

    def size(self) -> int:
        """Return the number of members."""
        return self._world_size

    getRank, getSize = rank, size  # noqa: N815

    def get_reconfigure_handle(self) -> str:
        """Return the text by which other members find this process; the same all the time."""
        return self._own_member().handle

    def _own_member(self) -> Member:
        if self._member is None:
            try:
                self._member = Member()
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return self._member

    def reconfigure(self, opts: Any) -> dist.Work:
        """Leave the present members and connect to those of torch's ReconfigureOptions.

        The calls that were started end first, or are aborted after a few seconds. A list of handles
        gives the ranks by its order, a set by the order of its sorted texts. `hints` are ignored.

        Returns:
            A finished Work.

        Raises:
            InvalidArgumentError: an argument is wrong, or the uuid was used. Nothing has changed.
            DistBackendError: a member ended, or did not arrive in time. The group is not connected.
        """
        given = opts.timeout
        limit_s = self.communicator.timeout_s if given is None else seconds_of(given)
        member = self._own_member()
        self.drain()
        try:
            epoch = member.epoch(opts.uuid, opts.handles)
            self._leave(f"the group was reconfigured, uuid {opts.uuid}", min(_FINISH_S, limit_s))
            self._disconnected(f"reconfigure with uuid {opts.uuid} failed; do it with another uuid")
            name = f"{self._name}/{opts.uuid}"
            made = epoch.connect(limit_s, partial(Communicator, timeout_s=limit_s, name=name))
            made.timeout_s = self.communicator.timeout_s
            self._adopt(made)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        return FINISHED

    def _leave(self, reason: str, limit_s: float) -> None:
        core = self.communicator._state.core
        if core is not None and not core.failed() and not core.finish_unawaited(limit_s):
            self._abort(reason)
        self._close()

    def _disconnected(self, why: str) -> None:
        self.communicator._state.ended = f"has no members: {why}"

    def _adopt(self, made: Communicator) -> None:
        """Use a communicator, and make torch's records of the default group fit it."""
        world: Any = dist.distributed_c10d._world
        # Names of groups count those of this process, and members may have made others before.
        number = np.array([world.group_count])
        made.all_reduce(number, ReduceOp.MAX)
        world.group_count = int(number[0])
        made.exclude_from_groups()
        self.own(made)
        self._global_ranks = []
        self._splits.clear()
        self._num_barriers = 0
        self._describe(global_ranks=tuple(self.global_ranks), description=self._description)
        if self in world.pg_group_ranks:
            world.pg_group_ranks[self] = {rank: rank for rank in self.global_ranks}

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """See `GroupIdentity`. Members may have no common store, so the coordinator counts them."""
        coordination = self.communicator._state.coordination
        if coordination is None:
            super().monitored_barrier(timeout, wait_all_ranks)
            return
        limit_s = self.communicator.timeout_s if timeout is None else seconds_of(timeout)
        self._num_barriers += 1
        try:
            came = coordination.agree(f"monitored_barrier/{self._num_barriers}", True, limit_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        missing = [str(rank) for rank in range(self._world_size) if rank not in came]
        if missing:
            named = missing if wait_all_ranks else missing[:1]
            raise barrier_failed(self._rank, limit_s, ", ".join(named))

    def shutdown(self) -> None:
        """Leave the group regularly; the handle is void."""
        try:
            super().shutdown()
        finally:
            if self._member is not None:
                self._member.close()
