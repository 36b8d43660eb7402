"""Every error that hccl-py raises, in one tree.

    HcclError (RuntimeError)
    ├── InvalidArgumentError (ValueError)   the call was wrong; nothing was sent
    ├── BootstrapError                      the ranks could not find or trust each other
    ├── VerbsError                          a verbs object could not do it; it stays usable
    │   ├── QueueFullError                  more work requests than the queue has room for
    │   ├── CompletionQueueOverflowError    more completions than the queue has room for
    │   └── CompletionTimeoutError (TimeoutError)
    └── CommunicatorError                   the communicator is broken; later calls raise it again
        ├── PeerLostError                   a rank died or left; `.rank` says which
        ├── CollectiveTimeoutError (TimeoutError)
        ├── MismatchError                   ranks made different calls
        └── AbortedError                    abort() or Ctrl-C, here or on `.rank`

A message names the collective, its sequence number, the culprit, its host and process, and what to
look at next. Where a communicator fails, all its ranks raise the same one.
"""

import time
from typing import ClassVar


class HcclError(RuntimeError):
    """Root of the tree."""


class InvalidArgumentError(HcclError, ValueError):
    """A wrong argument: which one, what was expected, what came. The communicator stays usable."""

    latest: ClassVar[tuple[int, str]] = 0, ""
    """When the last one was made in this process (`time.monotonic_ns`), and its text."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        InvalidArgumentError.latest = time.monotonic_ns(), str(self)


class BootstrapError(HcclError):
    """Rendezvous, authentication or connecting failed before any collective could run."""


class VerbsError(HcclError):
    """A call of a verbs object failed. A failure on the wire is a completion instead."""


class QueueFullError(VerbsError):
    """max_send_wr or max_recv_wr requests are under way: poll for completions, then post again."""


class CompletionQueueOverflowError(VerbsError):
    """More completions came than the completion queue holds: some are lost for good."""


class CompletionTimeoutError(VerbsError, TimeoutError):
    """No completion came in the time allowed."""


class CommunicatorError(HcclError):
    """The communicator cannot be used any more; every later call raises the first cause again.

    All ranks have the same attributes; None is unknown, or nobody in particular.

    Attributes:
        rank: the culprit.
        host: where it ran.
        pid: its process there.
        cause: in one word or two, see `hccl_py.diagnosis.Cause`.
        collective: the call that met it, e.g. `all_reduce(sum, float32[1000])`.
        sequence: number of that call in the communicator, from 1.
    """

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    cause: str | None = None
    collective: str | None = None
    sequence: int | None = None


class PeerLostError(CommunicatorError):
    """A rank died (its connections closed without goodbye) or left while others still call."""


class CollectiveTimeoutError(CommunicatorError, TimeoutError):
    """A deadline passed; the message names the ranks that were waited for."""


class MismatchError(CommunicatorError):
    """Ranks called different collectives, or the same with different arguments."""


class AbortedError(CommunicatorError):
    """abort() was called, or a signal interrupted a collective half-way."""
