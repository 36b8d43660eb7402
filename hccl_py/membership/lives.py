"""The lives of a name at one store, which keep successive groups of ranks apart.

Under torchrun, and in a file, a store keeps the keys of earlier ranks of the same name, and a
second job may use it. Rank 0 opens a life under a new name, the others join an open one with as
many ranks, and rank 0 closes it once all are connected. So lives may follow one another. A rank
that does not know its number opens a life without ranks, only to report the reason.
"""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.membership.lasting_store import lasting
from hccl_py.transport.bootstrap.sealed_store import SealedStore, innermost
from hccl_py.transport.bootstrap.shared_failure import FAILURE, SharedFailure
from hccl_py.transport.deadline import Deadline, pause
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import PROTOCOL_VERSION, Identity
from hccl_py.transport.network.secret import sealing_key
from hccl_py.transport.network.sockets import bind_unix, has_ended, random_unix_name
from hccl_py.transport.threads import is_of_signal_handler

_OPEN = "hccl/open"
_FIRST_TURN_S, _TURN_S = 0.001, 0.02
_STRANGER_S = 5.0
"""How long a rank waits before it joins a life that may be another job's: one whose rank 0 has
another parent process, another number of ranks, or another process in this rank's place."""

_LOCAL = {"localhost", "127.0.0.1", "::1"}

_joined: deque[tuple[str, int]] = deque(maxlen=4096)
"""The last lives of this process, with its rank there; rank 0 may not have closed them."""


class _Life(NamedTuple):
    """A life, and the rank 0 that opened it; it is named after a socket that exists as long."""

    name: str
    opener: Identity
    job: tuple[str, ...]
    world_size: int

    @property
    def was_here(self) -> bool:
        """Whether this process took part in it."""
        return any(name == self.name for name, _ in _joined)

    def has_ended(self, here: Identity) -> bool:
        return has_ended(self.opener, self.name, here)

    def is_of_another_job(self, mine: tuple[str, ...], here: Identity) -> bool:
        """Return whether it seems so; parent processes of other machines are not comparable."""
        if len(mine) == len(self.job) == 1:
            return mine != self.job and self.opener.machine == here.machine
        # Rank 0's address may be localhost on its own machine.
        alike = [
            one == other or {one, other} & _LOCAL
            for one, other in zip(mine, self.job, strict=False)
        ]
        return len(mine) != len(self.job) or not all(alike)


def _packed(lives: list[_Life]) -> bytes:
    listed = [(one.name, asdict(one.opener), one.job, one.world_size) for one in lives]
    return json.dumps([PROTOCOL_VERSION, listed]).encode()


def _parsed(packed: bytes) -> list[_Life]:
    if not packed:
        return []
    version, listed = None, []
    with contextlib.suppress(ValueError, TypeError):  # written by another version
        version, listed = json.loads(packed)
    if version != PROTOCOL_VERSION:
        raise BootstrapError(
            f"at the store is a list of groups that this version of hccl-py ({PROTOCOL_VERSION}) "
            "does not read: install one version everywhere, or remove a file that was left over"
        )
    return [_Life(name, Identity(**opener), tuple(job), size) for name, opener, job, size in listed]


class _Part:
    """A store's keys under one prefix; other attributes are the store's."""

    def __init__(self, store: Any, prefix: str) -> None:
        self.underlying_store = store
        self._prefix = prefix

    def set(self, key: str, value: Any) -> Any:
        return self.underlying_store.set(self._prefix + key, value)

    def get(self, key: str) -> Any:
        return self.underlying_store.get(self._prefix + key)

    def check(self, keys: list[str]) -> Any:
        return self.underlying_store.check([self._prefix + key for key in keys])

    def compare_set(self, key: str, expected: Any, value: Any) -> Any:
        return self.underlying_store.compare_set(self._prefix + key, expected, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.underlying_store, name)


@contextlib.contextmanager
def life_at(store: Any, rank: int, world_size: int, timeout_s: float) -> Iterator[Any]:
    """Yield the part of a store that belongs to this life.

    A rank outside of the world gets the open life, or one without ranks, to report the reason.

    Raises:
        BootstrapError: rank 0 did not arrive, or two processes claim to be rank 0.
    """
    here = Identity.of_this_process()
    lives = _Lives(lasting(store), here, rank, world_size, Deadline(timeout_s))
    if rank in range(1, world_size):
        yield lives.part(lives.join())
        return
    name = random_unix_name()
    with contextlib.ExitStack() as opened:
        # Forbidden: `mesh.connect` tries that too, and says so to all ranks of this life.
        with contextlib.suppress(OSError):
            opened.enter_context(bind_unix(name))
        is_member = rank in range(world_size)
        mine = _Life(name, here, lives.job, world_size if is_member else 0)
        if not is_member:
            yield lives.part(lives.join_any(mine))
            return
        lives.open(mine)
        yield lives.part(mine)
        # After a failure it stays open, so that later ranks learn the reason.
        lives.close(mine)


class _Lives:
    """The open lives at a store, as one rank sees them."""

    def __init__(
        self, store: Any, here: Identity, rank: int, world_size: int, deadline: Deadline
    ) -> None:
        self._store = store
        self._here = here
        self._rank, self._size = rank, world_size
        # Ranks of several jobs may meet at an address on purpose, such as a trainer's and an
        # engine's; jobs that come to one file do so by mistake.
        self.job = _job() if type(innermost(store)).__name__ == "FileStore" else ()
        self._deadline = deadline
        self._began_s = time.monotonic()
        self._seen_s: dict[str, float] = {}  # when this rank first saw a life

    def open(self, mine: _Life) -> None:
        """Open the life of this rank 0, once no other is in its way."""
        told: list[str] = []
        in_the_way: list[_Life] = []

        def with_mine(others: list[_Life]) -> list[_Life]:
            told[:] = [self._problem(one) for one in others if self._is_to_tell(one)]
            others = [one for one in others if not self._is_over(one)]
            in_the_way[:] = [one for one in others if self._is_alike(one)]
            return others if in_the_way else [*others, mine]

        self._change(with_mine)
        while in_the_way:
            other = in_the_way[0]
            if self._deadline.expired or not (other.was_here or self._is_new(other)):
                with self._failure(other).sharing():
                    raise BootstrapError(
                        f"two processes claim rank 0 at one store: pid {other.opener.pid} on "
                        f"{other.opener.host} and pid {self._here.pid} on {self._here.host}; give "
                        "each job a store, such as a file, of its own"
                    )
            self._take_turn()  # that life is about to connect or close; this one follows
            self._change(with_mine)
        _joined.append((mine.name, self._rank))
        for problem in filter(None, told):
            with self._failure(mine).sharing():
                raise BootstrapError(problem)

    def close(self, mine: _Life) -> None:
        """Close a life to further ranks."""
        self._change(lambda others: [one for one in others if one != mine])

    def join(self) -> _Life:
        """Wait for the life of this rank, and join it."""
        while True:
            try:
                packed = bytes(self._store.get(_OPEN)) if self._store.check([_OPEN]) else b""
            except RuntimeError as error:
                if is_of_signal_handler(error):
                    raise
                raise self._did_not_arrive(f"(store: {error})") from error
            lives = _parsed(packed)
            life = next(filter(self._concerns, lives[::-1]), None)
            if life is not None:
                _joined.append((life.name, self._rank))
                return life
            if self._deadline.expired:
                found = [
                    f"pid {one.opener.pid} on {one.opener.host}, with {one.world_size} ranks"
                    for one in lives
                ]
                raise self._did_not_arrive(f"(at the store: {'; '.join(found) or 'nobody'})")
            self._take_turn()

    def join_any(self, mine: _Life) -> _Life:
        """Join an open life, or open `mine`, which has no ranks."""
        taken = mine

        def with_mine(others: list[_Life]) -> list[_Life]:
            nonlocal taken
            kept = [one for one in others if not self._is_over(one)]
            usable = [one for one in kept if not self._problem(one)]
            taken = usable[-1] if usable else mine
            return kept if usable else [*kept, mine]

        self._change(with_mine)
        _joined.append((taken.name, self._rank))
        return taken

    def part(self, life: _Life) -> _Part:
        """Return a life's part of the store."""
        return _Part(self._store, f"hccl/{life.name}/")

    def _change(self, change: Callable[[list[_Life]], list[_Life]]) -> None:
        """Change the list of open lives; `change` is called again after a concurrent change."""
        found, wanted = b"", _packed(change([]))
        while (answer := bytes(self._store.compare_set(_OPEN, found, wanted))) != wanted:
            found, wanted = answer, _packed(change(_parsed(answer)))

    def _is_over(self, life: _Life) -> bool:
        """Return whether a life may be removed; a failed one stays, for later ranks."""
        is_failed, is_alike = bool(self._problem(life)), self._is_alike(life)
        if life.has_ended(self._here):
            return is_alike or not is_failed
        return is_failed and is_alike and (life.was_here or not life.world_size)

    def _is_alike(self, life: _Life) -> bool:
        """Return whether a life has as many ranks of this job, or no ranks."""
        return life.world_size in (self._size, 0) and not life.is_of_another_job(
            self.job, self._here
        )

    def _is_to_tell(self, life: _Life) -> bool:
        return not life.world_size and not life.was_here and self._is_alike(life)

    def _is_new(self, life: _Life) -> bool:
        """Return whether a life that seems to be another job's was seen only recently."""
        now_s = time.monotonic()
        return now_s < self._seen_s.setdefault(life.name, now_s) + _STRANGER_S

    def _concerns(self, life: _Life) -> bool:
        """Return whether this rank joins a life, even only to learn why it failed."""
        if (life.name, self._rank) in _joined:
            return False
        is_new, has_ended = self._is_new(life), life.has_ended(self._here)
        by_hand = len(life.job) == len(self.job) == 1  # in several terminals, perhaps
        if life.is_of_another_job(self.job, self._here) and (is_new or has_ended or not by_hand):
            return False
        # A life without this rank ends soon, or failed for a reason that all must learn.
        if not has_ended and self._rank < life.world_size:
            place = f"hccl/{life.name}/member/{self._rank}"
            if not is_new or (life.world_size == self._size and not self._store.check([place])):
                return True
        may_hear = life.world_size in (self._size, 0) or not is_new
        return may_hear and bool(self._store.check([f"hccl/{life.name}/{FAILURE}"]))

    def _problem(self, life: _Life) -> str:
        return self._failure(life).first()

    def _failure(self, life: _Life) -> SharedFailure:
        return SharedFailure(SealedStore(self.part(life), sealing_key()), 0, life.world_size)

    def _did_not_arrive(self, where: str) -> BootstrapError:
        return BootstrapError(
            f"rank {self._rank}: rendezvous failed {self._deadline}: rank 0 of {self._size} did "
            f"not arrive; look at its log, and whether all {self._size} ranks were started, at a "
            f"store, such as a file, of their own {where}"
        )

    def _take_turn(self) -> None:
        waited_s = time.monotonic() - self._began_s
        pause(min(_FIRST_TURN_S + waited_s / 10, max(_TURN_S, self._size / 2000)))


def _job() -> tuple[str, ...]:
    """Return what ranks of one job have in common: their store's address, or their parent
    process."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    given = tuple(os.environ.get(name, "") for name in names)
    if any(given):
        return given
    parent: Any = os.getppid()
    with contextlib.suppress(OSError, IndexError):  # with its start time, because pids are reused
        record = Path(f"/proc/{parent}/stat").read_text(errors="replace")
        parent = f"{parent} {record.rpartition(')')[2].split()[19]}"
    return (str(parent),)
