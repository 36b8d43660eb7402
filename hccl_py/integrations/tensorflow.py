"""Collectives in TensorFlow programs: one callback to Python for all tensors of a step.

    gradients = all_reduce(communicator, gradients, ReduceOp.AVG)   # in tf.function, or outside

Torch is not imported. `hccl_py.horovod.tensorflow` uses `in_graph` too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hccl_py.communicator import Communicator
from hccl_py.memory.arguments import check_op
from hccl_py.memory.element_types import learn
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp

Tree = Any
"""A tree of `tf.nest`: nested dicts, lists and the like, whose leaves are tensors."""
Array = np.ndarray[Any, Any]


def all_reduce(communicator: Communicator, tree: Tree, op: ReduceOp = ReduceOp.SUM) -> Tree:
    """Reduce each tensor of `tree` over all ranks; return the results in a tree of the same shape.

    Tensors of one element type are sent together; a leaf that is None stays None, and IndexedSlices
    become dense. The call works in a tf.function, where TensorFlow keeps its order, but not with
    jit_compile=True. The gradient through a SUM or AVG is that of the loss summed over all ranks.

    Args:
        tree: same structure, shapes and element types on all ranks.
        op: any ReduceOp that is defined for the element types.

    Raises:
        InvalidArgumentError: `op` is not defined for a tensor. Nothing was sent.
        HcclError: the collective failed. In a tf.function it is a tf.errors.UnknownError whose text
            contains this error, which the next call of `communicator` raises itself.
    """
    op = ReduceOp(op)
    leaves = tf.nest.flatten(tree)
    tensors = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
    for tensor in tensors:
        check_op(op, learn(np.dtype(tensor.dtype.as_numpy_dtype), "tree"))
    results = iter(_differentiable(communicator, op)(*tensors) if tensors else ())
    reduced = [None if leaf is None else next(results) for leaf in leaves]
    return tf.nest.pack_sequence_as(tree, reduced)


def broadcast_variables(
    communicator: Communicator, variables: Sequence[Any], root: int = 0
) -> None:
    """Assign rank `root`'s values to all ranks' variables, with one call per type."""
    if root not in range(communicator.world_size):
        raise InvalidArgumentError(
            f"root: expected a rank of 0..{communicator.world_size - 1}, got {root!r}"
        )
    values = [tf.convert_to_tensor(variable) for variable in variables]
    send = partial(communicator.broadcast, root=root)
    results = in_graph(partial(_fused, send), values, values) if values else []
    for variable, value in zip(variables, results, strict=True):
        variable.assign(value)


def in_graph(
    function: Callable[..., Any], tensors: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """Call a function of numpy arrays; return its results as tensors.

    In a tf.function each run calls it exactly once, in program order.

    Args:
        function: takes an array for each of `tensors`, and must not change them.
        results: the TensorSpec of each returned array, or a tensor like it.
    """
    made = tf.numpy_function(function, tensors, [each.dtype for each in results])
    made = tf.nest.flatten(made)  # outside graphs a single tensor has no list
    for tensor, expected in zip(made, results, strict=True):
        tensor.set_shape(expected.shape)
    return list(made)


def _differentiable(communicator: Communicator, op: ReduceOp) -> Callable[..., list[Any]]:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        call = partial(_fused, partial(communicator.all_reduce, op=op))
        return in_graph(call, tensors, tensors), backward

    def backward(*gradients: Any) -> list[Any]:
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise InvalidArgumentError(
                f"gradient: expected ReduceOp.SUM or AVG, got {op.name}; call it outside of the "
                "function that is differentiated"
            )
        return list(all_reduce(communicator, gradients, op))

    return reduce  # type: ignore[no-any-return]


def _fused(call: Callable[[Array], object], *arrays: Array) -> list[Array]:
    """Join arrays of one element type, run the collective on the copy; return its parts."""
    results = list(arrays)
    for kind in dict.fromkeys(array.dtype for array in arrays):
        chosen = [index for index, array in enumerate(arrays) if array.dtype == kind]
        block = np.concatenate([arrays[index].reshape(-1) for index in chosen])
        call(block)
        ends = np.cumsum([arrays[index].size for index in chosen])[:-1]
        for index, part in zip(chosen, np.split(block, ends), strict=True):
            results[index] = part.reshape(arrays[index].shape)
    return results
