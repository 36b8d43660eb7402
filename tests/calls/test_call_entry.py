"""Calls on plain memory take a shorter way, with the same results and errors."""

import inspect
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import ThreadRanks, ranks_on

from hccl_py import (
    AbortedError,
    Communicator,
    InvalidArgumentError,
    MismatchError,
    ReduceOp,
    group,
)

Make = Callable[..., Any]

ranks = ranks_on("aab")


class Labelled(np.ndarray[Any, Any]):
    """An array with a name for what it is."""


def of_numpy(*values: float, dtype: str = "float32") -> Any:
    return np.array(values, dtype)


def of_torch(*values: float, dtype: str = "float32") -> Any:
    return torch.tensor(values, dtype=getattr(torch, dtype))


LIBRARIES = pytest.mark.parametrize("make", [of_numpy, of_torch])


def alone() -> Communicator:
    return Communicator(None, 0, 1)


def num_frames(call: Callable[[], Any]) -> int:
    """Count the Python frames that a call makes beside its own."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(names) - 1


def calls(comm: Communicator, make: Make) -> dict[str, Callable[[], Any]]:
    one, other = make(1), make(2)
    return {
        "all_reduce": lambda: comm.all_reduce(one),
        "max": lambda: comm.all_reduce(one, ReduceOp.MAX),
        "broadcast": lambda: comm.broadcast(one, 0),
        "reduce": lambda: comm.reduce(one, 0),
        "all_gather": lambda: comm.all_gather(other, one),
        "reduce_scatter": lambda: comm.reduce_scatter(other, one),
        "all_to_all": lambda: comm.all_to_all(other, one),
        "all_gather in a list": lambda: comm.all_gather([other], one),
        "reduce_scatter of a list": lambda: comm.reduce_scatter(other, [one]),
        "barrier": lambda: comm.barrier(),
        "all_reduce out of place": lambda: comm.all_reduce(one, output=other),
        "broadcast out of place": lambda: comm.broadcast(one, 0, output=other),
        "reduce out of place": lambda: comm.reduce(one, 0, output=other),
        "with a deadline": lambda: comm.all_reduce(one, timeout_s=5.0),
        "by name": lambda: comm.all_gather(input=one, output=other),
        "gather": lambda: comm.gather([other], one, 0),
        "scatter": lambda: comm.scatter(other, one, 0),
    }


@LIBRARIES
def test_known_calls_make_no_python_frame(make: Make) -> None:
    if make is of_torch and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch shows its tensors to Python only")
    with alone() as comm:
        for name, call in calls(comm, make).items():
            call()
            assert num_frames(call) == 0, name
        for dtype in ("float64", "float16", "int8"):  # its library is known, with other elements
            data = make(1, dtype=dtype)
            comm.all_reduce(data)
            assert num_frames(lambda data=data: comm.all_reduce(data)) == 0, dtype  # type: ignore[misc]


def test_a_list_that_another_thread_clears_keeps_its_arrays(ranks: ThreadRanks) -> None:
    is_cleared = threading.Event()

    def run(comm: Communicator) -> list[bool]:
        is_alive: list[bool] = []
        for _ in range(3):  # the later calls are known
            comm.barrier()
            is_cleared.clear()
            comm.barrier()
            listed = [of_numpy(0) for _ in range(comm.world_size)]
            refs = [weakref.ref(one) for one in listed]
            if comm.rank != 1:
                assert is_cleared.wait(60)
                comm.all_gather(listed, of_numpy(1))
                continue

            def clear(listed: list[Any], refs: list[Any], number: int) -> None:
                end_s = time.monotonic() + 60
                while comm._state.core.sequence() < number and time.monotonic() < end_s:
                    time.sleep(0.001)
                listed.clear()
                is_alive.extend(one() is not None for one in refs)
                is_cleared.set()

            number = comm._state.core.sequence() + 1
            clears = threading.Thread(target=clear, args=(listed, refs, number))
            clears.start()
            comm.all_gather(listed, of_numpy(1))
            clears.join()
        return is_alive

    assert ranks.run(run)[1] == [True] * 9


def test_a_list_of_several_types_is_refused_each_time() -> None:
    with alone() as comm:
        for _ in range(2):
            comm.all_gather([of_numpy(0)], of_numpy(1))
            with pytest.raises(InvalidArgumentError, match="expected elements of type float32"):
                comm.all_gather([of_numpy(0, dtype="int32")], of_numpy(1))
            with pytest.raises(InvalidArgumentError, match="expected one buffer per rank"):
                comm.all_gather([of_numpy(0), of_numpy(0)], of_numpy(1))
            with pytest.raises(InvalidArgumentError, match="expected one buffer per rank"):
                comm.all_gather([], of_numpy(1))


@LIBRARIES
def test_what_differs_in_one_thing_is_another_call(ranks: ThreadRanks, make: Make) -> None:
    def run(comm: Communicator) -> list[Any]:
        results = []
        for _ in range(2):
            for op in (ReduceOp.SUM, ReduceOp.MAX, 0, 1):
                for dtype in ("float32", "int32", "float64"):  # two of them are as long
                    for count in (1, 2, 0):
                        data = make(*[comm.rank + 1] * count, dtype=dtype)
                        comm.all_reduce(data, op)
                        results.append(data.tolist())
            for root in range(3):
                data = make(comm.rank)
                comm.broadcast(data, root)
                results.append(data.tolist())
        return results

    sums = [result for op in (6, 3, 6, 6) for _ in range(3) for result in ([op], [op] * 2, [])]
    assert ranks.run(run) == [(sums + [[0], [1], [2]]) * 2] * 3


def test_arguments_that_are_missing_or_too_many_are_named_as_by_a_function() -> None:
    with alone() as comm:
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'root'"):
            comm.broadcast(of_numpy(1))  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="positional arguments but"):
            comm.all_reduce(of_numpy(1), 0, None, 1.0)  # type: ignore[call-arg]


def test_subclasses_and_options_take_the_function() -> None:
    with alone() as comm:
        data = of_numpy(1, 2)
        comm.all_reduce(data)
        assert num_frames(lambda: comm.all_reduce(data.view(Labelled))) > 0
        assert num_frames(lambda: comm.all_reduce(data, compression="none")) > 0
        with pytest.raises(InvalidArgumentError, match="timeout_s: expected a number of seconds"):
            comm.timeout_s = "soon"  # type: ignore[assignment]
        comm.timeout_s = 5  # no float
        comm.all_reduce(data)


def test_copy_on_write_tensors_are_copied() -> None:
    with alone() as comm:
        first = torch.ones(2)
        comm.all_gather(torch.zeros(2), first)
        lazy = torch._lazy_clone(first)
        comm.all_gather(lazy, torch.full((2,), 7.0))
        assert (first.tolist(), lazy.tolist()) == ([1, 1], [7, 7])


def test_groups_collect_known_calls(ranks: ThreadRanks) -> None:
    def run(comm: Communicator) -> list[float]:
        data = of_numpy(1)
        comm.all_reduce(data)
        with group():
            comm.all_reduce(data)
            work = comm.nonblocking.all_reduce(data)
            assert data.tolist() == [3.0]
        work.wait()
        return data.tolist()

    assert ranks.run(run) == [[27.0]] * 3


def test_two_communicators_know_their_own_calls() -> None:
    data = of_numpy(1)
    with alone() as one, alone() as other:
        one.all_reduce(data)
        other.all_reduce(data)
        one.close()
        with pytest.raises(AbortedError, match="is closed"):
            one.all_reduce(data)
        with pytest.raises(AbortedError, match="is closed"):
            one.nonblocking.all_reduce(data)
        assert num_frames(lambda: other.all_reduce(data)) == 0


@pytest.mark.parametrize("output", [False, True], ids=["in place", "out of place"])
def test_a_wrong_entry_of_the_cache_is_reported(
    monkeypatch: pytest.MonkeyPatch, output: bool
) -> None:
    monkeypatch.setenv("HCCL_VERIFY", "1")

    def run(comm: Communicator) -> list[float]:
        data = of_numpy(*[comm.rank + 1] * 99)
        result = of_numpy(*[0] * 99) if output else data
        for _ in range(2):
            comm.all_reduce(data, output=result)
        plans = comm._state.plans
        # Python would write another plan now, of which the cache is not told.
        plans._environ, plans._given = {"HCCL_ALGORITHM": "ring"}, {}
        plans._choices.clear()
        with pytest.raises(
            RuntimeError, match="HCCL_VERIFY: the plan cache has another all_reduce"
        ):
            comm.all_reduce(data, output=result)
        plans.choose_by({})
        comm.all_reduce(data, output=result)
        return result.tolist()[:1]

    with ThreadRanks("aab") as ranks:
        assert ranks.run(run) == [[6.0] if output else [54.0]] * 3


def test_failures_have_the_same_text_on_both_ways(ranks: ThreadRanks) -> None:
    def run(comm: Communicator) -> str:
        data, other = of_numpy(1), of_numpy(1, 2)
        for _ in range(2):
            comm.all_reduce(data)
            comm.all_reduce(other)
        with pytest.raises(MismatchError) as raised:
            comm.all_reduce(other if comm.rank == 1 else data)
        assert raised.value.__suppress_context__
        with pytest.raises(MismatchError) as again:
            comm.all_reduce(data, timeout_s=5.0)
        assert str(again.value) == str(raised.value)
        return str(raised.value)

    (text,) = set(ranks.run(run))
    assert "all_reduce(sum, float32[2])" in text and "all_reduce(sum, float32[1])" in text


def test_other_plans_forget_known_calls() -> None:
    with alone() as comm:
        data = of_numpy(1)
        comm.all_reduce(data)
        comm._state.plans.choose_by({})
        assert num_frames(lambda: comm.all_reduce(data)) > 0
        assert num_frames(lambda: comm.all_reduce(data)) == 0


def test_more_calls_than_are_kept_give_the_same_values() -> None:
    with alone() as comm:
        for _ in range(2):
            for count in range(200):
                data = np.arange(count, dtype=np.float32)
                comm.all_reduce(data)
                assert data.tolist() == list(range(count))


def test_methods_look_like_functions() -> None:
    assert list(inspect.signature(Communicator.all_reduce).parameters)[:3] == ["self", "data", "op"]
    assert Communicator.all_reduce.__name__ == "all_reduce"
    assert inspect.getdoc(Communicator.all_reduce).startswith("Reduce `data` over all ranks")  # type: ignore[union-attr]
