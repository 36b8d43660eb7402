"""Collectives in compiled programs of JAX; each rank asserts what it gets.

jax_job.py values | collectives | slopes | overlap | order | leave | differ | kill | close |
    interrupt | speed
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccl_py.integrations.jax as hccl_jax
from hccl_py import (
    AbortedError,
    Communicator,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ReduceOp,
)
from hccl_py.integrations.jax import all_reduce, broadcast

jax.config.update("jax_enable_x64", True)
communicator = Communicator()
me, n = communicator.rank, communicator.world_size
SHAPES = (), (0,), (1,), (3, 5), (70_001,), (1 << 20,)
TYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


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


def of_rank(rank: int, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Values so small that sums and products of them are exact in every type."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return (1 + (numbers * 7 + rank * 3) % 3).astype(dtype)


def collectives() -> None:
    """Compare each collective with numpy."""
    for dtype in map(jnp.dtype, TYPES):
        check_collectives(of_type(dtype, (7,)))
    for shape in SHAPES:
        check_collectives(of_type(np.float32, shape))
    check_ops()
    check_arguments()


def of_type(dtype: object, shape: tuple[int, ...]) -> Callable[..., np.ndarray]:
    return lambda rank, *rows: of_rank(rank, (*rows, *shape), dtype)


def check_collectives(make: Callable[..., np.ndarray]) -> None:
    each, rows = [make(rank) for rank in range(n)], [make(rank, n) for rank in range(n)]
    total, of_rows = np.sum(each, 0), np.sum(rows, 0)  # wider than the elements, and exact
    for root in range(n):
        is_root, rooted = me == root, {"root": root}
        check(hccl_jax.broadcast, each[me], each[root], **rooted)
        check(hccl_jax.reduce, each[me], total if is_root else each[me], **rooted)
        check(hccl_jax.gather, each[me], np.stack(each) if is_root else each[me], **rooted)
        check(hccl_jax.scatter, rows[me] if is_root else each[me], rows[root][me], **rooted)
    check(hccl_jax.all_reduce, each[me], total)
    check(hccl_jax.all_gather, each[me], np.stack(each))
    check(hccl_jax.reduce_scatter, rows[me], of_rows[me])
    check(hccl_jax.all_to_all, rows[me], np.stack([row[me] for row in rows]))


def check(
    call: Callable[..., object], given: np.ndarray, expected: np.ndarray, **options: object
) -> None:
    """Compare a call with what is expected: of an argument, and of what the program computes."""
    ours = partial(call, communicator, **options)
    flipped = jax.jit(lambda it: ours(jnp.flip(it)))
    for result in (jax.jit(ours)(given), flipped(np.flip(given)), ours(jnp.asarray(given))):
        assert result.dtype == given.dtype, (call, result.dtype)
        assert result.shape == expected.shape, (call, result.shape, expected.shape)
        np.testing.assert_array_equal(np.asarray(result), expected.astype(given.dtype), str(call))


def check_ops() -> None:
    each = [of_rank(rank, (n, 11), np.int32) for rank in range(n)]
    for op, of_numpy in {"SUM": np.sum, "PRODUCT": np.prod, "MIN": np.min, "MAX": np.max}.items():
        expected = of_numpy(each, axis=0)
        for call, its in ((all_reduce, expected), (hccl_jax.reduce_scatter, expected[me])):
            check(call, each[me], its, op=ReduceOp[op])
    halves = [one.astype(np.float64) for one in each]
    check(all_reduce, halves[me], np.mean(halves, axis=0), op=ReduceOp.AVG)
    check(hccl_jax.reduce_scatter, halves[me], np.mean(halves, axis=0)[me], op=ReduceOp.AVG)
    flags = np.arange(5) % n == me
    check(hccl_jax.all_gather, flags, np.stack([np.arange(5) % n == rank for rank in range(n)]))


def check_arguments() -> None:
    ones = jnp.ones((n + 1, 2))
    for call in (hccl_jax.reduce_scatter, hccl_jax.all_to_all):
        with pytest.raises(InvalidArgumentError, match=rf"a row for each of {n} ranks.*\({n + 1}"):
            jax.jit(partial(call, communicator))(ones)
    for root in (-1, n, None):
        with pytest.raises(InvalidArgumentError, match=rf"root: expected a rank of 0..{n - 1}"):
            hccl_jax.gather(communicator, ones, root)
    with pytest.raises(InvalidArgumentError, match="whole bytes, got int4"):
        broadcast(communicator, jnp.ones(3, jnp.int4))
    with pytest.raises(InvalidArgumentError, match="key_data"):
        broadcast(communicator, jax.random.key(0))
    assert hccl_jax.all_gather(communicator, {}) == {}


def slopes() -> None:
    """Compare gradients with those of the whole world's function, which numpy computes.

    Rank r weights its result by w_r, and the loss is the sum over ranks: so the gradient by x_q is
    what the transposed collective makes of the weights.
    """
    each = [of_rank(rank, (4,), np.float64) for rank in range(n)]
    rows = [of_rank(rank, (n, 4), np.float64) for rank in range(n)]
    one, block, of_all = jnp.ones(4), jnp.ones((n, 4)), sum(each)
    check_slope(all_reduce, one, each[me], of_all)
    check_slope(partial(all_reduce, op=ReduceOp.AVG), one, each[me], of_all / n)
    check_slope(hccl_jax.all_gather, one, rows[me], sum(rows)[me])
    check_slope(hccl_jax.reduce_scatter, block, each[me], np.stack(each))
    averaged = partial(hccl_jax.reduce_scatter, op=ReduceOp.AVG)
    check_slope(averaged, block, each[me], np.stack(each) / n)
    check_slope(hccl_jax.all_to_all, block, rows[me], np.stack([row[me] for row in rows]))
    for root in range(n):
        is_root, none = me == root, np.zeros(4)
        at = {"root": root}
        check_slope(partial(broadcast, **at), one, each[me], of_all if is_root else none)
        own = none if is_root else each[me]  # other ranks get what they gave
        check_slope(partial(hccl_jax.reduce, **at), one, each[me], each[root] + own)
        mean = partial(hccl_jax.reduce, op=ReduceOp.AVG, **at)
        check_slope(mean, one, each[me], each[root] / n + own)
        weight = rows[me] if is_root else each[me]
        check_slope(partial(hccl_jax.gather, **at), one, weight, rows[root][me] + own)
        expected = np.stack(each) if is_root else none
        given = block if is_root else one
        check_slope(partial(hccl_jax.scatter, **at), given, each[me], expected)
    tree = {"slope": one, "count": jnp.arange(3)}
    loss = lambda it: all_reduce(communicator, {**tree, "slope": it})["slope"].sum()  # noqa: E731
    assert (jax.jit(jax.grad(loss))(one) == n).all()
    second = jax.grad(lambda it: jax.grad(lambda x: (summed(x) ** 3).sum())(it).sum())
    np.testing.assert_allclose(jax.jit(second)(one), 6.0 * n**3)


def check_slope(
    call: Callable[..., object], at: jax.Array, weight: np.ndarray, expected: np.ndarray
) -> None:
    slope = jax.grad(lambda it: (call(communicator, it) * weight).sum())
    for run in (slope, jax.jit(slope)):
        np.testing.assert_allclose(run(at), expected, err_msg=str(call))


def order() -> None:
    """Run many collectives, none of which needs another, in one program and in programs in flight.

    Kinds and sizes differ, so calls in another order on one rank would be a MismatchError.
    """

    @jax.jit
    def step(small: jax.Array, large: jax.Array) -> list[jax.Array]:
        sums = [all_reduce(communicator, small[: 1 + i] + i) for i in range(12)]
        rows = hccl_jax.all_gather(communicator, jnp.sin(large))
        hccl_jax.barrier(communicator)
        back = hccl_jax.reduce_scatter(communicator, jnp.cos(rows))
        return [*sums, rows, back, hccl_jax.reduce(communicator, large, 0)]

    small, large = jnp.ones(12), jnp.full(200_000, 1.0 * me)
    made = [step(small, large) for _ in range(10)]
    each = [np.full(200_000, 1.0 * rank) for rank in range(n)]
    rows = np.sin(np.stack(each))
    for *sums, gathered, back, reduced in made:
        for i, total in enumerate(sums):
            np.testing.assert_array_equal(total, np.full(1 + i, n * (1.0 + i)))
        np.testing.assert_allclose(gathered, rows)
        np.testing.assert_allclose(back, n * np.cos(rows[me]))
        np.testing.assert_allclose(reduced, sum(each) if me == 0 else each[me])


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


def kill() -> None:
    """A rank dies while the others wait for it inside a program."""
    jax.block_until_ready(jax.jit(summed)(jnp.ones(3)))
    if me == n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"PeerLostError: .* rank {n - 1}"):
        jax.block_until_ready(jax.jit(summed)(jnp.ones(1 << 20)))
    assert time.monotonic() - began_s < 10
    smaller = communicator.shrink()
    assert (jax.jit(partial(all_reduce, smaller))(jnp.ones(3)) == n - 1).all()


def close() -> None:
    """A program's deadline is that of when it was compiled, and it may outlive its communicator."""
    part = communicator.split(0)
    usual_s, communicator.timeout_s = communicator.timeout_s, 0.3
    hurried = jax.jit(lambda it: summed(it * 2)).lower(jnp.ones(3)).compile()
    communicator.barrier(timeout_s=usual_s)
    if me == 0:
        with pytest.raises(jax.errors.JaxRuntimeError, match="CollectiveTimeoutError: .*0.3 s"):
            jax.block_until_ready(hurried(jnp.ones(3)))
    compiled = jax.jit(partial(all_reduce, part))
    assert (compiled(jnp.ones(3)) == n).all()
    part.close()
    with pytest.raises(jax.errors.JaxRuntimeError, match="AbortedError: .* closed"):
        jax.block_until_ready(compiled(jnp.ones(3)))
    with pytest.raises(AbortedError, match="closed"):
        jax.jit(lambda it: all_reduce(part, it * 3))(jnp.ones(3))


def interrupt() -> None:
    """Ctrl-C ends a program whose collective waits on the caller's thread."""
    part = communicator.split(0)
    program = jax.jit(summed)
    assert (program(jnp.ones(3)) == n).all()
    if me == 0:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            jax.block_until_ready(program(jnp.ones(3)))
    part.barrier()


def speed() -> None:
    """Compare 64 MB in a program with the same call of the communicator."""
    num_rounds, count = 15, 1 << 24
    array, result = np.ones(count, np.float32), np.empty(count, np.float32)
    argument = jnp.ones(count, jnp.float32)
    program = jax.jit(summed)
    donated = jax.jit(summed, donate_argnums=0)
    state = jax.block_until_ready(program(argument))

    def in_place() -> None:
        nonlocal state
        state = jax.block_until_ready(donated(state))

    ways = {
        "new": lambda: communicator.all_reduce(array, output=np.empty_like(array)),
        "jit": lambda: jax.block_until_ready(program(argument)),
        "in place": lambda: communicator.all_reduce(result),
        "donated": in_place,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, way in ways.items():
            communicator.barrier()
            began_s = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began_s)
    if me == 0:
        print(*(f"{name}: {1e3 * np.median(its):.1f}" for name, its in times.items()), sep=", ")


if sys.argv[1] == "values":
    values()
    derivatives()
else:
    globals()[sys.argv[1]]()
assert "torch" not in sys.modules
print(f"rank {me} is done")
