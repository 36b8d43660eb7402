"""Shares the first failure to connect with all ranks, through the store of the rendezvous.

    failure = SharedFailure(SealedStore(store, secret), rank, world_size)
    with failure.sharing():        # shares the block's error, unless another rank's came first
        ...
        failure.poll()             # regularly; raises another rank's error

All ranks raise the first failure. A rank that fails closes its connections. Without the shared
failure its peers would report that rank or each other, or wait until their deadline.
"""

import contextlib
import socket
import time
from collections.abc import Iterator

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.deadline import pause
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.network.system_calls import descriptor_limits, is_no_descriptor
from hccl_py.transport.threads import is_of_signal_handler

FAILURE = "failure"
_MAX_BYTES = 2048
_READERS_S = 3.0
"""Longest wait of rank 0, whose process may serve the store, for the others to read a failure."""
_READERS_PERIOD_S = 0.02


class SharedFailure:
    """The first failure of a communicator whose ranks connect.

    Attributes:
        has_met: whether this rank's rendezvous is over.
    """

    def __init__(self, store: SealedStore, rank: int, world_size: int) -> None:
        self.has_met = False
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._store_ended = False

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Run the block; its BootstrapError or OSError becomes a BootstrapError of all ranks."""
        try:
            yield
        except Exception as error:
            cause = self._share(self._describe(error))
            if isinstance(error, BootstrapError | OSError) and not is_of_signal_handler(error):
                raise BootstrapError(f"rank {self._rank}: cannot connect: {cause}") from error
            raise

    def poll(self) -> None:
        """Raise BootstrapError if another rank shared a failure, or if the store ended."""
        if self._store_ended:
            return
        try:
            is_there = self._store.has(FAILURE)
        except BootstrapError as error:
            self._store_ended = True
            raise BootstrapError(
                f"{error}; a rank or a launcher ended while the others connected; look at the log "
                "of rank 0 first"
            ) from error
        if is_there:
            raise BootstrapError(self._read())

    def first(self) -> str:
        """Return the first shared failure; "" if there is none, or no store."""
        with contextlib.suppress(BootstrapError):
            return self._read() if self._store.has(FAILURE) else ""
        return ""

    def publish_listening(self) -> None:
        """Publish that this rank listens: from now on a refused connection is an error."""
        self._store.set(f"listening/{self._rank}", b"")

    def listens(self, rank: int) -> bool:
        """Return whether a rank has published that it listens."""
        return not self._store_ended and self._store.has(f"listening/{rank}")

    def _describe(self, error: Exception) -> str:
        text = str(error) if isinstance(error, HcclError) else f"{type(error).__name__}: {error}"
        if is_no_descriptor(error):
            text = f"no descriptor is left: ulimit -n is {descriptor_limits()[0]}; raise it there"
        text = text.removeprefix(f"rank {self._rank}: ")
        if not text.startswith(("rank ", "a rank ")):
            text = f"rank {self._rank} on {socket.gethostname()}: {text}"
        return text.partition("\n")[0][:_MAX_BYTES]

    def _share(self, mine: str) -> str:
        """Publish a failure if it is the first; return the first, as far as known."""
        if self._store_ended:
            return mine
        try:
            content = mine.encode()
            if not (self.first() or self._store.set_first(FAILURE, content) or self.first()):
                self._store.set(FAILURE, content)  # over one with another HCCL_SECRET
            if not self.has_met:  # ranks in the rendezvous wait for these keys
                key = "members" if self._rank == 0 else f"member/{self._rank}"
                self._store.set(key, msgpack.packb({FAILURE: mine}))
            return self._read()
        except BootstrapError:  # the store may have ended with its rank; the cause is known
            self._store_ended = True
            return mine
        finally:
            self._leave()

    def _read(self) -> str:
        return self._store.get(FAILURE, "the failure", 4 * _MAX_BYTES).decode(errors="replace")

    def _leave(self) -> None:
        """Wait until the others have read the store, which may end with the process of rank 0.

        Rank 0 waits for ranks that arrived, or for all if it failed before it set its own info, as
        long as they live.
        """
        with contextlib.suppress(BootstrapError):
            if self._store_ended or self._store.stays:
                return
            if self._rank != 0:
                self._store.set(f"listening/{self._rank}", b"")
                return
            waiting = set(range(1, self._world_size))
            if self._store.has("member/0"):
                waiting = {rank for rank in waiting if self._store.has(f"member/{rank}")}
            until_s = time.monotonic() + _READERS_S
            while (waiting := waiting - self._store.ended()) and time.monotonic() < until_s:
                waiting = {rank for rank in waiting if not self._store.has(f"listening/{rank}")}
                pause(_READERS_PERIOD_S)
