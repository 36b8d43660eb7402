"""Agreements among the ranks that are left: the serving side, without I/O."""

from collections.abc import Callable, Iterable
from typing import Any

from .coordinator import Send


class Agreements:
    """Collects one value from every rank that is not lost, and hands all of them to all.

    Whoever agrees on something gets the same set of ranks and values. When the coordinator changes
    meanwhile, ranks ask again, and those that have the result already pass it on.
    """

    def __init__(self, send: Send, standing: Callable[[], Iterable[int]]) -> None:
        """Ask `standing` who has to be waited for."""
        self._send = send
        self._standing = standing
        self._values: dict[str, dict[int, Any]] = {}
        self._until_s: dict[str, float] = {}
        self._results: dict[str, dict[int, Any]] = {}

    def hear(self, sender: int, key: str, value: Any, timeout_s: float, now_s: float) -> None:
        """Take the value of a rank."""
        if key in self._results:
            self._send(sender, "agreed", [key, self._results[key]])
            return
        if key not in self._values:
            self._values[key] = {}
            self._until_s[key] = now_s + timeout_s
            for rank in self._standing():
                if rank != sender:  # it may have the result of a coordinator before this one
                    self._send(rank, "agree-ask", key)
        self._values[key][sender] = value

    def hear_result(self, key: str, result: dict[int, Any]) -> None:
        """Take over what an earlier coordinator had decided."""
        if key in self._results:
            return
        self._results[key] = result
        for rank in self._values.pop(key, {}):
            self._send(rank, "agreed", [key, result])

    def tick(self, now_s: float) -> None:
        """Decide what is complete, or late: then without those that did not answer."""
        if not self._values:
            return
        standing = set(self._standing())
        for key, values in tuple(self._values.items()):
            if standing <= values.keys() or now_s >= self._until_s[key]:
                self.hear_result(key, {rank: values[rank] for rank in sorted(values)})

    def next_s(self) -> float | None:
        """Return when to call `tick` again, at the latest; None: whenever."""
        return min((self._until_s[key] for key in self._values), default=None)
