"""Collectives that move rows or whole arrays between ranks, and their gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.collectives.collective import (
    NO_SIZES,
    Collective,
    Sizes,
    Started,
    cut_rows,
    returned,
    row_count,
)
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet
from hccl_py.horovod.reductions import Average, Reduction, Sum
from hccl_py.transport.errors import InvalidArgumentError


@dataclass(frozen=True)
class ChangedAverage(Collective):
    """The gradient of Gather and Broadcast: this rank's part of the average over ranks.

    Sizes in: the sizes out of the collective whose gradient this is.
    """

    averaging: Reduce
    change: Callable[[list[Any], Sizes], list[Any]]
    keeps_shapes: bool = True

    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
        """See `Collective`."""
        averaged = self.averaging.start(arrays, inputs)
        return averaged.then(lambda made: (self.change(made[0], np.asarray(sizes)), NO_SIZES))


@dataclass(frozen=True)
class Gather(Collective):
    """Join all ranks' arrays along the first dimension, and multiply them.

    Sizes in: none. Sizes out: the rows of each array of each rank, [rank, array].
    """

    process_set: ProcessSet
    factor: float = 1.0

    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
        """See `Collective`."""
        communicator = self.process_set.communicator
        given = [arrays.ready(each) for each in inputs]
        lengths = np.array([row_count(each) for each in given], np.int64)
        every = np.empty((communicator.world_size, len(given)), np.int64)
        outputs, works = [], []
        with internal_errors():
            communicator.all_gather(every, lengths)
            for source, of_ranks in zip(given, every.T, strict=True):
                output = arrays.empty((int(of_ranks.sum()), *source.shape[1:]), source)
                call = communicator.nonblocking.all_gather
                works.append(call(cut_rows(output, of_ranks), source))
                outputs.append(output)
        return Handle(works, lambda: (returned(arrays, outputs, inputs, self.factor), every))

    def gradient(self) -> Collective:
        """See `Collective`."""
        rank = self.process_set.communicator.rank

        def own_rows(made: list[Any], every: Sizes) -> list[Any]:
            begins = every[:rank].sum(0)
            bounds = np.stack([begins, begins + every[rank]], 1).tolist()
            return [each[begin:end] for each, (begin, end) in zip(made, bounds, strict=True)]

        averaging = Reduce(Reduction(Average, 1.0, self.factor), self.process_set)
        return ChangedAverage(averaging, own_rows, keeps_shapes=False)


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Reduce over ranks and keep this rank's rows; surplus rows go to the first ranks, one each.

    Arrays have equal shapes on all ranks.
    """

    reduction: Reduction
    process_set: ProcessSet

    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
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
                    part = target[: len(source)]  # the padding is reduced, but not used
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


@dataclass(frozen=True)
class Broadcast(Collective):
    """Copy the arrays of `root_rank`, a rank of the job, to all ranks."""

    root_rank: int
    process_set: ProcessSet
    keeps_shapes = True

    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
        """See `Collective`."""
        communicator, root = self.process_set.communicator, self.process_set.root(self.root_rank)
        outputs = [arrays.output(each) for each in inputs]
        taken = [arrays.ready(each) for each in outputs]
        works = []
        for source, output, target in zip(inputs, outputs, taken, strict=True):
            if communicator.rank == root and source is not output:
                arrays.assign(target, source)
            with internal_errors():
                works.append(communicator.nonblocking.broadcast(target, root))

        def finish() -> tuple[list[Any], Sizes]:
            for output, target in zip(outputs, taken, strict=True):
                if target is not output:
                    arrays.assign(output, target)
            return outputs, NO_SIZES

        return Handle(works, finish)

    def gradient(self) -> Collective:
        """See `Collective`."""
        is_root = self.process_set.root(self.root_rank) == self.process_set.communicator.rank

        def on_root(made: list[Any], sizes: Sizes) -> list[Any]:
            for each in () if is_root else made:
                each[...] = 0
            return made

        return ChangedAverage(Reduce(Reduction(Average), self.process_set), on_root)


@dataclass(frozen=True)
class AllToAll(Collective):
    """Send each rank its rows of an array; the result is the received rows, in order of ranks.

    Sizes in: the rows for each rank; None: equally many. Sizes out: the rows received from each.
    """

    process_set: ProcessSet

    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
        """See `Collective`."""
        communicator, (given,) = self.process_set.communicator, map(arrays.ready, inputs)
        sent = _splits(sizes, row_count(given), communicator.world_size)
        received = np.empty(communicator.world_size, np.int64)
        with internal_errors():
            communicator.all_to_all(received, sent)
            output = arrays.empty((int(received.sum()), *given.shape[1:]), given)
            call = communicator.nonblocking.all_to_all
            work = call(cut_rows(output, received), cut_rows(given, sent))
        return Handle([work], lambda: (returned(arrays, [output], inputs), received))

    def gradient(self) -> Collective:
        """See `Collective`."""
        return self


def _splits(splits: Any, length: int, n: int) -> Sizes:
    if splits is None:
        if length % n:
            raise InvalidArgumentError(
                f"splits: expected numbers of rows, as {n} ranks cannot share {length} equally"
            )
        return np.full(n, length // n, np.int64)
    # numpy cannot read a tensor of a device, but its list.
    sizes = np.asarray(getattr(splits, "tolist", lambda: splits)()).reshape(-1)
    whole = np.issubdtype(sizes.dtype, np.integer)
    if not whole or len(sizes) != n or (sizes < 0).any() or sizes.sum() > length:
        raise InvalidArgumentError(
            f"splits: expected {n} whole numbers of at most {length} rows together, "
            f"got {sizes.tolist()}"
        )
    return sizes.astype(np.int64)
