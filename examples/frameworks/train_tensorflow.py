"""Data-parallel training with TensorFlow and Keras, without torch: one collective a step.

hccl-launch --nproc 2 examples/frameworks/train_tensorflow.py
"""

import keras
import numpy as np
import tensorflow as tf

from hccl_py import Communicator, ReduceOp
from hccl_py.integrations.tensorflow import all_reduce, broadcast_variables

with Communicator() as communicator:
    rank, world_size = communicator.rank, communicator.world_size
    keras.utils.set_random_seed(rank)  # rank 0's weights count
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    broadcast_variables(communicator, model.trainable_variables)

    @tf.function
    def step(values, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(values) - wanted) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, loss = all_reduce(communicator, (gradients, loss), ReduceOp.AVG)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    values = np.random.default_rng(100).normal(size=(64, 8)).astype(np.float32)
    wanted = values.sum(axis=1, keepdims=True)
    for _ in range(20):
        loss = step(values[rank::world_size], wanted[rank::world_size])
    total = sum(np.abs(variable).sum() for variable in model.trainable_variables)
    print(f"rank {rank} of {world_size}: loss {float(loss):.5f} sum {total:.5f}")
