"""Runs Horovod's calls on TensorFlow's tensors, with gradients, each one call back to Python."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hccl_py.horovod.collectives.arrays import ARRAYS
from hccl_py.horovod.collectives.collective import NO_SIZES, Collective
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.collectives.rows import Broadcast, Gather, ReduceScatter
from hccl_py.horovod.compression import compressed, compression
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.horovod.reductions import Average, Reduction, Sum
from hccl_py.horovod.signatures import DescribedCall
from hccl_py.integrations.tensorflow import in_graph

Compression = compression(tf.cast, tf.float16, lambda tensor: bool(tensor.dtype.is_floating))


def run(described: DescribedCall, tensors: Sequence[Any]) -> tuple[list[Any], Any]:
    """Run a call; return the results and the sizes. Allreduce gathers IndexedSlices, one by one."""
    call, sizes, made = described.collective, NO_SIZES, iter(())
    gathered: dict[int, Any] = {}
    if isinstance(call, Reduce):
        slices = {i: it for i, it in enumerate(tensors) if isinstance(it, tf.IndexedSlices)}
        gathered = {i: _gathered(it, call) for i, it in slices.items()}
    dense = [tf.convert_to_tensor(it) for i, it in enumerate(tensors) if i not in gathered]
    if dense:
        to_send, restore = compressed(described.compression, dense)
        *results, sizes = _differentiable(call, to_send, described.splits)
        made = iter(restore(results))
    return [gathered[i] if i in gathered else next(made) for i in range(len(tensors))], sizes


def received(splits: Any, sizes: Any) -> Any:
    """Return the received splits as int32."""
    return tf.ensure_shape(tf.cast(sizes, tf.int32), [None])


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Assign the values of rank `root_rank` to the variables, with one call back to Python."""
    variables = list(variables)
    values, _ = run(DescribedCall(Broadcast(root_rank, process_set)), variables)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _gathered(slices: Any, call: Reduce) -> Any:
    """Return the slices of all ranks; where they are added up, that is the reduction."""
    op = call.reduction.op
    if op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if call.reduction != Reduction(op):
        raise NotImplementedError(
            "Pre/postscale_factor are not supported with tf.IndexedSlices; pass sparse_as_dense"
        )
    values, indices, _ = _differentiable(Gather(call.process_set), [slices.values, slices.indices])
    if op is Average:
        values /= call.process_set.communicator.world_size
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
