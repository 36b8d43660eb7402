"""Horovod's reductions of TensorFlow's tensors, with gradients; `move_calls.py` only moves.

The signatures are Horovod's. Devices and names are accepted for its sake: tensors are reduced in
host memory, and calls belong together by their order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hccl_py.horovod import array_calls
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Op, Reduction, Sum, reduction
from hccl_py.horovod.tensorflow.compression import Compression, Compressor
from hccl_py.horovod.tensorflow.move_calls import allgather
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
    scales = prescale_factor, postscale_factor
    chosen = reduction(op, None, *scales)
    smaller, context = compression.compress(tf.convert_to_tensor(tensor))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def scatter(given: Any) -> tuple[Any, Callable[[Any], Any]]:
        def call(array: Any) -> Any:
            return array_calls.reducescatter(array, name, op, process_set, *scales)

        def backward(gradient: Any) -> Any:
            _check_derivative(chosen.op)
            factor = prescale_factor * postscale_factor
            if op == Sum:
                factor *= process_set.communicator.world_size
            return allgather(gradient * factor, process_set=process_set)

        spec = tf.TensorSpec([None, *given.shape[1:]], given.dtype)
        return in_graph(call, [given], [spec])[0], backward

    return compression.decompress(scatter(smaller), context)


def reduce_all(
    tensors: Sequence[Any],
    chosen: Reduction,
    compression: type[Compressor],
    process_set: ProcessSet,
) -> list[Any]:
    """Reduce tensors with one call back to Python, and IndexedSlices with two each."""
    results = list(tensors)
    slices = [i for i, it in enumerate(tensors) if isinstance(it, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in slices]
    smaller = [compression.compress(tf.convert_to_tensor(tensors[i])) for i in dense]
    if dense:
        reduced = _differentiable(chosen, process_set)(*(tensor for tensor, _ in smaller))
        for i, tensor, (_, context) in zip(dense, reduced, smaller, strict=True):
            results[i] = compression.decompress(tensor, context)
    for i in slices:
        results[i] = _gathered(tensors[i], chosen, process_set)
    return results


def _differentiable(chosen: Reduction, process_set: ProcessSet) -> Callable[..., list[Any]]:
    scales = chosen.prescale_factor, chosen.postscale_factor

    def call(*arrays: Any) -> list[Any]:
        return array_calls.grouped_allreduce(
            arrays, None, None, chosen.op, *scales, process_set=process_set
        )

    def backward(*gradients: Any) -> list[Any]:
        _check_derivative(chosen.op)
        return reduce_all(gradients, chosen, Compression.none, process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        return in_graph(call, tensors, tensors), backward

    return reduce  # type: ignore[no-any-return]


def _gathered(slices: Any, chosen: Reduction, process_set: ProcessSet) -> Any:
    """Return the slices of all ranks; where they are added up, that is the reduction."""
    if chosen.op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if chosen != Reduction(chosen.op):
        raise NotImplementedError(
            "Pre/postscale_factor are not supported with tf.IndexedSlices; pass sparse_as_dense"
        )
    values = allgather(slices.values, process_set=process_set)
    if chosen.op is Average:
        values /= process_set.communicator.world_size
    indices = allgather(slices.indices, process_set=process_set)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def _check_derivative(op: Op) -> None:
    if op not in (Sum, Average):
        raise NotImplementedError(f"op={op.name}: only Sum and Average have a gradient")
