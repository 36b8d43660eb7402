"""How a checked call runs: with what its communicator has, through one of the engine's entries.

Arguments become addresses, counts and a plan in `calls.py`, on top of this.
"""

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hccl_py.diagnosis.errors import Narrator
from hccl_py.fingerprint import Transfer
from hccl_py.memory.buffers import Span
from hccl_py.observe.call_sites import CallSites
from hccl_py.plan_cache import PlanCache
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.work import Work

SpanList = list[tuple[int, int]]
"""Address and count of every block."""

Result = TypeVar("Result", covariant=True)


class Shared:
    """What the blocking and the non-blocking face of a communicator have in common."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        timeout_s: float,
        core: _core.Communicator,
        plans: PlanCache,
        narrator: Narrator,
    ) -> None:
        """Keep everything; the barrier's one byte is made here."""
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.core = core
        self.plans = plans
        self.narrator = narrator
        self.sites = CallSites(core) if CallSites.wanted() else None
        self.barrier_byte = np.zeros(1, np.uint8)
        self.barrier_address = self.barrier_byte.ctypes.data


class Engine(NamedTuple):
    """The ways into C++, all blocking or none; for what they take see `csrc/bindings_calls.cc`."""

    data: Callable[..., Any]
    blocks: Callable[..., Any]
    equal: Callable[..., Any]
    transfer: Callable[..., Any]


EqualBlocks = tuple[int, int, int, int, int]
"""Blocks of one length, one behind the other: the address of the input, how many blocks it has, the
same of the output, and the length in elements of the plan's type (bytes where nothing is reduced).
"""


def require_seconds(limit_s: object) -> None:
    """Refuse a deadline that is no number.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(limit_s, numbers.Real):
        raise InvalidArgumentError(f"timeout_s: expected a number of seconds, got {limit_s!r}")


class Runner(ABC, Generic[Result]):
    """Runs calls, on the calling thread or in the background."""

    _engine: Engine

    def __init__(self, shared: Shared) -> None:
        """Share the communicator."""
        self._shared = shared
        self.use(shared.core)

    def use(self, core: _core.Communicator) -> None:
        """Take the engine's entries; also those of what stands in for it once it is gone."""
        engine = self._entries(core)
        sites = self._shared.sites
        if sites is not None:
            sites.core = core
            data, blocks, equal = map(sites.watch, engine[:3])
            engine = Engine(data, blocks, equal, engine.transfer)
        self._engine = engine

    @abstractmethod
    def _entries(self, core: _core.Communicator) -> Engine:
        """Return the entries of this face."""

    # A blocking entry returns None, which is the result; around what the others return goes a Work.

    def _data(
        self,
        prepared: _core.Prepared,
        divide: bool,
        address: int,
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        try:
            started = self._engine.data(prepared, limit, address, divide, buffers)
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, prepared.fingerprint) from None
        except TypeError:
            require_seconds(limit)
            raise
        return started and Work(started, self._shared.narrator, limit, prepared.fingerprint)  # type: ignore[return-value]

    def _run_blocks(
        self,
        prepared: _core.Prepared,
        divide: bool,
        spans: tuple[SpanList, SpanList],
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        try:
            started = self._engine.blocks(prepared, limit, *spans, divide, buffers)
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, prepared.fingerprint) from None
        except TypeError:
            require_seconds(limit)
            raise
        return started and Work(started, self._shared.narrator, limit, prepared.fingerprint)  # type: ignore[return-value]

    def _equal(
        self,
        prepared: _core.Prepared,
        divide: bool,
        blocks: EqualBlocks,
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        try:
            started = self._engine.equal(prepared, limit, *blocks, divide, buffers)
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, prepared.fingerprint) from None
        except TypeError:
            require_seconds(limit)
            raise
        return started and Work(started, self._shared.narrator, limit, prepared.fingerprint)  # type: ignore[return-value]

    def _moved(
        self,
        prepared: _core.Prepared,
        spans: tuple[Sequence[Span], Sequence[Span]],
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        sources, targets = spans
        bytes_of = (
            [(source.address, source.num_bytes) for source in sources],
            [(target.address, target.num_bytes) for target in targets],
        )
        return self._run_blocks(prepared, False, bytes_of, buffers, timeout_s)

    def _transfer(
        self, transfer: Transfer, span: Span, buffers: object, timeout_s: float | None
    ) -> Result:
        sends, peer, tag, num_bytes = transfer
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        who = -1 if peer is None else peer
        try:
            started = self._engine.transfer(
                sends, span.address, num_bytes, who, tag, limit, buffers
            )
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, transfer) from None
        except TypeError:
            require_seconds(limit)
            raise
        return started and Work(started, self._shared.narrator, limit, transfer)  # type: ignore[return-value]
