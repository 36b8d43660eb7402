"""The lives of a group at one store: who meets whom, where the store outlives the group.

Under torchrun, and in a file, a store keeps what an earlier group of the same name left in it, and
a second job may come to it. Rank 0 opens a life under a new name, the others join the open one, and
rank 0 closes it once all are connected. So lives may have any number of ranks, one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch._C._distributed_c10d import PrefixStore, Store

from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.bootstrap.shared_failure import FAILURE, SharedFailure
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Identity
from hccl_py.transport.network.secret import read_secret
from hccl_py.transport.network.sockets import bind_unix, has_ended
from hccl_py.transport.threads import is_of_signal_handler

_OPEN = "hccl/open"
_TURN_S = 0.01
_STRANGER_S = 3.0
"""How long a rank waits for a rank 0 of its own parent process before it joins another's."""

_joined: set[str] = set()
"""Lives that this process took part in; rank 0 may not have closed the last one yet."""


class _Life(NamedTuple):
    """A life, and the rank 0 that opened it; its name is that of a socket which lives as long."""

    name: str
    opener: Identity
    job: tuple[str, ...]
    world_size: int

    def packed(self) -> bytes:
        return json.dumps([self.name, asdict(self.opener), self.job, self.world_size]).encode()

    @classmethod
    def parse(cls, packed: bytes) -> _Life:
        name, opener, job, world_size = json.loads(packed)
        return cls(name, Identity(**opener), tuple(job), world_size)

    def has_ended(self, here: Identity) -> bool:
        return has_ended(self.opener, self.name, here)

    def is_of_another_job(self, here: Identity) -> bool:
        """Tell whether it seems so; on another machine the parent processes say nothing."""
        return _job() != self.job and (len(self.job) > 1 or self.opener.machine == here.machine)


@contextlib.contextmanager
def life_of_group(store: Store, rank: int, world_size: int, timeout_s: float) -> Iterator[Store]:
    """Hand out the part of the store that belongs to this life alone.

    Raises:
        BootstrapError: rank 0 did not come, or two processes claim to be rank 0.
    """
    here = Identity.of_this_process()
    deadline = Deadline(timeout_s)
    if rank != 0:
        life = _join(store, here, deadline, rank, world_size)
        _joined.add(life.name)
        yield _part(store, life)
        return
    with bind_unix() as bound:
        mine = _Life(bound.getsockname()[1:].decode(), here, _job(), world_size)
        _open(store, mine, here, deadline)
        yield _part(store, mine)
        # After a failure it stays open: ranks that come later are to hear of it.
        store.delete_key(_OPEN)


def _open(store: Store, mine: _Life, here: Identity, deadline: Deadline) -> None:
    expected = b""
    while True:
        found = bytes(store.compare_set(_OPEN, expected, mine.packed()))  # type: ignore[arg-type]
        if found == mine.packed():
            return
        other = _Life.parse(found) if found else None
        expected = b""
        if other is None or other.has_ended(here):
            expected = found
        elif not other.is_of_another_job(here) or deadline.expired:
            who = f"pid {other.opener.pid} on {other.opener.host}"
            failure = SharedFailure(
                SealedStore(_part(store, other), read_secret()), 0, other.world_size
            )
            with failure.sharing():
                raise BootstrapError(
                    f"two processes claim rank 0 at one store: {who} and pid {here.pid} on "
                    f"{here.host}; give each job a store, such as a file, of its own"
                )
        else:  # another job is about to connect; this one does after it
            time.sleep(_TURN_S)


def _join(store: Store, here: Identity, deadline: Deadline, rank: int, size: int) -> _Life:
    strangers_until_s = time.monotonic() + _STRANGER_S
    while True:
        try:
            store.wait([_OPEN], timedelta(seconds=max(deadline.remaining_s, _TURN_S)))
        except RuntimeError as error:
            if is_of_signal_handler(error):
                raise
            raise BootstrapError(
                f"rank {rank}: rendezvous failed {deadline}: rank 0 of {size} did not arrive; look "
                f"at its log, and whether all {size} ranks were started (store: {error})"
            ) from error
        life = _Life.parse(bytes(store.get(_OPEN)))
        is_strange, is_over = life.is_of_another_job(here), life.has_ended(here)
        if not is_over and len(life.job) == len(_job()) == 1:  # it may be started by hand
            is_strange = is_strange and time.monotonic() < strangers_until_s
        # A life that this rank has no part in is over soon, or failed by what all are to hear.
        has_part = (rank < life.world_size or not 0 <= rank < size) and not is_over
        concerns = has_part or store.check([f"hccl/{life.name}/{FAILURE}"])
        if concerns and not is_strange and life.name not in _joined:
            return life
        if deadline.expired:
            raise BootstrapError(
                f"rank {rank}: rendezvous failed {deadline}: rank 0 of {size} did not arrive; at "
                f"the store is pid {life.opener.pid} on {life.opener.host}, with "
                f"{life.world_size} ranks; give each job a store, such as a file, of its own"
            )
        time.sleep(_TURN_S)


def _part(store: Store, life: _Life) -> Store:
    return PrefixStore(f"hccl/{life.name}", store)


def _job() -> tuple[str, ...]:
    """Return what ranks of one job have alike: where they meet, or else their parent process."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    given = tuple(os.environ.get(name, "") for name in names)
    if any(given):
        return given
    parent: Any = os.getppid()
    with contextlib.suppress(OSError, IndexError):  # its start, as numbers are used again
        record = Path(f"/proc/{parent}/stat").read_text(errors="replace")
        parent = f"{parent} {record.rpartition(')')[2].split()[19]}"
    return (str(parent),)
