"""Queue pair: one end of a reliable connection."""

from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.providers.registry import QueuePairEndpoint
from hccl_py.transport.providers.verbs.types import (
    QueuePairAttributes,
    RecvRequest,
    SendRequest,
    State,
)
from hccl_py.transport.verbs.completion_queue import CompletionQueue
from hccl_py.transport.verbs.device import Resource
from hccl_py.transport.verbs.memory import ProtectionDomain
from hccl_py.transport.verbs.rdma_endpoint import RdmaEndpoint

_ADDRESS_VERSION = 3
_SIZES = frozenset(("max_send_wr", "max_recv_wr", "max_sge", "max_inline"))


class QueuePair(Resource[_core.QueuePair | _core.RdmaQueuePair]):
    """One end of a reliable connection; ibv_qp of type RC. A context manager; threads may share it.

    Delivers in order and exactly once. An error moves it and its peer to ERROR and ends all
    requests, posted before or after, with FLUSHED. close() (ibv_destroy_qp) does the same, without
    local completions.

    Attributes:
        number: unique in this process.
        attributes: sizes, timers and retries.
    """

    def __init__(
        self,
        domain: ProtectionDomain,
        send_queue: CompletionQueue,
        recv_queue: CompletionQueue | None = None,
        attributes: QueuePairAttributes | None = None,
    ) -> None:
        """Make a queue pair in RESET (ibv_create_qp).

        Args:
            domain: holds the memory regions that it may use.
            send_queue: reports the requests of post_send.
            recv_queue: reports RECVs; default: `send_queue`.
            attributes: sizes, timers and retries.

        Raises:
            InvalidArgumentError: an attribute is out of range.
        """
        self.attributes = attributes or QueuePairAttributes()
        # References: the engine's objects must outlive this one.
        self._queues = (send_queue.core, (recv_queue or send_queue).core)
        self._device = device = domain.device
        core = device.new_queue_pair(domain.core, self._queues, self.attributes)
        self.number = core.number()
        self._endpoint: QueuePairEndpoint | RdmaEndpoint | None = None
        super().__init__(domain, core)

    @property
    def state(self) -> State:
        """RESET after close()."""
        return State(self._core.state())

    @property
    def reason(self) -> str:
        """The cause of ERROR; empty otherwise."""
        return self._core.reason()

    @property
    def address(self) -> bytes:
        """The address for the peer's `connect`; the user carries it there.

        It holds a random secret that authenticates the two ends: a program that reads it can
        connect instead of the peer, unless HCCL_SECRET is set, which is needed as well.

        Raises:
            InvalidArgumentError: the queue pair is not in INIT.
            BootstrapError: no endpoint can be opened.
        """
        if self.state is not State.INIT:
            raise InvalidArgumentError(f"a queue pair in {self.state.name} has no address")
        if self._endpoint is None:
            self._endpoint = self._device.open_endpoint(self._core)
        address = [_ADDRESS_VERSION, self._device.provider, self._endpoint.address]
        return bytes(msgpack.packb(address))

    def connect(self, remote_address: bytes, *, timeout_s: float) -> None:
        """Connect to another queue pair, which does the same; INIT -> RTR -> RTS.

        Post the RECVs for the first messages before this call.

        Raises:
            InvalidArgumentError: not in INIT, or an invalid address.
            BootstrapError: the peer did not connect, or could not authenticate.
        """
        self.address  # noqa: B018 - opens the endpoint, or raises
        assert self._endpoint is not None
        link = self._endpoint.connect(self._endpoint_of(remote_address), timeout_s)
        self.attach(link)
        self.modify(State.RTR)
        if isinstance(self._endpoint, RdmaEndpoint):
            self._endpoint.await_peer()
        self._close_endpoint()
        self.modify(State.RTS)

    def attach(self, link: "_core.UnderlyingLane | _core.RdmaPeer") -> None:
        """Attach a connection that was made without `connect`, in INIT."""
        self._core.attach(link)  # type: ignore[arg-type]

    def modify(self, state: State, **attributes: Any) -> None:
        """Step to another state (ibv_modify_qp).

        RESET -> INIT -> RTR -> RTS, one at a time; RESET and ERROR from anywhere.

        Args:
            state: the next or the current state.
            attributes: fields of QueuePairAttributes that change, before RTS; sizes do not.

        Raises:
            InvalidArgumentError: no such step.
        """
        if attributes:
            if sizes := _SIZES & attributes.keys():
                raise InvalidArgumentError(
                    f"{', '.join(sorted(sizes))}: sizes are set where the queue pair is made"
                )
            changed = replace(self.attributes, **attributes)
            self._core.set_attributes(changed)
            self.attributes = changed
        self._core.modify(int(state))

    def post_send(self, request: SendRequest) -> None:
        """Post a request (ibv_post_send); the engine uses its memory until it completes.

        Raises:
            InvalidArgumentError: the queue pair is not in RTS or ERROR, or the request is wrong.
            QueueFullError: max_send_wr requests are outstanding.
        """
        self._core.post_send(
            request.wr_id,
            request.opcode,
            request.flags,
            request.imm,
            request.rkey,
            request.remote_address,
            request.pieces,
        )

    def post_recv(self, request: RecvRequest) -> None:
        """Post memory for one message (ibv_post_recv).

        Raises:
            InvalidArgumentError: the queue pair is in RESET, or the request is wrong.
            QueueFullError: max_recv_wr RECVs are posted.
        """
        self._core.post_recv(request.wr_id, request.pieces)

    def statistics(self) -> dict[str, int]:
        """Count messages and bytes both ways, stalls, retries and timeouts."""
        return self._core.statistics()

    def leave_to_parent(self) -> None:
        """See Resource."""
        self._close_endpoint()
        super().leave_to_parent()

    def _release(self) -> None:
        self._close_endpoint()
        self._core.close()

    def _close_endpoint(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def _endpoint_of(self, remote_address: bytes) -> bytes:
        mine = self._device.provider
        try:
            version, provider, endpoint = msgpack.unpackb(remote_address)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError("this is no address of a queue pair") from error
        if (version, provider) != (_ADDRESS_VERSION, mine) or not isinstance(endpoint, bytes):
            raise InvalidArgumentError(
                f"the peer's queue pair is on provider {provider!r} (version {version}), "
                f"this one on {mine!r} (version {_ADDRESS_VERSION})"
            )
        return endpoint
