"""Horovod's calls on TensorFlow's tensors, with gradients, each one call back to Python.

The signatures are Horovod's. Devices and names are accepted for its sake: tensors are reduced in
host memory, and calls belong together by their order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hccl_py.horovod.collectives.arrays import ARRAYS
from hccl_py.horovod.collectives.collective import Collective
from hccl_py.horovod.collectives.move import Broadcast, Exchange, Gather
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.collectives.reduce_scatter import ReduceScatter
from hccl_py.horovod.compression import Compressor, compressed
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Reduction, Sum, reduction
from hccl_py.horovod.tensorflow.compression import Compression
from hccl_py.integrations.tensorflow import in_graph


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the average over all ranks, or what `op` says; IndexedSlices are gathered."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    return reduce_all([tensor], chosen, compression, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce all tensors as `allreduce` does, with one call back to Python."""
    chosen = reduction(op, average, prescale_factor, postscale_factor)
    return reduce_all(tensors, chosen, compression, process_set)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return all ranks' tensors, joined along the first dimension, which may differ."""
    return _differentiable(Gather(process_set), [tensor])[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather each tensor of a list as `allgather` does."""
    return _differentiable(Gather(process_set), tensors)[:-1] if tensors else []


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of rank `root_rank`; all ranks bring one of its shape and type."""
    return _differentiable(Broadcast(root_rank, process_set), [tensor])[0]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Assign the values of rank `root_rank` to the variables, with one call back to Python."""
    variables = list(variables)
    if variables:
        *received, _ = _differentiable(Broadcast(root_rank, process_set), variables)
        for variable, value in zip(variables, received, strict=True):
            variable.assign(value)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows, and return the rows that came from all ranks.

    With `splits`, how many rows each rank gets, also return how many came from each.
    """
    output, received = _differentiable(Exchange(process_set), [tensor], splits)
    if splits is None:
        return output
    return output, tf.ensure_shape(tf.cast(received, tf.int32), [None])


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce over all ranks, and return this rank's share of the first dimension."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    return _scattered([tensor], chosen, compression, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce and scatter each tensor of a list as `reducescatter` does."""
    chosen = reduction(op, None, prescale_factor, postscale_factor)
    return _scattered(tensors, chosen, compression, process_set) if tensors else []


def _scattered(
    tensors: Sequence[Any],
    chosen: Reduction,
    compression: type[Compressor],
    process_set: ProcessSet,
) -> list[Any]:
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    travelling, restore = compressed(compression, given)
    return list(restore(_differentiable(ReduceScatter(chosen, process_set), travelling)[:-1]))


def reduce_all(
    tensors: Sequence[Any],
    chosen: Reduction,
    compression: type[Compressor],
    process_set: ProcessSet,
) -> list[Any]:
    """Reduce tensors with one call back to Python, and IndexedSlices with one each."""
    results = list(tensors)
    slices = [i for i, it in enumerate(tensors) if isinstance(it, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in slices]
    if dense:
        given = [tf.convert_to_tensor(tensors[i]) for i in dense]
        travelling, restore = compressed(compression, given)
        reduced = restore(_differentiable(Reduce(chosen, process_set), travelling)[:-1])
        for i, tensor in zip(dense, reduced, strict=True):
            results[i] = tensor
    for i in slices:
        results[i] = _gathered(tensors[i], chosen, process_set)
    return results


def _gathered(slices: Any, chosen: Reduction, process_set: ProcessSet) -> Any:
    """Return the slices of all ranks; where they are added up, that is the reduction."""
    if chosen.op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if chosen != Reduction(chosen.op):
        raise NotImplementedError(
            "Pre/postscale_factor are not supported with tf.IndexedSlices; pass sparse_as_dense"
        )
    values, indices = grouped_allgather([slices.values, slices.indices], process_set=process_set)
    if chosen.op is Average:
        values /= process_set.communicator.world_size
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def _differentiable(call: Collective, tensors: Sequence[Any], sizes: Any = None) -> list[Any]:
    """Return the results of a collective, then its sizes."""
    given_sizes = [] if sizes is None else [tf.convert_to_tensor(sizes)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*given: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        def on_arrays(*arrays: Any) -> list[Any]:
            made, sizes = call.start(ARRAYS, arrays[: len(given)], *arrays[len(given) :]).wait()
            return [*made, sizes]

        def backward(*gradients: Any) -> list[Any]:
            if isinstance(call, Reduce | ReduceScatter) and call.reduction.op not in (Sum, Average):
                op = call.reduction.op.name
                raise NotImplementedError(f"op={op}: only Sum and Average have a gradient")
            *made, _ = _differentiable(call.gradient(), gradients[: len(given)], received)
            for gradient, tensor in zip(made, given, strict=True):
                gradient.set_shape(tensor.shape)
            return made

        shapes = [each.shape if call.keeps_shapes else [None, *each.shape[1:]] for each in given]
        specs = [
            tf.TensorSpec(shape, each.dtype) for shape, each in zip(shapes, given, strict=True)
        ]
        specs.append(tf.TensorSpec(None, tf.int64))
        *results, received = in_graph(on_arrays, [*given, *given_sizes], specs)
        return [*results, received], backward

    return list(run(*map(tf.convert_to_tensor, tensors)))
