"""Measures the cost of comparing every call with the other ranks' calls.

    python -m benchmarks.check_cost -g 2 --test all_reduce,all_gather --sizes 4,4K,64K

The options are those of hccl-bench. The rounds alternate between two communicators of the same
ranks, one of which compares nothing. No public setting turns the comparison off, because it finds
calls whose result would be wrong.
"""

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.harness import run_bench
from hccl_py.bench.carry_out import carry_out
from hccl_py.bench.collective.contender import Contender, Endpoint, Open
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.over_communicator import CommunicatorContender


def open_unchecked(endpoint: Endpoint) -> Contender:
    """Open a communicator that compares nothing."""
    contender = Api("communicator")(endpoint)
    assert isinstance(contender, CommunicatorContender)
    contender.communicator._state.core.set_checks(False)
    return contender


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = ["--api", "communicator", *(sys.argv[1:] if argv is None else argv)]
    contenders: dict[str, Open] = {"checked": Api("communicator"), "unchecked": open_unchecked}
    return carry_out("benchmarks.check_cost", partial(run_bench, words, contenders))


if __name__ == "__main__":
    sys.exit(main())
