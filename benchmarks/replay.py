"""Compares the time of a replayed graph with that of its calls one by one and in a group().

    python -m benchmarks.replay 100 -g 2 --sizes 4,1K,64K

The first argument is the number of all_reduces, each on its own buffer; the options are those of
hccl-bench. A time is that of all of them. The three ways alternate in the same processes.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import hccl_py
from benchmarks.harness import parser_of_command, run_bench
from hccl_py.bench.carry_out import carry_out
from hccl_py.bench.collective.contender import Contender, Endpoint, Timed
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.oracle import Call
from hccl_py.command_line import parse_positive

ONE_BY_ONE, GROUP, REPLAY = "one by one", "group()", "replay"


@dataclass
class Repeated:
    """A contender that makes every call several times, in one of the three ways."""

    inner: Any
    way: str
    num_calls: int

    def __getattr__(self, name: str) -> Any:
        """Forward everything else to the contender."""
        return getattr(self.inner, name)

    def bind(self, call: Call, input: Any, output: Any) -> Timed:
        """Bind each call to a buffer of its own; the first one is checked."""
        if call.op != "all_reduce":
            return self.inner.bind(call, input, output)  # type: ignore[no-any-return]
        more = [self.inner.zeros(call.count, call.dtype) for _ in range(self.num_calls - 1)]
        calls = [self.inner.bind(call, one, one) for one in (input, *more)]

        def one_by_one() -> None:
            for each in calls:
                each()

        def grouped() -> None:
            with hccl_py.group():
                one_by_one()

        if self.way != REPLAY:
            return grouped if self.way == GROUP else one_by_one
        with hccl_py.capture() as graph:
            one_by_one()
        return graph.replay


def open_repeated(api: str, way: str, num_calls: int, endpoint: Endpoint) -> Contender:
    """Open a contender that repeats its calls."""
    return Repeated(Api(api)(endpoint), way, num_calls)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.replay", __doc__ or "")
    parser.add_argument("calls", type=parse_positive, help="number of all_reduces")
    given, words = parser.parse_known_args(argv)
    contenders = {
        way: partial(open_repeated, "communicator", way, given.calls)
        for way in (REPLAY, ONE_BY_ONE, GROUP)
    }
    contenders["dist"] = partial(open_repeated, "torch", ONE_BY_ONE, given.calls)
    words = ["--api", "communicator", *words]
    return carry_out("benchmarks.replay", partial(run_bench, words, contenders))


if __name__ == "__main__":
    sys.exit(main())
