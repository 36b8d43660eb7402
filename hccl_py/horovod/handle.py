"""The handle of a call in the background, and Horovod's `synchronize` and `poll`."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hccl_py.calls.work import Work
from hccl_py.horovod.errors import internal_errors

Result = TypeVar("Result")
Made = TypeVar("Made")


class Handle(Generic[Result]):
    """A started call. The program must not use its arrays until it is done."""

    def __init__(self, works: Sequence[Work], finish: Callable[[], Result]) -> None:
        """Take the communicator's calls; `finish` makes the result once they are done."""
        self._works = works
        self._finish: Callable[[], Result] | None = finish
        self._result: Result

    def done(self) -> bool:
        """Return whether `wait` returns at once."""
        return all(work.done() for work in self._works)

    def wait(self) -> Result:
        """Wait for the call and return its result, the same each time."""
        with internal_errors():
            for work in self._works:
                work.wait()
        if self._finish is not None:
            self._result, self._works, self._finish = self._finish(), (), None
        return self._result

    def then(self, change: Callable[[Result], Made]) -> "Handle[Made]":
        """Return the handle of the same call with another result."""
        return Handle(self._works, lambda: change(self.wait()))


def synchronize(handle: Handle[Result]) -> Result:
    """Wait for a call and return its result.

    Raises:
        HorovodInternalError: it failed.
    """
    return handle.wait()


def poll(handle: Handle[Result]) -> bool:
    """Return whether `synchronize` returns at once."""
    return handle.done()
