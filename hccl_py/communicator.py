"""The communicator's life cycle: create, subset, split, shrink, grow, abort, close.

This is hccl-py without torch.distributed. `calls/` has the collectives and their plans, and
`transport/bootstrap/mesh.py` connects the ranks.
"""

import contextlib
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccl_py.algorithms.choice.shared import Reproducible, Shared
from hccl_py.calls.call_group import require_no_group
from hccl_py.calls.collectives import Collectives
from hccl_py.calls.communicator_state import assemble
from hccl_py.calls.window import Window, open_window
from hccl_py.calls.work import Work
from hccl_py.diagnosis.exceptions import describe_error
from hccl_py.engine import connect_engine
from hccl_py.lifetime import Lifetime
from hccl_py.membership.environment import checked_rank_and_size, rendezvous_store
from hccl_py.membership.grow import open_grown
from hccl_py.membership.settings import Wanted, wait_of
from hccl_py.membership.shrink import check_excluded, regroup
from hccl_py.membership.subset import check_members, open_group, packed, part_of
from hccl_py.memory.buffers import learn_common
from hccl_py.observe.statistics import Statistics, read_statistics
from hccl_py.transport._core import Cause
from hccl_py.transport.arguments import path, seconds, text, wrong
from hccl_py.transport.errors import CommunicatorError
from hccl_py.transport.network.identity import Identity

if TYPE_CHECKING:
    from hccl_py.algorithms.custom import CustomAlgorithm

_SHRUNK = "/shrunk-"


class Communicator(Collectives[None]):
    """Ranks that call collectives together, in the same order.

    Methods may be called from any thread; calls of one communicator run in the order submitted. A
    context manager: leaving it closes. The collectives are in `collectives.Collectives`; here each
    blocks the calling thread until its end.

    Attributes:
        rank: of this process, 0-based.
        world_size: number of ranks.
        name: for messages.
        nodes: ranks of each node.
        old_ranks: if another communicator shrank to this one, the ranks' old numbers.
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
        reproducible: Reproducible | None = None,
        wait: str | None = None,
    ) -> None:
        """Find the other ranks and connect to all of them.

        Args:
            store: a UniqueId, or its bytes; or anything with `set(key, bytes)` and a blocking
                `get(key)`, used by this communicator alone; torch's stores fit. None: the store at
                MASTER_ADDR:MASTER_PORT.
            rank: None: from RANK.
            world_size: None: from WORLD_SIZE.
            timeout_s: for connecting, and the default of every call.
            name: for messages; ranks that use the environment's store must agree on it.
            identity: replaces this process's, to emulate nodes with threads as ranks.
            compression: `bf16` or `int8`, for large sums of float32 between nodes (see
                docs/speed/compression.md), or `none`; the same on all ranks. None: from
                HCCL_COMPRESSION, else none.
            algorithms: your own (see docs/internals/algorithms.md), for the calls that each serves;
                the same on all ranks. They are proved for these ranks.
            reproducible: the bits of a reduction depend only on the data, the type and the number
                of ranks (see docs/api/reproducible.md); "exact": sums of floats are rounded once.
                Rank 0 decides for all; a rank that requests another kind raises. None: from
                HCCL_REPRODUCIBLE.
            wait: `spin`, `balanced` or `idle`, the way in which this rank waits for others (see
                docs/speed/performance.md). None: from HCCL_WAIT, else balanced.

        Raises:
            InvalidArgumentError: a number is invalid, or missing in the environment; one of
                `algorithms` is wrong; `reproducible` with compression.
            BootstrapError: a rank did not arrive, or could not be connected; the message names the
                rank, its host and the step.
        """
        name = text("name", name)
        timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        if identity is not None and not isinstance(identity, Identity):
            raise wrong("identity", "an Identity", identity)
        rank, world_size = checked_rank_and_size(rank, world_size, store, name, timeout_s)
        wanted = Wanted(compression, algorithms, reproducible, wait, (rank, world_size))
        with rendezvous_store(store, rank, world_size, name, timeout_s) as rendezvous:
            connected = connect_engine(
                rendezvous, rank, world_size, timeout_s, identity, ask=wanted.read
            )
        core, mesh = connected[:2]
        core.wait = wanted.wait
        self.rank, self.world_size, self.name = rank, world_size, name
        self.nodes = mesh.nodes
        self.old_ranks: tuple[int, ...] = ()
        of_rank_0 = Shared.parse(mesh.shared)
        self._handed_on: dict[str, Any] = {
            "identity": identity,
            "compression": compression,
            "wait": wait,
            "algorithms": wanted.given_algorithms,
            "reproducible": of_rank_0.reproducible if world_size > 1 else wanted.is_reproducible,
        }
        self._num_shrinks = 0
        self._num_groups: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._store = rendezvous  # rank 0 may host it, and other ranks may still read it
        state = assemble((name, rank), timeout_s, core, mesh, wanted.encoding)
        state.owner = weakref.ref(self)
        super().__init__(state, blocking=True)
        self.nonblocking: Collectives[Work] = Collectives(state, blocking=False)
        self.flight_recorder = state.recorder
        self._lifetime = Lifetime(state, connected)
        if wanted.own:
            self._agree_on(wanted.own, of_rank_0.algorithms)
        state.plans.prepare_ahead()
        learn_common(sys.modules.get("torch"))

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

    @property
    def wait(self) -> str:
        """How this rank waits for others: `spin`, `balanced` or `idle`; may be set."""
        return self._state.require_engine().wait.name.lower()

    @wait.setter
    def wait(self, wait: str) -> None:
        self._state.require_engine().wait = wait_of(wait)

    def statistics(self) -> Statistics:
        """Return the counters of this rank, by device and by path; `Statistics` has the keys."""
        return read_statistics(self._state.require_engine())

    def dump_flight_recorder(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write the last 4,096 calls of each of this rank's communicators, and their progress.

        Any thread may call it, at any time. `hccl-trace` makes one timeline of all ranks' files,
        and `torchfrtrace` compares them.

        `folder` is created if necessary; None: HCCL_TRACE_DIR, or a private folder below the
        system's temporary one. Returns the path of the JSON file, which only its owner may read.
        Raises OSError if it could not be written.
        """
        return self.flight_recorder.dump(None if folder is None else path("folder", folder))

    def abort(self, reason: str = "abort() was called") -> None:
        """End every running call, here and on all ranks, with an AbortedError.

        Any thread and any signal handler may call it, at any time. Ranks without a running call
        raise in their next one. An earlier failure remains the reason. It returns when all ranks
        know, or after 1.5 s; in a signal handler within a call of this thread, at once.
        """
        self._lifetime.abort(reason, Cause.ABORTED)

    def subset(
        self, members: Iterable[int], name: str, *, timeout_s: float | None = None
    ) -> "Communicator":
        """Make a communicator of some of this one's ranks; exactly its members call it.

        It is a call of this communicator: it fails at once when this communicator fails, or a
        member dies or leaves. The new communicator outlives this one.

        Args:
            members: ranks of this communicator, in their order in the new one.
            name: of the new communicator; the same on all members.
            timeout_s: for connecting, and the default of every call; None: this communicator's.

        Raises:
            InvalidArgumentError: `members` are not ranks of this communicator, or lack this one.
            CommunicatorError: this communicator failed meanwhile.
            BootstrapError: a member did not arrive in time, or could not be connected.
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
            color: any number; None: this rank joins no communicator, and gets None.
            key: ranks are sorted by key, then by their rank here; None: by their rank here.
            timeout_s: as for `subset`.

        Raises:
            InvalidArgumentError: an argument is not a number, or a `hccl_py.group()` is open.
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
        """Continue without some ranks: agree on the remaining ones, and connect them anew.

        Every remaining rank calls it; it does not wait for dead ranks. Ranks keep their order. This
        communicator is closed if it had failed; else it remains usable.

        Args:
            exclude: ranks to leave out although they may be alive; the same on all others.
            timeout_s: how long to wait for a rank that is not known to be dead. It is then left
                out, if enough ranks arrived (`membership/shrink.py` has the rule). Connecting may
                take as long again.

        Raises:
            InvalidArgumentError: `exclude` has an unknown rank, or this one.
            BootstrapError: on all callers: too few ranks arrived, or they could not connect. On one
                rank: the others decided without it.
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
        with self._state.reporter.diagnosing_losses():
            made, members = regroup(self._state, self._num_shrinks, excluded, timeout_s, connect)
        made.timeout_s, made.old_ranks = self.timeout_s, tuple(members)
        # After it all ranks have left the agreement, so this coordinator may end. From now on the
        # calls of the new communicator report ranks that die.
        with contextlib.suppress(CommunicatorError):
            made.barrier(timeout_s=timeout_s)
        if core.failed():
            self.close()
        return made

    def grow(
        self, unique_id: bytes | None = None, num_new: int = 1, *, timeout_s: float | None = None
    ) -> "Communicator":
        """Continue with more ranks, which need not have started with this communicator.

        All ranks call it. A new one calls `Communicator(unique_id, rank, world_size)`; the first
        has the rank `self.world_size`. Ranks keep their numbers. This communicator is closed.

        Args:
            unique_id: of `hccl_py.get_unique_id()`, as the new ranks use it; None: another rank
                of this communicator has it. New ranks learn of a failure from ranks that have it.
            num_new: how many ranks join; the same on all.
            timeout_s: for connecting; None: this communicator's.

        Raises:
            InvalidArgumentError: the arguments are wrong, or differ between ranks.
            BootstrapError: a new rank did not arrive in time, or could not be connected. This
                communicator remains usable.
            CommunicatorError: this communicator failed; `shrink` first, and grow the result.
        """
        require_no_group("grow")
        limit_s = self._state.limit(timeout_s)
        gather = partial(self.all_gather, timeout_s=timeout_s)
        connect = self._connector(self.name.partition(_SHRUNK)[0], limit_s)
        with self._state.reporter.diagnosing_losses():
            made = open_grown(self._state, (unique_id, num_new), limit_s, gather, connect)
        # After it all ranks know the outcome, so this coordinator may end.
        with contextlib.suppress(CommunicatorError):
            self.barrier(timeout_s=timeout_s)
        made.timeout_s = self.timeout_s
        self._state.ended = f"grew: use what grow() returned, with {made.world_size} ranks"
        self.close()
        return made

    def window(self, buffer: Any, *, timeout_s: float | None = None) -> Window:
        """Expose `buffer` to all ranks, which then put into it and signal; all ranks call it.

        Args:
            buffer: as for the collectives, of one element type on all ranks and any size on each.
                Ranks of the node write directly into what `hccl_py.empty` or `register` made.
            timeout_s: as for every call.

        Raises:
            InvalidArgumentError: on all ranks, if element types differ; else as of a collective.
            CommunicatorError: the communicator failed.
        """
        return open_window(self._state, buffer, partial(self.all_gather, timeout_s=timeout_s))

    def close(self) -> None:
        """Finish all started calls, say goodbye to all ranks and free everything. Idempotent.

        Calls that no thread waits for end first, at the latest by their own deadlines; their
        failures are logged. A call that another thread waits for is aborted.

        While an exception is being handled, for example in a `finally`, all calls are aborted, and
        the goodbye names the exception to ranks that still wait for this one.
        """
        self._lifetime.close()

    def exclude_from_groups(self) -> None:
        """Exclude this communicator's calls from `hccl_py.group()`: its owner needs them done."""
        self._state.in_groups = False

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, *_: object) -> None:
        """Close; report an exception to all ranks first, which ends their calls."""
        if isinstance(error, Exception):
            self._lifetime.leave_by(describe_error(error))
        self.close()
