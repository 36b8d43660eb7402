"""The device, the root of all other verbs objects, and how all of them close.

Device -> ProtectionDomain -> QueuePair, MemoryRegion
       -> CompletionQueue
"""

import weakref
from collections import Counter
from typing import Any, Generic, NoReturn, TypeVar, cast

from hccl_py.transport import _core, process_lifecycle
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.transports import VERBS, VERBS_OVER_TCP
from hccl_py.transport.progress import progress_thread
from hccl_py.transport.providers.registry import QueuePairEndpoint, endpoint_maker, register
from hccl_py.transport.providers.verbs.opened import OpenedPort
from hccl_py.transport.providers.verbs.types import QueuePairAttributes
from hccl_py.transport.verbs import endpoints
from hccl_py.transport.verbs.rdma_endpoint import RdmaEndpoint

register("loopback", endpoints.LoopbackEndpoint)
register("shm", endpoints.ShmSocketEndpoint)
register("tcp", endpoints.TcpSocketEndpoint)
register(VERBS_OVER_TCP, endpoints.TcpSocketEndpoint)  # a communicator's name for it
register("zmq", lambda: endpoints.PythonProviderEndpoint("zmq"))

Domain = _core.ProtectionDomain | _core.RdmaDomain
Pair = _core.QueuePair | _core.RdmaQueuePair
Queues = tuple[_core.CompletionQueue, _core.CompletionQueue]

Core = TypeVar("Core")
R = TypeVar("R", bound="Resource[Any]")


class Resource(Generic[Core]):
    """A verbs object. A context manager: closes its children in order, then itself.

    Attributes:
        closes_after_siblings: a completion queue outlives the queue pairs that report to it.
        closed: whether close() was called.
    """

    closes_after_siblings = False

    def __init__(self, parent: "Resource[Any] | None", core: Core) -> None:
        """Register with `parent`, which must be open, and own the engine's object."""
        if parent is not None:
            parent._check_open()
            parent._children.append(self)
        self._parent = parent
        self._core = core
        self._children: list[Resource[Any]] = []
        self._counted: Counter[str] = Counter()  # by closed queue pairs
        self.closed = False

    @property
    def core(self) -> Core:
        """The engine's object; raises InvalidArgumentError after close()."""
        self._check_open()
        return self._core

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> dict[str, int]:
        """Add up the counters of the queue pairs below, closed ones included."""
        total = Counter(self._counted)
        for child in self._children:
            total.update(child.statistics())
        return dict(total)

    def close(self) -> None:
        """Close the children, then this object. Idempotent."""
        if self.closed:
            return
        for child in sorted(self._children, key=lambda one: one.closes_after_siblings):
            child.close()
        self.closed = True
        if self._parent is not None and self in self._parent._children:
            self._parent._children.remove(self)
            self._parent._counted.update(self.statistics())
        self._release()

    def leave_to_parent(self) -> None:
        """In a forked child: drop all objects without closing them; the parent uses them."""
        for child in self._children:
            child.leave_to_parent()
        if not self.closed:
            self.closed = True
            _core.leak(self._core)
            self._core = cast("Core", _Inherited())

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidArgumentError(f"the {type(self).__name__} is closed; make a new one")

    def _release(self) -> None:
        """Free the engine's object."""


class _Inherited:
    """Replaces the engine's object in a forked child."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise InvalidArgumentError(
            "this process was forked from the one that owns the queue pair: make a new one here, "
            "or start processes with 'spawn'"
        )


class Device(Resource[_core.ProgressThread]):
    """An open device, as from ibv_open_device. A context manager.

    The process's progress thread answers the queue pairs' peers while no thread polls.

    Attributes:
        provider: its name; `verbs` for every RDMA device.
        rdma: the port of a real device; None for software queue pairs.
    """

    def __init__(self, provider: str) -> None:
        """Open a device.

        Args:
            provider: `loopback` (this process), `shm` (this host), `tcp`, `zmq`, or one that
                `providers.registry.register` added. `verbs:DEVICE` or `verbs:DEVICE:PORT` is an
                RDMA device, `verbs` the one that HCCL_IB_HCA chooses.

        Raises:
            InvalidArgumentError: no such provider.
            BootstrapError: no such RDMA device, or no library for it.
        """
        self.provider, _, name = provider.partition(":")
        self.rdma: OpenedPort | None = None
        if self.provider == VERBS:
            self.rdma = OpenedPort.by_name(name)
            self.rdma.log()
        else:
            self.provider = provider
            self._make_endpoint = endpoint_maker(provider)
        super().__init__(None, progress_thread())
        _open.add(self)

    def new_domain(self) -> Domain:
        """Make the engine's protection domain."""
        return _core.RdmaDomain(self.rdma.core) if self.rdma else _core.ProtectionDomain()

    def new_queue_pair(
        self, domain: Domain, queues: Queues, attributes: QueuePairAttributes
    ) -> Pair:
        """Make the engine's queue pair; `queues` are for sends and for RECVs."""
        if isinstance(domain, _core.RdmaDomain):
            return _core.RdmaQueuePair.create(domain, *queues, attributes)
        return _core.QueuePair.create(self.core, domain, *queues, attributes)

    def open_endpoint(self, pair: Pair) -> QueuePairEndpoint | RdmaEndpoint:
        """Open one end of a connection for a queue pair."""
        if isinstance(pair, _core.RdmaQueuePair):
            assert self.rdma is not None
            return RdmaEndpoint(self.rdma, pair)
        return self._make_endpoint()


_open: "weakref.WeakSet[Device]" = weakref.WeakSet()


def _close_all() -> None:
    # Waiting daemon threads would crash the interpreter at its end.
    for device in list(_open):
        device.close()


def _leave_to_parent() -> None:
    for device in list(_open):
        device.leave_to_parent()
    _open.clear()


process_lifecycle.register(
    process_lifecycle.LifecycleStage.QUEUE_PAIRS,
    at_exit=_close_all,
    in_forked_child=_leave_to_parent,
)
