"""Speaks for a rank's engine in the control plane: what it noticed goes out, the verdict comes in.

The other half of `transport/control/principal.py`. All of it runs on the control plane's thread,
never on that of a call.
"""

import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from hccl_py.diagnosis import Judge, Verdict
from hccl_py.diagnosis.other_calls import diagnoses_elsewhere
from hccl_py.diagnosis.record import Cause, Failure
from hccl_py.fingerprint import describe, without_number
from hccl_py.observe.flight_recorder import FlightRecorder
from hccl_py.transport import _core

_WINDOW_OF_TIMEOUT = 0.05
"""Part of a timeout that collecting the others' reports may take: the rest is the caller's."""
_SHORTEST_WINDOW_S = 0.02
_MOST_ELSEWHERE = 4


class Witness:
    """One rank of one communicator, as the control plane sees it."""

    def __init__(self, name: str, core: _core.Communicator, judge: Judge) -> None:
        """Speak for `core`, of the communicator `name`."""
        self._name = name
        self._core = core
        self._judge = judge
        self._proposal: Failure | None = None
        self._verdict: dict[str, Any] | None = None
        self._adopted: list[_core.Communicator] = []
        self._concluded = threading.Event()
        self._recorder: FlightRecorder | None = None
        _witnesses[id(self)] = self

    def record_with(self, recorder: FlightRecorder) -> None:
        """Have the flight recorder written when there is a verdict, whatever the callers do."""
        self._recorder = recorder

    def close(self) -> None:
        """Let go of the engine: its memory need not wait for the collector of cycles."""
        _witnesses.pop(id(self), None)
        gone: Any = None
        self._core = gone
        self._recorder = None

    def news_fd(self) -> int:
        """See `Principal`."""
        return self._core.report_fd()

    def look(self) -> None:
        """See `Principal`."""
        self._core.poll()

    def lost(self) -> list[tuple[int, bool, int]]:
        """See `Principal`."""
        peers = self._core.ended_peers()
        return [(one.rank, one.cause == Cause.LEFT, one.last_sequence) for one in peers]

    def failing(self) -> bool:
        """See `Principal`."""
        core = self._core  # another thread may close it
        if self._proposal is None and core is not None:
            # Each is handed out once, and more than one thread may ask.
            observed = core.take_report()
            if observed is not None:
                self._proposal = Failure.of(observed)
        return self._proposal is not None

    def miss(self, rank: int) -> None:
        """Propose that a rank is gone, though no call waits for it: this one needs it elsewhere.

        Any thread may.
        """
        core = self._core  # another thread may close it
        if core is None or self.failing() or core.failed():
            return
        peer = next(one for one in core.ended_peers() if one.rank == rank)
        self._proposal = Failure(
            peer.cause,
            rank,
            observed_ns=time.time_ns(),
            last_sequence=peer.last_sequence,
            exit_code=peer.exit_code,
            signal=peer.signal,
        )
        os.eventfd_write(core.report_fd(), 1)

    def await_verdict(self, timeout_s: float) -> None:
        """Wait until a failure that this rank has proposed is decided. Any thread may."""
        core = self._core  # another thread may close it
        if core is not None and self.failing() and not core.failed():
            self._concluded.wait(timeout_s)

    def report(self) -> dict[str, Any]:
        """Return what `verdict.evidence.Testimony` reads."""
        self._core.poll()  # that a connection ended may be news to itself
        progress = self._core.progress()
        report: dict[str, Any] = {
            "failure": None,
            "progress": progress,
            "gone": [
                (one.rank, int(one.cause), one.last_sequence) for one in self._core.ended_peers()
            ],
            "elsewhere": self._elsewhere(),
            "noticed_ns": time.time_ns(),
        }
        if self.failing():
            assert self._proposal is not None
            report["failure"] = self._proposal.packed()
            timeout_s = progress["timeout_s"]
            if self._proposal.cause is Cause.TIMED_OUT and timeout_s > 0:
                report["timeout_s"] = timeout_s
                report["window_s"] = max(_SHORTEST_WINDOW_S, _WINDOW_OF_TIMEOUT * timeout_s)
        return report

    def _elsewhere(self) -> list[str]:
        """Say what this process does in other communicators."""
        everyone = (reference() for reference in _witnesses.valuerefs())
        others = [one for one in everyone if one is not None and one is not self]
        calls = (other._call() for other in others[:_MOST_ELSEWHERE])
        return [call for call in calls if call]

    def _call(self) -> str:
        core = self._core  # another thread may close it
        if core is None:
            return ""
        progress = core.progress()
        if not progress["sequence"]:
            return ""
        call = describe(without_number(progress["fingerprint"]))
        return f"{call} number {progress['sequence']} of group {self._name}"

    def verdict(self) -> dict[str, Any] | None:
        """See `Principal`."""
        if self._verdict is None:
            adopted = self._core.failure()
            if adopted is not None:
                if adopted.diagnosis:
                    self._verdict = {"packed": adopted.diagnosis}
                    self._record(Verdict.unpacked(adopted.diagnosis).text)
                self._concluded.set()
        return self._verdict

    def adopt(self, verdict: Mapping[str, Any]) -> None:
        """See `Principal`."""
        decided = Verdict.unpacked(verdict["packed"])
        place = None if decided.rank is None else self._judge.places[decided.rank]
        diagnoses = diagnoses_elsewhere(decided, place)
        diagnoses.append((self._core, verdict["packed"]))
        # A caller released in one communicator may go to the next: there the call must not go on.
        for core, packed in diagnoses:
            core.adopt_diagnosis(decided.cause, packed)
        self._adopted = [core for core, _ in diagnoses]

    def conclude(self, verdict: Mapping[str, Any]) -> None:
        """See `Principal`."""
        decided = Verdict.unpacked(verdict["packed"])
        if not self._adopted:
            self.adopt(verdict)
        for core in self._adopted:
            core.apply_diagnosis()
        self._adopted = []
        self._concluded.set()
        self._record(decided.text)  # this very process may soon be stopped by its launcher

    def _record(self, text: str) -> None:
        recorder = self._recorder
        if recorder is not None:
            recorder.tell_failure_soon(text)

    def judge(
        self, reports: Mapping[int, Mapping[str, Any]], absent: Mapping[int, str]
    ) -> dict[str, Any]:
        """See `Principal`."""
        return {"packed": self._judge.decide(reports, absent).packed()}


# By id, for `valuerefs` alone can be had while other threads open communicators.
_witnesses: "weakref.WeakValueDictionary[int, Witness]" = weakref.WeakValueDictionary()
