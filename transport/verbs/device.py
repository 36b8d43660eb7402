"""The device: a provider by name, and the thread that answers peers while nobody polls."""

import weakref
from collections import Counter
from typing import Protocol

from hccl_py.transport import _core, process_lifecycle
from hccl_py.transport.progress import progress_thread
from hccl_py.transport.providers.registry import (
    Endpoint,
    open_endpoint,
    provider_class,
    provider_names,
    register,
)

from ..errors import InvalidArgumentError
from .loopback import LoopbackEndpoint
from .python_provider import PythonProviderEndpoint
from .sockets import ShmSocketEndpoint, TcpSocketEndpoint


def _zmq_endpoint() -> Endpoint:
    make = provider_class("zmq")  # imports pyzmq, which takes its time
    assert make is not None
    return PythonProviderEndpoint(make)


register("loopback", LoopbackEndpoint)
register("shm", ShmSocketEndpoint)
register("tcp", TcpSocketEndpoint)
register("zmq", _zmq_endpoint)


class _Child(Protocol):
    def close(self) -> None: ...

    def leave_to_parent(self) -> None: ...


_open: "weakref.WeakSet[Device]" = weakref.WeakSet()


class _Counting(Protocol):
    def statistics(self) -> dict[str, int]: ...


class Device:
    """What ibv_open_device gives: the root of all other objects. A context manager.

    Attributes:
        provider: its name.
    """

    def __init__(self, provider: str) -> None:
        """Open a device.

        Args:
            provider: `loopback` (this process), `shm` (this host), `tcp`, or one that
                `transport.providers.register` added.

        Raises:
            InvalidArgumentError: no such provider.
        """
        if provider not in provider_names():
            raise InvalidArgumentError(
                f"no provider {provider!r}; there are: {', '.join(provider_names())}"
            )
        self.provider = provider
        self._core = _core.VerbsDevice.create(progress_thread())
        # Should close() be forgotten: the thread must not outlive the interpreter.
        self._end_thread = weakref.finalize(self, self._core.stop)
        self._children: list[_Child] = []
        self._pairs: list[_Counting] = []
        self._counted: Counter[str] = Counter()
        self._closed = False
        _open.add(self)

    def __enter__(self) -> "Device":
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def core(self) -> _core.VerbsDevice:
        """The engine's object; raises InvalidArgumentError after close()."""
        if self._closed:
            raise InvalidArgumentError("the device is closed")
        return self._core

    def open_endpoint(self) -> Endpoint:
        """Open one end of a connection, for a queue pair."""
        return open_endpoint(self.provider)

    def adopt(self, child: _Child) -> None:
        """Close this object before the device: protection domains before completion queues."""
        self._children.append(child)

    def disown(self, child: _Child) -> None:
        """Forget an object that closes itself."""
        if child in self._children:
            self._children.remove(child)

    def count(self, pair: _Counting) -> None:
        """Include a queue pair in `statistics`."""
        self._pairs.append(pair)

    def count_last(self, pair: _Counting) -> None:
        """Keep what a queue pair counted, which closes now."""
        self._pairs.remove(pair)
        self._counted.update(pair.statistics())

    def statistics(self) -> dict[str, int]:
        """Add up what its queue pairs counted, those that are closed included."""
        total = Counter(self._counted)
        for pair in self._pairs:
            total.update(pair.statistics())
        return dict(total)

    def close(self) -> None:
        """Close what was made on it, then the device. Idempotent."""
        if self._closed:
            return
        # A completion queue must stay until the queue pairs that report to it are gone.
        for child in sorted(self._children, key=lambda one: hasattr(one, "poll")):
            child.close()
        self._closed = True
        self._core.stop()

    def leave_to_parent(self) -> None:
        """In a forked child: let go of everything without a word, as the parent still uses it."""
        if self._closed:
            return
        self._closed = True
        for child in self._children:
            child.leave_to_parent()
        self._end_thread.detach()
        _core.leak(self._core)  # its thread is not there, and cannot be waited for


def _close_all() -> None:
    # Daemon threads that wait would not survive the end of the interpreter, nor it them.
    for device in list(_open):
        device.close()


def _leave_to_parent() -> None:
    for device in list(_open):
        device.leave_to_parent()
    _open.clear()


process_lifecycle.register(
    process_lifecycle.Stage.QUEUE_PAIRS, at_exit=_close_all, in_forked_child=_leave_to_parent
)
