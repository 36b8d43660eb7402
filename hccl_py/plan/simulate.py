"""Runs the plans of all ranks on symbolic values, under exactly the engine's rules.

- A rank runs its ops in order. Each blocks until it is done, except a send.
- Every ordered pair of ranks has one lane, first in first out, with room for one message. A send
  waits in the background for its lane to be empty, behind earlier sends of that lane; a send to
  several peers waits for each of them on its own.
- An op that overwrites a chunk waits until every earlier send from an overlapping chunk was
  received, or, if `rendezvous.py` has the message copied, until it entered its lane. So a message
  has the content of its chunk at the time of the send.
- A compressed send rounds the values that it reads, once, and stores them in `data`.
- `recv_reduce` waits for the messages of all its peers and reduces in rank order.

Ranks share only lanes, a receive names its lane, and no op tests whether a message is there: a Kahn
network. Received values do not depend on timing, so one schedule proves all.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hccl_py.plan.contracts import Contract
from hccl_py.plan.language import Chunk, Fault, Op, OpKind, Plan, PlanError
from hccl_py.plan.memory import CountedTwiceError, Memory, Value, Values
from hccl_py.plan.rendezvous import COPIED, rendezvous

_MOST_STUCK = 64  # that are listed


class _Message(NamedTuple):
    op_index: int
    chunk: Chunk
    lengths: tuple[Hashable, ...]
    values: tuple[Value, ...]
    origins: int
    copied: bool


class Simulation:
    """All ranks of one collective, from its precondition until no rank can continue.

    Attributes:
        room: messages that a lane takes. Every provider takes one; some take more.
    """

    room = 1

    def __init__(self, plans: Sequence[Plan], contract: Contract, in_place: bool) -> None:
        self._plans = plans
        self._next = [0] * len(plans)
        self._rendezvous = [rendezvous(plan.ops) for plan in plans]
        # By sender and receiver. The first `room` messages are in the lane, the others wait.
        self._lanes: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._values = Values()
        # By rank, a bit mask of the ranks whose data it has, directly or through others.
        self.origins = [1 << plan.rank for plan in plans]
        self.memories = [Memory(contract, plan, self._values, in_place) for plan in plans]

    def run(self) -> None:
        """Run every rank to its end; PlanError: a wrong op, a deadlock, a message not received."""
        self._ready = deque(range(len(self._plans)))
        while self._ready:
            rank = self._ready.popleft()
            while self._next[rank] < len(self._plans[rank].ops) and self._step(rank):
                self._next[rank] += 1
        stuck = [rank for rank, plan in enumerate(self._plans) if self._next[rank] < len(plan.ops)]
        if stuck:
            story = "\n  ".join(map(self._why_stuck, stuck[:_MOST_STUCK]))
            more = f"\n  and {len(stuck) - _MOST_STUCK} more" * (len(stuck) > _MOST_STUCK)
            problem = f"deadlock; these ranks wait for ever:\n  {story}{more}"
            raise PlanError(stuck[0], self._next[stuck[0]], problem)
        for (source, target), lane in sorted(self._lanes.items()):
            if lane:
                op = self._plans[source].ops[lane[0].op_index]
                problem = f"`{op}`: rank {target} never receives this"
                raise PlanError(source, lane[0].op_index, problem)

    def progress(self) -> str:
        """Return how many ops were done."""
        return f"{sum(self._next)} of {sum(len(plan.ops) for plan in self._plans)} ops"

    def _step(self, rank: int) -> bool:
        index = self._next[rank]
        op, memory = self._plans[rank].ops[index], self.memories[rank]
        if op.src and op.dst and memory.places(op.src) == memory.places(op.dst):
            return True  # a copy of a chunk to itself, in a call in place
        if op.written is not None and memory.is_unsent(op.written):
            return False
        if op.kind in (OpKind.RECV, OpKind.RECV_REDUCE) and self._silent_peers(rank, op):
            return False
        try:
            if op.dst is None:
                self._send(rank, index, op)
            elif op.src is not None:
                if memory.lengths(op.src) != memory.lengths(op.dst):
                    raise ValueError("copies between different lengths")
                memory.write(op.dst, memory.read(op.src), index)
            else:
                self._receive(rank, index, op, op.dst)
        except CountedTwiceError as error:
            fault = Fault(error.block, twice=error.ranks)
            raise PlanError(rank, index, f"`{op}` {error}", fault) from None
        except ValueError as error:
            raise PlanError(rank, index, f"`{op}` {error}") from None
        return True

    def _send(self, rank: int, index: int, op: Op) -> None:
        assert op.src is not None
        memory = self.memories[rank]
        copied = self._rendezvous[rank][index] == COPIED
        lengths, values = memory.lengths(op.src), memory.read(op.src)
        if op.compressed:
            values = tuple(map(self._values.rounded, values))
        if op.written is not None:
            memory.write(op.written, values, index)
        message = _Message(index, op.src, lengths, values, self.origins[rank], copied)
        for peer in op.peers:
            memory.unsent.update(memory.places(op.src))
            lane = self._lanes[rank, peer]
            lane.append(message)
            if len(lane) <= self.room:
                self._enter(rank, peer, message)

    def _receive(self, rank: int, index: int, op: Op, dst: Chunk) -> None:
        memory = self.memories[rank]
        operands: dict[int, tuple[Value, ...]] = {}
        if op.kind is OpKind.RECV_REDUCE:
            operands[rank] = memory.read(dst)
        for peer in op.peers:
            message = self._take(rank, peer)
            if message.lengths != memory.lengths(dst):
                raise ValueError(
                    f"gets a message of another length: {message.chunk}, "
                    f"sent by op {message.op_index} of rank {peer}"
                )
            operands[peer] = message.values
            self.origins[rank] |= message.origins
        if op.kind is OpKind.RECV:
            memory.write(dst, operands[op.peers[0]], index)
            return
        columns = zip(*(operands[source] for source in sorted(operands)), strict=True)
        memory.write(dst, tuple(self._values.reduced(column) for column in columns), index)

    def _enter(self, source: int, target: int, message: _Message) -> None:
        if message.copied:
            self._release(source, message)
        self._ready.extend((source, target))

    def _take(self, target: int, source: int) -> _Message:
        lane = self._lanes[source, target]
        message = lane.popleft()
        if not message.copied:
            self._release(source, message)
            self._ready.append(source)
        if len(lane) >= self.room:
            self._enter(source, target, lane[self.room - 1])
        return message

    def _release(self, source: int, message: _Message) -> None:
        self.memories[source].unsent.subtract(self.memories[source].places(message.chunk))

    def _silent_peers(self, rank: int, op: Op) -> list[int]:
        return [peer for peer in op.peers if not self._lanes[peer, rank]]

    def _why_stuck(self, rank: int) -> str:
        index = self._next[rank]
        op = self._plans[rank].ops[index]
        why = f"for a message of rank {', '.join(map(str, self._silent_peers(rank, op)))}"
        if op.written is not None and self.memories[rank].is_unsent(op.written):
            why = "until an earlier send of this chunk was received"
        return f"rank {rank}, op {index} `{op}` waits {why}"
