"""Collectives inside `jax.jit`: one call for each element type of a tree of arrays.

    gradients = all_reduce(communicator, gradients, ReduceOp.AVG)   # in jit or outside

The compiled program calls Python at the place of the collective, as `io_callback(ordered=True)`
does: JAX drops and reorders no such call, so ranks with one program call in one order. Torch is not
imported. Written for JAX on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from hccl_py.communicator import Communicator
from hccl_py.memory.arguments import check_op
from hccl_py.memory.element_types import learn
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.types import ReduceOp

Tree = Any
"""A tree of `jax.tree`: nested dicts, lists and the like, whose leaves are arrays."""


@dataclass(frozen=True)
class _Collective:
    """The callback of a compiled program. Equal ones share a compiled program."""

    communicator: Communicator
    op: ReduceOp | None  # None: a broadcast
    root: int = 0

    def __call__(self, *blocks: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        return [self._run(block) for block in blocks]

    def _run(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # JAX made this array for the callback, and marks it read-only. It copies the result.
        result = block if block.flags.owndata else block.copy()
        result.flags.writeable = True
        if self.op is None:
            self.communicator.broadcast(result, self.root)
        else:
            self.communicator.all_reduce(result, self.op)
        return result


def all_reduce(communicator: Communicator, tree: Tree, op: ReduceOp = ReduceOp.SUM) -> Tree:
    """Reduce each array of `tree` over all ranks; return the results in a tree of the same shape.

    Arrays of one element type are sent together. The call works under jit, scan and grad, but not
    under vmap. The gradient through a SUM or AVG is that of the loss summed over all ranks: the
    cotangents are reduced by the same `op`.

    Args:
        communicator: must live as long as JAX's compiled program.
        tree: same structure, shapes and element types on all ranks. Any array may be donated.
        op: any ReduceOp that is defined for the element types.

    Raises:
        InvalidArgumentError: `op` is not defined for an array. Nothing was sent.
        jax.errors.JaxRuntimeError: the collective failed. The text ends with hccl's error, which
            the next call of `communicator` raises itself.
    """
    op = ReduceOp(op)
    for leaf in jax.tree.leaves(tree):
        check_op(op, learn(jnp.result_type(leaf), "tree"))
    return _fused(_Collective(communicator, op), tree)


def broadcast(communicator: Communicator, tree: Tree, root: int = 0) -> Tree:
    """Return rank `root`'s `tree` on all ranks. Restrictions and errors as for `all_reduce`."""
    if root not in range(communicator.world_size):
        raise InvalidArgumentError(
            f"root: expected a rank of 0..{communicator.world_size - 1}, got {root!r}"
        )
    return _fused(_Collective(communicator, None, root), tree)


def _fused(collective: _Collective, tree: Tree) -> Tree:
    """Join leaves of one element type to a block, pass all blocks, and split the results."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    by_type: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        by_type.setdefault(leaf.dtype, []).append(index)
    if not leaves:
        return tree
    blocks = [jnp.concatenate([leaves[i].ravel() for i in some]) for some in by_type.values()]
    for some, result in zip(by_type.values(), _call(collective, blocks), strict=True):
        ends = np.cumsum([leaves[i].size for i in some])[:-1]
        for i, part in zip(some, jnp.split(result, ends), strict=True):
            leaves[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, leaves)


# io_callback would copy its arguments to JAX's memory inside the callback, on JAX's thread pool. If
# the pool has one thread (a rank bound to one core), the callback occupies it and deadlocks. So
# this primitive has the effect of io_callback, and passes numpy arrays to the callback.
_primitive = Primitive("hccl_collective")
_primitive.multiple_results = True
(_ORDERED,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects


def _abstract(*blocks: Any, collective: _Collective) -> Any:
    return list(blocks), {_ORDERED}


def _lower(ctx: Any, *blocks: Any, collective: Callable[..., Any]) -> Any:
    token = ctx.tokens_in.get(_ORDERED)
    results, token, _ = mlir.emit_python_callback(
        ctx, collective, token, list(blocks), ctx.avals_in, ctx.avals_out, has_side_effect=True
    )
    ctx.set_tokens_out(mlir.TokenSet({_ORDERED: token}))
    return results


_primitive.def_effectful_abstract_eval(_abstract)
_primitive.def_impl(jax.jit(_primitive.bind, static_argnames="collective"))
mlir.register_lowering(_primitive, _lower, cacheable=False)


def _bind(collective: _Collective, blocks: list[Any]) -> Any:
    return _primitive.bind(*blocks, collective=collective)


def _forward(collective: _Collective, blocks: list[Any]) -> tuple[Any, None]:
    if collective.op not in (ReduceOp.SUM, ReduceOp.AVG):
        got = "a broadcast" if collective.op is None else f"{collective.op.name} over ranks"
        raise InvalidArgumentError(
            f"grad: expected ReduceOp.SUM or AVG, got {got}; call it outside of the function that "
            "is differentiated"
        )
    return _bind(collective, blocks), None


def _backward(collective: _Collective, _: None, cotangents: list[Any]) -> tuple[Any]:
    return (_call(collective, cotangents),)


_call = jax.custom_vjp(_bind, nondiff_argnums=(0,))
_call.defvjp(_forward, _backward)

# Dispatched calls need their communicator until they are done.
register(LifecycleStage.PROCESS_GROUPS, at_exit=jax.effects_barrier)
