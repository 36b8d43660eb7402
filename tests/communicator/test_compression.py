"""Compression between nodes: errors within docs/speed/compression.md's bound, and the same bits."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import Array
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import Communicator, ErrorFeedback, InvalidArgumentError, MismatchError, ReduceOp
from hccl_py.compression import MIN_BYTES, GainCheck

SMALLEST = MIN_BYTES // 4  # elements of float32
SIZES = (SMALLEST, SMALLEST + 1, 50_003, 300_007)
COMPRESSIONS = ("bf16", "int8")

ranks = ranks_on("ab", "aabb", "abc", "aaabb", HCCL_VERIFY="1")


def numbers(rank: int, count: int) -> Array:
    """Make gradients: of all magnitudes, in stretches of different ones."""
    random = np.random.default_rng(rank)
    scales = np.repeat(2.0 ** random.integers(-30, 10, count // 100 + 1), 100)[:count]
    return (random.normal(size=count) * scales).astype(np.float32)


def bound(
    compression: str,
    nodes: tuple[tuple[int, ...], ...],
    inputs: list[Array],
    collective: str = "all_reduce",
) -> Array:
    """Return the largest error of each element of a sum, as the page states it."""
    sums = [np.abs(np.sum([inputs[r] for r in node], 0, np.float64)) for node in nodes]
    if compression == "int8":
        padded = [np.pad(one, 255) for one in sums]
        sums = [np.lib.stride_tricks.sliding_window_view(one, 511).max(1) for one in padded]
    part = {"bf16": 2.0**-8, "int8": 1 / 253}[compression]
    roundings = 1 if len(nodes) == 2 or collective == "reduce_scatter" else 2.01
    floats = 2.0**-22 * np.sum(np.abs(inputs), 0, np.float64)  # what float32 itself rounds
    return roundings * part * np.sum(sums, 0) + floats + 2.0**-120


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_all_reduce_is_within_the_bound_and_the_same_on_all_ranks(
    ranks: ThreadRanks, compression: str
) -> None:
    n = ranks.world_size
    nodes = ranks.communicators[0].nodes
    for count in SIZES:
        inputs = [numbers(rank, count) for rank in range(n)]
        for op, divisor in ((ReduceOp.SUM, 1), (ReduceOp.AVG, n)):

            def all_reduce(comm: Communicator, inputs: Any = inputs, op: Any = op) -> Array:
                data = inputs[comm.rank].copy()
                comm.all_reduce(data, op, compression=compression)
                return data

            results = ranks.run(all_reduce)
            assert len({result.tobytes() for result in results}) == 1
            error = np.abs(results[0] - np.sum(inputs, 0, np.float64) / divisor)
            limit = bound(compression, nodes, inputs) / divisor
            assert np.all(error <= limit), (count, float(np.max(error / limit)))
            assert np.any(error > limit / 100), "nothing was compressed"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_reduce_scatter_rounds_once_for_any_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setenv("HCCL_COMPRESSION", compression)
    with ThreadRanks("aabc") as ranks:
        n, nodes = ranks.world_size, ranks.communicators[0].nodes
        for count in (SMALLEST // n, 30_011):
            inputs = [numbers(rank, n * count) for rank in range(n)]

            def reduce_scatter(comm: Communicator, inputs: Any = inputs, count: int = count) -> Any:
                block = np.zeros(count, np.float32)
                comm.reduce_scatter(block, inputs[comm.rank])
                return block

            error = np.abs(np.concatenate(ranks.run(reduce_scatter)) - np.sum(inputs, 0, float))
            limit = bound(compression, nodes, inputs, "reduce_scatter")
            assert np.all(error <= limit), (count, float(np.max(error / limit)))
            assert np.any(error > limit / 100), "nothing was compressed"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_calls_that_are_not_large_float32_sums_are_exact(
    ranks: ThreadRanks, compression: str
) -> None:
    n = ranks.world_size

    def check(comm: Communicator) -> None:
        calls: list[tuple[type, int, ReduceOp]] = [
            (np.float32, SMALLEST - 1, ReduceOp.SUM),
            (np.float32, SMALLEST, ReduceOp.MAX),
            (np.float64, SMALLEST, ReduceOp.SUM),
            (np.complex64, SMALLEST, ReduceOp.SUM),
        ]
        for dtype, count, op in calls:
            inputs = [np.arange(count).astype(dtype) + 1.001 * rank for rank in range(n)]
            inputs = [one.astype(dtype) for one in inputs]
            expected, plain = inputs[comm.rank].copy(), inputs[comm.rank].copy()
            comm.all_reduce(expected, op, compression="none")
            comm.all_reduce(plain, op, compression=compression)
            np.testing.assert_array_equal(plain, expected)

    ranks.run(check)


def test_infinity_and_nan_reach_every_rank(ranks: ThreadRanks) -> None:
    def all_reduce(comm: Communicator) -> list[Array]:
        results = []
        for compression in COMPRESSIONS:
            data = np.ones(SMALLEST, np.float32)
            if comm.rank == 0:
                data[[7, 9]] = np.inf, np.nan
            comm.all_reduce(data, compression=compression)
            results.append(data)
        return results

    for bf16, int8 in ranks.run(all_reduce):
        assert np.isinf(bf16[7])
        assert np.isnan(bf16[9])
        assert np.isfinite(np.delete(bf16, [7, 9])).all()
        assert np.isnan(int8[[7, 9]]).all()
        assert np.isnan(int8).sum() <= 256


def test_error_feedback_makes_the_errors_of_many_calls_cancel(ranks: ThreadRanks) -> None:
    """The sum of the results of k calls is off by the error of one call, not of k."""
    count, calls, n = SMALLEST + 77, 20, ranks.world_size
    inputs = [numbers(rank, count) for rank in range(n)]
    exact = np.sum(inputs, 0, np.float64)
    nodes = ranks.communicators[0].nodes

    def sums(comm: Communicator, make: Callable[[], Any]) -> Array:
        total, compression = np.zeros(count), make()
        for _ in range(calls):
            data = inputs[comm.rank].copy()
            comm.all_reduce(data, compression=compression)
            total += data
        return total

    for name in COMPRESSIONS:
        limit = bound(name, nodes, inputs)
        errors = [
            np.abs(ranks.run(lambda comm, make=make: sums(comm, make))[0] - calls * exact)  # type: ignore[misc]
            for make in (lambda name=name: name, lambda name=name: ErrorFeedback(name))  # type: ignore[misc]
        ]
        without, with_feedback = errors
        assert np.all(with_feedback <= 2 * limit + calls * 2.0**-22 * np.abs(inputs).sum(0))
        assert np.median(without / limit) > 3 * np.median(with_feedback / limit)


def test_feedback_of_another_tensor_is_refused_before_anything_is_sent() -> None:
    def all_reduce(comm: Communicator) -> None:
        feedback = ErrorFeedback("int8")
        comm.all_reduce(np.ones(SMALLEST, np.float32), compression=feedback)
        with pytest.raises(InvalidArgumentError, match="of 16384 elements, the call has 16385"):
            comm.all_reduce(np.ones(SMALLEST + 1, np.float32), compression=feedback)
        comm.barrier()

    with ThreadRanks("ab") as ranks:
        ranks.run(all_reduce)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_communicator_compresses_by_its_environment_and_hands_it_on(
    monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setenv("HCCL_COMPRESSION", compression)
    n, count = 4, 2 * SMALLEST
    inputs = [numbers(rank, n * count) for rank in range(n)]
    exact = np.sum(inputs, 0, np.float64)

    def check(comm: Communicator) -> None:
        comm.reduce_scatter(np.zeros(count, np.float32), inputs[comm.rank])
        results = []
        for one in (comm, comm.subset(range(n), "all")):
            data = inputs[comm.rank].copy()
            one.all_reduce(data)
            results.append(data)
            one.nonblocking.all_reduce(data := inputs[comm.rank].copy()).wait()
            results.append(data)
        assert len({result.tobytes() for result in results}) == 1
        assert np.abs(results[0] - exact).max() > 0
        raw, sent = comm._state.core.compression()[1:3]
        assert raw / sent == pytest.approx({"bf16": 2, "int8": 3.938}[compression], rel=0.01)

    with ThreadRanks("aabb") as ranks:
        ranks.run(check)


def test_one_node_compresses_nothing() -> None:
    def all_reduce(comm: Communicator) -> None:
        data, expected = numbers(comm.rank, SMALLEST), numbers(comm.rank, SMALLEST)
        comm.all_reduce(data, compression=ErrorFeedback("int8"))
        comm.all_reduce(expected)
        np.testing.assert_array_equal(data, expected)
        assert comm._state.core.compression()[0] == 0

    with ThreadRanks("aaa") as ranks:
        ranks.run(all_reduce)


@pytest.mark.parametrize("name", ["fp4", "BF16", "", 3])
def test_unknown_compression_is_named(name: Any) -> None:
    with ThreadRanks("a") as ranks:
        (error,) = ranks.failures(lambda comm: comm.all_reduce(np.ones(3), compression=name))
    assert "compression: expected one of none, bf16, int8, got " in str(error)


def test_ranks_that_compress_differently_name_both_calls() -> None:
    def all_reduce(comm: Communicator) -> None:
        chosen = ("int8", "bf16", "none")[comm.rank]
        comm.all_reduce(np.ones(SMALLEST, np.float32), compression=chosen)

    with ThreadRanks("abc") as ranks:
        errors = ranks.failures(all_reduce)
    assert all(isinstance(error, MismatchError) for error in errors), errors
    for part in ("compression=int8, float32[16384]", "compression=bf16, float32[16384]"):
        assert part in str(errors[0])


class Counted:
    """An engine that has counted what the test says."""

    def __init__(self, coding_s: float, wire_s: float, *speeds: float) -> None:
        self._coding_ns, self._wire_ns = int(coding_s * 1e9), int(wire_s * 1e9)
        self._speeds = speeds

    def compression(self) -> tuple[int, ...]:
        return 8, 4_000_000_000, 1_000_000_000, self._coding_ns

    def profile(self) -> tuple[int, ...]:
        return 0, 0, self._wire_ns

    def path_statistics(self) -> list[dict[str, float]]:
        return [{"bytes_per_second": speed} for speed in self._speeds]


@pytest.mark.parametrize(
    ("coding_s", "wire_s", "speeds", "reason"),
    [
        (0.4, 0.0, (0.0,), None),  # too little to judge by
        (1.0, 0.1, (0.06e9, 0.06e9), None),
        (1.0, 0.4, (3e9, 3e9), None),
        (1.0, 0.1, (3e9, 3e9), "took 1 s and saved 0.5 s of sending and receiving"),
        (1.0, 0.1, (0.0, 0.0), "took 1 s and saved 0.3 s of sending and receiving"),
    ],
)
def test_warning_says_once_that_coding_took_longer_than_the_bytes_it_saved(
    caplog: pytest.LogCaptureFixture,
    coding_s: float,
    wire_s: float,
    speeds: tuple[float, ...],
    reason: str | None,
) -> None:
    engine: Any = Counted(coding_s, wire_s, *speeds)
    check = GainCheck("job", is_open=True)
    with caplog.at_level(logging.WARNING, "hccl_py"):
        check.check(engine)
        check.check(engine)
    assert check.is_open == (coding_s < 1)
    assert len(caplog.records) == (reason is not None)
    assert (reason or "") in caplog.text


def test_gain_is_judged_by_what_the_engine_times_in_compressed_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hccl_py.compression._JUDGED_NS", 1)

    def check(comm: Communicator) -> None:
        data, gain = np.ones(SMALLEST, np.float32), comm._state.gain
        comm.all_reduce(data, compression="none")
        assert comm._state.core.profile() == (0, 0, 0)
        comm.all_reduce(data, compression="int8")
        assert comm._state.core.profile()[2] > 0
        assert not gain.is_decided
        comm.all_reduce(data, compression="int8")
        assert gain.is_decided == (comm.rank == 0)

    with ThreadRanks("ab") as ranks:
        ranks.run(check)
