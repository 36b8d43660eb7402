"""Every error that hccl-py raises, in one tree.

    HcclError (RuntimeError)
    ├── InvalidArgumentError (ValueError)   the call was wrong; nothing was sent
    ├── BootstrapError                      the ranks could not connect or authenticate
    ├── RankFailedError                     a rank of hccl_py.spawn raised or died
    ├── VerbsError                          a verbs call failed; the object stays usable
    │   ├── QueueFullError                  more work requests than the queue has room for
    │   ├── CompletionQueueOverflowError    more completions than the queue has room for
    │   └── CompletionTimeoutError (TimeoutError)
    └── CommunicatorError                   the communicator is broken; later calls raise it again
        ├── PeerLostError                   a rank died or left; `.rank` says which
        ├── CollectiveTimeoutError (TimeoutError)
        ├── MismatchError                   ranks made different calls
        └── AbortedError                    abort() or Ctrl-C, here or on `.rank`

A message names the collective, its sequence number, the culprit, its host and process, and what to
look at next. When a communicator fails, all its ranks raise the same error.
"""

import time
from typing import ClassVar


class HcclError(RuntimeError):
    """Root of the tree."""


class InvalidArgumentError(HcclError, ValueError):
    """A wrong argument, with its name, the expected and the given value. Nothing was sent."""

    latest: ClassVar[tuple[int, str]] = 0, ""
    """Time (`time.monotonic_ns`) and text of this process's last one."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        InvalidArgumentError.latest = time.monotonic_ns(), str(self)


class BootstrapError(HcclError):
    """Rendezvous, authentication or connecting failed before the first collective."""


class RankFailedError(HcclError):
    """A rank of `hccl_py.spawn` raised or died; its traceback is the cause.

    Attributes:
        rank: the rank that failed first.
        kind: the type of its exception; empty: it died without one.
        exit_code: of its process, negative for a signal.
    """

    rank: int
    kind: str
    exit_code: int


class VerbsError(HcclError):
    """A call of a verbs object failed. A failure on the wire is reported as a completion."""


class QueueFullError(VerbsError):
    """max_send_wr or max_recv_wr requests are outstanding: poll, then post again."""


class CompletionQueueOverflowError(VerbsError):
    """The completion queue overflowed: some completions are lost."""


class CompletionTimeoutError(VerbsError, TimeoutError):
    """No completion arrived in the time allowed."""


class CommunicatorError(HcclError):
    """The communicator cannot be used any more; every later call raises the first cause again.

    All ranks have the same attributes; None is unknown, or no particular rank.

    Attributes:
        rank: the culprit.
        host: its host name.
        pid: its process id.
        cause: e.g. `died`, `left` or `mismatch`: a `Cause` of the engine, in words.
        collective: the call that failed, e.g. `all_reduce(sum, float32[1000])`.
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
    """A deadline passed; the message names the ranks that the call waited for."""


class MismatchError(CommunicatorError):
    """Ranks called different collectives, or the same with different arguments."""


class AbortedError(CommunicatorError):
    """abort() was called, or a signal interrupted a collective half-way."""
