"""The command: ranks that train with every contender in turn, then the tables."""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from multiprocessing import forkserver
from typing import Any

import numpy as np

from benchmarks.harness import Document, Recorded, failed, parser_of_command
from benchmarks.overlap.contenders import CONTENDERS, MODELS, choose, time_round, train
from benchmarks.overlap.report import introduce, report
from hccl_py.bench.collective.analysis.trust import Load, load_doubts
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.ranks import PRELOAD, RankFailure, Ranks
from hccl_py.command_line import (
    Parser,
    names_of,
    parse_natural,
    parse_numbers,
    parse_positive,
    parse_seconds,
)
from hccl_py.installation import pip_install

_ROUND_S = 0.2
_MIN_ROUNDS = 3
_WARMUP_STEPS, _SLOW_WARMUP_STEPS = 1, 3
_MAX_STEPS = 50
_ALL_REDUCES = 3
_TOLERANCE = 1e-3
_DESCRIPTION = """\
Measure the time that communication adds to a training step, on ranks that this command starts: the
same model alone, with DistributedDataParallel (DDP) and fully_shard (FSDP2) over gloo and over
hccl, and with hccl_py.fast_ddp. DDP, FSDP2 and fast_ddp also train silently, which is without
communication. The contenders' rounds alternate in the same processes. Each start has new processes
and process groups.
Before timing, a contender's first steps are compared with those of one process on whole batches.

models:
  digits       perceptron with three layers of 1024 on scikit-learn's digits, 2.2 million parameters
  transformer  4 layers of 256 channels on random tokens, 3.7 million parameters"""
_EPILOG = """\
examples:
  python -m benchmarks.overlap --json overlap.json
  python -m benchmarks.overlap --ranks 2 --models digits --starts 1 --seconds 5
  python -m benchmarks.overlap --ranks 4 --nnodes 2       two emulated nodes, over TCP
  python -m benchmarks.overlap --load 30       beside 30 processes that never sleep
  python -m benchmarks.overlap --show overlap.json --markdown

columns:
  step ms     a step on its slowest rank: median over the rounds (p10-p90)
  cpu ms      CPU time of all threads of a rank for a step: mean of the ranks, median of the rounds
  of alone    step / step of the model alone
  gloo / it   step over gloo, of FSDP2 for FSDP2 and else of DDP, / step; above 1 it is faster
  reduce ms   one all_reduce of all gradients, without training
  exposed ms  step - silent step of the same round
  of reduce   exposed / reduce: the part that is not hidden; above 100 % if ranks wait for others
  of gloo's   exposed / exposed over gloo, of FSDP2 for FSDP2 and else of DDP

exit codes: 0 good, 1 wrong results or a rank failed, 2 wrong arguments, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code. Ctrl-C and SIGTERM print the results so far."""
    recorded = Recorded(_parser(), introduce, report)
    given = recorded.read(argv, starts=3)
    problem = _problem(given)
    if problem:
        recorded.parser.error(problem)
    return recorded.carry_out(
        given,
        lambda document: _starts(given, document),
        seconds=given.seconds,
        nnodes=given.nnodes,
        load=given.load,
        contenders={name: way.title for name, way in CONTENDERS.items()},
    )


def _starts(given: argparse.Namespace, document: Document) -> Iterator[str]:
    """Start ranks afresh for each number of them, and train all models."""
    for start, ranks in product(range(given.starts), given.ranks):
        what = f"start {start + 1} of {given.starts}, {ranks} ranks"
        asked = ["--nproc", str(ranks // given.nnodes), "--nnodes", str(given.nnodes)]
        (options,) = parse([*asked, "--timeout", str(given.timeout)])
        try:
            _preload()
            with Ranks(options, list(CONTENDERS.values())) as crew:
                for model in given.models:
                    yield f"{what}, {model}"
                    found = _prepare(crew, model, given)
                    with _busy(given.load) as busy:
                        measured = _measure(crew, model, given, found, [*crew.pids, *busy])
                    where = {"model": model, "ranks": ranks, "start": start}
                    document["results"] += [{**where, **each} for each in measured]
                    document["failures"] += [
                        f"{what}, {model}, {CONTENDERS[each['contender']].title}: expected the "
                        f"parameters of one process, got others by {each['difference']:.2g}"
                        for each in measured
                        if not each["difference"] <= _TOLERANCE
                    ]
        except RankFailure as failure:
            failed(document, what, failure)


@contextmanager
def _busy(count: int) -> Iterator[list[int]]:
    """Run processes that compute all the time, of this session and nice; yield their ids."""
    context = multiprocessing.get_context("fork")
    crowd = [context.Process(target=_compute, args=(os.getpid(),)) for _ in range(count)]
    started = []
    try:
        for one in crowd:
            one.start()
            started.append(one)
        yield [one.pid for one in started if one.pid]
    finally:
        for one in started:
            one.kill()
            one.join()


def _compute(parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent ends it
    while os.getppid() == parent:
        sum(range(10_000))


def _prepare(crew: Ranks, model: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Make and compare every contender's model; return an object without times for each."""
    found: list[dict[str, Any]] = []
    batch = given.batch or MODELS[model]
    for index, (name, way) in enumerate(CONTENDERS.items()):
        what = f"preparing {model} with {way.title}"
        answers = crew.ask(train, index, model, batch, what=what)
        difference = max(each[1] for each in answers)
        found.append({"contender": name, "gradient_bytes": answers[0][0], "batch": batch})
        found[-1] |= {"difference": difference, "step_ms": [], "cpu_ms": [], "reduce_ms": []}
    return found


def _measure(
    crew: Ranks,
    model: str,
    given: argparse.Namespace,
    found: list[dict[str, Any]],
    ours: Sequence[int],
) -> list[dict[str, Any]]:
    """Return the prepared objects with times; processes of `ours` are no reason for a doubt."""
    ways = list(CONTENDERS.values())

    def time_ms(index: int, warmup: int, calls: int) -> tuple[float, float]:
        """Return means over calls: of the slowest rank's milliseconds, and of a rank's CPU time."""
        what = f"training {model} with {ways[index].title}"
        answers = crew.ask(time_round, index, calls, warmup, what=what)
        slowest_s = np.max([seconds for seconds, _ in answers], axis=0)
        return float(slowest_s.mean() * 1e3), float(np.mean([each for _, each in answers]) * 1e3)

    def in_turns(timed: str) -> Iterator[int]:
        crew.ask(choose, timed, what=f"turning to the {timed}")
        yield from ((number + offset) % len(found) for offset in range(len(found)))

    number = 0
    step_ms = max(time_ms(index, _SLOW_WARMUP_STEPS, 2)[0] for index in in_turns("step"))
    steps = min(_MAX_STEPS, max(1, round(_ROUND_S * 1e3 / step_ms)))
    before, end = Load.now(ours), time.monotonic() + given.seconds
    while number < _MIN_ROUNDS or time.monotonic() < end:
        for index in in_turns("step"):
            step_ms, cpu_ms = time_ms(index, _WARMUP_STEPS, steps)
            found[index]["step_ms"].append(step_ms)
            found[index]["cpu_ms"].append(cpu_ms)
        for index in in_turns("all_reduce"):
            if ways[index].silent:
                found[index]["reduce_ms"].append(time_ms(index, 1, _ALL_REDUCES)[0])
        number += 1
    doubts = load_doubts(before, Load.now(ours))
    return [{**each, "steps_per_round": steps, "doubts": doubts} for each in found]


def _preload() -> None:
    """Start the fork server of the ranks with the modules that DDP imports at its first use."""
    modules = [*PRELOAD, "benchmarks.overlap.training", "torch._dynamo", "sklearn.datasets"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    forkserver.ensure_running()


def _parser() -> Parser:
    parser = parser_of_command("benchmarks.overlap", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    names = names_of(MODELS)
    add("--ranks", type=parse_numbers, default=(2, 4), metavar="LIST", help="ranks (2,4)")
    add(
        "--models",
        type=names,
        default=tuple(MODELS),
        metavar="LIST",
        help="digits, transformer (all)",
    )
    add("--nnodes", type=parse_positive, default=1, metavar="N", help="emulated nodes (1)")
    add(
        "--load",
        type=parse_natural,
        default=0,
        metavar="N",
        help="busy processes beside the ranks (0)",
    )
    add("--batch", type=parse_positive, metavar="N", help="samples of a rank (digits 64, else 2)")
    add(
        "--seconds",
        type=parse_seconds,
        default=30.0,
        metavar="S",
        help="timed for each model in each start, all contenders together (30)",
    )
    add(
        "--timeout",
        type=parse_seconds,
        default=600.0,
        metavar="S",
        help="seconds after which a start fails (600)",
    )
    return parser


def _problem(given: argparse.Namespace) -> str | None:
    """Return what is wrong with arguments that are well-formed one by one, or None."""
    if min(given.ranks) < 2:
        return (
            f"--ranks: expected at least 2, got {min(given.ranks)}: one rank has no communication"
        )
    odd = [ranks for ranks in given.ranks if ranks % given.nnodes]
    if odd:
        return f"--ranks: expected multiples of --nnodes {given.nnodes}, got {odd[0]}"
    if given.seconds * len(given.models) >= given.timeout:
        return f"--timeout: expected more than --seconds for each model, got {given.timeout:g}"
    if not given.show and "digits" in given.models and find_spec("sklearn") is None:
        return f"--models digits needs scikit-learn: {pip_install('examples')}"
    return None


if __name__ == "__main__":
    sys.exit(main())
