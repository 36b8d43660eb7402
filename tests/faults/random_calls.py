"""Random collectives, the same on every rank, each checked against what numpy says.

    calls = RandomCalls(NativeCalls(comm), seed)
    while True:
        calls.one()          # starts one, waits for it or for an older one, checks what ended

Call k depends on the seed and k alone. Contributions are small integers, so sums are exact in every
element type.
"""

import functools
import random
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

import hccl_py
from hccl_py import Communicator, ReduceOp

LARGEST_BYTES = 4 << 20
MOST_IN_FLIGHT = 3
_PERIOD = 61
_PATTERN = np.arange(LARGEST_BYTES + _PERIOD, dtype=np.int16) % _PERIOD

Array = np.ndarray[Any, np.dtype[Any]]
Wait = Callable[[], object]
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
KINDS = (*REDUCING, "broadcast", "all_gather", "all_to_all", "ring")
DTYPES = ("float16", "float32", "float64", "uint16", "int32", "int64")


class Call(NamedTuple):
    """One collective; `count` elements in its larger buffer, a multiple of the world size."""

    kind: str
    dtype: str
    count: int
    root: int
    blocks: bool
    registered: bool
    op: str = "SUM"


def draw(seed: str, number: int, world_size: int, kinds: Sequence[str] = KINDS) -> Call:
    """Return call `number`, from 4 bytes up to 4 MB, small and large ones equally often."""
    chance = random.Random(f"{seed}/{number}")
    dtype = chance.choice(DTYPES)
    num_bytes = int(4 * (LARGEST_BYTES / 4) ** chance.random())
    count = -(-num_bytes // np.dtype(dtype).itemsize // world_size) * world_size
    root = chance.randrange(world_size)
    blocks, registered = chance.random() < 0.5, chance.random() < 0.3
    kind, op = chance.choice(kinds), chance.choice(("SUM", "MAX"))
    return Call(kind, dtype, count, root, blocks, registered, op)


class NativeCalls:
    """Calls of a Communicator; `start` returns None for a call that has ended."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.world_size = comm.rank, comm.world_size
        self._comm = comm

    def start(self, call: Call, output: Array, data: Array) -> Wait | None:
        calls: Any = self._comm if call.blocks else self._comm.nonblocking
        op = ReduceOp[call.op]
        if call.kind == "all_reduce":
            work = calls.all_reduce(data, op)
        elif call.kind == "reduce":
            work = calls.reduce(data, call.root, op)
        elif call.kind == "broadcast":
            work = calls.broadcast(data, call.root)
        elif call.kind == "reduce_scatter":
            work = calls.reduce_scatter(output, data, op)
        elif call.kind == "ring":
            later, n = self._comm.nonblocking, self.world_size
            works = [later.recv(output, (self.rank - 1) % n, tag=call.count)]
            works.append(later.send(data, (self.rank + 1) % n, tag=call.count))
            return lambda: [one.wait() for one in works]
        else:
            work = getattr(calls, call.kind)(output, data)
        return None if work is None else work.wait  # type: ignore[no-any-return]


class TorchCalls:
    """Calls of torch.distributed's default group."""

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def start(self, call: Call, output: Array, data: Array) -> Wait | None:
        ours, theirs = torch.from_numpy(output), torch.from_numpy(data)
        options: dict[str, Any] = {"async_op": not call.blocks}
        op = getattr(dist.ReduceOp, call.op)
        work: Any
        if call.kind == "all_reduce":
            work = dist.all_reduce(theirs, op, **options)
        elif call.kind == "broadcast":
            work = dist.broadcast(theirs, call.root, **options)
        elif call.kind == "reduce":
            work = dist.reduce(theirs, call.root, op, **options)
        elif call.kind == "all_gather":
            work = dist.all_gather_into_tensor(ours, theirs, **options)
        elif call.kind == "reduce_scatter":
            work = dist.reduce_scatter_tensor(ours, theirs, op, **options)
        elif call.kind == "ring":
            n, tag = self.world_size, call.count % (1 << 20)
            works = [dist.irecv(ours, (self.rank - 1) % n, tag=tag)]
            works.append(dist.isend(theirs, (self.rank + 1) % n, tag=tag))
            return lambda: [one.wait() for one in works]
        else:
            work = dist.all_to_all_single(ours, theirs, **options)
        return None if work is None else lambda: work.wait(timedelta(0))


class RandomCalls:
    """A stream of random calls; at most a few are in flight, and every result is checked."""

    def __init__(
        self, target: NativeCalls | TorchCalls, seed: str, kinds: Sequence[str] = KINDS
    ) -> None:
        self._target = target
        self._seed = seed
        self._kinds = kinds
        self._in_flight: deque[tuple[Wait, Wait]] = deque()
        self.num_started = 0
        self.num_checked = 0

    def one(self) -> None:
        """Start the next call; raise if it or an older one failed, or its result is wrong."""
        number, n = self.num_started, self._target.world_size
        call = draw(self._seed, number, n, self._kinds)
        output, data = self._buffers(call, number)
        self.num_started += 1
        wait = self._target.start(call, output, data)
        check = self._check(call, number, output, data)
        if wait is None:
            check()
        else:
            self._in_flight.append((wait, check))
            while len(self._in_flight) > number % (MOST_IN_FLIGHT + 1):
                self._finish_oldest()

    def finish(self) -> None:
        """Wait for what is in flight."""
        while self._in_flight:
            self._finish_oldest()

    def failures(self, error: type[Exception]) -> list[Exception]:
        """Return what the calls in flight raise, without those that had ended well."""
        found: list[Exception] = []
        while self._in_flight:
            try:
                self._finish_oldest()
            except error as failure:
                found.append(failure)
        return found

    def _finish_oldest(self) -> None:
        wait, check = self._in_flight.popleft()
        wait()
        check()

    def _buffers(self, call: Call, number: int) -> tuple[Array, Array]:
        """Return output and contribution."""
        n, rank = self._target.world_size, self._target.rank
        block = call.count // n
        num_in = block if call.kind == "all_gather" else call.count
        num_out = block if call.kind == "reduce_scatter" else call.count
        make = hccl_py.empty if call.registered else np.empty
        data = make(num_in, call.dtype)
        data[:] = _values(number + rank, num_in)
        in_place = call.kind in ("all_reduce", "broadcast", "reduce")
        return (data if in_place else make(num_out, call.dtype)), data

    def _check(self, call: Call, number: int, output: Array, data: Array) -> Wait:
        n, rank = self._target.world_size, self._target.rank
        block = call.count // n

        def total() -> Array:
            combine = np.add if call.op == "SUM" else np.maximum
            return functools.reduce(
                combine, (_values(number + one, call.count) for one in range(n))
            )

        def expected() -> Array:
            if call.kind == "all_reduce" or (call.kind == "reduce" and rank == call.root):
                return total()
            if call.kind == "reduce":
                return data  # another's result
            if call.kind == "ring":
                return _values(number + (rank - 1) % n, call.count)
            if call.kind == "broadcast":
                return _values(number + call.root, call.count)
            if call.kind == "all_gather":
                return np.concatenate([_values(number + one, block) for one in range(n)])
            mine = slice(rank * block, (rank + 1) * block)
            if call.kind == "reduce_scatter":
                return total()[mine]
            return np.concatenate([_values(number + one, call.count)[mine] for one in range(n)])

        def check() -> None:
            right = expected()
            assert np.array_equal(output, right), (
                f"rank {rank}: call {number} of seed {self._seed} is wrong: {call}; "
                f"{_difference(output, right)}"
            )
            self.num_checked += 1

        return check


def _difference(output: Array, right: Array) -> str:
    wrong = np.flatnonzero(output != right)
    first = wrong[0]
    return (
        f"{len(wrong)} of {len(right)} elements from {first} to {wrong[-1]}: "
        f"expected {right[first : first + 5]}, got {output[first : first + 5]}"
    )


def _values(start: int, count: int) -> Array:
    begin = start % _PERIOD
    return _PATTERN[begin : begin + count]
