"""torch's agent, which also says why the ranks start again, how many there are, and who left.

torch's own tells the other nodes nothing of a job that failed: they run on, or wait for 300 s.
"""

import os
import sys
import time
from contextlib import suppress

from torch._C._distributed_c10d import Store
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _NodeDesc,
)

from hccl_py.launcher.elastic.members import names
from hccl_py.launcher.elastic.ranks import LocalRanks
from hccl_py.launcher.failure import Failure, first_failure, render, title
from hccl_py.launcher.own_lines import say

_NO_ID = "none"  # torchrun's default of --rdzv-id
_PAUSE_S = 0.1


class OtherNodeFailedError(Exception):
    """The job failed on another node; the message is the title of its report."""

    def __init__(self, what: str, exit_code: int) -> None:
        """Take the exit code of the job as well."""
        super().__init__(what)
        self.exit_code = exit_code


def reporting_agent(ranks: LocalRanks) -> type[LocalElasticAgent]:
    """Return the class of an agent that starts these ranks; elastic makes the agent."""

    class ReportingAgent(LocalElasticAgent):
        _nodes: frozenset[_NodeDesc] = frozenset()
        _restarts = 0
        _board: "_Board | None" = None

        def _rendezvous(self, worker_group: WorkerGroup) -> None:
            super()._rendezvous(worker_group)
            handler = worker_group.spec.rdzv_handler
            if not isinstance(handler, DynamicRendezvousHandler):
                return
            state, settings = handler._state_holder.state, handler.settings
            before, self._nodes = self._nodes, frozenset(state.participants)
            if settings.min_nodes < settings.max_nodes:
                left = f"; {names(before - self._nodes)} left" if before - self._nodes else ""
                in_all = worker_group.workers[0].world_size
                say(f"{in_all} ranks start on {names(self._nodes)}{left}")
            self._board = _Board(handler._store, settings.run_id, state.round)
            if settings.run_id == _NO_ID:
                ranks.job_id = self._board.job_id()

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            self._failures = {each.local_rank: each for each in result.failures.values()}
            if self._board is None:
                return result
            if result.state is WorkerState.HEALTHY:
                self._board.check()
            elif result.is_failed() and not self._remaining_restarts:
                failures = ranks.failures(self._failures)
                if failures:
                    self._board.tell(first_failure(failures), ranks.world_size)
            return result

        def _restart_workers(self, worker_group: WorkerGroup) -> None:
            # The next attempt replaces the files of this one, so they are read first.
            failures = ranks.failures(self._failures)
            if failures:
                print(render(failures, ranks.world_size), file=sys.stderr, flush=True)
            most = worker_group.spec.max_restarts
            before, self._restarts = self._restarts, most - self._remaining_restarts
            if self._restarts > before:
                say(f"restart {self._restarts} of {most}: all ranks start again")
            else:
                say("another node joins, or starts its ranks again: all ranks start again")
            super()._restart_workers(worker_group)

        def _exit_barrier(self) -> None:
            if self._board is None:
                super()._exit_barrier()  # type: ignore[no-untyped-call]
                return
            self._board.wait_for_end(len(self._nodes), self._exit_barrier_timeout)

    return ReportingAgent


class _Board:
    """What the nodes of a job tell each other in the store of its rendezvous."""

    def __init__(self, store: Store, run_id: str, start: int) -> None:
        self._store, self._start = store, start
        self._key = f"hccl-launch/{run_id}"

    def job_id(self) -> str:
        """Return a name of this job alone: scripts know by it that they were restarted."""
        mine = f"job-{os.urandom(4).hex()}"
        return str(self._store.compare_set(f"{self._key}/job", "", mine).decode())

    def tell(self, failure: Failure, world_size: int | None) -> None:
        """Have every other node end with the job; the first failure counts."""
        what = title(failure, world_size).removeprefix("hccl-launch: ")
        self._store.compare_set(f"{self._key}/failure", "", f"{failure.shell_code} {what}")

    def check(self) -> None:
        """Raise OtherNodeFailedError if a node has told."""
        key = f"{self._key}/failure"
        if self._store.check([key]):
            exit_code, _, what = self._store.get(key).decode().partition(" ")
            raise OtherNodeFailedError(what, int(exit_code))

    def wait_for_end(self, num_nodes: int, timeout_s: float) -> None:
        """Wait until the ranks of all nodes have ended."""
        key, until_s = f"{self._key}/ended/{self._start}", time.monotonic() + timeout_s
        # The node that serves the store may be the first to see that all have ended.
        with suppress(RuntimeError):
            self._store.add(key, 1)
            while self._store.add(key, 0) < num_nodes and time.monotonic() < until_s:
                self.check()
                time.sleep(_PAUSE_S)
