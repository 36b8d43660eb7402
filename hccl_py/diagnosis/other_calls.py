"""What a process does in all of its communicators, as one rank's report tells it.

    report["process"] = {"id": ..., "single": True, "blocked": True, "looks": 9,
                         "elsewhere": [{"id": ..., "name": ..., "call": ..., "blocked": True,
                                        "looks": 9, "waits": [["host", 4711]]}]}

So whoever has the reports of one communicator sees that a rank which does not come is stuck in
another, and for whom it waits there.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hccl_py.diagnosis.stall import Patience
from hccl_py.fingerprint import describe, without_number
from hccl_py.transport import _core

if TYPE_CHECKING:  # it imports this
    from hccl_py.diagnosis.diagnose import Verdict

STATE = "process"
"""Name of this state in a report."""
_MOST_ELSEWHERE = 8


class Occupation:
    """One rank of one communicator, among those of this process."""

    def __init__(
        self,
        name: str,
        communicator_id: bytes,
        places: Sequence[tuple[str, int]],
        core: _core.Communicator,
        patience: Patience,
    ) -> None:
        """Take part until nobody holds this any more; `places` are host and pid by rank."""
        self._name = name
        self._id = communicator_id
        self._places = places
        self._core = core
        self._patience = patience
        _all[id(self)] = self

    def tell(self) -> dict[str, Any]:
        """Return the state for a report."""
        everyone = _everyone()
        callers = [one._core.caller() for one in everyone]
        threads = {thread for thread, _, _ in callers if thread}
        others = (one._in_short() for one in everyone if one is not self)
        return {
            "id": self._id,
            "single": len(threads) == 1 and not any(several for _, several, _ in callers),
            "blocked": self._core.caller()[2],
            "looks": self._patience.looks,
            "elsewhere": [other for other in others if other][:_MOST_ELSEWHERE],
        }

    def _in_short(self) -> dict[str, Any] | None:
        progress = self._core.progress()
        if not progress["sequence"]:
            return None
        call = describe(without_number(progress["fingerprint"]))
        return {
            "id": self._id,
            "name": self._name,
            "call": f"{call} number {progress['sequence']}",
            "blocked": self._core.caller()[2],
            "looks": self._patience.looks,
            "waits": [list(self._places[rank]) for rank in progress["waiting_for"]],
        }


def diagnoses_elsewhere(
    verdict: "Verdict", place: tuple[str, int] | None
) -> list[tuple[_core.Communicator, bytes]]:
    """Return how this process's other communicators end with the verdict of one.

    Args:
        verdict: of that one; names the others.
        place: of the culprit, who has another rank there; None: nobody in particular.
    """
    diagnoses: list[tuple[_core.Communicator, bytes]] = []
    for one in _everyone():
        if one._id in verdict.also:
            progress = one._core.progress()
            fingerprint = without_number(progress["fingerprint"])
            there = verdict._replace(
                rank=one._places.index(place) if place in one._places else None,
                sequence=progress["sequence"] or None,
                fingerprint=fingerprint,
                collective=describe(fingerprint) if fingerprint else None,
                also=(),
            )
            diagnoses.append((one._core, there.packed()))
    return diagnoses


def _everyone() -> list[Occupation]:
    # The one view of them that can be had while other threads open communicators.
    everyone = [reference() for reference in _all.valuerefs()]
    return [one for one in everyone if one is not None]


# By id; held by the communicators' states only.
_all: "weakref.WeakValueDictionary[int, Occupation]" = weakref.WeakValueDictionary()
