"""Horovod's allgather, broadcast and alltoall of TensorFlow's tensors, with gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hccl_py.horovod import array_calls
from hccl_py.horovod.process_sets import ProcessSet, global_process_set
from hccl_py.integrations.tensorflow import in_graph


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return all ranks' tensors, joined along the first dimension, which may differ."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(given: Any) -> tuple[Any, Callable[[Any], Any]]:
        def call(array: Any) -> Any:
            return array_calls.allgather(array, name, process_set)

        def own_average(gradient: Any, length: Any) -> Any:
            every = array_calls.allgather(np.array([length]), name, process_set)
            begin = int(every[: process_set.communicator.rank].sum())
            average = array_calls.allreduce(gradient, process_set=process_set)
            return average[begin : begin + int(length)]

        def backward(gradient: Any) -> Any:
            return in_graph(own_average, [gradient, tf.shape(given)[0]], [given])[0]

        return in_graph(call, [given], [_rows_like(given)])[0], backward

    return gather(tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather each tensor of a list as `allgather` does."""
    return [allgather(tensor, name, ignore_name_scope, process_set) for tensor in tensors]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of rank `root_rank`; all ranks bring one of its shape and type."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def send(given: Any) -> tuple[Any, Callable[[Any], Any]]:
        def call(array: Any) -> Any:
            return array_calls.broadcast(array, root_rank, name, process_set)

        def average_on_root(gradient: Any) -> Any:
            average = array_calls.allreduce(gradient, process_set=process_set)
            is_root = process_set.communicator.rank == process_set.root(root_rank)
            return average if is_root else np.zeros_like(average)

        def backward(gradient: Any) -> Any:
            return in_graph(average_on_root, [gradient], [given])[0]

        return in_graph(call, [given], [given])[0], backward

    return send(tf.convert_to_tensor(tensor))


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Assign the values of rank `root_rank` to the variables, with one call back to Python."""

    def call(*arrays: Any) -> list[Any]:
        sent = [array_calls.broadcast_async(it, root_rank, None, process_set) for it in arrays]
        return [handle.wait() for handle in sent]

    variables = list(variables)
    values = [tf.convert_to_tensor(variable) for variable in variables]
    received = in_graph(call, values, values) if values else []
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

    def call(array: Any, sizes: Any = None) -> tuple[Any, Any]:
        handle = array_calls.alltoall_async(array, sizes, name, process_set)
        output, received = handle.wait()
        return output, received.astype(np.int32)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchange(given: Any) -> tuple[Any, Callable[..., Any]]:
        sizes = [] if splits is None else [tf.convert_to_tensor(splits)]
        counts = tf.TensorSpec([None], tf.int32)
        output, received = in_graph(call, [given, *sizes], [_rows_like(given), counts])

        def backward(gradient: Any, _: Any = None) -> Any:
            back, _ = alltoall(gradient, received, process_set=process_set)
            return back

        return (output, received), backward

    output, received = exchange(tf.convert_to_tensor(tensor))
    return output if splits is None else (output, received)


def _rows_like(tensor: Any) -> Any:
    """Return the spec of any number of rows like those of a tensor."""
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
