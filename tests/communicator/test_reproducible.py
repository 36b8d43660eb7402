"""Reproducible reductions: the bits are those of a fold in rank order, whatever else changes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce

import pytest
import torch
from node_shapes import nodes_by
from stores import MemoryStore
from thread_ranks import ThreadRanks

from hccl_py import BootstrapError, Communicator, InvalidArgumentError
from hccl_py.algorithms.choice.shared import Shared, is_reproducible
from hccl_py.calls.plan_cache import PlanCache
from hccl_py.memory.element_types import ELEMENT_TYPES
from hccl_py.transport.types import Compression, DType, ReduceOp

MANY = pytest.mark.nightly("calls")
LAYOUTS = ("aaaaaaaa", "aaaabbbb", "aabbccdd", "abcdefgh", "aaabbbbb", "abababba", "aaaa", "abbb")
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *NARROW)
COUNT = 70_001
SLICES = ((0, COUNT), (0, 1), (1, 5), (3, 4_000), (17, 40_017))


def inputs_of(n: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Make numbers of many magnitudes: another order of summing them gives other bits."""
    generator = torch.Generator().manual_seed(7)
    exponents = [torch.randint(-3, 4, (COUNT,), generator=generator) for _ in range(n)]
    numbers = [torch.randn(COUNT, generator=generator, dtype=torch.float64) for _ in range(n)]
    return [(one * 2.0**by).to(dtype) for one, by in zip(numbers, exponents, strict=True)]


def folded(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum up in rank order; what is narrower than float32 is summed up in it and rounded once."""
    dtype = inputs[0].dtype
    wide = [one if dtype is torch.float64 else one.float() for one in inputs]
    return reduce(torch.add, wide).to(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("layout", "dtypes"),
    [
        pytest.param("aabb", (torch.float32, torch.bfloat16), id="aabb"),
        *(pytest.param(layout, DTYPES, marks=MANY, id=layout) for layout in LAYOUTS),
    ],
)
def test_bits_are_those_of_a_fold_in_rank_order(
    layout: str, dtypes: Sequence[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_REPRODUCIBLE", "1")
    n = len(layout)
    inputs = {dtype: inputs_of(n, dtype) for dtype in dtypes}

    def run(comm: Communicator, dtype: torch.dtype, expected: torch.Tensor) -> None:
        mine, me = inputs[dtype][comm.rank], comm.rank
        for begin, end in SLICES:
            data = mine.clone()[begin:end]
            comm.all_reduce(data)
            assert same_bits(data, expected[begin:end]), (dtype, begin, end)
            data = mine.clone()[begin:end]
            comm.reduce(data, n - 1)
            assert me != n - 1 or same_bits(data, expected[begin:end]), (dtype, begin, end)
        block = COUNT // n
        part = torch.empty(block, dtype=dtype)
        comm.reduce_scatter(part, mine[: n * block].clone())
        assert same_bits(part, expected[me * block : (me + 1) * block]), dtype

    with ThreadRanks(layout) as ranks:
        for dtype, everyone in inputs.items():
            ranks.run(partial(run, dtype=dtype, expected=folded(everyone)))


def algorithms_of(rep: bool, environ: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    chosen: list[str] = []
    monkeypatch.setenv("HCCL_ALGORITHM", environ)
    cache = PlanCache(0, nodes_by("aaabb"), reproducible=rep)
    monkeypatch.setattr(
        "hccl_py.calls.plan_cache.logger.log",
        lambda _level, text: chosen.append(text.split(": ")[2]),
    )
    for collective in ("all_reduce", "all_gather"):
        kind, usual = ELEMENT_TYPES[DType.FLOAT32], (None, True, Compression.NONE)
        cache.find(collective, kind, ReduceOp.SUM, 1 << 20, *usual)
    return [one.partition(";")[0] for one in chosen]


def test_only_an_algorithm_in_rank_order_reduces_and_others_are_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert algorithms_of(False, "", monkeypatch) == ["hierarchical", "hierarchical"]
    assert algorithms_of(True, "", monkeypatch) == ["mesh", "hierarchical"]
    assert algorithms_of(True, "ring", monkeypatch) == ["mesh", "ring"]
    assert algorithms_of(True, "all_reduce=one_shot", monkeypatch) == ["one_shot", "hierarchical"]


def test_rank_0_decides_for_all_and_for_subgroups() -> None:
    store = MemoryStore(60)

    def run(rank: int) -> list[bool]:
        with Communicator(store, rank, 3, timeout_s=60, reproducible=rank == 0) as comm:
            groups = [comm, comm.split(0 if rank else None)]
            return [one._state.plans._reproducible for one in groups if one is not None]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(run, range(3))) == [[True], [True] * 2, [True] * 2]


def test_a_rank_that_asks_in_vain_says_so_and_rank_0_hears_it() -> None:
    store = MemoryStore(60)

    def run(rank: int) -> str:
        with (
            pytest.raises(BootstrapError) as caught,
            Communicator(store, rank, 2, timeout_s=60, reproducible=rank == 1) as comm,
        ):
            comm.all_reduce(torch.ones(3))
        return str(caught.value)

    with ThreadPoolExecutor(2) as threads:
        texts = list(threads.map(run, range(2)))
    expected = "HCCL_REPRODUCIBLE (argument reproducible) is not set on rank 0, '1' on rank 1"
    assert all(expected in text for text in texts), texts


def test_settings_of_rank_0_are_packed_beside_the_tuning() -> None:
    assert Shared.parse(Shared(reproducible=True, tuning=b"{}").packed()) == ("", True, b"{}")
    assert Shared.parse(Shared(tuning=b"{}").packed()) == ("", False, b"{}")
    assert [is_reproducible({"HCCL_REPRODUCIBLE": text}) for text in ("", "0", "1")] == [0, 0, 1]
    with pytest.raises(InvalidArgumentError, match="expected 0, 1 or exact, got 'no'"):
        is_reproducible({"HCCL_REPRODUCIBLE": "no"})


def test_compression_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="reproducible: expected no compression"):
        Communicator(MemoryStore(10), 0, 1, compression="bf16", reproducible=True)
    with pytest.raises(InvalidArgumentError, match="expected none in a reproducible"):
        PlanCache(0, nodes_by("ab"), reproducible=True).checked(Compression.BF16)
