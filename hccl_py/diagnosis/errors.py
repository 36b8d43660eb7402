"""Makes the exception that the caller sees from what the engine recorded.

A diagnosis contains the whole text, the same on all ranks. Without one (no coordinator was within
reach, or only one call failed), the same rules are applied to this rank's own report.
"""

from collections.abc import Callable

from hccl_py.diagnosis.diagnosis import diagnose
from hccl_py.diagnosis.record import Diagnosis, Failure, Report, decode
from hccl_py.diagnosis.reports import Reports
from hccl_py.diagnosis.timeout import activity, arrivals, position
from hccl_py.fingerprint import Call, Transfer, WindowCall, describe
from hccl_py.observe.flight_recorder import FlightRecorder, Membership
from hccl_py.transport import _core
from hccl_py.transport._core import Cause
from hccl_py.transport.errors import (
    AbortedError,
    CollectiveTimeoutError,
    CommunicatorError,
    MismatchError,
    PeerLostError,
)

_ERRORS = {
    Cause.DIED: PeerLostError,
    Cause.LOST: PeerLostError,
    Cause.UNREACHABLE: PeerLostError,
    Cause.LEFT: PeerLostError,
    Cause.TIMED_OUT: CollectiveTimeoutError,
    Cause.MISMATCH: MismatchError,
    Cause.UNCAUGHT_EXCEPTION: AbortedError,
    Cause.INTERRUPTED: AbortedError,
    Cause.ABORTED: AbortedError,
    Cause.CLOSED: AbortedError,
    Cause.INTERNAL_ERROR: CommunicatorError,
}
AFTER_ERROR: list[Callable[[CommunicatorError, Membership], None]] = []
"""Functions that get each error of a call before the caller does; none may raise."""

_OF_ONE_CALL = (Cause.TIMED_OUT, Cause.MISMATCH)
_SURVEYED_WAIT_S = 0.1
"""Shortest wait after which all ranks are asked: a shorter one is a poll, and must not block."""
_WINDOW_OF_WAIT = 0.05


class CallErrors:
    """Makes the exceptions of one communicator, and has its flight recorder write them."""

    def __init__(self, recorder: FlightRecorder, survey: Callable[[float], Reports] | None) -> None:
        """Get the reports that arrive in time from `survey`; None: this rank is alone."""
        self._recorder = recorder
        self._survey = survey
        self._no_reports = Reports({}, {}, recorder.member.processes)

    def of_call(
        self, failed: _core.CommunicatorFailed, timeout_s: float, call: Call
    ) -> CommunicatorError:
        """Return the exception of a call for which the engine raised `failed`.

        `timeout_s` and `call` are used in the text if only this call failed.
        """
        error = self.of_failure(failed.args[0], timeout_s, call)
        self._recorder.record_failure(str(error))
        for note in AFTER_ERROR:
            note(error, self._recorder.member)
        return error

    def of_failure(
        self, native: _core.Failure, timeout_s: float = 0.0, call: Call = 0
    ) -> CommunicatorError:
        """Return the exception of a failure; see `of_call`."""
        if native.diagnosis:
            return _error(decode(Diagnosis, native.diagnosis))
        failure = Failure.of(native)
        if failure.cause in _OF_ONE_CALL and not failure.sequence and not failure.call:
            return self._of_one_call(failure, timeout_s, call)
        member = self._recorder.member
        diagnosis = diagnose(Reports({member.rank: Report(failure)}, {}, member.processes))
        assert diagnosis is not None, "there is a rule for every cause"
        return _error(diagnosis)

    def of_wait(self, waited_s: float, timeout_s: float, call: Call) -> CommunicatorError:
        """Return the exception of a wait that ended before its call, which continues."""
        reports = self._no_reports
        if self._survey is not None:
            window_s = _WINDOW_OF_WAIT * waited_s if waited_s >= _SURVEYED_WAIT_S else 0.0
            reports = self._survey(window_s)
        where, rank = "", None
        mine = reports.by_rank.get(self._recorder.member.rank)
        if isinstance(call, Transfer | WindowCall):
            rank = call.peer
            if rank is not None:
                other = reports.by_rank.get(rank)
                doing = f", which is {activity(other)}" if other is not None else ""
                where = f"waiting for {reports.name(rank)}{doing}; "
        elif mine is not None and mine.progress.sequence:
            found = arrivals(reports, mine.progress.sequence)
            rank = found.missing[0] if found.missing else None
            where = f"{found.text}; "
        text = (
            f"{describe(call)}: Timed out after {waited_s:g} s of waiting for its Work: {where}"
            f"the call itself continues, its own timeout is {timeout_s:g} s"
        )
        return _error(reports.diagnosis(Cause.TIMED_OUT, rank, text))

    def _of_one_call(self, failure: Failure, timeout_s: float, call: Call) -> CommunicatorError:
        if failure.cause is Cause.MISMATCH:
            text = f"{describe(call)}: {failure.sizes()}"
        else:
            where = f"waiting for {self._no_reports.name(failure.rank)}"
            if failure.half_done or failure.paths:
                where = position(failure)
            text = (
                f"{describe(call)}: Timed out after {timeout_s:g} s, {where}; see whether that "
                "rank is stuck or made another call, or raise the timeout"
            )
        return _error(self._no_reports.diagnosis(failure.cause, failure.rank, text))


def _error(diagnosis: Diagnosis) -> CommunicatorError:
    error = _ERRORS[diagnosis.cause](diagnosis.text)
    error.rank, error.host, error.pid = diagnosis.rank, diagnosis.host, diagnosis.pid
    error.cause = diagnosis.cause.name.lower().replace("_", " ")
    error.collective = describe(diagnosis.fingerprint) if diagnosis.fingerprint else None
    error.sequence = diagnosis.sequence or None
    return error
