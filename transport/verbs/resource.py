"""What devices, protection domains, regions and queues have in common: how they close.

Device -> ProtectionDomain -> QueuePair, MemoryRegion
       -> CompletionQueue
"""

from types import TracebackType
from typing import TypeVar

from hccl_py.transport.errors import InvalidArgumentError

R = TypeVar("R", bound="Resource")


class Resource:
    """A verbs object. A context manager: closes its children in order, then itself.

    Attributes:
        closes_after_siblings: a completion queue outlives the queue pairs that report to it.
        closed: whether close() was called.
    """

    closes_after_siblings = False

    def __init__(self, parent: "Resource | None") -> None:
        """Become a child of `parent`, which must be open."""
        if parent is not None:
            parent.check_open()
            parent._children.append(self)
        self._parent = parent
        self._children: list[Resource] = []
        self.closed = False

    def __enter__(self: R) -> R:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def check_open(self) -> None:
        """Raise InvalidArgumentError after close()."""
        if self.closed:
            raise InvalidArgumentError(f"the {type(self).__name__} is closed; make a new one")

    def close(self) -> None:
        """Close the children, then this object. Idempotent."""
        if self.closed:
            return
        for child in sorted(self._children, key=lambda one: one.closes_after_siblings):
            child.close()
        self.closed = True
        if self._parent is not None and self in self._parent._children:
            self._parent._children.remove(self)
        self._release()

    def leave_to_parent(self) -> None:
        """In a forked child: forget everything, because the parent process still uses it."""
        for child in self._children:
            child.leave_to_parent()
        if not self.closed:
            self.closed = True
            self._leak()

    def _release(self) -> None:
        """Free what the engine holds."""

    def _leak(self) -> None:
        """Keep what the engine holds from being destroyed in a forked child."""
