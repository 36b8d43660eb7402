"""A collective of the oracle as a call of a rank: where its blocks lie, and its arguments.

call = PlacedCall(Collective("all_gather", "float32", 17, n), comm.rank, "in place")
call.run(comm)
call.check()        # right numbers; nothing else was written, before, behind or in the input
"""

from typing import Any

import numpy as np
import torch
from guarded import Guarded
from oracle import REDUCING, ROOTED, Array, Collective

import hccl_py
from hccl_py import Communicator

SHAPES = ("apart", "in place", "lists", "lists in place", "registered")
"""Output and input apart, or sharing what they may share; a buffer for each block; memory of
`hccl_py.empty`, apart."""
UNARY = ("all_reduce", "reduce", "broadcast")
"""Methods that are in place unless they are given an `output`."""
TAKE_UNEVEN = ("all_gather", "all_to_all", "gather", "scatter")
Placed = tuple[list[Any], Any]
"""Views of blocks, and the argument that has them: one of them, a list of them, or a buffer."""


class PlacedCall:
    """One rank's buffers of a collective, and its arguments."""

    def __init__(self, what: Collective, me: int, shape: str, of_torch: bool = False) -> None:
        self.what, self._me, self._shape = what, me, shape
        self._of_torch = of_torch and hasattr(torch, what.dtype)
        self._guards: list[Guarded] = []
        self._given = what.given(me)
        # What a root gets takes room elsewhere too, where nobody looks at it.
        room = what.expected(me) or ([] if what.kind == "gather" else self._given)
        self._in = self._place(self._given, what.has_many_inputs)
        self._out = self._place([np.zeros_like(one) for one in room], what.has_many_outputs)
        self._has_output = what.kind in UNARY and "in place" not in shape
        if "in place" in shape:
            self._share()

    def _place(self, blocks: list[Array], is_many: bool) -> Placed:
        if not blocks:
            return [], None
        make = hccl_py.empty if self._shape == "registered" else np.empty
        parts = blocks if "lists" in self._shape else [np.concatenate(blocks)]
        guards = [Guarded(one, self.what.dtype, make) for one in parts]
        self._guards += guards
        buffers = [one.buffer for one in guards]
        if self._of_torch:
            buffers = [one if hasattr(one, "dim") else torch.from_numpy(one) for one in buffers]
        if "lists" in self._shape:
            return buffers, buffers if is_many else buffers[0]
        count = len(blocks[0])
        return [buffers[0][i * count :][:count] for i in range(len(blocks))], buffers[0]

    def _share(self) -> None:
        """Let input and output share what the page says that they may."""
        what, (ins, outs) = self.what, (self._in[0], self._out[0])
        if what.kind in ("all_reduce", "reduce", "broadcast", "all_to_all"):
            self._out = self._in
        elif what.has_many_outputs and outs:
            self._in = [outs[self._me]], outs[self._me]
        elif what.has_many_inputs and ins:
            self._out = [ins[self._me]], ins[self._me]

    @property
    def outputs(self) -> bytes:
        """What stands in the output."""
        return b"".join(values_of(view).tobytes() for view in self._out[0])

    def fill(self) -> None:
        """Write what this rank brings."""
        for view, values in zip(self._in[0], self._given, strict=True):
            view[...] = torch.tensor(values) if hasattr(view, "dim") else values

    def start(self, face: Any) -> list[Any]:
        """Make the call; return what has to be waited for."""
        what, given, output = self.what, self._in[1], self._out[1]
        root = (what.root,) if what.kind in ROOTED else ()
        op = (what.op,) if what.kind in REDUCING else ()
        if what.kind == "exchange":
            with hccl_py.group():
                n, me = what.world_size, self._me
                works = [face.send(given, (me + 1) % n), face.recv(output, (me - 1) % n)]
        elif what.kind in UNARY:
            more = {"output": output} if self._has_output else {}
            works = [getattr(face, what.kind)(given, *root, *op, **more)]
        else:
            works = [getattr(face, what.kind)(output, given, *root, *op)]
        return [one for one in works if one is not None]

    def run(self, comm: Communicator) -> None:
        """Write what this rank brings, and make the call."""
        self.fill()
        for work in self.start(comm):
            work.wait()

    def check(self, turn: object = "") -> None:
        """Compare with the oracle; what was only read is as it was, and so is all around."""
        for one in self._guards:
            assert one.bytes is not None
        how = f"{self._shape}, {'torch' if self._of_torch else 'numpy'}, {turn}"
        if expected := self.what.expected(self._me):
            got = self._out[0][: len(expected)]
            self.what.check(self._me, [values_of(one) for one in got], how)
        is_read_only = "in place" not in self._shape or (
            self.what.kind == "reduce" and not expected
        )
        if is_read_only:
            for view, values in zip(self._in[0], self._given, strict=True):
                assert values_of(view).tobytes() == values.tobytes(), f"{self.what} {how}"


def values_of(view: Any) -> Array:
    if not isinstance(view, torch.Tensor):
        return np.asarray(view)
    return np.asarray((view.float() if view.dtype is torch.bfloat16 else view).numpy())
