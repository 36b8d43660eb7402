"""Horovod's calls on TensorFlow's tensors, eager and compiled; each rank asserts what it gets."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hccl_py.horovod.tensorflow as hvd
import hccl_py.horovod.tensorflow.keras as keras_hvd

hvd.init()
me, n = hvd.rank(), hvd.size()
mine = tf.fill((2,), me + 1.0)


def check(call: Callable[[Any], Any], given: Any, *expected: Any) -> None:
    for way in (call, tf.function(call)):
        results = tf.nest.flatten(way(given))
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, value)


def derivative(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def slope(given: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            result = tf.nest.flatten(call(given))[0]
            weights = tf.range(1, tf.cast(tf.size(result) + 1, tf.float32))
            loss = tf.reduce_sum(result * weights * (me + 1))
        return tape.gradient(loss, given)

    return slope


def doubled_sum(given: Any) -> Any:
    return hvd.allreduce(given, op=hvd.Sum, prescale_factor=2.0)


def group(given: Any) -> Any:
    return hvd.grouped_allreduce([given, tf.cast(given, tf.float64)], op=hvd.Max)


def small(given: Any) -> Any:
    return hvd.allreduce(given, compression=hvd.Compression.fp16)


def from_1(given: Any) -> Any:
    return hvd.broadcast(given, 1)


def split(given: Any) -> Any:
    return hvd.alltoall(given, [1, 1])


def scatter(given: Any) -> Any:
    return hvd.reducescatter(given, op=hvd.Sum)


def scatter_two(given: Any) -> Any:
    return hvd.grouped_reducescatter([given, given[:2]], op=hvd.Sum)


check(hvd.allreduce, mine, [1.5, 1.5])
check(doubled_sum, mine, [6, 6])
check(group, mine, [2, 2], [2, 2])
check(small, mine, [1.5, 1.5])
check(hvd.allgather, tf.fill((me + 1, 2), me), [[0, 0], [1, 1], [1, 1]])
check(from_1, mine, [2, 2])
check(hvd.alltoall, tf.range(4) + 10 * me, [2 * me, 2 * me + 1, 10 + 2 * me, 11 + 2 * me])
check(split, mine, [1, 2], [1, 1])
check(scatter, tf.range(3) + me, [[1, 3], [5]][me])
check(scatter_two, tf.range(3) + me, [[1, 3], [5]][me], [[1], [3]][me])

check(derivative(hvd.allreduce), mine, [1.5, 3])
check(derivative(doubled_sum), mine, [6, 12])
check(derivative(hvd.allgather), mine, [[1.5, 3], [4.5, 6]][me])
check(derivative(from_1), mine, [[0, 0], [1.5, 3]][me])
check(derivative(split), mine, [[1, 2], [2, 4]][me])
check(derivative(scatter), mine, [2, 4])

table = tf.Variable(tf.ones((4, 1)))
with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    loss = tf.reduce_sum(tf.gather(table, [me, me + 1])) * (me + 1)
slices, nothing = tape.gradient(loss, [table, tf.Variable(1.0)])
assert slices.indices.numpy().tolist() == [0, 1, 1, 2] and nothing is None
assert slices.values.numpy().ravel().tolist() == [0.5, 0.5, 1, 1]

table.assign_add(tf.fill((4, 1), float(me)))
hvd.broadcast_variables([table], 1)
assert (table.numpy() == 2).all()
only_me = hvd.add_process_set([0]), hvd.add_process_set([1])
assert hvd.allreduce(mine, op=hvd.Sum, process_set=only_me[me]).numpy().tolist() == [me + 1.0] * 2
assert hvd.broadcast_object({"rank": me}, 1) == {"rank": 1}
assert keras_hvd.allreduce(float(me), name="metric") == 0.5
with pytest.raises(hvd.HorovodInternalError, match="different calls"):
    hvd.allreduce(tf.ones(3 + me))
with pytest.raises(tf.errors.UnknownError, match="HorovodInternalError: .* different calls"):
    tf.function(hvd.allreduce)(mine)
assert "torch" not in sys.modules
print(f"rank {me} is done")
