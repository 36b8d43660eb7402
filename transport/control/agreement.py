"""Agreements: one value of every rank that remains, the same set for all. The serving side."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hccl_py.transport.control.coordinator import Send


@dataclass(frozen=True)
class Proposal:
    """What a rank contributes to an agreement.

    Attributes:
        key: of the agreement.
        value: of this rank.
        timeout_s: from the first proposal on.
        among: the ranks to wait for; None: all. A rank that some proposal does not list is not
            waited for, but counts if it comes in time.
    """

    key: str
    value: Any
    timeout_s: float
    among: tuple[int, ...] | None

    @classmethod
    def of_message(cls, body: Any) -> "Proposal":
        """Check what came from another rank.

        Raises:
            ValueError, TypeError: it is none.
        """
        key, value, timeout_s, among = body
        ranks = None if among is None else tuple(int(rank) for rank in among)
        return cls(str(key), value, float(timeout_s), ranks)

    def message(self) -> list[Any]:
        """Return the body of the message to the coordinator."""
        return [self.key, self.value, self.timeout_s, self.among]


@dataclass
class _Open:
    """An agreement that is not reached yet."""

    until_s: float
    excused: set[int]
    values: dict[int, Any]


class AgreementServer:
    """Collects a value of every rank that remains, and sends all of them to all.

    When the coordinator changes meanwhile, ranks propose again, and a rank that has the result
    already passes it on.
    """

    def __init__(self, send: Send, remaining: Callable[[], Iterable[int]]) -> None:
        """Wait for the ranks that `remaining` lists."""
        self._send = send
        self._remaining = remaining
        self._open: dict[str, _Open] = {}
        self._results: dict[str, dict[int, Any]] = {}

    def handlers(self) -> Mapping[str, Callable[[int, Any, float], None]]:
        """Return what takes which kind of message."""
        return {"agree": self._on_proposal, "agree-result": self._on_result}

    def _on_proposal(self, sender: int, body: Any, now_s: float) -> None:
        proposal = Proposal.of_message(body)
        key = proposal.key
        if key in self._results:
            self._send(sender, "agreed", [key, self._results[key]])
            return
        remaining = tuple(self._remaining())
        if key not in self._open:
            self._open[key] = _Open(now_s + proposal.timeout_s, set(), {})
            for rank in remaining:
                if rank != sender:  # it may have the result of a coordinator before this one
                    self._send(rank, "agree-ask", key)
        self._open[key].values[sender] = proposal.value
        if proposal.among is not None:
            self._open[key].excused |= set(remaining) - set(proposal.among)

    def _on_result(self, sender: int, body: Any, now_s: float) -> None:
        """Adopt what an earlier coordinator had decided."""
        key, result = body
        self._conclude(str(key), {int(rank): value for rank, value in result.items()})

    def _conclude(self, key: str, result: dict[int, Any]) -> None:
        if key in self._results:
            return
        self._results[key] = result
        if key in self._open:
            for rank in self._open.pop(key).values:
                self._send(rank, "agreed", [key, result])

    def tick(self, now_s: float) -> None:
        """Conclude what is complete, or late: then without the ranks that did not answer."""
        if not self._open:
            return
        remaining = set(self._remaining())
        for key, one in tuple(self._open.items()):
            if remaining - one.excused <= one.values.keys() or now_s >= one.until_s:
                self._conclude(key, {rank: one.values[rank] for rank in sorted(one.values)})

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        return min((one.until_s for one in self._open.values()), default=math.inf)
