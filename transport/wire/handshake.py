"""A handshake: both ends prove that they know a secret, without sending it.

    connector                          acceptor
    hello: fixed size, nonce     ->
                                 <-    hello: fixed size, nonce
    HMAC(both hellos)            ->                          rejects a peer without the secret
                                 <-    HMAC(both hellos)

The connector proves itself first: until then it receives only a hello that depends on no secret. Of
an unauthenticated peer, only the hello is parsed, and nothing reaches C++.

All steps are generators that yield the selector event to wait for: one thread runs hundreds.
"""

import array
import contextlib
import errno
import hmac
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from typing import TypeVar, cast

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.network.interfaces import Target, address_family
from hccl_py.transport.threads import is_of_signal_handler

CONNECTING = "connecting"
"""The step in which only the peer's kernel has to answer."""
NONCE_BYTES = PROOF_BYTES = 32
OTHER_SECRET = "it belongs to another job, or its HCCL_SECRET differs"

T = TypeVar("T")
Steps = Generator[int, None, None]
"""Yields the selector event to wait for."""
Sign = Callable[..., bytes]
"""Takes the side, `b"connector"` or `b"acceptor"`, and both hellos; returns their HMAC."""


class RejectedError(Exception):
    """The peer is not the expected one; the text says why, without secrets."""


class ClosedError(RejectedError):
    """The peer closed the connection."""


class ResetError(RejectedError):
    """The connection was reset, by the peer or on the way: another one may succeed."""


class NotListeningError(RejectedError):
    """The peer does not listen yet, or its backlog is full."""


class Handshake(ABC):
    """The steps of a handshake on a non-blocking socket. Owns it and received descriptors.

    Attributes:
        socket: the connection.
        address: the peer, for messages.
        dialled: this side dialled; else it accepted.
        closed: whether the socket was closed or handed over.
        step: the current step, for error messages.
        is_named: the peer's hello names something that only members know.
        authenticated: the peer knows the secret.
        descriptors: received from the peer.
        session: the key shared by both ends once the handshake is complete; b"" before.
    """

    session = b""

    def __init__(self, connection: socket.socket, address: str, *, dialled: bool) -> None:
        """Take over a socket."""
        self.socket = connection
        self.address = address
        self.dialled = dialled
        self.closed = self.is_named = self.authenticated = False
        self.descriptors: tuple[int, ...] = ()
        self.step = CONNECTING if dialled else "hello"
        self._steps = self._run()

    @abstractmethod
    def _run(self) -> Steps:
        """Run all steps."""

    def advance(self) -> int | None:
        """Continue until the socket would block; RejectedError: the peer is wrong.

        Return the selector event to wait for, or None if the handshake is complete.
        """
        try:
            return next(self._steps, None)
        except OSError as error:
            if is_of_signal_handler(error):
                raise
            is_lost = isinstance(error, ConnectionError | TimeoutError)
            kind = ResetError if is_lost or error.errno == errno.ENOTCONN else RejectedError
            raise kind(f"the connection broke: {error.strerror or error}") from error

    def await_connection(self) -> Steps:
        """Wait until the kernel has connected a dialled socket."""
        yield EVENT_WRITE
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            kinds = {errno.ECONNREFUSED: NotListeningError, errno.ECONNRESET: ResetError}
            raise kinds.get(code, RejectedError)(os.strerror(code))
        self.step = "hello"

    def prove_connecting(
        self, hello: bytes, check: Callable[[bytes], object], sign: Sign
    ) -> Generator[int, None, tuple[bytes, bytes]]:
        """Run the side that dialled; `check` raises RejectedError for a wrong hello.

        Return both hellos, the connector's first.
        """
        yield from self.send(hello)
        answer = yield from self.receive(len(hello))
        check(answer)
        self.is_named, self.step = True, "proof"
        yield from self.send(sign(b"connector", hello, answer))
        yield from self._receive_proof(sign(b"acceptor", hello, answer))
        return hello, answer

    def prove_accepting(
        self, num_bytes: int, answer_to: Callable[[bytes], bytes], sign: Sign
    ) -> Generator[int, None, tuple[bytes, bytes]]:
        """Run the side that was dialled; `answer_to` raises RejectedError for a wrong hello."""
        hello = yield from self.receive(num_bytes)
        answer = answer_to(hello)
        self.is_named = True
        yield from self.send(answer)
        self.step = "proof"
        yield from self._receive_proof(sign(b"connector", hello, answer))
        yield from self.send(sign(b"acceptor", hello, answer))
        return hello, answer

    def _receive_proof(self, expected: bytes) -> Steps:
        proof = yield from self.receive(PROOF_BYTES)
        if not hmac.compare_digest(proof, expected):
            raise RejectedError(f"it does not know the secret: {OTHER_SECRET}")
        self.authenticated = True

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> Steps:
        """Send all bytes, and the descriptors with the first of them."""
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            send = partial(self.socket.sendmsg, [data], rights, socket.MSG_NOSIGNAL)
            num_sent = yield from self.when_ready(EVENT_WRITE, send)
            data = data[num_sent:]
        while data:
            num_sent = yield from self.when_ready(EVENT_WRITE, partial(self.send_some, data))
            data = data[num_sent:]

    def receive(self, num_bytes: int, num_descriptors: int = 0) -> Generator[int, None, bytes]:
        """Receive exactly `num_bytes`: later bytes belong to the next owner of the socket."""
        received = b""
        while len(received) < num_bytes:
            receive = partial(self._receive_some, num_bytes - len(received), num_descriptors)
            part = yield from self.when_ready(EVENT_READ, receive)
            if not part:
                raise ClosedError("it closed the connection")
            received += part
        return received

    def send_some(self, data: bytes) -> int:
        """Send as many bytes as fit; return their number."""
        return self.socket.send(data, socket.MSG_NOSIGNAL)

    def _receive_some(self, num_bytes: int, num_descriptors: int) -> bytes:
        if not num_descriptors:
            return self.socket.recv(num_bytes)
        # Not socket.recv_fds, which ignores its flags argument before Python 3.12.
        passed = array.array("i")
        data, ancillary, _, _ = self.socket.recvmsg(
            num_bytes, socket.CMSG_LEN(num_descriptors * passed.itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                passed.frombytes(content[: len(content) - len(content) % passed.itemsize])
        self.descriptors += tuple(passed)
        return data

    def when_ready(self, event: int, call: Callable[[], T]) -> Generator[int, None, T]:
        """Repeat a call until it does not block, waiting for `event`."""
        while True:
            try:
                return call()
            except BlockingIOError:
                yield event

    def prove(self, deadline: Deadline) -> None:
        """Run all steps in this thread.

        Raises:
            RejectedError: the peer is wrong.
            TimeoutError: the deadline passed.
            OSError: the connection broke.
        """
        self.finish(self._steps, deadline)

    def finish(self, steps: Generator[int, None, T], deadline: Deadline) -> T:
        """Run steps, for example those of `send`, to their end in this thread."""
        while True:
            try:
                event = next(steps)
            except StopIteration as end:
                return cast(T, end.value)
            waiter = select.poll()
            waiter.register(self.socket, select.POLLIN if event == EVENT_READ else select.POLLOUT)
            if not waiter.poll(1000 * deadline.remaining_s):
                raise TimeoutError("no time left")

    def watch_host(self, options: Mapping[int, int]) -> None:
        """Have the kernel detect a silent host, by these TCP options."""
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in options.items():
                self.socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        """Close the connection and the descriptors received over it."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(ValueError):  # a fork copied it while another thread used it
            self._steps.close()
        self.socket.close()
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class SecretHandshake(Handshake):
    """A handshake whose hello holds its purpose only."""

    def __init__(
        self, connection: socket.socket, address: str, purpose: bytes, secret: bytes, dialled: bool
    ) -> None:
        """Take over a socket, on which the 8 bytes of `purpose` come first."""
        self._purpose = purpose
        self._secret = secret
        connection.setblocking(False)
        super().__init__(connection, address, dialled=dialled)

    def _run(self) -> Steps:
        hello = self._purpose + os.urandom(NONCE_BYTES)
        if self.dialled:
            yield from self.await_connection()
            self._send_at_once()
            hellos = yield from self.prove_connecting(hello, self._check, self._sign)
        else:
            self._send_at_once()
            answer_to = partial(self._answer, hello)
            hellos = yield from self.prove_accepting(len(hello), answer_to, self._sign)
        self.session = self._sign(b"session", *hellos)

    def _send_at_once(self) -> None:
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _check(self, hello: bytes) -> None:
        if not hello.startswith(self._purpose):
            raise RejectedError("it does not speak this protocol")

    def _answer(self, mine: bytes, hello: bytes) -> bytes:
        self._check(hello)
        return mine

    def _sign(self, side: bytes, hello: bytes, answer: bytes) -> bytes:
        return hmac.digest(self._secret, b"hccl-py " + side + b"\0" + hello + answer, "sha256")


def start_connecting(
    target: Target, prepare: Callable[[socket.socket], None] = lambda dialled: None
) -> socket.socket:
    """Start to connect a non-blocking socket, which becomes writable when the attempt ends.

    Raises:
        NotListeningError: no process listens at the address.
        OSError: the attempt failed at once, or `prepare` raised it.
    """
    family = socket.AF_UNIX if isinstance(target, str) else address_family(target[0])
    dialled = socket.socket(family, socket.SOCK_STREAM)
    dialled.setblocking(False)
    with contextlib.ExitStack() as opened:
        opened.enter_context(dialled)
        prepare(dialled)
        code = dialled.connect_ex(target)
        if code in (errno.ECONNREFUSED, errno.EAGAIN):
            raise NotListeningError(os.strerror(code))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        opened.pop_all()
    return dialled
