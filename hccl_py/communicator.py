"""The communicator's life cycle: create, subset, split, shrink, abort, close.

This is hccl-py without torch.distributed. `collectives.py` holds the collectives themselves,
`plan_cache.py` what they run, `transport/bootstrap/mesh.py` how ranks find each other.
"""

import contextlib
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccl_py.algorithms.shared import Shared
from hccl_py.call_group import require_no_group
from hccl_py.collectives import Collectives
from hccl_py.communicator_state import assemble
from hccl_py.diagnosis.exceptions import describe_error
from hccl_py.engine import connect_engine
from hccl_py.lifetime import Lifetime
from hccl_py.membership.environment import checked_rank_and_size, rendezvous_store
from hccl_py.membership.settings import Wanted
from hccl_py.membership.shrink import check_excluded, regroup
from hccl_py.membership.subset import check_members, open_group, packed, part_of
from hccl_py.observe.statistics import Statistics, read_statistics
from hccl_py.transport._core import Cause
from hccl_py.transport.arguments import path, seconds, text, wrong
from hccl_py.transport.errors import CommunicatorError
from hccl_py.transport.network.identity import Identity
from hccl_py.work import Work

if TYPE_CHECKING:
    from hccl_py.algorithms.custom import CustomAlgorithm

_SHRUNK = "/shrunk-"


class Communicator(Collectives[None]):
    """Ranks that call collectives together, in the same order.

    Methods may be called from any thread; calls of one communicator run in the order submitted. A
    context manager: leaving it closes. The collectives are those of `collectives.Collectives`; here
    each runs to its end on the calling thread.

    Attributes:
        rank: of this process, 0-based.
        world_size: number of ranks.
        name: for messages.
        nodes: the ranks of every node.
        old_ranks: if another communicator shrank to this one, the rank that each rank had there.
        nonblocking: the same collectives in the background, each returning a Work.
    """

    def __init__(
        self,
        store: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        timeout_s: float = 600.0,
        name: str = "default",
        identity: Identity | None = None,
        compression: str | None = None,
        algorithms: "Sequence[CustomAlgorithm]" = (),
        reproducible: bool | None = None,
    ) -> None:
        """Meet the other ranks and connect to all of them.

        Args:
            store: a UniqueId, or its bytes; or anything with `set(key, bytes)` and a blocking
                `get(key)`, used by this communicator alone; torch's stores fit. None: the one at
                MASTER_ADDR:MASTER_PORT.
            rank: None: from RANK.
            world_size: None: from WORLD_SIZE.
            timeout_s: for connecting, and the default of every call.
            name: for messages; ranks that use the environment's store must agree on it.
            identity: replaces this process's, to emulate nodes with threads as ranks.
            compression: `bf16` or `int8`, for large sums of float32 between nodes (see
                docs/speed/compression.md), or `none`; the same on all ranks. None: from
                HCCL_COMPRESSION, else none.
            algorithms: of your own (see docs/internals/algorithms.md), for the calls that each
                serves; the same on all ranks. They are proved for these ranks here.
            reproducible: the bits of a reduction depend on nothing but the data, the type and the
                number of ranks (see docs/api/reproducible.md). Rank 0 decides for all; a rank that
                asks for it in vain raises. None: from HCCL_REPRODUCIBLE.

        Raises:
            InvalidArgumentError: a number makes no sense, or the environment lacks one; one of
                `algorithms` is wrong; `reproducible` with compression.
            BootstrapError: not all ranks came, or one could not be connected; the message says
                which, where and at what step.
        """
        name = text("name", name)
        timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        if identity is not None and not isinstance(identity, Identity):
            raise wrong("identity", "an Identity", identity)
        rank, world_size = checked_rank_and_size(rank, world_size, store, name, timeout_s)
        wanted = Wanted(compression, algorithms, reproducible, (rank, world_size))
        with rendezvous_store(store, rank, world_size, name, timeout_s) as rendezvous:
            connected = connect_engine(
                rendezvous, rank, world_size, timeout_s, identity, ask=wanted.read
            )
        core, mesh = connected[:2]
        self.rank, self.world_size, self.name = rank, world_size, name
        self.nodes = mesh.nodes
        self.old_ranks: tuple[int, ...] = ()
        of_rank_0 = Shared.parse(mesh.shared)
        self._handed_on: dict[str, Any] = {
            "identity": identity,
            "compression": compression,
            "algorithms": wanted.given_algorithms,
            "reproducible": of_rank_0.reproducible if world_size > 1 else wanted.is_reproducible,
        }
        self._num_shrinks = 0
        self._num_groups: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._store = rendezvous  # rank 0 may host it, and others may not have read all of it yet
        state = assemble((name, rank), timeout_s, core, mesh, wanted.encoding)
        state.owner = weakref.ref(self)
        super().__init__(state, blocking=True)
        self.nonblocking: Collectives[Work] = Collectives(state, blocking=False)
        self.flight_recorder = state.recorder
        self._lifetime = Lifetime(state, connected)
        if wanted.own:
            self._agree_on(wanted.own, of_rank_0.algorithms)

    def _agree_on(self, own: "Sequence[CustomAlgorithm]", of_rank_0: str) -> None:
        from hccl_py.own_algorithms import agree

        try:
            agreed = agree(own, self.rank, self.nodes, of_rank_0, self.all_gather)
        except BaseException:
            self.close()
            raise
        self._state.plans.serve(agreed)

    def __repr__(self) -> str:
        """Show name, rank, size, nodes and whether calls can be made."""
        core = self._state.core
        condition = "open" if core is not None and not core.failed() else "failed"
        if core is None:
            condition = "of the parent process" if self._state.forked else "closed"
        return (
            f"<Communicator {self.name}: rank {self.rank} of {self.world_size} on "
            f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}, {condition}>"
        )

    @property
    def compression(self) -> str:
        """The default encoding of large sums between nodes; "none" on one node."""
        return self._state.compression.name.lower()

    @property
    def timeout_s(self) -> float:
        """Default deadline of every call; may be set."""
        return self._state.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._state.calls.timeout_s = seconds("timeout_s", timeout_s)

    def statistics(self) -> Statistics:
        """Return the counters of this rank, by device and by path; `Statistics` has the keys."""
        return read_statistics(self._state.require_engine())

    def dump_flight_recorder(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the last 4,096 calls of each of this rank's communicators, and how far they got.

        Any thread may, at any time. `hccl-trace` makes one timeline of all ranks' files, and
        `torchfrtrace` compares them.

        `folder` is made if it is not there; None: HCCL_TRACE_DIR, or a folder of the user's own
        below the system's temporary one. Returns the path of the JSON file, readable by its owner
        alone. Raises OSError if it could not be written.
        """
        return self.flight_recorder.dump(None if folder is None else path("folder", folder))

    def abort(self, reason: str = "abort() was called") -> None:
        """End every call under way, here and on all ranks, with an AbortedError.

        Any thread may call it, at any time, a signal handler too. Ranks without a call under way
        raise in their next one. The first failure stays the reason. It returns when all ranks know,
        or after 1.5 s; inside a call of this thread (a signal handler) at once.
        """
        self._lifetime.abort(reason, Cause.ABORTED)

    def subset(
        self, members: Iterable[int], name: str, *, timeout_s: float | None = None
    ) -> "Communicator":
        """Make a communicator of some of this one's ranks; exactly those call it.

        It is a call of this communicator: what ends this one, and the death or leaving of a member,
        ends it at once. The new communicator goes on when this one is closed.

        Args:
            members: ranks of this communicator, in the order that they are to have in the new one.
            name: of the new communicator; the same on all members.
            timeout_s: for connecting, and the default of every call; None: as here.

        Raises:
            InvalidArgumentError: `members` are not ranks of this communicator, or lack this one.
            CommunicatorError: this communicator failed meanwhile.
            BootstrapError: a member did not come in time, or could not be connected.
        """
        chosen = check_members(self.world_size, self.rank, members)
        name = text("name", name)
        limit_s = self._state.limit(timeout_s)
        self._num_groups[name, chosen] += 1
        key = f"group/{name}/{'-'.join(map(str, chosen))}/{self._num_groups[name, chosen]}"
        return open_group(self._state, chosen, key, limit_s, self._connector(name, limit_s))

    def _connector(self, name: str, timeout_s: float) -> "Callable[..., Communicator]":
        return partial(Communicator, timeout_s=timeout_s, name=name, **self._handed_on)

    def split(
        self, color: int | None, key: int | None = None, *, timeout_s: float | None = None
    ) -> "Communicator | None":
        """Make a communicator of all ranks of one colour, for every colour; all ranks call it.

        Args:
            color: any number; None: this rank is to be in none of them, and None is returned.
            key: ranks are sorted by it, and by their rank here where it is equal; None: as here.
            timeout_s: as for `subset`.

        Raises:
            InvalidArgumentError: a number is none; or this is inside of `hccl_py.group()`.
            CommunicatorError: this communicator failed meanwhile.
            BootstrapError: a rank of this colour could not be connected in time.
        """
        require_no_group("split")
        mine = packed(color, self.rank if key is None else key)
        choices = np.empty((self.world_size, mine.size), mine.dtype)
        self.all_gather(choices, mine, timeout_s=timeout_s)
        members = part_of(self.rank, choices)
        if not members:
            return None
        return self.subset(members, f"{self.name}/color-{color}", timeout_s=timeout_s)

    def shrink(self, exclude: Iterable[int] = (), *, timeout_s: float = 10.0) -> "Communicator":
        """Go on without some ranks: agree with all others on who is left, and connect anew.

        Every rank that is to go on calls it; ranks that died are not waited for. The order of
        ranks stays. This communicator is closed if it had failed, else it can be used as before.

        Args:
            exclude: ranks that are to be left out although they may live; the same on all others.
            timeout_s: how long to wait for a rank that is not known to be dead; then it is left
                out, if those that came are enough (`membership/shrink.py` says how many).
                Connecting may take as long again.

        Raises:
            InvalidArgumentError: `exclude` names no rank of this communicator, or this one.
            BootstrapError: on all ranks that called: too few came, or they could not connect. On
                a rank alone: the others decided without it.
            AbortedError: the communicator was closed before.
        """
        excluded = check_excluded(self.world_size, self.rank, exclude)
        timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        base, _, number = self.name.partition(_SHRUNK)
        name = f"{base}{_SHRUNK}{int(number or 0) + 1}"
        core = self._state.require_engine()
        core.poll()
        connect = self._connector(name, timeout_s)
        self._num_shrinks += 1
        made, members = regroup(self._state, self._num_shrinks, excluded, timeout_s, connect)
        made.timeout_s, made.old_ranks = self.timeout_s, tuple(members)
        # When a rank has passed it, all have left the agreement, and this coordinator may end. The
        # calls of the new communicator report a rank that dies from now on.
        with contextlib.suppress(CommunicatorError):
            made.barrier(timeout_s=timeout_s)
        if core.failed():
            self.close()
        return made

    def close(self) -> None:
        """Finish what was started, say goodbye to all ranks and free everything. Idempotent.

        Calls that no thread waits for end first, each by its own deadline at the latest; one that
        fails is logged. A call that another thread waits for is aborted.

        While an exception is handled, as in a `finally` that it passes through, all calls are
        aborted, and the goodbye names the exception to the ranks that still wait for this one.
        """
        self._lifetime.close()

    def exclude_from_groups(self) -> None:
        """Have `hccl_py.group()` collect nothing here: its owner counts on calls that are done."""
        self._state.in_groups = False

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, *_: object) -> None:
        """Close. After an exception: report it to all ranks first, which ends their calls."""
        if isinstance(error, Exception):
            self._lifetime.leave_by(describe_error(error))
        self.close()
