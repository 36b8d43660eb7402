"""Every kind of tensor that torch has, in every collective, through both doors: right or refused.

What has no memory of its own must never reach the engine. A crash ends a rank, and so the test.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from hccl_py import Communicator
from hccl_py.transport.errors import InvalidArgumentError

N = 6  # elements


def freed(tensor: Tensor, num_bytes: int = 0) -> Tensor:
    tensor.untyped_storage().resize_(num_bytes)
    return tensor


class Logging(Tensor):
    """A wrapper without memory, which gives its inner tensor when it is asked for a plain one."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Logging:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one.inner if isinstance(one, Logging) else one for one in args]
        return func(*plain, **(kwargs or {}))


def kinds() -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of N elements that are not what they seem, or seem what they are not."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.masked import masked_tensor

    t = torch.arange(float(N))
    yield "of zeros", torch._efficientzerotensor(N)
    yield "functional", torch._to_functional_tensor(t.clone())
    yield "functional view", torch._to_functional_tensor(torch.ones(2 * N))[N:]
    yield "copied on write", torch._lazy_clone(t)
    yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(4)])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged)
    yield "jagged", jagged
    yield "mkldnn", t.to_mkldnn() if torch.backends.mkldnn.is_available() else t
    yield "quantised", torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)
    rows = t.view(2, 3)
    scales = torch.ones(2), torch.zeros(2)
    yield "quantised by row", torch.quantize_per_channel(rows, *scales, 0, torch.quint8)
    yield "sparse", rows.to_sparse()
    yield "sparse rows", rows.to_sparse_csr()
    yield "sparse columns", rows.to_sparse_csc()
    yield "sparse blocks", rows.to_sparse_bsr((1, 1))
    yield "meta", t.to("meta")
    yield "fake", FakeTensorMode().from_tensor(t)
    yield "freed", freed(torch.ones(N))
    yield "freed view", freed(torch.ones(2 * N)[N:])
    yield "far view of freed", freed(torch.ones(1 << 20)[-N:])
    yield "cut", freed(torch.ones(N), 8)
    yield "cut view", freed(torch.ones(2 * N)[N:], 6 * N)
    yield "parameter that was cut", torch.nn.Parameter(freed(torch.ones(N), 8))
    yield "masked", masked_tensor(t, t > 2)
    yield "wrapper", Logging(t)
    yield "uninitialized", torch.nn.UninitializedParameter()
    yield "expanded", torch.ones(1).expand(N)
    yield "overlapping", torch.as_strided(torch.ones(N), (2, 3), (1, 1))
    yield "negated", torch._neg_view(t.clone())
    yield "conjugated", (torch.ones(N) * 1j).conj()
    yield "gapped", torch.zeros(2 * N)[::2]
    yield "transposed", torch.zeros(3, 2).t()
    yield "parameter", torch.nn.Parameter(t.clone())


def torch_calls(n: int, rank: int) -> dict[str, Callable[[Tensor], object]]:
    def like(t: Tensor, count: int) -> Tensor:
        return torch.ones(count, dtype=t.dtype)

    def listed(t: Tensor) -> list[Tensor]:
        return [like(t, N) for _ in range(n)]

    group = dist.group.WORLD
    return {
        "all_reduce": lambda t: dist.all_reduce(t),
        "coalesced": lambda t: dist.all_reduce_coalesced([t]),
        "reduce": lambda t: dist.reduce(t, 0),
        "broadcast": lambda t: dist.broadcast(t, 0),
        "gathered": lambda t: dist.all_gather_into_tensor(t, like(t, N // n)),
        "all_gather_into": lambda t: dist.all_gather_into_tensor(like(t, n * N), t),
        "all_gather": lambda t: dist.all_gather(listed(t), t),
        "listed": lambda t: dist.all_gather([t, *listed(t)[1:]], like(t, N)),
        "reduced": lambda t: dist.reduce_scatter_tensor(t, like(t, n * N)),
        "reduce_scatter": lambda t: dist.reduce_scatter(like(t, N), [t] * n),
        "exchanged": lambda t: dist.all_to_all_single(t, like(t, N)),
        "all_to_all_single": lambda t: dist.all_to_all_single(like(t, N), t),
        "all_to_all": lambda t: dist.all_to_all(listed(t), [t] * n),
        "gather": lambda t: group.gather([] if rank else [listed(t)], [t], 0),
        "scattered": lambda t: group.scatter([t], [] if rank else [listed(t)], 0),
        "scatter": lambda t: group.scatter([like(t, N)], [] if rank else [[t] * n], 0),
        "send": lambda t: (group.send([t], rank), group.recv([like(t, N)], rank).wait()),
        "recv": lambda t: (group.recv([t], rank), group.send([like(t, N)], rank).wait()),
    }


def plain_calls(comm: Communicator) -> dict[str, Callable[[Any], object]]:
    def like(t: Any, count: int) -> Tensor:
        return torch.ones(count, dtype=t.dtype)

    n = comm.world_size
    return {
        "all_reduce": lambda t: comm.all_reduce(t),
        "output": lambda t: comm.all_reduce(like(t, N), output=t),
        "reduce": lambda t: comm.reduce(t, 0),
        "broadcast": lambda t: comm.broadcast(t, 0),
        "gathered": lambda t: comm.all_gather(t, like(t, N // n)),
        "all_gather": lambda t: comm.all_gather(like(t, n * N), t),
        "listed": lambda t: comm.all_gather([t], like(t, N)),
        "reduced": lambda t: comm.reduce_scatter(t, like(t, n * N)),
        "reduce_scatter": lambda t: comm.reduce_scatter(like(t, N // n), t),
        "all_to_all": lambda t: comm.all_to_all(like(t, N), t),
        "gather": lambda t: comm.gather(None if comm.rank else like(t, n * N), t, 0),
        "scatter": lambda t: comm.scatter(t, None if comm.rank else like(t, n * N), 0),
        "send": lambda t: (comm.nonblocking.send(t, 0), comm.recv(like(t, N), 0)),
    }


def outcome(call: Callable[[Tensor], object], tensor: Tensor) -> str:
    """Return "done", why it was refused, or what torch raised; fail for an error without words."""
    try:
        call(tensor)
    except InvalidArgumentError as error:
        assert "\n" not in str(error)
        return f"refused: {error}"
    except Exception as error:
        assert not isinstance(error, Warning), error
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        assert "hccl_py" not in last, f"a bare {type(error).__name__}: {error}"
        return f"torch: {type(error).__name__}"
    return "done"


def check_kinds(rank: int, n: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    comm = dist.group.WORLD.communicator
    doors = torch_calls(n, rank), plain_calls(comm)
    for door, calls in zip(("torch", "communicator"), doors, strict=True):
        for call in calls.values():  # known from here on
            outcome(call, torch.ones(N))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several kinds are no finished work of torch
            tensors = list(kinds())
        for kind, tensor in tensors:
            name = f"{door}: {kind}"
            # A sparse all_reduce is allowed. A message without memory is only noted: none comes.
            left_out = {
                "sparse": ["all_reduce"],
                "meta": ["send", "recv"],
                "fake": ["send", "recv"],
            }
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                found[name] = {
                    key: outcome(call, tensor)
                    for key, call in calls.items()
                    if key not in left_out.get(kind, ())
                }
            total = torch.ones(1)
            comm.all_reduce(total)
            assert total.item() == n, f"after {name}"
    return found


WORDS = {
    "functional": "outside of the trace",
    "functional view": "outside of the trace",
    "nested": r".values()",
    "jagged": r".values()",
    "mkldnn": "layout torch._mkldnn; pass .to_dense()",
    "quantised": ".int_repr()",
    "quantised by row": ".int_repr()",
    "sparse": "layout torch.sparse_coo; pass .to_dense()",
    "sparse rows": "layout torch.sparse_csr; pass .to_dense()",
    "sparse columns": "layout torch.sparse_csc; pass .to_dense()",
    "sparse blocks": "layout torch.sparse_bsr; pass .to_dense()",
    "freed": "freed or cut",
    "freed view": "freed or cut",
    "far view of freed": "freed or cut",
    "cut": "freed or cut",
    "cut view": "freed or cut",
    "parameter that was cut": "freed or cut",
    "masked": ".get_data()",
    "uninitialized": "run the module once",
}
"""What is refused through both doors, and what of the error says what it is and what to do."""

WORDS_OF_COMMUNICATOR = {
    "of zeros": ".clone()",
    "meta": "one on meta",
    "fake": "outside of the trace",
    "wrapper": "Logging, which is no plain memory",
    "expanded": ".contiguous()",
    "overlapping": ".contiguous()",
    "negated": ".resolve_neg()",
    "conjugated": ".resolve_conj()",
    "gapped": ".contiguous()",
    "transposed": ".contiguous()",
}


def test_kinds_of_tensors_are_right_or_refused_through_both_doors() -> None:
    # One rank, which is the root: all ranks alike would refuse.
    results = run_ranks(check_kinds, 1, backend="hccl")
    words = {f"{door}: {kind}": WORDS[kind] for door in ("torch", "communicator") for kind in WORDS}
    words |= {f"communicator: {kind}": one for kind, one in WORDS_OF_COMMUNICATOR.items()}
    for kind, one in words.items():
        for call, found in results[0][kind].items():
            if not found.startswith("torch: "):
                assert found.startswith("refused"), (kind, call, found)
                assert one in found, (kind, call)
    for door in ("torch", "communicator"):
        assert set(results[0][f"{door}: parameter"].values()) == {"done"}
        assert set(results[0][f"{door}: copied on write"].values()) == {"done"}


def check_cut_between_calls(rank: int, n: int) -> None:
    """One and the same tensor, known to each call, is as long as its storage, and then longer."""
    comm = dist.group.WORLD.communicator
    for calls in (torch_calls(n, rank), plain_calls(comm)):
        for name, call in calls.items():
            tensor = torch.ones(N)
            assert [outcome(call, tensor) for _ in range(2)] == ["done"] * 2, name
            freed(tensor, (N - 1) * tensor.itemsize)
            assert outcome(call, tensor).startswith("refused"), name
            freed(tensor, N * tensor.itemsize)
            assert outcome(call, tensor) == "done", name


def test_tensor_that_is_cut_between_two_calls_is_refused() -> None:
    run_ranks(check_cut_between_calls, 1, backend="hccl")


def check_transforms(rank: int, n: int) -> None:
    comm = dist.group.WORLD.communicator
    seen = []

    def refuse(x: Tensor) -> Tensor:
        for call in (*torch_calls(n, rank).values(), *plain_calls(comm).values()):
            seen.append(outcome(call, x))
        return x.sum()

    torch.func.vmap(refuse)(torch.ones(2, N))
    torch.func.grad(refuse)(torch.ones(N))
    torch.func.jvp(refuse, (torch.ones(N),), (torch.ones(N),))
    torch.func.functionalize(refuse)(torch.ones(N))
    assert "done" not in seen


def check_values(rank: int, n: int) -> None:
    zeros, got = torch._efficientzerotensor(N), [torch.ones(N) for _ in range(n)]
    dist.all_gather(got, zeros)
    assert torch.cat(got).tolist() == [0.0] * (n * N), "a copy of it was sent"
    source = torch.full((N,), float(rank))
    for call in (dist.all_reduce, dist.group.WORLD.communicator.all_reduce):
        for _ in range(2):
            copy = torch._lazy_clone(source)
            call(copy)
            assert copy.tolist() == [1.0] * N
            assert source.tolist() == [float(rank)] * N, "only the copy is written"
    for dtype in (torch.complex64, torch.complex128, torch.float32):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            values = torch.tensor([2.0, 4.0]).to(dtype) * (2j if dtype.is_complex else 1)
            places = torch.tensor([[rank, n]])
            sparse = torch.sparse_coo_tensor(places, values, (n + 1,), check_invariants=True)
            dist.all_reduce(sparse, op)
            expected = torch.tensor([2.0] * n + [4.0 * n]) / (n if op is dist.ReduceOp.AVG else 1)
            assert (sparse.to_dense() == expected * (2j if dtype.is_complex else 1)).all()
    sparse = torch.sparse_coo_tensor(places, torch.ones(2), (n + 1,), check_invariants=True)
    freed(sparse._values(), 4)
    with pytest.raises(InvalidArgumentError, match="freed or cut"):
        dist.all_reduce(sparse)
    for tensor in (torch.ones(1).expand(N), torch.as_strided(torch.ones(N), (2, 3), (1, 1))):
        with pytest.raises(InvalidArgumentError, match="no two of its elements"):
            dist.all_reduce(tensor)


def test_transforms_of_functions_are_refused() -> None:
    run_ranks(check_transforms, 1, backend="hccl")


def test_kinds_with_memory_have_the_values_of_plain_tensors() -> None:
    run_ranks(check_values, 2, backend="hccl")
