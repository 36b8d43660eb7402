"""Makes the calls of a soak on one rank, and compares every byte of their results with numpy's.

Integers hold random bits and wrap round, in numpy as in the engine; floats hold small whole
numbers, so that every order of adding them gives the same bits. Guard bytes stand around each
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import hccl_py
from hccl_py.bench.soak_plan import FLOATS, Call, item_bytes

Array = npt.NDArray[Any]

_GUARD_BYTES = 72  # no multiple of a cache line: buffers start anywhere
_GUARD = 0xA5
_AVERAGE_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "SUM": np.add.reduce,
    "AVG": np.add.reduce,
    "PRODUCT": np.multiply.reduce,
    "MIN": np.minimum.reduce,
    "MAX": np.maximum.reduce,
    "BAND": np.bitwise_and.reduce,
    "BOR": np.bitwise_or.reduce,
    "BXOR": np.bitwise_xor.reduce,
}


class WrongResult(Exception):
    """A call returned something else than numpy did; the message says where."""


class Buffer:
    """Bytes between guards, and what of them is handed to a call."""

    def __init__(self, dtype: str, content: Array, registered: bool, tensor: bool) -> None:
        """Make memory of one kind and fill it with the bytes of `content`."""
        self._size = content.nbytes
        make = hccl_py.empty if registered else np.empty
        self._raw: Array = make(self._size + 2 * _GUARD_BYTES, np.uint8)
        self._raw[:] = _GUARD
        self.inside = self._raw[_GUARD_BYTES : _GUARD_BYTES + self._size]
        self.inside[:] = content.reshape(-1).view(np.uint8)
        self._dtype, self._tensor = dtype, tensor

    def handed(self, first_byte: int = 0, num_bytes: int | None = None) -> Any:
        """Return a part as the numpy array or tensor that the call gets."""
        end = self._size if num_bytes is None else first_byte + num_bytes
        part = self.inside[first_byte:end]
        if not self._tensor:
            return part.view(self._dtype)
        import torch

        return torch.from_numpy(part).view(getattr(torch, self._dtype))

    def check_guards(self, what: str) -> None:
        """Raise where something beside the buffer was written."""
        for guard in (self._raw[:_GUARD_BYTES], self._raw[_GUARD_BYTES + self._size :]):
            if not (guard == _GUARD).all():
                raise WrongResult(f"{what}: wrote beside its buffer")


class Running:
    """A call that was made: waits for it, then checks what it left."""

    def __init__(
        self, works: Sequence[Any], buffers: Sequence[Buffer], check: Callable[[], None], what: str
    ) -> None:
        """Keep all of it alive until the end."""
        self._works, self._buffers, self._check, self._what = works, buffers, check, what

    def finish(self) -> None:
        """Wait, and compare.

        Raises:
            WrongResult: a byte is wrong.
            CommunicatorError: the call failed.
        """
        for work in self._works:
            if work is not None:
                work.wait()
        self._check()
        for buffer in self._buffers:
            buffer.check_guards(self._what)


class Caller:
    """One rank of one communicator, and the data of its calls."""

    def __init__(self, communicator: Any, seed: int, index: int) -> None:
        """Take a communicator; the seed and the generation's index are for the data."""
        self.communicator = communicator
        self.rank: int = communicator.rank
        self.size: int = communicator.world_size
        self._seed, self._index = seed, index

    def start(self, call: Call) -> Running:
        """Make one call; a blocking one has ended when this returns.

        Raises:
            CommunicatorError: the call failed.
        """
        return getattr(self, f"_{call.kind}")(call)  # type: ignore[no-any-return]

    # ------------------------------------------------------------ data

    def given(self, call: Call, rank: int, blocks: int = 1) -> Array:
        """Return what a rank of the group brings to a call."""
        dice = np.random.default_rng([self._seed, self._index, call.number, rank])
        count = call.count * blocks
        if call.dtype not in FLOATS and call.op != "AVG":
            return dice.integers(0, 256, count * item_bytes(call.dtype), np.uint8).view(call.dtype)
        small = dice.integers(1, 3 if call.op == "PRODUCT" else 8, count, np.uint8)
        return _as_type(small, call.dtype)

    def reduced(self, call: Call, blocks: int = 1) -> Array:
        """Return numpy's reduction of what all ranks bring."""
        parts = np.stack([_wide(self.given(call, rank, blocks), call) for rank in range(self.size)])
        result = _REDUCTIONS[call.op](parts, axis=0, dtype=parts.dtype)
        if call.op == "AVG":
            result = result / self.size if call.dtype in FLOATS else result // self.size
        return _as_type(result, call.dtype)

    def _own(self, call: Call, content: Array) -> Buffer:
        mixed = call.memory == "mixed" and self.rank % 2 == 0
        return Buffer(call.dtype, content, call.memory == "registered" or mixed, call.tensor)

    def _empty(self, call: Call, blocks: int = 1) -> Buffer:
        size = call.count * item_bytes(call.dtype) * blocks
        return self._own(call, np.full(size, 0xEE, np.uint8))

    # ------------------------------------------------------------ calls

    def _face(self, call: Call) -> Any:
        return self.communicator.nonblocking if call.waits else self.communicator

    def _ends(self, call: Call, work: Any, buffers: list[Buffer], want: Array | None) -> Running:
        what = f"{call} on rank {self.rank} of {self.size}"

        def check() -> None:
            if want is not None:
                _compare(what, call, buffers[0].inside, want)

        return Running([work], buffers, check, what)

    def _barrier(self, call: Call) -> Running:
        return self._ends(call, self._face(call).barrier(), [], None)

    def _all_reduce(self, call: Call) -> Running:
        data = self._own(call, self.given(call, self.rank))
        op = hccl_py.ReduceOp[call.op]
        work = self._face(call).all_reduce(data.handed(), op)
        return self._ends(call, work, [data], self.reduced(call))

    def _reduce(self, call: Call) -> Running:
        mine = self.given(call, self.rank)
        data = self._own(call, mine)
        work = self._face(call).reduce(data.handed(), call.root, hccl_py.ReduceOp[call.op])
        want = self.reduced(call) if self.rank == call.root else mine
        return self._ends(call, work, [data], want)

    def _broadcast(self, call: Call) -> Running:
        is_root = self.rank == call.root
        data = self._own(call, self.given(call, self.rank)) if is_root else self._empty(call)
        work = self._face(call).broadcast(data.handed(), call.root)
        return self._ends(call, work, [data], self.given(call, call.root))

    def _all_gather(self, call: Call) -> Running:
        blocks = [self.given(call, rank) for rank in range(self.size)]
        output, input, given = self._blocks_and_own(call, blocks[self.rank])
        work = self._face(call).all_gather(output.handed(), given)
        return self._ends(call, work, [output, *input], np.concatenate(blocks))

    def _gather(self, call: Call) -> Running:
        mine = self.given(call, self.rank)
        if self.rank != call.root:
            data = self._own(call, mine)
            work = self._face(call).gather(None, data.handed(), call.root)
            return self._ends(call, work, [data], mine)
        output, input, given = self._blocks_and_own(call, mine)
        work = self._face(call).gather(output.handed(), given, call.root)
        want = np.concatenate([self.given(call, rank) for rank in range(self.size)])
        return self._ends(call, work, [output, *input], want)

    def _blocks_and_own(self, call: Call, mine: Array) -> tuple[Buffer, list[Buffer], Any]:
        """Make room for everybody's block, and this rank's, inside of it or apart."""
        output = self._empty(call, self.size)
        if call.in_place:
            first = self.rank * mine.nbytes
            output.inside[first : first + mine.nbytes] = mine.view(np.uint8)
            return output, [], output.handed(first, mine.nbytes)
        input = self._own(call, mine)
        return output, [input], input.handed()

    def _reduce_scatter(self, call: Call) -> Running:
        op = hccl_py.ReduceOp[call.op]
        data = self._own(call, self.given(call, self.rank, self.size))
        want = np.split(self.reduced(call, self.size), self.size)[self.rank]
        if call.in_place:
            whole = self.given(call, self.rank, self.size)
            first = self.rank * want.nbytes
            work = self._face(call).reduce_scatter(
                data.handed(first, want.nbytes), data.handed(), op
            )
            whole.view(np.uint8)[first : first + want.nbytes] = want.view(np.uint8)
            return self._ends(call, work, [data], whole)
        output = self._empty(call)
        work = self._face(call).reduce_scatter(output.handed(), data.handed(), op)
        return self._ends(call, work, [output, data], want)

    def _all_to_all(self, call: Call) -> Running:
        rows = [np.split(self.given(call, r, self.size), self.size) for r in range(self.size)]
        data = self._own(call, np.concatenate(rows[self.rank]))
        output = self._empty(call, self.size)
        work = self._face(call).all_to_all(output.handed(), data.handed())
        want = np.concatenate([row[self.rank] for row in rows])
        return self._ends(call, work, [output, data], want)

    def _scatter(self, call: Call) -> Running:
        blocks = np.split(self.given(call, call.root, self.size), self.size)
        if self.rank != call.root:
            output = self._empty(call)
            work = self._face(call).scatter(output.handed(), None, call.root)
            return self._ends(call, work, [output], blocks[self.rank])
        data = self._own(call, np.concatenate(blocks))
        if call.in_place:
            num_bytes = blocks[self.rank].nbytes
            mine = data.handed(self.rank * num_bytes, num_bytes)
            work = self._face(call).scatter(mine, data.handed(), call.root)
            return self._ends(call, work, [data], np.concatenate(blocks))
        output = self._empty(call)
        work = self._face(call).scatter(output.handed(), data.handed(), call.root)
        return self._ends(call, work, [output, data], blocks[self.rank])

    def _send_recv(self, call: Call) -> Running:
        """Everyone sends to the rank `root` further, and receives from the one before."""
        source = (self.rank - call.root) % self.size
        data, output = self._own(call, self.given(call, self.rank)), self._empty(call)
        later = self.communicator.nonblocking
        received = later.recv(output.handed(), source, call.number)
        target = (self.rank + call.root) % self.size
        sent = self._face(call).send(data.handed(), target, call.number)
        ring = self._ends(call, sent, [output, data], self.given(call, source))
        ring._works = [received, sent]
        return ring


def _as_type(values: Array, dtype: str) -> Array:
    """Cast; bfloat16, which numpy lacks, becomes its bits: whole numbers below 257 are exact."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    # To the nearest, ties to even.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _wide(values: Array, call: Call) -> Array:
    """Return floats in double precision, integers as they are."""
    return _values(values, call.dtype).astype(np.float64) if call.dtype in FLOATS else values


def _values(values: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return values.view(dtype)
    return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _compare(what: str, call: Call, got: Array, want: Array) -> None:
    expected = want.reshape(-1).view(np.uint8)
    if np.array_equal(got, expected):
        return
    epsilon = _AVERAGE_EPSILON.get(call.dtype, 2.0**-52)
    if call.op == "AVG" and call.dtype in FLOATS:
        # One rounding may fall to either side.
        near = _values(got, call.dtype).astype(np.float64)
        right = _values(expected, call.dtype).astype(np.float64)
        if (np.abs(near - right) <= epsilon * np.abs(right)).all():
            return
    wrong = np.flatnonzero(got != expected)
    at = int(wrong[0])
    raise WrongResult(
        f"{what}: {wrong.size} of {got.size} bytes are wrong, the first at {at}: "
        f"got {bytes(got[at : at + 16]).hex()}, expected {bytes(expected[at : at + 16]).hex()}"
    )
