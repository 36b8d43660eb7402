"""Calls that take the short way, and those that only look like it, end with the same values."""

from collections.abc import Callable, Iterator
from typing import Any

import frames
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch._C._distributed_c10d import AllgatherOptions

from hccl_py import ReduceOp
from hccl_py.torch_backend.checks.arguments import OPS_BY_HASH
from hccl_py.transport.types import EXACT

Call = Callable[..., Any]


class Labelled(torch.Tensor):
    """A tensor with a name for what it is."""


def strided(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values, values], 1)[:, 0]


def negated(values: torch.Tensor) -> torch.Tensor:
    return torch.complex(torch.zeros_like(values), -values).conj().imag


KINDS: dict[str, Call] = {
    "plain": torch.clone,
    "complex": lambda values: torch.complex(values, values),
    "negated": negated,
    "strided": strided,
    "leaf": lambda values: values.clone().requires_grad_(),
    "parameter": lambda values: torch.nn.Parameter(values.clone()),
    "labelled": lambda values: values.clone().as_subclass(Labelled),
    "half": lambda values: values.half(),
    "bytes": lambda values: values.to(torch.float8_e4m3fn),
}


def results(make: Call, rank: int, **options: Any) -> Iterator[torch.Tensor]:
    """Make every call that has a short way; a barrier behind each shows that ranks are in step."""
    data, two = make(torch.ones(2) + rank), make(torch.zeros(2))
    four = make(torch.arange(4.0) + 10 * rank)
    calls: list[tuple[torch.Tensor, Call]] = [
        (data, lambda: dist.all_reduce(data, **options)),
        (data, lambda: dist.broadcast(data, 1, **options)),
        (data, lambda: dist.reduce(data, 0, **options)),
        (four, lambda: dist.all_gather_single(four, data, **options)),
        (two, lambda: dist.reduce_scatter_single(two, four, **options)),
        (data, lambda: dist.all_to_all_single(data, two, **options)),
        (data, lambda: exchange(data, two, rank)),
    ]
    for output, call in calls:
        work = call()
        if options:
            work.wait()
        dist.barrier()
        plain = output.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        wide = torch.complex64 if plain.is_complex() else torch.float32
        yield plain.to(wide, copy=True).contiguous()


def exchange(data: torch.Tensor, two: torch.Tensor, rank: int) -> Any:
    sending = dist.isend(data, 1 - rank)
    dist.recv(two, 1 - rank)
    assert sending is not None
    sending.wait()
    return sending


def check_kinds(rank: int, world_size: int) -> None:
    real, imaginary = results(KINDS["plain"], rank), results(KINDS["plain"], rank)
    expected = list(real)
    assert all(map(torch.equal, expected, imaginary))
    for name, make in KINDS.items():
        for options in ({}, {"async_op": True}):
            got = list(results(make, rank, **options))
            assert len(got) == len(expected)
            for index, (one, other) in enumerate(zip(got, expected, strict=True)):
                right = torch.complex(other, other) if one.is_complex() else other
                assert torch.equal(one, right), f"{name}, call {index}: {one}, expected {right}"
    with torch.profiler.profile() as profile:
        assert all(map(torch.equal, expected, results(KINDS["plain"], rank)))
    counts = {event.key: event.count for event in profile.key_averages()}
    for method in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"):
        assert counts[f"hccl:{method}"] == 1
    assert (counts["hccl:all_to_all"], counts["hccl:barrier"]) == (1, 7)


def test_every_kind_of_tensor_gives_the_same_values() -> None:
    run_ranks(check_kinds, 2, backend="hccl")


def check_conjugates(rank: int, world_size: int) -> list[complex]:
    # torch's functions look at complex tensors as pairs, which conjugates are not, and reject them.
    sent = torch.complex(torch.ones(2), torch.ones(2)).conj()
    received = torch.zeros(2, dtype=torch.complex64).conj()
    group: Any = dist.group.WORLD
    sending = group.send([sent], 1 - rank)
    group.recv([received], 1 - rank).wait()
    sending.wait()
    gathered = torch.zeros(4, dtype=torch.complex64).conj()
    group.all_gather_single(gathered, sent, AllgatherOptions()).wait()
    group.allreduce([received], dist.AllreduceOptions()).wait()
    return [*received.tolist(), *gathered.tolist()]


def test_conjugates_are_resolved_on_the_way() -> None:
    expected = [2 - 2j] * 2 + [1 - 1j] * 4
    assert run_ranks(check_conjugates, 2, backend="hccl") == [expected] * 2


def test_torchs_operations_are_told_apart_by_their_hash() -> None:
    assert len(OPS_BY_HASH) == len(ReduceOp) - len(EXACT)
    for number, ours in OPS_BY_HASH.items():
        assert hash(dist.ReduceOp(getattr(dist.ReduceOp, ours.name))) == number


def test_calls_make_no_more_python_frames_than_documented() -> None:
    _, documented = frames.documented()
    counted = frames.counted()
    assert counted.keys() == documented.keys()
    more = {name: one for name, one in counted.items() if one.ours > documented[name].ours}
    assert not more, f"docs/tables/torch.md says {documented}; harness/frames.py writes that part"
