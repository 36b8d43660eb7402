"""From what the engine reports to the error that the caller sees.

A verdict comes with its whole text, which all ranks share. What no coordinator decided (it was out
of reach, or the failure is one call's alone) is put into words here, by the rules of a verdict.
"""

from collections.abc import Sequence

from hccl_py.diagnosis import Judge
from hccl_py.diagnosis.diagnose import Verdict
from hccl_py.diagnosis.finding import Finding
from hccl_py.diagnosis.mismatch import sizes
from hccl_py.diagnosis.record import Cause, Failure, word
from hccl_py.diagnosis.timeout import waits
from hccl_py.fingerprint import Transfer, describe
from hccl_py.observe.flight_recorder import FlightRecorder
from hccl_py.transport import _core
from hccl_py.transport.errors import (
    AbortedError,
    Blame,
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


class Narrator:
    """Tells failures of one communicator: who, where, what, and what to look at."""

    def __init__(
        self, rank: int, places: Sequence[tuple[str, int]], recorder: FlightRecorder
    ) -> None:
        """Keep what messages need; `places` are host and process id by rank."""
        self._rank = rank
        self._recorder = recorder
        self._places = places
        self._judge = Judge(places)

    def tell(
        self, failed: _core.CommunicatorFailed, timeout_s: float, call: int | Transfer
    ) -> CommunicatorError:
        """Turn the engine's CommunicatorFailed into an error, for the flight recorder as well."""
        error = self.tell_failure(failed.failure, timeout_s, call)
        self._recorder.tell_failure(str(error))
        return error

    def tell_failure(
        self, native: _core.Failure, timeout_s: float, call: int | Transfer
    ) -> CommunicatorError:
        """Turn the engine's failure into an error of our tree.

        Args:
            native: what ended the call.
            timeout_s: the deadline of that call.
            call: named where a failure is that call's alone.
        """
        if native.diagnosis:
            return self._error(Verdict.unpacked(native.diagnosis))
        failure = Failure.of(native)
        if (
            failure.cause in (Cause.TIMED_OUT, Cause.MISMATCH)
            and not failure.sequence
            and not failure.call
        ):
            return self._error(self._of_one_call(failure, timeout_s, call))
        reports = {self._rank: {"failure": failure.packed()}}
        return self._error(self._judge.decide(reports, {}))

    def _of_one_call(self, failure: Failure, timeout_s: float, call: int | Transfer) -> Verdict:
        """Tell what concerns this rank's call alone: the communicator may well go on."""
        if failure.cause is Cause.MISMATCH:
            text = f"{describe(call)}: {sizes(failure)}"
        else:
            what = f"waiting for {self._who(failure.rank)}"
            if failure.half_done or failure.paths:
                what = waits(failure)
            text = (
                f"{describe(call)}: Timed out after {timeout_s:g} s, {what}; see whether that rank "
                "is stuck or made another call, or raise the timeout"
            )
        return self._judge.verdict(Finding(failure.cause, failure.rank, (0, 0), text))

    def _error(self, verdict: Verdict) -> CommunicatorError:
        blame = Blame(
            verdict.rank,
            verdict.host,
            verdict.pid,
            word(verdict.cause),
            verdict.collective,
            verdict.sequence,
        )
        return _ERRORS[verdict.cause](verdict.text, blame)

    def _who(self, rank: int) -> str:
        if not 0 <= rank < len(self._places):
            return "a rank"
        host, pid = self._places[rank]
        return f"rank {rank} (host {host}, pid {pid})"
