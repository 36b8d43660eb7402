"""The unique id of a communicator: 256 bytes by which its ranks find each other.

    uid = hccl_py.get_unique_id()            in one process, which serves the store
    Communicator(uid, rank, world_size)      in all, which get the bytes by any means

A file, MPI, a pipe or a queue may carry it. Any process that has it can join: it contains a secret
that both ends of every connection to its store prove to know. The store closes when all ranks are
connected, so an id is good for one communicator.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import signal
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from hccl_py.membership.lives import life_at
from hccl_py.transport.arguments import seconds, wrong
from hccl_py.transport.bootstrap.unique_id_client import ServerAddress, UniqueIdClient
from hccl_py.transport.bootstrap.unique_id_store import UniqueIdServer
from hccl_py.transport.deadline import Deadline, pause
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.interfaces import address_family, choose_addresses
from hccl_py.transport.network.secret import read_secret, sealing_key
from hccl_py.transport.network.settings import NetworkSettings
from hccl_py.transport.network.sockets import bind_listener
from hccl_py.transport.network.system_calls import most_descriptors, require_system_calls
from hccl_py.transport.threads import is_of_signal_handler
from hccl_py.transport.wire.handshake import OTHER_SECRET

_VARIABLE = "HCCL_COMM_ID"
_MAGIC = b"HCCL-ID\3"
_HEADER = struct.Struct("!8sHI46s64s32s16s")  # see UniqueId.address; pid 0: rank 0 serves
_CHECKSUM_BYTES = 16
_FREE_S = 2.0
_PROBE_S = 0.2
_REPORT_S = 30.0
_REPORTED_TO = (
    "ID_TO_TELL"  # environment variable of the reporting process: arguments are visible to others
)


class UniqueId(bytes):
    """A unique id: bytes that print without their secret. Pickles; `bytes(uid)` and back."""

    NUM_BYTES: ClassVar[int] = 256

    def __new__(cls, content: Any) -> "UniqueId":
        """Parse the result of `bytes(uid)`.

        Raises:
            InvalidArgumentError: it is not a unique id, or is damaged.
        """
        try:
            content = b"" if isinstance(content, int | str) else bytes(content)
        except (TypeError, ValueError):
            raise wrong("unique_id", "bytes", content) from None
        if len(content) != cls.NUM_BYTES or not content.startswith(_MAGIC):
            raise InvalidArgumentError(
                f"unique_id: expected the {cls.NUM_BYTES} bytes of hccl_py.get_unique_id() of this "
                f"version, got {len(content)} others"
            )
        body = content[:-_CHECKSUM_BYTES]
        if not hmac.compare_digest(_checksum(body), content[-_CHECKSUM_BYTES:]):
            raise InvalidArgumentError("unique_id: expected it as it was made, got a damaged one")
        return super().__new__(cls, content)

    def __repr__(self) -> str:
        return f"UniqueId({self.address}, {self.address.made_by})"

    __str__ = __repr__

    @property
    def address(self) -> ServerAddress:
        """The address at which the ranks meet."""
        _, port, pid, address, host, secret, name = _HEADER.unpack_from(self)
        maker = host.rstrip(b"\0").decode(errors="replace")
        made_by = f"made by pid {pid} on {maker}" if pid else f"rank 0, {maker}"
        where = address.rstrip(b"\0").decode(), port
        if pid:
            return ServerAddress(*where, secret, made_by)
        hint = "look at the log of its process"
        return ServerAddress(*where, secret, made_by, True, f"{name.hex()}/", hint)


def get_unique_id(timeout_s: float = 3600.0) -> UniqueId:
    """Make the id of a new communicator, and serve its store until all ranks are connected.

    Only one process calls it, and sends the id to all others; it must live until they are
    connected. It listens on the best of the interfaces that HCCL_SOCKET_IFNAME selects, as for data
    (`docs/jobs/network.md`), and on a port of HCCL_PORT_RANGE.

    If no rank has connected after `timeout_s` seconds it stops listening, and the id is void.

    With `HCCL_COMM_ID=address:port` every process calls it and gets the same id without an
    exchange: rank 0 then serves at that address, and HCCL_SECRET is the secret.

    Raises:
        InvalidArgumentError: HCCL_COMM_ID or `timeout_s` is invalid.
        BootstrapError: this process could not listen.
    """
    timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
    given = os.environ.get(_VARIABLE)
    return agreed_id(given) if given else serve_id(timeout_s=timeout_s)[0]


def serve_id(*, is_kept: bool = False, timeout_s: float = 0.0) -> tuple[UniqueId, UniqueIdServer]:
    """Make an id and serve its store; see `UniqueIdServer` for the arguments."""
    require_system_calls()
    settings = NetworkSettings.from_environment()
    bound = bind_listener(choose_addresses(settings)[0], settings.ports)
    secret = secrets.token_bytes(32)
    address, port = bound.getsockname()[:2]
    uid = _pack(address, port, secret, os.getpid(), socket.gethostname(), b"")
    made_by = f"the process that made the unique id ({uid.address.made_by})"
    return uid, UniqueIdServer(bound, secret, made_by, is_kept=is_kept, timeout_s=timeout_s)


@contextlib.contextmanager
def store_of_unique_id(
    content: Any,
    rank: int,
    world_size: int,
    timeout_s: float,
    problem: str = "",
    *,
    hopeless: Callable[[], str] | None = None,
) -> Iterator[UniqueIdClient]:
    """Yield the store of a unique id, and leave it at the end; or only report a `problem` there.

    `hopeless`: see `Store`. A BootstrapError of the block is raised again with the reason why the
    ranks cannot meet, if known.
    """
    address = UniqueId(content).address
    deadline = Deadline(timeout_s)
    try:
        require_system_calls()
        store = UniqueIdClient(address, timeout_s)
    except BootstrapError as error:
        if not problem:
            report_by_another_process(f"rank {rank} on {socket.gethostname()}: {error}", content)
        raise BootstrapError(f"rank {rank}: {error}") from error
    store.hopeless = store.hopeless_to_connect = hopeless
    try:
        if address.comes_later:
            server, number = _visit(store, address, rank)
            with life_at(store, rank, world_size, deadline.remaining_s) as part:
                store.stay()
                yield part
            if server is not None:
                server.unkeep(number)
        elif problem:
            store.fail(problem)
            yield store
        else:
            store.join(rank, world_size)
            yield store
    except BootstrapError as error:
        if is_of_signal_handler(error):
            raise
        if address.comes_later:
            read_secret()  # an empty one is the reason
        mine = f"rank {rank} of {world_size}: "
        told = f"{store.problem or error}{store.rejected}"
        if OTHER_SECRET in store.rejected:
            told = f"HCCL_SECRET seems to differ between ranks: {told}"
        raise BootstrapError(f"{'' if told.startswith('rank ') else mine}{told}") from error
    finally:
        store.hopeless = store.hopeless_to_connect = None  # it is no concern of later users
        store.leave()


def report_by_another_process(problem: str, content: bytes = b"", name: str = "default") -> None:
    """Report the problem that keeps this rank from dialling to the other ranks, by another process.

    A process without descriptors cannot dial, but can start another one, which starts no third.
    """
    if _REPORTED_TO in os.environ:
        return
    program = (
        f"import os, sys{', torch' * bool(sys.modules.get('torch'))}; "
        "from hccl_py.membership.environment import report; "
        f"report(sys.argv[1], bytes.fromhex(os.environ['{_REPORTED_TO}']) or None, sys.argv[2])"
    )
    environ = {**os.environ, _REPORTED_TO: bytes(content).hex()}
    deadline = Deadline(_REPORT_S)
    command = [sys.executable, "-c", program, problem, name]
    with contextlib.suppress(OSError):
        with most_descriptors():  # the other process inherits the limit
            pid = os.posix_spawn(sys.executable, command, environ)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if deadline.expired:
                os.kill(pid, signal.SIGKILL)
            pause(_PROBE_S)


def _visit(
    store: UniqueIdClient, address: ServerAddress, rank: int
) -> tuple[UniqueIdServer | None, int]:
    """Connect the store to its server; return rank 0's server, and `keep`'s number."""
    if rank != 0:
        store.visit()
        return None, 0
    key = os.getpid(), address.port
    with _turns.setdefault(key, threading.Lock()):
        server = _hosted.get(key)
        if server is not None and server.secret != address.secret:  # HCCL_SECRET was changed
            server.close()
        number = 0 if server is None else server.keep()
        if not number:
            server = _serve(store, address)
            number = 0 if server is None else server.keep()
        if server is not None:
            _hosted[key] = server
            store.visit()
        return server, number


def _serve(store: UniqueIdClient, address: ServerAddress) -> UniqueIdServer | None:
    """Serve at the address; None: another rank of this job does, and the store uses it."""
    deadline = Deadline(_FREE_S)
    while True:
        try:
            bound = bind_listener(Endpoint("", address.host, address.port), None)
        except BootstrapError as error:
            # An earlier server may still be closing its listener.
            with contextlib.suppress(BootstrapError):
                store.visit(_PROBE_S)
                return None
            if deadline.expired:
                raise BootstrapError(
                    f"{address.made_by}: {error}; name a port that nothing uses on this host"
                ) from error
        else:
            made_by = f"{address.made_by}, at {address}"
            return UniqueIdServer(bound, address.secret, made_by, is_kept=True, timeout_s=0)


# Also keyed by process id, for forked children.
_turns: dict[tuple[int, int], threading.Lock] = {}
_hosted: dict[tuple[int, int], UniqueIdServer] = {}
_num_agreed: Counter[str] = Counter()


def agreed_id(given: str) -> UniqueId:
    """Make the id that every process of the job makes, for its n-th call of `get_unique_id`."""
    address, _, port = given.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    try:
        address_family(address)
        number = int(port)
        if not 1 <= number <= 65535:
            raise ValueError(port)
    except ValueError:
        raise InvalidArgumentError(
            f"{_VARIABLE}: expected a numeric address of rank 0's machine and a port, as in "
            f"192.0.2.1:45000, got {given!r}"
        ) from None
    _num_agreed[given] += 1
    return id_at((address, number), _VARIABLE, f"{given} {_num_agreed[given]}")


def id_at(where: tuple[str, int], variable: str, agreed: str) -> UniqueId:
    """Make an id from a text; all processes with that text make the same one.

    Args:
        where: address and port to dial; rank 0 also listens there.
        variable: the source of the text, for messages.
        agreed: the text, equal in all processes.
    """
    # One key for all names, so that only ranks with another HCCL_SECRET are rejected.
    secret = hmac.digest(sealing_key(), b"hccl-py", "sha256")
    name = hashlib.blake2b(agreed.encode(), digest_size=16).digest()
    return _pack(*where, secret, 0, variable, name)


def _pack(address: str, port: int, secret: bytes, pid: int, host: str, name: bytes) -> UniqueId:
    body = _HEADER.pack(_MAGIC, port, pid, address.encode(), host.encode()[:64], secret, name)
    body = body.ljust(UniqueId.NUM_BYTES - _CHECKSUM_BYTES, b"\0")
    return UniqueId(body + _checksum(body))


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"hccl-py unique id" + body).digest()[:_CHECKSUM_BYTES]
