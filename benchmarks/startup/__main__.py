"""The command: fresh starts of every contender and layout in turn, then the report."""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from multiprocessing.connection import Connection, wait
from statistics import fmean
from typing import Any

from benchmarks.harness import Document, Recorded, failed, parser_of_command
from benchmarks.startup.rank import (
    COMMUNICATOR,
    CONTENDERS,
    MOMENTS,
    SUBGROUPS,
    Assignment,
    Reading,
    run,
)
from benchmarks.startup.report import COUNTED, introduce, report
from hccl_py import get_unique_id
from hccl_py.command_line import Parser, names_of, parse_natural
from hccl_py.schedulers.ports import free_port

_START_S = 300.0
_IMPORTS = ("import hccl_py", "from hccl_py import Communicator")
_TIMED = (
    "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin); "
    "import sys; assert 'torch' not in sys.modules"
)
_DESCRIPTION = """\
Measure how long ranks need to connect after their imports, and what each of them holds open. Ranks
are processes on this machine; more than one node is emulated (HCCL_NODE_ID), and its connections
are TCP. A time is that of the slowest rank; the rest is the mean over the ranks."""
_EPILOG = """\
examples:
  python -m benchmarks.startup
  python -m benchmarks.startup --layouts 1x16 --contenders "communicator,torch hccl,torch gloo"
  python -m benchmarks.startup --layouts 2x4 --subgroups 50

columns:
  before       when all ranks have imported
  connected    when the last of them is connected
  all_reduce   after the first one, of 4 bytes for each rank; all_to_all the same
  subgroups    after a communicator made so many subcommunicators of all ranks

rows: ms of the step; open descriptors, threads, and memory (PSS) that came since the imports"""

Start = list[list[Reading]]
"""By rank, a reading for each moment."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    recorded = Recorded(_parser(), introduce, report)
    given = recorded.read(argv, starts=5)
    return recorded.carry_out(given, lambda document: _measure(given, document), imports={})


def _measure(given: argparse.Namespace, document: Document) -> Iterator[str]:
    """Import and start afresh, as often as asked for."""
    for statement in _IMPORTS:
        yield statement
        document["imports"][statement] = [_import_s(statement) for _ in range(given.starts)]
    for (nodes, per_node), contender in product(given.layouts, given.contenders):
        layout, starts = f"{nodes}x{per_node}", []
        subgroups = given.subgroups if contender == COMMUNICATOR else 0
        moments = [*MOMENTS, *([SUBGROUPS] if subgroups else [])]
        for number in range(given.starts):
            what = f"{layout}, {contender}, start {number + 1} of {given.starts}"
            yield what
            try:
                starts.append(_start(nodes, per_node, contender, subgroups))
            except (TimeoutError, EOFError) as error:
                failed(document, what, error or "a rank ended")
        if starts:
            where = {"layout": layout, "contender": contender}
            document["results"].append(where | _record(starts, moments))


def _import_s(statement: str) -> float:
    """Time a statement in a fresh interpreter, which must not load torch."""
    command = [sys.executable, "-c", _TIMED.format(statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _start(nodes: int, per_node: int, contender: str, subgroups: int) -> Start:
    """Start all ranks afresh; return what they read."""
    size = nodes * per_node
    unique_id = bytes(get_unique_id()) if contender == COMMUNICATOR else b""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    assignments = []
    for rank in range(size):
        node = str(rank // per_node) if nodes > 1 else ""
        environment = shared | {"RANK": str(rank), "HCCL_NODE_ID": node}
        assignments.append(Assignment(contender, environment, unique_id, subgroups))
    with _processes(assignments) as pipes:
        moments = [_receive(pipes)]
        for _ in range(len(MOMENTS) - 1 + bool(subgroups)):
            _let_go(pipes)
            moments.append(_receive(pipes))
        _let_go(pipes)
    return [list(readings) for readings in zip(*moments, strict=True)]


def _let_go(pipes: Sequence[Connection]) -> None:
    for pipe in pipes:
        pipe.send(None)


@contextmanager
def _processes(assignments: Sequence[Assignment]) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for assignment in assignments:
            here, there = context.Pipe()
            processes.append(context.Process(target=run, args=(there, assignment), daemon=True))
            processes[-1].start()
            there.close()
            pipes.append(here)
        yield pipes
        for process in processes:
            process.join(_START_S)
    finally:
        for process in processes:
            process.kill()


def _receive(pipes: Sequence[Connection]) -> list[Any]:
    """Take one message from every rank; EOFError: a rank ended, and says why on stderr."""
    found: dict[Connection, Any] = {}
    while missing := [pipe for pipe in pipes if pipe not in found]:
        ready = wait(missing, _START_S)
        if not ready:
            raise TimeoutError(f"{len(missing)} ranks sent nothing in {_START_S:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            found[pipe] = pipe.recv()
    return [found[pipe] for pipe in pipes]


def _record(starts: Sequence[Start], moments: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of each step of each start, and the means of what was counted."""
    seconds = []
    for start in starts:
        steps = list(zip(moments, zip(*start, strict=True), strict=True))[1:]
        seconds.append(
            {
                moment: max(one.at_s for one in readings) - min(one.began_s for one in readings)
                for moment, readings in steps
            }
        )
    counted: dict[str, Any] = {}
    for what in COUNTED:
        counted[what] = {
            moment: fmean(getattr(rank[number], what) for start in starts for rank in start)
            for number, moment in enumerate(moments)
        }
    return {"seconds": seconds, **counted}


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
        help=f"of {', '.join(CONTENDERS)} ({COMMUNICATOR})",
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
