"""Collectives in compiled programs of JAX; each rank asserts what it gets.

jax_job.py values | overlap | leave | differ
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hccl_py import Communicator, InvalidArgumentError, MismatchError, PeerLostError, ReduceOp
from hccl_py.integrations.jax import all_reduce, broadcast

communicator = Communicator()
me, n = communicator.rank, communicator.world_size


def summed(tree: object) -> object:
    return all_reduce(communicator, tree)


def values() -> None:
    tree = {
        "f32": jnp.full((2, 3), me + 1.0),
        "list": [jnp.full(5, me + 1, jnp.bfloat16), jnp.arange(3), jnp.zeros((0, 2))],
        "scalar": jnp.float32(me),
        "bool": jnp.array([me == 0, False]),
    }
    expected = {
        "f32": np.full((2, 3), 3.0),
        "list": [np.full(5, 3.0), 2 * np.arange(3), np.zeros((0, 2))],
        "scalar": np.float32(1),
        "bool": np.array([True, False]),
    }
    for call in (summed, jax.jit(summed)):
        result = call(tree)
        jax.tree.map(np.testing.assert_array_equal, result, expected)
        assert jax.tree.map(lambda it: it.dtype, result) == jax.tree.map(lambda it: it.dtype, tree)
    sent = jax.jit(lambda it: broadcast(communicator, it, 1))(tree)
    assert sent["scalar"] == 1 and sent["f32"][0, 0] == 2
    donated = jax.jit(lambda it: summed(it) + 1, donate_argnums=0)
    assert (donated(jnp.full(1 << 20, 1.0)) == n + 1).all()


def derivatives() -> None:
    def loss(it: jax.Array) -> jax.Array:
        return (all_reduce(communicator, it, ReduceOp.AVG) * (me + 1)).sum()

    def loop(it: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda state, _: (summed(state), None), it, length=3)[0].sum()

    for slope, expected in ((jax.grad(loss), 1.5), (jax.grad(loop), 8.0)):
        assert (slope(jnp.ones(3)) == expected).all()
        assert (jax.jit(slope)(jnp.ones(3)) == expected).all()
    with pytest.raises(InvalidArgumentError, match="SUM or AVG, got MAX"):
        jax.grad(lambda it: all_reduce(communicator, it, ReduceOp.MAX).sum())(jnp.ones(3))
    with pytest.raises(InvalidArgumentError, match="type bool, got avg"):
        all_reduce(communicator, jnp.array([True]), ReduceOp.AVG)
    with pytest.raises(NotImplementedError, match="Batching rule for 'hccl_collective'"):
        jax.vmap(summed)(jnp.ones((2, 2)))


def overlap() -> None:
    """Dispatch much and wait for nothing: two collectives of a step depend on nothing."""

    @jax.jit
    def step(weights: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = all_reduce(communicator, weights * 1.0, ReduceOp.AVG)
        second = all_reduce(communicator, jnp.sin(state) @ jnp.cos(state), ReduceOp.AVG)
        return first, jnp.tanh(second)

    weights, state = jnp.ones(300_001), jnp.ones((300, 300))
    for _ in range(20):
        weights, state = step(weights, state)
        jnp.tanh(state @ state)
    if me == 0:
        assert (weights == 1).all()
    # Rank 1 ends without waiting: the process does.


def leave() -> None:
    if me == 1:
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match="PeerLostError: .* rank 1"):
        jax.block_until_ready(jax.jit(summed)(jnp.ones(3)))
    with pytest.raises(PeerLostError, match="rank 1"):
        communicator.barrier()


def differ() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="MismatchError: .* different calls"):
        jax.block_until_ready(jax.jit(summed)(jnp.ones(3 + me)))
    with pytest.raises(MismatchError):
        communicator.barrier()
    smaller = communicator.shrink()
    assert (jax.jit(lambda it: all_reduce(smaller, it))(jnp.ones(3)) == n).all()


if sys.argv[1] == "values":
    values()
    derivatives()
else:
    {"overlap": overlap, "leave": leave, "differ": differ}[sys.argv[1]]()
assert "torch" not in sys.modules
print(f"rank {me} is done")
