"""The provider `zmq`: ZeroMQ over TCP, encrypted and authenticated with CURVE.

Of each pair of ranks the higher one dials, with a socket per lane, so that one lane's back pressure
never blocks another, as a shared ROUTER would. Every rank generates a key pair for this
communicator; the public key travels in the rendezvous address, so both ends know the expected peer.
Each listener admits the key of one rank; a thread checks it even while no call moves a lane. ZeroMQ
reconnects when a connection breaks, and `lane.py` sends unacknowledged messages again.
"""

import contextlib
import struct
import threading
from collections.abc import Mapping, Sequence

import msgpack  # type: ignore[import-untyped]
import zmq
from zmq.utils import z85

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.sockets import BACKLOG, bind_listener
from hccl_py.transport.providers.interface import ProviderSettings
from hccl_py.transport.providers.zmq.lane import BROKEN, QUEUED_MESSAGES, ZmqLane
from hccl_py.transport.threads import is_of_signal_handler, start_without_signals

_HANDSHAKE_MS = 10_000
_FIRST_RETRY_MS, _LONGEST_RETRY_MS = 50, 1000
_CONNECT_MS = 3000
# A peer that is silent for longer is redialled: its kernel may have lost the connection.
_HEARTBEAT_MS, _ANSWER_MS = 1000, 5000
_TURN_MS = 20
"""Interval of checks of the other bootstrap connections while lanes connect."""
_MAX_LANES_IN_MESSAGE = 8
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"

_LaneKey = tuple[int, int]
"""Rank of the peer and index of the lane."""


class ZmqProvider:
    """The lanes of one communicator and the ZeroMQ context they live in."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # A lane is a socket and the two of its monitor; some are ZeroMQ's own.
        num_lanes = settings.num_lanes * settings.world_size
        self._context.set(zmq.MAX_SOCKETS, 4 * num_lanes + 64)
        self._lanes: dict[_LaneKey, ZmqLane] = {}
        self._ports: list[int] = []
        self._public_key, self._secret_key = zmq.curve_keypair()
        self._keys: Mapping[bytes, bytes] = {}  # by rank
        # Before a peer can dial; the thread starts once the keys are known.
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP_ENDPOINT)
        self._thread: threading.Thread | None = None
        try:
            for peer in range(settings.rank + 1, settings.world_size):
                for index in range(settings.num_lanes):
                    self._listen((peer, index))
        except (zmq.ZMQError, OSError, BootstrapError) as error:
            self.close()
            if is_of_signal_handler(error):
                raise
            raise BootstrapError(
                f"rank {settings.rank}: cannot listen on {settings.address}, where zmq needs "
                f"{settings.num_lanes} ports for each pair of ranks: {error}"
            ) from error

    def address(self) -> bytes:
        """Return public key, address and ports."""
        ports = struct.pack(f"!{len(self._ports)}H", *self._ports)
        return bytes(msgpack.packb([self._public_key, self._settings.address, ports]))

    def connect(self, addresses: Sequence[bytes], deadline: Deadline) -> dict[int, list[ZmqLane]]:
        """Dial the lower ranks and admit the higher ones; see `interface.Provider`."""
        keys: dict[bytes, bytes] = {}
        for peer, theirs in enumerate(addresses):
            key, address, packed = msgpack.unpackb(theirs)
            keys[str(peer).encode()] = z85.decode(key)
            ports = struct.unpack(f"!{len(packed) // 2}H", packed)
            first = (self._settings.rank - peer - 1) * self._settings.num_lanes
            for index in range(self._settings.num_lanes if peer < self._settings.rank else 0):
                self._dial((peer, index), key, _url(address, ports[first + index]))
        self._keys = keys
        self._thread = threading.Thread(target=self._answer, name="hccl-zmq", daemon=True)
        start_without_signals(self._thread)
        self._await_lanes(deadline)
        return {
            peer: [self._lanes[peer, index] for index in range(self._settings.num_lanes)]
            for peer in range(self._settings.world_size)
            if peer != self._settings.rank
        }

    def close(self) -> None:
        """Close all lanes; sent messages may leave for `lane.LINGER_MS`."""
        for lane in self._lanes.values():
            lane.close()
        if self._thread is None:
            self._zap.close(0)
        self._context.term()

    def _open(self, lane_key: _LaneKey) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        try:
            self._lanes[lane_key] = ZmqLane(socket)
        except BaseException:
            socket.close(0)  # `close` waits until every socket is
            raise
        socket.set_hwm(QUEUED_MESSAGES)
        socket.ipv6 = ":" in self._settings.address
        socket.reconnect_ivl, socket.reconnect_ivl_max = _FIRST_RETRY_MS, _LONGEST_RETRY_MS
        socket.connect_timeout = _CONNECT_MS
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.heartbeat_ivl, socket.heartbeat_timeout = _HEARTBEAT_MS, _ANSWER_MS
        socket.curve_publickey = self._public_key
        socket.curve_secretkey = self._secret_key
        return socket

    def _listen(self, lane_key: _LaneKey) -> None:
        socket = self._open(lane_key)
        socket.curve_server = True
        socket.zap_domain = str(lane_key[0]).encode()
        socket.zap_enforce_domain = True  # without a ZAP handler no connection is admitted
        # Ports up to the last one that was free are taken.
        first = self._ports[-1] + 1 if self._ports else 0
        bound = bind_listener(Endpoint("", self._settings.address), self._settings.ports, first)
        bound.listen(BACKLOG)
        self._ports.append(bound.getsockname()[1])
        socket.use_fd = bound.detach()
        socket.bind(_url(self._settings.address, self._ports[-1]))

    def _dial(self, lane_key: _LaneKey, key: bytes, endpoint: str) -> None:
        socket = self._open(lane_key)
        socket.curve_serverkey = key
        socket.connect(endpoint)

    def _await_lanes(self, deadline: Deadline) -> None:
        poller = zmq.Poller()
        awaited = {lane.monitor: lane_key for lane_key, lane in self._lanes.items()}
        for monitor in awaited:
            poller.register(monitor, zmq.POLLIN)
        while awaited:
            if deadline.expired:
                raise BootstrapError(self._timeout_message(list(awaited.values()), deadline))
            if deadline.hopeless is not None and (why := deadline.hopeless()):
                raise BootstrapError(why)
            for ready, _ in poller.poll(_TURN_MS):
                lane_key = awaited[ready]
                standing, reason = self._lanes[lane_key].standing, self._lanes[lane_key].rejection
                if standing:
                    del awaited[ready]
                    poller.unregister(ready)
                elif lane_key[0] < self._settings.rank and reason not in (None, BROKEN):
                    raise BootstrapError(
                        f"rank {self._settings.rank}: rank {lane_key[0]} rejected lane "
                        f"{lane_key[1]}: {reason}; look at the log of rank {lane_key[0]} first"
                    )

    def _answer(self) -> None:
        """Admit or reject connections. The domain is the rank that the listener expects."""
        with self._zap, contextlib.suppress(zmq.ContextTerminated):
            while True:
                version, request, domain, _, _, mechanism, *proofs = self._zap.recv_multipart()
                admitted = mechanism == b"CURVE" and proofs == [self._keys.get(domain)]
                status, text = (b"200", b"OK") if admitted else (b"400", b"not a member")
                self._zap.send_multipart([version, request, status, text, domain, b""])

    def _timeout_message(self, awaited: Sequence[_LaneKey], deadline: Deadline) -> str:
        missing = []
        for peer, index in sorted(awaited)[:_MAX_LANES_IN_MESSAGE]:
            reason = self._lanes[peer, index].rejection
            missing.append(f"rank {peer} lane {index}" + (f" ({reason})" if reason else ""))
        if len(awaited) > len(missing):
            missing.append(f"and {len(awaited) - len(missing)} more")
        return (
            f"rank {self._settings.rank}: zmq connections are missing {deadline}: "
            f"{', '.join(missing)}; look at the logs of those ranks, and whether a firewall or "
            "the wrong interface (HCCL_SOCKET_IFNAME) is in the way"
        )


def _url(address: str, port: int) -> str:
    return f"tcp://{describe_target((address, port))}"
