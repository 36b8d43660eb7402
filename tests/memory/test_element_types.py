"""Elements that mean more than their bytes: ranks compare what they are, or the call is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import ThreadRanks

from hccl_py import Communicator, InvalidArgumentError, MismatchError

DIFFERENT: list[tuple[Any, Any, str]] = [
    ("M8[s]", "M8[ms]", r"datetime64\[ms\].*datetime64\[s\]"),
    ("M8[s]", "M8[25s]", r"datetime64\[s\]"),
    ("M8[s]", "m8[s]", r"timedelta64\[s\].*datetime64\[s\]"),
    ("m8[D]", "i8", r"int64.*timedelta64\[D\]"),
    ("S4", "U1", r"S4"),
    ("S4", "S2", r"S4"),
    ([("a", "i4"), ("b", "f4")], [("b", "i4"), ("a", "f4")], "'a', '<i4'"),
    ([("a", "i4"), ("b", "f4")], [("a", "f4"), ("b", "i4")], "'a', '<i4'"),
]

CALLS: dict[str, Callable[[Communicator, Any], None]] = {
    "broadcast": lambda comm, data: (comm.broadcast(data, 0), comm.barrier())[0],
    "all_gather": lambda comm, data: comm.all_gather([data.copy() for _ in range(2)], data),
    "gather": lambda comm, data: (
        comm.gather(None if comm.rank else [data.copy() for _ in range(2)], data, 0),
        comm.barrier(),
    )[0],
    "all_to_all": lambda comm, data: comm.all_to_all([data.copy() for _ in range(2)], [data] * 2),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("mine", "theirs", "named"), DIFFERENT)
def test_types_of_equal_size_that_differ_between_ranks_are_a_mismatch(
    mine: Any, theirs: Any, named: str, call: str
) -> None:
    def make(comm: Communicator) -> None:
        dtype = np.dtype(theirs if comm.rank else mine)
        CALLS[call](comm, np.zeros(8 // dtype.itemsize * 4, dtype))

    with ThreadRanks("aa") as ranks:
        failures = ranks.failures(make)
    for failure in failures:
        assert isinstance(failure, MismatchError), failure
        assert failure.rank == 1
    assert str(failures[0]) == str(failures[1])
    with pytest.raises(MismatchError, match=named):
        raise failures[0]  # type: ignore[misc]


REFUSED = {
    "objects": (lambda: np.array([None, {}]), "Python objects"),
    "objects in a structure": (lambda: np.zeros(2, "i4, O"), "Python objects"),
    "a masked array": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "masked array"),
    "a masked array without a mask": (lambda: np.ma.array([1.0]), "masked array"),
    "the other byte order": (lambda: np.zeros(2, ">f4"), "byte order"),
    "the other byte order in a structure": (lambda: np.zeros(2, "i4, >f4"), "byte order"),
    "quantised elements": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "scale",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_elements_whose_meaning_stays_behind_are_refused(kind: str) -> None:
    make, named = REFUSED[kind]
    with Communicator(None, 0, 1) as comm:
        for name, call in {
            "data": lambda: comm.broadcast(make(), 0),
            "input": lambda: comm.all_gather([make()], make()),
            r"output\[0\]": lambda: comm.all_gather([make()], np.zeros(1)),
        }.items():
            with pytest.raises(InvalidArgumentError, match=f"^{name}: .*{named}"):
                call()
