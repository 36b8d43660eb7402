"""Collectives in a tf.function and outside; each rank asserts what it gets."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from hccl_py import Communicator, InvalidArgumentError, MismatchError, ReduceOp
from hccl_py.integrations.tensorflow import all_reduce, broadcast_variables

communicator = Communicator()
me, n = communicator.rank, communicator.world_size


def summed(tree: object) -> object:
    return all_reduce(communicator, tree)


def values() -> None:
    tree = {
        "f32": tf.fill((2, 3), me + 1.0),
        "list": [tf.cast(tf.fill(5, me + 1), tf.bfloat16), tf.range(3), None],
        "scalar": tf.constant(float(me)),
    }
    for call in (summed, tf.function(summed)):
        result = call(tree)
        assert (result["f32"].numpy() == 3).all() and result["f32"].shape == (2, 3)
        whole, numbers, nothing = result["list"]
        assert whole.dtype is tf.bfloat16 and (whole.numpy() == 3).all()
        assert numbers.numpy().tolist() == [0, 2, 4] and nothing is None
        assert result["scalar"].numpy() == 1
    variables = [tf.Variable([float(me)]), tf.Variable([[me]])]
    broadcast_variables(communicator, variables, 1)
    assert [variable.numpy().item() for variable in variables] == [1, 1]


def derivatives() -> None:
    def slope(values: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(values)
            reduced = all_reduce(communicator, values, ReduceOp.AVG)
            loss = tf.reduce_sum(reduced * (me + 1))
        return tape.gradient(loss, values)

    for call in (slope, tf.function(slope)):
        np.testing.assert_array_equal(call(tf.ones(3)), [1.5] * 3)
    with pytest.raises(InvalidArgumentError, match="type bool, got avg"):
        all_reduce(communicator, tf.constant([True]), ReduceOp.AVG)


def failure() -> None:
    with pytest.raises(tf.errors.UnknownError, match="MismatchError: .* different calls"):
        tf.function(summed)(tf.ones(3 + me))
    with pytest.raises(MismatchError):
        communicator.barrier()
    smaller = communicator.shrink()
    assert (tf.function(lambda it: all_reduce(smaller, it))(tf.ones(3)).numpy() == n).all()


values()
derivatives()
failure()
assert "torch" not in sys.modules
print(f"rank {me} is done")
