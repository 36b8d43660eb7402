"""One rank of one communicator in the control plane: sends its report, applies the diagnosis.

It implements the interface in `transport/control/reporter.py`, and runs on the control thread
unless a method says otherwise.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import hccl_py.diagnosis.torchrun  # noqa: F401  # its steps at exit
from hccl_py.diagnosis.diagnosis import diagnose
from hccl_py.diagnosis.ended import died_since
from hccl_py.diagnosis.record import (
    Diagnosis,
    Failure,
    LoggedCall,
    OtherCall,
    Progress,
    Report,
    decode,
    encode,
)
from hccl_py.diagnosis.reports import Reports
from hccl_py.diagnosis.stall import STUCK_S, StallWatch
from hccl_py.fingerprint import without_number
from hccl_py.observe.flight_recorder import FlightRecorder
from hccl_py.transport import _core
from hccl_py.transport._core import Cause
from hccl_py.transport.control.reporter import NO_ANSWER, Absence
from hccl_py.transport.network.system_calls import is_stopped

logger = logging.getLogger("hccl_py.transport")

DIAGNOSIS_TIMEOUT_S = 1.5
"""How long a failed call waits for the diagnosis before it raises what this rank observed."""
_WINDOW_OF_TIMEOUT = 0.05
"""Part of a timeout that the collection of the other ranks' reports may add to it."""
_SHORTEST_WINDOW_S = 0.02
_MAX_CALLS = 128  # a rank can be ahead of another by the 64 messages that a lane holds
_MAX_OTHER_CALLS = 8


class Reporter:
    """Reports for one rank of one communicator."""

    def __init__(self, core: _core.Communicator, recorder: FlightRecorder) -> None:
        self.member = recorder.member
        self._core = core
        self._recorder = recorder
        self._failure: Failure | None = None
        self._adopted: list[_core.Communicator] = []
        # Ranks lost, but not dead, at the first diagnosis; None: there is none yet.
        self._cut_off: set[int] | None = None
        self._applied = threading.Event()
        self._stall = StallWatch(self.member.name, core)
        self._diagnoses_losses = False
        _reporters[id(self)] = self

    def close(self) -> None:
        """Release the engine, so that its memory need not wait for the garbage collector."""
        _reporters.pop(id(self), None)
        gone: Any = None
        self._core = self._stall = self._recorder = gone

    # Called by the control plane, see `control.reporter.Reporter`.

    def news_fd(self) -> int:
        """See `control.reporter.Reporter`."""
        return self._core.report_fd()

    def ended_ranks(self) -> list[tuple[int, bool, int]]:
        """See `control.reporter.Reporter`. Any thread may call it."""
        core = self._core  # another thread may close it
        if core is None:
            return []
        core.poll()
        for change in core.take_device_changes():
            logger.warning("%s", change)
        if self._diagnoses_losses:
            for one in core.ended_peers():
                if one.cause == Cause.LOST:
                    self.report_ended(one.rank)
        return [
            (one.rank, one.cause == Cause.LEFT, one.last_sequence)
            for one in core.ended_peers()
            if one.cause in (Cause.LEFT, Cause.DIED)
            or (one.cause == Cause.LOST and core.failed() and one.rank not in (self._cut_off or ()))
        ]

    def gone_ranks(self) -> list[int]:
        """Return ranks that no other group can have: dead, or closed without a successor."""
        core = self._core
        elsewhere = {one.rank for one in core.ended_peers() if one.goes_on} if core else set()
        return [rank for rank, *_ in self.ended_ranks() if rank not in elsewhere]

    def has_failure(self) -> bool:
        """See `control.reporter.Reporter`. Any thread may call it."""
        core = self._core  # another thread may close it
        if self._failure is None and core is not None:
            native = core.take_report()  # returned once; several threads may ask
            if native is not None:
                self._failure = Failure.of(native)
        return self._failure is not None

    def suspects(self) -> bool:
        """See `control.reporter.Reporter`."""
        return self._stall.must_compare()

    def report(self) -> tuple[bytes, float | None]:
        """See `control.reporter.Reporter`."""
        report = self.observed()
        failure, timeout_s, window_s = report.failure, report.progress.timeout_s, None
        if failure is not None and failure.cause is Cause.TIMED_OUT and timeout_s > 0:
            window_s = max(_SHORTEST_WINDOW_S, _WINDOW_OF_TIMEOUT * timeout_s)
        return encode(report), window_s

    def observed(self) -> Report:
        """Return the report of this rank. Any thread may call it."""
        core = self._core
        core.poll()  # detects connections that have ended
        everyone = _all_reporters()
        callers = [one._core.caller() for one in everyone]
        threads = {thread for thread, _, _ in callers if thread}
        others = (one._other_call() for one in everyone if one is not self)
        return Report(
            self._failure if self.has_failure() else None,
            Progress.of(core),
            tuple(map(Failure.of, core.ended_peers())),
            self.call_log(),
            len(threads) == 1 and not any(several for _, several, _ in callers),
            self._is_stuck(),
            self._stall.stalled_s,
            tuple(one for one in others if one is not None)[:_MAX_OTHER_CALLS],
            self._stopped(),
        )

    def call_log(self) -> tuple[LoggedCall, ...]:
        """Return the last collectives, oldest first."""
        last = self._core.sequence()
        site_of = self._recorder.sites.site_of
        calls = self._core.call_log(max(1, last - _MAX_CALLS + 1), last)
        return tuple(
            LoggedCall(number, without_number(fingerprint), num_bytes, site_of(number))
            for number, fingerprint, num_bytes in calls
        )

    def diagnosis(self) -> bytes | None:
        """See `control.reporter.Reporter`."""
        failure = self._core.failure()
        if failure is None:
            return None
        self._applied.set()
        if not failure.diagnosis:
            return None
        self._record(failure.diagnosis)
        return failure.diagnosis

    def adopt(self, diagnosis: bytes) -> None:
        """See `control.reporter.Reporter`."""
        decoded = decode(Diagnosis, diagnosis)
        if self._cut_off is None:  # not at a later delivery: more ranks may have ended by then
            lost = {one.rank for one in self._core.ended_peers()}
            self._cut_off = lost.difference(decoded.dead)
        adopted = [
            (other._core, encode(other._seen_from_here(decoded)))
            for other in _all_reporters()
            if other.member.id in decoded.also
        ]
        adopted.append((self._core, diagnosis))
        # Before any call ends: its thread may call another of these communicators next.
        for core, packed in adopted:
            core.adopt_diagnosis(decoded.cause, packed)
        self._adopted = [core for core, _ in adopted]

    def conclude(self, diagnosis: bytes) -> None:
        """See `control.reporter.Reporter`."""
        if not self._adopted:
            self.adopt(diagnosis)
        for core in self._adopted:
            core.apply_diagnosis()
        self._adopted = []
        self._applied.set()
        self._record(diagnosis)  # this process may soon be stopped

    def diagnose(self, reports: Mapping[int, bytes], absent: Mapping[int, Absence]) -> bytes | None:
        """See `control.reporter.Reporter`."""
        collected = self._reports(reports, absent)
        diagnosis = diagnose(collected)
        if diagnosis is None:
            self._stall.warn(collected)
            return None
        gone = died_since(collected, self.member.rank, map(Failure.of, self._core.ended_peers()))
        return encode(replace(diagnosis, dead=tuple(sorted({*diagnosis.dead, *gone}))))

    # Called by the communicator, on any thread.

    def report_ended(self, rank: int) -> None:
        """Report the end of a rank that no call waits for, because this rank needs it elsewhere."""
        core = self._core  # another thread may close it
        if core is None or self.has_failure() or core.failed():
            return
        peer = next(one for one in core.ended_peers() if one.rank == rank)
        self._failure = Failure.of(peer)
        os.eventfd_write(core.report_fd(), 1)

    @contextmanager
    def diagnosing_losses(self) -> Iterator[None]:
        """Report lost ranks meanwhile, even if no call waits for them."""
        self._diagnoses_losses = True
        try:
            yield
        finally:
            self._diagnoses_losses = False

    def await_diagnosis(self) -> None:
        """Wait, for a limited time, for the diagnosis of a failure that this rank has reported."""
        core = self._core  # another thread may close it
        if core is not None and self.has_failure() and not core.failed():
            self._applied.wait(DIAGNOSIS_TIMEOUT_S)

    def unfinished(self) -> str:
        """Return what close() waits for."""
        one = self.member
        progress = Progress.of(self._core)
        what = progress.call if progress.sequence else f"{progress.num_transfers} sends or recvs"
        return (
            f"[{one.name}, rank {one.rank} of {len(one.processes)}] close() waits for calls that "
            f"were started and not waited for: {what}; each ends at its own timeout at the latest"
        )

    def survey(self, ask: Callable[[float], Mapping[int, bytes]], timeout_s: float) -> Reports:
        """Return all reports that arrive in time; with a timeout of 0, only this rank's."""
        if timeout_s <= 0:
            return self._of({self.member.rank: self.observed()}, {})
        reports = ask(timeout_s)
        missing = set(range(len(self.member.processes))) - set(reports)
        return self._reports(reports, dict.fromkeys(missing, NO_ANSWER))

    def _reports(self, reports: Mapping[int, bytes], absent: Mapping[int, Absence]) -> Reports:
        by_rank = {rank: decode(Report, one) for rank, one in reports.items()}
        return self._of(by_rank, absent)

    def _of(self, by_rank: Mapping[int, Report], absent: Mapping[int, Absence]) -> Reports:
        return Reports(by_rank, absent, self.member.processes, self.member.nodes)

    def _stopped(self) -> tuple[int, ...]:
        processes, own = self.member.processes, self.member.rank
        node = next((node for node in self.member.nodes if own in node), ())
        near = [rank for rank in node if rank != own and processes[rank][0] == processes[own][0]]
        return tuple(rank for rank in near if is_stopped(processes[rank][1]))

    def _is_stuck(self) -> bool:
        return self._core.caller()[2] and self._stall.stalled_s >= STUCK_S

    def _other_call(self) -> OtherCall | None:
        progress = Progress.of(self._core)
        if not progress.sequence:
            return None
        waits_for = tuple(self.member.processes[rank] for rank in progress.waiting_for)
        return OtherCall(
            self.member.id, self.member.name, progress.call, self._is_stuck(), waits_for
        )

    def _seen_from_here(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of another communicator with this one's ranks and call."""
        processes, process = self.member.processes, (diagnosis.host, diagnosis.pid)
        progress = Progress.of(self._core)
        return replace(
            diagnosis,
            rank=processes.index(process) if process in processes else None,
            sequence=progress.sequence,
            fingerprint=without_number(progress.fingerprint),
            also=(),
            dead=(),
        )

    def _record(self, diagnosis: bytes) -> None:
        recorder = self._recorder
        if recorder is not None:
            recorder.record_failure_soon(decode(Diagnosis, diagnosis).text)


def _all_reporters() -> list[Reporter]:
    # `valuerefs` is safe while other threads open communicators.
    everyone = [reference() for reference in _reporters.valuerefs()]
    return [one for one in everyone if one is not None and one._core is not None]


# By id; only their communicators keep them alive.
_reporters: "weakref.WeakValueDictionary[int, Reporter]" = weakref.WeakValueDictionary()
