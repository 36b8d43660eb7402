"""The command: ranks that train with every contender in turn, then the tables."""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

import numpy as np

from hccl_py.bench.collective.analysis.trust import Load, load_doubts
from hccl_py.bench.collective.command_line import read
from hccl_py.bench.collective.output.document import facts
from hccl_py.bench.collective.ranks import RankFailure, Ranks
from hccl_py.bench.command_line.parser import Parser
from hccl_py.bench.command_line.values import (
    parse_input,
    parse_numbers,
    parse_output,
    parse_positive,
    parse_seconds,
    parser_of,
)
from hccl_py.bench.overlap.contenders import CONTENDERS, MODELS, open_contender
from hccl_py.bench.overlap.report import introduction, tables

if TYPE_CHECKING:
    from hccl_py.bench.overlap.models import Digits

_PROGRAM = "python -m hccl_py.bench.overlap"
_ROUND_S = 0.2
_MIN_ROUNDS = 3
_WARMUP_STEPS, _SLOW_WARMUP_STEPS = 1, 3
_MAX_STEPS = 50
_ALL_REDUCES = 3
_TOLERANCE = 1e-3
_DESCRIPTION = """\
Measure what communication adds to a training step, on ranks that this command starts: the same
model alone, with DistributedDataParallel (DDP) over gloo and over hccl, and with hccl_py.fast_ddp.
DDP and fast_ddp also train silently: with all that they do except communication. The contenders'
rounds alternate in the same processes. Each start has new processes and process groups. Before it
is timed, a contender's first steps are compared with those of one process on whole batches.

models:
  digits       perceptron with three layers of 1024 on scikit-learn's digits, 2.2 million parameters
  transformer  4 layers of 256 channels on random tokens, 3.7 million parameters"""
_EPILOG = """\
examples:
  python -m hccl_py.bench.overlap --json overlap.json
  python -m hccl_py.bench.overlap --ranks 2 --models digits --starts 1 --seconds 5
  python -m hccl_py.bench.overlap --ranks 4 --nnodes 2       two emulated nodes, over TCP
  python -m hccl_py.bench.overlap --show overlap.json --markdown

columns:
  step ms     a step on its slowest rank: median over the rounds (p10-p90)
  of alone    step / step of the model alone
  gloo / it   step of DDP over gloo / this one; above 1 this one is faster
  reduce ms   one all_reduce of all gradients, without training
  exposed ms  step - silent step of the same round
  of reduce   exposed / reduce: what is not hidden; above 100 % where ranks also wait for each other
  of gloo's   exposed / exposed of DDP over gloo

exit codes: 0 good, 1 wrong results or a rank failed, 2 wrong arguments, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; after Ctrl-C or SIGTERM it prints what it has.

    Returns:
        The exit code.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    argv = sys.argv[1:] if argv is None else argv
    given = _parse(argv)
    if given.show:
        try:
            document = json.loads(given.show.read_text())
            lines = [*introduction(document, given.markdown), *tables(document, given.markdown)]
        except (ValueError, KeyError, TypeError) as error:
            print(f"{_PROGRAM}: --show: {given.show} is no --json file: {error}", file=sys.stderr)
            return 2
        _print(lines)
        return 0
    document = {
        "schema": 1,
        "command": shlex.join([*_PROGRAM.split(), *argv]),
        **facts(),
        **{name: getattr(given, name) for name in ("starts", "seconds", "nnodes")},
        "contenders": {name: way.title for name, way in CONTENDERS.items()},
        "results": [],
        "failures": [],
    }
    _print(introduction(document, given.markdown))
    code = 0
    try:
        with _sigterm_as_interrupt():
            for start in range(given.starts):
                _start(start, given, document)
    except KeyboardInterrupt:
        code = 130
    _print(tables(document, given.markdown))
    return code or (1 if document["failures"] else 0)


def _start(start: int, given: argparse.Namespace, document: dict[str, Any]) -> None:
    """Start ranks afresh for each number of them, and train all models."""
    data = _digits() if "digits" in given.models else None
    for ranks in given.ranks:
        what = f"start {start + 1} of {given.starts}, {ranks} ranks"
        asked = ["--nproc", str(ranks // given.nnodes), "--nnodes", str(given.nnodes)]
        (options,) = read.parse([*asked, "--timeout", str(given.timeout)])
        try:
            _preload()
            with Ranks(
                options, [functools.partial(open_contender, name) for name in CONTENDERS]
            ) as crew:
                for model in given.models:
                    print(f"{what}, {model}", file=sys.stderr, flush=True)
                    measured = _measure(crew, model, given, data)
                    where = {"model": model, "ranks": ranks, "start": start}
                    document["results"] += [{**where, **each} for each in measured]
                    document["failures"] += [
                        f"{what}, {model}, {CONTENDERS[each['contender']].title}: expected the "
                        f"parameters of one process, got others by {each['difference']:.2g}"
                        for each in measured
                        if not each["difference"] <= _TOLERANCE
                    ]
        except RankFailure as failure:
            document["failures"].append(f"{what}: {failure}".splitlines()[0])
            print(f"{what}: {failure}", file=sys.stderr, flush=True)
        if given.json:  # a run takes minutes
            given.json.write_text(json.dumps(document) + "\n")


def _measure(
    crew: Ranks, model: str, given: argparse.Namespace, data: Digits | None
) -> list[dict[str, Any]]:
    """Return what came of one model, an object for each contender."""
    found: list[dict[str, Any]] = []
    for index, (name, way) in enumerate(CONTENDERS.items()):
        what = f"preparing {model} with {way.title}"
        batch = given.batch or MODELS[model]
        answers = crew.ask("call", index, "prepare", model, batch, data, what=what)
        found.append(
            {
                "contender": name,
                "gradient_bytes": answers[0][0],
                "batch": batch,
                "difference": max(each[1] for each in answers),
                "step_ms": [],
                "reduce_ms": [],
            }
        )

    ways = list(CONTENDERS.values())

    def ask(index: int, method: str, *arguments: object) -> float:
        """Return milliseconds, of the slowest rank of each call, in the mean."""
        what = f"training {model} with {ways[index].title}"
        times = np.array(crew.ask("call", index, method, *arguments, what=what))
        return float(times.max(axis=0).mean() * 1e3)

    step_ms = max(ask(index, "time_steps", _SLOW_WARMUP_STEPS, 2) for index in range(len(found)))
    steps = min(_MAX_STEPS, max(1, round(_ROUND_S * 1e3 / step_ms)))
    before, end = Load.now(crew.pids), time.monotonic() + given.seconds
    number = 0
    while number < _MIN_ROUNDS or time.monotonic() < end:
        for offset in range(len(found)):
            index = (number + offset) % len(found)
            found[index]["step_ms"].append(ask(index, "time_steps", _WARMUP_STEPS, steps))
            if ways[index].silent:
                found[index]["reduce_ms"].append(ask(index, "time_all_reduces", _ALL_REDUCES))
        number += 1
    doubts = load_doubts(before, Load.now(crew.pids))
    return [{**each, "steps_per_round": steps, "doubts": doubts} for each in found]


def _preload() -> None:
    """Start the server that ranks are forked from, with what DDP imports at its first use."""
    modules = ["hccl_py.bench.collective.rank", "hccl_py.bench.overlap.training", "torch._dynamo"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    forkserver.ensure_running()


def _digits() -> Digits:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int64)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = parser_of({name: name for name in MODELS}, tuple(MODELS))
    add("--ranks", type=parse_numbers, default=(2, 4), metavar="LIST", help="ranks (2,4)")
    add(
        "--models",
        type=names,
        default=tuple(MODELS),
        metavar="LIST",
        help="digits, transformer (all)",
    )
    add("--nnodes", type=parse_positive, default=1, metavar="N", help="emulated nodes (1)")
    add("--batch", type=parse_positive, metavar="N", help="samples of a rank (digits 64, else 2)")
    add("--starts", type=parse_positive, default=3, metavar="N", help="fresh starts (3)")
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
        help="seconds after which a start is ended as failed (600)",
    )
    add("--json", type=parse_output, metavar="FILE", help="write every round's figures")
    add("--markdown", action="store_true", help="print Markdown")
    add("--show", type=parse_input, metavar="FILE", help="print the tables of an earlier --json")
    given = parser.read(argv)
    problem = _problem(given)
    if problem:
        parser.error(problem)
    return given


def _problem(given: argparse.Namespace) -> str | None:
    """What is wrong with arguments that argparse found well-formed, or None."""
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
        return "--models digits needs scikit-learn: pip install 'hccl-py[examples]'"
    return None


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
