"""`join()`: a rank without data takes part in the others' allreduces with zeros.

A rank that has joined reads the call logs of the others, and makes the same calls. The others do
nothing for it, so `join` costs nothing until it is called.

A rank that joins puts the number of its last call into the coordinator's store. Once all numbers
are there, all ranks stop after the highest one.
"""

import json
import math
import time
from typing import NamedTuple

import numpy as np

from hccl_py.calls.work import Work
from hccl_py.communicator import Communicator
from hccl_py.diagnosis.record import LoggedCall, Report, decode
from hccl_py.fingerprint import describe, unpack
from hccl_py.horovod.errors import HorovodInternalError, internal_errors
from hccl_py.horovod.process_sets import global_process_set
from hccl_py.memory.element_types import Span
from hccl_py.memory.exporters import HeldAddress

_SURVEY_S = 1.0
_SHORTEST_S, _LONGEST_S = 0.0005, 0.02
"""The pause between two surveys of the others' call logs."""

_num_joins: dict[str, int] = {}
"""By name of the communicator; all ranks join equally often."""


class _Joined(NamedTuple):
    """The record that a rank stores when it joins; that of the last rank is the largest."""

    sequence: int
    time_s: float
    rank: int


def join(device: int = -1) -> int:
    """Wait until all ranks join, and take part in their allreduces with zeros until then.

    Average divides by the number of all ranks. Collectives other than allreduce and barrier fail on
    all ranks while a rank has joined, as in Horovod.

    Args:
        device: not used.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: a rank failed, left, or made a call that does not work with zeros.
    """
    communicator = global_process_set.communicator
    if communicator.world_size == 1:
        return 0
    _num_joins[communicator.name] = number = _num_joins.get(communicator.name, 0) + 1
    with internal_errors():
        return _Joining(communicator, number).run()


class _Joining:
    def __init__(self, communicator: Communicator, number: int) -> None:
        self._communicator = communicator
        self._state = communicator._state
        coordination = self._state.coordination
        assert coordination is not None, "several ranks have one"
        self._coordination = coordination
        prefix = f"horovod/{communicator.name}/join/{number}/"
        self._store = coordination.store(prefix, communicator.timeout_s)
        self._keys = [str(rank) for rank in range(communicator.world_size)]
        self._last: _Joined | None = None  # once all have joined
        self._sequence = self._state.require_engine().sequence()

    def run(self) -> int:
        """Repeat the calls of the others until all have joined."""
        mine = _Joined(self._sequence, time.time(), self._communicator.rank)
        self._store.set(str(mine.rank), json.dumps(mine).encode())
        pause_s, limit_s = _SHORTEST_S, time.monotonic() + self._communicator.timeout_s
        while not self._is_over():
            calls = self._new_calls()
            for work in [self._repeat_with_zeros(call) for call in calls]:
                work.wait()
            if calls:
                pause_s, limit_s = _SHORTEST_S, time.monotonic() + self._communicator.timeout_s
            elif time.monotonic() > limit_s:
                raise HorovodInternalError(
                    f"join: rank {mine.rank} waited {self._communicator.timeout_s:g} s for a call "
                    "of the ranks that have not joined"
                )
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
        assert self._last is not None
        return self._last.rank

    def _is_over(self) -> bool:
        self._read_last()
        return self._last is not None and self._sequence >= self._last.sequence

    def _read_last(self) -> None:
        if self._last is None and self._store.check(self._keys):
            self._last = max(_Joined(*json.loads(self._store.get(key))) for key in self._keys)

    def _new_calls(self) -> list[LoggedCall]:
        """Return the calls that others have made after this rank's last one."""
        core = self._state.require_engine()
        core.poll()
        if core.failed() or self._state.reporter.ended_ranks():
            self._communicator.barrier()  # raises what ended the job, or that a rank left
        reports = self._coordination.survey(_SURVEY_S).values()
        logs = [decode(Report, report).calls for report in reports]
        longest = max(logs, key=lambda log: log[-1].number if log else 0, default=())
        # After the survey: the last rank may have joined since, and made further calls.
        self._read_last()
        end = self._last.sequence if self._last is not None else math.inf
        return [call for call in longest if self._sequence < call.number <= end]

    def _repeat_with_zeros(self, call: LoggedCall) -> Work:
        communicator = self._communicator
        fields = unpack(call.fingerprint)
        self._sequence += 1
        if fields.collective == "barrier":
            return communicator.nonblocking.barrier()
        if fields.collective != "all_reduce":
            name = describe(call.fingerprint)
            communicator.abort(
                f"rank {communicator.rank} has joined, and others called {name}: only allreduce "
                "and barrier work without a rank's data"
            )
            return communicator.nonblocking.barrier()
        zeros = np.zeros(call.num_bytes, np.uint8)
        kind = fields.element
        count = call.num_bytes // kind.item_bytes
        span = Span(HeldAddress(zeros.ctypes.data, zeros), count, kind)
        return communicator.nonblocking.all_reduce(span, fields.op)
