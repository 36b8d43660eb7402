"""torch.ops.hccl: the operators eagerly and compiled, in the order of the program on each rank."""

import shutil
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED, VARIABLE
from hccl_py.transport.errors import InvalidArgumentError

DOORS = [
    pytest.param({}, id="group"),
    pytest.param(
        {VARIABLE: "1"},
        id="backend",
        marks=pytest.mark.skipif(not IS_SUPPORTED, reason="torch 2.14 is the first with it"),
    ),
]
inductor = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")


def ours() -> Any:
    """Return the operators; they exist since the first group of hccl."""
    return torch.ops.hccl


def name() -> str:
    group: Any = dist.group.WORLD
    return str(group.group_name)


def numbers(rank: int, *shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape) + 10 * rank


def writing(x: Tensor, rank: int, n: int) -> list[Tensor]:
    """Call each operator that writes, on tensors of the program and of its own."""
    a, b, c, d = x * 2, x + 1, x - 1, x * 3
    ours().all_reduce_(a, "avg", name())
    ours().all_reduce_coalesced_([b, c], "max", name())
    ours().broadcast_(d, 1, name())
    whole, part = x.new_empty(n * len(x), *x.shape[1:]), x.new_empty(len(x) // n, *x.shape[1:])
    ours().all_gather_into_tensor_(whole, x, name())
    ours().reduce_scatter_tensor_(part, x.t().contiguous().t(), "sum", name())
    even, uneven = torch.empty_like(x), x.new_empty(3 if rank == 0 else 5, *x.shape[1:])
    ours().all_to_all_single_(even, x, [], [], name())
    received, sent = ([1, 2], [1, 3]) if rank == 0 else ([3, 2], [2, 2])
    ours().all_to_all_single_(uneven, x, received, sent, name())
    ours().all_reduce_(x, "sum", name())  # the caller's tensor
    return [a, b, c, d, whole, part, even, uneven]


def expected_of_writing(rank: int, n: int) -> list[Tensor]:
    xs = [numbers(one, 4, 3) for one in range(n)]
    total, half = torch.stack(xs).sum(0), 4 // n
    parts = [xs[0][:1], xs[1][:2]] if rank == 0 else [xs[0][1:], xs[1][2:]]
    return [
        *(total * 2 / n, xs[1] + 1, xs[1] - 1, xs[1] * 3, torch.cat(xs)),
        *(total[rank * half : (rank + 1) * half], torch.cat([x.chunk(n)[rank] for x in xs])),
        *(torch.cat(parts), total),
    ]


def check_writing(rank: int, n: int, run: Any) -> None:
    x = numbers(rank, 4, 3)
    results = run(writing)(x, rank, n)
    torch.testing.assert_close([*results, x], expected_of_writing(rank, n))


def returning(leaf: Tensor, n: int) -> Tensor:
    whole = ours().all_gather_into_tensor(leaf.exp(), n, name())
    part = ours().reduce_scatter_tensor(whole * whole, "sum", n, name())
    turned = ours().all_to_all_single(part.sin(), [], [], name())
    one, other = ours().all_reduce_coalesced([turned * 2, turned.cos()], "sum", name())
    total: Tensor = (ours().all_reduce(one * other, "sum", name()) * turned).sum()
    return total


def torchs_own(leaf: Tensor, n: int) -> Tensor:
    ops: Any = torch.ops._c10d_functional
    whole = ops.wait_tensor(ops.all_gather_into_tensor(leaf.exp(), n, name()))
    part = ops.wait_tensor(ops.reduce_scatter_tensor(whole * whole, "sum", n, name()))
    turned = ops.wait_tensor(ops.all_to_all_single(part.sin(), [2] * n, [2] * n, name()))
    both = ops.all_reduce_coalesced([turned * 2, turned.cos()], "sum", name())
    one, other = map(ops.wait_tensor, both)
    total: Tensor = (ops.wait_tensor(ops.all_reduce(one * other, "sum", name())) * turned).sum()
    return total


def gradient(function: Any, rank: int, n: int) -> list[Tensor]:
    leaf = (numbers(rank, 2 * n, 3) / 50).requires_grad_()
    value = function(leaf, n)
    value.backward()
    assert leaf.grad is not None
    return [value.detach(), leaf.grad]


def check_gradients(rank: int, n: int, run: Any) -> None:
    mine, torchs = gradient(run(returning), rank, n), gradient(torchs_own, rank, n)
    torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-3)  # Inductor's sines differ


def check_rejections(rank: int) -> None:
    leaf = numbers(rank, 4).requires_grad_()
    with pytest.raises(InvalidArgumentError, match="use torch.ops.hccl.all_reduce,"):
        ours().all_reduce_(leaf, "sum", name())
    with torch.no_grad():
        ours().all_reduce_(leaf, "sum", name())
    with pytest.raises(InvalidArgumentError, match="`reduce_op`"):
        ours().all_reduce(leaf.detach(), "mean", name())
    with pytest.raises(RuntimeError, match="has a gradient, not 'max'"):
        ours().all_reduce(leaf, "max", name()).sum().backward()


def eagerly(rank: int, n: int) -> None:
    check_writing(rank, n, lambda function: function)
    check_gradients(rank, n, lambda function: function)
    assert torch.equal(ours().broadcast(numbers(rank, 3), 1, name()), numbers(1, 3))
    check_rejections(rank)


def by_inductor(rank: int, n: int) -> None:
    use_inductor()
    check_writing(rank, n, lambda function: torch.compile(function, fullgraph=True))
    check_gradients(rank, n, lambda function: torch.compile(function, fullgraph=True))
    check_order(rank)


def use_inductor() -> None:
    from torch._inductor import config

    # A pool of compiling processes would take longer to start than the kernels to compile.
    config.compile_threads = 1


def check_order(rank: int) -> None:
    """Ranks with other programs make the same calls; a call whose result is unused is one."""

    @torch.compile(fullgraph=True)
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        largest = ours().all_reduce(x + 1, "max", name())
        ours().all_reduce_(x * 3, "min", name())  # nobody reads it
        dist.all_reduce(product := x * 2, op=dist.ReduceOp.PRODUCT)
        total = ours().all_reduce(x, "sum", name())
        first = largest if rank else total
        return (first * product + 1).sum(), ((total if rank else largest) + 2).sum()

    step(numbers(rank, 4))


def with_dist(x: Tensor, n: int) -> list[Tensor]:
    total, whole = x * 2, x.new_empty(n * len(x), *x.shape[1:])
    part, turned = x.new_empty(len(x) // n, *x.shape[1:]), torch.empty_like(x)
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    dist.all_gather_into_tensor(whole, total)
    dist.reduce_scatter_tensor(part, x, group=dist.group.WORLD)
    dist.all_to_all_single(turned, x)
    return [total, whole, part, turned]


def check_functions_of_dist(rank: int, n: int) -> None:
    """Dynamo takes the operators for them; torch's own where a gradient passes."""
    operators: list[str] = []

    def note(graph: Any, inputs: Any) -> Any:
        found = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        operators.extend(one for one in found if "hccl." in one or "_c10d_functional." in one)
        return graph

    x = numbers(rank, 4, 3)
    results = torch.compile(with_dist, backend=note, fullgraph=True)(x, n)
    torch.testing.assert_close(results, with_dist(x, n))
    names = "all_reduce_", "all_gather_into_tensor_", "reduce_scatter_tensor_", "all_to_all_single_"
    assert [one.partition(".")[2].partition(".")[0] for one in operators] == list(names)
    assert all(one.startswith("hccl.") for one in operators)
    operators.clear()

    @torch.compile(backend=note, fullgraph=True)
    def squared(leaf: Tensor) -> Tensor:
        total = leaf * leaf
        dist.all_reduce(total)
        return total.sum()

    squared(x.requires_grad_())
    assert operators and not any(one.startswith("hccl.") for one in operators)


@pytest.mark.parametrize("env", DOORS)
def test_operators_write_and_return_what_the_collectives_do(env: dict[str, str]) -> None:
    run_ranks(eagerly, 2, backend="hccl", env=env)


def traced(rank: int, n: int) -> None:
    """Dynamo and AOTAutograd, without Inductor; `fullgraph` raises where a graph would break."""
    check_writing(rank, n, lambda one: torch.compile(one, backend="aot_eager", fullgraph=True))
    check_functions_of_dist(rank, n)


def test_operators_and_functions_of_dist_are_traced_into_one_graph() -> None:
    run_ranks(traced, 2, backend="hccl")


@inductor
@pytest.mark.nightly("training")
@pytest.mark.parametrize("env", DOORS)
def test_inductor_keeps_every_call_in_the_order_of_the_program(env: dict[str, str]) -> None:
    run_ranks(by_inductor, 2, backend="hccl", env=env, timeout_s=300)
