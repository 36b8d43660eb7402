"""The errors of Horovod's API, and the translation of the communicator's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from hccl_py.transport.errors import CommunicatorError


class HorovodInternalError(RuntimeError):
    """A collective failed: a rank died, calls differ, or a deadline passed.

    `__cause__` is the CommunicatorError, which names the rank. `elastic.run` recovers from it.
    """


class NotInitializedError(ValueError):
    """`init()` has not been called, or `shutdown()` has."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")


@contextmanager
def internal_errors() -> Iterator[None]:
    """Raise a CommunicatorError of the block as HorovodInternalError."""
    try:
        yield
    except CommunicatorError as error:
        raise HorovodInternalError(str(error)) from error
