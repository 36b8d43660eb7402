"""Data-parallel training with JAX, without torch: every step is one compiled program.

hccl-launch --nproc 2 examples/frameworks/train_jax.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from hccl_py import Communicator, ReduceOp
from hccl_py.integrations.jax import all_reduce, broadcast


def loss(weights, values, wanted):
    hidden = jnp.tanh(values @ weights["first"] + weights["bias"])
    return jnp.mean((hidden @ weights["second"] - wanted) ** 2)


with Communicator() as communicator:

    @jax.jit
    def step(weights, values, wanted):
        gradients = jax.grad(loss)(weights, values, wanted)
        gradients = all_reduce(communicator, gradients, ReduceOp.AVG)
        return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, gradients)

    rank, world_size = communicator.rank, communicator.world_size
    random = np.random.default_rng(rank)  # rank 0's weights count
    weights = {"first": random.normal(size=(8, 16)), "bias": np.zeros(16)}
    weights["second"] = random.normal(size=(16, 1))
    weights = broadcast(communicator, weights)

    values = np.random.default_rng(100).normal(size=(64, 8)).astype(np.float32)
    wanted = values.sum(axis=1, keepdims=True)
    for _ in range(20):
        weights = step(weights, values[rank::world_size], wanted[rank::world_size])
    total = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(weights))
    print(f"rank {rank} of {world_size}: loss {loss(weights, values, wanted):.5f} sum {total:.5f}")
