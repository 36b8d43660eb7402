"""Every argument of every public call, given what it is not: it works, or one line names it."""

import math
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

import hccl_py
from hccl_py import Communicator, InvalidArgumentError
from hccl_py.transport.arguments import LONGEST_S, seconds

BAD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "negative": lambda: -1,
    "huge": lambda: 1e18,
    "2^70": lambda: 1 << 70,
    "10^5000": lambda: 10**5000,  # Python prints no number of so many digits
    "text": lambda: "30",
    "half a character": lambda: "\ud800",
    "bytes": lambda: b"30",
    "list": lambda: [None],
    "object": object,
    "other shape": lambda: np.zeros((7, 2)),
    "array of no dimension": lambda: np.array(1.5),
    "type": lambda: int,
    "other device": lambda: torch.zeros(4, device="meta"),
}


def data() -> Any:
    return np.zeros(4)


def made(**given: Any) -> None:
    with Communicator(**{"store": None, "rank": 0, "world_size": 1, **given}):
        pass


def set_timeout(comm: Communicator, value: Any) -> None:
    comm.timeout_s = value


def replayed(comm: Communicator, value: Any) -> None:
    with hccl_py.capture() as graph:
        comm.barrier()
    work = graph.replay(async_op=value)
    if work is not None:
        work.wait()


CALLS: dict[str, Callable[[Communicator, Any], object]] = {
    **{
        f"Communicator: {name}": lambda _, v, name=name: made(**{name: v})  # type: ignore[misc]
        for name in ("store", "rank", "world_size", "timeout_s", "name", "identity")
    },
    **{
        f"Communicator: {name}": lambda _, v, name=name: made(**{name: v})  # type: ignore[misc]
        for name in ("compression", "algorithms", "reproducible")
    },
    "comm.timeout_s: timeout_s": set_timeout,
    "all_reduce: data": lambda c, v: c.all_reduce(v),
    "all_reduce: op": lambda c, v: c.all_reduce(data(), v),
    "all_reduce: output": lambda c, v: c.all_reduce(data(), output=v),
    "all_reduce: compression": lambda c, v: c.all_reduce(data(), compression=v),
    "all_reduce: timeout_s": lambda c, v: c.all_reduce(data(), timeout_s=v),
    "nonblocking: timeout_s": lambda c, v: c.nonblocking.all_reduce(data(), timeout_s=v).wait(),
    "wait: timeout_s": lambda c, v: c.nonblocking.barrier().wait(v),
    "reduce: data": lambda c, v: c.reduce(v, 0),
    "reduce: root": lambda c, v: c.reduce(data(), v),
    "reduce: op": lambda c, v: c.reduce(data(), 0, v),
    "reduce: output": lambda c, v: c.reduce(data(), 0, output=v),
    "broadcast: data": lambda c, v: c.broadcast(v, 0),
    "broadcast: root": lambda c, v: c.broadcast(data(), v),
    "broadcast: output": lambda c, v: c.broadcast(data(), 0, output=v),
    "barrier: timeout_s": lambda c, v: c.barrier(timeout_s=v),
    "all_gather: output": lambda c, v: c.all_gather(v, data()),
    "all_gather: input": lambda c, v: c.all_gather(data(), v),
    "all_gather: timeout_s": lambda c, v: c.all_gather(data(), data(), timeout_s=v),
    "reduce_scatter: output": lambda c, v: c.reduce_scatter(v, data()),
    "reduce_scatter: input": lambda c, v: c.reduce_scatter(data(), v),
    "reduce_scatter: op": lambda c, v: c.reduce_scatter(data(), data(), v),
    "all_to_all: output": lambda c, v: c.all_to_all(v, data()),
    "all_to_all: input": lambda c, v: c.all_to_all(data(), v),
    "gather: output": lambda c, v: c.gather(v, data(), 0),
    "gather: input": lambda c, v: c.gather(data(), v, 0),
    "gather: root": lambda c, v: c.gather(data(), data(), v),
    "scatter: output": lambda c, v: c.scatter(v, data(), 0),
    "scatter: input": lambda c, v: c.scatter(data(), v, 0),
    "scatter: root": lambda c, v: c.scatter(data(), data(), v),
    "send: data": lambda c, v: c.nonblocking.send(v, 0),
    "send: peer": lambda c, v: c.nonblocking.send(data(), v),
    "send: tag": lambda c, v: c.nonblocking.send(data(), 0, v),
    "recv: data": lambda c, v: c.nonblocking.recv(v, 0),
    "recv: peer": lambda c, v: c.nonblocking.recv(data(), v),
    "recv: tag": lambda c, v: c.nonblocking.recv(data(), 0, v),
    "recv: timeout_s": lambda c, v: c.nonblocking.recv(data(), 0, timeout_s=v),
    "subset: members": lambda c, v: c.subset(v, "part"),
    "subset: name": lambda c, v: c.subset([0], v),
    "subset: timeout_s": lambda c, v: c.subset([0], "part", timeout_s=v),
    "split: color": lambda c, v: c.split(v),
    "split: key": lambda c, v: c.split(0, v),
    "split: timeout_s": lambda c, v: c.split(0, timeout_s=v),
    "shrink: exclude": lambda c, v: c.shrink(v),
    "shrink: timeout_s": lambda c, v: c.shrink(timeout_s=v),
    "grow: unique_id": lambda c, v: c.grow(v, timeout_s=0.1),
    "abort: reason": lambda c, v: c.abort(v),
    "dump_flight_recorder: folder": lambda c, v: c.dump_flight_recorder(v),
    "replay: async_op": replayed,
    "premul_sum: factor": lambda _, v: hccl_py.premul_sum(v),
    "empty: shape": lambda _, v: hccl_py.empty(v),
    "empty: dtype": lambda _, v: hccl_py.empty(3, v),
    "register: register": lambda _, v: hccl_py.register(v),
    "UniqueId: unique_id": lambda _, v: hccl_py.UniqueId(v),
    "get_unique_id: timeout_s": lambda _, v: hccl_py.get_unique_id(v),
    "algorithm: collective": lambda _, v: hccl_py.algorithm(v),
    "algorithm: min_bytes": lambda _, v: hccl_py.algorithm("reduce", min_bytes=v),
    "algorithm: max_bytes": lambda _, v: hccl_py.algorithm("reduce", max_bytes=v),
    "algorithm: when": lambda _, v: hccl_py.algorithm("reduce", when=v),
    "algorithm: algorithm": lambda _, v: hccl_py.algorithm("reduce")(v),
    "CompressionState: process_group": lambda _, v: hccl_py.CompressionState("int8", v),
    "ExactAccumulator: process_group": lambda _, v: hccl_py.ExactAccumulator(v),
    "ExactAccumulator: micro_batches": lambda _, v: hccl_py.ExactAccumulator(micro_batches=v),
    "exact_hook: state": lambda _, v: hccl_py.exact_hook(v, v),
    "compression_hook: state": lambda _, v: hccl_py.compression_hook(v, v),
}


@pytest.mark.parametrize("call", CALLS)
def test_argument_that_makes_no_sense_is_named_in_one_line(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a folder of that name may be made
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    argument = call.partition(": ")[2]
    for kind, bad in BAD.items():
        with Communicator(None, 0, 1) as comm:
            try:
                CALLS[call](comm, bad())
            except InvalidArgumentError as error:
                names = rf"\b({argument}|unique_id|MASTER_ADDR|rank and world_size)\b"
                assert re.search(names, str(error)), (kind, str(error))
                assert "\n" not in str(error), kind
            except MemoryError as error:
                assert "bytes of registered memory" in str(error), (kind, str(error))
            comm.abort()  # close() would wait for what was sent or received here


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -1, 1e18, "30", [1.0], 2e8])
def test_timeout_that_is_none_is_refused_wherever_it_is_given(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^timeout_s: expected a number of seconds"):
        Communicator(None, 0, 1, timeout_s=bad)
    with Communicator(None, 0, 1) as comm:
        with pytest.raises(InvalidArgumentError, match=r"^timeout_s: "):
            comm.timeout_s = bad
        with pytest.raises(InvalidArgumentError, match=r"^timeout_s: "):
            comm.shrink(timeout_s=bad)
        if bad is not None:  # which is the communicator's own
            for call in (comm.barrier, comm.nonblocking.barrier):
                with pytest.raises(InvalidArgumentError, match=r"^timeout_s: "):
                    call(timeout_s=bad)
            with pytest.raises(InvalidArgumentError, match=r"^timeout_s: "):
                comm.nonblocking.barrier().wait(bad)


def test_seconds_take_every_real_number_up_to_the_longest() -> None:
    for number in (0, 0.5, np.float32(2.0), np.int64(3), LONGEST_S):
        assert seconds("timeout_s", number) == float(number)
    with pytest.raises(InvalidArgumentError, match="above 0"):
        seconds("timeout_s", 0, above_zero=True)


def check_longest(rank: int, n: int) -> float:
    with Communicator(timeout_s=LONGEST_S) as comm:
        total = np.ones(1)
        comm.all_reduce(total)
        comm.split(0).close()  # type: ignore[union-attr]
        return float(total[0])


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_longest_timeout_overflows_nothing(nodes: str) -> None:
    results = run_ranks(check_longest, 2, env=lambda rank: {"HCCL_NODE_ID": nodes[rank]})
    assert results == [2.0, 2.0]


def check_file_limit(rank: int, n: int, limit_bytes: int) -> float:
    hard_limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard_limit_bytes))
    with Communicator() as comm:
        total = np.ones(1)
        comm.all_reduce(total)
        return float(total[0])


def test_limit_of_file_sizes_costs_registered_memory_only() -> None:
    assert run_ranks(check_file_limit, 2, 10 << 20) == [2.0, 2.0]


def check_low_file_limit(rank: int, n: int, limit_bytes: int) -> None:
    with pytest.raises(hccl_py.BootstrapError) as caught:
        check_file_limit(rank, n, limit_bytes)
    hard_limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit_bytes,) * 2)  # what ends the rank writes
    assert "ulimit -f" in str(caught.value)
    assert f"up to {limit_bytes} bytes" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit_bytes", [100 << 10, 0])
def test_limit_of_file_sizes_that_is_too_low_is_named(limit_bytes: int) -> None:
    run_ranks(check_low_file_limit, 2, limit_bytes)
