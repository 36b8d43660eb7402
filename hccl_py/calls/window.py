"""Windows: memory of each rank that the others write without a call of it, and signals.

`Communicator.window` makes them. A put or signal to a rank of the node that maps the memory is a
copy or an atomic addition on the calling thread (`csrc/engine/window.h`). To all other ranks it is
a message; a signal arrives after the earlier puts to the same rank.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from hccl_py.calls.call_group import require_no_group
from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.calls.recording import reject_in_capture
from hccl_py.calls.work import Ended, Work
from hccl_py.fingerprint import WindowCall, WindowKind
from hccl_py.memory.buffers import READER, span_of, wrong_type
from hccl_py.memory.element_types import ELEMENT_TYPES, type_of_signature
from hccl_py.memory.registered import typed
from hccl_py.transport import _core
from hccl_py.transport.arguments import whole_number
from hccl_py.transport.errors import InvalidArgumentError

Result = TypeVar("Result", covariant=True)
Gather = Callable[[Any, Any], Any]
"""An all_gather of arrays among the ranks: output, input."""

_NO_DATA = 0, 0


class WindowCalls(Generic[Result]):
    """The calls of a window, all blocking or all in the background.

    All raise InvalidArgumentError for a wrong argument or a closed window, and CommunicatorError if
    the call fails. `timeout_s`: None is the communicator's own.
    """

    def __init__(self, opened: "_Opened", blocking: bool) -> None:
        self._opened = opened
        self._blocking = blocking
        state, native = opened.state, opened.native
        done = Work(Ended(), state.errors, 0.0, WindowCall(WindowKind.PUT, state.rank, 0))
        self._done: Result = None if blocking else done  # type: ignore[assignment]
        self._put, self._signal, self._take_signal = native.put, native.signal, native.take_signal

    def put(
        self, data: Any, peer: int, offset: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Copy `data` into the memory of rank `peer`, from its element `offset` on.

        When the call has ended, `data` may be changed. The peer may read the elements after a
        `wait_signal` for a signal that followed the put.

        Args:
            data: an array or tensor with the window's element type, of any shape.
            peer: a rank, also this one.
            offset: in elements; all of `data` must fit behind it.
        """
        if timeout_s is None and self._put(data, peer, offset):
            return self._done
        opened = self._opened
        peer, limit_s = opened.checked(peer), opened.state.limit(timeout_s)
        span = span_of(data)
        if span.kind is not opened.kind:
            raise wrong_type("data", span, "the window", opened.span)
        room = opened.counts[peer]
        offset = whole_number("offset", offset, "a whole number from 0 on", range(1 << 62))
        if offset + span.count > room:
            raise InvalidArgumentError(
                f"data: expected at most {max(room - offset, 0)} elements from offset {offset} on, "
                f"because rank {peer} exposes {room}; got {span.count}"
            )
        memory, at = (span.address, span.num_bytes), offset * opened.kind.item_bytes
        if opened.native.put_bytes(*memory, peer, at) or not span.count:
            return self._done
        return self._submit(WindowKind.PUT, peer, limit_s, memory, at, data)

    def signal(self, peer: int, *, timeout_s: float | None = None) -> Result:
        """Send a signal to rank `peer`, which arrives after this rank's earlier puts to it."""
        if timeout_s is None and self._signal(peer):
            return self._done
        peer, limit_s = self._opened.checked(peer), self._opened.state.limit(timeout_s)
        return self._done if self._signal(peer) else self._submit(WindowKind.SIGNAL, peer, limit_s)

    def wait_signal(self, peer: int, *, timeout_s: float | None = None) -> Result:
        """Wait for a signal of rank `peer`, and take it; the others remain for later waits.

        All that the peer put before the signal is then in this rank's memory.
        """
        if timeout_s is None and self._take_signal(peer):
            return self._done
        peer, limit_s = self._opened.checked(peer), self._opened.state.limit(timeout_s)
        return self._submit(WindowKind.WAIT_SIGNAL, peer, limit_s)

    def _submit(
        self,
        kind: WindowKind,
        peer: int,
        limit_s: float,
        memory: tuple[int, int] = _NO_DATA,
        offset: int = 0,
        data: object = (),
    ) -> Result:
        opened, state = self._opened, self._opened.state
        core = state.require_engine()
        call = WindowCall(kind, peer, memory[1])
        made = core.make_window_call(
            opened.native, opened.id, int(kind), peer, offset, memory, limit_s, data
        )
        try:
            if self._blocking:
                core.run(made)
                return self._done
            return Work(core.start(made), state.errors, limit_s, call)  # type: ignore[return-value]
        except _core.CommunicatorFailed as failure:
            raised = state.errors.of_call(failure, limit_s, call)
            del core  # the traceback of an exception must not keep the engine
            raise raised from None


class Window(WindowCalls[None]):
    """Memory that each rank exposes to the others, which put into it and signal.

    Each call blocks until its end; those of `nonblocking` return a Work. Any thread may call the
    methods. Puts and signals of one thread to one rank take effect in their order; those of several
    threads in any. A context manager: leaving it closes.

    Attributes:
        buffer: this rank's memory, as given.
        counts: elements that each rank exposes.
        nonblocking: the same calls in the background, each returning a Work.
    """

    def __init__(self, opened: "_Opened") -> None:
        super().__init__(opened, blocking=True)
        self.buffer, self.counts = opened.buffer, opened.counts
        self.nonblocking: WindowCalls[Work] = WindowCalls(opened, blocking=False)

    def __repr__(self) -> str:
        """Show the communicator, this rank and the sizes."""
        state = self._opened.state
        return (
            f"<Window of {state.name}: rank {state.rank} of {state.world_size}, "
            f"{self.counts[state.rank]} elements of {self._opened.kind.name}>"
        )

    def is_mapped(self, peer: int) -> bool:
        """Whether this rank writes directly into the memory of `peer`, and can map it."""
        return self._opened.native.maps(self._opened.checked(peer))

    def map_remote_tensor(self, peer: int) -> Any:
        """Return a view of the memory of rank `peer`, which is on this node; of one dimension.

        Its type is that of `buffer`. It may be read and written until the peer's memory is freed.
        Signals order the accesses of both ranks.

        Raises:
            InvalidArgumentError: the peer is on another node, or its memory is not registered.
        """
        opened = self._opened
        peer = opened.checked(peer)
        buffer = opened.buffer if hasattr(opened.buffer, "dtype") else np.asarray(opened.buffer)
        if peer == opened.state.rank:
            return buffer.reshape(-1)
        if not opened.native.maps(peer):
            raise InvalidArgumentError(
                f"peer: expected a rank whose memory this process maps, got rank {peer}, which is "
                "on another node or exposes memory that is not registered; expose what "
                "hccl_py.empty() or register() made, or put() into it"
            )
        return typed(opened.native.memory_of(peer), buffer.dtype)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait for all ranks' puts, and end the window; all ranks call it. Idempotent.

        No rank writes into this rank's `buffer` afterwards. Once the communicator has failed or is
        closed it returns at once. Registered memory that a peer may still write to, because a rank
        dropped its window without this call, is never allocated again.
        """
        opened = self._opened
        if opened.is_closed:
            return
        agreed = False
        try:
            core = opened.state.core
            if core is not None and not core.failed():
                require_no_group("close")
                self._meet(timeout_s)
                agreed = True
        finally:
            opened.is_closed = True
            opened.native.withdraw(agreed)

    def _meet(self, timeout_s: float | None) -> None:
        opened, limit_s = self._opened, self._opened.state.limit(timeout_s)
        peers = [one for one in range(opened.state.world_size) if one != opened.state.rank]
        calls: WindowCalls[Work] = self.nonblocking
        works = [
            calls._submit(WindowKind.SIGNAL, peer, limit_s, offset=1)
            for peer in peers
            if not opened.native.signal(peer, True)
        ]
        works += [
            calls._submit(WindowKind.WAIT_SIGNAL, peer, limit_s, offset=1)
            for peer in peers
            if not opened.native.take_signal(peer, True)
        ]
        for work in works:
            work.wait()

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an exception on this rank only, because other ranks may not come."""
        if kind is None:
            self.close()
        else:
            self._opened.is_closed = True
            self._opened.native.withdraw(False)


class _Opened:
    """What the calls of one window share."""

    def __init__(self, state: CommunicatorState, buffer: Any) -> None:
        self.span = span = span_of(buffer, "buffer", writable=True)
        self.state, self.buffer, self.kind = state, buffer, span.kind
        self.id = 0  # the same on all ranks
        self.counts: tuple[int, ...] = ()
        self.is_closed = False
        self.native = state.require_engine().make_window(
            span.address, span.num_bytes, READER, span.kind, span.kind.item_bytes, buffer
        )

    def checked(self, peer: int) -> int:
        """Return the peer; raise InvalidArgumentError unless it is a rank and the window open."""
        if self.is_closed:
            raise InvalidArgumentError(
                "the window is closed; make another one by Communicator.window()"
            )
        self.state.require_engine()
        n = self.state.world_size
        return whole_number("peer", peer, f"a rank of 0..{n - 1}", range(n))

    def connect(self, number: int, gather: Gather) -> None:
        """Exchange the places of all ranks' memory, map those of this node, and open the window."""
        state, n, core = self.state, self.state.world_size, self.state.require_engine()
        kind, at = self.kind, self.native.offsets()
        mine = [number, self.span.num_bytes, kind.number, kind.signature, kind.item_bytes, *at]
        everyone = np.empty((n, len(mine)), np.int64)
        gather(everyone, np.array(mine, np.int64))
        self._check_types(everyone[:, 2:5].tolist())
        self.id = int(everyone[:, 0].max())
        self.counts = tuple(int(one) // kind.item_bytes for one in everyone[:, 1])
        for peer, row in enumerate(everyone.tolist()):
            memory_at, signals_at = row[5:]
            if peer != state.rank and memory_at >= 0 and signals_at >= 0:
                core.map_window(self.native, peer, row[1], memory_at, signals_at)
        core.open_window(self.native, self.id, False)  # before a peer sends to it
        maps = np.array([self.native.maps(peer) for peer in range(n)])
        mapped = np.empty((n, n), np.bool_)
        gather(mapped, maps)
        if not mapped[:, state.rank].all():
            core.open_window(self.native, self.id, True)

    def _check_types(self, rows: list[list[int]]) -> None:
        if all(row == rows[0] for row in rows):
            return
        names = [
            (type_of_signature(signature) if signature else ELEMENT_TYPES[number]).name
            for number, signature, _ in rows
        ]
        raise InvalidArgumentError(
            "buffer: expected one element type on all ranks, got "
            + ", ".join(f"{name} on rank {rank}" for rank, name in enumerate(names))
        )


def open_window(state: CommunicatorState, buffer: Any, gather: Gather) -> Window:
    """Make a window of all ranks' buffers; see `Communicator.window`."""
    require_no_group("window")
    reject_in_capture("a new window", "make it before the block")
    opened = _Opened(state, buffer)
    state.num_windows += 1
    opened.connect(state.num_windows, gather)
    state.num_windows = opened.id
    return Window(opened)
