"""Processes that exchange handles, and connect anew whenever their set changes.

    member = Member()                             in each process
    member.handle                                 text, which the others get by any means
    epoch = member.epoch(uuid, handles)           the same on all members of this epoch
    epoch.connect(30.0, connect)                  makes their communicator

A handle is the unique id of a store that its process serves until `close`. The members of an epoch
meet at the store of the first one, under the epoch's uuid. That member is also connected with the
stores of the others, so a process that ended is named within about a second. All members connect,
or all raise the same error.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Protocol, TypeVar

from hccl_py.membership.subset import Closable, Connect
from hccl_py.membership.unique_id import UniqueId, serve_id
from hccl_py.transport.arguments import items, whole_number, wrong
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.bootstrap.shared_failure import FAILURE, SharedFailure
from hccl_py.transport.bootstrap.unique_id_client import UniqueIdClient
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.network.secret import sealing_key

_REPORT_S = 5.0
"""How long a member tries to report why it refuses an epoch."""
_ENDED = "its process ended, or left its group: reconfigure without its handle"


class Confirmable(Closable, Protocol):
    """An opened communicator."""

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Block until all members call it."""


Confirmed = TypeVar("Confirmed", bound=Confirmable)


class Member:
    """One process's handle, and the epochs of its group. One thread at a time uses it.

    Attributes:
        handle: printable, a few hundred characters; it contains a secret.
    """

    def __init__(self) -> None:
        """Serve the store of the handle; BootstrapError: this process could not listen."""
        uid, self._server = serve_id(is_kept=True)
        self.handle = uid.hex()
        self._used: set[int] = set()
        self._last = ""

    def epoch(self, uuid: int, handles: Iterable[str]) -> "Epoch":
        """Check the arguments of a new epoch.

        Args:
            uuid: of this epoch, the same on all members, and never used before.
            handles: of all members, this one included. The place in a list is the rank; a set is
                sorted.

        Raises:
            InvalidArgumentError: an argument is wrong, or the uuid was used; the other members
                then raise as well.
        """
        uuid = whole_number("uuid", uuid)
        ids = _parsed(handles)
        if self.handle not in ids:
            raise InvalidArgumentError(
                f"handles: expected this process's own handle among them, got {len(ids)} others; "
                "a process that is left out does not reconfigure"
            )
        if self._last:
            self._server.end(self._last, FAILURE)
        epoch = Epoch(uuid, ids, list(ids).index(self.handle))
        if uuid in self._used:
            epoch.refuse(f"uuid: {uuid} was already used by this group; pass a fresh one to all")
        self._used.add(uuid)
        self._last = epoch.prefix
        return epoch

    def close(self) -> None:
        """End the store: the handle is void. Idempotent."""
        self._server.close()


class Epoch:
    """The members of one uuid."""

    def __init__(self, uuid: int, ids: dict[str, UniqueId], rank: int) -> None:
        self.prefix = f"{uuid}/"
        self._ids, self._rank = ids, rank

    def connect(self, timeout_s: float, connect: Connect[Confirmed]) -> Confirmed:
        """Return what `connect` makes of a store, this rank and the number of members.

        `connect` has the same timeout.

        Raises:
            BootstrapError: a member ended or did not arrive in time, or has other handles.
            CommunicatorError: a member ended when some members were connected.
        """
        member = self._rank, len(self._ids)
        if len(self._ids) == 1:
            return connect(None, *member)
        with self._store(timeout_s) as store:
            sealed = SealedStore(store, sealing_key())
            failure = SharedFailure(sealed, *member)
            with failure.sharing():
                failure.poll()  # of members that came earlier
                if not sealed.set_first("handles", blake2b("".join(self._ids).encode()).digest()):
                    raise BootstrapError(
                        f"rank {self._rank}: uuid {self.prefix[:-1]}: another member has other "
                        "handles, or another order of them; pass the same to all"
                    )
            made = connect(store, *member)
        try:
            made.barrier(timeout_s=timeout_s)  # all are connected
        except BaseException:
            made.close()
            raise
        return made

    def refuse(self, problem: str) -> None:
        """Raise InvalidArgumentError, and end the epoch for the others, if there are any."""
        with ExitStack() as sharing:
            if len(self._ids) > 1:
                store = sharing.enter_context(self._store(_REPORT_S))
                sealed = SealedStore(store, sealing_key())
                member = self._rank, len(self._ids)
                sharing.enter_context(SharedFailure(sealed, *member).sharing())
            raise InvalidArgumentError(problem)

    @contextmanager
    def _store(self, timeout_s: float) -> Iterator[UniqueIdClient]:
        """Yield the first member's store; it watches the others' meanwhile, and they watch its."""
        clients = [
            self._client(rank, uid, timeout_s)
            for rank, uid in enumerate(self._ids.values())
            if rank == 0 or self._rank == 0
        ]
        store, others = clients[0], clients[1:]
        store.stays = True
        store.hopeless = store.hopeless_to_connect = lambda: _first_ended(others or clients)
        try:
            store.visit()
            yield store
        finally:
            store.hopeless = store.hopeless_to_connect = None
            store.leave()
            for one in others:
                one.close()

    def _client(self, rank: int, uid: UniqueId, timeout_s: float) -> UniqueIdClient:
        address = uid.address
        who = f"of rank {rank}, {address.made_by.removeprefix('made by ')}"
        return UniqueIdClient(
            replace(address, made_by=who, if_gone=_ENDED, name=self.prefix), timeout_s
        )


def _first_ended(clients: Sequence[UniqueIdClient]) -> str:
    return next(filter(None, (one.why_gone() for one in clients)), "")


def _parsed(handles: Iterable[str]) -> dict[str, UniqueId]:
    listed = items("handles", handles, "the handles of all members")
    if isinstance(handles, set | frozenset):
        listed = tuple(sorted(listed, key=str))
    parsed = {}
    for place, handle in enumerate(listed):
        try:
            parsed[handle] = UniqueId(bytes.fromhex(handle))
        except (TypeError, ValueError):
            raise wrong(f"handles, entry {place}", "a handle of hccl-py", handle) from None
    if len(parsed) != len(listed):
        raise InvalidArgumentError("handles: expected each process once, got one twice")
    return parsed
