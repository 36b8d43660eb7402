"""From what the engine reports to the error that the caller sees."""

from hccl_py.fingerprint import Transfer, describe
from hccl_py.flight_recorder import FlightRecorder
from hccl_py.transport.errors import (
    AbortedError,
    CollectiveTimeoutError,
    CommunicatorError,
    MismatchError,
    PeerLostError,
)

_PEER_LOST, _TIMED_OUT, _MISMATCH, _ABORTED = 1, 2, 3, 4  # FailureKind in csrc/failure.h


class Narrator:
    """Tells failures of one communicator: who, where, what, and what to look at."""

    def __init__(
        self, name: str, rank: int, places: tuple[str, ...], recorder: FlightRecorder
    ) -> None:
        """Keep what messages need; `places` says by rank "host h, pid p"."""
        self._name = name
        self._rank = rank
        self._places = places
        self._recorder = recorder

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
            call: that call; named where the engine does not name another.
        """
        kind, rank, reporter, expected, received, text, _sequence, _settled = failure.args
        culprit = rank if rank >= 0 else None
        here = f"[{self._name}, rank {self._rank} of {len(self._places)}] "
        during = f"{describe(expected or call)}: "
        whom = self._who(rank)
        told = f" (reported by rank {reporter})" if reporter >= 0 else ""
        if kind == _PEER_LOST:
            hint = f"; look at the output of rank {rank} first"
            return PeerLostError(f"{here}{during}{whom} {text}{told}{hint}", culprit)
        if kind == _TIMED_OUT:
            what = text or f"waiting for {whom}"
            limit = "" if told else f" after {timeout_s:g} s"
            return CollectiveTimeoutError(
                f"{here}{during}Timed out{limit}, {what}{told}; see whether those ranks are stuck "
                "or made another call, or raise the timeout",
                culprit,
            )
        if kind == _MISMATCH and received:
            who = self._who(reporter) if reporter >= 0 else "this rank"
            return MismatchError(
                f"{here}ranks made different calls: {whom} called {describe(received)} where "
                f"{who} called {describe(expected)}; all ranks must make the same calls in the "
                "same order with the same sizes",
                culprit,
            )
        if kind == _MISMATCH:
            return MismatchError(f"{here}{during}{text}{told}", culprit)
        if kind == _ABORTED:
            return AbortedError(f"{here}{during}aborted by {whom}: {text}{told}", culprit)
        return CommunicatorError(f"{here}{during}{whom} failed: {text}{told}", culprit)

    def _who(self, rank: int) -> str:
        if not 0 <= rank < len(self._places):
            return "a rank"
        return f"rank {rank} ({self._places[rank]})"
