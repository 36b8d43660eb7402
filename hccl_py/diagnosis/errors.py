"""From what the engine reports to the error that the caller sees.

A verdict comes with its whole text, which all ranks share. What no coordinator decided (it was out
of reach, or the failure is one call's alone) is put into words here, by the rules of a verdict.
"""

from collections.abc import Sequence

from hccl_py.diagnosis import Judge
from hccl_py.diagnosis.causes import ABORTED, MISMATCH, PEER_LOST, TIMED_OUT, Cause, unseal
from hccl_py.fingerprint import Transfer, describe, without_number
from hccl_py.observe.flight_recorder import FlightRecorder
from hccl_py.transport.errors import (
    AbortedError,
    Blame,
    CollectiveTimeoutError,
    CommunicatorError,
    MismatchError,
    PeerLostError,
)

_ERRORS = {
    PEER_LOST: PeerLostError,
    TIMED_OUT: CollectiveTimeoutError,
    MISMATCH: MismatchError,
    ABORTED: AbortedError,
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

    def tell(self, failure: Exception, timeout_s: float, call: int | Transfer) -> CommunicatorError:
        """Turn the engine's CommunicatorFailed into an error, for the flight recorder as well."""
        error = self._tell(failure, timeout_s, call)
        self._recorder.tell_failure(str(error))
        return error

    def _tell(
        self, failure: Exception, timeout_s: float, call: int | Transfer
    ) -> CommunicatorError:
        """Turn the engine's CommunicatorFailed into an error of our tree.

        Args:
            failure: what the engine raised.
            timeout_s: the deadline of the call that met it.
            call: that call; named where a failure is that call's alone.
        """
        kind, rank, reporter, expected, received, text, sequence, settled = failure.args
        if settled:
            cause, text = unseal(text)
            return self._error(kind, text, self._blame(cause, rank, sequence, expected))
        if kind in (TIMED_OUT, MISMATCH) and not sequence and not expected:
            return self._of_one_call(kind, rank, text, timeout_s, call)
        proposal = [kind, rank, expected, received, text, sequence]
        reporter = reporter if reporter >= 0 else self._rank
        decided = self._judge.decide({reporter: {"proposal": proposal}}, {})
        blame = Blame(
            decided.rank,
            decided.host,
            decided.pid,
            str(decided.cause),
            decided.collective,
            decided.sequence,
        )
        return self._error(kind, decided.text, blame)

    def _of_one_call(
        self, kind: int, rank: int, text: str, timeout_s: float, call: int | Transfer
    ) -> CommunicatorError:
        """Tell what concerns this rank's call alone: the communicator may well go on."""
        if kind == MISMATCH:
            blame = self._blame(Cause.MISMATCH, rank, 0, 0)
            return self._error(kind, f"{describe(call)}: {text}", blame)
        what = text or f"waiting for {self._who(rank)}"
        message = (
            f"{describe(call)}: Timed out after {timeout_s:g} s, {what}; see whether that rank is "
            "stuck or made another call, or raise the timeout"
        )
        return self._error(kind, message, self._blame(Cause.TIMED_OUT, rank, 0, 0))

    def _error(self, kind: int, message: str, blame: Blame) -> CommunicatorError:
        return _ERRORS.get(kind, CommunicatorError)(message, blame)

    def _blame(self, cause: Cause, rank: int, sequence: int, fingerprint: int) -> Blame:
        known = 0 <= rank < len(self._places)
        host, pid = self._places[rank] if known else (None, None)
        collective = describe(without_number(fingerprint)) if fingerprint else None
        return Blame(rank if known else None, host, pid, str(cause), collective, sequence or None)

    def _who(self, rank: int) -> str:
        if not 0 <= rank < len(self._places):
            return "a rank"
        host, pid = self._places[rank]
        return f"rank {rank} (host {host}, pid {pid})"
