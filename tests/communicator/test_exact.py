"""Exact sums: every element is the exact sum of its operands, or their average, rounded once.

The kernels are compared with rational numbers on hard numbers, then every call on every layout with
the kernels, which are given all ranks' operands at once.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from exact_oracle import FORMATS, MAGNITUDES, assert_exact, exact_sum, hard_numbers
from stores import MemoryStore
from thread_ranks import ThreadRanks
from tiers import by_night

from hccl_py import BootstrapError, Communicator, InvalidArgumentError, ReduceOp
from hccl_py.algorithms.choice.shared import Shared, is_reproducible
from hccl_py.transport import _core
from hccl_py.transport.types import DType

NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
COUNT = 70_001
SLICES = ((0, COUNT), (0, 1), (1, 5), (3, 4_000), (17, 40_017))
LAYOUTS = ("aaaaaaaa", "aaaabbbb", "abcdefgh", "aaabbbbb", "abababba", "abbb", "a" * 17)


def exactly(given: Sequence[torch.Tensor], divisor: int = 1) -> torch.Tensor:
    """Call the kernel."""
    result = torch.empty_like(given[0])
    dtype = int(DType[str(result.dtype).removeprefix("torch.").upper()])
    addresses = [one.data_ptr() for one in given]
    assert _core.reduce_exactly(dtype, dtype, result.data_ptr(), addresses, result.numel(), divisor)
    return result


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("count", [67, *by_night("calls", 1, 256, 2_000)])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_kernel_rounds_the_exact_sum_once(dtype: torch.dtype, magnitude: str, count: int) -> None:
    random = np.random.default_rng(count)
    for n in range(1, 18):
        given = hard_numbers(random, dtype, n, count, magnitude)
        for divisor in {1, n, int(random.integers(2, 1_000))}:
            assert_exact(exactly(given, divisor), given, divisor)


@pytest.mark.parametrize("n", [3, 1_000])
def test_sum_is_that_of_fsum(n: int) -> None:
    given = list(torch.randn(n, 50, dtype=torch.float64) * 2.0 ** torch.randint(-40, 40, (n, 50)))
    columns = torch.stack(given).T.tolist()
    assert exactly(given).tolist() == [math.fsum(column) for column in columns]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sum_of_8_bits_rounds_once(dtype: torch.dtype) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).view(dtype)
    places = [torch.randperm(256, generator=torch.Generator().manual_seed(k)) for k in range(9)]
    given = [codes[one] for one in places]
    total = torch.stack([one.double() for one in given]).sum(0)  # exact: they span 2^32
    assert same_bits(exactly(given), canonical(total.float().to(dtype)))


def canonical(numbers: torch.Tensor) -> torch.Tensor:
    """Replace every NaN by the one without a sign, as far as the type has it."""
    return torch.where(numbers.isnan(), torch.tensor(math.nan).to(numbers.dtype), numbers)


def test_flushing_subnormals_changes_nothing() -> None:
    given = [torch.full((300,), value, dtype=torch.float32) for value in (1e-40, 3e-41, 1.0, -1.0)]
    expected = exact_sum([float(one[0]) for one in given], 1, torch.float32)
    torch.set_flush_denormal(True)
    try:
        got = exactly(given)
    finally:
        torch.set_flush_denormal(False)
    assert set(got.tolist()) == {expected} != {0.0}


def check_calls(comm: Communicator, everyone: Any, ops: Sequence[int]) -> None:
    """Compare each call with the kernel; `ops`: of a sum and an average."""
    n, me = comm.world_size, comm.rank
    for op, divisor in zip(ops, (1, n), strict=True):
        for given in everyone:
            expected = exactly(given, divisor)
            for begin, end in SLICES:
                data = given[me].clone()[begin:end]
                comm.all_reduce(data, op)
                assert same_bits(data, expected[begin:end]), (data.dtype, begin, end)
                data, output = given[me].clone()[begin:end], torch.empty_like(data)
                comm.reduce(data, n - 1, op, output=output)
                assert me != n - 1 or same_bits(output, expected[begin:end]), (begin, end)
            block = COUNT // n
            part = torch.empty(block, dtype=data.dtype)
            comm.reduce_scatter(part, given[me][: n * block].clone(), op)
            assert same_bits(part, expected[me * block : (me + 1) * block]), data.dtype


def everyone_of(n: int, dtypes: Sequence[torch.dtype]) -> list[list[torch.Tensor]]:
    random = np.random.default_rng(n)
    wide = [hard_numbers(random, one, n, COUNT, "wide") for one in dtypes if one in FORMATS]
    numbers = hard_numbers(random, torch.float32, n, COUNT, "usual")
    return wide + [[one.to(kind) for one in numbers] for kind in dtypes if kind not in FORMATS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("layout", "dtypes"),
    [
        ("aabb", (torch.float32, torch.bfloat16)),
        *by_night("calls", *((layout, (*FORMATS, *NARROW)) for layout in LAYOUTS)),
    ],
)
def test_every_call_on_every_layout(
    layout: str, dtypes: Sequence[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_REPRODUCIBLE", "exact")
    monkeypatch.setenv("HCCL_ALGORITHM", "ring")  # is ignored
    everyone = everyone_of(len(layout), dtypes)
    with ThreadRanks(layout) as ranks:
        ranks.run(partial(check_calls, everyone=everyone, ops=(ReduceOp.SUM, ReduceOp.AVG)))


@pytest.mark.parametrize("provider", ["tcp", "verbs_over_tcp", "zmq"])
def test_a_call_is_exact_over_every_provider(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_TRANSPORT", provider)
    monkeypatch.setenv("HCCL_COMPRESSION", "bf16")
    ops = ReduceOp.EXACT_SUM, ReduceOp.EXACT_AVG
    with ThreadRanks("aab") as ranks:
        everyone = everyone_of(3, [torch.float32, torch.float64])
        ranks.run(partial(check_calls, everyone=everyone, ops=ops))


@pytest.mark.parametrize("n", [1, 2, 7, *by_night("calls", *sorted({*range(3, 18)} - {7}))])
def test_any_number_of_ranks(n: int) -> None:
    everyone = everyone_of(n, [torch.float32])
    with ThreadRanks("ab" * (n // 2) + "a" * (n % 2)) as ranks:
        ops = ReduceOp.EXACT_SUM, ReduceOp.EXACT_AVG
        ranks.run(partial(check_calls, everyone=everyone, ops=ops))


def test_subgroups_and_those_left_after_a_shrink_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_REPRODUCIBLE", "exact")
    everyone = everyone_of(3, [torch.float32])

    def run(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.split(None)
            return
        group = comm.split(0)
        assert group is not None
        pair = [[one[0], one[2]] for one in everyone]
        with group, comm.shrink(exclude=[1]) as left:
            for one in (group, left):
                check_calls(one, pair, (ReduceOp.SUM, ReduceOp.AVG))

    with ThreadRanks("aab") as ranks:
        ranks.run(run)


def test_integers_are_summed_up_as_ever_and_have_no_exact_op() -> None:
    with Communicator(MemoryStore(10), 0, 1, reproducible="exact") as comm:
        data = np.ones(3, np.int32)
        comm.all_reduce(data)
        with pytest.raises(InvalidArgumentError, match="type int32, got exact_sum"):
            comm.all_reduce(data, ReduceOp.EXACT_SUM)


def test_ranks_that_ask_for_another_kind_are_told() -> None:
    store = MemoryStore(60)

    def run(rank: int) -> str:
        with pytest.raises(BootstrapError) as caught:
            Communicator(store, rank, 2, timeout_s=60, reproducible=(True, "exact")[rank])
        return str(caught.value)

    with ThreadPoolExecutor(2) as threads:
        texts = list(threads.map(run, range(2)))
    assert all("'1' on rank 0, 'exact' on rank 1" in text for text in texts), texts


def test_settings() -> None:
    assert is_reproducible({"HCCL_REPRODUCIBLE": "exact"}) == "exact"
    assert Shared.parse(Shared(reproducible="exact").packed()).reproducible == "exact"
    with pytest.raises(InvalidArgumentError, match="reproducible: expected True, False or 'exact'"):
        Communicator(MemoryStore(10), 0, 1, reproducible="exactly")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="reproducible: expected no compression"):
        Communicator(MemoryStore(10), 0, 1, compression="bf16", reproducible="exact")
