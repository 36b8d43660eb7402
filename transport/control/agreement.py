"""Agreements: every remaining rank gets the same set, one value per rank. One rank's part."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hccl_py.transport.control.coordinator import Send


@dataclass
class _Open:
    """A pending agreement. Values of `excused` ranks are included only if they arrive in time."""

    until_s: float
    excused: set[int]
    values: dict[int, Any]


class Agreements:
    """The agreements that one rank knows; the coordinator's also collects the ranks' values.

    When the coordinator changes, ranks propose again. A rank that has the result passes it on.

    Attributes:
        results: by key; the values by rank.
    """

    def __init__(
        self,
        send: Send,
        remaining: Callable[[], Iterable[int]],
        agreed: Callable[[str, dict[int, Any]], None],
    ) -> None:
        self._send = send
        self._remaining = remaining
        self._agreed = agreed
        self._open: dict[str, _Open] = {}
        self.results: dict[str, dict[int, Any]] = {}

    def on_proposal(self, sender: int, body: Any, now_s: float) -> None:
        """Handle a proposal: key, sender's value, seconds since the first proposal, and `among`.

        `among` lists the ranks to wait for; None: all. Only ranks that all proposals list are
        waited for.
        """
        key, value, timeout_s, among = body
        if key in self.results:
            self._send(sender, "agreed", [key, self.results[key]])
            return
        remaining = tuple(self._remaining())
        excused = set() if among is None else {*remaining} - {int(rank) for rank in among}
        if key not in self._open:
            self._open[str(key)] = _Open(now_s + float(timeout_s), set(), {})
            for rank in remaining:
                if rank != sender:  # the sender may have an earlier coordinator's result
                    self._send(rank, "agree-ask", key)
        self._open[key].values[sender] = value
        self._open[key].excused |= excused

    def on_question(self, sender: int, key: Any, now_s: float) -> None:
        """Send the result to the sender, if it is known."""
        if key in self.results:
            self._send(sender, "agreed", [key, self.results[key]])

    def on_result(self, sender: int, body: Any, now_s: float) -> None:
        """Adopt a coordinator's result."""
        key, result = body
        self._conclude(str(key), {int(rank): value for rank, value in result.items()})

    def _conclude(self, key: str, result: dict[int, Any]) -> None:
        self._agreed(key, self.results.setdefault(key, result))
        if key in self._open:
            for rank in self._open.pop(key).values:
                self._send(rank, "agreed", [key, self.results[key]])

    def tick(self, now_s: float) -> None:
        """Conclude agreements that are complete or overdue; the latter omit silent ranks."""
        if not self._open:
            return
        remaining = set(self._remaining())
        for key, one in tuple(self._open.items()):
            if remaining - one.excused <= one.values.keys() or now_s >= one.until_s:
                self._conclude(key, {rank: one.values[rank] for rank in sorted(one.values)})

    def next_s(self) -> float:
        """Return when to call `tick` again, at the latest."""
        return min((one.until_s for one in self._open.values()), default=math.inf)
