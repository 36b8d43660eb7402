"""What the nodes of a job tell each other in the store of their rendezvous.

torch's agents tell each other nothing of a failure: the other nodes run on, or wait for 300 s.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from torch._C._distributed_c10d import Store

from hccl_py.launcher.failure import Failure

_PAUSE_S = 0.1
_GATHER_S, _FAREWELL_S = 1.0, 1.0


class OtherNodeFailedError(Exception):
    """The job failed on another node; the message says how, in a line."""

    def __init__(self, what: str, exit_code: int) -> None:
        """Take the exit code of the job as well."""
        super().__init__(what)
        self.exit_code = exit_code


class Board:
    """One start of all ranks. Keys of the job itself outlive it."""

    def __init__(self, store: Store, run_id: str, start: int, num_nodes: int) -> None:
        """Make it right after all nodes have met: times of failures count from now.

        So nodes can compare them, and their clocks need not agree.
        """
        self._store, self._num_nodes = store, num_nodes
        self._job, self._start = f"hccl-launch/{run_id}", f"hccl-launch/{run_id}/{start}"
        self._began_s = time.time()

    def job_id(self) -> str:
        """Return a name of this job alone: scripts know by it that they were restarted."""
        mine = f"job-{os.urandom(4).hex()}"
        return str(self._store.compare_set(f"{self._job}/job", "", mine).decode())

    def has_failures(self) -> bool:
        """Whether a node has told how its ranks failed."""
        return bool(self._store.check([f"{self._start}/failures/1"]))

    def exchange(self, mine: Sequence[Failure]) -> tuple[Failure, ...]:
        """Tell how ranks failed here, and return how they failed on all nodes that tell in time."""
        told = [each._replace(at_s=each.at_s - self._began_s)._asdict() for each in mine]
        key = f"{self._start}/failures"
        self._store.set(f"{key}/{self._store.add(key, 1)}", json.dumps(told))
        self._wait_for_all(f"{key}/told", _GATHER_S)
        told = []
        for number in range(1, self._store.add(key, 0) + 1):
            told += json.loads(self._store.get(f"{key}/{number}"))
        found = (Failure(**{**each, "last_lines": tuple(each["last_lines"])}) for each in told)
        all_here = self._num_nodes == 1  # the only host needs no name
        return tuple(
            each._replace(at_s=each.at_s + self._began_s, host="" if all_here else each.host)
            for each in found
        )

    def end(self, what: str, exit_code: int) -> None:
        """Have every other node end with the job, and give them time to learn why."""
        with suppress(RuntimeError):  # the node that serves the store has ended
            self._store.compare_set(f"{self._job}/end", "", f"{exit_code} {what}")
            self._wait_for_all(f"{self._job}/left", _FAREWELL_S)

    def check_end(self) -> None:
        """Raise OtherNodeFailedError if a node has ended the job."""
        key = f"{self._job}/end"
        if self._store.check([key]):
            exit_code, _, what = self._store.get(key).decode().partition(" ")
            self._store.add(f"{self._job}/left", 1)
            raise OtherNodeFailedError(what, int(exit_code))

    def has_ended(self, node: int) -> bool:
        """Whether all ranks of a node have ended well."""
        return bool(self._store.check([f"{self._start}/ended/{node}"]))

    def wait_for_end(self, node: int, timeout_s: float) -> None:
        """Tell that the ranks of this node have ended, and wait until those of all nodes have."""
        with suppress(RuntimeError):  # the node that serves the store was first to see it
            self._store.set(f"{self._start}/ended/{node}", "")
            self._wait_for_all(f"{self._start}/ended", timeout_s, self.check_end)

    def _wait_for_all(
        self, key: str, timeout_s: float, check: Callable[[], None] | None = None
    ) -> None:
        """Count this node under a key, and wait until all nodes are counted."""
        until_s = time.monotonic() + timeout_s
        self._store.add(key, 1)
        while self._store.add(key, 0) < self._num_nodes and time.monotonic() < until_s:
            if check is not None:
                check()
            time.sleep(_PAUSE_S)
