"""torch's agent, which also says why the ranks start again, how many there are, and who left."""

import os
import sys

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _NodeDesc,
)

from hccl_py.launcher.elastic.meeting import say
from hccl_py.launcher.elastic.members import names
from hccl_py.launcher.elastic.ranks import LocalRanks
from hccl_py.launcher.failure import render

_NO_ID = "none"  # torchrun's default of --rdzv-id


def reporting_agent(ranks: LocalRanks) -> type[LocalElasticAgent]:
    """Return the class of an agent that starts these ranks; elastic makes the agent."""

    class ReportingAgent(LocalElasticAgent):
        _nodes: frozenset[_NodeDesc] = frozenset()
        _restarts = 0

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            self._failures = {each.local_rank: each for each in result.failures.values()}
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

        def _rendezvous(self, worker_group: WorkerGroup) -> None:
            super()._rendezvous(worker_group)
            handler = worker_group.spec.rdzv_handler
            if not isinstance(handler, DynamicRendezvousHandler):
                return
            before, self._nodes = self._nodes, frozenset(handler._state_holder.state.participants)
            if handler.settings.min_nodes < handler.settings.max_nodes:
                left = f"; {names(before - self._nodes)} left" if before - self._nodes else ""
                ranks_in_all = worker_group.workers[0].world_size
                say(f"{ranks_in_all} ranks start on {names(self._nodes)}{left}")
            if handler.get_run_id() == _NO_ID:
                # Scripts know by it that they were restarted, so it is of this job alone.
                mine = f"job-{os.urandom(4).hex()}"
                ranks.job_id = handler._store.compare_set("hccl-launch/job", "", mine).decode()

    return ReportingAgent
