"""Horovod's collectives on the arrays of any library, each in the background.

Each takes the library's `Arrays` first and returns a Handle. Calls run in the order in which they
are made, which is the same on all ranks: names, by which Horovod finds calls that belong together,
play no part. Where ranks may bring different sizes, these are exchanged before the call returns.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hccl_py.horovod.arrays import Array, Arrays
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.process_sets import ProcessSet
from hccl_py.horovod.reductions import Reduction
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.work import Work

FUSED_BYTES = 16 << 10
"""Smaller arrays of one grouped call travel together: to copy them costs less than calls of their
own. 150 arrays of 4 KB take a third of the time together, of 64 KB they take three times as long.
"""

Sizes = npt.NDArray[np.int64]


def start_reduce(
    arrays: Arrays[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    reduction: Reduction,
    process_set: ProcessSet,
) -> Handle[list[Array]]:
    """Reduce each input over all ranks into the output of its place, which may be the same."""
    communicator = process_set.communicator
    given = [arrays.ready(each) for each in inputs]
    pairs = zip(inputs, outputs, given, strict=True)
    taken = [ready if one is other else arrays.ready(other) for one, other, ready in pairs]
    if reduction.prescale_factor != 1.0:
        for source, target in zip(given, taken, strict=True):
            if source is not target:
                arrays.assign(target, source)
            arrays.scale(target, reduction.prescale_factor)
        given = taken
    works: list[Work] = []
    unpackers: list[Callable[[], None]] = []
    with internal_errors():
        for places in _batches(given):
            if len(places) == 1:
                source, target = given[places[0]], taken[places[0]]
                output = None if source is target else target
                call = communicator.nonblocking.all_reduce
                works.append(call(source, reduction.native, output=output))
            else:
                flat = arrays.pack([given[place] for place in places])
                works.append(communicator.nonblocking.all_reduce(flat, reduction.native))
                targets = [taken[place] for place in places]
                unpackers.append(lambda flat=flat, to=targets: arrays.unpack(flat, to))  # type: ignore[misc]

    def finish() -> list[Array]:
        for unpack in unpackers:
            unpack()
        for target, output in zip(taken, outputs, strict=True):
            if reduction.postscale_factor != 1.0:
                arrays.scale(target, reduction.postscale_factor)
            if target is not output:
                arrays.assign(output, target)
        return list(outputs)

    return Handle(works, finish)


def start_gather(
    arrays: Arrays[Array], inputs: Sequence[Array], process_set: ProcessSet
) -> Handle[list[Array]]:
    """Join all ranks' arrays along the first dimension, which may differ between ranks."""
    communicator = process_set.communicator
    given = [arrays.ready(each) for each in inputs]
    lengths = np.array([_length(each) for each in given], np.int64)
    every = np.empty((communicator.world_size, len(given)), np.int64)
    outputs, works = [], []
    with internal_errors():
        communicator.all_gather(every, lengths)
        for source, of_ranks in zip(given, every.T, strict=True):
            output = arrays.empty((int(of_ranks.sum()), *source.shape[1:]), source)
            works.append(communicator.nonblocking.all_gather(_cut(output, of_ranks), source))
            outputs.append(output)
    return Handle(works, lambda: outputs)


def start_broadcast(
    arrays: Arrays[Array], input: Array, output: Array, root_rank: int, process_set: ProcessSet
) -> Handle[Array]:
    """Copy the input of `root_rank`, a rank of the job, to the output of all; it may be it."""
    communicator, root = process_set.communicator, process_set.root(root_rank)
    target = arrays.ready(output)
    if communicator.rank == root and input is not output:
        arrays.assign(target, input)
    with internal_errors():
        work = communicator.nonblocking.broadcast(target, root)

    def finish() -> Array:
        if target is not output:
            arrays.assign(output, target)
        return output

    return Handle([work], finish)


def start_exchange(
    arrays: Arrays[Array], input: Array, splits: npt.ArrayLike | None, process_set: ProcessSet
) -> Handle[tuple[Array, Sizes]]:
    """Send rows to each rank, as many as `splits` says, or equally many.

    The result is what came, in the order of ranks, and how many rows came from each.
    """
    communicator = process_set.communicator
    n, given = communicator.world_size, arrays.ready(input)
    sizes = _splits(splits, _length(given), n)
    received = np.empty(n, np.int64)
    with internal_errors():
        communicator.all_to_all(received, sizes)
        output = arrays.empty((int(received.sum()), *given.shape[1:]), given)
        call = communicator.nonblocking.all_to_all
        work = call(_cut(output, received), _cut(given, sizes))
    return Handle([work], lambda: (output, received))


def start_reduce_scatter(
    arrays: Arrays[Array], inputs: Sequence[Array], reduction: Reduction, process_set: ProcessSet
) -> Handle[list[Array]]:
    """Reduce over ranks and keep this rank's rows; the first ranks keep one more of what is left.

    Ranks bring arrays of equal shapes.
    """
    communicator = process_set.communicator
    n, rank = communicator.world_size, communicator.rank
    works, outputs = [], []
    for each in inputs:
        given = arrays.ready(each)
        least, more = divmod(_length(given), n)
        sizes = np.array([least + (other < more) for other in range(n)])
        rows, blocks = least + (more > 0), given
        if more or reduction.prescale_factor != 1.0:
            blocks = arrays.empty((n * rows, *given.shape[1:]), given)
            for target, source in zip(_cut(blocks, [rows] * n), _cut(given, sizes), strict=True):
                part = target[: len(source)]  # the row that is left is reduced and thrown away
                arrays.assign(part, source)
                if reduction.prescale_factor != 1.0:
                    arrays.scale(part, reduction.prescale_factor)
        output = arrays.empty((rows, *given.shape[1:]), given)
        with internal_errors():
            call = communicator.nonblocking.reduce_scatter
            works.append(call(output, blocks, reduction.native))
        outputs.append(output[: int(sizes[rank])])

    def finish() -> list[Array]:
        if reduction.postscale_factor != 1.0:
            for output in outputs:
                arrays.scale(output, reduction.postscale_factor)
        return outputs

    return Handle(works, finish)


def _batches(given: Sequence[Array]) -> list[list[int]]:
    """Return the places of the arrays of each call: small ones of one type share a call."""
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


def _length(array: Array) -> int:
    if not array.shape:
        raise InvalidArgumentError("tensor: expected at least one dimension, got a scalar")
    return int(array.shape[0])


def _splits(splits: npt.ArrayLike | None, length: int, n: int) -> Sizes:
    if splits is None:
        if length % n:
            raise InvalidArgumentError(
                f"splits: expected numbers of rows, as {n} ranks cannot share {length} equally"
            )
        return np.full(n, length // n, np.int64)
    sizes = np.asarray(splits).reshape(-1)
    whole = np.issubdtype(sizes.dtype, np.integer)
    if not whole or len(sizes) != n or (sizes < 0).any() or sizes.sum() > length:
        raise InvalidArgumentError(
            f"splits: expected {n} whole numbers of at most {length} rows together, "
            f"got {sizes.tolist()}"
        )
    return sizes.astype(np.int64)


def _cut(array: Array, lengths: Sequence[int] | Sizes) -> list[Array]:
    """Return views of so many rows each, one after the other."""
    ends = np.cumsum(lengths).tolist()
    return [array[end - int(rows) : end] for end, rows in zip(ends, lengths, strict=True)]
