"""Records every op of a collective, in order: the source and time of each value.

The run is the proof's, `simulate.py`. Explanations of wrong plans and drawings of correct ones read
this record.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from hccl_py.plan.contracts import Contract
from hccl_py.plan.language import Chunk, Op, OpKind, Plan, PlanError
from hccl_py.plan.memory import Value
from hccl_py.plan.simulate import Simulation, _Message

RECEIVES = (OpKind.RECV, OpKind.RECV_REDUCE)
OpName = tuple[int, int]
"""A rank and the index of its op."""


class Event(NamedTuple):
    """A completed op."""

    rank: int
    op_index: int
    begin: float
    end: float
    chunk: Chunk  # what it wrote, or sent
    values: tuple[Value, ...]  # of each of its chunks, afterwards; of a wrong op its operands
    # The ops that wrote its operands, and the ops that sent its messages.
    read: frozenset[OpName]
    received: tuple[OpName, ...]


class History(Simulation):
    """A run of the plans that records each op.

    A message takes 1 step. It starts when it is posted, after earlier ones in its lane. Lanes are
    independent.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        contract: Contract,
        in_place: bool = False,
    ) -> None:
        super().__init__(plans, contract, in_place)
        self.events: list[Event] = []
        # For wrong plans: the op that failed, or whether ranks are stuck, each before an op that
        # waits for ever or with a message that no rank receives.
        self.failed: Event | None = None
        self.stands_still = False
        self._in_step = False
        self._now = [0.0] * len(plans)
        # Arrival times of an op's messages.
        self.arrives: dict[tuple[OpName, int], float] = {}
        self._lane_free: dict[tuple[int, int], float] = {}
        self._taken: list[tuple[OpName, tuple[Value, ...]]] = []

    def run(self) -> None:
        """Run the plans as far as possible; PlanError: an op is wrong, and may become `failed`."""
        try:
            super().run()
        except PlanError as error:
            if error.op_index is not None and error.fault is not None:
                self.failed = self._event(error.rank, error.op_index, self._operands(error))
            self.stands_still = not self._in_step
            raise

    def waiting(self) -> list[tuple[int, int, tuple[Value, ...]]]:
        """Return the ranks blocked in a receive, the op, and its received values."""
        found = []
        for rank, plan in enumerate(self._plans):
            index = self._next[rank]
            if index == len(plan.ops) or (op := plan.ops[index]).kind not in RECEIVES:
                continue
            assert op.dst is not None
            got: tuple[Value, ...] = ()
            if op.kind is OpKind.RECV_REDUCE:
                with suppress(ValueError):  # nothing was written to it
                    got = self.memories[rank].read(op.dst)
            lanes = (self._lanes[peer, rank] for peer in op.peers)
            got += sum((lane[0].values for lane in lanes if lane), ())
            found.append((rank, index, got))
        return found

    def untaken(self) -> list[tuple[int, int, int, tuple[Value, ...]]]:
        """Return sender, op, receiver and values of the first message in each lane."""
        return [
            (source, lane[0].op_index, target, lane[0].values)
            for (source, target), lane in sorted(self._lanes.items())
            if lane
        ]

    def _step(self, rank: int) -> bool:
        self._taken = []
        index = self._next[rank]
        op, memory = self._plans[rank].ops[index], self.memories[rank]
        read = self._read(rank, op)
        self._in_step = True
        is_done = super()._step(rank)
        self._in_step = False
        if not is_done:
            return False
        for peer in op.peers if op.kind is OpKind.SEND else ():
            begin = max(self._now[rank], self._lane_free.get((rank, peer), 0.0))
            end = begin + 1.0
            self.arrives[(rank, index), peer] = self._lane_free[rank, peer] = end
        chunk = op.dst or op.src
        assert chunk is not None
        event = self._event(rank, index, memory.read(chunk))._replace(read=read)
        self._now[rank] = event.end
        self.events.append(event)
        return True

    def _event(self, rank: int, index: int, values: tuple[Value, ...]) -> Event:
        op = self._plans[rank].ops[index]
        chunk = op.dst or op.src
        assert chunk is not None
        received = tuple(sent for sent, _ in self._taken)
        end = max([self._now[rank], *(self.arrives[sent, rank] for sent in received)])
        read = self._read(rank, op)
        return Event(rank, index, self._now[rank], end, chunk, values, read, received)

    def _read(self, rank: int, op: Op) -> frozenset[OpName]:
        source = op.dst if op.kind is OpKind.RECV_REDUCE else op.src
        if source is None:
            return frozenset()
        memory = self.memories[rank]
        writers = [memory.last_writer.get(place) for place in memory.places(source)]
        return frozenset((rank, writer) for writer in writers if writer is not None)

    def _take(self, target: int, source: int) -> _Message:
        message = super()._take(target, source)
        self._taken.append(((source, message.op_index), message.values))
        return message

    def _operands(self, error: PlanError) -> tuple[Value, ...]:
        target = self._plans[error.rank].ops[error.op_index or 0].dst
        assert target is not None, "only a recv_reduce counts twice"
        own = self.memories[error.rank].read(target)
        return sum((values for _, values in self._taken), own)
