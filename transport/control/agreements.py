"""Agreements among the ranks that are left: the serving side, without I/O."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .coordinator import Send


@dataclass(frozen=True)
class Proposal:
    """What a rank has to say in an agreement.

    Attributes:
        key: of the agreement.
        value: of this rank.
        timeout_s: from when the first rank came.
        among: the ranks to be waited for, if they are not lost; None: all. A rank that somebody
            does not list is not waited for, but counts if it comes in time.
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

    def hear(self, sender: int, proposal: Proposal, world: Iterable[int]) -> None:
        self.values[sender] = proposal.value
        if proposal.among is not None:
            self.excused |= set(world) - set(proposal.among)


class Agreements:
    """Collects one value from every rank that is not lost, and hands all of them to all.

    Whoever agrees on something gets the same set of ranks and values. When the coordinator changes
    meanwhile, ranks ask again, and those that have the result already pass it on.
    """

    def __init__(self, send: Send, standing: Callable[[], Iterable[int]]) -> None:
        """Ask `standing` who has to be waited for."""
        self._send = send
        self._standing = standing
        self._open: dict[str, _Open] = {}
        self._results: dict[str, dict[int, Any]] = {}

    def hear(self, sender: int, proposal: Proposal, now_s: float) -> None:
        """Take the value of a rank."""
        key = proposal.key
        if key in self._results:
            self._send(sender, "agreed", [key, self._results[key]])
            return
        standing = tuple(self._standing())
        if key not in self._open:
            self._open[key] = _Open(now_s + proposal.timeout_s, set(), {})
            for rank in standing:
                if rank != sender:  # it may have the result of a coordinator before this one
                    self._send(rank, "agree-ask", key)
        self._open[key].hear(sender, proposal, standing)

    def hear_result(self, key: str, result: dict[int, Any]) -> None:
        """Take over what an earlier coordinator had decided."""
        if key in self._results:
            return
        self._results[key] = result
        if key in self._open:
            for rank in self._open.pop(key).values:
                self._send(rank, "agreed", [key, result])

    def tick(self, now_s: float) -> None:
        """Decide what is complete, or late: then without those that did not answer."""
        if not self._open:
            return
        standing = set(self._standing())
        for key, one in tuple(self._open.items()):
            if standing - one.excused <= one.values.keys() or now_s >= one.until_s:
                self.hear_result(key, {rank: one.values[rank] for rank in sorted(one.values)})

    def next_s(self) -> float | None:
        """Return when to call `tick` again, at the latest; None: whenever."""
        return min((one.until_s for one in self._open.values()), default=None)
