"""Reductions of arrays over all ranks. Small arrays of a grouped call share one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hccl_py.calls.work import Work
from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.collectives.collective import NO_SIZES, Collective, Sizes, Started
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet
from hccl_py.horovod.reductions import Reduction
from hccl_py.memory.arguments import check_apart, naming
from hccl_py.memory.buffers import span_of

FUSED_BYTES = 16 << 10
"""Smaller arrays share one call, because copying them costs less than more calls. That takes a
third of the time for 150 arrays of 4 KB, but three times as long for 64 KB.
"""


@dataclass(frozen=True)
class Reduce(Collective):
    """Reduce each array over all ranks. Gradients are reduced in the same way."""

    reduction: Reduction
    process_set: ProcessSet
    keeps_shapes = True

    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
        """See `Collective`."""
        native, postscale = self.reduction.native, self.reduction.postscale_factor
        nonblocking = self.process_set.communicator.nonblocking
        outputs = [arrays.output(each) for each in inputs]
        given, taken = self._prescaled(arrays, inputs, outputs)
        works: list[Work] = []
        unpackers: list[Callable[[], None]] = []
        with internal_errors():
            for places in _batches(given):
                if len(places) == 1:
                    source, target = given[places[0]], taken[places[0]]
                    output = None if source is target else target
                    works.append(nonblocking.all_reduce(source, native, output=output))
                else:
                    flat = arrays.pack([given[place] for place in places])
                    works.append(nonblocking.all_reduce(flat, native))
                    targets = [taken[place] for place in places]
                    unpackers.append(lambda flat=flat, to=targets: arrays.unpack(flat, to))  # type: ignore[misc]

        def finish() -> tuple[list[Any], Sizes]:
            for unpack in unpackers:
                unpack()
            for target, output in zip(taken, outputs, strict=True):
                if postscale != 1.0:
                    arrays.scale(target, postscale)
                if target is not output:
                    arrays.assign(output, target)
            return outputs, NO_SIZES

        return Handle(works, finish)

    def _prescaled(
        self, arrays: Arrays, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return the arrays that the communicator reads and writes, in host memory."""
        given = [arrays.ready(each) for each in inputs]
        pairs = zip(inputs, outputs, given, strict=True)
        taken = [ready if one is other else arrays.ready(other) for one, other, ready in pairs]
        if len(taken) > 1 and taken[0] is given[0]:  # overlapping arrays might be reduced twice
            written = [span_of(each, f"tensors[{place}]") for place, each in enumerate(taken)]
            check_apart(written, (), 0, (naming("tensors", taken), naming("tensors", taken)))
        if self.reduction.prescale_factor == 1.0:
            return given, taken
        for source, target in zip(given, taken, strict=True):
            if source is not target:
                arrays.assign(target, source)
            arrays.scale(target, self.reduction.prescale_factor)
        return taken, taken

    def gradient(self) -> Collective:
        """See `Collective`."""
        return self


def _batches(given: Sequence[Any]) -> list[list[int]]:
    """Return the indices of each call's arrays: small ones of one type share a call."""
    batches: list[list[int]] = []
    shared: dict[object, list[int]] = {}
    for place, each in enumerate(given):
        if len(given) == 1 or each.nbytes >= FUSED_BYTES:
            batches.append([place])
        elif each.dtype in shared:
            shared[each.dtype].append(place)
        else:
            shared[each.dtype] = [place]
            batches.append(shared[each.dtype])
    return batches
