"""The device: a provider by name, and the root of all other verbs objects."""

import weakref
from collections import Counter
from typing import Protocol

from hccl_py.transport import _core, process_lifecycle
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.progress import progress_thread
from hccl_py.transport.providers.registry import (
    Endpoint,
    open_endpoint,
    provider_class,
    provider_names,
    register,
)
from hccl_py.transport.verbs.loopback import LoopbackEndpoint
from hccl_py.transport.verbs.python_provider import PythonProviderEndpoint
from hccl_py.transport.verbs.resource import Resource
from hccl_py.transport.verbs.sockets import ShmSocketEndpoint, TcpSocketEndpoint


def _zmq_endpoint() -> Endpoint:
    make = provider_class("zmq")  # imports pyzmq, which takes its time
    assert make is not None
    return PythonProviderEndpoint(make)


register("loopback", LoopbackEndpoint)
register("shm", ShmSocketEndpoint)
register("tcp", TcpSocketEndpoint)
register("zmq", _zmq_endpoint)

_open: "weakref.WeakSet[Device]" = weakref.WeakSet()


class _Counting(Protocol):
    def statistics(self) -> dict[str, int]: ...


class Device(Resource):
    """What ibv_open_device gives. A context manager.

    The progress thread of the process answers the peers of its queue pairs while no thread polls.

    Attributes:
        provider: its name.
    """

    def __init__(self, provider: str) -> None:
        """Open a device.

        Args:
            provider: `loopback` (this process), `shm` (this host), `tcp`, `zmq`, or one that
                `providers.registry.register` added.

        Raises:
            InvalidArgumentError: no such provider.
        """
        if provider not in provider_names():
            raise InvalidArgumentError(
                f"no provider {provider!r}; there are: {', '.join(provider_names())}"
            )
        super().__init__(None)
        self.provider = provider
        self._core = _core.VerbsDevice.create(progress_thread())
        self._pairs: list[_Counting] = []
        self._counted: Counter[str] = Counter()
        _open.add(self)

    @property
    def core(self) -> _core.VerbsDevice:
        """The engine's object; raises InvalidArgumentError after close()."""
        self.check_open()
        return self._core

    def open_endpoint(self) -> Endpoint:
        """Open one end of a connection, for a queue pair."""
        return open_endpoint(self.provider)

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

    def _release(self) -> None:
        self._core.stop()

    def _leak(self) -> None:
        _core.leak(self._core)


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
