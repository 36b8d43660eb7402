"""Every call of Horovod's API in each of its forms, on 3 ranks. numpy is the oracle.

The forms of a call are found by name, so a new one is tested, or `test_every_call_is_in_the_matrix`
fails.
"""

import inspect
import itertools
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from quiet_clock import HANG_S
from ranks import run_ranks

import hccl_py.horovod as on_arrays
import hccl_py.horovod.torch as hvd
from hccl_py.horovod.calls import Calls
from hccl_py.horovod.collectives.arrays import ARRAYS
from hccl_py.horovod.signatures import ORDER_IN_TENSORFLOW, DescribedCall

N = 3
Array = np.ndarray[Any, Any]
DTYPES = {
    on_arrays: ("f2", "f4", "f8", "i1", "u1", "i4", "i8"),
    hvd: (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.uint8, torch.int32, torch.int64),
    ),
}


class Case(NamedTuple):
    """A call, what rank `rank` gives to it, and what rank `me` of `every` gets."""

    call: str
    arguments: dict[str, Any]
    shape: Callable[[int], tuple[int, ...]]
    oracle: Callable[[list[Array], int], Array]


def reductions() -> list[tuple[dict[str, Any], Callable[[Array], Array]]]:
    """Return arguments of calls that reduce, and what they do along the first dimension."""
    average: Callable[[Array], Array] = lambda all_: all_.mean(0)  # noqa: E731
    return [
        ({}, average),
        ({"op": hvd.Average}, average),
        ({"op": hvd.Sum}, lambda all_: all_.sum(0)),
        ({"op": hvd.Min}, lambda all_: all_.min(0)),
        ({"op": hvd.Max}, lambda all_: all_.max(0)),
        ({"op": hvd.Product}, lambda all_: all_.prod(0)),
        ({"op": hvd.Sum, "prescale_factor": 2.0}, lambda all_: 2 * all_.sum(0)),
        ({"op": hvd.Sum, "postscale_factor": 3.0}, lambda all_: 3 * all_.sum(0)),
    ]


def cases(root: int) -> list[Case]:
    made = [
        Case("allgather", {}, lambda rank: (rank, 2), lambda every, me: np.concatenate(every)),
        Case("broadcast", {"root_rank": root}, lambda rank: (3, 2), lambda every, me: every[-1]),
    ]
    for arguments, reduce in reductions():
        made += [
            Case("allreduce", arguments, lambda rank: (4, 3), reduced(reduce)),
            Case("reducescatter", arguments, lambda rank: (7, 2), scattered(reduce)),
        ]
    return made


def reduced(reduce: Callable[[Array], Array]) -> Callable[[list[Array], int], Array]:
    return lambda every, me: reduce(np.stack(every))


def scattered(reduce: Callable[[Array], Array]) -> Callable[[list[Array], int], Array]:
    return lambda every, me: np.array_split(reduce(np.stack(every)), len(every))[me]


def given(rank: int, shape: Sequence[int]) -> Array:
    """Return what a rank brings: small whole numbers, which every type holds exactly."""
    return np.random.default_rng(rank).integers(1, 5, shape)


def tensor(rank: int, shape: Sequence[int], dtype: Any) -> Any:
    values = given(rank, shape)
    return values.astype(dtype) if isinstance(dtype, str) else torch.from_numpy(values).to(dtype)


def numbers(made: Any) -> Array:
    made = made.detach().double().numpy() if isinstance(made, torch.Tensor) else made
    return np.asarray(made, np.float64)


def forms(module: ModuleType, case: Case | str) -> list[str]:
    """Return the names of a call's forms that a module has."""
    call = case if isinstance(case, str) else case.call
    every = itertools.product(("", "grouped_"), ("", "_async"), ("", "_"))
    names = [f"{group}{call}{begin}{place}" for group, begin, place in every]
    return [name for name in names if hasattr(module, name)]


def check_form(module: ModuleType, name: str, case: Case, dtype: Any, members: Any) -> None:
    ranks, me = members.ranks, members.rank()
    mine = [tensor(ranks[me], case.shape(ranks[me]), dtype) for _ in range(2)]
    is_grouped, is_in_place = name.startswith("grouped_"), name.endswith("_")
    made = getattr(module, name)(
        mine if is_grouped else mine[0], process_set=members, **case.arguments
    )
    if "_async" in name:
        made = module.synchronize(made)
    expected = case.oracle([given(rank, case.shape(rank)) for rank in ranks], me)
    if not str(dtype).removeprefix("torch.").startswith(("f", "bf")):
        expected = np.trunc(expected)
    kept = given(ranks[me], case.shape(ranks[me]))
    for one, source in zip(made if is_grouped else [made], mine, strict=False):
        assert (one is source) == is_in_place, name
        assert one.dtype == source.dtype, (name, one.dtype)
        rtol = 1e-2 if str(dtype) in ("f2", "torch.float16", "torch.bfloat16") else 1e-6
        np.testing.assert_allclose(numbers(one), expected, rtol, err_msg=f"{name} {case} {dtype}")
        if not is_in_place:
            np.testing.assert_array_equal(numbers(source), kept)


def check_matrix(me: int, is_whole: bool = False) -> None:
    """Check each form of each case: on an element type of its own, or on all of them."""
    pair = hvd.add_process_set([0, 2])
    for members in (hvd.global_process_set, pair):
        for module, dtypes in DTYPES.items() if members.included() else ():
            every = [(case, it) for case in cases(members.ranks[-1]) for it in forms(module, case)]
            for place, (case, name) in enumerate(every):
                for dtype in dtypes if is_whole else [dtypes[place % len(dtypes)]]:
                    check_form(module, name, case, dtype, members)


def check_alltoall(me: int) -> None:
    splits = [[1, 0, 2], [0, 2, 1], [3, 1, 0]]  # by sender
    blocks = [np.split(10 * rank + np.arange(4), np.cumsum(splits[rank])) for rank in range(N)]
    expected = np.concatenate([blocks[rank][me] for rank in range(N)])
    received = [row[me] for row in splits]
    for module, sent, kind in (
        (hvd, torch.arange(4) + 10 * me, torch.tensor),
        (hvd, torch.arange(4) + 10 * me, list),
        (on_arrays, np.arange(4) + 10 * me, np.array),
    ):
        for call in (module.alltoall, lambda *it, m=module: m.synchronize(m.alltoall_async(*it))):
            output, sizes = call(sent, kind(splits[me]))
            np.testing.assert_array_equal(output, expected)
            assert sizes.tolist() == received
        assert module.alltoall(sent[:3]).tolist() == [me, 10 + me, 20 + me]
        output, sizes = module.alltoall_async(sent[:3]).wait()
        assert (output.tolist(), sizes.tolist()) == ([me, 10 + me, 20 + me], [1, 1, 1])
        for wrong in ([1, 1], [5, 0, 0], [1.0, 1.0, 1.0], [-1, 1, 1]):
            with pytest.raises(ValueError, match="splits: expected 3 whole numbers"):
                module.alltoall(sent, wrong)
        with pytest.raises(ValueError, match="splits: .* 3 ranks cannot share 4"):
            module.alltoall(sent)
    assert hvd.alltoall(torch.arange(3), torch.ones(3, dtype=torch.int16))[1].dtype == torch.int16


def check_layouts(me: int) -> None:
    """Groups of many sizes and types, arrays that are not contiguous, scalars, and nothing."""
    shapes = [(5,), (2, 2), (70_000,), (3,), (0,), ()]
    dtypes = [torch.float32, torch.int64, torch.float32, torch.float64, torch.float32, torch.int8]
    pairs = list(zip(shapes, dtypes, strict=True))
    tensors = [tensor(me, *pair) for pair in pairs]
    made = hvd.grouped_allreduce(tensors, op=hvd.Sum, postscale_factor=2.0)
    in_place = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    for one, other, (shape, dtype) in zip(made, in_place, pairs, strict=True):
        expected = np.sum([given(rank, shape) for rank in range(N)], 0)
        assert one.dtype == other.dtype == dtype
        np.testing.assert_array_equal(numbers(one), 2 * expected)
        np.testing.assert_array_equal(numbers(other), expected)
    across = tensor(me, (2, 3), torch.float32).t()
    expected = np.max([given(rank, (2, 3)) for rank in range(N)], 0).T
    assert hvd.allreduce_(across, op=hvd.Max) is across
    np.testing.assert_array_equal(numbers(across), expected)
    np.testing.assert_array_equal(on_arrays.allreduce(given(me, (2, 3)).T, op=hvd.Max), expected)
    assert on_arrays.allreduce(float(me)) == 1.0
    assert on_arrays.broadcast([me, me], 2).tolist() == [2, 2]
    for count in (8, 70_000):  # travels with others, or alone
        shared = torch.ones(count)
        for views in ([shared, shared], [shared[:-2], shared[2:]]):
            with pytest.raises(ValueError, match=r"tensors\[0\].*tensors\[1\]"):
                hvd.grouped_allreduce_(views, op=hvd.Sum, prescale_factor=0.5)
        assert shared.tolist() == [1.0] * count
        halves = hvd.grouped_allreduce_([shared[: count // 2], shared[count // 2 :]], op=hvd.Sum)
        assert torch.cat(halves).tolist() == [float(N)] * count
    cut = torch.ones(9)
    gapped = cut[::3]
    cut.untyped_storage().resize_(8)
    masked = np.ma.array([1.0] * 9, mask=[me == 1] * 9)
    for name in ("allreduce", "allgather", "broadcast", "reducescatter", "alltoall"):
        root = {"root_rank": 0} if name == "broadcast" else {}
        with pytest.raises(ValueError, match="mask"):
            getattr(on_arrays, name)(masked, **root)
        for odd, words in ((cut, "cut"), (gapped, "cut"), (torch.eye(3).to_sparse(), "sparse_coo")):
            with pytest.raises(ValueError, match=words):
                getattr(hvd, name)(odd, **root)
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    for module, scalar in ((hvd, torch.tensor(1.0)), (on_arrays, np.float32(1))):
        for name in ("allgather", "reducescatter", "alltoall"):
            with pytest.raises(ValueError, match="tensor: expected at least one dimension"):
                getattr(module, name)(scalar)


def check_handles_and_arguments(me: int) -> None:
    handle = hvd.allreduce_async(torch.tensor([me]), op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle) is hvd.synchronize(handle)
    assert hvd.allreduce(tensor=torch.tensor(me), op=hvd.Sum, name="x") == 3
    assert hvd.grouped_allgather(tensors=[torch.tensor([me])], name="x")[0].tolist() == [0, 1, 2]
    with pytest.warns(DeprecationWarning) as caught:
        assert hvd.allreduce(torch.tensor(me), average=False) == 3
    assert caught[0].filename == __file__


def check_compression(me: int) -> None:
    class Doubled:  # a program's own
        @staticmethod
        def compress(given: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return given * 2, given.dtype

        @staticmethod
        def decompress(made: torch.Tensor, ctx: Any) -> torch.Tensor:
            return (made / 2).to(ctx)

    whole = torch.tensor([me, 2])
    for compression in (hvd.Compression.none, hvd.Compression.fp16, Doubled):
        made = hvd.allreduce(torch.tensor([me, 2.0]), compression=compression, op=hvd.Sum)
        assert (made.tolist(), made.dtype) == ([3.0, 6.0], torch.float32)
        made = hvd.allreduce(whole, compression=compression, op=hvd.Sum)
        assert (made.tolist(), made.dtype) == ([3, 6], torch.int64)
        made = hvd.reducescatter(torch.ones(N), compression=compression, op=hvd.Sum)
        assert made.tolist() == [3.0]


def check_sparse(me: int) -> None:
    places, values = torch.tensor([[0, me]]), torch.tensor([1.0, 3.0])
    sparse = torch.sparse_coo_tensor(places, values, (4,), check_invariants=True)
    for op, expected in ((hvd.Sum, [6, 3, 3, 0]), (hvd.Average, [2, 1, 1, 0])):
        assert hvd.sparse_allreduce_async(sparse, op=op)().to_dense().tolist() == expected
    with pytest.raises(ValueError, match="op: expected Average or Sum"):
        hvd.sparse_allreduce_async(sparse, op=hvd.Max)


def check_gradients(me: int) -> None:
    def gradient(call: Any, *shape: int) -> list[Any]:
        leaf = torch.ones(*shape, requires_grad=True)
        (call(leaf) * (me + 1.0)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.tolist()

    assert gradient(lambda it: hvd.allreduce(it, op=hvd.Sum), 2) == [6, 6]
    assert gradient(hvd.allreduce, 2) == [2, 2]
    assert gradient(lambda it: hvd.allreduce(it, compression=hvd.Compression.fp16), 2) == [2, 2]
    assert gradient(lambda it: hvd.grouped_allreduce([it, it])[1], 2) == [2, 2]
    assert gradient(hvd.allgather, me + 1, 2) == [[2, 2]] * (me + 1)
    assert gradient(lambda it: hvd.broadcast(it, 1), 2) == ([2, 2] if me == 1 else [0, 0])
    assert gradient(hvd.alltoall, 3) == [1, 2, 3]
    assert gradient(lambda it: hvd.alltoall(it, [0, 0, 3])[0], 3) == [3, 3, 3]
    assert gradient(lambda it: hvd.reducescatter(it, op=hvd.Sum), 3) == [3, 6, 9]
    assert gradient(hvd.reducescatter, 3) == [1, 2, 3]


def check_objects(me: int) -> None:
    assert hvd.broadcast_object({"rank": me}, root_rank=1) == {"rank": 1}
    mine = {"rank": me}
    assert (hvd.broadcast_object(mine, root_rank=1) is mine) == (me == 1)
    assert hvd.allgather_object("x" * me) == ["", "x", "xx"]


def all_checks(me: int, _: int) -> None:
    hvd.init()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for check in (
            *(check_matrix, check_alltoall, check_layouts, check_handles_and_arguments),
            *(check_compression, check_sparse, check_gradients, check_objects),
        ):
            check(me)
    hvd.shutdown()


def test_calls_on_three_ranks_on_two_nodes() -> None:
    run_ranks(all_checks, N, env=lambda rank: {"HCCL_NODE_ID": str(rank // 2)})


def whole_matrix(me: int, _: int) -> None:
    hvd.init()
    check_matrix(me, is_whole=True)


@pytest.mark.nightly("calls")
def test_every_element_type_in_each_form_on_three_ranks() -> None:
    run_ranks(whole_matrix, N)


def test_every_call_is_in_the_matrix() -> None:
    tested = {case.call for case in cases(0)} | {"alltoall"}
    for module in (on_arrays, hvd):
        public = {name for name in dir(module) if "Handle" in str(_result(module, name))}
        public |= {name for name in dir(module) if "async" in name} - {"sparse_allreduce_async"}
        assert public <= {name for call in tested for name in forms(module, call)}


def _result(module: ModuleType, name: str) -> Any:
    value = getattr(module, name)
    return inspect.signature(value).return_annotation if inspect.isfunction(value) else None


REDUCED = "op prescale_factor postscale_factor process_set"
SCATTERED = "op process_set prescale_factor postscale_factor"


@pytest.mark.parametrize(
    ("call", "waits", "begins"),
    [
        ("allreduce", f"average name compression {REDUCED}", f"average name {REDUCED}"),
        ("reducescatter", f"name compression {SCATTERED}", f"name {SCATTERED}"),
        ("allgather", "name process_set", "name process_set"),
        ("broadcast", "root_rank name process_set", "root_rank name process_set"),
        ("alltoall", "splits name process_set", "splits name process_set"),
    ],
)
def test_signature_of_each_form_is_that_of_horovod(call: str, waits: str, begins: str) -> None:
    for name in forms(hvd, call):
        function = getattr(hvd, name)
        tensors = "tensors" if name.startswith("grouped_") else "tensor"
        others = waits if not name.endswith("_") and "_async" not in name else begins
        assert [*inspect.signature(function).parameters] == [tensors, *others.split()]
        assert (function.__name__, function.__module__) == (name, hvd.__name__)
        assert function.__doc__
    for name in forms(on_arrays, call):
        assert [*inspect.signature(getattr(on_arrays, name)).parameters][1:] == begins.split()


def test_call_in_the_order_of_tensorflow_reads_each_argument() -> None:

    def run(described: DescribedCall, tensors: Sequence[Any]) -> Any:
        return described.collective.start(ARRAYS, tensors).wait()

    function = Calls(__name__, Any, Any, ARRAYS, run, orders=ORDER_IN_TENSORFLOW)("allreduce")
    assert [*inspect.signature(function).parameters][:5] == [
        *("tensor", "average", "device_dense", "device_sparse", "compression")
    ]
    hvd.init()
    made = function([1.0, 2.0], None, "/cpu:0", "", hvd.Compression.none, hvd.Sum, 1.0, 3.0)
    assert made.tolist() == [3.0, 6.0]
    assert function(ignore_name_scope=True, tensor=[1.0]).tolist() == [1.0]
    hvd.shutdown()
    with pytest.raises(TypeError, match="tensor"):
        function()


def test_a_world_of_one_needs_no_torch_and_no_launcher() -> None:
    program = """
import sys
import numpy as np
import hccl_py.horovod as hvd
hvd.init()
assert (hvd.rank(), hvd.size(), hvd.join()) == (0, 1, 0)
assert hvd.allreduce(np.arange(3.0), postscale_factor=2).tolist() == [0, 2, 4]
assert hvd.reducescatter(np.arange(3)).tolist() == hvd.allgather(np.arange(3)).tolist()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"op": hvd.Adasum}, NotImplementedError, "no Adasum"),
        ({"op": 17}, ValueError, "op: expected one of Average"),
        ({"average": True, "op": hvd.Sum}, ValueError, "only one of them"),
        ({"root_rank": 0}, TypeError, "root_rank"),
        ({}, ValueError, r"use hvd.init\(\)"),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, Any], kind: type, words: str) -> None:
    for module, one in ((hvd, torch.ones(1)), (on_arrays, np.ones(1))):
        with pytest.raises(kind, match=words):
            module.allreduce(one, **arguments)
