"""The `Emulation` of a rank of `hccl-launch --emulate`, named by HCCL_EMULATED_NETWORK.

It reports calls to the process that emulates the network. The control thread reads the flight
recorders every half a second, and that of a communicator once more when it closes.
"""

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from hccl_py.fingerprint import unpack
from hccl_py.lab.emulation.network import NETWORK, NEVER_NS
from hccl_py.observe import flight_recorder
from hccl_py.observe.flight_recorder import FlightRecorder, recorders_of_process
from hccl_py.transport import _core
from hccl_py.transport.control.coordination import Coordination
from hccl_py.transport.errors import HcclError

_PERIOD_S = 0.5
_CALLS_PER_MESSAGE = 200
_COMPLETED = 2


class EmulatedCalls:
    """Reports finished calls; a service of the control thread."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._next_ids: weakref.WeakKeyDictionary[FlightRecorder, int] = weakref.WeakKeyDictionary()
        self._steps = 0
        self._reporting = threading.Lock()  # the control thread reads while others close

    def follow(self, coordination: Coordination) -> None:
        """Report from now on."""
        if self._report_last not in flight_recorder.BEFORE_CLOSE:
            flight_recorder.BEFORE_CLOSE.append(self._report_last)
        coordination.serve(self)

    def note_step(self, *_: object) -> None:
        """Report that an optimizer has finished a step; a hook of torch's optimizers."""
        self._steps += 1
        NETWORK.report({"step": self._steps, "rank": _rank_of_job(), "at_ns": time.monotonic_ns()})

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self._next_s

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PERIOD_S
            for recorder in recorders_of_process():
                self._report(recorder)

    def _report_last(self, recorder: FlightRecorder) -> None:
        self._report(recorder, is_last=True)

    def _report(self, recorder: FlightRecorder, is_last: bool = False) -> None:
        core, member = recorder.engine, recorder.member
        if core is None or len(member.processes) == 1:
            return
        with self._reporting:
            ended, until_ns = self._ended(core, recorder)
        about = {
            "communicator": [member.id.hex(), member.rank, len(member.processes)],
            "node": os.environ.get("HCCL_NODE_ID", ""),
            "until_ns": NEVER_NS if is_last else until_ns,
        }
        # Sent without calls too, because `until_ns` tells that there were none.
        for begin in range(0, max(1, len(ended)), _CALLS_PER_MESSAGE):
            calls = ended[begin : begin + _CALLS_PER_MESSAGE]
            with suppress(HcclError):  # a missing report must not end the job
                NETWORK.report({**about, "calls": calls})

    def _ended(
        self, core: _core.Communicator, recorder: FlightRecorder
    ) -> tuple[list[list[Any]], int]:
        """Return the calls finished since the last report, and until when the list is complete."""
        until_ns = time.monotonic_ns()
        first = self._next_ids.get(recorder, 0)
        ended: list[list[Any]] = []
        # Calls may end out of order: the next report begins at the first unfinished one.
        for call in map(flight_recorder.Call._make, core.records()):
            if call.id < first:
                continue
            if not call.ended_ns:
                until_ns = min(until_ns, call.started_ns or until_ns)
                break
            first = call.id + 1
            if call.state == _COMPLETED:
                ended.append(_entry(call))
        self._next_ids[recorder] = first
        return ended, until_ns


def _entry(call: flight_recorder.Call) -> list[Any]:
    """Return number, collective, bytes of the larger buffer, peer, begin and end of a call."""
    num_bytes = max(call.bytes_in, call.bytes_out)
    if call.kind:
        name = "send" if call.kind == 1 else "recv"
        return [call.id, name, num_bytes, call.peer, call.started_ns, call.ended_ns]
    name = unpack(call.fingerprint).collective
    return [call.sequence, name, num_bytes, None, call.started_ns, call.ended_ns]


def _rank_of_job() -> int:
    return int(os.environ.get("RANK", "0"))


CALLS = EmulatedCalls()
"""The reports of this process."""

carry, follow, note_step = NETWORK.carry, CALLS.follow, CALLS.note_step
