"""Runs plans on numbers, in a random order: what a proof claims, seen without the proof.

Nothing of `verify`, `simulate` or `memory` is used. A message is read as late as the engine may
read it: where it is copied when it enters its lane, else when it is received.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from random import Random

from hccl_py.plan.contracts import Contract, Contribution, Total
from hccl_py.plan.language import Buffer, Chunk, OpKind, Plan
from hccl_py.plan.rendezvous import COPIED, rendezvous

Place = tuple[object, int]


class _Message:
    def __init__(self, places: list[Place], is_copied: bool, heard: frozenset[int]) -> None:
        self.places, self.is_copied, self.heard = places, is_copied, heard
        self.payload: list[float] | None = None  # until it is read


class Run:
    """One run of the plans of all ranks."""

    def __init__(self, plans: Sequence[Plan], random: Random) -> None:
        self._plans, self._random = plans, random
        self._next = [0] * len(plans)
        self._lanes: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._copied = [[way == COPIED for way in rendezvous(plan.ops)] for plan in plans]
        self.heard = [frozenset([plan.rank]) for plan in plans]
        self.memory: list[dict[Place, list[float]]] = [{} for _ in plans]
        self.brought = [{} for _ in plans]  # type: list[dict[tuple[Buffer, int], float]]
        for rank, plan in enumerate(plans):
            for buffer in (Buffer.DATA, Buffer.INPUT):
                for block in range(plan.shape[buffer]):
                    number = random.uniform(-1, 1) * 10 ** random.randint(0, 6)
                    self.brought[rank][buffer, block] = number
                    self.memory[rank][buffer, block] = [number]

    def ends(self) -> bool:
        """Run to the end; return whether all ranks came there and all messages were received."""
        while True:
            ready = [rank for rank in range(len(self._plans)) if self._can_step(rank)]
            if not ready:
                break
            self._step(self._random.choice(ready))
        is_done = all(at == len(p.ops) for at, p in zip(self._next, self._plans, strict=True))
        return is_done and not any(self._lanes.values())

    def _can_step(self, rank: int) -> bool:
        plan, index = self._plans[rank], self._next[rank]
        if index == len(plan.ops):
            return False
        op = plan.ops[index]
        if op.dst is not None and any(self._is_unread(rank, one) for one in places(op.dst)):
            return False
        is_receive = op.kind in (OpKind.RECV, OpKind.RECV_REDUCE)
        return not is_receive or all(self._lanes[peer, rank] for peer in op.peers)

    def _is_unread(self, rank: int, place: Place) -> bool:
        return any(
            message.payload is None and place in message.places
            for (source, _), lane in self._lanes.items()
            if source == rank
            for message in lane
        )

    def _step(self, rank: int) -> None:
        index = self._next[rank]
        self._next[rank] += 1
        op, memory = self._plans[rank].ops[index], self.memory[rank]
        if op.kind is OpKind.SEND:
            assert op.src is not None
            for peer in op.peers:
                message = _Message(places(op.src), self._copied[rank][index], self.heard[rank])
                self._lanes[rank, peer].append(message)
                self._enter(rank, peer)
            return
        assert op.dst is not None
        if op.kind is OpKind.COPY:
            assert op.src is not None
            self._write(rank, op.dst, [x for one in places(op.src) for x in memory[one]])
            return
        operands = {peer: self._take(peer, rank) for peer in op.peers}
        if op.kind is OpKind.RECV_REDUCE:
            operands[rank] = [number for one in places(op.dst) for number in memory[one]]
        columns = zip(*(operands[source] for source in sorted(operands)), strict=True)
        totals = []
        for first, *others in columns:
            for other in others:
                first += other
            totals.append(first)
        self._write(rank, op.dst, totals)

    def _write(self, rank: int, chunk: Chunk, numbers: list[float]) -> None:
        where = places(chunk)
        each = (chunk.end - chunk.begin) // len(where)
        for at, place in enumerate(where):
            self.memory[rank][place] = numbers[at * each : (at + 1) * each]

    def _enter(self, source: int, target: int) -> None:
        message = self._lanes[source, target][0]
        if message.is_copied and message.payload is None:
            self._read(source, message)

    def _read(self, source: int, message: _Message) -> list[float]:
        if message.payload is None:
            memory = self.memory[source]
            message.payload = [number for one in message.places for number in memory[one]]
        return message.payload

    def _take(self, source: int, target: int) -> list[float]:
        lane = self._lanes[source, target]
        message = lane.popleft()
        numbers = self._read(source, message)
        self.heard[target] |= message.heard
        if lane:
            self._enter(source, target)
        return numbers


def places(chunk: Chunk) -> list[Place]:
    """List where a chunk lies."""
    if chunk.scratch is not None:
        return [("scratch", chunk.scratch + slot) for slot in range(chunk.slots)]
    return [(chunk.buffer, block) for block in range(chunk.begin, chunk.end)]


def keeps_its_promise(plans: Sequence[Plan], contract: Contract, seed: int) -> bool:
    """Run once, in an order by `seed`; return whether every rank has what was promised."""
    run = Run(plans, Random(seed))
    if not run.ends() or (contract.meets and any(len(one) < len(plans) for one in run.heard)):
        return False
    buffer = Buffer.DATA if contract.blocks is None else Buffer.OUTPUT
    source = Buffer.DATA if contract.blocks is None else Buffer.INPUT
    totals: dict[int, float] = {}
    for plan, memory in zip(plans, run.memory, strict=True):
        for block in range(plan.shape[buffer]):
            promise = contract.promise(plan, block)
            if promise is None:
                continue
            (number,) = memory[buffer, block]
            if isinstance(promise, Contribution):
                if number != run.brought[promise.rank][source, promise.block]:
                    return False
                continue
            assert isinstance(promise, Total)
            total = sum(one[source, promise.block] for one in run.brought)
            if abs(number - total) > 1e-3 or totals.setdefault(promise.block, number) != number:
                return False
    return True
