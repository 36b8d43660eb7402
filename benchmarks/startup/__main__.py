"""The command: fresh starts of every contender and layout in turn, then the report."""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks.harness import Document, Page, Recorded, failed, parser_of_command
from benchmarks.startup.rank import (
    COMMUNICATOR,
    CONTENDERS,
    Reading,
    call,
    close,
    connect,
    imports,
    split,
)
from hccl_py import get_unique_id
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.ranks import RankFailure, Ranks
from hccl_py.bench.collective.results import Spread
from hccl_py.command_line import Parser, names_of, parse_natural
from hccl_py.schedulers.ports import free_port

_IMPORTS = ("import hccl_py", "from hccl_py import Communicator")
_TIMED = (
    "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin); "
    "import sys; assert 'torch' not in sys.modules"
)
_DESCRIPTION = """\
Measure how long ranks need to connect after their imports, and the descriptors, threads and memory
of each. Ranks are processes on this machine; several nodes are emulated (HCCL_NODE_ID), with TCP
between them. A time is that of the slowest rank; the rest is the mean over the ranks."""
_EPILOG = """\
examples:
  python -m benchmarks.startup
  python -m benchmarks.startup --layouts 1x16 --contenders "communicator,torch hccl,torch gloo"
  python -m benchmarks.startup --layouts 2x4 --subgroups 50

columns:
  before       after the imports of all ranks
  connected    after the last rank has connected
  all_reduce   after the first one, of 4 bytes for each rank; all_to_all the same
  subgroups    after --subgroups subcommunicators of all ranks were made

rows: ms of the step; open descriptors, threads, and memory (PSS) added since the imports"""

_COUNTED = ("fds", "threads", "mib")
Start = dict[str, list[Reading]]
"""By step, a reading of each rank."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    recorded = Recorded(_parser(), _introduce, _report)
    given = recorded.read(argv, starts=5)
    return recorded.carry_out(given, lambda document: _measure(given, document), imports={})


def _measure(given: argparse.Namespace, document: Document) -> Iterator[str]:
    """Time the imports and the starts, --starts times each."""
    for statement in _IMPORTS:
        yield statement
        document["imports"][statement] = [_import_s(statement) for _ in range(given.starts)]
    for (nodes, per_node), contender in product(given.layouts, given.contenders):
        layout, starts = f"{nodes}x{per_node}", []
        subgroups = given.subgroups if contender == COMMUNICATOR else 0
        for number in range(given.starts):
            what = f"{layout}, {contender}, start {number + 1} of {given.starts}"
            yield what
            try:
                starts.append(_start(nodes, per_node, contender, subgroups))
            except RankFailure as failure:
                failed(document, what, failure)
        if starts:
            where = {"layout": layout, "contender": contender}
            document["results"].append(where | _record(starts))


def _import_s(statement: str) -> float:
    """Time a statement in a fresh interpreter, which must not load torch."""
    command = [sys.executable, "-c", _TIMED.format(statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _start(nodes: int, per_node: int, contender: str, subgroups: int) -> Start:
    """Start all ranks afresh; return their readings after each step."""
    (options,) = parse(["-g", str(per_node), "--nnodes", str(nodes), "--timeout", "300"])
    unique_id = bytes(get_unique_id()) if contender == COMMUNICATOR else b""
    arguments = contender, options.world_size, unique_id, free_port()
    # Spawned, because forked ranks would share the memory of their imports.
    with Ranks(options, [], method="spawn") as ranks:
        start = {
            "before": ranks.ask(imports, contender, what="importing"),
            "connected": ranks.ask(connect, *arguments, what="connecting"),
        }
        for op in ("all_reduce", "all_to_all"):
            start[op] = ranks.ask(call, op, what=f"in the first {op}")
        if subgroups:
            start["subgroups"] = ranks.ask(split, subgroups, what="making subcommunicators")
        ranks.ask(close, what="closing")
    return start


def _record(starts: Sequence[Start]) -> dict[str, Any]:
    """Return the seconds of each step of each start, and the means of the counted resources."""
    seconds = [
        {
            moment: max(one.at_s for one in ranks) - min(one.began_s for one in ranks)
            for moment, ranks in list(start.items())[1:]
        }
        for start in starts
    ]
    counted = {
        what: {
            moment: np.mean([[getattr(one, what) for one in start[moment]] for start in starts])
            for moment in starts[0]
        }
        for what in _COUNTED
    }
    return {"seconds": seconds, **counted}


def _introduce(document: Document, page: Page) -> None:
    page.introduction(document, "times: milliseconds, median (p10-p90) over the starts")


def _report(document: Document, page: Page) -> None:
    """Add the imports, then a row for each layout and contender, then what failed."""
    page.heading("Imports in ms")
    page.items([f"{each}: {_ms(times)}" for each, times in document["imports"].items()])
    for found in document["results"]:
        moments = list(found["fds"])
        steps = {step: [start[step] for start in found["seconds"]] for step in moments[1:]}
        rows = [["", *moments, ""], ["ms", "", *map(_ms, steps.values()), ""]]
        for what in ("fds", "threads"):
            rows.append([what, *(f"{found[what][moment]:.0f}" for moment in moments), ""])
        since = [found["mib"][moment] - found["mib"][moments[0]] for moment in moments]
        rows.append(["MiB more", *(f"{value:.1f}" for value in since), ""])
        page.heading(f"{found['layout']}, {found['contender']}", level=3)
        page.table(rows)
    page.failures(document)


def _ms(times_s: Sequence[float]) -> str:
    spread = Spread.of([1e3 * time_s for time_s in times_s])
    return f"{spread.median:.0f} ({spread.p10:.0f}-{spread.p90:.0f})"


def _parser() -> Parser:
    parser = parser_of_command("benchmarks.startup", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add(
        "--layouts",
        type=_layouts,
        default=((1, 16), (2, 4), (4, 4)),
        metavar="LIST",
        help="nodes x ranks of each (1x16,2x4,4x4)",
    )
    add(
        "--contenders",
        type=names_of(CONTENDERS),
        default=(COMMUNICATOR,),
        metavar="LIST",
        help=f"any of {', '.join(CONTENDERS)} ({COMMUNICATOR})",
    )
    help = "subcommunicators that a communicator makes at the end (0)"
    add("--subgroups", type=parse_natural, default=0, metavar="N", help=help)
    return parser


def _layouts(text: str) -> tuple[tuple[int, int], ...]:
    found = [re.fullmatch("([1-9][0-9]*)x([1-9][0-9]*)", each) for each in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"expected NODESxRANKS, as in 1x16,4x4, got {text!r}")
    return tuple((int(each[1]), int(each[2])) for each in found if each)


if __name__ == "__main__":
    sys.exit(main())
