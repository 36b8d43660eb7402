"""Collectives inside `jax.jit`, on the engine without Python's lock.

    gradients = all_reduce(communicator, gradients, ReduceOp.AVG)   # in jit or outside

All functions take a tree of arrays, and return a tree of the same structure. Compiled programs call
the engine as a foreign function (`csrc/bindings/calls/xla_calls.cc`), with plans made when the
program was compiled. The calls have the effect of `io_callback(ordered=True)`: JAX drops and
reorders none, so ranks with one program call in one order. Torch is not imported. Written for JAX
on the CPU.

Gradients are those of the loss summed over all ranks. They are collectives too, so all ranks must
differentiate by the same trees, and use the results in their losses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.communicator import Communicator
from hccl_py.fingerprint import REDUCING
from hccl_py.memory.arguments import check_op
from hccl_py.memory.element_types import learn
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.types import ReduceOp

Tree = Any
"""A tree of `jax.tree`: nested dicts, lists and the like, whose leaves are arrays."""

_TARGET = "hccl_collective"
_JOINED_BYTES = 1 << 17
"""Arrays up to this size are sent together; the copies are cheaper than calls of their own."""
_NONE, _ONE, _BLOCKS = range(3)
"""Arrays of a rank on one side of a collective: none, or one, or one that has a block per rank."""
_AT_ROOT = {
    "broadcast": (_ONE, _NONE),  # the root has the result already
    "reduce": (_ONE, _ONE),
    "gather": (_ONE, _BLOCKS),
    "scatter": (_BLOCKS, _ONE),
}
_ELSEWHERE = {
    "broadcast": (_NONE, _ONE),
    "reduce": (_ONE, _NONE),
    "gather": (_ONE, _NONE),
    "scatter": (_NONE, _ONE),
    "all_reduce": (_ONE, _ONE),
    "all_gather": (_ONE, _BLOCKS),
    "reduce_scatter": (_BLOCKS, _ONE),
    "all_to_all": (_BLOCKS, _BLOCKS),
    "barrier": (_NONE, _NONE),
}
_Given = tuple[tuple[tuple[int, ...], Any], ...]
"""Shapes and dtypes."""


@dataclass(frozen=True)
class _Collective:
    """A collective of a program. Equal ones share a compiled program."""

    communicator: Communicator
    name: str
    op: ReduceOp | None = None
    root: int | None = None

    def as_(self, name: str, op: ReduceOp | None = None) -> _Collective:
        return dataclasses.replace(self, name=name, op=op)

    @property
    def is_root(self) -> bool:
        return self.communicator.rank == self.root

    @property
    def sides(self) -> tuple[int, int]:
        """What this rank reads, and what it receives."""
        rows = _AT_ROOT if self.is_root else _ELSEWHERE
        return rows[self.name]

    def block_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        return given[1:] if self.sides[0] == _BLOCKS else given

    def result_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        block = self.block_shape(given)
        return (self.communicator.world_size, *block) if self.sides[1] == _BLOCKS else block

    def calls(self, given: _Given) -> _core.XlaCalls:
        """Return the planned calls, which live as long as the communicator."""
        engine = self.communicator._state.require_engine()
        kept = _CALLS.setdefault(self.communicator, {})
        key = self.name, self.op, self.root, given, self.communicator.timeout_s
        if key not in kept:
            kept[key] = self._plan(engine, given)
        return kept[key]

    def _plan(self, engine: _core.Communicator, given: _Given) -> _core.XlaCalls:
        state, n = self.communicator._state, self.communicator.world_size
        plans: list[_core.Prepared] = []
        made = _core.XlaCalls(engine, state.timeout_s, _explaining(state, plans))
        blocks = {_NONE: 0, _ONE: 1, _BLOCKS: n}
        of_all = n if self.name in ("all_gather", "reduce_scatter", "all_to_all") else 1
        for shape, dtype in given:
            kind, count = learn(dtype, "tree"), math.prod(self.block_shape(shape))
            total = 0 if self.name in ("gather", "scatter") else count * of_all
            op = ReduceOp.SUM if self.op is None else self.op
            plans.append(
                state.plans.find(self.name, kind, op, total, self.root, True, state.compression)
            )
            num_bytes = count * kind.item_bytes
            read, written = (blocks[side] for side in self.sides)
            made.add(plans[-1], read, num_bytes, written, num_bytes)
        return made


# JAX may have freed a program that still runs.
_CALLS: WeakKeyDictionary[Communicator, dict[Any, _core.XlaCalls]] = WeakKeyDictionary()


def _explaining(
    state: CommunicatorState, plans: list[_core.Prepared]
) -> Callable[[_core.CommunicatorFailed, int], str]:
    def explain(failed: _core.CommunicatorFailed, index: int) -> str:
        error = state.errors.of_call(failed, state.timeout_s, plans[index].fingerprint)
        return f"{type(error).__name__}: {error}"

    return explain


def all_reduce(communicator: Communicator, tree: Tree, op: ReduceOp = ReduceOp.SUM) -> Tree:
    """Reduce each array of `tree` over all ranks.

    Small arrays of one element type are sent together. The call works under jit, scan and grad, but
    not under vmap. There is a gradient through a SUM or AVG.

    Args:
        communicator: must live as long as JAX's compiled program. Its `timeout_s` is read when the
            program is compiled.
        tree: same structure, shapes and element types on all ranks. Any array may be donated.
        op: any ReduceOp that is defined for the element types.

    Raises:
        InvalidArgumentError: an argument is wrong. Nothing was sent.
        jax.errors.JaxRuntimeError: the collective failed. The text ends with hccl's error, which
            the next call of `communicator` raises itself.
    """
    return _joined(_Collective(communicator, "all_reduce", ReduceOp(op)), tree)


def broadcast(communicator: Communicator, tree: Tree, root: int = 0) -> Tree:
    """Return rank `root`'s `tree` on all ranks. Restrictions and errors as for `all_reduce`."""
    return _joined(_rooted(communicator, "broadcast", root), tree)


def reduce(
    communicator: Communicator, tree: Tree, root: int = 0, op: ReduceOp = ReduceOp.SUM
) -> Tree:
    """Reduce each array over all ranks for the root; other ranks get their own `tree`."""
    return _joined(_rooted(communicator, "reduce", root, ReduceOp(op)), tree)


def all_gather(communicator: Communicator, tree: Tree) -> Tree:
    """Stack each array of all ranks: the result has a new first axis, of length world_size."""
    return _separate(_Collective(communicator, "all_gather"), tree)


def reduce_scatter(communicator: Communicator, tree: Tree, op: ReduceOp = ReduceOp.SUM) -> Tree:
    """Reduce row i of each array, whose first axis has the length world_size, for rank i."""
    return _separate(_Collective(communicator, "reduce_scatter", ReduceOp(op)), tree)


def all_to_all(communicator: Communicator, tree: Tree) -> Tree:
    """Send row i of each array to rank i, and receive row i of the result from it."""
    return _separate(_Collective(communicator, "all_to_all"), tree)


def gather(communicator: Communicator, tree: Tree, root: int = 0) -> Tree:
    """Stack each array of all ranks for the root; other ranks get their own `tree`."""
    return _separate(_rooted(communicator, "gather", root), tree)


def scatter(communicator: Communicator, tree: Tree, root: int = 0) -> Tree:
    """Send row i of the root's arrays to rank i.

    Other ranks pass a tree of arrays like the result, whose values are not used.
    """
    return _separate(_rooted(communicator, "scatter", root), tree)


def barrier(communicator: Communicator) -> None:
    """Keep the next collective of the program from its start until every rank was here."""
    _bind(_Collective(communicator, "barrier"), [jnp.uint8(0)])


def _rooted(
    communicator: Communicator, name: str, root: int, op: ReduceOp | None = None
) -> _Collective:
    if root not in range(communicator.world_size):
        raise InvalidArgumentError(
            f"root: expected a rank of 0..{communicator.world_size - 1}, got {root!r}"
        )
    return _Collective(communicator, name, op, int(root))


def _checked(collective: _Collective, tree: Tree) -> tuple[list[jax.Array], Any]:
    leaves, structure = jax.tree.flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    n = collective.communicator.world_size
    for array in arrays:
        is_packed = array.dtype.name.startswith(("int2", "int4", "uint2", "uint4", "float4"))
        if is_packed or jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise InvalidArgumentError(
                f"tree: expected arrays whose elements have whole bytes, got {array.dtype}; send "
                "array.astype of another type, or jax.random.key_data of a key"
            )
        kind = learn(array.dtype, "tree")
        if collective.name in REDUCING:
            check_op(collective.op, kind)
        if collective.sides[0] == _BLOCKS and array.shape[:1] != (n,):
            raise InvalidArgumentError(
                f"tree: expected arrays with a row for each of {n} ranks, as in {collective.name}, "
                f"got the shape {array.shape}; reshape it to ({n}, ...)"
            )
    return arrays, structure


def _separate(collective: _Collective, tree: Tree) -> Tree:
    arrays, structure = _checked(collective, tree)
    return jax.tree.unflatten(structure, _call(collective, arrays) if arrays else arrays)


def _joined(collective: _Collective, tree: Tree) -> Tree:
    """Join small arrays of one element type to a block, pass all blocks, and split the results."""
    arrays, structure = _checked(collective, tree)
    places: dict[Any, list[int]] = {}
    for index, array in enumerate(arrays):
        is_small = array.size * array.dtype.itemsize <= _JOINED_BYTES
        places.setdefault(array.dtype if is_small else index, []).append(index)
    if not arrays:
        return tree
    blocks = [
        arrays[some[0]] if len(some) == 1 else jnp.concatenate([arrays[i].ravel() for i in some])
        for some in places.values()
    ]
    for some, result in zip(places.values(), _call(collective, blocks), strict=True):
        ends = np.cumsum([arrays[i].size for i in some])[:-1]
        parts = [result] if len(some) == 1 else jnp.split(result, ends)
        for i, part in zip(some, parts, strict=True):
            arrays[i] = part.reshape(arrays[i].shape)
    return jax.tree.unflatten(structure, arrays)


_primitive = Primitive(_TARGET)
_primitive.multiple_results = True
(_ORDERED,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects
(_TOKEN,) = jax.make_jaxpr(jax.lax.create_token)().out_avals


def _abstract(*_: Any, collective: _Collective, given: _Given) -> Any:
    made = [jax.ShapeDtypeStruct(collective.result_shape(shape), dtype) for shape, dtype in given]
    made = made if collective.sides[1] != _NONE else []
    return [jax.core.ShapedArray(one.shape, one.dtype) for one in made], {_ORDERED}


def _lower(ctx: Any, *operands: Any, collective: _Collective, given: _Given) -> Any:
    number = np.uint64(collective.calls(given).number)
    with_token = dataclasses.replace(
        ctx, avals_in=[_TOKEN, *ctx.avals_in], avals_out=[_TOKEN, *ctx.avals_out]
    )
    in_place = _in_place(operands) if collective.name == "all_reduce" else {}
    rule = jax.ffi.build_ffi_lowering_function(
        _TARGET, has_side_effect=True, operand_output_aliases=in_place
    )
    made = rule(with_token, ctx.tokens_in.get(_ORDERED), *operands, number=number)
    token, *results = made.results
    ctx.set_tokens_out(mlir.TokenSet({_ORDERED: token}))
    return results


def _in_place(operands: tuple[Any, ...]) -> dict[int, int]:
    """Return which results may replace their operands; XLA would copy other arguments first."""
    return {i: i for i, operand in enumerate(operands, 1) if _is_free(operand)}


def _is_free(operand: Any) -> bool:
    block = operand.owner
    if not isinstance(block, mlir.ir.Block) or "arg_attrs" not in block.owner.attributes:
        return not isinstance(block, mlir.ir.Block)
    given = block.owner.attributes["arg_attrs"][mlir.ir.BlockArgument(operand).arg_number]
    return any(name in given for name in ("tf.aliasing_output", "jax.buffer_donor"))


mlir.register_lowering(_primitive, _lower, platform="cpu", cacheable=False)
jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(), platform="cpu")
_primitive.def_effectful_abstract_eval(_abstract)
_primitive.def_impl(jax.jit(_primitive.bind, static_argnames=("collective", "given")))


def _bind(collective: _Collective, arrays: list[Any]) -> list[Any]:
    """Make the calls of `arrays`; a rank that gets no result gets `arrays`."""
    reads, writes = collective.sides
    given = tuple((array.shape, array.dtype) for array in arrays)
    read = arrays if reads != _NONE else []
    made = _primitive.bind(*read, collective=collective, given=given)
    return list(made) if writes != _NONE else arrays


def _forward(collective: _Collective, arrays: list[Any]) -> tuple[Any, None]:
    if collective.op not in (ReduceOp.SUM, ReduceOp.AVG, None):
        raise InvalidArgumentError(
            f"grad: expected ReduceOp.SUM or AVG, got {collective.op.name} over ranks; call it "
            "outside of the function that is differentiated"
        )
    return _call(collective, arrays), None  # which can be differentiated again


def _backward(collective: _Collective, _: None, cotangents: list[Any]) -> tuple[Any]:
    floats = [slope for slope in cotangents if slope.dtype != jax.dtypes.float0]
    slopes = iter(_transposed(collective, floats))
    is_float = (slope.dtype != jax.dtypes.float0 for slope in cotangents)
    return ([next(slopes) if it else None for it in is_float],)


def _transposed(collective: _Collective, slopes: list[Any]) -> list[Any]:
    if not slopes:
        return []
    name, is_root = collective.name, collective.is_root
    if name in ("all_reduce", "all_to_all"):
        return _call(collective, slopes)
    if name == "broadcast":
        sums = _call(collective.as_("reduce", ReduceOp.SUM), slopes)
        return sums if is_root else [jnp.zeros_like(slope) for slope in slopes]
    if name == "all_gather":
        return _call(collective.as_("reduce_scatter", ReduceOp.SUM), slopes)
    if name == "scatter":
        rows = _call(collective.as_("gather"), slopes)
        return rows if is_root else [jnp.zeros_like(slope) for slope in slopes]
    back = {"reduce": "broadcast", "gather": "scatter", "reduce_scatter": "all_gather"}[name]
    sent = _call(collective.as_(back), slopes)
    if collective.op is ReduceOp.AVG:
        sent = [slope / collective.communicator.world_size for slope in sent]
    if collective.sides[1] == _NONE:  # this rank's result is its own array
        sent = [one + other for one, other in zip(sent, slopes, strict=True)]
    return sent


_differentiable = jax.custom_vjp(_bind, nondiff_argnums=(0,))
_differentiable.defvjp(_forward, _backward)
_call: Callable[[_Collective, list[Any]], list[Any]] = _differentiable

# Dispatched calls need their communicator until they are done.
register(LifecycleStage.PROCESS_GROUPS, at_exit=jax.effects_barrier)
