"""Reductions of which each rank keeps its rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hccl_py.horovod.collectives.arrays import Array, Arrays
from hccl_py.horovod.collectives.collective import (
    NO_SIZES,
    Collective,
    Started,
    cut_rows,
    returned,
    row_count,
)
from hccl_py.horovod.collectives.move import Gather
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet
from hccl_py.horovod.reductions import Reduction, Sum


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Reduce over ranks and keep this rank's rows; the first ranks keep one more of what is left.

    Ranks bring arrays of equal shapes.
    """

    reduction: Reduction
    process_set: ProcessSet

    def start(
        self, arrays: Arrays[Array], inputs: Sequence[Array], sizes: npt.ArrayLike | None = None
    ) -> Started[Array]:
        """See `Collective`."""
        communicator, prescale = self.process_set.communicator, self.reduction.prescale_factor
        n, rank = communicator.world_size, communicator.rank
        works, outputs = [], []
        for given in map(arrays.ready, inputs):
            least, more = divmod(row_count(given), n)
            own = np.array([least + (other < more) for other in range(n)])
            rows, blocks = least + (more > 0), given
            if more or prescale != 1.0:
                blocks = arrays.empty((n * rows, *given.shape[1:]), given)
                targets, sources = cut_rows(blocks, [rows] * n), cut_rows(given, own)
                for target, source in zip(targets, sources, strict=True):
                    part = target[: len(source)]  # the row that is left is reduced for nothing
                    arrays.assign(part, source)
                    if prescale != 1.0:
                        arrays.scale(part, prescale)
            output = arrays.empty((rows, *given.shape[1:]), given)
            with internal_errors():
                call = communicator.nonblocking.reduce_scatter
                works.append(call(output, blocks, self.reduction.native))
            outputs.append(output[: int(own[rank])])
        postscale = self.reduction.postscale_factor
        return Handle(works, lambda: (returned(arrays, outputs, inputs, postscale), NO_SIZES))

    def gradient(self) -> Collective:
        """See `Collective`. Horovod averages what it gathers in a backward pass."""
        factor = self.reduction.prescale_factor * self.reduction.postscale_factor
        if self.reduction.op is Sum:
            factor *= self.process_set.communicator.world_size
        return Gather(self.process_set, factor)
