"""torchft on hccl: replicas leave and join, and each quorum connects anew.

    manager = torchft.Manager(pg=ProcessGroupHccl(), ...)
    model = DistributedDataParallel(manager, model)

torchft's manager calls `configure` for each new quorum, with a store prefix of its own. Importing
this module imports torchft.
"""

# No postponed annotations: torch compares a communication hook's annotations with its classes.

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torchft import ddp
from torchft.manager import Manager
from torchft.process_group import ProcessGroupWrapper

from hccl_py.communicator import Communicator
from hccl_py.torch_backend import compat
from hccl_py.torch_backend.groups import process_group
from hccl_py.torch_backend.training.step_count import count_steps
from hccl_py.torch_backend.work import as_torch_error
from hccl_py.transport.errors import HcclError


class ProcessGroupHccl(ProcessGroupWrapper):  # type: ignore[misc]  # torchft may not be installed
    """A process group that `configure` connects anew, with other or fewer replicas.

    Its `timeout` is for connecting, and the default of every call.
    """

    _pg: process_group.ProcessGroupHccl | None

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        """Make an unconnected group."""
        super().__init__(timeout)
        self._works: list[Any] = []

    def _create_pg(self, store: Any, rank: int, world_size: int) -> process_group.ProcessGroupHccl:
        compat.apply_all()
        count_steps()
        self._works = []
        name = f"torchft-quorum-{self._quorum_id}-rank-{self._group_rank}"
        limit_s = self._timeout.total_seconds()
        try:
            made = Communicator(store, rank, world_size, timeout_s=limit_s, name=name)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # the error names its cause
        return process_group.ProcessGroupHccl(made, store, self._global_ranks or (), name)

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name that torchft registers the group under."""
        return "torchft-hccl"

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the deadline of later calls, and of connecting."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def abort(self, errored: bool = True) -> None:
        """End the running calls, here and on the other replicas, and free the group."""
        group = self._pg
        if errored:
            super().abort()
        self._pg = None
        if group is not None:
            group.shutdown()

    def shutdown(self) -> None:
        """Leave the group regularly; `configure` connects again."""
        self.abort(errored=False)

    def errored(self) -> Exception | None:
        """Return the error of a failed call since `configure`, even of one that no thread awaited.

        A replica that leaves after the last call of a step is not an error: the step is complete.
        """
        failed = (work.exception() for work in self._works if work.is_completed())
        return next((error for error in failed if error is not None), None)

    def _wrap_work(self, work: dist.Work, opts: object) -> dist.Work:
        self._works = [each for each in self._works if not each.is_success()]
        self._works.append(work)
        return work


class DistributedDataParallel(ddp.DistributedDataParallel):  # type: ignore[misc]
    """torchft's class, with a hook for steps in which a replica is lost.

    The hook of torchft 0.2.0 raises AssertionError or AttributeError in such a step. This one
    returns: the manager has the error, and `optimizer.step()` skips the step.
    """

    @staticmethod
    def _comm_hook(state: Manager, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.allreduce(bucket.buffer()).wait()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
