"""torch's agent, which also says why the ranks start again, how many there are, and who left.

It runs on a thread of its own. On all nodes, a failure anywhere is the failure of the attempt.
"""

import socket
import time
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

from hccl_py.launcher.elastic.board import Board
from hccl_py.launcher.elastic.members import NodeDesc, names
from hccl_py.launcher.elastic.ranks import CannotStartError, LocalRanks
from hccl_py.launcher.elastic.rendezvous import Rendezvous
from hccl_py.launcher.exit_codes import LOST_NODE
from hccl_py.launcher.failure import Failure, first_failure, render, title
from hccl_py.launcher.job.layout import Attempt, Role, Slot

_NO_ID = "none"  # torchrun's default of --rdzv-id
_EXIT_BARRIER_S = 300.0
# torch reads who waits to join once a second. A node that has read it stops its ranks, and ranks of
# nodes that have not read it yet fail.
_JOIN_SEEN_S = 1.1
_PAUSE_S = 0.1


class NodeLostError(Exception):
    """A node of the job has gone silent, and no restart is left; the message names it."""


class NodeAgent(SimpleElasticAgent):
    """The agent of this node.

    Attributes:
        failures: of the ranks of all nodes that ended the last attempt; empty: it goes on or ended
            well.
    """

    def __init__(self, spec: WorkerSpec, ranks: LocalRanks) -> None:
        """Begin with nobody."""
        super().__init__(spec, exit_barrier_timeout=_EXIT_BARRIER_S)
        self.failures: tuple[Failure, ...] = ()
        self._ranks = ranks
        handler = spec.rdzv_handler
        self._meeting = handler if isinstance(handler, Rendezvous) else None
        self._board: Board | None = None
        self._nodes: dict[NodeDesc, int] = {}  # of the last start, and their numbers
        self._loss = ""  # why all ranks start again though none failed
        self._start = -1  # the first one is 0, on all nodes
        self._num_restarts = 0

    @property
    def world_size(self) -> int:
        """Ranks of the last attempt."""
        return int(self.get_worker_group().workers[0].world_size)

    def report(self) -> str:
        """Return the failures of all nodes as the node that had the first one reports them."""
        first = first_failure(self.failures)
        if self._board is None or first.node == self.get_worker_group().group_rank:
            return render(self.failures, self.world_size)
        return f"{title(first, self.world_size)} (that node has the report)"

    def conclude(self) -> int:
        """End the job on all nodes for the first failure, and return its exit code."""
        first = first_failure(self.failures)
        if self._board is not None:
            what = title(first, self.world_size).removeprefix("hccl-launch: ")
            self._board.end(what, first.shell_code)
        return first.shell_code

    # What torch's agent calls.

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        try:
            super()._rendezvous(worker_group)
        except RendezvousClosedError:
            if self._board is not None:
                self._board.check_end()  # says why
            raise
        self.failures, self._loss = (), ""
        # All nodes are here at the same moment: their ranks were numbered just now.
        handler, num_nodes = worker_group.spec.rdzv_handler, int(worker_group.group_world_size or 1)
        if self._meeting is None:
            self._start += 1
            if handler.get_backend() == "static" and worker_group.store is not None:
                run_id = handler.get_run_id()
                self._board = Board(worker_group.store, run_id, self._start, num_nodes)
            return
        state, settings = self._meeting.members.state, self._meeting.settings
        self._start = state.round
        self._board = Board(self._meeting.store, settings.run_id, self._start, num_nodes)
        before, self._nodes = self._nodes, dict(state.participants)
        if settings.min_nodes < settings.max_nodes:
            gone = before.keys() - self._nodes.keys()
            left = f"; {names(gone)} left" if gone else ""
            ranks = "1 rank starts" if self.world_size == 1 else f"{self.world_size} ranks start"
            self._ranks.say(f"{ranks} on {names(self._nodes)}{left}")

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec, workers = worker_group.spec, worker_group.workers
        job_id = spec.rdzv_handler.get_run_id()
        if self._board is not None and job_id == _NO_ID:
            job_id = self._board.job_id()
        first, node = workers[0], int(worker_group.group_rank or 0)
        attempt = Attempt(
            number=self._start,
            first_rank=first.global_rank,
            slots=tuple(Slot(node, worker.local_rank) for worker in workers),
            world_size=first.world_size,
            # Those of the other nodes are not known, and nobody asks for them.
            node_sizes=(len(workers),) * int(worker_group.group_world_size or 1),
            master_addr=str(worker_group.master_addr),
            master_port=int(worker_group.master_port or 0),
            job_id=job_id,
            max_restarts=spec.max_restarts,
            role=Role(spec.role, first.role_rank, first.role_world_size),
            has_store=self._meeting is None and spec.rdzv_handler.use_agent_store,
        )
        try:
            self._ranks.start(attempt)
        except CannotStartError as error:
            if self._board is not None:
                self._board.end(f"{socket.gethostname()} {error}", error.exit_code)
            raise
        return {worker.local_rank: worker.global_rank for worker in workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._ranks.stop()

    def _shutdown(self, *_: Any, **__: Any) -> None:
        self._ranks.stop()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ranks, board = self._ranks, self._board
        if ranks.are_running and not ranks.has_failed and board is not None:
            board.check_end()
            self._look_for_lost(board)
            if self._loss or board.has_failures():
                ranks.stop()
        if ranks.are_running and not ranks.has_failed:
            return RunResult(state=WorkerState.HEALTHY)
        ranks.wait()
        if not ranks.failures and not self._loss and not (board and board.has_failures()):
            ended = {worker.global_rank: None for worker in worker_group.workers}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=ended)
        if not self._loss and self._is_joined():
            return RunResult(state=WorkerState.HEALTHY)  # torch's agent starts all ranks again
        self.failures = board.exchange(ranks.failures) if board else ranks.failures
        if all(each.was_stopped for each in self.failures):
            self.failures, self._loss = (), self._loss or "another node was lost"
        failed = {
            each.rank: ProcessFailure(each.local_rank, each.pid, each.exit_code, "")
            for each in ranks.failures
        }
        return RunResult(state=WorkerState.FAILED, failures=failed)

    def _look_for_lost(self, board: Board) -> None:
        """Note that a node has gone silent; its ranks may not have met those of this node yet.

        A node also leaves the state when it starts its ranks again, because one of them failed or
        another node joins, or when all its ranks have ended.

        Raises:
            NodeLostError: and no restart is left.
        """
        if self._meeting is None:
            return
        state, settings = self._meeting.members.state, self._meeting.settings
        others = self._nodes.keys() - {self._meeting.node}
        gone = [node for node in others if node not in state.participants]
        if not gone or state.wait_list or state.closed or board.has_failures():
            return
        gone = [node for node in gone if not board.has_ended(self._nodes[node])]
        if not gone:
            return
        silent_s = (settings.keep_alive_interval * settings.keep_alive_max_attempt).total_seconds()
        self._loss = f"{names(gone)} was lost: no sign of it for {silent_s:.0f} s"
        if not self._remaining_restarts:
            board.end(self._loss, LOST_NODE)
            raise NodeLostError(self._loss)

    def _is_joined(self) -> bool:
        """Whether the ranks failed because another node stopped its own to let a new one in."""
        meeting, board = self._meeting, self._board
        if meeting is None or board is None:
            return False
        has_room = len(self._nodes) < meeting.settings.max_nodes
        until_s = time.monotonic() + _JOIN_SEEN_S * has_room
        while not board.has_failures():
            if meeting.num_nodes_waiting():
                return True
            if time.monotonic() >= until_s:
                break
            time.sleep(_PAUSE_S)
        return False

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self.failures or self._loss:
            self._num_restarts += 1
            most = worker_group.spec.max_restarts
            again = f"restart {self._num_restarts} of {most}: all ranks start again"
            why = self.report().removeprefix("hccl-launch: ") if self.failures else self._loss
            self._ranks.say(f"{why}\nhccl-launch: {again}")
        else:
            self._ranks.say("another node joins, or starts its ranks again: all ranks start again")
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        if self._board is None:
            super()._exit_barrier()  # type: ignore[no-untyped-call]
        else:
            node = int(self.get_worker_group().group_rank or 0)
            self._board.wait_for_end(node, _EXIT_BARRIER_S)
